"""Quantised tensors."""

from __future__ import annotations

import numpy as np

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Val, maker

STEPS = (0.5, 1.0, 0.25, 2.0, 0.0123)
KINDS = ("uint8", "int8", "uint16", "int16", "int4", "uint4", "float8e4m3fn", "float8e5m2")


def _kinds(b: Build, op: str, operand: int) -> list[str]:
    return [k for k in KINDS if k in b.types(op, operand)]


def _scales(b: Build, x: Val, kind: np.dtype, op: str) -> tuple[Val, int | None]:
    """Scales for the whole tensor or for each index of an axis, and that axis."""
    if b.opset >= 13 and x.rank and b.chance(40):
        axis = b.axis(x.rank)
        numbers = [b.one(STEPS) for _ in range(x.shape[axis])]
        return b.given(np.array(numbers, kind)), axis
    return b.given(np.array(b.one(STEPS), kind)), None


@maker("QuantizeLinear")
def quantize(b: Build, op: str) -> None:
    x = b.pick([t for t in b.types(op) if t in ("float", "float16", "bfloat16")])
    scale, axis = _scales(b, x, x.dtype, op)
    kind = dtype_named(b.one(_kinds(b, op, 2)))
    zero = [b.leaf(kind, scale.shape)] if b.chance(70) else []
    if zero and kind.name.startswith("float"):
        zero = [b.given(np.zeros(scale.shape, kind))]
    b.node(op, [x, scale, *zero], axis=axis)


@maker("DequantizeLinear")
def dequantize(b: Build, op: str) -> None:
    x = b.pick(_kinds(b, op, 0))
    scale, axis = _scales(b, x, np.dtype(np.float32), op)
    zero = [b.leaf(x.dtype, scale.shape)] if b.chance(60) else []
    if zero and x.dtype.name.startswith("float"):
        zero = [b.given(np.zeros(scale.shape, x.dtype))]
    b.node(op, [x, scale, *zero], axis=axis)


@maker("DynamicQuantizeLinear")
def dynamic(b: Build, op: str) -> None:
    b.node(op, [b.pick(["float"], lambda v: v.array.size > 0)], 3)
