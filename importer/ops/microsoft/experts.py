"""Mixtures of experts: rows go through the networks of two layers that a router scores best.

    p{t, e} = softmax over e of router{t, e}
    h{t, j, i} = act(b1[e_j, i] + sum{c} w1[e_j, i, c] * x[t, c])
    y{t, m} = sum{j} p[t, e_j] * (b2[e_j, m] + sum{i} w2[e_j, m, i] * h[t, j, i])

e_j are the experts with the k largest scores of row t. Sums read the weights of an expert where
they lie, so only those of chosen experts are read, and none is copied.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import (
    add,
    clamped,
    mul,
    relu_of,
    scaled,
    sigmoid_of,
    tanh_gelu_of,
)
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.packed import UNSIGNED, known, unpacked
from rutc.importer.ops.normalization import softmax
from rutc.importer.ops.operands import static
from rutc.importer.ops.reductions import reduced
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.sorting import top_k
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import floordiv, product

ACTIVATIONS = {
    "relu": relu_of,
    "gelu": tanh_gelu_of,
    "silu": lambda e: mul(e, sigmoid_of(e)),
    "identity": lambda e: e,
}
"""By name, those of one operand."""
GATED = "swiglu"


@record
class Layer:
    """One layer of every expert: weights {e, n, c} and perhaps biases {e, n}.

    Numbers of quantised weights are (stored - middle) * scale, with scales {e, n, blocks} and
    middles of that shape or one for all, for blocks of `block` numbers of c (the last may be
    shorter).
    """

    weights: Tensor
    bias: Tensor | None
    scales: Tensor | None = None
    middles: Tensor | float = 0.0
    block: int = 0

    def fitted(self, b: Builder, experts: Index, rows: Index, columns: Index) -> Layer:
        """The layer, with operands of so many experts, rows of weights, and columns.

        Raises OperatorError where they have other shapes.
        """
        shape = (experts, rows, columns)
        weights = of_shape(b, self.weights, shape, "holds the weights of a layer")
        bias, scales = self.bias, self.scales
        if bias is not None:
            bias = of_shape(b, bias, (experts, rows), "holds the biases of a layer")
        if scales is not None:
            blocks = floordiv(columns + (self.block - 1), Index.of(self.block), b.ranges)
            scales = of_shape(b, scales, (experts, rows, blocks), "holds the scales of a layer")
        return replace(self, weights=weights, bias=bias, scales=scales)

    def applied(self, b: Builder, x: Tensor, chosen: Tensor) -> Tensor:
        """The layer's sums {t, j, n} as real numbers, of x {t, c} or {t, j, c}."""
        t, j = b.axes(chosen.shape)
        n, c = b.axis(self.weights.shape[1], "n"), b.axis(self.weights.shape[2], "k")
        expert = cast(b.read(chosen, [t.index, j.index]), DType.I64)
        weight = cast(b.read(self.weights, [expert, n.index, c.index]), DType.F32)
        if self.scales is not None:
            block: list[Coord] = [
                expert,
                n.index,
                floordiv(c.index, Index.of(self.block), b.ranges),
            ]
            middle: Expr = (
                cast(b.read(self.middles, block), DType.F32)
                if isinstance(self.middles, Tensor)
                else lit(self.middles, DType.F32)
            )
            scale = cast(b.read(self.scales, block), DType.F32)
            weight = mul(apply("sub", weight, middle), scale)
        row = [t.index, c.index] if x.rank == 2 else [t.index, j.index, c.index]
        total = b.nest((t, j, n), mul(cast(b.read(x, row), DType.F32), weight), (c,))
        if self.bias is None:
            return total
        axes = b.axes(total.shape)
        expert = cast(b.read(chosen, [a.index for a in axes[:2]]), DType.I64)
        bias = cast(b.read(self.bias, [expert, axes[2].index]), DType.F32)
        return b.nest(axes, add(b.spread(total, axes), bias))


