"""Loops without reductions as vectors: how many at a time, and the steps to there."""

from __future__ import annotations

from rutc.tensor_ir.affine import Size
from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.kernel import Kind, Stmt, exprs, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Peel, Split, Step
from rutc.tuner.access import leaves_rest


def copies_of_body(body: tuple[Stmt, ...], machine: Machine) -> int:
    """How many vectors an iteration of a loop around these statements should compute."""
    found = sum(operations(e) for s in walk_stmts(body) for e in exprs(s))
    own = machine.coefficients.vectors
    return max(1, min(own.copies, own.operations // max(found, 1)))


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
