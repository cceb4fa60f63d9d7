"""Convolutions of any number of spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import KnownSizesError, OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor, shape_text
from rutc.importer.ops.activations import add
from rutc.importer.ops.contraction import sum_products
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.operands import static
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.size_operands import sizes
from rutc.importer.ops.window import Window, kernel_roles, spatial_roles, window
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv, maximum, mod, product


@operator("Conv")
def conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """out{n,co,y,x} = sum{ci,ky,kx} x[n, ci, y=sy*y+dy*ky-py, x=.. else 0] * w[co,ci,ky,kx]."""
    kernel = kernel_of(b, w, kernel_shape)
    geometry = window(
        b,
        x.shape[2:],
        kernel,
        auto_pad=auto_pad,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    return with_bias(b, _convolved(b, x, w, group, geometry, x.dtype), bias)


def kernel_of(b: Builder, w: Tensor, stated: Sequence[int]) -> tuple[int, ...]:
    """The kernel's extents. Raises OperatorError where the attribute and the weights differ."""
    if not stated:
        return tuple(static(e, "the kernel's extent") for e in w.shape[2:])
    if len(stated) != w.rank - 2:
        raise OperatorError(f"kernel_shape {tuple(stated)} does not fit the weights {w}")
    return tuple(
        b.number(e, k, "the kernel's extent") for e, k in zip(w.shape[2:], stated, strict=True)
    )


def _convolved(
    b: Builder, x: Tensor, w: Tensor, group: int, geometry: Window, kind: DType
) -> Tensor:
    zero = lit(0, x.dtype)
    x = of_groups(b, x, w, group)

    def element(n: Axis, c: Index, taps: Sequence[Axis], space: Sequence[Axis]) -> Expr:
        return b.read(x, [n.index, c, *geometry.coords(space, taps)], zero)

    return grouped_product(b, w, group, geometry, element, x, kind)


def of_groups(b: Builder, x: Tensor, w: Tensor, group: int) -> Tensor:
    """`x`{n, channels, ..}; a run in which it has not the channels of all groups ends."""
    if group == 1 or x.rank < 3 or w.rank != x.rank or x.shape[1].is_const:
        return x
    channels = static(w.shape[1], "the weights' channel extent") * group
    shape = (x.shape[0], Index.of(channels), *x.shape[2:])
    return of_shape(b, x, shape, f"is convolved in {group} groups")


def grouped_product(
    b: Builder,
    w: Tensor,
    group: int,
    geometry: Window,
    element: Callable[[Axis, Index, Sequence[Axis], Sequence[Axis]], Expr],
    x: Tensor,
    kind: DType,
) -> Tensor:
    """sum{ci, taps} element(n, channel, taps, space) * w, each group of channels by itself.

    `x` is the operand that the elements are of: {n, channels, ..}, by `of_groups`.
    """
    if x.rank < 3 or w.rank != x.rank:
        raise OperatorError(f"the operand {x} and the weights {w} do not fit a convolution")
    if group == 1:
        return _product(b, w, geometry, element, x, kind)
    per_group = static(w.shape[1], "the weights' channel extent")
    channels = static(w.shape[0], "the number of output channels")
    whole = Index.of(per_group * group)
    if channels % group or (x.shape[1].is_const and x.shape[1] != whole):
        raise OperatorError(
            f"the operand {x}, the weights {w} and group={group} do not fit a convolution"
        )
    rank = len(geometry.kernel)
    n = b.axis(x.shape[0], "n")
    space = b.axes(geometry.out, spatial_roles(rank))
    taps = b.axes(geometry.kernel, kernel_roles(rank))
    ci = b.axis(per_group, "c")
    outputs = channels // group

    def factors_of(group_index: Index, out_channel: Index) -> tuple[Expr, Expr]:
        return (
            element(n, group_index * per_group + ci.index, taps, space),
            b.read(w, [out_channel, ci.index, *(k.index for k in taps)]),
        )

    if per_group == 1:
        co = b.axis(channels, "c")
        source = floordiv(co.index, Index.of(outputs), b.ranges)
        factors = factors_of(source, co.index)
        return sum_products(b, (n, co, *space), (ci, *taps), factors, kind)
    g, inner = b.axis(group, "g"), b.axis(outputs, "c")
    factors = factors_of(g.index, g.index * outputs + inner.index)
    parts = sum_products(b, (n, g, inner, *space), (ci, *taps), factors, kind)
    return _of_all_groups(b, parts)


