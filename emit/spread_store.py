"""Stores of lanes to places near each other: whole registers, all but these places masked out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.emit import ir
from rutc.emit.index import I32, IndexEmitter, Lane
from rutc.emit.shuffled_load import distances
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.lane_runs import spread_parts
from rutc.tensor_ir.machine import Machine


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
        """Whether the active lanes are stored, by fewer stores than there are lanes.

        %b[4*i] = %x[i]   ->   x0 .. .. .. x1 .. .. .. x2     one masked store

        False where they lie too far apart, or a run tells how far; where the schedule has each
        stored by itself; and without registers for masks.
        """
        used = [i for i, on in enumerate(active) if on]
        if buffer.singly or not self.machine.has_masks or self.index.holds_vectors(address):
            return False
        offsets = distances(address, lane, used) if used else None
        if offsets is None:
            return False
        width = self.machine.vector_bits // (8 * buffer.dtype.bytes)
        parts = spread_parts(offsets, width)
        if not parts:
            return False
        least = min(offsets)
        lanes = {o - least: i for o, i in zip(offsets, used, strict=True)}
        first = used[offsets.index(least)]
        start = address.subs({lane.var: Index.of(lane.base + first)})
        zeros = ir.Constant(value.type, None)
        for part in parts:
            picks = [lanes.get(part * width + i) for i in range(width)]
            # Others are zeros: elements next to each other are then widened ones.
            order = [value.lanes if p is None else p for p in picks]
            wide = self.builder.shuffle_vector(
                value, zeros, ir.Constant(ir.VectorType(I32, width), order)
            )
            mask = ir.Constant(ir.VectorType(ir.IntType(1), width), [p is not None for p in picks])
            self.masked_store(buffer, wide, self.place(buffer, start + part * width), mask)
        return True
