"""What a rewrite may change of how floats round: stated as numbers, and the budget that decides.

Additions of floats are not associative, and products leave the range of exponents in one order that
another order stays in. A rule that computes in another order than the model says what that may
change, from the constants at hand, as a `Change`; beyond the `BUDGET` it does not apply.

Three things count as the model's own order all the same, and cost nothing here: sums may be added
up in any order, a product that is only added to something may be rounded with that sum at once, and
powers with small exponents may be products, a quotient or a root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.rewrite import Reason
from rutc.tensor_ir import DType, Expr, Lit, Read, cast
from rutc.tensor_ir.expr import index_names, reads, transform
from rutc.tensor_ir.interpreter.evaluate import evaluate_expr

MOST_ELEMENTS = 1 << 20
"""A rule that would have to look at more elements of a scale does not apply."""


@record
class Change:
    """What a rewrite may cost beside the model's own order of operations.

    `bits`: so many bits of the result, where operands cancel as far as they may.
    `top`: results overflow from 2**(128 - top) on (1024 for f64).
    `bottom`: results lose digits below 2**(bottom - 102), 24 bits above the least normal number.
    """

    bits: float = 0.0
    top: float = 0.0
    bottom: float = 0.0


BUDGET = Change(bits=1.0, top=24.0, bottom=24.0)
"""What a rewrite may cost at most."""


class OverBudget(Reason):
    """Why a rule that may round too much does not apply."""

    __slots__ = ()


def over_budget(change: Change, dtype: DType) -> OverBudget | None:
    """Why a change is too much, with the number; None if it is within the budget."""
    if not change.bits <= BUDGET.bits:
        return OverBudget(f"it may cost {change.bits:.1f} bits, more than {BUDGET.bits:g}")
    if not change.top <= BUDGET.top:
        return OverBudget(
            f"{dtype} would overflow {change.top:.0f} powers of two sooner, more than "
            f"{BUDGET.top:g}"
        )
    if not change.bottom <= BUDGET.bottom:
        return OverBudget(
            f"{dtype} would underflow {change.bottom:.0f} powers of two sooner, more than "
            f"{BUDGET.bottom:g}"
        )
    return None


@record
class Rounding:
    """What a rule may change, and when it is refused for that: a row of docs/numerics.md."""

    changes: str
    refused: str


R = TypeVar("R")
_DECLARED = "rounding"


def rounds(changes: str, refused: str) -> Callable[[R], R]:
    """Declares that a rule (a function, or a class of rules) may round otherwise than the model.

    `--exact-algorithms` leaves such rules out.
    """

    def declare(rule: R) -> R:
        setattr(rule, _DECLARED, Rounding(changes, refused))
        return rule

    return declare


def rounding_of(rule: object) -> Rounding | None:
    """What a rule declares that it may change; None if it is exact."""
    found = getattr(rule, _DECLARED, None)
    return found if isinstance(found, Rounding) else None


# -- constants ----------------------------------------------------------------------------------
def elements(e: Expr, axes: Sequence[str], editor: Editor) -> np.ndarray | None:
    """The elements of an expression of constants, in f64, which broadcast over `axes`.

    None if there are too many, or their number is symbolic.
    """
    names = index_names(e)
    size = editor.size(names) if names <= set(axes) else None
    if size is None or size > MOST_ELEMENTS:
        return None
    values: dict[str, np.ndarray] = {}
    for r in reads(e):
        c = editor.constant(r.value)
        if c is None:
            return None
        values[r.value] = c.data.array.transpose([c.axes.index(d) for d in c.out.dims])
    env = {}
    for i, d in enumerate(axes):
        if d in names:
            points = np.arange(editor.extents[d].const)
            env[d] = points.reshape([-1 if k == i else 1 for k in range(len(axes))])
    found = np.asarray(evaluate_expr(in_f64(e), env, values))
    return found.reshape((1,) * (len(axes) - found.ndim) + found.shape)


def in_f64(e: Expr) -> Expr:
    """`e`, made of literals and reads, computed in f64."""

    def leaf(x: Expr) -> Expr:
        return cast(x, DType.F64) if isinstance(x, Lit | Read) else x

    return transform(e, leaf)


def is_representable(x: np.ndarray, dtype: DType) -> bool:
    """Whether numbers are finite and, but for zeros, normal in `dtype`."""
    info = np.finfo(dtype.numpy)
    size = np.abs(x)
    return bool(np.all((size == 0) | ((size >= info.tiny) & (size <= info.max))))
