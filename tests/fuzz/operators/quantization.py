"""Quantised tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Val, maker

STEPS = (0.5, 1.0, 0.25, 2.0, 0.0123)
EXACT_STEPS = (0.5, 1.0, 0.25, 2.0)
"""Steps that sums of products round nothing by: what lies between two steps is the same for all."""
TAME = {"low": -9, "high": 9}
"""Bounds of numbers that are quantised."""
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


def _weights(b: Build, shape: list[int], axis: int) -> Val:
    """Real numbers that are constants of 8 bits in the model, extremes among them."""
    kind = np.dtype(b.one([np.int8, np.uint8]))
    info = np.iinfo(kind)
    random = np.random.default_rng(b.number(0, 1 << 16))
    ends = [info.min, info.max] if b.chance(30) else range(info.min, info.max + 1)
    per = [shape[axis]] if b.opset >= 13 and b.chance(50) else []
    zero = random.choice([0, 0, 1, info.min, info.max], per)
    made = [random.choice(ends, shape), random.choice(EXACT_STEPS, per), zero]
    kinds = [kind, np.dtype(np.float32), kind]
    operands = [b.given(np.asarray(a, k), fixed=True) for a, k in zip(made, kinds, strict=True)]
    return b.node("DequantizeLinear", operands, **({"axis": axis} if per else {}))[0]


def _quantized(b: Build, x: Val) -> tuple[Val, list[Val]]:
    """What 8 bits hold of a value, and the constant scale and zero point of that."""
    kind = np.dtype(b.one([np.uint8, np.int8]))
    zeros = [0, 1, 100, np.iinfo(kind).min, np.iinfo(kind).max]
    steps = [np.array(b.one(EXACT_STEPS), np.float32), np.array(b.one(zeros), kind)]
    given = [b.given(a, fixed=True) for a in steps]
    return b.node("QuantizeLinear", [x, *given])[0], given


def _tame(v: Val) -> bool:
    """Whether a value is of no more than so many steps in every run."""
    return all(isinstance(r, np.ndarray) and bool((np.abs(r) < 1 << 16).all()) for r in v.runs)


def layers(b: Build) -> None:
    """A few layers as quantised models have them, with 8 bits before and behind each."""
    kind = np.dtype(np.float32)
    # What 8 bits hold of infinity is open, and so would be all that follows.
    found = [v for v in b.values if v.is_tensor and v.dtype == kind and v.rank > 1 and _tame(v)]
    x = b.one(found) if found and b.chance(50) else b.leaf(kind, b.shape(2, 4), **TAME)
    for _ in range(b.number(1, 3)):
        stored, given = _quantized(b, x)
        x = b.node("DequantizeLinear", [stored, *given])[0]
        others = [b.given(np.array(b.one(EXACT_STEPS), np.float32), fixed=True), given[1]]
        windows = [max(1, min(e, b.one([2, 1, 3]))) for e in x.shape[2:]]
        choices = ["MatMul", "Relu", "Add", "Concat", "Transpose"]
        choices += ["Conv", "MaxPool"] * 2 * (x.rank in (3, 4)) + ["Gram"] * (x.rank == 2)
        op = b.one(choices)
        if op == "MatMul":
            x = b.node(op, [x, _weights(b, [x.shape[-1], b.one([3, 1, 17])], 1)])[0]
        elif op == "Gram":
            x = b.node("MatMul", [x, b.node("Transpose", [x])[0]])[0]
        elif op == "Conv":
            w = _weights(b, [b.one([3, 1, 16]), x.shape[1], *windows], 0)
            bias = [b.leaf(kind, [w.shape[0]], fixed=True, **TAME)] if b.chance(50) else []
            x = b.node(op, [x, w, *bias], pads=[(e - 1) // 2 for e in windows] * 2)[0]
        elif op == "MaxPool":
            strides = [b.one([1, 2]) for _ in windows]
            x = b.node(op, [x], kernel_shape=windows, strides=strides)[0]
        elif op in ("Add", "Concat"):
            other = b.node("DequantizeLinear", [stored, *others])[0]
            x = b.node(op, [x, other], **({"axis": 1} if op == "Concat" else {}))[0]
        else:
            x = b.node(op, [x])[0]
    _quantized(b, x)


@maker("QuantizeLinear")
def quantize(b: Build, op: str) -> None:
    if b.chance(40):
        layers(b)
        return
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
