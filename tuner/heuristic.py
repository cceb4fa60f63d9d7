"""The default schedule: chosen by a model of the machine, without measuring.

Four shapes of kernel, told apart by their accesses alone:

- *tiled*: a reduction with a shared loop along which memory is contiguous. That loop becomes the
  vector, another one or two the rows of a register tile, chosen to balance multiply-adds against
  loads [Goto & van de Geijn 2008];
- *rows*: reductions along contiguous memory (softmax, normalisation, dot products): lanes of
  partial states per row;
- *pointwise*: no reduction: long vectors in memory order;
- *puts*: a scatter: loops that keep to elements of their own go outside, or become the vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from rutc.tensor_ir.affine import Index, plain
from rutc.tensor_ir.expr import Apply, IndexValue, Lit, Read, walk
from rutc.tensor_ir.kernel import Assign, Init, Kernel, Kind, Loop, Put, Space, exprs, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import (
    BlockReduction,
    Cut,
    Fuse,
    Lanes,
    Mark,
    NotApplicable,
    Peel,
    PrefetchBlock,
    Reorder,
    Schedule,
    Split,
    Step,
    Tile,
    apply_schedule,
)
from rutc.tuner.access import Reduction, Shape, Touch, analyse
from rutc.tuner.across import across
from rutc.tuner.arms import choosing_loops, unrolled_arms
from rutc.tuner.collapse import collapse
from rutc.tuner.puts import put_order
from rutc.tuner.tiles import RegisterTile, choose_tile

PARALLEL_CYCLES = 30_000
"""Kernels estimated below this many cycles run on one thread: sharing costs microseconds."""
PANEL_SHARE = 0.6
"""Share of the first cache that the vector operand of a blocked reduction may take."""
REUSE = 8
"""Tiles that use a block of the vector operand before the next is loaded."""
LINE_BYTES = 64
STREAM_BYTES = 16 << 10
"""How far ahead to ask for an operand that is read once: beyond the hardware's own prefetching."""
NEAR_LINES = 16
"""Lines ahead to ask for an operand that streams from the second cache."""
FEW_TILES = 16
"""Up to so many tiles use the vector operand again: waiting for it from memory then shows."""
SHORTEST_BLOCK = 400
"""Multiply-adds per register tile below which carrying partial sums costs more than it gains."""


@dataclass(frozen=True)
class Choice:
    """A schedule, and the packing that it wants of constants: buffer -> (dim order, blocks)."""

    schedule: Schedule
    packing: Mapping[str, tuple[tuple[str, ...], Mapping[str, int]]] = field(default_factory=dict)


