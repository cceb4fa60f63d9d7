"""The schedule of kernels without reductions: they are bound by memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from rutc.tensor_ir.affine import Index, Size, plain
from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.kernel import Kernel, Kind, Stmt, exprs, walk_stmts
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.steps import Cut, Fuse, Mark, Part, Peel, Reorder, Schedule, Split, Step
from rutc.tuner.access import Shape, leaves_rest, memory_order
from rutc.tuner.across import across, interleaved
from rutc.tuner.arms import choosing_loops, comparisons, edges_of_reads, turns, unrolled_arms
from rutc.tuner.choice import pays, shared_out

MOST_ARMS = 64
"""Copies of a kernel's body, one for each part of its loops."""
MOST_COPIES = 4
"""Vectors that an iteration computes, to fill each other's waits."""
OPERATIONS_TOGETHER = 128
"""Of all vectors of an iteration, at most. Bodies of more keep a processor as busy alone: chains of
64, 128 and 250 sums, products, tanh and exp take between 0.93 and 1.07 of the time with one vector
as with four, on Zen 4 with AVX-512, and half of the time to compile.
"""


def pointwise(kernel: Kernel, shape: Shape, machine: Machine) -> Schedule:
    """Long vectors in the order of memory, squares where operands cross, arms apart."""
    if not shape.shared:
        return ()

    def shared(loops: list[str]) -> list[Step]:
        return shared_out(loops, shape, machine, len(shape.touches))

    steps: list[Step] = []
    copies = copies_of_body(kernel.body)
    loops = [x.var for x in shape.shared]
    extents, sizes, many = dict(shape.extents), dict(shape.sizes), dict(shape.shared_extents)
    chosen = choosing_loops(kernel, sizes)
    free = [v for v in loops if v not in chosen]
    if chosen and free:
        vector = _best_vector(free, shape)
        others = memory_order([v for v in loops if v != vector], shape)
        parallel = bool(shared(others))
        return tuple(unrolled_arms(others, vector, chosen, sizes, machine.width, parallel=parallel))
    vector = _best_vector(loops, shape)
    order = memory_order([v for v in loops if v != vector], shape)
    symbols = dict(kernel.symbols)
    symbolic = set(shape.symbolic)
    cuts: tuple[int, ...] = ()
    if vector not in symbolic:
        long = extents[vector]
        cuts = tuple(sorted({*comparisons(kernel, vector, long), *turns(kernel, vector, long)}))
    ends = {v: edges_of_reads(kernel, v, extents[v]) for v in order if v not in symbolic}
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
            steps += vectorised(name, extent, machine, copies)
        return (*steps, *shared(order[:-1]), *_parted(order[:-1], ends))
    touches = shape.touches
    if not any(ends.values()):
        in_turn = interleaved(loops, touches, sizes, symbols, machine, shared)
        if in_turn is not None:
            return in_turn
    squares = across(order, touches, sizes, symbols, machine, shared)
    if squares is not None:
        return squares
    while (
        len(order) > 1
        and all(t.continues(order[-2], order[-1], sizes[order[-1]]) for t in touches)
        and not (ends.get(order[-2]) and extents[order[-1]] >= machine.width)
    ):
        name = f"{order[-2]}_{order[-1]}"
        steps.append(Fuse(order[-2], order[-1], name))
        extents[name] = extents[order[-2]] * extents[order[-1]]
        many[name] = many[order[-2]] * many[order[-1]]
        sizes[name] = plain(sizes[order[-2]] * sizes[order[-1]])
        if not isinstance(sizes[name], int):
            symbolic.add(name)
        inner = order[-1]
        touches = tuple(t.renamed(inner, name) for t in touches)
        order[-2:] = [name]
    vector = order.pop()
    longest = Index.of(sizes[vector]).bounds(symbols)
    if vector in symbolic and longest is not None and longest[1] <= 1:
        return (*steps, *shared(order))
    if not order and pays(many[vector] * len(touches) / 2, machine):
        if vector in symbolic:
            steps += vectorised(vector, sizes[vector], machine, copies)
            return (*steps, Mark(f"{vector}.o", Kind.PARALLEL))
        chunk = _chunk(extents[vector], machine)
        if chunk < extents[vector]:
            steps += [Split(vector, chunk), Mark(f"{vector}.o", Kind.PARALLEL)]
            return (*steps, *vectorised(f"{vector}.i", chunk, machine, copies))
    steps += vectorised(vector, sizes[vector], machine, copies)
    steps += shared(order)
    return (*steps, *_parted(order, ends))


def _parted(loops: list[str], ends: Mapping[str, tuple[int, ...]]) -> list[Step]:
    """Steps that give the ranges between their ends code of their own, while that is little."""
    steps: list[Step] = []
    arms = 1
    for v in loops:
        points = ends.get(v, ())
        if points and arms * (len(points) + 1) <= MOST_ARMS:
            arms *= len(points) + 1
            steps.append(Part(v, points))
    return steps


def copies_of_body(body: tuple[Stmt, ...]) -> int:
    """How many vectors an iteration of a loop around these statements should compute."""
    found = sum(operations(e) for s in walk_stmts(body) for e in exprs(s))
    return max(1, min(MOST_COPIES, OPERATIONS_TOGETHER // max(found, 1)))


def vectorised(v: str, size: Size, machine: Machine, copies: int) -> list[Step]:
    """Steps that make vectors of a loop, of that many iterations, without reductions."""
    block = copies * machine.width
    if isinstance(size, int):
        if size <= block:
            return [Mark(v, Kind.VECTOR)]
        block = machine.width * max(1, min(copies, size // machine.width))
    steps: list[Step] = [Split(v, block), Mark(f"{v}.i", Kind.VECTOR)]
    if leaves_rest(size, block):
        steps.append(Peel(f"{v}.o"))
    return steps


def _chunk(extent: int, machine: Machine) -> int:
    """The largest part of a loop of at most 1/16 of it that divides it into whole vectors."""
    for parts in range(16, 65):
        if extent % (parts * machine.width) == 0:
            return extent // parts
    for parts in range(8, 257):
        if extent % parts == 0:
            return extent // parts
    return extent


def _best_vector(loops: list[str], shape: Shape) -> str:
    def cost(v: str) -> float:
        total = 0.0
        extent = shape.extents[v]
        lanes = max(1, min(16, extent))
        for t in shape.touches:
            stride = t.strides.get(v, 0)
            if stride == 0:
                total += 0.2
            elif stride == 1:
                total += 1
            elif stride in NEAR_STRIDES and not t.is_store:
                total += 1.5 * (stride or 1)
            else:
                total += lanes * (1.5 if t.is_store else 1)
        return total / lanes * (1 + 0.1 * ((-extent) % lanes) / lanes)

    return min(loops, key=cost)
