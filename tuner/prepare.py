"""What tiles compute of an operand, done once for all tiles that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, index_names, operations, reads
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.prepare import computed_of
from rutc.tuner.access import Shape
from rutc.tuner.register_tile import RegisterTile


@record
class Prepared:
    """Operands of which something is computed once for all tiles, at a place in the loops' order.

    That `gain`s cycles an element: its operations in all tiles but one, less a store and what tiles
    then read instead of the operands.
    """

    operands: tuple[str, ...]
    at: int
    gain: float


def prepared_operands(
    shape: Shape,
    tile: RegisterTile,
    order: Sequence[str],
    extents: Mapping[str, int],
    machine: Machine,
    original: Mapping[str, str],
) -> Iterator[Prepared]:
    """What may be computed once; `original` names the loop that a row's loop is a part of."""
    rows = {original.get(v, v) for v, _ in tile.rows}
    for e, names in _computed(shape, tile, rows):
        moved = index_names(e) - {x.var for r in shape.reductions for x in r.loops}
        at = 1 + max((i for i, v in enumerate(order) if v.removesuffix(".o") in moved), default=-1)
        tiles = prod(extents[v] for v in order[at:])
        if at == len(order):
            continue
        saved = (tiles - 1) * operations(e) / machine.fma_per_cycle
        lanes = machine.vector_bits // 8
        cost = 1 + tiles * machine.coefficients.tiles.stream * lanes / machine.l2_bytes_per_cycle
        yield Prepared(tuple(names), at, saved - cost)


def operations_on_vectors(shape: Shape, tile: RegisterTile) -> int:
    """How many operations make what tiles of all rows use of each element of a packed operand."""
    found = _computed(shape, tile, {v for v, _ in tile.rows})
    return max((operations(e) for e, _ in found), default=0)


def _computed(
    shape: Shape, tile: RegisterTile, rows: AbstractSet[str]
) -> Iterator[tuple[Expr, list[str]]]:
    """(expression, its operands) of what tiles compute of packed operands alone."""
    if len(shape.reductions) != 1:
        return
    (r,) = shape.reductions
    bound = {x.var for x in r.loops}
    reads_of = {t.buffer: t for t in r.reads}
    for t in r.reads:
        if not t.packed or t.gathered or not t.depends(tile.vector):
            continue
        e = computed_of(r.update.elements[0], t.buffer, rows)
        if e is None or not bound <= index_names(e):
            continue
        names = [t.buffer, *(x.value for x in reads(e) if x.value != t.buffer)]
        if all(reads_of[n].packed for n in names):
            yield e, names
