"""Sums of products are multiplied by what their products have in common, once for many products."""

from __future__ import annotations

from math import prod

from rutc.tensor_ir.expr import Expr, plain_names
from rutc.tensor_ir.kernel import Kernel, Kind, Space, Stmt, Update
from rutc.tensor_ir.statements import Around, walk_within
from rutc.tensor_ir.steps import FactorOut, NotApplicable, Schedule
from rutc.tensor_ir.steps.partial import parted

OPERATIONS = 3
"""What a sum of its own takes: to start it, a multiply-add, and the state that waited in memory."""


def factors_out(kernel: Kernel) -> tuple[Schedule, Kernel]:
    """Steps that take factors out of the sums of a scheduled kernel, and the kernel after.

    Such as the scales of blocks of weights: they are the same for all products of a block.
    """
    chosen: dict[str, None] = {}
    for s, around in walk_within(kernel.body):
        if _is_sum(s, kernel) and isinstance(s, Update):
            var = _loop(s, s.elements[0], around)
            if var is not None:
                chosen[var] = None
    steps: list[FactorOut] = []
    for step in map(FactorOut, chosen):
        try:
            kernel = step.apply(kernel)
        except NotApplicable:
            # What else such a loop does may be another factor's to tell.
            continue
        steps.append(step)
    return tuple(steps), kernel


def _is_sum(s: Stmt, kernel: Kernel) -> bool:
    """Whether a statement adds floats up in registers."""
    return (
        isinstance(s, Update)
        and s.reducer.name == "sum"
        and s.reducer.state[0].is_float
        and s.lanes is None
        and kernel.buffer(s.states[0].buffer).space is Space.REGISTER
    )


def _loop(s: Update, e: Expr, around: Around) -> str | None:
    """The outermost loop whose products have a factor in common that saves more than it takes."""
    states = plain_names(s.states[0].coords)
    if any(x.kind is Kind.MATRIX for x in around):
        return None
    for i, x in enumerate(around):
        over = [y for y in around[i:] if y.var not in states]
        if x not in over or x.kind not in (Kind.SERIAL, Kind.UNROLL):
            continue
        _, common = parted(e, {y.var for y in over})
        products = prod((y.hi - y.lo).value if (y.hi - y.lo).is_const else 1 for y in over)
        if common and products > OPERATIONS:
            return x.var
    return None
