"""Sorting and selecting along one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.interpreter.routines.job import Job


def order_keys(x: np.ndarray) -> np.ndarray:
    """Numbers in the order of the elements of `x`: NaN above all, -0 equal to 0.

    Equal elements have equal keys, and so do all NaN.
    """
    kind = DType.of(x.dtype)
    if kind.is_float:
        x = x.astype(np.float64)
        return np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    if kind is DType.U64:
        return (x ^ np.uint64(1 << 63)).view(np.int64)
    return x.astype(np.int64)


def topk(job: Job) -> Sequence[np.ndarray]:
    """(elements, positions): the first k of the order along `axis`; k is the results' extent.

    Attributes: `axis`; `largest`: 1 for descending order. Equal elements stand in the order of
    their positions; NaN counts as larger than every number.
    """
    (x,) = job.args
    axis = job.integer("axis")
    k, n = job.results[0].shape[axis], x.shape[axis]
    if k > n:
        job.fail(f"k = {k} of {n} elements along axis {axis}")
    keys = order_keys(x)
    if job.integer("largest"):
        keys = ~keys
    at = np.argsort(keys, axis=axis, kind="stable").take(np.arange(k), axis=axis)
    return np.take_along_axis(x, at, axis), at.astype(np.int64)
