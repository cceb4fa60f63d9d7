"""The loops around register tiles and in them, and the steps that make them of a kernel's loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Split, Step
from rutc.tuner.access import Shape
from rutc.tuner.lengths import leaves_rest, never_longer
from rutc.tuner.tiles.blocking import batch_loops, goes_over_panels
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_loads import held_operand


@record
class TileLoops:
    """The loops of register tiles, before a reduction is taken in blocks.

    Attributes:
        steps: What makes them of the kernel's loops.
        tile: The tile, in the names of loops after these steps.
        extents: Of all loops.
        order: Those around a tile, outermost first: rows below each other come first.
        beside: The same, but tiles beside each other come before those of the next rows.
        apart: The first of `order`, which go around all panels of the vector.
        blocked: The first of `order`, up to those from panel to panel.
        moved: The tile's own loops, which move inside of all others.
        edges: Loops around whose last tile is a smaller one.
        original: The kernel's own loop, of which a loop is a part.
    """

    steps: tuple[Step, ...]
    tile: RegisterTile
    extents: Mapping[str, int]
    order: tuple[str, ...]
    beside: tuple[str, ...]
    apart: tuple[str, ...]
    blocked: tuple[str, ...]
    moved: tuple[tuple[str, Kind], ...]
    edges: tuple[str, ...]
    original: Mapping[str, str]


def tile_loops(
    kernel: Kernel,
    shape: Shape,
    tile: RegisterTile,
    chunk: tuple[str, int] | None,
    machine: Machine,
) -> TileLoops:
    """The loops of tiles, and the steps that make them.

    Raises:
        NotApplicable: rows have no such chunk.
    """
    steps: list[Step] = []
    extents = dict(shape.extents)
    batch = batch_loops(shape, tile)
    original: dict[str, str] = {}
    if chunk is not None:
        var, length = chunk
        _check_chunk(shape, tile, var, length, batch)
        original[f"{var}.i"] = var
        steps.append(Split(var, length))
        extents[f"{var}.o"], extents[f"{var}.i"] = extents[var] // length, length
        tile = _within_chunk(tile, var, extents)
    moved: list[tuple[str, Kind]] = []
    around: list[str] = []
    edges: list[str] = []
    width = tile.vectors * machine.width
    for v, f, kind in (
        *((v, f, Kind.UNROLL) for v, f in tile.rows),
        (tile.vector, width, Kind.VECTOR),
    ):
        fits = f >= extents[v]
        if fits and v in shape.symbolic:
            fits = kind is Kind.UNROLL and never_longer(shape.sizes[v], f, dict(kernel.symbols))
        if fits:
            moved.append((v, kind))
            continue
        steps.append(Split(v, f))
        moved.append((f"{v}.i", kind))
        around.append(f"{v}.o")
        extents[f"{v}.o"] = -(-extents[v] // f)
        if leaves_rest(shape.sizes[v] if v in shape.symbolic else extents[v], f):
            edges.append(f"{v}.o")
    order, beside, apart, blocked = _orders(shape, tile, batch, chunk, around, original)
    return TileLoops(
        tuple(steps),
        tile,
        extents,
        order,
        beside,
        apart,
        blocked,
        _held_inside(moved, shape, tile, machine),
        tuple(edges),
        original,
    )


def _within_chunk(tile: RegisterTile, var: str, extents: Mapping[str, int]) -> RegisterTile:
    """A tile whose rows along `var` are those of a chunk's loop, `var.i`."""
    renamed = ((f"{var}.i" if v == var else v, rows) for v, rows in tile.rows)
    return replace(tile, rows=tuple((v, min(rows, extents[v])) for v, rows in renamed))


def _orders(
    shape: Shape,
    tile: RegisterTile,
    batch: Sequence[str],
    chunk: tuple[str, int] | None,
    around: Sequence[str],
    original: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(order, beside, apart, blocked) of `TileLoops`; the loops `around` are from tile to tile."""
    tiled = {v for v, _ in tile.rows} | {tile.vector, *batch}
    rest = [x.var for x in shape.shared if x.var not in tiled]
    if chunk is not None:
        v = chunk[0]
        rest = [f"{v}.i" if x == v else x for x in rest if x != v or f"{v}.i" not in tiled]
    panels: list[str] = []
    if f"{tile.vector}.o" in around:
        panels = [*(v for v in rest if goes_over_panels(shape, tile, v)), f"{tile.vector}.o"]
    apart = [*batch, *([f"{chunk[0]}.o"] if chunk is not None else [])]
    blocked = [*apart, *panels]
    order = [*blocked, *(v for v in (*rest, *around) if v not in blocked)]
    beside = [*apart, *(v for v in (*rest, *around) if v not in apart)]
    if not panels:
        # Tiles beside each other are those of loops inside of the rows' own.
        stored = {x.var: n for n, x in enumerate(shape.shared)}
        named = {v: v if v in stored else v.removesuffix(".o") for v in beside}
        beside.sort(key=lambda v: stored[original.get(named[v], named[v])])
    return tuple(order), tuple(beside), tuple(apart), tuple(blocked)


def _held_inside(
    moved: Sequence[tuple[str, Kind]], shape: Shape, tile: RegisterTile, machine: Machine
) -> tuple[tuple[str, Kind], ...]:
    """A tile's own loops, those innermost along which the operand in registers changes.

    `moved` has those of the rows, then that of the vector.
    """
    *rows, vector = moved
    longest = max(shape.reductions, key=lambda r: prod(shape.extents[x.var] for x in r.loops))
    held = held_operand(longest, tile.vector, tile.vectors, tile.rows, machine.width)
    pairs = zip(tile.rows, rows, strict=True)
    ordered = sorted(pairs, key=lambda pair: held is not None and held.depends(pair[0][0]))
    return (*(row for _, row in ordered), vector)


def _check_chunk(
    shape: Shape, tile: RegisterTile, var: str, length: int, batch: Sequence[str]
) -> None:
    """Raises NotApplicable where rows along `var` have no chunks of that length."""
    extent = shape.extents[var]
    if var == tile.vector or var in batch or var in shape.symbolic or not 0 < length < extent:
        raise NotApplicable(f"{var} has no chunks of {length}")
    if extent % length:
        raise NotApplicable(f"chunks of {length} are no equal parts of {var}")
    packed = any(t.packed and t.depends(var) for r in shape.reductions for t in r.reads)
    rows = dict(tile.rows).get(var, 1)
    if packed and length % min(rows, length):
        raise NotApplicable(f"tiles of {rows} rows end beyond a chunk of {length}")


def reuse_loops(
    order: list[str], first: int, extents: dict[str, int], whole: AbstractSet[str], reuse: int
) -> tuple[list[str], list[str], list[Step]]:
    """(outer, inner, steps): the innermost loops that go around about `reuse` tiles."""
    inner: list[str] = []
    tiles = 1
    for v in reversed(order[first:]):
        if tiles * extents[v] <= 2 * reuse:
            inner.insert(0, v)
            tiles *= extents[v]
            continue
        if tiles < reuse and v not in whole:
            factor = -(-reuse // tiles)
            parts = -(-extents[v] // factor)
            factor = -(-extents[v] // parts)
            if 1 < factor < extents[v] and extents[v] % factor == 0:
                outer = [*order[: order.index(v)], f"{v}.o"]
                extents |= {f"{v}.o": parts, f"{v}.i": factor}
                return outer, [f"{v}.i", *inner], [Split(v, factor)]
            inner.insert(0, v)
        break
    outer = order[: len(order) - len(inner)]
    return outer, inner, []
