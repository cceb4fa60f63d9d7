"""What resizes a tensor along one axis, given tables of the places and the weights that it takes.

Tables of all axes are made before the first step: steps then follow each other, and what one
passes to the next can stay near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import floordiv

Step = Callable[[Tensor], Tensor]
"""A tensor resized along one axis."""


@record
class ResizedAxis:
    """The axis that a step resizes, and its new extent.

    Outputs that are not `known` {output} to lie within it are `outside`.
    """

    number: int
    extent: Index
    known: Tensor | None = None
    outside: float = 0.0

    def of(self, shape: Sequence[Index]) -> list[Index]:
        """The shape of what a step makes of one of `shape`."""
        return [self.extent if i == self.number else e for i, e in enumerate(shape)]

    def or_outside(self, b: Builder, value: Expr, here: Index) -> Expr:
        """The value of output `here`, or what stands for one that lies outside."""
        if self.known is None:
            return value
        known = b.read(self.known, [here])
        return apply("select", known, value, lit(self.outside, value.dtype))


def repeat(b: Builder, axis: ResizedAxis, times: int) -> Step:
    """Every element `times` times."""

    def at(here: Index) -> Coord:
        return floordiv(here, Index.of(times), b.ranges)

    return move(b, axis, at)


def move(b: Builder, axis: ResizedAxis, at: Callable[[Index], Coord]) -> Step:
    """The element at(o) for output o."""

    def step(x: Tensor) -> Tensor:
        axes = b.axes(axis.of(x.shape))
        coords: list[Coord] = [a.index for a in axes]
        here = axes[axis.number].index
        coords[axis.number] = at(here)
        return b.nest(axes, axis.or_outside(b, b.read(x, coords), here))

    return step


def filtered(
    b: Builder, axis: ResizedAxis, rows: Tensor, weights: Tensor, *, idle: bool = False
) -> Step:
    """The sum over taps of elements at `rows` {output, tap} times `weights` {output, tap}.

    Where taps may be `idle`, with weights of 0, elements that they read do not count: 0 times an
    infinite one would be NaN.
    """

    def step(x: Tensor) -> Tensor:
        axes = b.axes(axis.of(x.shape))
        k = b.axis(rows.shape[1], "k")
        wide = interpolating(x.dtype)
        coords: list[Coord] = [a.index for a in axes]
        here = axes[axis.number].index
        coords[axis.number] = b.read(rows, [here, k.index])
        factor = cast(b.read(weights, [here, k.index]), wide)
        value = cast(b.read(x, coords), wide)
        if idle:
            zero = lit(0, wide)
            value = apply("select", apply("eq", factor, zero), zero, value)
        total = b.nest(axes, apply("mul", value, factor), (k,))
        if axis.known is None:
            return total
        axes = b.axes(total.shape)
        return b.nest(axes, axis.or_outside(b, b.spread(total, axes), axes[axis.number].index))

    return step


def interpolating(kind: DType) -> DType:
    """The type that values are interpolated in, along all axes: it holds those of `kind`."""
    if kind.is_float:
        return kind if kind.bits >= 32 else DType.F32
    return DType.F64 if kind.bits >= 32 else DType.F32
