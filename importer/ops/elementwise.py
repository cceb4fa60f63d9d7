"""Operators that compute each output element from the operands' elements at its place."""

from __future__ import annotations

import ml_dtypes

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import FEW, OperatorError, lit
from rutc.importer.building.tensor import Item, Tensor
from rutc.importer.free_sizes.float_sizes import float_size
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import BitCast, DType, Expr, IndexValue, apply, cast
from rutc.tensor_ir.expr import UNARY_FLOAT

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitnot",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "neg",
    "Not": "not",
    "Round": "round",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "and",
    "BitwiseAnd": "bitand",
    "BitwiseOr": "bitor",
    "BitwiseXor": "bitxor",
    "Div": "div",
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "Mul": "mul",
    "Or": "or",
    "Sub": "sub",
    "Xor": "xor",
}


def _register_unary(name: str, op: str) -> None:
    @operator(name)
    def unary(b: Builder, x: Tensor) -> Tensor:
        return b.map(lambda e: _applied(op, e), x)


def _applied(op: str, e: Expr) -> Expr:
    if op in UNARY_FLOAT and not e.dtype.is_float:
        return cast(apply(op, cast(e, DType.F32)), e.dtype)
    return apply(op, e)


def _register_binary(name: str, op: str) -> None:
    @operator(name)
    def binary(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        if x.dtype is not y.dtype:
            raise OperatorError(f"the operands' types differ: {x.dtype} and {y.dtype}")
        return b.map(lambda p, q: apply(op, p, q), x, y)


for _name, _op in _UNARY.items():
    _register_unary(_name, _op)
for _name, _op in _BINARY.items():
    _register_binary(_name, _op)


@operator("Identity")
def identity(b: Builder, x: Item) -> Item:
    """The operand."""
    return x


@operator("Reciprocal")
def reciprocal(b: Builder, x: Tensor) -> Tensor:
    """1 / x."""
    return b.map(lambda e: apply("div", lit(1, e.dtype), e), x)


def _fold(b: Builder, op: str, xs: tuple[Tensor, ...]) -> Tensor:
    """The operands combined one after the other, a few of them in a nest."""

    def chain(first: Expr, *rest: Expr) -> Expr:
        total = first
        for r in rest:
            total = apply(op, total, r)
        return total

    total, left = xs[0], xs[1:]
    while left:
        total, left = b.map(chain, total, *left[:FEW]), left[FEW:]
    return total


@operator("Max")
def maximum(b: Builder, first: Tensor, *rest: Tensor) -> Tensor:
    """The largest operand, NaN where one is NaN."""
    return _fold(b, "max", (first, *rest))


@operator("Min")
def minimum(b: Builder, first: Tensor, *rest: Tensor) -> Tensor:
    """The smallest operand, NaN where one is NaN."""
    return _fold(b, "min", (first, *rest))


@operator("Sum")
def sum_of(b: Builder, first: Tensor, *rest: Tensor) -> Tensor:
    """The operands' sum."""
    return _fold(b, "add", (first, *rest))


@operator("Mean")
def mean_of(b: Builder, first: Tensor, *rest: Tensor) -> Tensor:
    """The operands' mean."""
    total = _fold(b, "add", (first, *rest))
    count = len(rest) + 1
    return total if count == 1 else b.map(lambda e: apply("div", e, lit(count, e.dtype)), total)


@operator("Mod")
def mod(b: Builder, x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder, of the divisor's sign, or with `fmod` of the dividend's."""
    op = "fmod" if fmod else "mod"
    return b.map(lambda p, q: apply(op, p, q), x, y)


@operator("Pow")
def power(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """`x` ** y in x's type, raised in the type that holds both operands."""
    kind = x.dtype
    work = _power_type(kind, y)

    def fn(p: Expr, q: Expr) -> Expr:
        return cast(apply("pow", cast(p, work), cast(q, work)), kind)

    return b.map(fn, x, y)


def _power_type(kind: DType, y: Tensor) -> DType:
    """The type in which a base of type `kind` is raised to the power y."""
    if y.dtype.is_int:
        if not kind.is_float:
            return DType.I64 if y.dtype is not kind else kind
        # f32 does not tell a large odd exponent from an even one.
        exact = y.dtype.bits <= 16 or y.array is not None
        return kind.computing if exact else DType.F64
    if kind.is_float and DType.F64 not in (kind, y.dtype):
        return DType.F32
    return DType.F64


@operator("BitShift")
def bit_shift(b: Builder, x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """`x` shifted by y bits to the LEFT or the RIGHT."""
    if direction not in ("LEFT", "RIGHT"):
        raise OperatorError(f"direction {direction!r} is unknown")
    op = "shl" if direction == "LEFT" else "shr"
    return b.map(lambda p, q: apply(op, p, q), x, y)


@operator("Where")
def where(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`x` where the condition holds, else y."""
    return b.map(lambda c, p, q: apply("select", c, p, q), condition, x, y)


@operator("IsInf")
def is_inf(b: Builder, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Whether an element is infinite, of the signs to detect."""

    def fn(e: Expr) -> Expr:
        found: Expr = apply("isinf", e)
        if not detect_negative:
            found = apply("and", found, apply("gt", e, lit(0, e.dtype)))
        if not detect_positive:
            found = apply("and", found, apply("lt", e, lit(0, e.dtype)))
        return found

    return b.map(fn, x)


@operator("Clip")
def clip(b: Builder, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """min(max(x, low), high)."""
    steps: list[tuple[str, Tensor]] = []
    if low is not None:
        steps.append(("max", low))
    if high is not None:
        steps.append(("min", high))
    if not steps:
        return x

    def fn(e: Expr, *limits: Expr) -> Expr:
        for (op, _), limit in zip(steps, limits, strict=True):
            e = apply(op, e, limit)
        return e

    return b.map(fn, x, *(_scalar(t) for _, t in steps))


def _scalar(t: Tensor) -> Tensor:
    if t.rank and not all(e.is_const and e.const == 1 for e in t.shape):
        raise OperatorError(f"a scalar is expected, not {t}")
    known = None if t.known is None else t.known.reshape(())
    return Tensor(t.name, t.dtype, (), known, t.units)


@operator("Cast")
def cast_to(b: Builder, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """`x` in another element type."""
    return converted(b, x, dtype_of(to), saturate=bool(saturate), round_mode=round_mode)


@operator("CastLike")
def cast_like(
    b: Builder, x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up"
) -> Tensor:
    """`x` in the target's element type."""
    return converted(b, x, target.dtype, saturate=bool(saturate), round_mode=round_mode)


def converted(
    b: Builder, x: Tensor, kind: DType, *, saturate: bool = True, round_mode: str = "up"
) -> Tensor:
    """x in another element type."""
    if x.dtype is kind:
        return x
    if DType.STRING in (x.dtype, kind):
        return _through_text(b, x, kind)
    size = float_size(b, x, kind)
    if size is not None:
        return b.constant(size, kind)
    return b.map(lambda e: conversion(e, kind, saturate=saturate, round_mode=round_mode), x)


def conversion(e: Expr, kind: DType, *, saturate: bool = True, round_mode: str = "up") -> Expr:
    """A number as another type, as ONNX defines it for narrow types.

    A float becomes a narrow integer through i32, of which the low bits stay; a number becomes an
    8-bit float clamped to the largest finite one, or without `saturate` infinite or NaN.
    `round_mode` is how it becomes a power of two (f8e8m0).
    """
    if kind is e.dtype:
        return e
    if kind is DType.F8E8M0:
        if round_mode not in ("up", "down", "nearest"):
            raise OperatorError(f"round_mode {round_mode!r} is unknown")
        return _power_of_two(cast(e, DType.F32), round_mode, saturate=saturate)
    if e.dtype.is_float and kind.is_int and kind.bits < 8:
        return cast(cast(e, DType.I32), kind)
    if kind.value.startswith("f8e") and saturate:
        work = DType.F64 if e.dtype is DType.F64 else DType.F32
        number = float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]
        low, high = lit(-number, work), lit(number, work)
        return cast(apply("min", apply("max", cast(e, work), low), high), kind)
    return cast(e, kind)


def _power_of_two(e: Expr, round_mode: str, *, saturate: bool) -> Expr:
    """The f8e8m0 of an f32's magnitude.

    The result is the exponent, one more where the mantissa asks for it. What is below or above all
    powers that the type has becomes the least or the greatest, or without `saturate` NaN.
    """

    def number(k: int) -> Expr:
        return lit(k, DType.I32)

    bits = apply("bitand", BitCast(e, DType.I32), number(0x7FFFFFFF))
    exponent = apply("shr", bits, number(23))
    mantissa = apply("bitand", bits, number(0x7FFFFF))
    subnormal = apply("eq", exponent, number(0))
    code: Expr = exponent
    if round_mode != "down":
        # The least power, 2**-127, is subnormal: its mantissa is a half.
        least, tiny = (0x400000, 0x600000) if round_mode == "nearest" else (1, 0x400001)
        enough = apply("select", subnormal, number(tiny), number(least))
        code = apply("add", exponent, cast(apply("ge", mantissa, enough), DType.I32))
    nan = apply("isnan", e)
    if saturate:
        code = apply("min", code, number(254))
    else:
        nan = apply("or", nan, apply("lt", bits, number(0x400000)))
        code = apply("min", code, number(255))
    code = apply("select", nan, number(255), code)
    return BitCast(cast(code, DType.U8), DType.F8E8M0)


def _through_text(b: Builder, x: Tensor, kind: DType) -> Tensor:
    """A number as text, or the number that a text is."""
    if kind is DType.STRING:
        x = b.whole(b.as_type(x, _wide_type(x.dtype)))
        return b.call("string_from_number", (x,), [(kind, x.axes)])[0]
    x = b.whole(x)
    wide = DType.F64 if kind is DType.BOOL else _wide_type(kind)
    y = b.call("number_from_string", (x,), [(wide, x.axes)])[0]
    return b.as_type(y, kind)


def _wide_type(kind: DType) -> DType:
    """The type in which the numbers of a type are written and read."""
    if kind in (DType.BOOL, DType.F64):
        return kind
    if kind.is_float:
        return DType.F32
    return DType.I64 if kind.is_signed else DType.U64


@operator("Trilu")
def trilu(b: Builder, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """The upper (or lower) triangle of the last two axes, 0 elsewhere; `k` shifts the diagonal."""
    if x.rank < 2:
        raise OperatorError(f"matrices are expected, not {x}")
    axes = b.axes(x.shape)
    distance = IndexValue(axes[-1].index - axes[-2].index)
    shift = lit(0, DType.I64) if k is None else b.read(_scalar(k), [])
    keep = apply("ge" if upper else "le", distance, shift)
    return b.nest(axes, apply("select", keep, b.spread(x, axes), lit(0, x.dtype)))
