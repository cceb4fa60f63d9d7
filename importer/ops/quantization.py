"""Quantised tensors: real = (stored - zero point) * scale."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add, clamped
from rutc.importer.ops.contraction import matmul_of
from rutc.importer.ops.convolution import conv_integer
from rutc.importer.ops.elementwise import conversion
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.operands import axis_of
from rutc.importer.ops.reductions import reduced
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import BitCast, DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import ONE, floordiv


def _per_axis(
    b: Builder, x: Tensor, t: Tensor, axes: Sequence[Axis], axis: int, block: int
) -> Expr:
    """The element of a scale or zero point that belongs to x's element at `axes`."""
    if t.size == ONE:
        return b.read(t, [0] * t.rank)
    at = axis_of(axis, x.rank)
    if t.rank == 1 and not block:
        if (t.shape[0] - x.shape[at]).is_const and t.shape[0] != x.shape[at]:
            raise OperatorError(f"{t} does not hold one element for each index of axis {at} of {x}")
        b.broadcast_to((x.shape[at],), t.shape)
        return b.read(t, [b.along(t.axes[0], axes[at])])
    if not block or t.rank != x.rank:
        raise OperatorError(f"the scale {t} does not fit {x}")
    blocks = floordiv(x.shape[at] + (block - 1), Index.of(block), b.ranges)
    shape = [blocks if k == at else e for k, e in enumerate(x.shape)]
    t = of_shape(b, t, shape, f"holds one element for each block of {x}")
    coords: list[Index] = [a.index for a in axes]
    coords[at] = floordiv(coords[at], Index.of(block), b.ranges)
    return b.read(t, coords)


def rounded_to(e: Expr, zero: Expr | None, kind: DType, *, saturate: bool = True) -> Expr:
    """A real number in units of the scale as a stored one: rounded, shifted, saturated."""
    if kind.is_float:
        shifted = e if zero is None else apply("add", e, cast(zero, e.dtype))
        return conversion(shifted, kind, saturate=saturate)
    whole = apply("round", e)
    if zero is not None:
        whole = apply("add", whole, cast(zero, e.dtype))
    info = ml_dtypes.iinfo(kind.numpy)  # type: ignore[no-untyped-call]
    low, high = lit(int(info.min), e.dtype), lit(int(info.max), e.dtype)
    return cast(cast(apply("min", apply("max", whole, low), high), DType.I32), kind)


@operator("QuantizeLinear")
def quantize_linear(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    round_mode: str = "up",
) -> Tensor:
    """saturate(round(x / scale) + zero point) as the zero point's type."""
    kind = zero.dtype if zero is not None else DType.U8
    if zero is None and output_dtype:
        kind = dtype_of(output_dtype)
    work = dtype_of(precision) if precision else scale.dtype
    if not work.is_float:
        work = DType.F64
    elif work is DType.F8E8M0:
        work = DType.F32
    axes = b.axes(x.shape)
    step = cast(_per_axis(b, x, scale, axes, axis, block_size), work)
    units = cast(apply("div", cast(b.spread(x, axes), work), step), work.computing)
    offset = _per_axis(b, x, zero, axes, axis, block_size) if zero is not None else None
    return b.nest(axes, rounded_to(units, offset, kind, saturate=bool(saturate)))


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(b: Builder, x: Tensor) -> tuple[Tensor, ...]:
    """`x` as u8 by its own range with 0 in it: y, the scale and the zero point."""
    every = tuple(range(x.rank))
    low, high = (reduced(b, x, every, how, keepdims=False) for how in ("min", "max"))
    nothing = lit(0, x.dtype)

    def step(least: Expr, most: Expr) -> Expr:
        width = apply("sub", apply("max", most, nothing), apply("min", least, nothing))
        flat = apply("eq", width, nothing)
        return apply("select", flat, lit(1, x.dtype), apply("div", width, lit(255, x.dtype)))

    scale = b.map(step, low, high)

    def middle(least: Expr, by: Expr) -> Expr:
        units = apply("div", apply("neg", apply("min", least, nothing)), by)
        return cast(apply("round", clamped(units, 0, 255)), DType.U8)

    zero = b.map(middle, low, scale)
    return quantize_linear(b, x, scale, zero), scale, zero


@operator("DequantizeLinear")
def dequantize_linear(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """(x - zero point) * scale."""
    kind = dtype_of(output_dtype) if output_dtype else scale.dtype
    axes = b.axes(x.shape)
    value = b.spread(x, axes)
    step = cast(_per_axis(b, x, scale, axes, axis, block_size), DType.F32)
    if x.dtype.is_float:
        real = cast(value, DType.F32)
        if zero is not None:
            offset = _per_axis(b, x, zero, axes, axis, block_size)
            real = apply("sub", real, cast(offset, DType.F32))
    else:
        wide = cast(value, DType.I32)
        if zero is not None:
            offset = _per_axis(b, x, zero, axes, axis, block_size)
            wide = apply("sub", wide, cast(offset, DType.I32))
        real = cast(wide, DType.F32)
    return b.nest(axes, cast(apply("mul", real, step), kind))


def _centered(b: Builder, x: Tensor, zero: Tensor, axis: int) -> Tensor:
    axes = b.axes(x.shape)
    offset = cast(_per_axis(b, x, zero, axes, axis, 0), DType.I32)
    return b.nest(axes, apply("sub", cast(b.spread(x, axes), DType.I32), offset))


def _requantized(
    b: Builder, total: Tensor, scales: Sequence[tuple[Tensor, int]], zero: Tensor
) -> Tensor:
    """An i32 total as a stored number: times the operands' scales, by the output's (the last)."""
    axes = b.axes(total.shape)
    *operands, (out, _) = scales
    factor: Expr | None = None
    for t, axis in operands:
        e = cast(_per_axis(b, total, t, axes, axis, 0), DType.F32)
        factor = e if factor is None else apply("mul", factor, e)
    assert factor is not None
    step = cast(b.read(out, [0] * out.rank), DType.F32)
    real = apply("mul", cast(b.spread(total, axes), DType.F32), apply("div", factor, step))
    offset = b.read(zero, [0] * zero.rank)
    return b.nest(axes, rounded_to(real, offset, zero.dtype))


@operator("QLinearMatMul")
def qlinear_matmul(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    out_scale: Tensor,
    out_zero: Tensor,
) -> Tensor:
    """The product of quantised matrices, quantised."""
    left, right = _centered(b, x, x_zero, -2), _centered(b, y, y_zero, -1)
    total = matmul_of(b, left, right)
    return _requantized(b, total, [(x_scale, -2), (y_scale, -1), (out_scale, 0)], out_zero)


@operator("QLinearConv")
def qlinear_conv(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    out_scale: Tensor,
    out_zero: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """The convolution of quantised operands, quantised."""
    total = conv_integer(
        b,
        x,
        w,
        x_zero,
        w_zero,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if bias is not None:
        units = b.axes((1,) * (total.rank - 2))
        per_channel = b.reshaped(bias, (*bias.axes, *units))
        total = b.map(add, total, per_channel)
    return _requantized(b, total, [(x_scale, 1), (w_scale, 1), (out_scale, 0)], out_zero)


@operator("BitCast")
def bit_cast(b: Builder, x: Tensor, *, to: int) -> Tensor:
    """The bits of the elements as another type of the same width."""
    kind = dtype_of(to)
    if kind.bits != x.dtype.bits or not kind.bits:
        raise OperatorError(f"{x.dtype} and {kind} differ in width")
    return b.map(lambda e: BitCast(e, kind), x)
