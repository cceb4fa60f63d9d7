"""What tiles make of an operand, done once for all tiles that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import floor, prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, Read, index_names, operations, reads
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.prepare import computed_of
from rutc.tuner.access import Shape
from rutc.tuner.register_tile import RegisterTile
from rutc.tuner.tile_loads import far_load, in_squares


@record
class Prepared:
    """Operands of which something is made once for all tiles, at a place in the loops' order.

    That `gain`s cycles a vector: its operations in all tiles but one, less a store and what tiles
    then read instead of the operands; so many tiles are the `least` for which it does. Vectors that
    lie across memory are `turned` in squares along a loop that goes along it.
    """

    operands: tuple[str, ...]
    at: int
    gain: float
    least: int
    turned: str | None


def prepared_operands(
    shape: Shape,
    tile: RegisterTile,
    order: Sequence[str],
    extents: Mapping[str, int],
    machine: Machine,
    original: Mapping[str, str],
) -> Iterator[Prepared]:
    """What may be made once; `original` names the loop that a row's loop is a part of."""
    rows = {original.get(v, v) for v, _ in tile.rows}
    for e, names, turned in _made(shape, tile, rows, machine):
        moved = index_names(e) - {x.var for r in shape.reductions for x in r.loops}
        at = 1 + max((i for i, v in enumerate(order) if v.removesuffix(".o") in moved), default=-1)
        tiles = prod(extents[v] for v in order[at:])
        if at == len(order):
            continue
        each = operations(e) + (far_load(None, machine.width) if turned is not None else 0)
        saved = each / machine.fma_per_cycle
        lanes = machine.vector_bits // 8
        read = machine.coefficients.tiles.stream * lanes / machine.l2_bytes_per_cycle
        gain = (tiles - 1) * saved - 1 - tiles * read
        least = floor((1 + saved) / (saved - read)) + 1 if saved > read else tiles
        yield Prepared(tuple(names), at, gain, max(least, 2), turned)


def operations_on_vectors(shape: Shape, tile: RegisterTile, machine: Machine) -> int:
    """How many operations make what tiles of all rows use of each element of a packed operand."""
    found = _made(shape, tile, {v for v, _ in tile.rows}, machine)
    return max((operations(e) for e, _, turned in found if turned is None), default=0)


def _made(
    shape: Shape, tile: RegisterTile, rows: AbstractSet[str], machine: Machine
) -> Iterator[tuple[Expr, list[str], str | None]]:
    """(expression, its operands, along which loop it is turned) of what tiles make of operands."""
    if len(shape.reductions) != 1:
        return
    (r,) = shape.reductions
    bound = {x.var for x in r.loops}
    reads_of = {t.buffer: t for t in r.reads}
    for t in r.reads:
        turned = in_squares(t, r, shape, tile.vector, machine)
        if not (t.packed or turned) or t.gathered or not t.depends(tile.vector):
            continue
        e = computed_of(r.update.elements[0], t.buffer, rows)
        if e is None or not bound <= index_names(e) or (isinstance(e, Read) and turned is None):
            continue
        names = [t.buffer, *(x.value for x in reads(e) if x.value != t.buffer)]
        if all(reads_of[n].packed for n in names) or names == [t.buffer]:
            yield e, names, turned