def choose(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> Choice:
    """The default schedule of a freshly lowered kernel. `constants` may still be laid out."""
    shape = analyse(kernel, constants)
    if any(e == 0 for e in shape.sizes.values()):
        return Choice(())
    if any(isinstance(s, Put) for s in shape.body):
        return Choice(_puts(kernel, shape, machine))
    if not shape.reductions and all(isinstance(s, Loop) is False for s in shape.body):
        return Choice(_pointwise(kernel, shape, machine))
    if all(_is_shared(r) for r in shape.reductions) and not _private_loops(shape):
        fused = collapse(shape)
        if fused:
            rest = choose(apply_schedule(kernel, fused), machine, constants)
            return replace(rest, schedule=(*fused, *rest.schedule))
        tile = choose_tile(shape, machine)
        if tile is not None:
            return _tiled(kernel, shape, tile, machine, constants)
    return _rows(kernel, shape, machine)


def _is_shared(r: Reduction) -> bool:
    return bool(r.loops)


def _private_loops(shape: Shape) -> list[str]:
    """Loops inside the shared ones that belong to no reduction."""
    bound = {x.var for r in shape.reductions for x in _reduction_loops(r)}
    inner = [s.var for s in walk_stmts(shape.body) if isinstance(s, Loop)]
    return [v for v in inner if v not in bound]


def _reduction_loops(r: Reduction) -> tuple[Loop, ...]:
    """The loops of `r` that its states do not survive: the bound ones."""
    kept: list[Loop] = []
    for x in reversed(r.loops):
        if any(not isinstance(s, Loop) for s in x.body) and x is not r.loops[-1]:
            break
        kept.append(x)
    return tuple(reversed(kept))


def _cycles(shape: Shape, machine: Machine) -> float:
    """A rough count of cycles, for deciding whether threads pay; none where there is one core."""
    if machine.cores == 1:
        return 0.0
    points = prod(shape.extents[x.var] for x in shape.shared)
    inner = sum(prod(shape.extents[x.var] for x in r.loops) for r in shape.reductions)
    private = sum(shape.extents[v] for v in _private_loops(shape))
    return points * (inner + 4 * private + 4) / machine.width


# -- tiled ----------------------------------------------------------------------------------------
def _tiled(
    kernel: Kernel, shape: Shape, tile: RegisterTile, machine: Machine, constants: frozenset[str]
) -> Choice:
    """Parallel blocks of the output; in each, blocks of the reduction; in each, register tiles."""
    steps: list[Step] = []
    extents = dict(shape.extents)
    bound = _bound_order(shape)
    batch = _batch(shape, tile)
    block = _reduction_block(kernel, shape, tile, bound, machine)
    chunk = _row_chunk(shape, tile, batch, machine) if block is None else None
    if chunk is not None:
        v, f = chunk
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
        if f >= extents[v] and v not in shape.symbolic:
            moved.append((v, kind))
            continue
        steps.append(Split(v, f))
        moved.append((f"{v}.i", kind))
        loops.append(f"{v}.o")
        extents[f"{v}.o"] = -(-extents[v] // f)
        if extents[v] % f or v in shape.symbolic:
            edges.append(f"{v}.o")
    blocked = [f"{tile.vector}.o"] if f"{tile.vector}.o" in loops else []
    tiled = {v for v, _ in tile.rows} | {tile.vector, *batch}
    rest = [x.var for x in shape.shared if x.var not in tiled]
    if chunk is not None:
        v = chunk[0]
        rest = [f"{v}.i" if x == v else x for x in rest if x != v or f"{v}.i" not in tiled]
        blocked = [f"{v}.o", *blocked]
    blocked = [*batch, *blocked]
    order = [*blocked, *rest, *(v for v in loops if v not in blocked)]
    steps.append(Reorder((*order, *(v for v, _ in moved))))
    outer = order
    inner: list[str] = []
    output = _output(kernel)
    if block is not None and output is not None:
        # The blocks of a symbolic loop are never split again.
        whole = {f"{v}.o" for v in shape.symbolic} | shape.symbolic
        outer, inner, split = _reuse_loops(order, len(blocked), extents, whole)
        steps += split
        if inner:
            steps.append(BlockReduction(bound[-1], block, inner[0], output))
        else:
            block = None
    if _cycles(shape, machine) > PARALLEL_CYCLES:
        steps += [Mark(v, Kind.PARALLEL) for v in outer]
    steps += [Peel(v) for v in reversed((*outer, *inner)) if v in edges]
    steps.append(Tile(tuple(v for v, _ in moved), tuple(k for _, k in moved)))
    packing: dict[str, tuple[tuple[str, ...], Mapping[str, int]]] = {}
    if block is not None:
        extents[bound[-1]] = block if extents[bound[-1]] % block == 0 else 0
    for r in shape.reductions:
        names = [x.var for x in r.loops]
        wanted = [v for v in bound if v in names]
        if len(wanted) > 1 and wanted != names:
            steps.append(Reorder(tuple(wanted)))
        fixed = [v for v in wanted if v not in shape.symbolic]
        unrolled = _unrolled(fixed if wanted[-1:] == fixed[-1:] else [], tile, extents, machine)
        steps += unrolled
        parted = {s.var for s in unrolled if isinstance(s, Split)}
        for t in r.reads:
            if t.packed:
                packing[t.buffer] = _packing(kernel, t, wanted, tile, width, shape.extents, block)
                if t.strides.get(tile.vector) is None or t.gathered:
                    continue
                if not t.depends(tile.vector) or not t.depends(bound[-1]):
                    continue
                line = LINE_BYTES // t.bytes
                if block is not None:
                    steps.append(PrefetchBlock(t.buffer, f"{bound[-1]}.b", 0, line))
                elif batch and (t.strides.get(batch[-1]) or 0) > 0:
                    panel = f"{tile.vector}.o" if f"{tile.vector}.o" in order else batch[-1]
                    steps.append(PrefetchBlock(t.buffer, panel, 0, line))
                elif t.buffer_bytes > machine.l2 // 2 and f"{tile.vector}.o" in order:
                    alone = all(extents.get(v, 1) == 1 for v in order if v != f"{tile.vector}.o")
                    ahead = STREAM_BYTES // t.bytes if alone else 0
                    steps.append(PrefetchBlock(t.buffer, f"{tile.vector}.o", ahead, line))
                elif tile.vectors <= 2 and wanted:
                    first = wanted[0] if wanted[0] not in parted else f"{wanted[0]}.o"
                    if Mark(first, Kind.UNROLL) not in steps:
                        ahead = NEAR_LINES * line
                        steps.append(PrefetchBlock(t.buffer, first, ahead, line, 1))
    return Choice(tuple(steps), packing)


def _batch(shape: Shape, tile: RegisterTile) -> list[str]:
    """The loops between whose iterations no operand is used again: they go around all others."""
    tiled = {v for v, _ in tile.rows} | {tile.vector}
    reads = [t for r in shape.reductions for t in r.reads]
    return [
        x.var
        for x in shape.shared
        if x.var not in tiled and shape.extents[x.var] > 1 and all(t.depends(x.var) for t in reads)
    ]


def _row_chunk(
    shape: Shape, tile: RegisterTile, batch: list[str], machine: Machine
) -> tuple[str, int] | None:
    """(loop, factor) by which to split rows; None where their operand is small as a whole.

    The part of the operand that goes with one factor stays in the second cache while all blocks
    of the vector pass by. All of it goes by anew for each iteration of the `batch` loops.
    """
    runs = prod(shape.extents[v] for v in batch)
    vector_blocks = -(-shape.extents[tile.vector] // (tile.vectors * machine.width))
    reads = [t for r in shape.reductions for t in r.reads if not t.depends(tile.vector)]
    size = sum(t.buffer_bytes for t in reads) // runs
    if vector_blocks < 2 or size <= machine.l2 // 2:
        return None
    chunks = -(-size // (machine.l2 // 2))
    streamed = sum(
        prod(shape.extents[v] for v in t.loops if t.depends(v) and v not in batch) * t.bytes
        for r in shape.reductions
        for t in r.reads
        if t.depends(tile.vector)
    )
    # Every chunk reads the vector operand anew; without chunks every block reads the rows anew.
    if chunks * streamed >= vector_blocks * size:
        return None
    rows = [x.var for x in shape.shared if x.var != tile.vector]
    rows = [v for v in rows if all(t.depends(v) for t in reads) and shape.extents[v] > 1]
    rows = [v for v in rows if v not in shape.symbolic and v not in batch]
    if not rows:
        return None
    factors = dict(tile.rows)
    v = max(rows, key=lambda x: max(abs(t.strides.get(x) or 0) for t in reads))
    extent = shape.extents[v]
    most = max(extent // chunks, factors.get(v, 1))
    for f in range(most, most // 2, -1):
        if extent % f == 0 and f < extent:
            return v, f
    return None


def _reduction_block(
    kernel: Kernel, shape: Shape, tile: RegisterTile, bound: list[str], machine: Machine
) -> int | None:
    """How much of the innermost reduction loop to do at a time; None where all of it fits.

    The vector operand's part then stays in the first cache while tiles use it again.
    """
    if len(shape.reductions) != 1 or not tile.rows or bound[-1] in shape.symbolic:
        return None
    if _output(kernel) is None:
        return None
    reduction = shape.reductions[0]
    if len(reduction.update.states) != 1:
        return None
    step = sum(
        tile.vectors * machine.width * t.bytes for t in reduction.reads if t.depends(tile.vector)
    )
    around = prod(shape.extents[v] for v in bound[:-1])
    most = int(machine.l1 * PANEL_SHARE) // max(step * around, 1)
    extent = shape.extents[bound[-1]]
    tiles = prod(
        -(-shape.extents[x.var] // dict(tile.rows).get(x.var, 1))
        for x in shape.shared
        if x.var != tile.vector
    )
    if step * around * extent < machine.l2 // 8 or tiles > FEW_TILES:
        return None
    if most >= extent or most * around * tile.size < SHORTEST_BLOCK or most < 4:
        return None
    even = -(-extent // -(-extent // most))
    for b in range(even, max(even // 2, 4), -1):
        if extent % b == 0:
            return b
    return even


def _output(kernel: Kernel) -> str | None:
    """The only buffer that the kernel stores to, if it can hold the only reduction's state."""
    stored = [
        kernel.buffer(s.target.buffer)
        for s in walk_stmts(kernel.body)
        if isinstance(s, Assign) and kernel.buffer(s.target.buffer).space is Space.MEMORY
    ]
    states = [s.reducer.state for s in walk_stmts(kernel.body) if isinstance(s, Init)]
    if len(stored) != 1 or states != [(stored[0].dtype,)]:
        return None
    return stored[0].name


def _reuse_loops(
    order: list[str], first: int, extents: dict[str, int], whole: AbstractSet[str]
) -> tuple[list[str], list[str], list[Step]]:
    """(outer, inner, steps): the innermost loops that go around about `REUSE` tiles."""
    inner: list[str] = []
    tiles = 1
    for v in reversed(order[first:]):
        if tiles * extents[v] <= 2 * REUSE:
            inner.insert(0, v)
            tiles *= extents[v]
            continue
        if tiles < REUSE and v not in whole:
            factor = -(-REUSE // tiles)
            parts = -(-extents[v] // factor)
            factor = -(-extents[v] // parts)
            if 1 < factor < extents[v] and extents[v] % factor == 0:
                outer = [*order[: order.index(v)], f"{v}.o"]
                extents[f"{v}.o"] = parts
                return outer, [f"{v}.i", *inner], [Split(v, factor)]
            inner.insert(0, v)
        break
    outer = order[: len(order) - len(inner)]
    return outer, inner, []


def _packing(
    kernel: Kernel,
    t: Touch,
    bound: list[str],
    tile: RegisterTile,
    width: int,
    extents: Mapping[str, int],
    block: int | None,
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """The dim order of a constant operand: in the order in which the tiles read it."""
    dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
    of_loop = _dim_of_loop(kernel, t.buffer)
    inner = [of_loop[v] for v in bound if v in of_loop]
    lane = of_loop.get(tile.vector)
    blocks: dict[str, int] = {}
    last = of_loop.get(bound[-1])
    if block is not None and last is not None and lane is not None:
        inner = [last, *(d for d in inner if d != last)]
        blocks[last] = block
    # What a tile reads at one step of the reduction lies together.
    rows = [(of_loop[v], f, extents[v]) for v, f in tile.rows if v in of_loop]
    whole = [d for d, f, extent in rows if f == extent and not blocks]
    blocks |= {d: f for d, f, _ in rows if d not in whole}
    front = [d for d in dims if d not in inner and d not in whole and d != lane]
    inner += whole
    if lane is None:
        return (*front, *inner), blocks
    if width >= extents[tile.vector]:
        if not blocks:
            return (*front, *inner, lane), {}
        return (*front, lane, *inner), {**blocks, lane: extents[tile.vector]}
    return (*front, lane, *inner), {**blocks, lane: width}


def _dim_of_loop(kernel: Kernel, buffer: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for s in walk_stmts(kernel.body):
        for e in exprs(s):
            for x in walk(e):
                if isinstance(x, Read) and x.value == buffer:
                    for d, c in x.coords:
                        if isinstance(c, Index) and c.as_var is not None:
                            found[c.as_var] = d
    return found


def _bound_order(shape: Shape) -> list[str]:
    """Reduction loops, the one along which operands are nearest in memory innermost."""
    names: dict[str, int] = {}
    for r in shape.reductions:
        for x in r.loops:
            strides = [abs(t.strides.get(x.var) or 0) for t in r.reads if not t.packed]
            names[x.var] = max(strides, default=0)
    return sorted(names, key=lambda v: -names[v])


def _unrolled(
    order: list[str], tile: RegisterTile, extents: Mapping[str, int], machine: Machine
) -> list[Step]:
    """Steps that unroll short reductions, so that loads are shared and loops cost nothing.

    Only where registers are left: the loads of the next step are moved up among this step's
    arithmetic, and a spill costs more than a loop.
    """
    steps: list[Step] = []
    size = tile.size
    if size + 2 * tile.vectors + 2 > machine.registers:
        return steps
    for v in reversed(order):
        extent = extents[v]
        if extent == 0:
            break
        if extent * size <= 160 and extent <= 16:
            steps.append(Mark(v, Kind.UNROLL))
            size *= extent
            continue
        factor = next((f for f in (8, 4, 2) if f * size <= 64 and extent % f == 0), 1)
        if factor > 1:
            steps += [Split(v, factor), Mark(f"{v}.i", Kind.UNROLL)]
        break
    return steps


# -- rows -----------------------------------------------------------------------------------------
def _rows(kernel: Kernel, shape: Shape, machine: Machine) -> Choice:
    steps: list[Step] = []
    packing: dict[str, tuple[tuple[str, ...], Mapping[str, int]]] = {}
    if _cycles(shape, machine) > PARALLEL_CYCLES:
        steps += [Mark(x.var, Kind.PARALLEL) for x in shape.shared]
    done: set[str] = set()
    for r in shape.reductions:
        bound = _reduction_loops(r)
        lane = _best_lane([x.var for x in bound], r.reads, shape)
        if lane is not None:
            long = shape.extents[lane] >= 4 * machine.width or lane in shape.symbolic
            width = machine.width * (4 if long else 1)
            steps.append(Lanes(lane, width, bound[0].var))
            done |= {x.var for x in bound}
            for t in r.reads:
                if t.packed:
                    dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
                    last = _dim_of_loop(kernel, t.buffer).get(lane)
                    if last is not None:
                        packing[t.buffer] = ((*(d for d in dims if d != last), last), {})
    for v in _private_loops(shape):
        holds_loops = any(
            isinstance(s, Loop) and s.var == v and any(isinstance(i, Loop) for i in s.body)
            for s in walk_stmts(shape.body)
        )
        own = [t for t in shape.touches if v in t.loops]
        if holds_loops or not any(t.unit(v) for t in own):
            continue
        steps += _vectorised(v, shape.extents[v], machine, v in shape.symbolic)
    return Choice(tuple(steps), packing)


def _best_lane(bound: list[str], reads: tuple[Touch, ...], shape: Shape) -> str | None:
    best = max(
        bound,
        key=lambda v: (sum(t.unit(v) for t in reads if t.depends(v)), shape.extents[v]),
        default=None,
    )
    return best if best is not None and shape.extents[best] > 1 else None


def _vectorised(v: str, extent: int, machine: Machine, symbolic: bool = False) -> list[Step]:
    """Steps that make vectors of a loop without reductions."""
    if extent <= machine.width and not symbolic:
        return [Mark(v, Kind.VECTOR)]
    block = machine.width * (4 if symbolic else max(1, min(4, extent // machine.width)))
    steps: list[Step] = [Split(v, block), Mark(f"{v}.i", Kind.VECTOR)]
    if extent % block or symbolic:
        steps.append(Peel(f"{v}.o"))
    return steps


# -- pointwise ------------------------------------------------------------------------------------
def _pointwise(kernel: Kernel, shape: Shape, machine: Machine) -> Schedule:
    if not shape.shared:
        return ()
    steps: list[Step] = []
    loops = [x.var for x in shape.shared]
    extents, sizes = dict(shape.extents), dict(shape.sizes)
    chosen = () if shape.symbolic else choosing_loops(kernel, extents)
    free = [v for v in loops if v not in chosen]
    if chosen and free:
        vector = _best_vector(free, shape)
        others = _memory_order([v for v in loops if v != vector], shape)
        parallel = bool(_parallel(others, extents, shape, machine))
        return tuple(
            unrolled_arms(others, vector, chosen, extents, machine.width, parallel=parallel)
        )
    vector = _best_vector(loops, shape)
    order = _memory_order([v for v in loops if v != vector], shape)
    symbolic = set(shape.symbolic)
    cuts = () if vector in symbolic else _cut_points(kernel, vector, extents[vector])
    order.append(vector)
    if len(order) > 1 and order != loops:
        steps.append(Reorder(tuple(order)))
    if cuts:
        steps.append(Cut(vector, cuts))
        edges = [0, *cuts, extents[vector]]
        pieces = [
            (vector if i == 0 else f"{vector}.{i}", b - a)
            for i, (a, b) in enumerate(pairwise(edges))
        ]
        for name, extent in pieces:
            steps += _vectorised(name, extent, machine)
        return (
            (*_parallel(order[:-1], extents, shape, machine), *steps)
            if not steps
            else (
                *steps,
                *_parallel(order[:-1], extents, shape, machine),
            )
        )
    touches = shape.touches
    squares = (
        None
        if symbolic
        else across(
            order,
            touches,
            extents,
            machine,
            lambda outside: _parallel(outside, extents, shape, machine),
        )
    )
    if squares is not None:
        return squares
    while len(order) > 1 and all(
        t.continues(order[-2], order[-1], sizes[order[-1]]) for t in touches
    ):
        name = f"{order[-2]}_{order[-1]}"
        steps.append(Fuse(order[-2], order[-1], name))
        extents[name] = extents[order[-2]] * extents[order[-1]]
        sizes[name] = plain(sizes[order[-2]] * sizes[order[-1]])
        if not isinstance(sizes[name], int):
            symbolic.add(name)
        inner = order[-1]
        touches = tuple(t.renamed(inner, name) for t in touches)
        order[-2:] = [name]
    vector = order.pop()
    if not order and machine.cores > 1 and extents[vector] * len(touches) > PARALLEL_CYCLES * 2:
        if vector in symbolic:
            steps += _vectorised(vector, extents[vector], machine, symbolic=True)
            return (*steps, Mark(f"{vector}.o", Kind.PARALLEL))
        chunk = _chunk(extents[vector], machine)
        if chunk < extents[vector]:
            steps.append(Split(vector, chunk))
            outer, inner = f"{vector}.o", f"{vector}.i"
            if extents[vector] % chunk == 0:
                steps.append(Mark(outer, Kind.PARALLEL))
                steps += _vectorised(inner, chunk, machine)
                return tuple(steps)
            steps.pop()
    steps += _vectorised(vector, extents[vector], machine, vector in symbolic)
    steps += _parallel(order, extents, shape, machine)
    return tuple(steps)


def _puts(kernel: Kernel, shape: Shape, machine: Machine) -> Schedule:
    apart, ordered, vector = put_order(kernel, shape)
    order = [*apart, *ordered, *([vector] if vector is not None else [])]
    steps: list[Step] = []
    if len(order) > 1 and order != [x.var for x in shape.shared]:
        steps.append(Reorder(tuple(order)))
    if _cycles(shape, machine) * len(shape.touches) > PARALLEL_CYCLES:
        steps += [Mark(v, Kind.PARALLEL) for v in apart]
    if vector is not None:
        steps += _vectorised(vector, shape.extents[vector], machine, vector in shape.symbolic)
    return tuple(steps)


def _chunk(extent: int, machine: Machine) -> int:
    """The largest part of a loop of at most 1/16 of it that divides it into whole vectors."""
    for parts in range(16, 65):
        if extent % (parts * machine.width) == 0:
            return extent // parts
    for parts in range(8, 257):
        if extent % parts == 0:
            return extent // parts
    return extent


def _parallel(
    order: list[str], extents: Mapping[str, int], shape: Shape, machine: Machine
) -> list[Step]:
    if _cycles(shape, machine) * len(shape.touches) < PARALLEL_CYCLES:
        return []
    return [Mark(v, Kind.PARALLEL) for v in order]


def _best_vector(loops: list[str], shape: Shape) -> str:
    def cost(v: str) -> float:
        total = 0.0
        extent = shape.extents[v]
        lanes = min(16, extent)
        for t in shape.touches:
            stride = t.strides.get(v, 0)
            if stride == 0:
                total += 0.2
            elif stride == 1:
                total += 1
            else:
                total += lanes * (1.5 if t.is_store else 1)
        return total / lanes * (1 + 0.1 * ((-extent) % lanes) / lanes)

    return min(loops, key=cost)


def _memory_order(loops: list[str], shape: Shape) -> list[str]:
    """Loops in the order of the store's memory, farthest outermost."""
    stores = [t for t in shape.touches if t.is_store]

    def distance(v: str) -> int:
        return max((abs(t.strides.get(v) or 0) for t in stores), default=0)

    return sorted(loops, key=lambda v: -distance(v))


def _cut_points(kernel: Kernel, var: str, extent: int) -> tuple[int, ...]:
    """Where comparisons of the loop variable with constants change."""
    points: set[int] = set()
    for s in walk_stmts(kernel.body):
        for e in exprs(s):
            for x in walk(e):
                if isinstance(x, Apply) and x.op in ("lt", "ge", "le", "gt"):
                    a, b = x.args
                    if not (isinstance(a, IndexValue) and isinstance(b, Lit)):
                        continue
                    c = a.index.coefficient(var)
                    if c != 1 or (a.index - Index.of(var)).terms:
                        continue
                    edge = int(b.value) - a.index.const
                    points.add(edge if x.op in ("lt", "ge") else edge + 1)
    return tuple(sorted(p for p in points if 0 < p < extent))


__all__ = ["Choice", "NotApplicable", "choose"]
