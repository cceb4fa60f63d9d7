"""Pooling: reductions over a sliding window or over all spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.reductions import divided, reduced
from rutc.importer.ops.window import Window, kernel_roles, spatial_roles, window
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast, reducer
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv, maximum, minimum, product
from rutc.tensor_ir.reducer import lowest


@operator("MaxPool")
def max_pool(
    b: Builder,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    storage_order: int = 0,
    strides: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """The maximum over the window, and where asked for the flat index that it was found at."""
    geometry = window(
        b,
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        dilations=dilations,
        pads=pads,
        strides=strides,
        ceil_mode=bool(ceil_mode),
    )
    axes, taps, at = _windows(b, x, geometry)
    element = b.read(x, [*(a.index for a in axes[:2]), *at], lowest(x.dtype))
    if len(b.outputs) == 1:
        return (b.nest(axes, element, taps, "max"),)
    order = list(range(len(at)))
    if storage_order:
        order.reverse()
    flat = ZERO
    for i in order:
        flat = flat * x.shape[2 + i] + at[i]
    outer = axes[0].index * x.shape[1] + axes[1].index
    flat = flat + outer * product(x.shape[2:])
    how = reducer("argmax", x.dtype, DType.I64)
    # Taps in the padding must never win: they are what the reduction begins with.
    valid: Expr = IndexValue(flat)
    for c, n in zip(at, x.shape[2:], strict=True):
        if not b.inside(c, n):
            low = apply("ge", IndexValue(c), lit(0, DType.I64))
            high = apply("lt", IndexValue(c - n), lit(0, DType.I64))
            valid = apply("select", apply("and", low, high), valid, how.identity[1])
    if all(t.dim is None for t in taps):
        return b.nest(axes, element), b.nest(axes, valid)
    return b.multi(axes, (element, valid), taps, how)


def _windows(
    b: Builder, x: Tensor, geometry: Window
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Index, ...]]:
    """The output's axes, the window's axes and the operand's spatial coordinates."""
    rank = len(geometry.kernel)
    axes = b.axes((*x.shape[:2], *geometry.out), ("n", "c", *spatial_roles(rank)))
    taps = b.axes(geometry.kernel, kernel_roles(rank))
    return axes, taps, geometry.coords(axes[2:], taps)


@operator("AveragePool")
def average_pool(
    b: Builder,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """The mean over the window; padding counts only with `count_include_pad`."""
    geometry = window(
        b,
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        dilations=dilations,
        pads=pads,
        strides=strides,
        ceil_mode=bool(ceil_mode),
    )
    axes, taps, at = _windows(b, x, geometry)
    element = b.read(x, [*(a.index for a in axes[:2]), *at], lit(0, x.dtype))
    # A sum may be beyond the range of a type of 16 bits where its mean is not.
    total = b.nest(axes, cast(element, x.dtype.computing), taps)
    mean_axes = b.axes(total.shape)
    count = _count(b, x, geometry, mean_axes[2:], include_pad=bool(count_include_pad))
    value = b.spread(total, mean_axes)
    return b.nest(mean_axes, cast(divided(value, count), x.dtype))


def _count(
    b: Builder, x: Tensor, geometry: Window, out: Sequence[Axis], *, include_pad: bool
) -> Index:
    """How many elements the window at `out` holds, per axis those within the counted part."""
    total = ONE
    for i, (o, n) in enumerate(zip(out, x.shape[2:], strict=True)):
        k, s, d = geometry.kernel[i], geometry.strides[i], geometry.dilations[i]
        start = o.index * s - geometry.begin[i]
        low = -geometry.begin[i] if include_pad else 0
        high = n + geometry.end[i] if include_pad else n
        first = maximum(-floordiv(start - low, Index.of(d), b.ranges), 0, b.ranges)
        last = minimum(floordiv(high - 1 - start, Index.of(d), b.ranges) + 1, k, b.ranges)
        total = total * (last - first)
    return total


@operator("LpPool")
def lp_pool(
    b: Builder,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """(sum of |x| ** p) ** (1 / p) over the window."""
    geometry = window(
        b,
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        dilations=dilations,
        pads=pads,
        strides=strides,
        ceil_mode=bool(ceil_mode),
    )
    axes, taps, at = _windows(b, x, geometry)
    element = b.read(x, [*(a.index for a in axes[:2]), *at], lit(0, x.dtype))
    powers = b.nest(axes, _power(cast(element, x.dtype.computing), p), taps)
    return b.map(lambda e: cast(_root(e, p), x.dtype), powers)


def _power(e: Expr, p: int) -> Expr:
    size = apply("abs", e)
    return {1: size, 2: apply("mul", e, e)}.get(p, apply("pow", size, lit(p, e.dtype)))


def _root(e: Expr, p: int) -> Expr:
    if p == 1:
        return e
    return apply("sqrt", e) if p == 2 else apply("pow", e, lit(1 / p, e.dtype))


@operator("GlobalMaxPool")
def global_max_pool(b: Builder, x: Tensor) -> Tensor:
    """The maximum over all spatial axes."""
    return reduced(b, x, tuple(range(2, x.rank)), "max", keepdims=True)


@operator("GlobalAveragePool")
def global_average_pool(b: Builder, x: Tensor) -> Tensor:
    """The mean over all spatial axes."""
    return reduced(b, x, tuple(range(2, x.rank)), "mean", keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(b: Builder, x: Tensor, *, p: int = 2) -> Tensor:
    """(sum of |x| ** p) ** (1 / p) over all spatial axes."""
    spatial = tuple(range(2, x.rank))

    def lift(e: Expr) -> Expr:
        return _power(e, p)

    def root(e: Expr) -> Expr:
        return _root(e, p)

    return reduced(b, x, spatial, "sum", keepdims=True, lift=lift, finish=root)
