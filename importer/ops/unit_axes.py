"""Axes of extent 1, left out and put in."""

from __future__ import annotations

from rutc.errors import UserError
from rutc.importer.broadcast import may_be_one
from rutc.importer.builder import Builder
from rutc.importer.expressions import OperatorError
from rutc.importer.ops.control import branched, tensors, unless
from rutc.importer.ops.operands import axes_of, ints
from rutc.importer.ops.reshape import linear
from rutc.importer.ops.run_time_axes import named_axes
from rutc.importer.ops.size_operands import elements
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import DType, IndexValue, Lit, apply
from rutc.tensor_ir.affine import ONE, ZERO


@operator("Squeeze")
def squeeze(b: Builder, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """`x` without the named axes (without names: all) of extent 1.

    Without names, a symbolic size that is given is at least 2: at 1 the rank would be another. A
    run that computes a size of 1 ends.
    """
    if axes is not None and axes.known is None:
        return linear(b, x, named_axes(b, axes, x.rank, x.shape).without(x.shape))
    if axes is None:
        for e in x.shape:
            symbol = e.as_var
            if symbol is not None and symbol not in b.bound and b.ranges[symbol][0] == 1:
                b.ranges[symbol] = (min(2, b.ranges[symbol][1]), b.ranges[symbol][1])
        for i, e in enumerate(x.shape):
            if e != ONE and may_be_one(b, e):
                x = _never_one(b, x, i)
        chosen = tuple(i for i, e in enumerate(x.shape) if e == ONE)
    else:
        chosen = axes_of(ints(axes, "axes"), x.rank)
    for i in chosen:
        limits = x.shape[i].bounds(b.ranges)
        if limits is not None and not limits[0] <= 1 <= limits[1]:
            raise OperatorError(f"axes {chosen} of {x} are not all of extent 1")
    for i in chosen:
        if x.shape[i] != ONE:
            x = _only(b, x, i)
        elif x.axes[i].dim is not None:
            x = b.view(x, x.shape, lambda *at: at)
    return b.reshaped(x, [a for i, a in enumerate(x.axes) if i not in chosen])


def _is_one(b: Builder, x: Tensor, axis: int) -> Tensor:
    """Whether that axis has extent 1."""
    return b.nest((), apply("eq", IndexValue(x.shape[axis]), Lit(1, DType.I64)))


def _never_one(b: Builder, x: Tensor, axis: int) -> Tensor:
    """`x`, with which a run ends in which that axis has extent 1."""
    why = (
        f"{', '.join(b.origin)}: axis {axis} of {x} has extent 1, and the rank of the result would "
        f"be another if it were left out: name the axes to leave out"
    )
    return unless(b, _is_one(b, x, axis), x, why)


def _only(b: Builder, x: Tensor, axis: int) -> Tensor:
    """`x` with an axis of extent 1 for one of symbolic extent; a run with another extent ends."""

    def refuse() -> tuple[Tensor, ...]:
        node = ", ".join(b.origin)
        raise UserError(f"{node}: axis {axis} of {x} is left out, and is not of extent 1")

    def cut() -> tuple[Tensor, ...]:
        shape = [ONE if k == axis else e for k, e in enumerate(x.shape)]
        return (b.view(x, shape, lambda *at: [*at[:axis], ZERO, *at[axis + 1 :]]),)

    return tensors(branched(b, _is_one(b, x, axis), cut, refuse))[0]


@operator("Unsqueeze")
def unsqueeze(b: Builder, x: Tensor, axes: Tensor) -> Tensor:
    """`x` with axes of extent 1 put in."""
    if axes.known is None:
        rank = x.rank + len(elements(b, axes, "axes"))
        return linear(b, x, named_axes(b, axes, rank).put_in(x.shape))
    given = ints(axes, "axes")
    rank = x.rank + len(given)
    chosen = axes_of(given, rank)
    left = iter(x.axes)
    return b.reshaped(x, [b.axis(1) if i in chosen else next(left) for i in range(rank)])
