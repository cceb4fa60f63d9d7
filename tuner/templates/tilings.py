"""The tilings of a kernel: which it may have, and which one the model of the machine prefers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.access import Shape
from rutc.tuner.choice import worth_sharing
from rutc.tuner.dot import products_together
from rutc.tuner.repeats import outside_alike, row_of
from rutc.tuner.space import Axis, Default, Template, spread
from rutc.tuner.templates.tiled import Tiling, parts_groups, tiled
from rutc.tuner.tiles.blocking import (
    batch_loops,
    chunk_block,
    counted_rows,
    reduction_block,
    row_chunk,
    sole_output,
    whole_rows,
    with_even_rows,
)
from rutc.tuner.tiles.prepare import once_turned, operations_on_vectors, prepared_operands
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cost import lanes_cost
from rutc.tuner.tiles.tile_cycles import block_loop, bound_order
from rutc.tuner.tiles.tile_loops import tile_loops
from rutc.tuner.tiles.tiles import choose_tile, register_tiles, tile_along

REUSES = (4, 8, 16, 32)
"""For how many tiles a block of the reduction may be used."""
SHORTEST_BLOCK = 8


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Tiling] | None:
    """The tiling with the cheapest tile, liked if lanes of partial sums do not cost less.

    Where they seem to, estimates tell: short rows leave many of their lanes idle.
    """
    tile = choose_tile(shape, machine)
    if tile is None:
        return None
    lanes = products_together(shape, machine) == 1 and tile.cost > lanes_cost(shape, machine)
    others = (
        *_whole(kernel, shape, tile, machine),
        *_nearer(shape, tile, machine),
        *_turned(shape, tile, machine),
    )
    rivals = tuple(default_tiling(kernel, shape, x, machine) for x in others)
    point = default_tiling(kernel, shape, tile, machine)
    return Default(point, liked=not lanes, weighed=lanes, rivals=rivals)


def _whole(
    kernel: Kernel, shape: Shape, tile: RegisterTile, machine: Machine
) -> Iterator[RegisterTile]:
    """Tiles whose vectors are whole rows of what they read, if that tells which lanes are outside.

    The vectors of others, of as many rows of the tile, find anew where their lanes are in which
    row; the cost of tiles leaves that out.
    """
    row = row_of(kernel, tile.vector)
    if row is None:
        return
    for other in register_tiles(shape, machine):
        lanes = other.vectors * machine.width
        alike = (other.vector, other.rows) == (tile.vector, tile.rows) and other != tile
        if alike and lanes % row == 0 and outside_alike(kernel, shape, tile.vector, lanes):
            yield other


def _nearer(shape: Shape, tile: RegisterTile, machine: Machine) -> Iterator[RegisterTile]:
    """The cheapest tile of each other vector whose lanes lie nearer, where some lie apart.

    Tiles cost the same however far lanes are from each other. What else lies in a lane's line stays
    near until it is read, unless lines of many lanes go to few sets of a cache.
    """
    reach = _reach(shape, tile.vector)
    for x in shape.shared:
        if _reach(shape, x.var) < reach and (other := tile_along(shape, x.var, machine)):
            yield other


def _turned(shape: Shape, tile: RegisterTile, machine: Machine) -> Iterator[RegisterTile]:
    """The cheapest tile of the same vector whose operand is turned in squares, once that is done.

    Tiles cost as if each turned its own; where they share what is turned, larger ones cost less.
    """
    once = once_turned(shape, tile.vector, machine)
    other = None if once is None else tile_along(once, tile.vector, machine)
    if other is not None and other != tile:
        yield other


def _reach(shape: Shape, vector: str) -> float:
    """How many bytes neighbouring lanes lie apart, of all operands whose lanes do."""
    apart = [t for t in shape.touches if not t.near(vector)]
    steps = ((t.strides.get(vector, 0), t.bytes) for t in apart)
    return float(sum(inf if n is None else abs(n) * size for n, size in steps))


def default_tiling(kernel: Kernel, shape: Shape, tile: RegisterTile, machine: Machine) -> Tiling:
    """The tiling with such a tile that the model of the machine prefers."""
    bound = bound_order(shape, tile.inside)
    batch = batch_loops(shape, tile)
    group = products_together(shape, machine)
    found = reduction_block(kernel, shape, tile, bound, machine)
    block, holder = found if found is not None else (None, "")
    blocked = block_loop(shape, bound, tile.inside)
    whole_sum = shape.extents[blocked]
    if block is not None and blocked == bound[-1] and parts_groups(block, whole_sum, group):
        block = None
    made = 0 if group > 1 else operations_on_vectors(shape, tile, machine)
    carried = any(b.name == holder for b in kernel.args)
    chunk = None if carried else row_chunk(shape, tile, batch, made, machine)
    if chunk is not None and block is None and group == 1:
        found = chunk_block(shape, tile, bound, chunk, machine)
        if found is not None:
            block, holder = found
            chunk = row_chunk(shape, tile, batch, made, machine, block / whole_sum)
    if chunk is not None:
        fitting = with_even_rows(shape, tile, *chunk, machine)
        chunk, tile = (None, tile) if fitting is None else (chunk, fitting)
    loops = tile_loops(kernel, shape, tile, chunk, machine)
    prepare = None
    if group == 1:
        found_operands = prepared_operands(
            shape, loops.tile, loops.order, loops.extents, machine, loops.original
        )
        prepare = next((p.operands[0] for p in found_operands if p.gain > 0), None)
    if prepare is not None:
        block = None
    whole = block is None and prepare is None and whole_rows(kernel, shape, loops.tile, machine)
    output = sole_output(kernel)
    counted = group == 1 and chunk is None and counted_rows(shape, tile, bound)
    if whole and counted and output is not None:
        block, holder, whole = whole_sum, output, False
    return Tiling(
        tile,
        block,
        holder,
        chunk,
        prepare,
        whole,
        0 if block is None else machine.coefficients.blocks.reuse,
        parallel=worth_sharing(shape, machine),
    )


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    return {
        "tile": tuple(register_tiles(shape, machine)),
        "block": _blocks(shape, machine),
        "holder": _holders(kernel, shape),
        "chunk": (None, *_chunks(shape)),
        "prepare": (None, *_prepared(shape)),
        "whole_rows": (False, True),
        "reuse": REUSES,
        "parallel": (True, False) if machine.cores > 1 else (False,),
        "unroll": (True, False),
        "prefetch": (True, False),
    }


def point_of(**values: object) -> Tiling:
    """The tiling of these values: what has no blocks has nothing that holds sums between them."""
    if values["block"] is None:
        values |= {"holder": "", "reuse": 0}
    return Tiling(**values)  # type: ignore[arg-type]


def _blocks(shape: Shape, machine: Machine) -> Axis:
    bound = bound_order(shape)
    blocked = block_loop(shape, bound)
    extent, group = shape.extents[blocked], products_together(shape, machine)
    parts = (-(-extent // n) for n in range(2, extent // SHORTEST_BLOCK + 1))
    lengths = [n for n in dict.fromkeys(parts) if blocked != bound[-1] or n % group == 0]
    return (None, *spread(lengths))


def _holders(kernel: Kernel, shape: Shape) -> Axis:
    if len(shape.reductions) != 1:
        return ("",)
    partial = f"{shape.reductions[0].update.states[0].buffer}.partial"
    output = sole_output(kernel)
    return (partial,) if output is None else (partial, output)


def _chunks(shape: Shape) -> Iterator[tuple[str, int]]:
    for x in shape.shared:
        if x.var not in shape.symbolic:
            yield from ((x.var, f) for f in spread(_divisors(shape.extents[x.var])))


def _prepared(shape: Shape) -> Axis:
    reads = (t for r in shape.reductions for t in r.reads)
    return tuple(dict.fromkeys(t.buffer for t in reads))


def _divisors(n: int) -> list[int]:
    return [f for f in range(n // 2, 1, -1) if n % f == 0]


TILED = Template("tiled", point_of, axes, default, tiled)
