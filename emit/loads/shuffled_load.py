"""Loads of elements that lie near each other, in any order: whole vectors, which are shuffled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.emit.index import IndexEmitter, Lane
from rutc.emit.llvm import ir
from rutc.tensor_ir.facts.lane_runs import are_few, runs
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.machine import NEAR_STRIDES


class ShuffledLoads:
    """Loads vectors of elements that are known distances apart."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        some: Callable[[Buffer, Index, int, ir.VectorType], ir.Value],
        is_inside: Callable[[Buffer, Index, int], bool],
    ) -> None:
        """Emit at `builder`'s place.

        `some` loads so many neighbours, and `is_inside` tells whether a buffer has them.
        """
        self.builder = builder
        self.index = index
        self.some = some
        self.is_inside = is_inside

    def load(
        self,
        buffer: Buffer,
        address: Index,
        lane: Lane,
        vector: ir.VectorType,
        active: Sequence[bool],
    ) -> ir.Value | None:
        """An element for each active lane, anything in others.

        None where they lie too far apart, or where a run tells how far; or where the schedule has
        each loaded by itself.
        """
        chosen = self._chosen(buffer, address, lane, active)
        return None if chosen is None else self._shuffled(buffer, *chosen, vector)

    def takes(self, buffer: Buffer, address: Index, lane: Lane) -> bool:
        """Whether there is such a load of all lanes."""
        return self._chosen(buffer, address, lane, [True] * lane.lanes) is not None

    def _chosen(
        self, buffer: Buffer, address: Index, lane: Lane, active: Sequence[bool]
    ) -> tuple[Index, Sequence[range], Sequence[int]] | None:
        """(start, found, wanted): see `_shuffled`."""
        if buffer.singly or self.index.holds_vectors(address):
            return None
        used = [i for i, on in enumerate(active) if on]
        start = address.subs({lane.var: Index.of(lane.base + used[0])})
        offsets = distances(address, lane, used)
        if offsets is None:
            return None
        stride = address.coefficient(lane.var)
        if stride is not None and stride in NEAR_STRIDES:
            found = self._every(buffer, start, stride, offsets[-1], lane.lanes)
        else:
            found = runs(offsets, lane.lanes)
        if not are_few(found, offsets):
            return None
        # Idle lanes hold what the ones before hold, which keeps the order plain.
        wanted = [offsets[max(0, sum(u <= i for u in used) - 1)] for i in range(lane.lanes)]
        return start, found, wanted

    def _every(
        self, buffer: Buffer, start: Index, stride: int, last: int, lanes: int
    ) -> list[range]:
        """What to load for every so many-th element: all from the first to the last one.

        Loads begin at a multiple of `stride` where the memory around is the buffer's, so that
        reads of the elements between share them.
        """
        begin = -(start.const % stride)
        count = last + stride
        if count < lanes or not self.is_inside(buffer, start + begin, count):
            begin, count = 0, last + 1
        if count < lanes:
            return [range(count)]
        places = [*range(begin, begin + count - lanes, lanes), begin + count - lanes]
        return [range(place, place + lanes) for place in places]

    def _shuffled(
        self,
        buffer: Buffer,
        start: Index,
        found: Sequence[range],
        wanted: Sequence[int],
        vector: ir.VectorType,
    ) -> ir.Value:
        """The elements at distances `wanted` from `start`, all of which lie in `found` runs."""
        b, lanes = self.builder, vector.count
        result: ir.Value | None = None
        for run in found:
            first, width, loaded = self._run(buffer, start, run, vector)
            if result is None:
                picks = [w - first if w in run else i % width for i, w in enumerate(wanted)]
                result = b.shuffled(loaded, picks)
                continue
            if width < lanes:
                picks = [i if i < width else 0 for i in range(lanes)]
                loaded = b.shuffled(loaded, picks)
            picks = [lanes + w - first if w in run else i for i, w in enumerate(wanted)]
            result = b.shuffled(result, picks, loaded)
        assert result is not None
        return result

    def _run(
        self, buffer: Buffer, start: Index, run: range, vector: ir.VectorType
    ) -> tuple[int, int, ir.Value]:
        """The distance of the first element, how many there are, and the vector that has a run."""
        width = 1 << (len(run) - 1).bit_length()
        part = ir.VectorType(vector.element, width)
        for first in (run.start, run.stop - width):
            if width == len(run) or self.is_inside(buffer, start + first, width):
                return first, width, self.some(buffer, start + first, width, part)
        loaded = self.some(buffer, start + run.start, len(run), vector)
        return run.start, vector.count, loaded


def distances(address: Index, lane: Lane, used: Sequence[int]) -> list[int] | None:
    """How far the elements of lanes are from that of the first one; None where a run tells it."""
    stride = address.coefficient(lane.var)
    if stride is not None:
        return [stride * (i - used[0]) for i in used]
    places = [address.subs({lane.var: Index.of(lane.base + i)}) for i in used]
    apart = [place - places[0] for place in places]
    return [d.const for d in apart] if all(d.is_const for d in apart) else None
