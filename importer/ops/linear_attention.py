"""Layers with a state of fixed size instead of a cache: linear attention, causal convolution."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add, mul, scaled, sigmoid_of
from rutc.importer.ops.attention import split_heads
from rutc.importer.ops.contraction import sum_products
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.movement import transpose
from rutc.importer.ops.operands import static
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.scans import scanned
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv

States = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""Per update rule whether the state decays and whether only what it lacks is written."""


@operator("LinearAttention")
def linear_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, ...]:
    """Reads of a state that every step decays and writes to; and the last state.

        s{n,g,d,m} = exp(decay_t) * s
        u{n,g,m}   = v_t, or beta_t * (v_t - sum{d} s * k_t)
        s          = s + k_t * u
        y{n,h,m}   = scale * sum{d} q_t[n,h,d] * s[n, h // group, d, m]

    `chunk_size` is advice for implementations that take several steps at once.
    """
    if update_rule not in RULES:
        raise OperatorError(f"update_rule {update_rule!r} is unknown")
    gating, correcting = RULES[update_rule]
    if gating != (decay is not None) or correcting != (beta is not None):
        raise OperatorError(
            f"the rule {update_rule!r} does not fit the decay and beta that are given"
        )
    if kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise OperatorError(f"{q_num_heads} query heads cannot share {kv_num_heads} states")

    def along(t: Tensor) -> Tensor:
        """`t` with the batches and steps of the keys."""
        return of_shape(b, t, (*key.shape[:2], *t.shape[2:]), f"goes with the keys {key}")

    query, value = along(query), along(value)
    decay = None if decay is None else along(decay)
    beta = None if beta is None else along(beta)
    group = Index.of(q_num_heads // kv_num_heads)
    kind, wide = query.dtype, query.dtype.computing
    q = split_heads(b, query, q_num_heads)
    k, v = split_heads(b, key, kv_num_heads), split_heads(b, value, kv_num_heads)
    batch, heads, steps, size = k.shape
    shape = (batch, heads, size, v.shape[3])
    if past is not None and past.shape != shape:
        raise OperatorError(f"the state {past} does not fit {key} and {value}")
    rates = None if decay is None else _rates(b, decay, kv_num_heads, size)
    start = b.nest(b.axes(shape), lit(0, wide)) if past is None else b.as_type(past, wide)
    factor = scale or 1 / sqrt(static(size, "the head size"))

    def step(t: Index, states: Sequence[Tensor]) -> States:
        (state,) = states
        if rates is not None:
            state = _decayed(b, state, rates, t)
        written = _lacking(b, state, k, v, beta, t) if beta is not None else None
        axes = b.axes(shape, ("n", "h", "d", "m"))
        n, g, d, m = (a.index for a in axes)
        new = b.read(v, [n, g, t, m]) if written is None else b.read(written, [n, g, m])
        change = mul(cast(b.read(k, [n, g, t, d]), wide), cast(new, wide))
        state = b.nest(axes, add(b.read(state, [n, g, d, m]), change))
        return (state,), (_read(b, state, q, group, t),)

    (last,), (every,) = scanned(b, steps, [start], step)
    y = transpose(b, every, perm=(1, 0, 2, 3))
    flat = reshape(b, y, (batch, steps, y.shape[2] * y.shape[3]))
    made = b.map(lambda e: cast(scaled(e, factor), kind), flat)
    return made, b.as_type(last, kind if past is None else past.dtype)


def _rates(b: Builder, decay: Tensor, heads: int, size: Index) -> Tensor:
    """The decay as {n, g, t, d} or, where all of a head decay alike, {n, g, t, 1}."""
    each = decay.shape[2]
    if each not in (Index.of(heads), size * heads):
        raise OperatorError(f"the decay {decay} does not fit {heads} heads of {size}")
    return split_heads(b, decay, heads)


def _decayed(b: Builder, state: Tensor, rates: Tensor, t: Index) -> Tensor:
    axes = b.axes(state.shape, ("n", "h", "d", "m"))
    n, g, d, _ = (a.index for a in axes)
    rate = b.read(rates, [n, g, t, ZERO if rates.shape[3] == ONE else d])
    return b.nest(axes, mul(b.spread(state, axes), apply("exp", cast(rate, state.dtype))))


def _lacking(b: Builder, state: Tensor, k: Tensor, v: Tensor, beta: Tensor, t: Index) -> Tensor:
    """beta_t * (v_t - sum{d} state * k_t)."""
    wide = state.dtype
    n, g, m = b.axes((*v.shape[:2], v.shape[3]), ("n", "h", "m"))
    d = b.axis(k.shape[3], "d")
    factors = (
        b.read(state, [n.index, g.index, d.index, m.index]),
        b.read(k, [n.index, g.index, t, d.index]),
    )
    held = sum_products(b, (n, g, m), (d,), factors, wide)
    axes = b.axes(held.shape)
    n_, g_, m_ = (a.index for a in axes)
    rate = b.read(beta, [n_, t, ZERO if beta.shape[2] == ONE else g_])
    left = apply("sub", cast(b.read(v, [n_, g_, t, m_]), wide), b.spread(held, axes))
    return b.nest(axes, mul(cast(rate, wide), left))


def _read(b: Builder, state: Tensor, q: Tensor, group: Index, t: Index) -> Tensor:
    """sum{d} q_t * state."""
    n, h = b.axes(q.shape[:2], ("n", "h"))
    m, d = b.axis(state.shape[3], "m"), b.axis(q.shape[3], "d")
    shared = floordiv(h.index, group, b.ranges)
    factors = (
        b.read(q, [n.index, h.index, t, d.index]),
        b.read(state, [n.index, shared, d.index, m.index]),
    )
    return sum_products(b, (n, h, m), (d,), factors, state.dtype)


@operator("CausalConvWithState")
def causal_conv_with_state(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, ...]:
    """y{n,c,t} = sum{k} [past | x][n, c, t + k] * w[c, 0, k] + bias[c]; and the new past.

    The past holds one element less than the kernel; without one it is 0.
    """
    if activation not in ("none", "silu", "swish"):
        raise OperatorError(f"activation {activation!r} is unknown")
    if x.rank != 3 or w.rank != 3 or w.shape[0] != x.shape[1]:
        raise OperatorError(f"the operand {x} and the weights {w} do not fit")
    taps = static(w.shape[2], "the kernel's extent")
    before = taps - 1
    joined = x if past is None else concat(b, past, x, axis=2)
    skipped = before if past is None else 0
    zero = lit(0, x.dtype)
    n, c, t = b.axes(x.shape, ("n", "c", "t"))
    k = b.axis(taps, "k")
    factors = (
        b.read(joined, [n.index, c.index, t.index + k.index - skipped], zero),
        b.read(w, [c.index, ZERO, k.index]),
    )
    wide = x.dtype.computing
    total = sum_products(b, (n, c, t), (k,), [cast(f, wide) for f in factors], wide)

    def finished(e: Expr, *shift: Expr) -> Expr:
        for s in shift:
            e = add(e, cast(s, wide))
        return cast(e if activation == "none" else mul(e, sigmoid_of(e)), x.dtype)

    shifts = [] if bias is None else [b.reshaped(bias, (*bias.axes, b.axis(1)))]
    y = b.map(finished, total, *shifts)
    end = x.shape[2] - skipped
    return y, b.view(joined, (*x.shape[:2], before), lambda i, j, s: [i, j, s + end], fill=zero)
