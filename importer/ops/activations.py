"""Activation functions: one formula of one element (and its attributes) each."""

from __future__ import annotations

from math import pi, sqrt

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, apply, cast


def add(a: Expr, c: Expr) -> Expr:
    """`a` + c."""
    return apply("add", a, c)


def mul(a: Expr, c: Expr) -> Expr:
    """`a` * c."""
    return apply("mul", a, c)


def squared(e: Expr) -> Expr:
    """`e` * e."""
    return apply("mul", e, e)


def scaled(e: Expr, k: float) -> Expr:
    """`e` * k."""
    return apply("mul", e, lit(k, e.dtype))


def shifted(e: Expr, k: float) -> Expr:
    """`e` + k."""
    return apply("add", e, lit(k, e.dtype))


def clamped(e: Expr, low: float, high: float) -> Expr:
    """min(max(e, low), high)."""
    return apply("min", apply("max", e, lit(low, e.dtype)), lit(high, e.dtype))


def sigmoid_of(e: Expr) -> Expr:
    """1 / (1 + exp(-e))."""
    return apply("div", lit(1, e.dtype), shifted(apply("exp", apply("neg", e)), 1))


def relu_of(e: Expr) -> Expr:
    """max(e, 0)."""
    return apply("max", e, lit(0, e.dtype))


def softplus_of(e: Expr) -> Expr:
    """log(1 + exp(e)) as max(e, 0) + log(1 + exp(-|e|)), which does not overflow."""
    small = apply("exp", apply("neg", apply("abs", e)))
    one = shifted(small, 1)
    # log(1 + s) as log(u) * s / (u - 1) with u = 1 + s, as rounded: exact for small s too.
    ratio = apply("div", mul(apply("log", one), small), shifted(one, -1))
    tail = apply("select", apply("eq", one, lit(1, e.dtype)), small, ratio)
    return add(relu_of(e), tail)


def elu_of(e: Expr, alpha: float) -> Expr:
    """`e` where e >= 0, else alpha * (exp(e) - 1)."""
    return apply("select", apply("lt", e, lit(0, e.dtype)), _saturating(e, alpha), e)


def _saturating(e: Expr, alpha: float) -> Expr:
    """`alpha` * (exp(e) - 1), and 0 where e > 0."""
    return scaled(shifted(apply("exp", apply("min", e, lit(0, e.dtype))), -1), alpha)


def leaky_relu_of(e: Expr, alpha: float) -> Expr:
    """`e` where e >= 0, else alpha * e."""
    return apply("select", apply("lt", e, lit(0, e.dtype)), scaled(e, alpha), e)


def hard_sigmoid_of(e: Expr, alpha: float, beta: float) -> Expr:
    """`alpha` * e + beta between 0 and 1."""
    return clamped(shifted(scaled(e, alpha), beta), 0, 1)


