"""Sums of products of two arrays, evaluated with numpy as products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from rutc.tensor_ir.interpreter.evaluate import Block
from rutc.verify.judging.compare import Array

EXACT_SUM = 2.0**53
"""Sums of integers below this are exact in float64."""


class MatrixSums:
    """Sums of products of two arrays over the bound dims, as products of matrices.

    A dim that both have and is free numbers the products; bound, it is summed; one that a single
    array has is a row or a column of it.
    """

    def __init__(
        self,
        bound: tuple[str, ...],
        free: tuple[str, ...],
        uses: tuple[frozenset[str], frozenset[str]],
    ) -> None:
        self.dims = (*bound, *free)
        self.free = free
        self.both = [d for d in free if d in uses[0] and d in uses[1]]
        self.summed = [d for d in bound if d in uses[0] and d in uses[1]]
        self.single = tuple([d for d in free if d in u and d not in self.both] for u in uses)
        self.alone = tuple([d for d in bound if d in u and d not in self.summed] for u in uses)
        self.absent = [d for d in bound if d not in uses[0] | uses[1]]

    def of(self, a: Array, b: Array, block: Block) -> Array:
        """The sums over a block, an axis for each free dim."""
        extents = dict(zip(block.dims, block.shape, strict=True))
        left = self.matrix(a, 0, (self.both, self.single[0], self.summed), extents)
        right = self.matrix(b, 1, (self.both, self.summed, self.single[1]), extents)
        times = prod(extents[d] for d in self.absent)
        with np.errstate(all="ignore"):
            found = _matmul(left, right) * np.asarray(times, left.dtype)
        dims = (*self.both, *self.single[0], *self.single[1])
        missing = tuple(d for d in self.free if d not in dims)
        shaped = found.reshape([*(1 for _ in missing), *(extents[d] for d in dims)])
        whole = shaped.transpose([(*missing, *dims).index(d) for d in self.free])
        return np.broadcast_to(whole, [extents[d] for d in self.free])

    def matrix(
        self, x: Array, side: int, groups: Sequence[Sequence[str]], extents: Mapping[str, int]
    ) -> Array:
        """An operand as {products, rows, columns}; a number is one of all dims."""
        x = x.reshape(x.shape or (1,) * len(self.dims))
        alone = self.alone[side]
        if alone:
            axes = tuple(self.dims.index(d) for d in alone)
            x = np.asarray(x.sum(axis=axes, keepdims=True, dtype=x.dtype))
        order = [self.dims.index(d) for group in groups for d in group]
        rest = [axis for axis in range(len(self.dims)) if axis not in order]
        # Axes that the factor does not depend on have extent 1.
        shape = [prod(extents[d] for d in group) for group in groups]
        return x.transpose([*rest, *order]).reshape(shape)


def _matmul(a: Array, b: Array) -> Array:
    """Products of matrices; those of integers in float64 where that is exact."""
    if a.dtype.kind == "f":
        return np.asarray(np.matmul(a, b))
    wide, other = a.astype(np.float64), b.astype(np.float64)
    bound = np.abs(wide).max(initial=0.0) * np.abs(other).max(initial=0.0) * a.shape[-1]
    if bound < EXACT_SUM:
        return np.asarray(np.matmul(wide, other).astype(np.int64).astype(a.dtype))
    return np.asarray(np.matmul(a, b))
