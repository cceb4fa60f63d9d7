"""Operators of com.microsoft on quantised tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Val, maker
from tests.fuzz.operators.products import length
from tests.fuzz.operators.windows import window
from tests.fuzz.rules import CONTRIB

UNTIED = {"low": -1.13, "high": 1.71}
"""Bounds of numbers that are quantised by their range, between whose steps none lies."""
STEPS = (0.5, 0.25, 1.0, 0.0123)
put = partial(Build.node, domain=CONTRIB)


def eight_bits(b: Build) -> np.dtype:
    """A type of quantised numbers."""
    return np.dtype(b.one([np.uint8, np.int8]))


def scale(b: Build, kind: np.dtype) -> list[Val]:
    """A scale and a zero point."""
    return [b.given(np.array(b.one(STEPS), np.float32)), b.leaf(kind, ())]


@maker("QLinearAdd QLinearMul", CONTRIB)
def binary(b: Build, op: str) -> None:
    kind = eight_bits(b)
    x = b.leaf(kind, b.shape(0, 3))
    y = b.spread(x)
    put(b, op, [x, *scale(b, kind), y, *scale(b, kind), *scale(b, kind)])


@maker("QLinearSigmoid QLinearLeakyRelu QLinearSoftmax", CONTRIB)
def unary(b: Build, op: str) -> None:
    kind = eight_bits(b)
    x = b.leaf(kind, b.shape(1, 3))
    given: dict[str, Any] = {}
    if op == "QLinearLeakyRelu":
        given = {"alpha": b.one([0.01, 0.5])}
    if op == "QLinearSoftmax":
        given = {"axis": b.axis(x.rank), "opset": b.one([13, 12])}
    put(b, op, [x, *scale(b, kind), *scale(b, kind)], **given)


@maker("QLinearConcat", CONTRIB)
def concat(b: Build, op: str) -> None:
    kind = eight_bits(b)
    shape = list(b.shape(1, 3))
    axis = b.axis(len(shape))
    parts: list[Val] = []
    for _ in range(b.number(1, 3)):
        shape[axis] = b.one([2, 1, 5])
        parts += [b.leaf(kind, shape), *scale(b, kind)]
    put(b, op, [*scale(b, kind), *parts], axis=axis)


@maker("QLinearWhere", CONTRIB)
def where(b: Build, op: str) -> None:
    kind = eight_bits(b)
    x = b.leaf(kind, b.shape(0, 3))
    condition = b.leaf(np.dtype(bool), x.shape[b.number(0, x.rank) :])
    put(b, op, [condition, x, *scale(b, kind), b.spread(x), *scale(b, kind), *scale(b, kind)])


@maker("QLinearAveragePool QLinearGlobalAveragePool", CONTRIB)
def average_pool(b: Build, op: str) -> None:
    kind = eight_bits(b)
    attrs, extents = window(b, 2, dilated=False)
    last = b.number(0, 1)
    batch, channels = b.one([1, 2]), b.one([1, 3, 17])
    x = b.leaf(kind, [batch, *extents, channels] if last else [batch, channels, *extents])
    if op == "QLinearGlobalAveragePool":
        attrs = {}
    elif b.chance(30):
        attrs["count_include_pad"] = 1
    put(b, op, [x, *scale(b, kind), *scale(b, kind)], channels_last=last, **attrs)


@maker("QLinearReduceMean", CONTRIB)
def reduce_mean(b: Build, op: str) -> None:
    kind = eight_bits(b)
    x = b.leaf(kind, [max(1, e) for e in b.shape(1, 3)])
    axes = sorted({b.axis(x.rank) % x.rank for _ in range(b.number(1, 2))})
    put(b, op, [x, *scale(b, kind), *scale(b, kind)], axes=axes, keepdims=b.number(0, 1))


@maker("QLinearConv", CONTRIB)
def conv(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    kind, last = eight_bits(b), b.number(0, 1)
    batch, ins, outs = b.one([1, 2]), b.one([1, 2, 3]), b.one([1, 2, 5])
    x = b.leaf(kind, [batch, *extents, ins] if last else [batch, ins, *extents])
    w = b.leaf(kind, [outs, ins, *attrs["kernel_shape"]])
    bias = [b.leaf(np.dtype(np.int32), [outs])] if b.chance(40) else []
    operands = [x, *scale(b, kind), w, *scale(b, kind), *scale(b, kind), *bias]
    put(b, op, operands, channels_last=last, **attrs)


@maker("QuantizeLinear DequantizeLinear", CONTRIB)
def quantize(b: Build, op: str) -> None:
    kind = np.dtype(b.one([np.uint8, np.int8, np.uint16, np.int16]))
    shape = b.shape(1, 3)
    axis = b.number(0, len(shape) - 1)
    per = [shape[axis]] if b.chance(40) else []
    steps = b.given(np.array([b.one(STEPS) for _ in range(sum(per))] or STEPS[0], np.float32))
    if bool(per) != bool(steps.shape):
        steps = b.given(np.full(per, STEPS[0], np.float32))
    x = b.leaf(np.dtype(np.float32) if op == "QuantizeLinear" else kind, shape)
    put(b, op, [x, steps, b.leaf(kind, per)], axis=axis)


@maker("MatMulIntegerToFloat DynamicQuantizeMatMul", CONTRIB)
def to_float(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    w = b.leaf(eight_bits(b), [inner, columns])
    per = [columns] if b.chance(40) and columns else []
    steps = b.leaf(np.dtype(np.float32), per, low=0.01, high=1)
    zero = b.leaf(w.dtype, per) if b.chance(60) else None
    bias = b.leaf(np.dtype(np.float32), [columns]) if b.chance(40) else None
    if op == "DynamicQuantizeMatMul":
        x = b.leaf(np.dtype(np.float32), [rows, inner], **UNTIED)
        operands = [x, w, steps, zero, bias]
    else:
        x = b.leaf(eight_bits(b), [*b.shape(0, 1), rows, inner])
        step = b.given(np.array(b.one(STEPS), np.float32))
        x_zero = b.leaf(x.dtype, []) if b.chance(60) else None
        operands = [x, w, step, steps, x_zero, zero, bias]
    put(b, op, operands)


@maker("QGemm", CONTRIB)
def gemm(b: Build, op: str) -> None:
    rows, inner, columns = (max(1, length(b)) for _ in range(3))
    left, right = b.number(0, 1), b.number(0, 1)
    kinds = [eight_bits(b), eight_bits(b)]
    x = b.leaf(kinds[0], [inner, rows] if left else [rows, inner])
    w = b.leaf(kinds[1], [columns, inner] if right else [inner, columns])
    operands: list[Val | None] = [x, *scale(b, kinds[0]), w, *scale(b, kinds[1])]
    operands.append(b.leaf(np.dtype(np.int32), [columns]) if b.chance(50) else None)
    if b.chance(60):
        operands += scale(b, kinds[0])
    while operands[-1] is None:
        operands.pop()
    put(b, op, operands, transA=left, transB=right, alpha=b.one([1.0, 0.5]))


@maker("MatMulNBits", CONTRIB)
def matmul_n_bits(b: Build, op: str) -> None:
    bits, block = b.one([4, 8, 2]), b.one([16, 32, 64])
    inner, columns = b.one([16, 32, 40, 64, 7, 128]), b.one([3, 1, 8, 17, 33])
    blocks = -(-inner // block)
    x = b.leaf(b.dtype(["float", "float16"]), [*b.shape(0, 1), b.one([2, 1, 5]), inner])
    random = np.random.default_rng(b.number(0, 1 << 16))
    packed = random.integers(0, 256, [columns, blocks, block * bits // 8])
    w = b.given(packed.astype(np.uint8), fixed=b.chance(80))
    steps = b.leaf(x.dtype, [columns * blocks], low=-1, high=1, fixed=b.chance(80))
    operands: list[Val | None] = [x, w, steps, None, None]
    if b.chance(50):
        width = -(-blocks * bits // 8)
        zeros = random.integers(0, 256, [columns * width]).astype(np.uint8)
        operands[3] = b.given(zeros, fixed=b.chance(80))
    if b.chance(40):
        operands.append(b.leaf(x.dtype, [columns]))
    while operands[-1] is None:
        operands.pop()
    level = b.one([0, 4])
    put(b, op, operands, K=inner, N=columns, bits=bits, block_size=block, accuracy_level=level)


@maker("GatherBlockQuantized", CONTRIB)
def gather_block(b: Build, op: str) -> None:
    rows, width, block = b.one([3, 5]), b.one([16, 32, 48]), b.one([16, 32])
    blocks = -(-width // block)
    bits = b.one([4, 8])
    random = np.random.default_rng(b.number(0, 1 << 16))
    table = random.integers(0, 256, [rows, width * bits // 8]).astype(np.uint8)
    at = b.leaf(np.dtype(np.int64), b.shape(0, 2), low=-rows, high=rows - 1)
    steps = b.leaf(np.dtype(np.float32), [rows, blocks], low=-1, high=1)
    operands = [b.given(table), at, steps]
    if b.chance(50):
        zeros = random.integers(0, 256, [rows, -(-blocks * bits // 8)]).astype(np.uint8)
        operands.append(b.given(zeros))
    put(b, op, operands, bits=bits, block_size=block, gather_axis=0, quantize_axis=1)


@maker("DynamicQuantizeLSTM", CONTRIB)
def lstm(b: Build, op: str) -> None:
    direction = b.one(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = b.one([2, 1, 5]), b.one([1, 3]), b.one([3, 8]), b.one([2, 4])
    kind = np.dtype(np.float32)
    x = b.leaf(kind, [steps, batch, width], **UNTIED)
    weights = [b.leaf(eight_bits(b), [ways, n, 4 * hidden], fixed=True) for n in (width, hidden)]
    bias = b.leaf(kind, [ways, 8 * hidden]) if b.chance(50) else None
    start = [b.leaf(kind, [ways, batch, hidden], **UNTIED) if b.chance(40) else None for _ in "hc"]
    ends: list[Val] = []
    for w in weights:
        shape = b.one([[ways], [ways, 4 * hidden]])
        ends += [b.leaf(kind, shape, low=0.01, high=0.1, fixed=True)]
        ends += [b.leaf(w.dtype, shape, fixed=True)]
    operands = [x, *weights, bias, None, *start, None, *ends]
    put(b, op, operands, b.number(1, 3), hidden_size=hidden, direction=direction)


@maker("QAttention", CONTRIB)
def attention(b: Build, op: str) -> None:
    batch, steps, heads, size = b.one([1, 2]), b.one([3, 1]), b.one([1, 2]), b.one([4, 8])
    kind = eight_bits(b)
    width, hidden = b.one([4, 8]), heads * size
    x = b.leaf(kind, [batch, steps, width])
    w = b.leaf(eight_bits(b), [width, 3 * hidden])
    bias = b.leaf(np.dtype(np.float32), [3 * hidden])
    scales = [b.leaf(np.dtype(np.float32), [], low=0.01, high=0.2) for _ in "xw"]
    mask = None
    if b.chance(40):
        mask = b.leaf(np.dtype(np.int32), [batch], low=1, high=steps)
    zeros = [b.leaf(x.dtype, []), b.leaf(w.dtype, [])] if b.chance(60) else []
    operands = [x, w, bias, *scales, mask, *zeros]
    if not zeros and mask is None:
        operands.pop()
    put(b, op, operands, num_heads=heads, unidirectional=b.one([None, 1]))
