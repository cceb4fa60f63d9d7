"""Loops without reductions as vectors: how many at a time, and the steps to there."""

from __future__ import annotations

from rutc.tensor_ir.affine import Size
from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.kernel import Kind, Stmt, exprs, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Peel, Split, Step
from rutc.tuner.access import leaves_rest

MOST_COPIES = 4
"""Vectors that an iteration computes, to fill each other's waits."""
OPERATIONS_TOGETHER = 128
"""Of all vectors of an iteration, at most. Bodies of more keep a processor as busy alone: chains of
64, 128 and 250 sums, products, tanh and exp take between 0.93 and 1.07 of the time with one vector
as with four, on Zen 4 with AVX-512, and half of the time to compile.
"""


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
