"""Stores of lanes to places that are known distances apart.

Where these lie near each other, whole registers are stored, all but these places masked out. What
is farther apart is stored piece by piece, where no instruction stores single lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rutc.emit.index import IndexEmitter, Lane
from rutc.emit.llvm import ir
from rutc.emit.loads.shuffled_load import distances
from rutc.tensor_ir.facts.lane_runs import spread_parts
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.machine import WORD, Machine


class SpreadStores:
    """Stores vectors to places that are known distances apart."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        place: Callable[[Buffer, Index], ir.Value],
        masked_store: Callable[[Buffer, ir.Value, ir.Value, ir.Value], None],
        machine: Machine,
    ) -> None:
        """Emit at `builder`'s place.

        `place` gives the address of an element; `masked_store` stores neighbours of some lanes.
        """
        self.builder = builder
        self.index = index
        self.place = place
        self.masked_store = masked_store
        self.machine = machine

    def store(
        self, buffer: Buffer, address: Index, lane: Lane, value: ir.Value, active: Sequence[bool]
    ) -> bool:
        """Whether the active lanes are stored.

        %b[4*i] = %x[i]   ->   x0 .. .. .. x1 .. .. .. x2     one masked store
        %b[32*(i//2) + i%2] = %x[i]   ->   x0 x1, x2 x3, ..   a store for each two lanes

        False where a run tells how far they are apart; where an instruction or the schedule has
        each stored by itself.
        """
        used = [i for i, on in enumerate(active) if on]
        if buffer.singly or self.index.holds_vectors(address):
            return False
        offsets = distances(address, lane, used) if used else None
        if offsets is None or len(set(offsets)) < len(offsets):
            return False
        at = dict(zip(used, offsets, strict=True))
        near = self.machine.has_masks and self._whole(buffer, address, lane, value, at)
        return near or self._pieces(buffer, address, lane, value, at)

    def _whole(
        self, buffer: Buffer, address: Index, lane: Lane, value: ir.Value, at: Mapping[int, int]
    ) -> bool:
        """Whether some stores of whole registers have all lanes, which are so far from the first.

        They have to be fewer than the lanes.
        """
        used, offsets = [*at], [*at.values()]
        least = min(offsets)
        lanes = {o - least: i for o, i in zip(offsets, used, strict=True)}
        width = self.machine.vector_bits // (8 * buffer.dtype.bytes)
        parts = spread_parts(offsets, width)
        if not parts:
            return False
        first = used[offsets.index(least)]
        start = address.subs({lane.var: Index.of(lane.base + first)})
        zeros = ir.Constant(value.type, None)
        for part in parts:
            picks = [lanes.get(part * width + i) for i in range(width)]
            # Others are zeros: elements next to each other are then widened ones.
            order = [value.lanes if p is None else p for p in picks]
            wide = self.builder.shuffled(value, order, zeros)
            mask = ir.Constant(ir.VectorType(ir.IntType(1), width), [p is not None for p in picks])
            self.masked_store(buffer, wide, self.place(buffer, start + part * width), mask)
        return True

    def _pieces(
        self, buffer: Buffer, address: Index, lane: Lane, value: ir.Value, at: Mapping[int, int]
    ) -> bool:
        """Whether lanes are stored, neighbours together: those that no instruction scatters."""
        if buffer.dtype.bytes >= WORD:
            return False
        b, start = self.builder, address.subs({lane.var: Index.of(lane.base + min(at))})
        for first, count in runs_of(at):
            place = self.place(buffer, start + at[first])
            piece = b.part(value, first, count)
            b.store(piece, place, align=buffer.dtype.bytes)
        return True


def runs_of(at: Mapping[int, int]) -> list[tuple[int, int]]:
    """(first lane, number) of lanes that lie side by side, each a power of two of them.

    runs_of({0: 0, 1: 1, 2: 64, 3: 65, 4: 66}) == [(0, 2), (2, 2), (4, 1)]
    """
    found: list[tuple[int, int]] = []
    rest = sorted(at)
    while rest:
        first, count = rest[0], 1
        while all(at.get(first + i) == at[first] + i for i in range(2 * count)):
            count *= 2
        found.append((first, count))
        rest = rest[count:]
    return found
