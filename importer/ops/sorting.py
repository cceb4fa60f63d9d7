"""The largest elements along an axis: a routine of the host runtime."""

from __future__ import annotations

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.operands import axis_of
from rutc.importer.ops.reductions import extreme_and_place, keep_units
from rutc.importer.ops.selection import most
from rutc.importer.registry import operator
from rutc.tensor_ir import DType
from rutc.tensor_ir.indices.affine import ONE, ZERO


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
    asked for and after all if the smallest. Elements that need not be sorted are sorted too. A
    single one is a reduction, which sees NaN first.
    """
    at = axis_of(axis, x.rank)
    n = x.shape[at]
    count = b.size(k, "k", most(b, n))
    shape = [*x.shape[:at], count, *x.shape[at + 1 :]]
    if count == ZERO or n == count == ONE:
        axes = b.axes(shape)
        first = b.nest(axes, lit(0, x.dtype) if count == ZERO else b.spread(x, axes))
        return first, b.nest(b.axes(shape), lit(0, DType.I64))
    bounds = n.bounds(b.ranges)
    if count == ONE and bounds is not None and bounds[0] > 0 and (largest or not x.dtype.is_float):
        space = b.axes(x.shape)
        kept = [a for i, a in enumerate(space) if i != at]
        element = b.read(x, [a.index for a in space])
        how = "argmax" if largest else "argmin"
        found = extreme_and_place(b, kept, element, space[at], how)
        units = keep_units(b, kept, (at,), x.rank)
        return tuple(b.reshaped(y, units) for y in found)
    x = b.whole(x)
    axes = (*x.axes[:at], Axis(b.dim(count, "k"), count), *x.axes[at + 1 :])
    kinds = (x.dtype, DType.I64)
    return b.call("topk", (x,), [(kind, axes) for kind in kinds], axis=at, largest=int(largest))
