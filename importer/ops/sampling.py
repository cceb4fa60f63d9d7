"""Sampling at computed positions: GridSample, AffineGrid."""

from __future__ import annotations

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import scaled, shifted
from rutc.importer.ops.contraction import sum_products
from rutc.importer.ops.operands import static
from rutc.importer.ops.positions import element_at
from rutc.importer.ops.resize_dynamic import cubic_weights
from rutc.importer.ops.size_operands import sizes
from rutc.importer.ops.window import spatial_roles
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, apply, cast

_CUBIC = -0.75
"""The coefficient of the cubic kernel."""


@record
class Sampler:
    """How positions outside are treated, and how elements around a position are weighed."""

    mode: str
    padding: str
    align_corners: bool

    @property
    def taps(self) -> int:
        """Elements along one axis that a sample is made of."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]

    def position(self, grid: Expr, extent: Index) -> Expr:
        """A grid coordinate in [-1, 1] as a position along an axis, wrapped if outside."""
        n = cast(IndexValue(extent), grid.dtype)
        if self.align_corners:
            span = apply("sub", n, lit(1, grid.dtype))
            at: Expr = apply("mul", scaled(shifted(grid, 1), 0.5), span)
        else:
            at = scaled(shifted(apply("mul", shifted(grid, 1), n), -1), 0.5)
        if self.mode == "nearest":
            at = apply("round", at)
        if self.mode == "cubic" or self.padding == "zeros":
            return at
        return self.inside(at, extent)

    def inside(self, at: Expr, extent: Index) -> Expr:
        """A position moved inside by clamping or reflecting."""
        n = cast(IndexValue(extent), at.dtype)
        last = apply("sub", n, lit(1, at.dtype))
        if self.padding == "border":
            return apply("min", apply("max", at, lit(0, at.dtype)), last)
        low = 0.0 if self.align_corners else -0.5
        width = last if self.align_corners else n
        # Reflection repeats with twice the width.
        period = apply("max", scaled(width, 2), lit(1, at.dtype))
        along = apply("mod", shifted(at, -low), period)
        folded = shifted(apply("min", along, apply("sub", period, along)), low)
        return apply("min", apply("max", folded, lit(0, at.dtype)), last)

    def weight(self, at: Expr, tap: Index) -> Expr:
        """The weight of the tap-th element around a position."""
        part = apply("sub", at, apply("floor", at))
        if self.taps == 1:
            return lit(1, at.dtype)
        t = cast(IndexValue(tap), at.dtype)
        if self.taps == 2:
            distance = apply("abs", apply("sub", t, part))
            return apply("sub", lit(1, at.dtype), distance)
        d = apply("abs", apply("sub", shifted(t, -1), part))
        near, far = cubic_weights(d, _CUBIC)
        return apply("select", apply("le", d, lit(1, d.dtype)), near, far)

    def place(self, at: Expr, tap: Index, extent: Index) -> Expr:
        """The tap-th element's coordinate around a position."""
        first = apply("floor", at)
        shift = tap - 1 if self.taps == 4 else tap
        place: Expr = apply("add", first, cast(IndexValue(shift), at.dtype))
        if self.padding != "zeros":
            place = self.inside(place, extent)
        return cast(place, DType.I64)


@operator("GridSample")
def grid_sample(
    b: Builder,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """out[n, c, ..] = x sampled at the position grid[n, .., :], last axis first."""
    kinds = {"bilinear": "linear", "bicubic": "cubic"}
    sampler = Sampler(kinds.get(mode, mode), padding_mode, bool(align_corners))
    if padding_mode not in ("zeros", "border", "reflection") or sampler.mode not in (
        "nearest",
        "linear",
        "cubic",
    ):
        raise OperatorError(f"mode {mode!r} with padding {padding_mode!r} is unknown")
    rank = x.rank - 2
    if grid.rank != x.rank:
        raise OperatorError(f"the grid {grid} has another number of axes than the operand {x}")
    b.number(grid.shape[-1], rank, "the number of coordinates of a position")
    positions = [_positions(b, sampler, x, grid, i) for i in range(rank)]
    out = b.axes((*x.shape[:2], *grid.shape[1:-1]), ("n", "c"))
    taps = b.axes((sampler.taps,) * rank, ("k",) * rank)
    where = [out[0].index, *(a.index for a in out[2:])]
    coords: list[Coord] = [out[0].index, out[1].index]
    product: Expr | None = None
    for i, (t, at) in enumerate(zip(taps, positions, strict=True)):
        place, factor = _around(b, sampler, at, x.shape[2 + i])
        coords.append(b.read(place, [*where, t.index]))
        weight = b.read(factor, [*where, t.index])
        product = weight if product is None else apply("mul", product, weight)
    assert product is not None
    element = element_at(b, x, coords, padded=True)
    return sum_products(b, out, taps, (element, product), x.dtype)


def _positions(b: Builder, sampler: Sampler, x: Tensor, grid: Tensor, axis: int) -> Tensor:
    """The positions along one spatial axis {n, ..}, in the type in which they are computed."""
    axes: tuple[Axis, ...] = b.axes(grid.shape[:-1])
    rank = x.rank - 2
    element = b.read(grid, [*(a.index for a in axes), rank - 1 - axis])
    at = cast(element, grid.dtype.computing)
    return b.nest(axes, sampler.position(at, x.shape[2 + axis]))


def _around(b: Builder, sampler: Sampler, at: Tensor, extent: Index) -> tuple[Tensor, Tensor]:
    """(place, weight) of the elements around every position along an axis {n, .., tap}."""
    axes = b.axes((*at.shape, sampler.taps))
    position, tap = b.read(at, [a.index for a in axes[:-1]]), axes[-1].index
    place = b.nest(axes, sampler.place(position, tap, extent))
    return place, b.nest(axes, sampler.weight(position, tap))


@operator("AffineGrid")
def affine_grid(b: Builder, theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    """{n, (z,) y, x, k}: theta{n, k, j} times the places (x, y, (z,) 1) of a regular grid.

    The grid spans [-1, 1] along every axis, from the first element to the last (`align_corners`),
    or from edge to edge with the places in the middle of the elements.
    """
    rank = static(theta.shape[1], "the number of rows of theta") if theta.rank == 3 else 0
    if rank not in (2, 3) or theta.shape[2] != Index.of(rank + 1):
        raise OperatorError(f"theta {theta} is not of shape [n, 2, 3] or [n, 3, 4]")
    extents = sizes(b, size, "size", length=rank + 2)
    if len(extents) != rank + 2:
        raise OperatorError(f"{len(extents)} sizes for {rank} spatial axes")
    batch = b.same(theta.shape[0], extents[0])
    roles = ("n", *spatial_roles(rank), "k")
    axes = b.axes((batch, *extents[2:], rank), roles)
    kind = theta.dtype.computing
    last = axes[-1].index
    total: Expr = cast(b.read(theta, [axes[0].index, last, rank]), kind)
    for j, a in enumerate(reversed(axes[1:-1])):
        i, n = (cast(IndexValue(v), kind) for v in (a.index, a.extent))
        if align_corners:
            last_one = apply("max", shifted(n, -1), lit(1, kind))
            place = shifted(apply("div", scaled(i, 2), last_one), -1)
        else:
            place = shifted(apply("div", shifted(scaled(i, 2), 1), n), -1)
        factor = cast(b.read(theta, [axes[0].index, last, j]), kind)
        total = apply("add", total, apply("mul", factor, place))
    return b.nest(axes, cast(total, theta.dtype))
