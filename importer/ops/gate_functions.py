"""The activation functions of recurrent layers' gates, by their names in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.ops.activations import (
    clamped,
    elu_of,
    hard_sigmoid_of,
    leaky_relu_of,
    relu_of,
    scaled,
    shifted,
    sigmoid_of,
    softplus_of,
)
from rutc.tensor_ir import Expr, apply

Function = Callable[[Expr], Expr]


def _function(name: str, alpha: float | None, beta: float | None) -> Function:
    def value(given: float | None, default: float) -> float:
        return default if given is None else given

    match name.lower():
        case "sigmoid":
            return sigmoid_of
        case "tanh":
            return lambda e: apply("tanh", e)
        case "relu":
            return relu_of
        case "affine":
            return lambda e: shifted(scaled(e, value(alpha, 1.0)), value(beta, 0.0))
        case "leakyrelu":
            return lambda e: leaky_relu_of(e, value(alpha, 0.01))
        case "thresholdedrelu":
            limit = value(alpha, 1.0)
            return lambda e: apply(
                "select", apply("gt", e, lit(limit, e.dtype)), e, lit(0, e.dtype)
            )
        case "scaledtanh":
            return lambda e: scaled(apply("tanh", scaled(e, value(beta, 1.0))), value(alpha, 1.0))
        case "hardsigmoid":
            return lambda e: hard_sigmoid_of(e, value(alpha, 0.2), value(beta, 0.5))
        case "elu":
            return lambda e: elu_of(e, value(alpha, 1.0))
        case "softsign":
            return lambda e: apply("div", e, shifted(apply("abs", e), 1))
        case "softplus":
            return softplus_of
        case _:
            raise OperatorError(f"activation {name!r} is unknown")


def _clipped(function: Function, clip: float | None) -> Function:
    """The function of its operand within [-clip, clip]; None or 0 is no limit."""
    if not clip:
        return function
    return lambda e: function(clamped(e, -clip, clip))


def gate_functions(
    names: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    defaults: Sequence[str],
    directions: int,
    clip: float | None,
) -> list[list[Function]]:
    """The activation functions of each direction, the gates' operands within [-clip, clip].

    The third function, of an LSTM's cell state, is not limited.
    """
    given = list(names) or list(defaults) * directions
    if len(given) != len(defaults) * directions:
        raise OperatorError(f"{len(given)} activations, expected {len(defaults) * directions}")
    with_alpha = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
    left_alpha, left_beta = list(alphas), list(betas)
    made: list[Function] = []
    size = len(defaults)
    for name in given:
        alpha = left_alpha.pop(0) if name.lower() in with_alpha and left_alpha else None
        has_beta = name.lower() in {"affine", "scaledtanh", "hardsigmoid"}
        beta = left_beta.pop(0) if has_beta and left_beta else None
        place = len(made) % size
        made.append(_clipped(_function(name, alpha, beta), clip if place < 2 else None))
    return [made[i * size : (i + 1) * size] for i in range(directions)]
