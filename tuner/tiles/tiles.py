"""Register tiles: how many rows and vectors of an output to compute at once."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.tile import MOST_EXACT
from rutc.tuner.access import Shape
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cost import Blocks, cheapest, costed, row_factors
from rutc.tuner.tiles.tile_loads import reuses
from rutc.tuner.tiles.tile_registers import product_registers, state_registers

MOST_VECTORS = 8


def choose_tile(shape: Shape, machine: Machine) -> RegisterTile | None:
    """The cheapest tile by cycles per element; None where none fits."""
    return cheapest(shape, _all_tiles(shape, machine), machine)


def tile_along(shape: Shape, vector: str, machine: Machine) -> RegisterTile | None:
    """The cheapest of the tiles whose vectors lie along a loop; None where none fits."""
    if vector not in _vector_loops(shape):
        return None
    return cheapest(shape, _tiles(shape, vector, machine), machine)


def register_tiles(shape: Shape, machine: Machine) -> Iterator[RegisterTile]:
    """All tiles that fit the machine's registers, with their costs."""
    for vector, vectors, rows in _all_tiles(shape, machine):
        yield costed(shape, vector, vectors, rows, machine)


def _all_tiles(shape: Shape, machine: Machine) -> Iterator[Blocks]:
    """What makes each of them."""
    for v in _vector_loops(shape):
        yield from _tiles(shape, v, machine)


def even_tile(
    shape: Shape, tile: RegisterTile, var: str, extent: int, machine: Machine
) -> RegisterTile:
    """The cheapest tile of rows along `var` that go evenly into `extent`, no more than now."""
    now = dict(tile.rows).get(var, 1)
    room = _room(shape, machine) // max(tile.size // (tile.vectors * now), 1)
    tiles = [
        (tile.vector, vectors, tuple((v, rows if v == var else f) for v, f in tile.rows))
        for rows in range(1, now + 1)
        if extent % rows == 0
        for vectors in range(1, max(room // rows, tile.vectors) + 1)
        if vectors <= MOST_VECTORS
    ]
    found = cheapest(shape, tiles, machine)
    assert found is not None, "one row goes evenly into every extent"
    return found


def _room(shape: Shape, machine: Machine) -> int:
    """Vectors of states that a tile may have."""
    held = max(product_registers(r, machine) for r in shape.reductions)
    return (machine.registers - 2 - held) // max(map(state_registers, shape.reductions))


def _vector_loops(shape: Shape) -> Iterator[str]:
    for x in shape.shared:
        if shape.extents[x.var] > 1:
            yield x.var


def _turned(shape: Shape, vector: str, row: str) -> bool:
    """Whether results lie along `row` and across `vector`: rows are transposed, then stored."""
    stores = (t for t in shape.touches if t.is_store and not t.unit(vector))
    return any(t.depends(vector) and t.unit(row) for t in stores)


def _tiles(shape: Shape, vector: str, machine: Machine) -> Iterator[Blocks]:
    width = machine.width
    most = min(MOST_VECTORS, ceil(shape.extents[vector] / width))
    others = [
        x.var
        for x in shape.shared
        if x.var != vector
        and shape.extents[x.var] > 1
        and (reuses(shape, x.var) or _turned(shape, vector, x.var))
    ]
    room = _room(shape, machine)
    for vectors in range(1, most + 1):
        yield vector, vectors, ()
        for v in others:
            # Larger tiles do some rows twice where their number varies, in more code.
            most_rows = min(room // vectors, MOST_EXACT) if v in shape.symbolic else room // vectors
            for f in row_factors(shape.extents[v], most_rows):
                yield vector, vectors, ((v, f),)
                if f != shape.extents[v] or v in shape.symbolic:
                    continue
                for w in others:
                    if w == v:
                        continue
                    for g in row_factors(shape.extents[w], room // (vectors * f)):
                        yield vector, vectors, ((w, g), (v, f))