@operator("Sigmoid")
def sigmoid(b: Builder, x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return b.wide(sigmoid_of, x)


@operator("Relu")
def relu(b: Builder, x: Tensor) -> Tensor:
    """max(x, 0)."""
    return b.wide(relu_of, x)


@operator("Softplus")
def softplus(b: Builder, x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return b.wide(softplus_of, x)


@operator("Softsign")
def softsign(b: Builder, x: Tensor) -> Tensor:
    """`x` / (1 + |x|)."""
    return b.wide(lambda e: apply("div", e, shifted(apply("abs", e), 1)), x)


@operator("LeakyRelu")
def leaky_relu(b: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """`x` where x >= 0, else alpha * x."""
    return b.wide(lambda e: leaky_relu_of(e, alpha), x)


@operator("PRelu")
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """`x` where x >= 0, else slope * x; slopes in a row that fit the channels only are theirs."""
    if slope.rank == 1 < x.rank and slope.shape[0] == x.shape[1] and _differ(b, slope, x):
        slope = b.reshaped(slope, (*slope.axes, *b.axes((1,) * (x.rank - 2))))
    return b.wide(
        lambda e, s: apply("select", apply("lt", e, lit(0, e.dtype)), mul(s, e), e),
        x,
        slope,
        onto=True,
    )


def _differ(b: Builder, slope: Tensor, x: Tensor) -> bool:
    """Whether there is another number of slopes than of columns, whatever the sizes."""
    apart = (slope.shape[0] - x.shape[-1]).bounds(b.ranges)
    return apart is not None and not apart[0] <= 0 <= apart[1]


@operator("ThresholdedRelu")
def thresholded_relu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` where x > alpha, else 0."""
    return b.wide(
        lambda e: apply("select", apply("gt", e, lit(alpha, e.dtype)), e, lit(0, e.dtype)), x
    )


@operator("Elu")
def elu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` where x >= 0, else alpha * (exp(x) - 1)."""
    return b.wide(lambda e: elu_of(e, alpha), x)


@operator("Selu")
def selu(
    b: Builder,
    x: Tensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Tensor:
    """`gamma` * x where x > 0, else gamma * alpha * (exp(x) - 1)."""

    def fn(e: Expr) -> Expr:
        positive = apply("gt", e, lit(0, e.dtype))
        return scaled(apply("select", positive, e, _saturating(e, alpha)), gamma)

    return b.wide(fn, x)


@operator("Celu")
def celu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""

    def fn(e: Expr) -> Expr:
        grown = apply("exp", apply("div", e, lit(alpha, e.dtype)))
        low = scaled(shifted(grown, -1), alpha)
        return add(relu_of(e), apply("min", low, lit(0, e.dtype)))

    return b.wide(fn, x)


@operator("HardSigmoid")
def hard_sigmoid(b: Builder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """`alpha` * x + beta between 0 and 1."""
    return b.wide(lambda e: hard_sigmoid_of(e, alpha, beta), x)


@operator("HardSwish")
def hard_swish(b: Builder, x: Tensor) -> Tensor:
    """`x` * hard_sigmoid(x), alpha = 1/6, beta = 1/2."""
    return b.wide(lambda e: mul(e, hard_sigmoid_of(e, 1 / 6, 0.5)), x)


@operator("Mish")
def mish(b: Builder, x: Tensor) -> Tensor:
    """`x` * tanh(softplus(x)) as x * n / (n + 2) with n = exp(x) * (exp(x) + 2)."""

    def fn(e: Expr) -> Expr:
        # Beyond 20 the quotient is 1 in f64 too, and n must not overflow.
        raised = apply("exp", apply("min", e, lit(20, e.dtype)))
        n = mul(raised, shifted(raised, 2))
        return mul(e, apply("div", n, shifted(n, 2)))

    return b.wide(fn, x)


@operator("Swish")
def swish(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` * sigmoid(alpha * x)."""
    return b.wide(lambda e: _gated(e, e if alpha == 1.0 else scaled(e, alpha)), x)


def _gated(e: Expr, gate: Expr) -> Expr:
    """`e` * sigmoid(gate)."""
    return apply("div", e, shifted(apply("exp", apply("neg", gate)), 1))


def gelu_of(e: Expr) -> Expr:
    """`e` * Phi(e) through erf."""
    return mul(scaled(e, 0.5), shifted(apply("erf", scaled(e, 1 / sqrt(2))), 1))


def tanh_gelu_of(e: Expr) -> Expr:
    """`e` * Phi(e) by the tanh approximation."""
    # (1 + tanh(u)) / 2 is sigmoid(2 * u), without its cancellation.
    cube = mul(mul(e, e), e)
    return _gated(e, scaled(add(e, scaled(cube, 0.044715)), 2 * sqrt(2 / pi)))


@operator("Gelu")
def gelu(b: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    """`x` * Phi(x), exactly through erf, or by the tanh approximation."""
    return b.wide(tanh_gelu_of if approximate == "tanh" else gelu_of, x)


@operator("Shrink")
def shrink(b: Builder, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """`x` + bias below -lambd, x - bias above lambd, else 0; whole numbers are cut off and wrap."""

    def fn(x: Expr) -> Expr:
        e = x if x.dtype.is_float else cast(x, DType.F64)
        high = apply("gt", e, lit(lambd, e.dtype))
        upper = apply("select", high, shifted(e, -bias), lit(0, e.dtype))
        low = apply("lt", e, lit(-lambd, e.dtype))
        y = apply("select", low, shifted(e, bias), upper)
        if x.dtype.is_float or x.dtype.is_signed:
            return cast(y, x.dtype)
        wrapped = cast(cast(y, DType.I64), x.dtype)
        return apply("select", apply("lt", y, lit(0, y.dtype)), wrapped, cast(y, x.dtype))

    return b.wide(fn, x)
