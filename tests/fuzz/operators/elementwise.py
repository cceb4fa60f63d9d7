"""Operators that compute every element by itself, and broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Refused, maker


@maker(
    """
    Relu Abs Neg Identity Sqrt Exp Log Sigmoid Tanh Floor Ceil Round Sign Reciprocal Erf Not
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Softplus Softsign HardSwish Mish
    IsNaN BitwiseNot
    """
)
def unary(b: Build, op: str) -> None:
    b.node(op, [b.pick(b.types(op))])


ATTRIBUTES = {
    "Celu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "Shrink": ("bias", "lambd"),
    "Swish": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}


@maker(" ".join(ATTRIBUTES))
def parametric(b: Build, op: str) -> None:
    given: dict[str, Any] = {
        a: b.one([1.0, 0.5, 0.25, 2.0, -0.5]) for a in ATTRIBUTES[op] if b.chance(60)
    }
    b.node(op, [b.pick(b.types(op))], **given)


@maker("IsInf")
def is_inf(b: Build, op: str) -> None:
    given: dict[str, Any] = {
        f"detect_{s}": b.number(0, 1) for s in ("positive", "negative") if b.chance(40)
    }
    b.node(op, [b.pick(b.types(op))], **given)


@maker("Gelu")
def gelu(b: Build, op: str) -> None:
    b.node(op, [b.pick(b.types(op))], approximate=b.one([None, "none", "tanh"]))


@maker(
    """
    Add Mul Sub Div Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor BitwiseAnd BitwiseOr
    BitwiseXor
    """
)
def binary(b: Build, op: str) -> None:
    left = b.pick(b.types(op))
    operands = [left, b.spread(left)]
    b.node(op, operands[::-1] if b.chance(30) else operands)


@maker("PRelu")
def prelu(b: Build, op: str) -> None:
    x = b.pick(b.types(op))
    shape = [1 if b.chance(40) else e for e in x.shape]
    b.node(op, [x, b.like(x, shape[b.number(0, len(shape)) :])])


@maker("Mod")
def mod(b: Build, op: str) -> None:
    left = b.pick(b.types(op))
    real = left.dtype.kind not in "iu"
    b.node(op, [left, b.spread(left)], fmod=1 if real or b.chance(40) else None)


@maker("Pow")
def power(b: Build, op: str) -> None:
    base = b.pick(b.types(op))
    same = b.chance(60)
    exponent = b.spread(base) if same and base.dtype.kind not in "iu" else None
    if exponent is None:
        kind = base.dtype if b.opset < 12 else b.dtype(b.types(op, 1))
        exponent = b.leaf(kind, base.shape[b.number(0, base.rank) :], low=0, high=3)
    b.node(op, [base, exponent])


@maker("BitShift")
def bit_shift(b: Build, op: str) -> None:
    left = b.pick(b.types(op))
    bits = 8 * left.dtype.itemsize
    by = b.spread(left, low=0, high=bits - 1) if b.chance(80) else b.spread(left)
    b.node(op, [left, by], direction=b.one(["LEFT", "RIGHT"]))


@maker("Max Min Sum Mean")
def variadic(b: Build, op: str) -> None:
    first = b.pick(b.types(op))
    b.node(op, [first, *(b.spread(first) for _ in range(b.number(0, 3)))])


@maker("Where")
def where(b: Build, op: str) -> None:
    x = b.pick(b.types(op, 1))
    y = b.spread(x)
    shape = np.broadcast_shapes(x.shape, y.shape)
    condition = b.pick(["bool"], lambda v: _fits(v.shape, shape), lambda: _thin(b, shape))
    b.node(op, [condition, x, y])


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False


def _thin(b: Build, shape: tuple[int, ...]) -> list[int]:
    return [1 if b.chance(25) else e for e in shape][b.number(0, len(shape)) :]


@maker("Clip")
def clip(b: Build, op: str) -> None:
    old = "min" in b.schema(op).attributes
    # The limits that the attributes have by default are those of single precision.
    x = b.pick(["float"] if old else b.types(op))
    if old:
        b.node(op, [x], min=b.one([None, -1.0, 0.0]), max=b.one([None, 2.0, 6.0]))
        return
    low = b.like(x, ()) if b.chance(60) else None
    high = b.like(x, ()) if b.chance(60) else None
    b.node(op, [x, low, high] if high else [x, low] if low else [x])


@maker("SwiGLU")
def swiglu(b: Build, op: str) -> None:
    x = b.pick(b.types(op))
    b.node(op, [x, b.like(x)], alpha=b.one([None, 0.5, 1.702]))


@maker("Dropout")
def dropout(b: Build, op: str) -> None:
    b.node(op, [b.pick(b.types(op))], b.number(1, 2) if b.opset >= 10 else 1)


@maker("Cast")
def cast(b: Build, op: str) -> None:
    x = b.pick([t for t in b.types(op) if t != "string"])
    b.node(op, [x], to=_target(b, op), saturate=_saturate(b, op))


@maker("CastLike")
def cast_like(b: Build, op: str) -> None:
    x = b.pick([t for t in b.types(op) if t != "string"])
    like = b.pick([t for t in b.types(op, 1) if t != "string"])
    b.node(op, [x, like], saturate=_saturate(b, op))


def _saturate(b: Build, op: str) -> int | None:
    return 0 if b.has(op, "saturate") and b.chance(20) else None


def _target(b: Build, op: str) -> int:
    from onnx import helper

    schema = b.schema(op)
    allowed = next(
        list(c.allowed_type_strs)
        for c in schema.type_constraints
        if c.type_param_str == schema.outputs[0].type_str
    )
    names = [t[7:-1] for t in allowed if t.startswith("tensor(") and "string" not in t]
    return int(helper.np_dtype_to_tensor_dtype(b.dtype([n for n in names if "6e" not in n])))


WIDTHS = {1: ("int8", "uint8"), 2: ("int16", "uint16", "float16", "bfloat16")}
WIDTHS |= {4: ("int32", "uint32", "float"), 8: ("int64", "uint64", "double")}


@maker("BitCast")
def bit_cast(b: Build, op: str) -> None:
    from onnx import helper

    x = b.pick([t for names in WIDTHS.values() for t in names])
    target: Any = dtype_named(b.one(WIDTHS[x.dtype.itemsize]))
    if target == x.dtype:
        raise Refused
    b.node(op, [x], to=int(helper.np_dtype_to_tensor_dtype(target)))
