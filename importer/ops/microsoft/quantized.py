"""Operators on quantised tensors: the operands as real numbers, the operator, the result stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add, leaky_relu_of, mul, scaled, sigmoid_of
from rutc.importer.ops.contraction import centered, matmul_of
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.elementwise import where
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.contraction import (
    scaled_columns,
    with_channels_first,
    with_channels_last,
)
from rutc.importer.ops.movement import flatten, transpose
from rutc.importer.ops.normalization import softmax
from rutc.importer.ops.operands import axes_of, axis_of
from rutc.importer.ops.pooling import average_pool, global_average_pool, max_pool
from rutc.importer.ops.quantization import dequantize_linear, qlinear_conv, quantize_linear
from rutc.importer.ops.reductions import reduced
from rutc.importer.ops.reshape import reshape
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr


def _stored(b: Builder, y: Tensor, scale: Tensor, zero: Tensor | None, kind: DType) -> Tensor:
    """`y` in units of the scale, as `kind`."""
    if zero is None:
        zero = b.constant(np.zeros((), kind.numpy), kind)
    return quantize_linear(b, y, scale, zero)


@operator("QuantizeLinear", DOMAIN)
def quantize(
    b: Builder, x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1
) -> Tensor:
    """saturate(round(x / scale) + zero point)."""
    return quantize_linear(b, x, scale, zero, axis=axis)


@operator("DequantizeLinear", DOMAIN)
def dequantize(
    b: Builder, x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1
) -> Tensor:
    """(x - zero point) * scale."""
    return dequantize_linear(b, x, scale, zero, axis=axis)


def _register_binary(name: str, fn: Callable[[Expr, Expr], Expr]) -> None:
    @operator(name, DOMAIN)
    def binary(
        b: Builder,
        x: Tensor,
        x_scale: Tensor,
        x_zero: Tensor | None,
        y: Tensor,
        y_scale: Tensor,
        y_zero: Tensor | None,
        scale: Tensor,
        zero: Tensor | None = None,
    ) -> Tensor:
        left = dequantize_linear(b, x, x_scale, x_zero)
        right = dequantize_linear(b, y, y_scale, y_zero)
        return _stored(b, b.map(fn, left, right), scale, zero, x.dtype)


_register_binary("QLinearAdd", add)
_register_binary("QLinearMul", mul)


@operator("QLinearSigmoid", DOMAIN)
def qlinear_sigmoid(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    """1 / (1 + exp(-x))."""
    y = b.map(sigmoid_of, dequantize_linear(b, x, x_scale, x_zero))
    return _stored(b, y, scale, zero, x.dtype)


@operator("QLinearLeakyRelu", DOMAIN)
def qlinear_leaky_relu(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    """`x` where x >= 0, else alpha * x."""
    real = dequantize_linear(b, x, x_scale, x_zero)
    return _stored(b, b.map(lambda e: leaky_relu_of(e, alpha), real), scale, zero, x.dtype)


@operator("QLinearSoftmax", DOMAIN)
def qlinear_softmax(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor,
    *,
    axis: int = -1,
    opset: int,
) -> Tensor:
    """Softmax along an axis; before opset 13 over all axes from it on."""
    real = dequantize_linear(b, x, x_scale, x_zero)
    at = axis_of(axis, x.rank)
    if opset < 13:
        y = reshape(b, softmax(b, flatten(b, real, axis=at)), x.shape)
    else:
        y = softmax(b, real, axis=at)
    return _stored(b, y, scale, zero, x.dtype)


@operator("QLinearAveragePool", DOMAIN)
def qlinear_average_pool(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """The mean over the window."""
    real = dequantize_linear(b, x, x_scale, x_zero)
    y = average_pool(
        b,
        with_channels_first(b, real) if channels_last else real,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    y = with_channels_last(b, y) if channels_last else y
    return _stored(b, y, scale, zero, x.dtype)


@operator("QLinearGlobalAveragePool", DOMAIN)
def qlinear_global_average_pool(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    *,
    channels_last: int = 0,
) -> Tensor:
    """The mean over all spatial axes."""
    real = dequantize_linear(b, x, x_scale, x_zero)
    y = global_average_pool(b, with_channels_first(b, real) if channels_last else real)
    y = with_channels_last(b, y) if channels_last else y
    return _stored(b, y, scale, zero, x.dtype)


@operator("NhwcMaxPool", DOMAIN)
def nhwc_max_pool(
    b: Builder,
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] = (),
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """The maximum over the window of an operand whose channels are the last axis."""
    y, *_ = max_pool(
        b,
        with_channels_first(b, x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return with_channels_last(b, y)


@operator("QLinearConcat", DOMAIN)
def qlinear_concat(b: Builder, scale: Tensor, zero: Tensor, *operands: Tensor, axis: int) -> Tensor:
    """The operands, each with its scale and zero point, one after the other along an axis."""
    if len(operands) % 3 or not operands:
        raise OperatorError(f"{len(operands)} operands are no triples of tensor, scale and zero")
    triples = zip(operands[::3], operands[1::3], operands[2::3], strict=True)
    real = [dequantize_linear(b, x, s, z) for x, s, z in triples]
    return _stored(b, concat(b, *real, axis=axis), scale, zero, zero.dtype)


@operator("QLinearWhere", DOMAIN)
def qlinear_where(
    b: Builder,
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    """`x` where the condition holds, else y."""
    real = (dequantize_linear(b, x, x_scale, x_zero), dequantize_linear(b, y, y_scale, y_zero))
    return _stored(b, where(b, condition, *real), scale, zero, x.dtype)


@operator("QLinearReduceMean", DOMAIN)
def qlinear_reduce_mean(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Tensor:
    """The mean over axes."""
    real = dequantize_linear(b, x, x_scale, x_zero)
    at = axes_of(tuple(axes), x.rank) or tuple(range(x.rank))
    y = reduced(b, real, at, "mean", keepdims=bool(keepdims))
    return _stored(b, y, scale, zero, x.dtype)


@operator("QLinearConv", DOMAIN)
def qlinear_conv_of_layout(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """QLinearConv, also of operands whose channels are the last axis."""
    y = qlinear_conv(
        b,
        with_channels_first(b, x) if channels_last else x,
        x_scale,
        x_zero,
        w,
        w_scale,
        w_zero,
        scale,
        zero,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return with_channels_last(b, y) if channels_last else y


@operator("QGemm", DOMAIN)
def qgemm(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    c: Tensor | None = None,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """`alpha` * (x' @ y' + c) as real numbers, or where a scale is given stored again."""
    left = transpose(b, x, perm=(1, 0)) if transA else x
    right = transpose(b, y, perm=(1, 0)) if transB else y
    whole = matmul_of(
        b, centered(b, left, x_zero, rows=True), centered(b, right, y_zero, rows=False)
    )
    if c is not None:
        whole = b.map(add, whole, c)
    axes = b.axes(whole.shape)
    real = scaled_columns(b, whole, axes, x_scale, y_scale)
    made = b.nest(axes, real if alpha == 1.0 else scaled(real, alpha))
    return made if scale is None else _stored(b, made, scale, zero, x.dtype)
