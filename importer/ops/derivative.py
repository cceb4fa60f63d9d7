"""Derivatives of scalar expressions by one of the elements that they read."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import assert_never

from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.ops.activations import add, mul, scaled, shifted, squared
from rutc.tensor_ir import Apply, BitCast, Cast, Expr, IndexValue, Lit, Read, apply, cast
from rutc.tensor_ir.expr import Local

STEPS = frozenset({"floor", "ceil", "round", "sign"})
"""Operators that are constant between their steps: their derivative is 0."""


def derivative(e: Expr, by: Read) -> Expr | None:
    """The derivative of `e` by every occurrence of `by`; None where it is 0 everywhere.

    Raises:
        OperatorError: An operator on the way has no derivative.
    """
    match e:
        case Read():
            return lit(1, e.dtype) if e == by else None
        case Lit() | IndexValue() | Local() | BitCast():
            return None
        case Cast():
            inner = derivative(e.arg, by) if e.dtype.is_float else None
            return None if inner is None else cast(inner, e.dtype)
        case Apply():
            return _applied(e, by)
        case _:
            assert_never(e)


def _applied(e: Apply, by: Read) -> Expr | None:
    if not e.dtype.is_float:
        return None
    inner = [derivative(a, by) if a.dtype.is_float else None for a in e.args]
    if all(d is None for d in inner) or e.op in STEPS:
        return None
    if e.op in _UNARY:
        return mul(_UNARY[e.op](e.args[0], e), _given(inner[0], e))
    match e.op:
        case "add":
            return _sum(inner[0], inner[1])
        case "sub":
            return _sum(inner[0], None if inner[1] is None else apply("neg", inner[1]))
        case "mul":
            x, y = e.args
            return _sum(_scaled(inner[0], y), _scaled(inner[1], x))
        case "div":
            x, y = e.args
            first = None if inner[0] is None else apply("div", inner[0], y)
            if inner[1] is None:
                return first
            return _sum(first, apply("neg", apply("div", mul(e, inner[1]), y)))
        case "pow":
            x, y = e.args
            slope = mul(y, apply("pow", x, shifted(y, -1)))
            return _sum(_scaled(inner[0], slope), _scaled(inner[1], mul(e, apply("log", x))))
        case "max" | "min":
            x, y = e.args
            first = apply("ge" if e.op == "max" else "le", x, y)
            return apply("select", first, _given(inner[0], e), _given(inner[1], e))
        case "select":
            return apply("select", e.args[0], _given(inner[1], e), _given(inner[2], e))
        case _:
            raise OperatorError(f"there is no derivative of the operator {e.op!r}")


def _given(d: Expr | None, like: Expr) -> Expr:
    return lit(0, like.dtype) if d is None else d


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return b if a is None else a
    return add(a, b)


def _scaled(d: Expr | None, by: Expr) -> Expr | None:
    return None if d is None else mul(d, by)


def _inverse(e: Expr) -> Expr:
    return apply("div", lit(1, e.dtype), e)


def _root(e: Expr) -> Expr:
    return apply("sqrt", e)


def _rest(e: Expr) -> Expr:
    """1 - e * e."""
    return apply("sub", lit(1, e.dtype), squared(e))


_UNARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "neg": lambda x, y: lit(-1, x.dtype),
    "abs": lambda x, y: apply("sign", x),
    "exp": lambda x, y: y,
    "log": lambda x, y: _inverse(x),
    "sqrt": lambda x, y: apply("div", lit(0.5, x.dtype), y),
    "sin": lambda x, y: apply("cos", x),
    "cos": lambda x, y: apply("neg", apply("sin", x)),
    "tan": lambda x, y: shifted(squared(y), 1),
    "asin": lambda x, y: _inverse(_root(_rest(x))),
    "acos": lambda x, y: apply("neg", _inverse(_root(_rest(x)))),
    "atan": lambda x, y: _inverse(shifted(squared(x), 1)),
    "sinh": lambda x, y: apply("cosh", x),
    "cosh": lambda x, y: apply("sinh", x),
    "tanh": lambda x, y: _rest(y),
    "asinh": lambda x, y: _inverse(_root(shifted(squared(x), 1))),
    "acosh": lambda x, y: _inverse(_root(shifted(squared(x), -1))),
    "atanh": lambda x, y: _inverse(_rest(x)),
    "erf": lambda x, y: scaled(apply("exp", apply("neg", squared(x))), 2 / sqrt(pi)),
}
"""(operand, result) -> the derivative."""
