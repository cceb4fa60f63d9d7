"""The largest elements along an axis: a routine of the host runtime."""

from __future__ import annotations

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.operands import axis_of, ints
from rutc.importer.registry import operator
from rutc.importer.tensor import Axis, Tensor
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.affine import ONE


@operator("TopK")
def top_k(
    b: Builder,
    x: Tensor,
    k: Tensor,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
) -> tuple[Tensor, ...]:
    """The k largest (or smallest) elements along an axis in order, and their positions.

    Equal elements come in the order of their positions, NaN before all numbers if the largest are
    asked for and after all if the smallest. Elements that need not be sorted are sorted too.
    """
    at = axis_of(axis, x.rank)
    (count,) = ints(k, "k")
    n = x.shape[at]
    if count < 0 or (n.is_const and count > n.const):
        raise OperatorError(f"k = {count} of {n} elements")
    shape = [*x.shape[:at], Index.of(count), *x.shape[at + 1 :]]
    if n == ONE or count == 0:
        axes = b.axes(shape)
        first = b.nest(axes, b.spread(x, axes)) if count else b.nest(axes, lit(0, x.dtype))
        return first, b.nest(b.axes(shape), lit(0, DType.I64))
    x = b.whole(x)
    axes = (*x.axes[:at], Axis(b.dim(count, "k"), Index.of(count)), *x.axes[at + 1 :])
    kinds = (x.dtype, DType.I64)
    return b.call("topk", (x,), [(kind, axes) for kind in kinds], axis=at, largest=int(largest))
