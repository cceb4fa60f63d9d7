"""What tiles make of an operand, done once for all tiles that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import floor, prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, Read, index_names, operations, reads, transform
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.prepare import computed_of
from rutc.tuner.access import Shape
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_loads import far_load, in_squares


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
    for e, names, turned in _made(shape, tile.vector, rows, machine):
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
    found = _made(shape, tile.vector, {v for v, _ in tile.rows}, machine)
    return max((operations(e) for e, _, turned in found if turned is None), default=0)


def once_turned(shape: Shape, vector: str, machine: Machine) -> Shape | None:
    """The shape of a kernel whose tiles find vectors that squares turn for all of them.

    They lie beside each other along a loop, and are numbers that are multiplied. None where no
    vectors lie across memory that tiles share.
    """
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    rows = {x.var for x in shape.shared if x.var != vector}
    for t in r.reads:
        shared = {v for v in rows if not t.depends(v)}
        for e, names, turned in _made(shape, vector, shared, machine) if shared else ():
            found = [x for y in r.update.elements for x in reads(y) if x.value == t.buffer]
            if names != [t.buffer] or turned is None or len(found) != 1:
                continue
            near = {v: int(t.depends(v)) for v in t.strides}
            beside = replace(t, strides=near, packed=True, arranged=True, bytes=e.dtype.bytes)
            number = replace(found[0], dtype=e.dtype)
            elements = tuple(_instead(x, e, number) for x in r.update.elements)
            touches = tuple(beside if x is t else x for x in r.reads)
            after = replace(r, update=replace(r.update, elements=elements), reads=touches)
            return replace(shape, reductions=(after,))
    return None


def _instead(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with `new` in the place of `old`."""
    return transform(e, lambda x: new if x == old else x)


def _made(
    shape: Shape, vector: str, rows: AbstractSet[str], machine: Machine
) -> Iterator[tuple[Expr, list[str], str | None]]:
    """(expression, its operands, along which loop it is turned) of what tiles make of operands."""
    if len(shape.reductions) != 1:
        return
    (r,) = shape.reductions
    bound = {x.var for x in r.loops}
    reads_of = {t.buffer: t for t in r.reads}
    for t in r.reads:
        turned = in_squares(t, r, shape, vector, machine)
        if not (t.packed or turned) or t.gathered or not t.depends(vector):
            continue
        e = computed_of(r.update.elements[0], t.buffer, rows)
        if e is None or not bound <= index_names(e) or (isinstance(e, Read) and turned is None):
            continue
        names = [t.buffer, *(x.value for x in reads(e) if x.value != t.buffer)]
        if all(reads_of[n].packed for n in names) or names == [t.buffer]:
            yield e, names, turned
