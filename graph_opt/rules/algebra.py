"""Algebraic identities on the expressions of a node.

They are exact, infinities, NaN and the signs of zeros included (so `x*0` and `x + 0` stay for
floats, the latter as `-0 + 0` is `0`), but for powers that are a square, a quotient, a root or a
cube: these round once, the cube twice, and the root of `-0` is `-0`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import copysign, frexp, isfinite

import numpy as np

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import map_expressions
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.elements import padding, plain_coord, read_element
from rutc.tensor_ir import (
    Apply,
    BitCast,
    Cast,
    DType,
    Expr,
    Index,
    IndexValue,
    Lit,
    Local,
    Nest,
    Node,
    Read,
    Scatter,
    apply,
    cast,
)
from rutc.tensor_ir.expr import transform, walk
from rutc.tensor_ir.indices.affine import floordiv, maximum, minimum, mod
from rutc.tensor_ir.indices.comparing import compared
from rutc.tensor_ir.interpreter.evaluate import evaluate_expr

COMMUTATIVE = frozenset(
    ("add", "mul", "min", "max", "and", "or", "xor", "bitand", "bitor", "bitxor", "eq", "ne")
)
MANTISSA: Mapping[DType, int] = {
    DType.F16: 11,
    DType.BF16: 8,
    DType.F32: 24,
    DType.F64: 53,
}
"""Bits of an integer that a float type holds exactly."""


@matches("view", "elementwise", "reduction", "scatter")
def simplify_expressions(n: Node, editor: Editor) -> Result:
    """Every identity below, wherever it applies in the node.

    %y{i} = (%x[i=i] - -%z[i=i]) * 1.0         ->   %y{i} = %x[i=i] + %z[i=i]
    """
    if not isinstance(n, Nest | Scatter):
        return Reason("only nests and scatters hold expressions")
    new = map_expressions(n, lambda e: simplify(e, editor))
    if isinstance(new, Scatter):
        coords = tuple((d, plain_coord(d, c, editor)) for d, c in new.coords)
        new = new if coords == new.coords else replace(new, coords=coords)
    return Reason("no identity applies") if new is n else (new,)


def simplify(e: Expr, editor: Editor) -> Expr:
    """`e` with every identity applied, from the leaves up; `e` itself if none applies."""

    def visit(x: Expr) -> Expr:
        for _ in range(8):
            new = _step(x, editor)
            if new is None:
                return x
            x = new
        return x

    return transform(e, visit)


def _step(e: Expr, editor: Editor) -> Expr | None:
    match e:
        case Lit() | Local():
            return None
        case IndexValue():
            index = editor.simplify(e.index)
            if index.is_const:
                return Lit(index.const, DType.I64)
            return IndexValue(index) if index != e.index else None
        case Read():
            return read_element(e, editor)
        case Cast():
            return _cast(e)
        case BitCast():
            return e.arg if e.arg.dtype is e.dtype else None
        case Apply():
            if all(isinstance(a, Lit) and not a.dtype.is_opaque for a in e.args):
                return _literal(e)
            rule = _RULES.get(e.op)
            found = rule(e, editor) if rule is not None else None
            return found if found is not None else _literal_last(e)


# -- casts --------------------------------------------------------------------------------------
def is_lossless(a: DType, b: DType) -> bool:
    """Whether every value of type `a` is a value of type `b`."""
    if a is b or (a is DType.BOOL and (b.is_int or b in MANTISSA)):
        return True
    if a.is_int and b.is_int:
        return b.bits >= a.bits + (b.is_signed and not a.is_signed) and (
            b.is_signed or not a.is_signed
        )
    if a.is_int and b in MANTISSA:
        return a.bits - a.is_signed <= MANTISSA[b]
    wider = {DType.F16: (DType.F32, DType.F64), DType.BF16: (DType.F32, DType.F64)}
    return b in wider.get(a, (DType.F64,) if a is DType.F32 else ())


def _cast(e: Cast) -> Expr | None:
    inner = e.arg
    if inner.dtype is e.dtype:
        return inner
    if isinstance(inner, Lit) and not (inner.dtype.is_opaque or e.dtype.is_opaque):
        return _literal(e)
    if not isinstance(inner, Cast):
        return None
    first, middle, last = inner.arg.dtype, inner.dtype, e.dtype
    if not is_lossless(first, middle):
        return None
    # From an integer, casts to integers wrap; by way of a float they saturate.
    if first.is_int and middle.is_float and last.is_int and not is_lossless(first, last):
        return None
    return cast(inner.arg, last)


def _literal(e: Expr) -> Lit | None:
    if e.dtype.is_opaque:
        return None
    return Lit(np.asarray(evaluate_expr(e, {}, {})).item(), e.dtype)


# -- operators ----------------------------------------------------------------------------------
def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Lit) and not e.dtype.is_opaque and e.value == value


def _is_neutral(e: Expr, *, minus: bool) -> bool:
    """Whether adding `e`, or with `minus` subtracting it, changes nothing, not even a zero."""
    if not _is(e, 0):
        return False
    assert isinstance(e, Lit)
    return not e.dtype.is_float or (copysign(1.0, float(e.value)) > 0) is minus


def _number(e: Expr) -> float | None:
    return float(e.value) if isinstance(e, Lit) and not e.dtype.is_opaque else None


def _negated(e: Expr) -> Expr | None:
    return e.args[0] if isinstance(e, Apply) and e.op == "neg" else None


def _literal_last(e: Apply) -> Expr | None:
    if e.op in COMMUTATIVE and isinstance(e.args[0], Lit) and not isinstance(e.args[1], Lit):
        return Apply(e.op, (e.args[1], e.args[0]))
    return None


def _index_of(e: Expr) -> Index | None:
    """The index expression that an i64 expression is."""
    if isinstance(e, IndexValue):
        return e.index
    return Index.of(int(e.value)) if isinstance(e, Lit) and e.dtype is DType.I64 else None


def _both_indices(e: Apply) -> tuple[Index, Index] | None:
    a, b = _index_of(e.args[0]), _index_of(e.args[1])
    return None if a is None or b is None else (a, b)


def _add(e: Apply, editor: Editor) -> Expr | None:
    """`x + -0.0 -> x`, `-0.0 + x -> x`, `x + -y -> x - y`, `-x + y -> y - x`."""
    a, b = e.args
    if _is_neutral(b, minus=False):
        return a
    if _is_neutral(a, minus=False):
        return b
    pair = _both_indices(e)
    if pair is not None:
        return IndexValue(editor.simplify(pair[0] + pair[1]))
    if (minus := _negated(b)) is not None:
        return apply("sub", a, minus)
    if (minus := _negated(a)) is not None:
        return apply("sub", b, minus)
    return None


def _sub(e: Apply, editor: Editor) -> Expr | None:
    """`x - 0 -> x`, `x - -y -> x + y`, `0 - x -> -x`, `x - x -> 0` for integers."""
    a, b = e.args
    if _is_neutral(b, minus=True):
        return a
    pair = _both_indices(e)
    if pair is not None:
        return IndexValue(editor.simplify(pair[0] - pair[1]))
    if (minus := _negated(b)) is not None:
        return apply("add", a, minus)
    if _is(a, 0) and not e.dtype.is_float:
        return apply("neg", b)
    return Lit(0, e.dtype) if a == b and e.dtype.is_int else None


def _mul(e: Apply, editor: Editor) -> Expr | None:
    """`x * 1 -> x`, `x * -1 -> -x`, `x * 0 -> 0` for integers, `-x * -y -> x * y`."""
    for a, b in (e.args, e.args[::-1]):
        if _is(b, 1):
            return a
        if _is(b, -1) and e.dtype.is_signed:
            return apply("neg", a)
        if _is(b, 0) and e.dtype.is_int:
            return b
    pair = _both_indices(e)
    if pair is not None and (pair[0].is_const or pair[1].is_const):
        return IndexValue(editor.simplify(pair[0] * pair[1]))
    x, y = _negated(e.args[0]), _negated(e.args[1])
    return apply("mul", x, y) if x is not None and y is not None else None


def _div(e: Apply, editor: Editor) -> Expr | None:
    """`x / 1 -> x`, `x / 4.0 -> x * 0.25` for powers of two."""
    a, b = e.args
    if _is(b, 1):
        return a
    number = _number(b)
    if number is not None and e.dtype in (DType.F32, DType.F64) and is_exact_divisor(number):
        return apply("mul", a, Lit(1.0 / number, e.dtype))
    return _index_division(e, editor, floordiv)


def is_exact_divisor(x: float) -> bool:
    """Whether 1/x is exact and normal in f32."""
    return x != 0 and isfinite(x) and abs(frexp(x)[0]) == 0.5 and 2.0**-100 < abs(x) < 2.0**100


def _mod(e: Apply, editor: Editor) -> Expr | None:
    """`index % constant -> index`."""
    return _index_division(e, editor, mod)


def _index_division(e: Apply, editor: Editor, operator: Callable[..., Index]) -> Expr | None:
    pair = _both_indices(e)
    if pair is None or not pair[1].is_const or pair[1].const <= 0:
        return None
    bounds = pair[0].bounds(editor.ranges)
    if bounds is None or bounds[0] < 0:
        return None
    return IndexValue(operator(pair[0], pair[1], editor.ranges))


def _neg(e: Apply, editor: Editor) -> Expr | None:
    """`--x -> x`."""
    index = _index_of(e.args[0])
    return IndexValue(-index) if index is not None else _negated(e.args[0])


def _abs(e: Apply, editor: Editor) -> Expr | None:
    """`||x|| -> |x|`, `|-x| -> |x|`."""
    a = e.args[0]
    if isinstance(a, Apply) and a.op == "abs":
        return a
    minus = _negated(a)
    return apply("abs", minus) if minus is not None and e.dtype.is_float else None


def _not(e: Apply, editor: Editor) -> Expr | None:
    """`not not x -> x`."""
    a = e.args[0]
    return a.args[0] if isinstance(a, Apply) and a.op == "not" else None


def _and(e: Apply, editor: Editor) -> Expr | None:
    """`x and true -> x`, `x and false -> false`, `x and x -> x`."""
    return _logic(e, neutral=True)


def _or(e: Apply, editor: Editor) -> Expr | None:
    """`x or false -> x`, `x or true -> true`, `x or x -> x`."""
    return _logic(e, neutral=False)


def _logic(e: Apply, *, neutral: bool) -> Expr | None:
    for a, b in (e.args, e.args[::-1]):
        if isinstance(b, Lit):
            return a if b.value is neutral else b
    return e.args[0] if e.args[0] == e.args[1] else None


def _extreme(e: Apply, editor: Editor) -> Expr | None:
    """max(x, x) -> x; and of two indices the one that the ranges decide."""
    a, b = e.args
    if a == b:
        return a
    pair = _both_indices(e)
    if pair is None:
        return None
    index = (minimum if e.op == "min" else maximum)(*pair, editor.ranges)
    return IndexValue(index) if index in pair else None


def _select(e: Apply, editor: Editor) -> Expr | None:
    """select(true, a, b) -> a;  select(c, a, a) -> a;  select(not c, a, b) -> select(c, b, a).

    So is a choice between a read and its fill the read, where the other is outside of its value.
    """
    c, a, b = e.args
    if isinstance(c, Lit):
        return a if c.value else b
    if a == b:
        return a
    if isinstance(c, Apply) and c.op == "not":
        return Apply("select", (c.args[0], b, a))
    return padding(e, editor)


def _compare(e: Apply, editor: Editor) -> Expr | None:
    """`i < 8 -> true` where i is a dim of extent 8; and so on."""
    pair = _both_indices(e)
    bounds = (pair[0] - pair[1]).bounds(editor.ranges) if pair is not None else None
    decided = None if bounds is None else compared(e.op, bounds, 0)
    return None if decided is None else Lit(decided, DType.BOOL)


def _pow(e: Apply, editor: Editor) -> Expr | None:
    """`x^1 -> x`, `x^0 -> 1`, `x^2 -> x*x`, `x^3 -> x*x*x`, `x^-1 -> 1/x`, `x^0.5 -> sqrt(x)`.

    The last for x >= 0 only: sqrt(-inf) is NaN, but (-inf)^0.5 is +inf.
    """
    x, exponent = e.args[0], _number(e.args[1])
    if exponent == 1:
        return x
    if exponent == 0:
        return Lit(1.0 if e.dtype.is_float else 1, e.dtype)
    if exponent == 0.5 and is_non_negative(x, editor):
        return apply("sqrt", x)
    if exponent == -1 and e.dtype.is_float:
        return apply("div", Lit(1.0, e.dtype), x)
    if sum(1 for _ in walk(x)) > 2:
        return None  # x would be computed several times
    square = apply("mul", x, x)
    if exponent == 2:
        return square
    return apply("mul", square, x) if exponent == 3 else None


def is_non_negative(e: Expr, editor: Editor, depth: int = 8) -> bool:
    """Whether `e` is NaN or at least 0, as far as its form tells."""
    if depth == 0 or not e.dtype.is_float:
        return False
    match e:
        case Lit(value):
            return not isinstance(value, str) and value >= 0
        case Apply(op="div", args=(a, Lit(divisor))):
            positive = not isinstance(divisor, str) and divisor > 0
            return positive and is_non_negative(a, editor, depth - 1)
        case Apply(op="abs" | "exp" | "sqrt"):
            return True
        case Apply(op="mul", args=(a, b)) if a == b:
            return True
        case Apply(op="max", args=args):
            return any(is_non_negative(a, editor, depth - 1) for a in args)
        case Apply(op="add" | "mul" | "min", args=args):
            return all(is_non_negative(a, editor, depth - 1) for a in args)
        case Cast(arg, dtype) if arg.dtype.is_float and dtype.is_float:
            return is_non_negative(arg, editor, depth - 1)
        case Read(value, fill=fill):
            n = editor.nest(value)
            return (
                n is not None
                and (n.reducer is None or n.reducer.name == "sum")
                and (fill is None or is_non_negative(fill, editor))
                and is_non_negative(n.body[0], editor, depth - 1)
            )
        case _:
            return False


_RULES: Mapping[str, Callable[[Apply, Editor], Expr | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "neg": _neg,
    "abs": _abs,
    "not": _not,
    "and": _and,
    "or": _or,
    "min": _extreme,
    "max": _extreme,
    "select": _select,
    "pow": _pow,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _compare),
}