def _of_all_groups(b: Builder, parts: Tensor) -> Tensor:
    """{n, group, channel of it, spatial ..} as {n, channel, spatial ..}."""
    batch, groups, each, *space = parts.shape

    def merged(i: Index, c: Index, *rest: Index) -> tuple[Index, ...]:
        return i, floordiv(c, each, b.ranges), mod(c, each, b.ranges), *rest

    roles = ("n", "c", *spatial_roles(len(space)))
    return b.view(parts, (batch, groups * each, *space), merged, roles)


def _product(
    b: Builder,
    w: Tensor,
    geometry: Window,
    element: Callable[[Axis, Index, Sequence[Axis], Sequence[Axis]], Expr],
    x: Tensor,
    kind: DType,
) -> Tensor:
    """`grouped_product` of one group, whose channels may be symbolic sizes."""
    rank = len(geometry.kernel)
    n, co = b.axis(x.shape[0], "n"), b.axis(w.shape[0], "c")
    space, taps = (
        b.axes(geometry.out, spatial_roles(rank)),
        b.axes(geometry.kernel, kernel_roles(rank)),
    )
    taken, given = w.shape[1], x.shape[1]
    if taken != given and taken.is_const and given.is_const:
        raise KnownSizesError(f"the weights take {taken} channels, and the operand has {given}")
    ci = b.axis(b.same(taken, given), "c")
    factors = (
        element(n, ci.index, taps, space),
        b.read(w, [co.index, ci.index, *(k.index for k in taps)]),
    )
    return sum_products(b, (n, co, *space), (ci, *taps), factors, kind)


def with_bias(b: Builder, y: Tensor, bias: Tensor | None) -> Tensor:
    """`y` plus a bias along its second axis."""
    if bias is None:
        return y
    sizes = (bias.shape[0], y.shape[1]) if bias.rank == 1 else (ZERO, ONE)
    if sizes[0] != sizes[1] and sizes[0].is_const and sizes[1].is_const:
        raise OperatorError(f"the bias {bias} does not fit {y}")
    per_channel = b.reshaped(bias, (*bias.axes, *b.axes((1,) * (y.rank - 2))))
    return b.map(add, y, per_channel, onto=True)


