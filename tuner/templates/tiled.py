"""The schedule of contractions: register tiles, blocks that stay in the caches, packed operands.

A shared loop along which memory is contiguous becomes the vector, another one or two the rows of a
register tile [Goto & van de Geijn 2008].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import (
    BlockReduction,
    Even,
    Inside,
    Mark,
    NotApplicable,
    Pack,
    Peel,
    PrefetchBlock,
    PrefetchResult,
    Prepare,
    Reorder,
    Split,
    Step,
    Tile,
)
from rutc.tuner.access import Reduction, Shape, moves_evenly
from rutc.tuner.blocking import (
    ask_far_rows,
    batch_loops,
    comes_from_afar,
    goes_over_panels,
    panel_loop,
    sole_output,
    stays_until_used,
    takes_one_more,
    tiles_at_once,
    waits_for_pages,
)
from rutc.tuner.choice import Choice
from rutc.tuner.dot import dot_steps, products_together
from rutc.tuner.lengths import leaves_rest, never_longer
from rutc.tuner.packing import grouped_packing, packed, packing
from rutc.tuner.prepare import prepared_operands
from rutc.tuner.register_tile import RegisterTile
from rutc.tuner.tile_cycles import bound_order
from rutc.tuner.tile_loads import held_operand
from rutc.tuner.tile_registers import LONGEST_UNROLLED, crowded, multiplications

MOST_WRITTEN_OUT = 160
"""Multiplications of a reduction that is written out as a whole, and of the part of a long sum of
bytes: each part takes addresses and a branch, which its operations do not hide (Zen 3: 1 to 3 % for
twice as many)."""
MOST_OF_LONG = 64
"""Those of the part of any other long sum."""
MOST_BETWEEN = 1 << 14
"""Iterations of a loop of symbolic size whose sums may be kept between blocks of a reduction."""
MOST_LINES = 64
"""What follows a reduction is asked for if it is in so many lines, each by an instruction."""


@record
class Tiling:
    """The parameters of a tiled schedule: any that fit the kernel compute the same.

    Of the innermost reduction loop, `block` iterations are done at a time for `reuse` tiles, and
    sums are kept in the buffer `holder` meanwhile; None does all of them for one tile after the
    other. A block of all iterations does so for as many rows as the second cache holds, where a
    run tells how many there are. A `chunk` (loop, iterations) of rows goes around all blocks of the
    vector. What tiles compute of the operand `prepare` is computed once. With `whole_rows`, tiles
    beside each other come before those of the next rows. Threads share the outer loops of one that
    is `parallel`; short reductions are written out where `unroll` is set, and what comes from afar
    is asked for where `prefetch` is.
    """

    tile: RegisterTile
    block: int | None = None
    holder: str = ""
    chunk: tuple[str, int] | None = None
    prepare: str | None = None
    whole_rows: bool = False
    reuse: int = 0
    parallel: bool = True
    unroll: bool = True
    prefetch: bool = True

    def __str__(self) -> str:
        """What it has: `k x 2, m x 6; block 64 for 8 tiles in y, whole rows`."""
        tile = self.tile
        sizes = ((tile.vector, tile.vectors), *tile.rows)
        said = [
            f"block {self.block} for {self.reuse} tiles in {self.holder}" if self.block else "",
            "" if self.chunk is None else f"chunk {self.chunk[0]} x {self.chunk[1]}",
            f"prepare {self.prepare}" if self.prepare else "",
            "whole rows" if self.whole_rows else "",
            "" if self.unroll else "not unrolled",
            "" if self.prefetch else "nothing asked for",
        ]
        what = ", ".join(filter(None, said))
        return ", ".join(f"{v} x {n}" for v, n in sizes) + (f"; {what}" if what else "")


@record
class Loops:
    """The loops of tiles before reductions have blocks.

    `order` has those around a tile, of which `apart` go around all panels of the vector, and
    `blocked` those too; `moved` are the tile's own. `edges` may end in smaller tiles. The `tile`
    names the loops as they are after `steps`, `original` tells what parts were.
    """

    steps: tuple[Step, ...]
    tile: RegisterTile
    extents: Mapping[str, int]
    order: tuple[str, ...]
    apart: tuple[str, ...]
    blocked: tuple[str, ...]
    moved: tuple[tuple[str, Kind], ...]
    edges: tuple[str, ...]
    original: Mapping[str, str]
    beside: tuple[str, ...]
    """The order in which tiles beside each other come before those of the next rows."""


def loops_of(
    kernel: Kernel,
    shape: Shape,
    tile: RegisterTile,
    chunk: tuple[str, int] | None,
    machine: Machine,
) -> Loops:
    """The loops of tiles, and the steps that make them.

    Raises:
        NotApplicable: rows have no such chunk.
    """
    steps: list[Step] = []
    extents = dict(shape.extents)
    batch = batch_loops(shape, tile)
    original: dict[str, str] = {}
    if chunk is not None:
        v, f = chunk
        _check_chunk(shape, tile, v, f, batch)
        original[f"{v}.i"] = v
        steps.append(Split(v, f))
        extents[f"{v}.o"], extents[f"{v}.i"] = extents[v] // f, f
        renamed = {x: f"{v}.i" if x == v else x for x in extents}
        tile = replace(
            tile, rows=tuple((renamed[x], min(g, extents[renamed[x]])) for x, g in tile.rows)
        )
    moved: list[tuple[str, Kind]] = []
    loops: list[str] = []
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
        loops.append(f"{v}.o")
        extents[f"{v}.o"] = -(-extents[v] // f)
        if leaves_rest(shape.sizes[v] if v in shape.symbolic else extents[v], f):
            edges.append(f"{v}.o")
    tiled = {v for v, _ in tile.rows} | {tile.vector, *batch}
    rest = [x.var for x in shape.shared if x.var not in tiled]
    if chunk is not None:
        v = chunk[0]
        rest = [f"{v}.i" if x == v else x for x in rest if x != v or f"{v}.i" not in tiled]
    panels: list[str] = []
    if f"{tile.vector}.o" in loops:
        panels = [*(v for v in rest if goes_over_panels(shape, tile, v)), f"{tile.vector}.o"]
    apart = [*batch, *([f"{chunk[0]}.o"] if chunk is not None else [])]
    blocked = [*apart, *panels]
    order = [*blocked, *(v for v in (*rest, *loops) if v not in blocked)]
    beside = [*apart, *(v for v in (*rest, *loops) if v not in apart)]
    if not panels:
        # Tiles beside each other are those of loops inside of the rows' own.
        stored = {x.var: n for n, x in enumerate(shape.shared)}
        named = {v: v if v in stored else v.removesuffix(".o") for v in beside}
        beside.sort(key=lambda v: stored[original.get(named[v], named[v])])
    return Loops(
        tuple(steps),
        tile,
        extents,
        tuple(order),
        tuple(apart),
        tuple(blocked),
        _held_inside(moved, shape, tile, machine),
        tuple(edges),
        original,
        tuple(beside),
    )


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


def tiled(kernel: Kernel, shape: Shape, tiling: Tiling, machine: Machine) -> Choice:
    """Parallel blocks of the output; in each, blocks of the reduction; in each, register tiles.

    Raises:
        NotApplicable: the tiling does not fit the kernel.
    """
    group = products_together(shape, machine)
    loops = loops_of(kernel, shape, tiling.tile, tiling.chunk, machine)
    steps: list[Step] = list(loops.steps)
    tile, extents, moved = loops.tile, dict(loops.extents), loops.moved
    edges, block, holder = list(loops.edges), tiling.block, tiling.holder
    bound = bound_order(shape, tile.inside)
    batch = batch_loops(shape, tiling.tile)
    width = tile.vectors * machine.width
    if block is not None:
        _check_block(kernel, shape, tiling, bound, group)
    carried = block is not None and any(b.name == holder for b in kernel.args)
    prepared = None
    if tiling.prepare is not None:
        may_be = prepared_operands(shape, tile, loops.order, extents, machine, loops.original)
        prepared = next((p for p in may_be if p.operands[0] == tiling.prepare), None)
        if prepared is None or group > 1:
            raise NotApplicable(f"nothing of {tiling.prepare} is the same for several tiles")
    order = list(loops.beside if tiling.whole_rows else loops.order)
    steps.append(Reorder((*order, *(v for v, _ in moved))))
    outer = order
    if prepared is not None:
        inside = (*bound, moved[-1][0])
        what, least = prepared.operands[0], prepared.least
        steps.append(Prepare(what, order[prepared.at], inside, least))
        if prepared.turned is not None:
            along = f"{prepared.turned}.p"
            steps += [Split(along, machine.width), Mark(f"{along}.i", Kind.UNROLL)]
        block, outer = None, order[: prepared.at]
    inner: list[str] = []
    whole_sums = block is not None and block == extents[bound[-1]]
    one_by_one = block is None or whole_sums
    even = {
        f"{v}.o": Even(f"{v}.o", int(one_by_one and takes_one_more(shape, tile, v, machine)))
        for v, _ in tile.rows
        if v in shape.symbolic
    }
    most = (Index.of(shape.sizes[v]).bounds(dict(kernel.symbols)) for v in shape.symbolic)
    if not carried and any(x is None or x[1] > MOST_BETWEEN for x in most):
        # What is kept between blocks would take memory without a bound.
        block = None
    if block is not None:
        whole = {f"{v}.o" for v in shape.symbolic} | shape.symbolic
        at = next((i for i, v in enumerate(order) if v in even), len(order))
        if carried and at == len(order) - 1:
            # However many rows there are, those of a chunk stay in the second cache.
            v, tiles = order[at], tiles_at_once(shape, tile, machine)
            steps += [*([even[v]] if v in edges else []), Split(v, tiles)]
            extents |= {f"{v}.o": -(-extents[v] // tiles), f"{v}.i": min(tiles, extents[v])}
            outer = [*batch, f"{v}.o", *order[len(batch) : at]]
            inner, edges = [f"{v}.i"], [x for x in edges if x != v]
            steps.append(Reorder((*outer, *inner)))
        else:
            # Nor are the blocks of a symbolic loop ever split again.
            outer, inner, split = _reuse_loops(
                order, len(loops.blocked), extents, whole, tiling.reuse
            )
            steps += split
        if inner and not whole_sums:
            steps.append(BlockReduction(bound[-1], block, inner[0], holder))
        else:
            block = None
    if tiling.parallel:
        shared = outer if block is not None or not whole_sums else [*outer, *inner]
        steps += [Mark(v, Kind.PARALLEL) for v in shared]
    around = list(order) if prepared is not None else [*outer, *inner]
    steps += [even.get(v, Peel(v)) for v in reversed(around) if v in edges]
    steps.append(Tile(tuple(v for v, _ in moved), tuple(k for _, k in moved)))
    if block is None and tiling.prefetch:
        steps += _results(shape, tile, machine)
    packs: dict[str, Pack] = {}
    if block is not None:
        extents[bound[-1]] = block if extents[bound[-1]] % block == 0 else 0
    for r in shape.reductions:
        names = [x.var for x in r.loops]
        wanted = [v for v in bound if v in names]
        if len(wanted) > 1 and wanted != names:
            steps.append(Reorder(tuple(wanted)))
        parted: set[str] = set()
        last = wanted[-1]
        if group > 1:
            if block is not None:
                extents[last] = block
            steps += dot_steps(last, extents, group)
            parted.add(last)
            extents[f"{last}.o"] = extents[last] // group if extents[last] % group == 0 else 0
            wanted = [*wanted[:-1], f"{last}.o"]
        fixed = [v for v in wanted if v not in shape.symbolic and v not in tile.inside]
        short = fixed if wanted[-1:] == fixed[-1:] else []
        unrolled = _unrolled(r, short, tile, extents, machine) if tiling.unroll else []
        steps += unrolled
        parted |= {s.var for s in unrolled if isinstance(s, Split)}
        wanted = [*wanted[:-1], last]
        for t in r.reads:
            if not t.packed:
                panel = f"{tile.vector}.o"
                across = panel in around and t.across(tile.vector, bound[-1])
                known = t.known(tile.vector)
                if across and known and tiling.prefetch and t.buffer_bytes > machine.l1:
                    steps.append(PrefetchBlock(t.buffer, panel, 0, t.line(machine)))
                if group == 1 and len(r.reads) > 1 and tiling.prefetch:
                    steps += ask_far_rows(t, tile, around, wanted, unrolled, extents, machine)
            else:
                asked = tiling.prefetch and (prepared is None or t.buffer not in prepared.operands)
                if t.packable:
                    packs[t.buffer] = (
                        packing(
                            kernel, t, wanted, tile, width, shape.extents, block, loops.original
                        )
                        if group == 1 or not t.depends(last)
                        else grouped_packing(kernel, t, wanted, tile, width, group)
                    )
                if t.strides.get(tile.vector) is None or t.gathered or not asked:
                    continue
                if not t.depends(tile.vector) or not t.depends(bound[-1]):
                    continue
                line = t.line(machine)
                if block is not None:
                    steps.append(PrefetchBlock(t.buffer, f"{bound[-1]}.b", 0, line))
                elif batch and (t.strides.get(batch[-1]) or 0) > 0:
                    panel = f"{tile.vector}.o" if f"{tile.vector}.o" in around else batch[-1]
                    steps.append(PrefetchBlock(t.buffer, panel, 0, line))
                elif (over := panel_loop(t, tile, around)) and comes_from_afar(t, shape, machine):
                    again = bool(even) or any(extents[v] > 1 for v in around if v != over)
                    near = stays_until_used(t, over, around, shape, tile, machine)
                    if near and (again or waits_for_pages(r, tile, machine)):
                        steps.append(PrefetchBlock(t.buffer, over, 0, line))
                elif (
                    tile.vectors <= 2
                    and wanted
                    and shape.extents.get(wanted[0], 0) > group
                    and t.depends(wanted[0])
                ):
                    first = wanted[0]
                    while first in parted:
                        first = f"{first}.o"
                    loop = loops.original.get(wanted[0], wanted[0])
                    near = not t.nibbles and moves_evenly(kernel, t.buffer, loop)
                    if Mark(first, Kind.UNROLL) not in steps and near:
                        far = machine.far_bytes
                        ahead = far // machine.line_bytes * line
                        steps.append(PrefetchBlock(t.buffer, first, ahead, line, 1))
    if tile.inside:
        steps.append(Inside(tile.inside))
    return packed(packs, steps)


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


def _check_block(
    kernel: Kernel, shape: Shape, tiling: Tiling, bound: Sequence[str], group: int
) -> None:
    """Raises NotApplicable where the reduction cannot be done in such blocks."""
    block, last = tiling.block, bound[-1]
    assert block is not None
    if len(shape.reductions) != 1 or not tiling.tile.rows or last in shape.symbolic:
        raise NotApplicable("only one reduction of known length, in tiles of rows, has blocks")
    (reduction,) = shape.reductions
    if len(reduction.update.states) != 1:
        raise NotApplicable("a reduction with several states has no blocks")
    counted = any(v in shape.symbolic for v, _ in tiling.tile.rows)
    most = shape.extents[last] if counted else shape.extents[last] - 1
    if not 0 < block <= most or tiling.reuse < 1:
        raise NotApplicable(f"{last} has no blocks of {block} for {tiling.reuse} tiles")
    if block % group or (group > 1 and shape.extents[last] % block):
        raise NotApplicable(f"blocks of {block} part products that are added together")
    partial = f"{reduction.update.states[0].buffer}.partial"
    if tiling.holder not in (partial, sole_output(kernel)):
        raise NotApplicable(f"{tiling.holder!r} cannot hold the sums between blocks")


def _results(shape: Shape, tile: RegisterTile, machine: Machine) -> list[Step]:
    """Steps that ask for what a tile stores or reads after its reduction, line by line."""
    w = machine.coefficients.blocks
    if min(prod(shape.extents[x.var] for x in r.loops) for r in shape.reductions) < w.near_steps:
        return []
    found: dict[str, Step] = {}
    for t in shape.touches:
        if len(t.loops) != len(shape.shared) or t.packed or t.gathered:
            continue
        inside = [v for v, _ in tile.rows] + [tile.vector]
        along = next((v for v in inside if t.unit(v)), None)
        if along is not None and t.buffer_bytes > machine.l1 // 2:
            rows = prod(f for v, f in tile.rows if v != along and t.depends(v))
            lanes = tile.vectors * machine.width
            far = lanes if along != tile.vector and t.depends(tile.vector) else 1
            lines = -(-lanes * t.bytes // machine.line_bytes) if along == tile.vector else 1
            if rows * far * lines <= MOST_LINES:
                found[t.buffer] = PrefetchResult(t.buffer, machine.line_bytes // t.bytes)
    return list(found.values())


def _reuse_loops(
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


def _unrolled(
    r: Reduction,
    order: list[str],
    tile: RegisterTile,
    extents: Mapping[str, int],
    machine: Machine,
) -> list[Step]:
    """Steps that unroll short reductions, so that loads are shared and loops cost nothing.

    Only where registers are left: the loads of the next step are moved up among this step's
    arithmetic, and a spill costs more than a loop.
    """
    steps: list[Step] = []
    size = tile.size * multiplications(r, machine)
    for v in reversed(order):
        extent = extents[v]
        if extent == 0 or crowded(r, tile, v, extent, machine):
            break
        if extent * size <= MOST_WRITTEN_OUT and extent <= LONGEST_UNROLLED:
            steps.append(Mark(v, Kind.UNROLL))
            size *= extent
            continue
        most = MOST_WRITTEN_OUT if multiplications(r, machine) > 1 else MOST_OF_LONG
        factor = next((f for f in (8, 4, 2) if f * size <= most and extent % f == 0), 1)
        if extent % machine.width == 0 and any(t.across(tile.vector, v) for t in r.reads):
            # Whole squares are transposed: each part loads a vector for every lane.
            factor = machine.width
        if factor > 1:
            steps += [Split(v, factor), Mark(f"{v}.i", Kind.UNROLL)]
        break
    return steps
