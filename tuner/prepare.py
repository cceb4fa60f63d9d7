"""What tiles compute of an operand, done once for all tiles that use it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rutc.tensor_ir.expr import index_names, operations, reads
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.prepare import computed_of
from rutc.tuner.access import Shape
from rutc.tuner.tiles import STREAM_SHARE, RegisterTile


def prepared_operands(
    shape: Shape,
    tile: RegisterTile,
    order: list[str],
    extents: Mapping[str, int],
    machine: Machine,
) -> tuple[list[str], int] | None:
    """(operands, place in the loops' order) of what is computed once for all tiles from there on.

    That saves its operations in all tiles but one, and takes a store, and what tiles then read
    instead of the operands. None where it does not pay.
    """
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    rows = {v for v, _ in tile.rows}
    bound = {x.var for x in r.loops}
    reads_of = {t.buffer: t for t in r.reads}
    for t in r.reads:
        if not t.packed or t.gathered or not t.depends(tile.vector):
            continue
        e = computed_of(r.update.elements[0], t.buffer, rows)
        if e is None or not bound <= index_names(e):
            continue
        moved = index_names(e) - bound
        at = 1 + max((i for i, v in enumerate(order) if v.removesuffix(".o") in moved), default=-1)
        tiles = prod(extents[v] for v in order[at:])
        names = [t.buffer, *(x.value for x in reads(e) if x.value != t.buffer)]
        if at == len(order) or not all(reads_of[n].packed for n in names):
            continue
        saved = (tiles - 1) * operations(e) / machine.fma_per_cycle
        lanes = machine.vector_bits // 8
        cost = 1 + tiles * STREAM_SHARE * lanes / machine.l2_bytes_per_cycle
        if saved > cost:
            return names, at
    return None
