"""Chains of layers as networks have them, of sizes that kernels tile, vectorise and filter.

The other families put single nodes on small values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tests.fuzz.graph import MOST_ELEMENTS, Build, Refused, Val, maker

CHANNELS = (3, 8, 16, 1, 5, 17, 24, 32, 40)
SIDES = (7, 8, 5, 14, 1, 15, 20, 23)
ROWS = (3, 16, 1, 5, 17, 33, 64, 70)
WIDTHS = (8, 16, 32, 1, 5, 31, 48, 64, 100)
MOST_BEFORE = 8
"""No chain begins behind more nodes than these: a case is to stay small."""
KINDS = ("float", "float", "float", "float", "double", "float16")

Layer = Callable[[Build, Val], Val]


def _smaller(extents: Sequence[int]) -> list[int]:
    """The extents, the largest halved until the elements are as few as leaves may have."""
    found = list(extents)
    while prod(found) > 4 * MOST_ELEMENTS:
        found[int(np.argmax(found))] //= 2
    return found


def _leaf(b: Build, like: Val, *extents: int, fixed: bool | None = True) -> Val:
    """A new constant of a value's type; an input if it is not `fixed`."""
    return b.leaf(like.dtype, extents, fixed=fixed, low=-1, high=1)


def _factor(b: Build, like: Val, summed: int, *extents: int, fixed: bool = True) -> Val:
    """A constant whose products, so many of which are summed, do not grow from layer to layer."""
    most = 2 / max(1, summed) ** 0.5
    return b.leaf(like.dtype, extents, fixed=fixed, low=-most, high=most)


