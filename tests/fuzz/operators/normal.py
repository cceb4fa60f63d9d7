"""Normalisations, losses, spectra and rotations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graph import Build, maker


@maker("BatchNormalization")
def batch_normalization(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank >= 2, lambda: b.shape(2))
    channels = [x.shape[1]]
    parts = [b.like(x, channels) for _ in range(3)]
    b.node(op, [x, *parts, b.like(x, channels, low=0.1, high=3)], epsilon=b.one([None, 1e-2]))


@maker("InstanceNormalization")
def instance_normalization(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank >= 3 and 0 not in v.shape, lambda: [2, 3, 5])
    b.node(op, [x, b.like(x, [x.shape[1]]), b.like(x, [x.shape[1]])])


@maker("GroupNormalization")
def group_normalization(b: Build, op: str) -> None:
    groups = b.one([1, 2, 3])
    channels = groups * b.one([1, 2, 4])
    x = b.leaf(b.dtype(b.types(op)), [b.one([1, 2]), channels, *(b.one([2, 3, 5]) for _ in "ab")])
    amount = channels if b.opset >= 21 else groups
    b.node(op, [x, b.like(x, [amount]), b.like(x, [amount])], num_groups=groups)


@maker("LayerNormalization RMSNormalization")
def layer_normalization(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank >= 1 and 0 not in v.shape, lambda: [2, 3, 8])
    axis = b.axis(x.rank)
    shape = x.shape[axis:] if b.chance(85) else x.shape[-1:]
    operands = [x, b.like(x, shape)]
    outputs = 1
    if op == "LayerNormalization":
        operands += [b.like(x, shape)] if b.chance(50) else []
        outputs = b.one([1, 1, 3])
    b.node(op, operands, outputs, axis=axis, epsilon=b.one([None, 1e-3]))


@maker("MeanVarianceNormalization")
def mvn(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank == 4 and 0 not in v.shape, lambda: [2, 3, 5, 4])
    b.node(op, [x], axes=b.one([None, [0, 2, 3], [1], [2, 3]]))


@maker("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss")
def loss(b: Build, op: str) -> None:
    classes, batch = b.one([3, 1, 5]), b.one([2, 1, 7])
    rest = [b.one([2, 3]) for _ in range(b.number(0, 2))]
    x = b.leaf(b.dtype(b.types(op)), [batch, classes, *rest])
    target = b.leaf(b.dtype(["int64", "int32"]), [batch, *rest], low=0, high=classes - 1)
    weight = [b.like(x, [classes], low=0.5, high=2)] if b.chance(40) else []
    ignored = b.one([None, 0, -1])
    outputs = b.number(1, 2) if op == "SoftmaxCrossEntropyLoss" else 1
    how = b.one([None, "none", "sum", "mean"])
    b.node(op, [x, target, *weight], outputs, reduction=how, ignore_index=ignored)


@maker("DFT")
def dft(b: Build, op: str) -> None:
    length = b.one([4, 1, 5, 8, 7])
    parts = b.one([1, 2])
    x = b.leaf(b.dtype(["float", "double"]), [b.one([1, 2]), length, parts])
    given: dict[str, Any] = {"inverse": 1} if parts == 2 and b.chance(40) else {}
    if parts == 1 and b.chance(40):
        given = {"onesided": 1}
    if b.opset < 20:
        b.node(op, [x], axis=1, **given)
    else:
        b.node(op, [x, None, b.scalar(1)], **given)


@maker("STFT")
def stft(b: Build, op: str) -> None:
    frame, step = b.one([4, 5, 8]), b.one([1, 3, 4])
    x = b.leaf(np.dtype(np.float32), [b.one([1, 2]), frame + step * b.number(0, 4), 1])
    hop = b.scalar(step)
    b.node(op, [x, hop, b.leaf(np.dtype(np.float32), [frame])], onesided=b.one([None, 0, 1]))


@maker("HannWindow HammingWindow BlackmanWindow")
def window_function(b: Build, op: str) -> None:
    size = b.scalar(b.one([4, 1, 5, 17]))
    b.node(op, [size], periodic=b.one([None, 0, 1]))


@maker("RotaryEmbedding")
def rotary(b: Build, op: str) -> None:
    heads, size, steps, batch = b.one([1, 2]), b.one([4, 2, 8]), b.one([3, 1]), b.one([1, 2])
    x = b.leaf(b.dtype(["float", "float16"]), [batch, heads, steps, size])
    caches = [b.like(x, [5, size // 2], low=-1, high=1) for _ in "cs"]
    at = b.leaf(np.dtype(np.int64), [batch, steps], low=0, high=4)
    b.node(op, [x, *caches, at], interleaved=b.one([None, 0, 1]))
