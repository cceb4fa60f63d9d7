"""Taps of windows: vectors made of other taps' vectors, by moving lanes."""

from __future__ import annotations

from collections.abc import Callable

from rutc.base.record import record
from rutc.emit.index import IndexEmitter, Lane, chunk
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import is_vector, splat
from rutc.emit.loads.load_store import BOOL
from rutc.tensor_ir.expr import Expr, Read, indices, reads_plainly
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import NEAR_STRIDES


@record
class Tap:
    """Iteration `number` of the loop over a window, whose vector is another's, `by` lanes on.

    Neighbouring lanes lie `stride` elements apart.
    """

    loop: str
    number: int
    by: int
    stride: int


class LaneShiftEmitter:
    """Reads of a window's taps that other taps read, too, by the lanes beside.

    v[2*x - 1]  ->  lane x is lane x - 1 of v[2*x + 1], which another iteration of the loop over the
    window reads; of the first lane the vector before has the element, or it is loaded alone.

    v[x - 1] is loaded itself, but where lanes of it are outside: a load that leaves them out may
    cost as much as to move lanes, beside the loads of lines that others load, too.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        emit: Callable[[Expr], ir.Value],
        kept: Callable[[tuple[object, ...]], ir.Value | None],
        keep: Callable[[tuple[object, ...], ir.Value], None],
    ) -> None:
        """Emit at `builder`'s place; `emit` gives the value of a read where the index is.

        `kept` and `keep` are the table of what is known of each buffer's memory.
        """
        self.builder = builder
        self.index = index
        self.emit = emit
        self.kept = kept
        self.keep = keep

    def moved(self, r: Read, *, guarded: bool) -> ir.Value | None:
        """A read's vector made of another's; None where it is loaded itself.

        `guarded` tells whether lanes of it may be outside, and must not be loaded.
        """
        lane = self.index.lane
        found = None if lane is None or not lane.end.is_const else self._tap(r, lane, guarded)
        if lane is None or found is None:
            return None
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        key = (r.value, "moved", coords, r.fill, lane.key)
        vector = self.kept(key)
        if vector is None:
            vector = self._made(r, lane, found)
            if vector is not None:
                self.keep(key, vector)
        return vector

    def _made(self, r: Read, lane: Lane, tap: Tap) -> ir.Value | None:
        """The vector of another tap, moved on."""
        by = tap.by
        last = lane.end.const - lane.base
        active = min(last, lane.lanes)
        missing = [i for i in range(active) if not 0 <= i + by < active]
        beside: ir.Value | None = None
        picks = [min(max(i + by, 0), active - 1) for i in range(lane.lanes)]
        if missing:
            beside = self._beside(r, lane, missing, tap)
            if beside is None:
                return None
            for i in missing:
                picks[i] = lane.lanes + (i + by) % lane.lanes
        with self.index.constant(tap.loop, tap.number):
            vector = self._wide(self.emit(r), lane)
        if tap.stride == 1 and isinstance(beside, ir.Constant):
            # One operation of LLVM's; of a shuffle with a constant it makes two.
            around = [(i + by) % lane.lanes for i in range(lane.lanes)]
            turned = self.builder.shuffled(vector, around, vector)
            own = [i not in missing for i in range(lane.lanes)]
            mask = ir.Constant(ir.VectorType(BOOL, lane.lanes), own)
            return self.builder.select(mask, turned, self._wide(beside, lane))
        beside = vector if beside is None else self._wide(beside, lane)
        return self.builder.shuffled(vector, picks, beside)

    def _wide(self, value: ir.Value, lane: Lane) -> ir.Value:
        return value if is_vector(value) else splat(self.builder, value, lane.lanes)

    def _tap(self, r: Read, lane: Lane, guarded: bool) -> Tap | None:
        """Which iteration's vector is this read's, so many lanes on.

        It is one that begins with the first whole step from where the vector of windows does.
        """
        moving = [c for _, c in r.coords if isinstance(c, Index) and lane.var in c.names()]
        if len(moving) != 1:
            return None
        (c,) = moving
        stride = c.coefficient(lane.var)
        if stride is None or stride not in ((1, *NEAR_STRIDES) if guarded else NEAR_STRIDES):
            return None
        if not reads_plainly(r):
            return None
        const = self.index.resolve(c).const
        period = stride * lane.lanes
        by = ((const + period // 2) % period - period // 2) // stride
        if by == 0:
            return None
        others = {n for i in indices(r) if i is not c for n in i.names()}
        for v, loop in self.index.unrolled.items():
            step = c.coefficient(v)
            if step and v not in others and stride * by % step == 0:
                number = self.index.constants[v].value - stride * by // step
                if loop.lo <= number < loop.hi:
                    return Tap(v, number, by, stride)
        return None

    def _beside(self, r: Read, lane: Lane, missing: list[int], tap: Tap) -> ir.Value | None:
        """A vector with what lanes are to take from beyond the tap's own vector."""
        by = tap.by
        base = lane.base + (lane.lanes if by > 0 else -lane.lanes)
        low, _ = self.index.ranges[lane.var]
        near = chunk(lane.var, base, lane.lanes, lane.end)
        if base >= low and all(base + (i + by) % lane.lanes < lane.end.const for i in missing):
            self.index.lane = near
            with self.index.constant(tap.loop, tap.number):
                value = self.emit(r)
            self.index.lane = lane
            return value
        if len(missing) > 1:
            return None
        self.index.lane = None
        with self.index.constant(lane.var, lane.base + missing[0]):
            value = self.emit(r)
        self.index.lane = lane
        return value
