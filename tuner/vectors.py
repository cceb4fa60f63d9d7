"""Loops as vectors: how many at a time, how memory that lies across is met, and the steps."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.kernel import Kind, Stmt
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.statements import exprs, walk_stmts
from rutc.tensor_ir.steps import Mark, NotApplicable, Peel, Singly, Split, Step
from rutc.tuner.access import Shape, Touch
from rutc.tuner.lengths import leaves_rest
from rutc.tuner.space import Axis
from rutc.tuner.tiles.tile_loads import far_load

MOST_AT_ONCE = 128
"""Operations of all vectors of an iteration. Bodies of more keep a processor as busy alone: chains
of 64, 128 and 250 sums, products, tanh and exp take between 0.93 and 1.07 of the time with one
vector as with four (Zen 4, AVX-512), and half of the time to compile."""


def copies_of_body(body: tuple[Stmt, ...], machine: Machine) -> int:
    """How many vectors an iteration of a loop around these statements should compute."""
    found = sum(operations(e) for s in walk_stmts(body) for e in exprs(s))
    copies = machine.vectors_at_once
    return max(1, min(copies, MOST_AT_ONCE // max(found, 1)))


def vectorised(
    v: str, size: Size, machine: Machine, copies: int, sharing: Iterable[Step] = ()
) -> list[Step]:
    """Steps that make vectors of a loop, of that many iterations, without reductions.

    Steps by which threads share the vectors come while all of these have one code: where the last
    one's stands apart, it asks of no iteration any more.
    """
    block = copies * machine.width
    if isinstance(size, int):
        if size <= block:
            return [Mark(v, Kind.VECTOR), *sharing]
        block = machine.width * max(1, min(copies, size // machine.width))
    steps: list[Step] = [Split(v, block), Mark(f"{v}.i", Kind.VECTOR), *sharing]
    if leaves_rest(size, block):
        steps.append(Peel(f"{v}.o"))
    return steps


def element_by_element(buffers: Iterable[str], touches: Iterable[Touch], vector: str) -> list[Step]:
    """Steps by which lanes of these operands have loads and stores of their own.

    Raises:
        NotApplicable: lanes along the loop `vector` lie side by side in all of an operand, or are
            the same.
    """
    touches = tuple(touches)
    for b in buffers:
        if all(t.near(vector) for t in touches if t.buffer == b):
            raise NotApplicable(f"lanes of {b} do not lie apart")
    return [Singly(b) for b in buffers]


def element_by_element_axis(shape: Shape) -> Axis:
    """The operands whose lanes may have loads and stores of their own: none, or one of them."""
    loops = [x.var for x in shape.shared]
    apart = (t.buffer for t in shape.touches if not all(map(t.near, loops)) and not t.nibbles)
    return ((), *((b,) for b in dict.fromkeys(apart)))


def best_vector(loops: list[str], shape: Shape, machine: Machine) -> str:
    """Returns the loop whose lanes take least to load and store."""

    def cost(v: str) -> float:
        total = 0.0
        lies = any(t.unit(v) for t in shape.touches)
        extent = (shape.extents if lies else shape.common_extents)[v]
        lanes = min(machine.width, extent)
        if lanes <= 1:
            return len(shape.touches)
        for t in shape.touches:
            stride = t.strides.get(v, 0)
            if stride == 0:
                total += machine.coefficients.layouts.broadcast
            elif stride == 1:
                total += 1
            elif picks := t.picks(v, min(machine.width, extent), machine):
                total += picks
            elif stride in NEAR_STRIDES and not t.is_store:
                total += far_load(stride, lanes)
            else:
                total += far_load(None, lanes) if t.is_store else lanes
        return total * ceil(extent / lanes) / extent

    return min(loops, key=cost)
