"""Products and convolutions with what is fused to them, and with quantised weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.builder import Builder
from rutc.importer.expressions import OperatorError
from rutc.importer.ops.activations import add, mul, scaled, tanh_gelu_of
from rutc.importer.ops.contraction import centered, gemm, matmul_of
from rutc.importer.ops.convolution import conv
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.activation import activated
from rutc.importer.ops.movement import transpose
from rutc.importer.ops.quantization import dynamic_quantize_linear
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import DType, Expr, Index, apply, cast
from rutc.tensor_ir.affine import ONE, floordiv


def _turned(b: Builder, x: Tensor, *, last: int, batch: int) -> Tensor:
    """An operand of FusedMatMul as a stack of matrices.

    `batch` says that its first axis is that of the rows and the stack's follow it; `last` that the
    last two axes are exchanged (after that).
    """
    order = list(range(x.rank))
    if batch and x.rank > 2:
        order = [*order[1:-1], 0, x.rank - 1]
    if last and x.rank > 1:
        order[-2:] = order[:-3:-1]
    return x if order == list(range(x.rank)) else transpose(b, x, perm=order)


@operator("TransposeMatMul", DOMAIN)
@operator("FusedMatMul", DOMAIN)
def fused_matmul(
    b: Builder,
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Tensor:
    """`alpha` * x' @ y', where ' may transpose the matrices and the stack."""
    left = _turned(b, x, last=transA, batch=transBatchA)
    right = _turned(b, y, last=transB, batch=transBatchB)
    total = matmul_of(b, left, right)
    return total if alpha == 1.0 else b.map(lambda e: scaled(e, alpha), total)


@operator("FusedMatMulActivation", DOMAIN)
def fused_matmul_activation(
    b: Builder,
    x: Tensor,
    y: Tensor,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Tensor:
    """An activation of `alpha` * x' @ y'."""
    total = fused_matmul(
        b,
        x,
        y,
        alpha=alpha,
        transA=transA,
        transB=transB,
        transBatchA=transBatchA,
        transBatchB=transBatchB,
    )
    given = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return activated(b, total, activation, given)


@operator("FusedGemm", DOMAIN)
def fused_gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """An activation of Gemm."""
    total = gemm(b, x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return activated(b, total, activation, given)


@operator("GemmFastGelu", DOMAIN)
def gemm_fast_gelu(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gelu, by the tanh approximation, of x @ w + bias."""
    total = matmul_of(b, x, w)
    if bias is None:
        return b.map(tanh_gelu_of, total)
    return b.wide(lambda e, c: tanh_gelu_of(add(e, c)), total, bias)


@operator("FusedConv", DOMAIN)
def fused_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    summand: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """An activation of Conv plus `summand`."""
    total = conv(
        b,
        x,
        w,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if summand is not None:
        total = b.map(add, total, summand)
    return activated(b, total, activation, activation_params)


def with_channels_first(b: Builder, x: Tensor) -> Tensor:
    """{n, spatial .., c} as {n, c, spatial ..}."""
    return transpose(b, x, perm=(0, x.rank - 1, *range(1, x.rank - 1)))


def with_channels_last(b: Builder, x: Tensor) -> Tensor:
    """{n, c, spatial ..} as {n, spatial .., c}."""
    return transpose(b, x, perm=(0, *range(2, x.rank), 1))


@operator("NhwcConv", DOMAIN)
@operator("NhwcFusedConv", DOMAIN)
def nhwc_fused_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    summand: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """FusedConv of operands whose channels are the last axis."""
    total = fused_conv(
        b,
        with_channels_first(b, x),
        w,
        bias,
        None if summand is None else with_channels_first(b, summand),
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return with_channels_last(b, total)


UNSIGNED = {2: DType.U2, 4: DType.U4, 8: DType.U8}
"""The type of packed numbers of so many bits."""
SIGNED = {2: DType.I2, 4: DType.I4, 8: DType.I8}
"""Their type less half of their range."""


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` numbers of each row of packed bytes, the low bits of a byte first."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * bits
    mask = (1 << bits) - 1
    rows = (packed[..., None] >> shifts) & mask
    return rows.reshape(*packed.shape[:-1], -1)[..., :count].astype(UNSIGNED[bits].numpy)


def _known(t: Tensor, what: str) -> np.ndarray:
    if t.array is None:
        raise OperatorError(f"{what} are computed at run time; they must be constants")
    return t.array


@operator("MatMulNBits", DOMAIN)
def matmul_n_bits(
    b: Builder,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """x @ w' + bias, w{n,k} = (stored - zero point) * scale of the block of `block_size` in k.

    `accuracy_level` allows less accurate products; they are computed in the operand's type here.
    """
    if bits not in UNSIGNED or order is not None or weight_prepacked:
        raise OperatorError("only 2, 4 or 8 bits without g_idx and prepacking are supported")
    blocks = -(-K // block_size)
    stored = _known(packed, "the weights").reshape(N, blocks, -1)
    numbers = unpacked(stored, bits, block_size).reshape(N, blocks * block_size)[:, :K]
    kind = UNSIGNED[bits]
    if zeros is None:
        # All of them have one zero point, which is taken from the constant itself.
        kind, whole = SIGNED[bits], numbers.astype(np.int16) - (1 << (bits - 1))
        numbers = whole.astype(kind.numpy)
    w = b.constant(np.ascontiguousarray(numbers), kind, f"{b.base}_weights")
    n, k = b.axis(N, "n"), b.axis(K, "k")
    place = [n.index, floordiv(k.index, Index.of(block_size), b.ranges)]
    by = b.constant(_known(scales, "the scales").reshape(N, blocks), scales.dtype)
    number: Expr = cast(b.read(w, [n.index, k.index]), DType.F32)
    if zeros is not None:
        points, of = _known(zeros, "the zero points"), zeros.dtype
        if of is DType.U8:
            points, of = unpacked(points.reshape(N, -1), bits, blocks), UNSIGNED[bits]
        middle = b.read(b.constant(points.reshape(N, blocks), of), place)
        number = apply("sub", number, cast(middle, DType.F32))
    weight = mul(number, cast(b.read(by, place), DType.F32))
    dense = b.nest((n, k), cast(weight, x.dtype), hint=f"{b.base}_dense")
    total = matmul_of(b, x, transpose(b, dense))
    return total if bias is None else b.map(add, total, bias)


@operator("MatMulIntegerToFloat", DOMAIN)
def matmul_integer_to_float(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of quantised matrices as real numbers, plus a bias."""
    total = matmul_of(b, centered(b, x, x_zero, rows=True), centered(b, w, w_zero, rows=False))
    axes = b.axes(total.shape)

    def scale(t: Tensor) -> Expr:
        if t.size == ONE:
            return b.read(t, [0] * t.rank)
        fitting = of_shape(b, t, total.shape[-1:], "scales columns")
        return b.read(fitting, [axes[-1].index])

    real = mul(cast(b.spread(total, axes), x_scale.dtype), mul(scale(x_scale), scale(w_scale)))
    if bias is not None:
        real = add(real, b.spread(bias, axes))
    return b.nest(axes, real)


@operator("DynamicQuantizeMatMul", DOMAIN)
def dynamic_quantize_matmul(
    b: Builder,
    x: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of x, quantised to 8 bits by its own range, and quantised weights."""
    stored, scale, zero = dynamic_quantize_linear(b, x)
    return matmul_integer_to_float(b, stored, w, scale, w_scale, zero, w_zero, bias)