@record
class Gate:
    """What is between the layers: an activation of one operand by name, or SwiGLU of two.

    swiglu = g * sigmoid(alpha * g) * (l + beta), g at most `limit`, l within it. g and l are a
    layer each (fusion 0), or of one layer, in turns (1) or one half after the other (2).
    """

    name: str
    fusion: int
    alpha: float
    beta: float
    limit: float

    def applied(self, b: Builder, first: Tensor, other: Tensor | None) -> Tensor:
        """The activations {t, j, i} of a layer's sums, and of l's where that is another one."""
        if self.name in ACTIVATIONS and other is None:
            return b.map(ACTIVATIONS[self.name], first)
        if self.name in ACTIVATIONS:
            raise OperatorError(f"a third layer goes with {GATED!r} only, not with {self.name!r}")
        if self.name != GATED:
            raise OperatorError(f"activation {self.name!r} is not supported here")
        if (self.fusion == 0) != (other is not None) or self.fusion not in (0, 1, 2):
            raise OperatorError(f"swiglu_fusion={self.fusion} does not fit the layers given")
        if other is None:
            whole = first.shape[2]
            if whole.is_const and whole.const % 2:
                raise OperatorError(f"{whole} columns are no pairs of gates and values")
            shape, half = (*first.shape[:2], whole // 2), whole // 2
            places = (lambda i: i * 2, lambda i: i * 2 + 1)
            if self.fusion == 2:
                places = (lambda i: i, lambda i: i + half)
            first, other = (
                b.view(first, shape, lambda t, j, i, at=at: [t, j, at(i)]) for at in places
            )

        def gated(g: Expr, value: Expr) -> Expr:
            g = clamped(g, -inf, self.limit)
            value = add(clamped(value, -self.limit, self.limit), lit(self.beta, DType.F32))
            return mul(mul(g, sigmoid_of(scaled(g, self.alpha))), value)

        return b.map(gated, first, other)


@record
class Router:
    """How rows choose: the scores {t, e}, how many experts each has, and what these count.

    They count their share of `shares` {t, e}, by default the softmax of the scores; with `whole`
    divided by the sum of those of the row's experts.
    """

    scores: Tensor
    count: int
    whole: bool
    shares: Tensor | None = None

    def fitted(self, b: Builder, rows: Index, experts: Index) -> Router:
        """The router, with scores and shares of so many rows and experts.

        Raises OperatorError where they have other shapes.
        """
        shape = (rows, experts)
        scores = of_shape(b, self.scores, shape, "scores the experts for each row")
        shares = self.shares
        if shares is not None:
            shares = of_shape(b, shares, shape, "says what the experts of each row count")
        return replace(self, scores=scores, shares=shares)

    def chosen(self, b: Builder) -> tuple[Tensor, Tensor]:
        """The experts {t, j} of each row, and what each counts."""
        experts = static(self.scores.shape[1], "the number of experts")
        if not 0 < self.count <= experts:
            raise OperatorError(f"there are {experts} experts, of which k={self.count} cannot be")
        _, places = top_k(b, self.scores, b.constant(np.array([self.count])))
        shares = softmax(b, self.scores, axis=1) if self.shares is None else self.shares
        axes = b.axes(places.shape)
        expert = cast(b.read(places, [a.index for a in axes]), DType.I64)
        kept = b.nest(axes, cast(b.read(shares, [axes[0].index, expert]), DType.F32))
        if self.whole:
            total = reduced(b, kept, (1,), "sum", keepdims=True)
            kept = b.map(lambda e, s: apply("div", e, s), kept, total)
        return places, kept


def mixed(
    b: Builder,
    x: Tensor,
    router: Router,
    layers: tuple[Layer, Layer, Layer | None],
    gate: Gate,
) -> Tensor:
    """What each row's experts make of it, by what they count; x {.., c} with any leading axes."""
    if x.rank < 2 or router.scores.rank != 2:
        given = f"{x} and {router.scores}"
        raise OperatorError(f"rows, and scores for rows and experts, are expected, not {given}")
    first, second, third = layers
    for layer in (first, second):
        _check_rank(layer.weights)
    experts, inner, columns = first.weights.shape
    rows = product(x.shape[:-1])
    router = router.fitted(b, rows, experts)
    flat = x if x.rank == 2 else reshape(b, x, (rows, x.shape[-1]))
    flat = of_shape(b, flat, (rows, columns), f"goes through layers of {columns} columns")
    chosen, counts = router.chosen(b)
    other = None
    if third is not None:
        other = third.fitted(b, experts, inner, columns).applied(b, flat, chosen)
    made = first.fitted(b, experts, inner, columns).applied(b, flat, chosen)
    middle = gate.applied(b, made, other)
    second = second.fitted(b, experts, second.weights.shape[1], middle.shape[2])
    made = second.applied(b, middle, chosen)
    t, m, j = b.axis(rows), b.axis(made.shape[2]), b.axis(made.shape[1])
    part = b.read(made, [t.index, j.index, m.index])
    total = b.nest((t, m), mul(b.read(counts, [t.index, j.index]), part), (j,))
    total = b.map(lambda e: cast(e, x.dtype), total)
    return total if x.rank == 2 else reshape(b, total, (*x.shape[:-1], total.shape[1]))


@operator("MoE", DOMAIN)
def moe(
    b: Builder,
    x: Tensor,
    router: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None = None,
    third: Tensor | None = None,
    third_bias: Tensor | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float = inf,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Tensor:
    """The sum of what the k experts with the largest scores make of each row."""
    _plain(use_sparse_mixer, swiglu_limit_after_activation)
    layers = (
        Layer(first, first_bias),
        Layer(second, second_bias),
        None if third is None else Layer(third, third_bias),
    )
    gate = Gate(activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    return mixed(b, x, Router(router, k, bool(normalize_routing_weights)), layers, gate)


@operator("QMoE", DOMAIN)
def quantised_moe(
    b: Builder,
    x: Tensor,
    router: Tensor,
    first: Tensor,
    first_scales: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_scales: Tensor,
    second_bias: Tensor | None = None,
    third: Tensor | None = None,
    third_scales: Tensor | None = None,
    third_bias: Tensor | None = None,
    first_zeros: Tensor | None = None,
    second_zeros: Tensor | None = None,
    third_zeros: Tensor | None = None,
    shares: Tensor | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float = inf,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = 0,
) -> Tensor:
    """The same with constant weights of 2, 4 or 8 bits, by rows or blocks of `block_size`.

    Without `shares`, what the chosen experts count always adds up to 1.
    """
    _plain(use_sparse_mixer, swiglu_limit_after_activation)
    if quant_type != "int" or weights_prepacked > 0:
        raise OperatorError("only integer weights that are not prepacked are supported")
    if block_size < 0:
        raise OperatorError(f"blocks of {block_size} columns cannot be")

    def layer(
        w: Tensor, scales: Tensor | None, bias: Tensor | None, zeros: Tensor | None, own: int | None
    ) -> Layer:
        bits = expert_weight_bits if own is None else own
        return _packed_layer(b, w, scales, bias, zeros, bits, block_size)

    layers = (
        layer(first, first_scales, first_bias, first_zeros, fc1_expert_weight_bits),
        layer(second, second_scales, second_bias, second_zeros, fc2_expert_weight_bits),
        None
        if third is None
        else layer(third, third_scales, third_bias, third_zeros, fc3_expert_weight_bits),
    )
    gate = Gate(activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    whole = bool(normalize_routing_weights) or shares is None
    return mixed(b, x, Router(router, k, whole, shares), layers, gate)


def _packed_layer(
    b: Builder,
    w: Tensor,
    scales: Tensor | None,
    bias: Tensor | None,
    zeros: Tensor | None,
    bits: int,
    block_size: int,
) -> Layer:
    """A layer of weights {e, n, c} and zero points in so many bits, packed along the last axis.

    Scales {e, n} and zero points {e, n} are those of whole rows, {e, n, blocks} those of blocks
    of `block_size` columns, or of a row if that is 0.
    """
    if bits not in UNSIGNED:
        raise OperatorError(f"weights of {bits} bits are not supported; of 2, 4 and 8 are")
    if scales is None:
        raise OperatorError(f"a layer's weights {w} have no scales")
    _check_rank(w)
    experts, rows, size = (static(e, "the extent of weights") for e in w.shape)
    columns = size * 8 // bits
    numbers = unpacked(known(w, "the weights"), bits, columns)
    by_rows = scales.rank == 2
    block = max(columns, 1) if by_rows or not block_size else block_size
    by = b.reshaped(scales, (*scales.axes, b.axis(1))) if by_rows else scales
    middles: Tensor | float = float(1 << (bits - 1))
    if zeros is not None:
        blocks = -(-columns // block)
        shape = (experts, rows) if zeros.rank == 2 and blocks == 1 else (experts, rows, blocks)
        held = [Index.of(e) for e in (*shape[:-1], -(-shape[-1] * bits // 8))]
        zeros = of_shape(b, zeros, held, "holds the zero points of a layer")
        points = unpacked(known(zeros, "the zero points"), bits, shape[-1])
        middles = b.constant(points.reshape(experts, rows, blocks), UNSIGNED[bits])
    return Layer(b.constant(numbers, UNSIGNED[bits]), bias, by, middles, block)


def _check_rank(weights: Tensor) -> None:
    """Raises OperatorError where weights are not {e, n, c}."""
    if weights.rank != 3:
        raise OperatorError(f"weights for experts, rows and columns are expected, not {weights}")


def _plain(sparse_mixer: int, limit_after: int) -> None:
    """Refuses variants of which there is no function."""
    if sparse_mixer or limit_after:
        raise OperatorError("a sparse mixer and limits after activations are not supported")
