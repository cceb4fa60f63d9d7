"""Axes of extent 1, left out and put in."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.errors import UserError
from rutc.importer.building.broadcast import may_be_one
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Item, Tensor
from rutc.importer.ops.control import branched, tensors, unless
from rutc.importer.ops.operands import axes_of, ints
from rutc.importer.ops.reshape import linear
from rutc.importer.ops.run_time_axes import named_axes
from rutc.importer.ops.size_operands import elements
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, IndexValue, Lit, apply
from rutc.tensor_ir.indices.affine import ONE, ZERO


@operator("Squeeze")
def squeeze(b: Builder, x: Tensor, axes: Tensor | None = None) -> Item:
    """`x` without the named axes (without names: all) of extent 1.

    Without names, a symbolic size that is given is at least 2: at 1 the rank would be another. A
    run that computes a size of 1 ends. Where ranks may be any, the run decides.
    """
    if axes is None and b.any_ranks:
        return _without_ones(b, x, [i for i, e in enumerate(x.shape) if may_be_one(b, e)])
    return squeezed(b, x, axes)


def squeezed(b: Builder, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """`x` without the named axes (without names: all) of extent 1, those that are known to be."""
    if axes is not None and axes.known is None:
        return linear(b, x, named_axes(b, axes, x.rank, x.shape).without(x.shape))
    if axes is None:
        for e in x.shape:
            symbol = e.as_var
            if symbol is not None and symbol not in b.bound and b.ranges[symbol][0] == 1:
                b.kept_axes = True
                b.ranges[symbol] = (min(2, b.ranges[symbol][1]), b.ranges[symbol][1])
        for i, e in enumerate(x.shape):
            if e != ONE and may_be_one(b, e):
                b.kept_axes = True
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
    return _without(b, x, chosen)


def _without(b: Builder, x: Tensor, chosen: Sequence[int]) -> Tensor:
    """`x` without these axes of extent 1."""
    if any(x.axes[i].dim is not None for i in chosen):
        x = b.view(x, x.shape, lambda *at: at)
    return b.reshaped(x, [a for i, a in enumerate(x.axes) if i not in chosen])


def _without_ones(b: Builder, x: Tensor, where: Sequence[int]) -> Item:
    """`x` without all axes of extent 1, which are among those at `where` and known ones."""
    left = [i for i in where if x.shape[i] != ONE]
    if not left:
        return _without(b, x, [i for i, e in enumerate(x.shape) if e == ONE])
    first, *rest = left

    def cut() -> tuple[Item, ...]:
        return (_without_ones(b, _first_of(b, x, first), rest),)

    def whole() -> tuple[Item, ...]:
        return (_without_ones(b, x, rest),)

    return branched(b, _is_one(b, x, first), cut, whole)[0]


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
        return (_first_of(b, x, axis),)

    return tensors(branched(b, _is_one(b, x, axis), cut, refuse))[0]


def _first_of(b: Builder, x: Tensor, axis: int) -> Tensor:
    """What is first along an axis, which has extent 1 then."""
    shape = [ONE if k == axis else e for k, e in enumerate(x.shape)]
    return b.view(x, shape, lambda *at: [*at[:axis], ZERO, *at[axis + 1 :]])


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
