"""Reductions, softmaxes, prefix sums and searches along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker


def axes_of(b: Build, rank: int, low: int = 1) -> list[int]:
    """Some axes of a rank, in any order, perhaps counted from the end."""
    chosen = [a for a in range(rank) if b.chance(50)]
    if len(chosen) < low:
        if rank < low:
            raise Refused
        chosen = list(range(low))
    if b.chance(20):
        chosen.reverse()
    return [a - rank if b.chance(25) and b.opset >= 11 else a for a in chosen]


@maker(
    """
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceSumSquare
    """
)
def reduce(b: Build, op: str) -> None:
    x = b.pick(b.types(op))
    keep = b.one([None, 0, 1])
    axes: Sequence[int] | None = None if b.chance(20) else axes_of(b, x.rank, 0)
    if b.has(op, "axes"):
        b.node(op, [x], keepdims=keep, axes=axes or None)
        return
    noop = 1 if b.chance(20) else None
    operands = [x] if axes is None else [x, b.integers(axes)]
    b.node(op, operands, keepdims=keep, noop_with_empty_axes=noop)


@maker("ArgMax ArgMin")
def arg(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0 and 0 not in v.shape, lambda: b.shape(1))
    last = 1 if b.has(op, "select_last_index") and b.chance(30) else None
    axis = _axis(b, x)
    b.node(op, [x], axis=axis, keepdims=b.one([None, 0, 1]), select_last_index=last)


def _axis(b: Build, x: Val) -> int:
    axis = b.axis(x.rank)
    return axis if b.opset >= 11 else axis % x.rank


@maker("Softmax LogSoftmax Hardmax")
def softmax(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))
    b.node(op, [x], axis=_axis(b, x) if x.rank < 2 or b.chance(80) else None)


@maker("LpNormalization")
def lp_normalization(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))
    b.node(op, [x], axis=_axis(b, x), p=b.one([2, 1]))


@maker("CumSum CumProd")
def prefix(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))
    kind = b.one([np.int64, np.int32])
    axis = b.given(np.array(b.axis(x.rank), kind), fixed=not b.chance(12))
    flags: dict[str, Any] = {n: 1 for n in ("exclusive", "reverse") if b.chance(40)}
    b.node(op, [x, axis], **flags)


@maker("TopK")
def top_k(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))
    axis = b.axis(x.rank)
    count = b.number(0, x.shape[axis])
    if b.has(op, "k"):
        b.node(op, [x], 2, axis=axis % x.rank, k=max(1, count))
        return
    if b.opset < 11:
        b.node(op, [x, b.integers([count])], 2, axis=axis % x.rank)
        return
    k = b.integers([count], fixed=not b.chance(15))
    b.node(op, [x, k], 2, axis=axis, largest=b.one([None, 0, 1]))


@maker("NonZero")
def non_zero(b: Build, op: str) -> None:
    b.node(op, [b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))])


@maker("Unique")
def unique(b: Build, op: str) -> None:
    x = b.pick([t for t in b.types(op) if t != "string"], lambda v: v.rank > 0, lambda: b.shape(1))
    axis = b.axis(x.rank) if b.chance(50) else None
    b.node(op, [x], b.number(1, 4), axis=axis, sorted=b.one([None, 0, 1]))


@maker("Compress")
def compress(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank > 0, lambda: b.shape(1))
    axis = _axis(b, x) if b.chance(60) else None
    length = x.array.size if axis is None else x.shape[axis]
    fixed = None if b.chance(50) else True
    condition = b.leaf(np.dtype(bool), [b.number(0, length)], fixed=fixed)
    b.node(op, [x, condition], axis=axis)


@maker("Det")
def det(b: Build, op: str) -> None:
    side = b.number(1, 5)
    x = b.leaf(b.dtype(b.types(op)), [*b.shape(0, 2), side, side])
    b.node(op, [x])
