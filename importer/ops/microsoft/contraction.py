"""Products and convolutions with what is fused to them, and with quantised weights."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add, mul, scaled, tanh_gelu_of
from rutc.importer.ops.contraction import centered, gemm, matmul_of, sum_products
from rutc.importer.ops.convolution import conv
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.activation import activated
from rutc.importer.ops.movement import transpose
from rutc.importer.ops.quantization import dynamic_quantize_linear
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, apply, cast
from rutc.tensor_ir.indices.affine import ONE


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


@operator("CDist", DOMAIN)
def distances(b: Builder, x: Tensor, y: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """{m, n}: how far rows of `x` are from rows of `y`, squared or not."""
    if x.rank != 2 or y.rank != 2:
        raise OperatorError(f"matrices are expected, not {x} and {y}")
    if metric not in ("euclidean", "sqeuclidean"):
        raise OperatorError(f"the metric {metric!r} is not supported")
    rows, columns = b.axes((x.shape[0], y.shape[0]), ("m", "n"))
    k = b.axis(b.same(x.shape[1], y.shape[1]), "k")
    apart = apply("sub", b.read(x, [rows.index, k.index]), b.read(y, [columns.index, k.index]))
    squared = sum_products(b, (rows, columns), (k,), (apart, apart), x.dtype)
    return b.map(lambda e: apply("sqrt", e), squared) if metric == "euclidean" else squared


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
    real = scaled_columns(b, total, axes, x_scale, w_scale)
    if bias is not None:
        real = add(real, b.spread(bias, axes))
    return b.nest(axes, real)


def scaled_columns(
    b: Builder, total: Tensor, axes: Sequence[Axis], x_scale: Tensor, w_scale: Tensor
) -> Expr:
    """The element at `axes` of a sum of products of stored numbers, as a real number.

    Each scale is one number, or one for every column.
    """

    def of_column(t: Tensor) -> Expr:
        if t.size == ONE:
            return b.read(t, [0] * t.rank)
        fitting = of_shape(b, t, total.shape[-1:], "scales columns")
        return b.read(fitting, [axes[-1].index])

    whole = cast(b.spread(total, axes), x_scale.dtype)
    return mul(whole, mul(of_column(x_scale), of_column(w_scale)))


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
