"""Scales and shifts by constants around one read, and what joining such steps costs.

    (x - m) / d * g + b        x; shift by -m; divide by d; scale by g; shift by b

Neighbouring scales become one factor. Shifts stay where they are: what the model takes off first,
it means to be gone before the rest rounds. Only behind a sum of products, which rounds relative to
its terms already, may a shift move behind a scale: `(x - m) * s + b` is `x*s + (b - m*s)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import is_plain
from rutc.graph_opt.rounding import elements, in_f64, is_representable
from rutc.graph_opt.sum_weights import WIDE
from rutc.tensor_ir import Apply, Cast, DType, Expr, Lit, Read, apply, cast
from rutc.tensor_ir.expr import index_names, walk


@record
class Step:
    """One operation with a constant: `add`, `mul` or `div`."""

    op: str
    by: Expr


@record
class Affine:
    """A read and what is done to it, in order."""

    x: Read
    steps: tuple[Step, ...] = ()

    @property
    def operations(self) -> int:
        """How many operations it takes once the constants are known.

        A change of sign is one with the shift that follows it, if one does.
        """
        pairs = pairwise(self.steps)
        return len(self.steps) - sum(_is_sign(s) and after.op == "add" for s, after in pairs)


def follow(x: Expr, steps: Sequence[Step]) -> Expr:
    """`x` after some steps."""
    for s in steps:
        x = _after(x, s)
    return x


def _after(x: Expr, s: Step) -> Expr:
    match s, x:
        case Step("mul"), _ if _is_sign(s):
            return apply("neg", x)
        case Step("add", by), Apply("neg", (positive,)):
            return apply("sub", by, positive)
        case Step("add", Apply("neg", (by,))), _:
            return apply("sub", x, by)
        case Step("add", Lit(float() as by)), _ if by < 0:
            return apply("sub", x, Lit(-by, x.dtype))
        case _:
            return apply(s.op, x, s.by)


def _is_sign(s: Step) -> bool:
    return s.op == "mul" and isinstance(s.by, Lit) and s.by.value == -1


# -- recognition --------------------------------------------------------------------------------
def affine_of(e: Expr, editor: Editor) -> Affine | None:
    """`e` as steps with constants from one read that is not constant."""
    match e:
        case Read():
            return Affine(e) if is_plain(e) and editor.constant(e.value) is None else None
        case Apply(op="neg", args=(x,)) if e.dtype in WIDE:
            return _then(x, editor, Step("mul", Lit(-1.0, e.dtype)))
        case Apply(op="add" | "mul", args=(c, x)) if is_constant(c, editor):
            return _then(x, editor, Step(e.op, c))
        case Apply(op="add" | "mul" | "div", args=(x, c)) if is_constant(c, editor):
            return _then(x, editor, Step(e.op, c))
        case Apply(op="sub", args=(x, c)) if is_constant(c, editor):
            return _then(x, editor, Step("add", negated(c)))
        case Apply(op="sub", args=(c, x)) if is_constant(c, editor):
            return _then(x, editor, Step("mul", Lit(-1.0, e.dtype)), Step("add", c))
        case _:
            return None


def _then(x: Expr, editor: Editor, *steps: Step) -> Affine | None:
    before = affine_of(x, editor)
    return None if before is None else Affine(before.x, before.steps + steps)


def is_constant(e: Expr, editor: Editor) -> bool:
    """Whether `e` is made of literals and constants at affine coordinates."""
    # Most are literals or reads.
    parts = (e,) if isinstance(e, Lit | Read) else walk(e)
    return e.dtype in WIDE and all(_is_known(x, editor) for x in parts)


def _is_known(x: Expr, editor: Editor) -> bool:
    """Whether an operation, by itself, or an operand is that of a constant."""
    match x:
        case Lit() | Apply():
            return True
        case Cast(arg):
            return arg.dtype in WIDE
        case Read():
            return is_plain(x) and editor.constant(x.value) is not None
        case _:
            return False


def negated(e: Expr) -> Expr:
    """-e."""
    return (
        Lit(-e.value, e.dtype)
        if isinstance(e, Lit) and not isinstance(e.value, str)
        else apply("neg", e)
    )


# -- joining ------------------------------------------------------------------------------------
def joined_scales(steps: Sequence[Step], editor: Editor) -> tuple[Step, ...]:
    """The steps with neighbouring scales as one, where that is a normal number.

    The factor is computed in f64 and rounded once, so that it costs no more than the steps did.
    As there are fewer products on the way, none leaves the range of exponents that did not before.
    """
    done: list[Step] = []
    for s in steps:
        last = done[-1] if done else None
        factor = _product(last, s, editor) if last is not None else None
        if factor is not None:
            done[-1] = factor
        else:
            done.append(s)
    return tuple(done)


def factor_of(s: Step, editor: Editor) -> Expr | None:
    """The factor that a scale multiplies by; None for a shift, or where it is no normal number."""
    if s.op == "add":
        return None
    if s.op == "mul":
        return s.by
    one = apply("div", Lit(1.0, DType.F64), in_f64(s.by))
    return cast(one, s.by.dtype) if _is_normal(one, s.by.dtype, editor) else None


def _product(a: Step, b: Step, editor: Editor) -> Step | None:
    if "add" in (a.op, b.op):
        return None
    left, right, dtype = in_f64(_whole(a.by)), in_f64(_whole(b.by)), a.by.dtype
    if a.op == "div" and b.op == "div":
        left = apply("div", Lit(1.0, DType.F64), left)
    elif a.op == "div":
        left, right, b = right, left, a
    product = apply(b.op, left, right)
    if not _is_normal(product, dtype, editor):
        return None
    return Step("mul", cast(product, dtype))


def _whole(e: Expr) -> Expr:
    """What a factor was before it was rounded."""
    return e.arg if isinstance(e, Cast) else e


def _is_normal(e: Expr, dtype: DType, editor: Editor) -> bool:
    found = elements(e, sorted(index_names(e)), editor)
    return found is not None and is_representable(found, dtype)


def scale_and_shift(a: Affine) -> tuple[Expr | None, Expr | None]:
    """What the steps multiply by, and then add; computed in f64 and rounded once."""
    scale: Expr | None = None
    shift: Expr | None = None
    for s in a.steps:
        by = in_f64(_whole(s.by))
        if s.op == "add":
            shift = by if shift is None else apply("add", shift, by)
            continue
        if scale is None:
            scale = by if s.op == "mul" else apply("div", Lit(1.0, DType.F64), by)
        else:
            scale = apply(s.op, scale, by)
        shift = None if shift is None else apply(s.op, shift, by)
    return _rounded(scale, a.x.dtype), _rounded(shift, a.x.dtype)


def slope_and_offset(
    steps: Sequence[Step], axes: Sequence[str], editor: Editor
) -> tuple[np.ndarray, np.ndarray] | None:
    """What the steps multiply by, and the largest shift before the last step, in units of `x`.

    Arrays that broadcast over `axes`. None where the constants are too many to look at.
    """
    slope, at = np.ones((1,) * len(axes)), np.zeros((1,) * len(axes))
    offset = at
    for s in steps:
        by = elements(s.by, axes, editor)
        if by is None:
            return None
        with np.errstate(all="ignore"):
            offset = np.maximum(offset, np.where(slope == 0, 0.0, np.abs(at / slope)))
            if s.op == "add":
                at = at + by
            else:
                factor = by if s.op == "mul" else 1.0 / by
                slope, at = slope * factor, at * factor
    # What is scaled by 0 is the last shift, however large the others are.
    return slope, np.where(slope == 0, 0.0, offset)


def _rounded(e: Expr | None, dtype: DType) -> Expr | None:
    """`e` in a type; a step's own constant as it is."""
    match e:
        case None:
            return None
        case Cast(Read() | Lit() as own, _) if own.dtype is dtype:
            return own
        case _:
            return cast(e, dtype)
