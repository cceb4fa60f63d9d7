"""Gathers and scatters."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.operators.movement import any_value


def indices_for(b: Build, shape: list[int], extent: int, op: str) -> Val:
    """Indices of an axis, negative ones among them."""
    if extent == 0 and prod(shape):
        raise Refused
    kind = b.dtype(b.types(op, 1))
    low = -extent if b.opset >= 11 else 0
    return b.leaf(kind, shape, low=low, high=max(extent - 1, low))


@maker("Gather")
def gather(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axis = b.axis(x.rank)
    indices = indices_for(b, list(b.shape(0, 2)), x.shape[axis], op)
    b.node(op, [x, indices], axis=axis)


@maker("GatherElements")
def gather_elements(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axis = b.axis(x.rank)
    shape = list(x.shape)
    shape[axis] = b.one([2, 1, 5, 0])
    b.node(op, [x, indices_for(b, shape, x.shape[axis], op)], axis=axis)


def _tuples(b: Build, shape: tuple[int, ...], count: int, distinct: bool) -> np.ndarray | None:
    """`count` index tuples into a shape, or None where there are not as many."""
    total = prod(shape)
    if (total == 0 and count) or (distinct and count > total):
        return None
    random = np.random.default_rng(b.number(0, 1 << 16))
    flat = random.choice(total, count, replace=not distinct) if count else np.zeros(0, np.int64)
    found = np.stack(np.unravel_index(flat, shape), -1) if shape else np.zeros((count, 0))
    negative = random.random(found.shape) < 0.25
    return np.where(negative & (b.opset >= 11), found - np.array(shape), found).astype(np.int64)


@maker("GatherND")
def gather_nd(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    batch = b.number(0, 1) if b.has(op, "batch_dims") and x.rank > 1 else 0
    depth = b.number(1, x.rank - batch)
    outer = [*x.shape[:batch], *b.shape(1, 1)]
    found = _tuples(b, x.shape[batch : batch + depth], prod(outer), distinct=False)
    if found is None:
        raise Refused
    indices = b.given(found.reshape(*outer, depth))
    b.node(op, [x, indices], batch_dims=batch or None)


def _reduction(b: Build, op: str) -> str | None:
    if not b.has(op, "reduction"):
        return None
    return b.one([None, "none", "add", "mul"] + (["max", "min"] if b.opset >= 18 else []))


@maker("ScatterND")
def scatter_nd(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    reduction = _reduction(b, op)
    depth = b.number(1, x.rank)
    count = b.one([1, 2, 4, 0])
    found = _tuples(b, x.shape[:depth], count, distinct=reduction in (None, "none"))
    if found is None:
        raise Refused
    updates = b.like(x, [count, *x.shape[depth:]])
    b.node(op, [x, b.given(found.reshape(count, depth)), updates], reduction=reduction)


@maker("ScatterElements Scatter")
def scatter_elements(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    reduction = _reduction(b, op)
    axis = b.axis(x.rank)
    shape = [b.number(min(1, e), e) for e in x.shape]
    distinct = reduction in (None, "none")
    if distinct:
        random = np.random.default_rng(b.number(0, 1 << 16))
        order = (
            random.permuted(
                np.broadcast_to(
                    np.arange(x.shape[axis]), np.moveaxis(np.empty(x.shape), axis, -1).shape
                ).copy(),
                axis=-1,
            )
            if x.array.size
            else None
        )
        if order is None:
            raise Refused
        found = np.moveaxis(order, -1, axis)[tuple(slice(0, e) for e in shape)]
        indices = b.given(np.ascontiguousarray(found).astype(np.int64))
    else:
        indices = indices_for(b, shape, x.shape[axis], op)
    axis = axis if b.opset >= 11 else axis % x.rank
    b.node(op, [x, indices, b.like(x, shape)], axis=axis, reduction=reduction)


@maker("TensorScatter")
def tensor_scatter(b: Build, op: str) -> None:
    rows, length, width = b.one([1, 2, 3]), b.one([4, 7, 8]), b.one([3, 5, 16])
    part = b.number(1, length)
    mode = b.one([None, "linear", "circular"])
    cache = b.leaf(b.dtype([t for t in b.types(op) if t != "string"]), [rows, length, width])
    high = length - 1 if mode == "circular" else length - part
    at = b.leaf(np.dtype(np.int64), [rows], low=0, high=high)
    b.node(op, [cache, b.like(cache, [rows, part, width]), at], mode=mode)
