"""Quantised tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Val, maker

STEPS = (0.5, 1.0, 0.25, 2.0, 0.0123)
KINDS = (
    *("uint8", "int8", "uint16", "int16", "int4", "uint4", "float8e4m3fn", "float8e5m2"),
    *("float8e4m3fnuz", "float8e5m2fnuz", "float4e2m1", "int2", "uint2"),
)


def _kinds(b: Build, op: str, operand: int) -> list[str]:
    return [k for k in KINDS if k in b.types(op, operand)]


def _scales(b: Build, x: Val, kind: np.dtype, op: str) -> tuple[Val, dict[str, Any]]:
    """Scales for the whole tensor, for each index of an axis or for blocks; what says which."""
    if b.opset >= 21 and x.rank and x.array.size and b.chance(20):
        axis, size = b.axis(x.rank), b.one([2, 1, 3, 5])
        shape = list(x.shape)
        shape[axis] = -(-shape[axis] // size)
        random = np.random.default_rng(b.number(0, 1 << 16))
        steps = b.given(random.choice(STEPS, shape).astype(kind))
        return steps, {"axis": axis, "block_size": size}
    if b.opset >= 13 and x.rank and b.chance(40):
        axis = b.axis(x.rank)
        numbers = [b.one(STEPS) for _ in range(x.shape[axis])]
        return b.given(np.array(numbers, kind)), {"axis": axis}
    return b.given(np.array(b.one(STEPS), kind)), {}


@maker("QuantizeLinear")
def quantize(b: Build, op: str) -> None:
    x = b.pick([t for t in b.types(op) if t in ("float", "float16", "bfloat16")])
    scale, given = _scales(b, x, x.dtype, op)
    kind = dtype_named(b.one(_kinds(b, op, 2)))
    zero = [b.leaf(kind, scale.shape)] if b.chance(70) else []
    if zero and kind.name.startswith("float"):
        zero = [b.given(np.zeros(scale.shape, kind))]
        if b.opset >= 19 and kind.itemsize == 1 and b.chance(40):
            given["saturate"] = 0
    if not zero and b.opset >= 21:
        given["output_dtype"] = int(helper.np_dtype_to_tensor_dtype(kind))
    b.node(op, [x, scale, *zero], **given)


@maker("DequantizeLinear")
def dequantize(b: Build, op: str) -> None:
    x = b.pick([*_kinds(b, op, 0), "int32"])
    wide = [t for t in b.types(op, 1) if t in ("float", "float16", "bfloat16")]
    scale, given = _scales(b, x, b.dtype(wide), op)
    zero = [b.leaf(x.dtype, scale.shape)] if x.dtype != np.int32 and b.chance(60) else []
    if zero and x.dtype.name.startswith("float"):
        zero = [b.given(np.zeros(scale.shape, x.dtype))]
    b.node(op, [x, scale, *zero], **given)


@maker("DynamicQuantizeLinear")
def dynamic(b: Build, op: str) -> None:
    b.node(op, [b.pick(["float"], lambda v: v.array.size > 0)], 3)
