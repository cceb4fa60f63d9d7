"""One step of an optimiser: Adagrad, Adam, Momentum (ai.onnx.preview.training).

Each takes a rate, a count of steps, and then the tensors, their gradients and their accumulated
state, each kind for all tensors together; outputs are the new tensors, then their new state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add, mul, scaled, shifted
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, apply, cast

DOMAIN = "ai.onnx.preview.training"

Update = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


def _groups(tensors: Sequence[Tensor], kinds: int) -> list[tuple[Tensor, ...]]:
    """(tensor, gradient, state ..) of each tensor that is optimised."""
    count, left = divmod(len(tensors), kinds)
    if left or not count:
        raise OperatorError(f"{len(tensors)} tensors are given, expected a multiple of {kinds}")
    return [tuple(tensors[k * count + i] for k in range(kinds)) for i in range(count)]


def _updated(groups: Sequence[Sequence[Tensor]], update: Update) -> tuple[Tensor, ...]:
    """The new tensors, then each kind of new state."""
    made = [update(g) for g in groups]
    return tuple(t for kind in zip(*made, strict=True) for t in kind)


def _scalar(b: Builder, t: Tensor, like: Tensor) -> Expr:
    return cast(b.read(t, [0] * t.rank), like.dtype)


def _regularized(b: Builder, x: Tensor, gradient: Tensor, coefficient: float) -> Tensor:
    """The gradient of the loss + coefficient / 2 * the square of x's norm."""
    if coefficient == 0.0:
        return gradient
    return b.map(lambda e, g: add(scaled(e, coefficient), g), x, gradient)


@operator("Adagrad", DOMAIN)
def adagrad(
    b: Builder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    """`x` - r * g / (sqrt(h) + epsilon) with h the sum of all squared gradients."""

    def update(group: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, squares = group
        g = _regularized(b, x, gradient, norm_coefficient)
        decay = shifted(scaled(_scalar(b, count, x), decay_factor), 1)
        step = apply("div", _scalar(b, rate, x), decay)
        total = b.map(lambda h, e: add(h, mul(e, e)), squares, g)

        def moved(e: Expr, d: Expr, h: Expr) -> Expr:
            return apply("sub", e, apply("div", mul(step, d), shifted(apply("sqrt", h), epsilon)))

        return b.map(moved, x, g, total), total

    return _updated(_groups(tensors, 3), update)


@operator("Adam", DOMAIN)
def adam(
    b: Builder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    """`x` - r * v / (sqrt(h) + epsilon) with v, h the averaged gradients and their squares."""

    def update(group: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, average, squares = group
        g = _regularized(b, x, gradient, norm_coefficient)
        v = b.map(lambda p, e: add(scaled(p, alpha), scaled(e, 1 - alpha)), average, g)
        h = b.map(lambda p, e: add(scaled(p, beta), scaled(mul(e, e), 1 - beta)), squares, g)
        steps, first = _scalar(b, count, x), _scalar(b, rate, x)
        one = lit(1, x.dtype)

        def left(base: float) -> Expr:
            return apply("sub", one, apply("pow", lit(base, x.dtype), steps))

        corrected = apply("div", mul(first, apply("sqrt", left(beta))), left(alpha))
        started = apply("gt", steps, lit(0, x.dtype))
        step = b.nest((), apply("select", started, corrected, first))

        def moved(e: Expr, p: Expr, q: Expr, r: Expr) -> Expr:
            new = apply("sub", e, apply("div", mul(r, p), shifted(apply("sqrt", q), epsilon)))
            return scaled(new, 1 - norm_coefficient_post)

        return b.map(moved, x, v, h, step), v, h

    return _updated(_groups(tensors, 4), update)


@operator("Momentum", DOMAIN)
def momentum(
    b: Builder,
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    """`x` - r * v with v = alpha * v + beta * g; Nesterov's looks one step ahead."""
    if mode not in ("standard", "nesterov"):
        raise OperatorError(f"mode {mode!r} is unknown; it is 'standard' or 'nesterov'")

    def update(group: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, before = group
        g = _regularized(b, x, gradient, norm_coefficient)
        started = apply("gt", _scalar(b, count, x), lit(0, x.dtype))
        factor = apply("select", started, lit(beta, x.dtype), lit(1, x.dtype))
        v = b.map(lambda p, e: add(scaled(p, alpha), mul(factor, e)), before, g)
        step = _scalar(b, rate, x)

        def moved(e: Expr, d: Expr, p: Expr) -> Expr:
            way = p if mode == "standard" else add(d, scaled(p, alpha))
            return apply("sub", e, mul(step, way))

        return b.map(moved, x, g, v), v

    return _updated(_groups(tensors, 3), update)
