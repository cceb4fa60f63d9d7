"""Convolution whose taps are moved by offsets that are given while running."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.convolution import grouped_product, kernel_of, with_bias
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.operands import static
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.window import Window, kernel_roles, spatial_roles, window
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, floordiv


@operator("DeformConv")
def deform_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    offset_group: int = 1,
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """A convolution of x sampled (linearly, 0 outside) at the taps' places plus offsets, masked.

    v{n,c,ky,kx,y,x} = mask * sum{ty,tx} weights * x[n, c, places]
    out{n,co,y,x} = sum{ci,ky,kx} v[n, ci, ky, kx, y, x] * w[co, ci, ky, kx]
    """
    kernel = kernel_of(b, w, kernel_shape)
    geometry = window(
        b,
        x.shape[2:],
        kernel,
        auto_pad="NOTSET",
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    if offset_group < 1 or static(x.shape[1], "the number of channels") % offset_group:
        raise OperatorError(f"offset_group={offset_group} does not divide the channels of {x}")
    taps = offset_group * prod(kernel)
    shape = (x.shape[0], Index.of(taps * len(kernel)), *geometry.out)
    offset = of_shape(b, offset, shape, "moves the taps")
    if mask is not None:
        mask = of_shape(b, mask, (x.shape[0], Index.of(taps), *geometry.out), "weighs the taps")
    rank = len(kernel)
    moved = reshape(
        b, offset, (x.shape[0], *map(Index.of, (offset_group, *kernel, rank)), *geometry.out)
    )
    sampled = _sampled(b, x, moved, geometry, offset_group, mask)
    y = grouped_product(
        b,
        w,
        group,
        geometry,
        lambda n, c, taps, space: b.read(
            sampled, [n.index, c, *(t.index for t in taps), *(s.index for s in space)]
        ),
        x,
        x.dtype,
    )
    return with_bias(b, y, bias)


def _sampled(
    b: Builder,
    x: Tensor,
    offset: Tensor,
    geometry: Window,
    groups: int,
    mask: Tensor | None,
) -> Tensor:
    """What every tap of every output position reads {n, c, taps, space}."""
    rank = len(geometry.kernel)
    kind = x.dtype.computing
    n, g = b.axis(x.shape[0], "n"), b.axis(groups, "g")
    taps = b.axes(geometry.kernel, kernel_roles(rank))
    space = b.axes(geometry.out, spatial_roles(rank))
    where = (n, g, *taps, *space)
    positions: list[Tensor] = []
    for i, still in enumerate(geometry.coords(space, taps)):
        here = [n.index, g.index, *(t.index for t in taps), Index.of(i)]
        moved = cast(b.read(offset, [*here, *(s.index for s in space)]), kind)
        positions.append(b.nest(where, apply("add", moved, cast(IndexValue(still), kind))))
    c = b.axis(x.shape[1], "c")
    corners = b.axes((2,) * rank, ("t",) * rank)
    own = floordiv(c.index, Index.of(static(x.shape[1], "the channels") // groups), b.ranges)
    rest = [*(t.index for t in taps), *(s.index for s in space)]
    coords: list[Coord] = [n.index, c.index]
    weight: Expr = lit(1, kind)
    inside: Expr = lit(1, DType.BOOL)
    for position, corner, extent in zip(positions, corners, x.shape[2:], strict=True):
        at = b.read(position, [n.index, own, *rest])
        low = apply("floor", at)
        tap = cast(IndexValue(corner.index), kind)
        near = apply("abs", apply("sub", apply("sub", at, low), tap))
        weight = apply("mul", weight, apply("sub", lit(1, kind), near))
        place = cast(apply("add", low, tap), DType.I64)
        coords.append(place)
        if extent == ONE:
            inside = apply("and", inside, apply("eq", place, lit(0, DType.I64)))
    element = cast(b.read(x, coords, lit(0, x.dtype)), kind)
    element = apply("select", inside, element, lit(0, kind))
    y = b.nest((n, c, *taps, *space), apply("mul", weight, element), corners)
    if mask is None:
        return y
    shape = (x.shape[0], *map(Index.of, (groups, *geometry.kernel)), *geometry.out)
    factor = reshape(b, mask, shape)
    axes = b.axes(y.shape)
    own = floordiv(axes[1].index, Index.of(static(x.shape[1], "the channels") // groups), b.ranges)
    share = cast(b.read(factor, [axes[0].index, own, *(a.index for a in axes[2:])]), kind)
    return b.nest(axes, apply("mul", share, b.spread(y, axes)))