def _width(b: Build, choices: Sequence[int], others: int) -> int:
    """One of the choices, or less: so many times `others` elements a leaf may have."""
    return max(1, min(int(b.one(choices)), 4 * MOST_ELEMENTS // max(1, others)))


def _conv(b: Build, x: Val) -> Val:
    channels, spatial = x.shape[1], x.shape[2:]
    # ONNX Runtime has 16-bit convolutions for few shapes only.
    how = b.one(["3x3", "1x1", "depthwise", "grouped", "odd"])
    kernel = {"3x3": [3, 3], "1x1": [1, 1], "odd": [b.one([5, 1, 2]), b.one([7, 3, 4])]}
    sides = kernel.get(how, [3, 3])
    groups = channels if how == "depthwise" else 1
    if how == "grouped" and channels % 2 == 0:
        groups = 2
    area = prod(sides)
    limit = max(channels // groups * area, x.shape[0] * prod(spatial))
    outs = _width(b, CHANNELS, limit)
    outs = channels if how == "depthwise" else max(groups, outs // groups * groups)
    w = _factor(b, x, channels // groups * area, outs, channels // groups, *sides)
    bias = [_leaf(b, x, outs)] if b.chance(60) else []
    strides = [b.one([1, 1, 2])] * 2
    pads = [s // 2 for s in sides] * 2
    dilations = [2, 1] if how == "odd" and b.chance(30) else [1, 1]
    if any(
        e + 2 * p < d * (s - 1) + 1
        for e, p, d, s in zip(spatial, pads, dilations, sides, strict=False)
    ):
        dilations = [1, 1]
    given = {"group": groups, "strides": strides, "pads": pads, "dilations": dilations}
    return b.node("Conv", [x, w, *bias], **given)[0]


def _pool(b: Build, x: Val) -> Val:
    op = b.one(["MaxPool", "AveragePool"])
    side = min(b.one([2, 3]), *x.shape[2:])
    pads = [b.one([0, side // 2])] * 4
    return b.node(op, [x], kernel_shape=[side] * 2, strides=[b.one([2, 1])] * 2, pads=pads)[0]


def _enlarged(b: Build, x: Val) -> Val:
    scales = b.given(np.array([1, 1, b.one([2, 1]), 2], np.float32), fixed=True)
    mode = b.one(["nearest", "linear"]) if x.dtype == np.float32 else "nearest"
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    given = asymmetric if mode == "nearest" else {}
    roi = b.given(np.zeros(0, np.float32), fixed=True) if b.opset < 13 else None
    return b.node("Resize", [x, roi, scales], mode=mode, **given)[0]


def _normalised(b: Build, x: Val) -> Val:
    channels = x.shape[1]
    parts = [_leaf(b, x, channels) for _ in range(3)]
    spread = b.leaf(x.dtype, [channels], fixed=True, low=0.1, high=3)
    return b.node("BatchNormalization", [x, *parts, spread])[0]


def _squeezed(b: Build, x: Val) -> Val:
    """Channels times a factor each, which is computed of their means."""
    mean = b.node("GlobalAveragePool", [x])[0]
    hidden = b.one([2, 4])
    small = b.node("Conv", [mean, _factor(b, x, x.shape[1], hidden, x.shape[1], 1, 1)])[0]
    small = b.node("Relu", [small])[0]
    factors = b.node("Conv", [small, _factor(b, x, hidden, x.shape[1], hidden, 1, 1)])[0]
    return b.node("Mul", [x, b.node("Sigmoid", [factors])[0]])[0]


def _activated(b: Build, x: Val) -> Val:
    op = b.one(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Swish", "HardSwish", "Erf", "Exp"])
    if op == "Swish":
        return b.node("Mul", [x, b.node("Sigmoid", [x])[0]])[0]
    if op == "Exp":
        x = b.node("Neg", [b.node("Abs", [x])[0]])[0]
    return b.node(op, [x])[0]


def _joined(b: Build, x: Val) -> Val:
    """The value with what is there of its shape, or with a new input."""
    other = b.like(x)
    op = b.one(["Add", "Mul", "Sub", "Concat", "Max"])
    if op != "Concat":
        return b.node(op, [x, other])[0]
    return b.node(op, [x, other], axis=b.axis(x.rank))[0]


def _scaled(b: Build, x: Val) -> Val:
    """The value with a number for every index of one axis, as biases and scales are."""
    axis = b.number(0, x.rank - 1)
    shape = [e if k == axis else 1 for k, e in enumerate(x.shape)]
    return b.node(b.one(["Add", "Mul"]), [x, _leaf(b, x, *shape)])[0]


def _sliced(b: Build, x: Val) -> Val:
    axis = b.number(0, x.rank - 1)
    extent = x.shape[axis]
    start, end, step = b.one([(0, extent, 2), (1, extent, 1), (extent - 1, -extent - 1, -1)])
    if extent < 2:
        return x
    lists = [b.given(np.array([n]), fixed=True) for n in (start, end, axis, step)]
    return b.node("Slice", [x, *lists])[0]


def _padded(b: Build, x: Val) -> Val:
    pads = [0] * (2 * x.rank)
    pads[x.rank - 1], pads[-1], pads[x.rank - 2] = (b.one([0, 1, 3]) for _ in range(3))
    mode = b.one(["constant", "edge"])
    return b.node("Pad", [x, b.given(np.array(pads), fixed=True)], mode=mode)[0]


def _tokens_of(b: Build, x: Val) -> Val:
    """An image as rows of channels {b, h w, c}."""
    shape = b.given(np.array([0, x.shape[1], -1]), fixed=True)
    return b.node("Transpose", [b.node("Reshape", [x, shape])[0]], perm=[0, 2, 1])[0]


def _product(b: Build, x: Val) -> Val:
    inner = x.shape[-1]
    columns = _width(b, WIDTHS, max(inner, prod(x.shape[:-1])))
    w = _factor(b, x, inner, inner, columns, fixed=b.chance(80))
    made = b.node("MatMul", [x, w])[0]
    return b.node("Add", [made, _leaf(b, x, columns)])[0] if b.chance(60) else made


def _gram(b: Build, x: Val) -> Val:
    """The products of all rows, or of all columns, with one another."""
    turned = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    other = b.node("Transpose", [x], perm=turned)[0]
    made = b.node("MatMul", [x, other] if x.shape[-2] < x.shape[-1] else [other, x])[0]
    part = b.given(np.array(1 / max(x.shape[-2:]), x.dtype), fixed=True)
    return b.node("Mul", [made, part])[0]


def _row_normalised(b: Build, x: Val) -> Val:
    op = b.one(["Softmax", "LayerNormalization", "LogSoftmax", "mean"])
    if op == "LayerNormalization" and b.opset >= 17 and x.shape[-1] > 0:
        return b.node(op, [x, *(_leaf(b, x, x.shape[-1]) for _ in "sb")], axis=-1)[0]
    if op in ("Softmax", "LogSoftmax"):
        axis = b.one([-1, -1, -2]) if b.opset >= 13 else x.rank - 1
        return b.node(op, [x], axis=axis)[0]
    if b.opset >= 18:
        mean = b.node("ReduceMean", [x, b.given(np.array([-1]), fixed=True)])[0]
    else:
        mean = b.node("ReduceMean", [x], axes=[x.rank - 1])[0]
    return b.node("Sub", [x, mean])[0]


def _attention(b: Build, x: Val) -> Val:
    """Softmax(q k^T / s) v of heads, of {b, t, c}."""
    if x.rank != 3:
        return _gram(b, x)
    heads = b.one([2, 1, 3])
    width = x.shape[-1]
    size = _width(b, [8, 5, 16], heads * max(width, prod(x.shape[:2])))
    shape = b.given(np.array([0, 0, heads, size]), fixed=True)
    parts: list[Val] = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = b.node("MatMul", [x, _factor(b, x, width, width, heads * size)])[0]
        parts.append(b.node("Transpose", [b.node("Reshape", [made, shape])[0]], perm=perm)[0])
    q, k, v = parts
    scores = b.node("MatMul", [q, k])[0]
    scores = b.node("Mul", [scores, b.given(np.array(0.125, x.dtype), fixed=True)])[0]
    if b.chance(40):
        scores = b.node("Add", [scores, _leaf(b, x, *scores.shape[-2:], fixed=None)])[0]
    weights = b.node("Softmax", [scores], axis=3)[0]
    mixed = b.node("Transpose", [b.node("MatMul", [weights, v])[0]], perm=[0, 2, 1, 3])[0]
    return b.node("Reshape", [mixed, b.given(np.array([0, 0, heads * size]), fixed=True)])[0]


def _chosen(b: Build, x: Val) -> Val:
    """Rows that data choose."""
    axis = b.number(0, x.rank - 1)
    count = min(b.one([3, 1, 17]), max(1, 4 * MOST_ELEMENTS * x.shape[axis] // x.array.size))
    at = b.leaf(np.dtype(np.int64), [count], low=-x.shape[axis], high=x.shape[axis] - 1)
    return b.node("Gather", [x, at], axis=axis)[0]


def _reduced(b: Build, x: Val) -> Val:
    op = b.one(["ReduceMax", "ReduceL2", "CumSum", "Transpose"])
    if op == "CumSum":
        axis = b.given(np.array(b.axis(x.rank)), fixed=True)
        return b.node(op, [x, axis], reverse=b.number(0, 1), exclusive=b.number(0, 1))[0]
    if op == "Transpose":
        return b.node(op, [x], perm=b.one([[1, 0, 2, 3], [0, 2, 1, 3]])[: x.rank])[0]
    axis = b.number(0, x.rank - 1)
    if b.opset >= 18:
        return b.node(op, [x, b.given(np.array([axis]), fixed=True)])[0]
    return b.node(op, [x], axes=[axis])[0]


_ANY: tuple[Layer, ...] = (_activated, _joined, _scaled, _sliced, _chosen, _reduced)
_IMAGES: tuple[Layer, ...] = (_conv, _conv, _conv, _pool, _enlarged, _normalised, _squeezed)
_TOKENS: tuple[Layer, ...] = (_product, _product, _gram, _row_normalised, _attention)


def _chain(b: Build, x: Val, layers: Sequence[Layer]) -> Val:
    """The value after a few of the layers."""
    for _ in range(b.number(1, 5)):
        if x.rank < 3 or not x.array.size:
            break
        x = b.one(layers)(b, x)
    return x


def _start(b: Build, *extents: int) -> Val:
    """The input of a chain."""
    if len(b.nodes) > MOST_BEFORE:
        raise Refused
    return b.leaf(b.dtype(KINDS), _smaller(extents), fixed=False)


@maker("Image", "layers")
def image(b: Build, op: str) -> None:
    """Convolutions and what is between them, of {b, c, h, w}; perhaps products of their pixels."""
    x = _start(b, b.one([1, 2, 3]), b.one(CHANNELS), b.one(SIDES), b.one(SIDES))
    x = _chain(b, x, (*_IMAGES, *_ANY, _padded))
    if b.chance(25) and x.rank == 4 and x.array.size:
        _chain(b, _tokens_of(b, x), (*_TOKENS, *_ANY))


@maker("Tokens", "layers")
def tokens(b: Build, op: str) -> None:
    """Products, attention and normalisations of rows, of {b, t, c}."""
    x = _start(b, b.one([1, 2, 5]), b.one(ROWS), b.one(WIDTHS))
    _chain(b, x, (*_TOKENS, *_ANY))
