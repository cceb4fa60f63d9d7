"""Running sums and products along an axis."""

from __future__ import annotations

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.operands import array, axis_of
from rutc.importer.ops.reshape import linear
from rutc.importer.ops.run_time_axes import one_axis
from rutc.importer.registry import operator
from rutc.tensor_ir.indices.affine import ONE, ZERO


@operator("CumSum")
def cum_sum(b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """The sum of all elements up to each one along an axis."""
    return _along(b, x, axis, "sum", exclusive=bool(exclusive), reverse=bool(reverse))


@operator("CumProd")
def cum_prod(
    b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Tensor:
    """The product of all elements up to each one along an axis."""
    return _along(b, x, axis, "prod", exclusive=bool(exclusive), reverse=bool(reverse))


def _along(
    b: Builder, x: Tensor, axis: Tensor, how: str, *, exclusive: bool, reverse: bool
) -> Tensor:
    """`running` along the axis that an operand names, which the run may tell."""
    if axis.known is None:
        folded = linear(b, x, one_axis(b, axis, x.shape, x.rank).parts)
        return linear(b, running(b, folded, 1, how, exclusive=exclusive, reverse=reverse), x.shape)
    at = axis_of(int(array(axis, "the axis").reshape(-1)[0]), x.rank)
    return running(b, x, at, how, exclusive=exclusive, reverse=reverse)


def running(
    b: Builder, x: Tensor, at: int, how: str, *, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """The sums or products (`how`) of all elements up to each one along the axis `at`."""
    extent = x.shape[at]
    identity = lit(0 if how == "sum" else 1, x.dtype)
    if extent == ZERO:
        return x
    if extent == ONE:
        return b.nest(b.axes(x.shape), identity) if exclusive else x
    axes = b.axes(x.shape)
    k = b.axis(extent, "k")
    distance = k.index + int(exclusive)
    coords = [a.index for a in axes]
    coords[at] = coords[at] + distance if reverse else coords[at] - distance
    return b.nest(axes, b.read(x, coords, identity), (k,), how)
