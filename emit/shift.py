"""Windows whose neighbouring lanes are apart: vectors made of others, by moving lanes."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from rutc.emit.index import I32, IndexEmitter, Lane, chunk, is_vector, splat
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Expr, Read
from rutc.tensor_ir.machine import NEAR_STRIDES


class ShiftEmitter:
    """Reads of a window's taps that other taps read, too, by the lanes beside.

    v[2*x - 1]  ->  lane x is lane x - 1 of v[2*x + 1], which another iteration of the loop over the
    window reads; of the first lane the vector before has the element, or it is loaded alone.
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

    def moved(self, r: Read) -> ir.Value | None:
        """A read's vector made of another's; None where it is loaded itself."""
        lane = self.index.lane
        found = None if lane is None or not lane.end.is_const else self._tap(r, lane)
        if lane is None or found is None:
            return None
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        key = (r.value, "moved", coords, r.fill, lane.key)
        vector = self.kept(key)
        if vector is None:
            vector = self._made(r, lane, *found)
            if vector is not None:
                self.keep(key, vector)
        return vector

    def _made(self, r: Read, lane: Lane, loop: str, tap: int, by: int) -> ir.Value | None:
        """The vector of an iteration of the loop, so many lanes on."""
        last = lane.end.const - lane.base
        active = min(last, lane.lanes)
        missing = [i for i in range(active) if not 0 <= i + by < active]
        beside: ir.Value | None = None
        picks = [min(max(i + by, 0), active - 1) for i in range(lane.lanes)]
        if missing:
            beside = self._beside(r, lane, missing, loop, tap, by)
            if beside is None:
                return None
            for i in missing:
                picks[i] = lane.lanes + (i + by) % lane.lanes
        with self.index.constant(loop, tap):
            vector = self._wide(self.emit(r), lane)
        beside = vector if beside is None else self._wide(beside, lane)
        order = ir.Constant(ir.VectorType(I32, lane.lanes), picks)
        return self.builder.shuffle_vector(vector, beside, order)

    def _wide(self, value: ir.Value, lane: Lane) -> ir.Value:
        return value if is_vector(value) else splat(self.builder, value, lane.lanes)

    def _tap(self, r: Read, lane: Lane) -> tuple[str, int, int] | None:
        """(loop, iteration, lanes): which iteration's vector is this read's, so many lanes on.

        It is one that begins with the first whole step from where the vector of windows does.
        """
        indices = [c for _, c in r.coords if isinstance(c, Index)]
        moving = [c for c in indices if lane.var in c.names()]
        if len(moving) != 1 or len(indices) < len(r.coords):
            return None
        (c,) = moving
        others = {n for i in indices if i is not c for n in i.names()}
        apart = c.coefficient(lane.var)
        if apart is None or apart not in NEAR_STRIDES:
            return None
        const = self.index.resolve(c).const
        period = apart * lane.lanes
        by = ((const + period // 2) % period - period // 2) // apart
        if by == 0:
            return None
        for v, loop in self.index.unrolled.items():
            step = c.coefficient(v)
            if step and v not in others and apart * by % step == 0:
                tap = self.index.constants[v].value - apart * by // step
                if loop.lo <= tap < loop.hi:
                    return v, tap, by
        return None

    def _beside(
        self, r: Read, lane: Lane, missing: list[int], loop: str, tap: int, by: int
    ) -> ir.Value | None:
        """A vector with what lanes are to take from beyond the tap's own vector."""
        base = lane.base + (lane.lanes if by > 0 else -lane.lanes)
        low, _ = self.index.ranges[lane.var]
        near = chunk(lane.var, base, lane.lanes, lane.end)
        if base >= low and all(base + (i + by) % lane.lanes < lane.end.const for i in missing):
            self.index.lane = near
            with self.index.constant(loop, tap):
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