@operator("ConvInteger")
def conv_integer(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """The i32 convolution of 8-bit operands, their zero points subtracted."""

    def centered(t: Tensor, zero: Tensor | None) -> Tensor:
        if zero is None:
            return b.map(lambda e: cast(e, DType.I32), t)
        if zero.rank == 1 and zero.shape[0] != ONE:
            zero = b.reshaped(zero, (*zero.axes, *b.axes((1,) * (t.rank - 1))))
        return b.map(lambda e, z: apply("sub", cast(e, DType.I32), cast(z, DType.I32)), t, zero)

    kernel = tuple(static(e, "the kernel's extent") for e in w.shape[2:])
    geometry = window(
        b,
        x.shape[2:],
        kernel,
        auto_pad=auto_pad,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    return _convolved(b, centered(x, x_zero), centered(w, w_zero), group, geometry, DType.I32)


@operator("ConvTranspose")
def conv_transpose(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """out{n,co,y} = sum{ci,k} x[n, ci, y'] * w[ci,co,k], y' * stride = y + pad - dilation * k.

    With stride s the taps that meet an output y are those where s divides y + pad - dilation * k;
    the others contribute 0.
    """
    rank = x.rank - 2
    kernel = (
        w.shape[2:] if not kernel_shape else tuple(map(Index.of, kernel_of(b, w, kernel_shape)))
    )
    strides = tuple(strides) or (1,) * rank
    dilations = tuple(dilations) or (1,) * rank
    extra = tuple(output_padding) or (0,) * rank
    pads = tuple(pads) or (0,) * (2 * rank)
    begin, end = list(map(Index.of, pads[:rank])), list(map(Index.of, pads[rank:]))
    out: list[Index] = []
    for i, (n, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        full = (n - 1) * s + ((k - 1) * d + 1 + extra[i])
        size = full - (begin[i] + end[i])
        if output_shape or auto_pad.startswith("SAME"):
            size = Index.of(output_shape[i - rank]) if output_shape else n * s
            total = maximum(full - size, 0, b.ranges)
            half = floordiv(total, Index.of(2), b.ranges)
            begin[i] = half if auto_pad == "SAME_UPPER" else total - half
        elif auto_pad == "VALID":
            begin[i], size = ZERO, full
        out.append(size)
    channels_in = b.same(w.shape[0], x.shape[1])
    per_group_in = channels_in
    if group > 1:
        count = static(channels_in, "the number of input channels")
        if count % group:
            raise OperatorError(f"{count} input channels are not divisible into {group} groups")
        per_group_in = Index.of(count // group)
    per_group_out = w.shape[1]
    batch = b.axis(x.shape[0], "n")
    g, co = b.axis(group, "g"), b.axis(per_group_out, "c")
    space = b.axes(out, spatial_roles(rank))
    taps, ci = b.axes(kernel, kernel_roles(rank)), b.axis(per_group_in, "c")
    at, guards = _upsampled(b, space, taps, strides, dilations, begin)
    channel = g.index * per_group_in + ci.index
    left = b.read(x, [batch.index, channel, *at], lit(0, x.dtype))
    for guard in guards:
        left = apply("select", guard, left, lit(0, x.dtype))
    right = b.read(w, [channel, co.index, *(k.index for k in taps)])
    parts = sum_products(b, (batch, g, co, *space), (ci, *taps), (left, right), x.dtype)
    if group == 1:
        y = b.reshaped(parts, (parts.axes[0], *parts.axes[2:]))
    else:
        y = _of_all_groups(b, parts)
    return with_bias(b, y, bias)


@operator("Col2Im")
def col2im(
    b: Builder,
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """out{n,c,y} = sum{k} x[n, c, k, y'], y' * stride = y + pad - dilation * k: blocks added up."""
    block = sizes(b, block_shape, "block_shape", 1)
    rank = len(block)
    image = sizes(b, image_shape, "image_shape", 0, rank)
    strides, dilations = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
    pads = tuple(pads) or (0,) * (2 * rank)
    if not len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise OperatorError(f"strides, dilations or pads do not fit {rank} spatial axes")
    if min((*strides, *dilations)) < 1:
        raise OperatorError("strides and dilations must be positive")
    begin, end = pads[:rank], pads[rank:]
    along = [
        floordiv(e + (p + q) - (k - 1) * d - 1, Index.of(s), b.ranges) + 1
        for e, k, s, d, p, q in zip(image, block, strides, dilations, begin, end, strict=True)
    ]
    blocks = tuple(maximum(e, 0, b.ranges) for e in along)
    if x.rank != 3:
        raise OperatorError(f"{x} does not hold blocks: it should have three axes")
    channels = floordiv(x.shape[1], product(block), b.ranges)
    held = (x.shape[0], channels * product(block), product(blocks))
    x = of_shape(b, x, held, f"holds the blocks of an image {shape_text(image)}")
    parts = reshape(b, x, (x.shape[0], channels, *block, *blocks))
    n, c = b.axis(x.shape[0], "n"), b.axis(channels, "c")
    space = b.axes(image, spatial_roles(rank))
    taps = b.axes(block, kernel_roles(rank))
    at, guards = _upsampled(b, space, taps, strides, dilations, begin)
    element = b.read(parts, [n.index, c.index, *(k.index for k in taps), *at], lit(0, x.dtype))
    for guard in guards:
        element = apply("select", guard, element, lit(0, x.dtype))
    return b.nest((n, c, *space), element, taps)


def _upsampled(
    b: Builder,
    space: Sequence[Axis],
    taps: Sequence[Axis],
    strides: Sequence[int],
    dilations: Sequence[int],
    begin: Sequence[Index | int],
) -> tuple[list[Index], list[Expr]]:
    """The operand's coordinates and the conditions that a tap meets an element of it."""
    at: list[Index] = []
    guards: list[Expr] = []
    for o, k, s, d, p in zip(space, taps, strides, dilations, begin, strict=True):
        position = o.index + p - k.index * d
        at.append(floordiv(position, Index.of(s), b.ranges))
        left = mod(position, Index.of(s), b.ranges)
        if left != Index.of(0):
            guards.append(apply("eq", IndexValue(left), Lit(0, DType.I64)))
    return at, guards
