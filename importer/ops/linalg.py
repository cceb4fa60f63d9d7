"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.reductions import place_of_extreme
from rutc.importer.ops.scans import scanned
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO


@operator("Det")
def det(b: Builder, x: Tensor) -> Tensor:
    """The determinants of the matrices in the last two axes.

    Gaussian elimination with the largest element of each column as pivot
    [Golub & Van Loan, Matrix Computations, §3.4].
    """
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise OperatorError(f"square matrices are expected, not {x}")
    batch, n = x.shape[:-2], x.shape[-1]
    kind = x.dtype.computing
    start = b.nest(b.axes(batch), lit(1, kind))
    if n == ZERO:
        return b.map(lambda e: cast(e, x.dtype), start)
    wide = b.map(lambda e: cast(e, kind), x)
    if n == ONE:
        return b.map(lambda e: cast(e, x.dtype), b.view(wide, batch, lambda *o: [*o, 0, 0]))

    def step(k: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        matrix, product = states
        place = _pivot(b, matrix, k)
        swapped = _swapped(b, matrix, k, place)
        pivot = b.view(swapped, batch, lambda *o: [*o, k, k])

        def grown(total: Expr, p: Expr, at: Expr) -> Expr:
            same = apply("eq", at, IndexValue(k))
            return apply("mul", total, apply("select", same, p, apply("neg", p)))

        after = b.map(grown, product, pivot, place)
        return (_eliminated(b, swapped, pivot, k), after), ()

    (_, product), _ = scanned(b, n, (wide, start), step)
    return b.map(lambda e: cast(e, x.dtype), product)


def _pivot(b: Builder, matrix: Tensor, k: Index) -> Tensor:
    """The row from k on whose element of column k is the largest."""
    outer = b.axes(matrix.shape[:-2])
    row = b.axis(matrix.shape[-2], "i")
    size = apply("abs", b.read(matrix, [*(a.index for a in outer), row.index, k]))
    below = apply("ge", IndexValue(row.index - k), lit(0, DType.I64))
    chosen = apply("select", below, size, lit(-1, matrix.dtype))
    return place_of_extreme(b, outer, chosen, row)


def _swapped(b: Builder, matrix: Tensor, k: Index, place: Tensor) -> Tensor:
    """The matrix with rows k and `place` exchanged."""
    axes = b.axes(matrix.shape)
    *outer, row, column = (a.index for a in axes)
    at = b.read(place, outer)
    own = IndexValue(row)
    source = apply("select", apply("eq", own, at), IndexValue(k), own)
    source = apply("select", apply("eq", own, IndexValue(k)), at, source)
    return b.nest(axes, b.read(matrix, [*outer, source, column]))


def _eliminated(b: Builder, matrix: Tensor, pivot: Tensor, k: Index) -> Tensor:
    """The rows below k less the multiple of row k that clears their column k."""
    axes = b.axes(matrix.shape)
    *outer, row, column = (a.index for a in axes)
    p = b.read(pivot, outer)
    none = apply("eq", p, lit(0, p.dtype))
    ratio = apply("div", b.read(matrix, [*outer, row, k]), p)
    ratio = apply("select", none, lit(0, p.dtype), ratio)
    own = b.read(matrix, [*outer, row, column])
    reduced = apply("sub", own, apply("mul", ratio, b.read(matrix, [*outer, k, column])))
    below = apply("gt", IndexValue(row - k), lit(0, DType.I64))
    return b.nest(axes, apply("select", below, reduced, own))
