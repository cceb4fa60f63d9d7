"""Activations by name, as the fused operators have them, and elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import (
    add,
    clamped,
    elu_of,
    gelu_of,
    hard_sigmoid_of,
    leaky_relu_of,
    mul,
    relu_of,
    scaled,
    sigmoid_of,
    softplus_of,
    tanh_gelu_of,
)
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.operands import static
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, Index, apply, cast

Function = Callable[[Expr], Expr]


def activation_of(name: str, parameters: Sequence[float] = ()) -> Function:
    """An activation function by its ONNX name.

    Raises:
        OperatorError: No fused operator has this activation.
    """

    def value(i: int, default: float) -> float:
        return parameters[i] if i < len(parameters) else default

    match name:
        case "Relu":
            return relu_of
        case "Sigmoid":
            return sigmoid_of
        case "Tanh":
            return lambda e: apply("tanh", e)
        case "LeakyRelu":
            return lambda e: leaky_relu_of(e, value(0, 0.01))
        case "Elu":
            return lambda e: elu_of(e, value(0, 1.0))
        case "Softplus":
            return softplus_of
        case "Clip":
            return lambda e: clamped(e, value(0, -inf), value(1, inf))
        case "HardSigmoid":
            return lambda e: hard_sigmoid_of(e, value(0, 0.2), value(1, 0.5))
        case "HardSwish":
            return lambda e: mul(e, hard_sigmoid_of(e, 1 / 6, 0.5))
        case "Gelu":
            return gelu_of
        case _:
            raise OperatorError(f"activation {name!r} is unknown")


def activated(b: Builder, y: Tensor, name: str | None, parameters: Sequence[float] = ()) -> Tensor:
    """`y` with the named activation applied; without a name `y` itself."""
    return b.wide(activation_of(name, parameters), y) if name else y


@operator("Gelu", DOMAIN)
def gelu(b: Builder, x: Tensor) -> Tensor:
    """`x` * Phi(x)."""
    return b.wide(gelu_of, x)


@operator("FastGelu", DOMAIN)
def fast_gelu(b: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` * Phi(x) by the tanh approximation, of x + bias where one is given."""
    if bias is None:
        return b.wide(tanh_gelu_of, x)
    return b.wide(lambda e, c: tanh_gelu_of(add(e, c)), x, bias)


@operator("BiasGelu", DOMAIN)
def bias_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    """`z` * Phi(z) with z = x + bias."""
    return b.wide(lambda e, c: gelu_of(add(e, c)), x, bias)


@operator("QuickGelu", DOMAIN)
def quick_gelu(b: Builder, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """`x` * sigmoid(alpha * x)."""
    return b.wide(lambda e: mul(e, sigmoid_of(scaled(e, alpha))), x)


@operator("BiasSplitGelu", DOMAIN)
def bias_split_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    """The first half of x + bias along the last axis times Gelu of the second half."""
    whole = static(x.shape[-1], "the last extent")
    if whole % 2 or bias.rank != 1 or bias.shape[0] != x.shape[-1]:
        raise OperatorError(f"the bias {bias} does not fit the halves of {x}")
    half = whole // 2
    axes = b.axes((*x.shape[:-1], half))

    def part(start: int) -> Expr:
        at = [a.index for a in axes]
        at[-1] = at[-1] + Index.of(start)
        kind = x.dtype.computing
        return add(cast(b.read(x, at), kind), cast(b.read(bias, at[-1:]), kind))

    return b.nest(axes, cast(mul(part(0), gelu_of(part(half))), x.dtype))


@operator("BiasAdd", DOMAIN)
def bias_add(b: Builder, x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """`x` + bias + skip."""
    return b.map(lambda e, c, s: add(add(e, c), s), x, bias, skip)
