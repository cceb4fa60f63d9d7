"""Scaled dot-product attention: two contractions with a softmax between them.

    s{n,h,i,j} = sum{d} q[n,h,i,d] * k[n, h // group, j, d] * scale     masked, capped
    p          = softmax of s along j
    y{n,h,i,e} = sum{j} p[n,h,i,j] * v[n, h // group, j, e]

Scores and weights are f32 for narrower operands, so that nothing but the result is rounded. Masks
are conditions on the indices where they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add, scaled
from rutc.importer.ops.contraction import sum_products
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.movement import transpose
from rutc.importer.ops.normalization import softmax_over
from rutc.importer.ops.operands import static
from rutc.importer.ops.reductions import reduced
from rutc.importer.ops.reshape import reshape
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv

Change = Callable[[Expr, Sequence[Axis]], Expr]
Conditions = Callable[[Index, Index, Index, Index], Sequence[Expr]]
"""The score at (batch, head, query, key) -> the changed score."""


def split_heads(b: Builder, t: Tensor, count: int) -> Tensor:
    """{n, s, h*d} as {n, h, s, d}."""
    if t.rank != 3:
        raise OperatorError(f"{t} is not of rank 3")
    size = static(t.shape[2], "the hidden size")
    if size % count:
        raise OperatorError(f"the hidden size {size} does not fall into {count} heads")
    parts = reshape(b, t, (*t.shape[:2], Index.of(count), Index.of(size // count)))
    return transpose(b, parts, perm=(0, 2, 1, 3))


def merge_heads(b: Builder, y: Tensor) -> Tensor:
    """{n, h, s, d} as {n, s, h*d}."""
    turned = transpose(b, y, perm=(0, 2, 1, 3))
    n, s, h, d = turned.shape
    return reshape(b, turned, (n, s, h * d))


def _group(b: Builder, q: Tensor, k: Tensor) -> int:
    """How many query heads share a key head."""
    heads, shared = static(q.shape[1], "the heads"), static(k.shape[1], "the heads of the keys")
    if not shared or not heads or heads % shared:
        raise OperatorError(f"{heads} query heads cannot share {shared} heads of keys and values")
    return heads // shared


def scores_of(b: Builder, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """The scaled products of queries {n, h, i, d} and keys {n, g, j, d}; by default 1 / sqrt(d)."""
    if q.rank != 4 or k.rank != 4 or q.shape[3] != k.shape[3]:
        raise OperatorError(f"the queries {q} and the keys {k} do not fit")
    group = _group(b, q, k)
    if scale is None:
        scale = 1 / sqrt(static(q.shape[3], "the head size"))
    n, h = b.axis(q.shape[0], "n"), b.axis(q.shape[1], "h")
    i, j, d = b.axis(q.shape[2], "i"), b.axis(k.shape[2], "j"), b.axis(q.shape[3], "d")
    shared = floordiv(h.index, Index.of(group), b.ranges)
    b.broadcast_to(q.shape[:1], k.shape[:1])
    factors = (
        b.read(q, [n.index, h.index, i.index, d.index]),
        b.read(k, [b.along(k.axes[0], n), shared, j.index, d.index]),
    )
    total = sum_products(b, (n, h, i, j), (d,), factors, q.dtype.computing)
    return b.map(lambda e: scaled(e, scale), total)


def changed(b: Builder, scores: Tensor, change: Change) -> Tensor:
    """The scores with `change` applied to each."""
    axes = b.axes(scores.shape, ("n", "h", "i", "j"))
    return b.nest(axes, change(b.spread(scores, axes), axes))


def only_where(b: Builder, scores: Tensor, conditions: Conditions) -> Tensor:
    """The scores of keys that a query sees, by all conditions at (n, h, i, j); -inf of others."""

    def change(e: Expr, axes: Sequence[Axis]) -> Expr:
        for condition in conditions(*(a.index for a in axes)):
            e = apply("select", condition, e, lit(-inf, e.dtype))
        return e

    return changed(b, scores, change)


def capped(b: Builder, scores: Tensor, limit: float) -> Tensor:
    """`limit` * tanh(score / limit); 0 is no limit."""
    if limit == 0.0:
        return scores
    return b.map(lambda e: scaled(apply("tanh", scaled(e, 1 / limit)), limit), scores)


def weights_of(b: Builder, scores: Tensor, *, sink: Tensor | None = None) -> Tensor:
    """The softmax along the keys; 0 for a query whose scores are all -inf.

    `sink` {1, h, 1, 1} is a score of no key, which takes its share of the weight.
    """
    if sink is not None:
        return _weights_beside(b, scores, sink)
    weights = softmax_over(b, scores, 3)
    peak = reduced(b, scores, (3,), "max", keepdims=True)

    def kept(w: Expr, m: Expr) -> Expr:
        return apply("select", apply("eq", m, lit(-inf, m.dtype)), lit(0, w.dtype), w)

    return b.map(kept, weights, peak)


def _weights_beside(b: Builder, scores: Tensor, sink: Tensor) -> Tensor:
    """exp(s - m) / (exp(sink - m) + sum of exp(s - m)), m the maximum of all, the sink's too."""
    kind = scores.dtype
    peak = reduced(b, scores, (3,), "max", keepdims=True)
    high = b.map(lambda m, s: apply("max", m, cast(s, kind)), peak, sink)
    raised = b.map(lambda e, m: apply("exp", apply("sub", e, m)), scores, high)
    total = reduced(b, raised, (3,), "sum", keepdims=True)

    def joined(t: Expr, m: Expr, s: Expr) -> Expr:
        return add(t, apply("exp", apply("sub", cast(s, kind), m)))

    whole = b.map(joined, total, high, sink)
    return b.map(lambda e, s: apply("div", e, s), raised, whole)


def mixed(b: Builder, weights: Tensor, v: Tensor, kind: DType) -> Tensor:
    """The values {n, g, j, e} summed by weights {n, h, i, j}, as `kind`."""
    if v.rank != 4 or v.shape[2] != weights.shape[3]:
        raise OperatorError(f"the values {v} do not fit the scores {weights}")
    group = _group(b, weights, v)
    n, h = b.axis(weights.shape[0], "n"), b.axis(weights.shape[1], "h")
    i, j, e = b.axis(weights.shape[2], "i"), b.axis(v.shape[2], "j"), b.axis(v.shape[3], "e")
    shared = floordiv(h.index, Index.of(group), b.ranges)
    b.broadcast_to(weights.shape[:1], v.shape[:1])
    factors = (
        b.read(weights, [n.index, h.index, i.index, j.index]),
        b.read(v, [b.along(v.axes[0], n), shared, j.index, e.index]),
    )
    axes, wide = (n, h, i, e), weights.dtype
    total = sum_products(b, axes, (j,), (factors[0], cast(factors[1], wide)), wide)
    return total if kind is wide else b.map(lambda x: cast(x, kind), total)


def biased(b: Builder, scores: Tensor, mask: Tensor, spread: bool = True) -> Tensor:
    """The scores plus a mask that broadcasts to them; a bool mask keeps where it is true.

    Keys beyond the mask's last axis are left out; where it is `spread`, one element is for all.
    """
    if mask.rank > 4:
        raise OperatorError(f"the mask {mask} does not broadcast to the scores {scores}")
    b.broadcast_to(scores.shape[:3], mask.shape[:-1])
    if mask.dtype is not DType.BOOL and not mask.dtype.is_float:
        mask = b.map(lambda e: cast(e, scores.dtype), mask)
    fill = lit(0, DType.BOOL) if mask.dtype is DType.BOOL else lit(-inf, mask.dtype)

    def change(e: Expr, axes: Sequence[Axis]) -> Expr:
        own = axes[4 - mask.rank :]
        whole = (scores.shape[3], ONE) if spread else (scores.shape[3],)
        short = mask.rank > 0 and mask.shape[-1] not in whole
        coords = [b.along(x, a) for x, a in zip(mask.axes, own, strict=True)]
        if short:
            coords[-1] = own[-1].index
        value = b.read(mask, coords, fill if short else None)
        if mask.dtype is DType.BOOL:
            return apply("select", value, e, lit(-inf, e.dtype))
        return add(e, cast(value, e.dtype))

    return changed(b, scores, change)


@operator("Attention")
def attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, ...]:
    """Attention over heads; outputs y, the keys and values with the past, and the scores."""
    flat = q.rank == 3
    if flat:
        if q_num_heads is None or kv_num_heads is None:
            raise OperatorError("operands of rank 3 need q_num_heads and kv_num_heads")
        q = split_heads(b, q, q_num_heads)
        k, v = split_heads(b, k, kv_num_heads), split_heads(b, v, kv_num_heads)
    if (past_key is None) != (past_value is None):
        raise OperatorError("past_key and past_value must be given together")
    if lengths is not None and past_key is not None:
        raise OperatorError("nonpad_kv_seqlen and past_key exclude each other")
    offset = ZERO
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = concat(b, past_key, k, axis=2), concat(b, past_value, v, axis=2)
    raw = scores_of(b, q, k, scale)
    limited = capped(b, raw, softcap)
    scores = limited if mask is None else biased(b, limited, mask, spread=False)
    windowed = left_window_size >= 0 or right_window_size >= 0
    queries = q.shape[2]

    def seen(n: Index, _: Index, i: Index, j: Index) -> list[Expr]:
        found: list[Expr] = []
        if lengths is None:
            distance: Expr = IndexValue(j - i - offset)
        else:
            length = cast(b.read(lengths, [n]), DType.I64)
            distance = apply("sub", IndexValue(j - i + queries), length)
            found.append(apply("lt", IndexValue(j), length))
        if is_causal:
            found.append(apply("le", distance, lit(0, DType.I64)))
        if left_window_size >= 0:
            found.append(apply("ge", distance, lit(-left_window_size, DType.I64)))
        if right_window_size >= 0:
            found.append(apply("le", distance, lit(right_window_size, DType.I64)))
        return found

    if is_causal or windowed or lengths is not None:
        scores = only_where(b, scores, seen)
    precise = scores
    if softmax_precision is not None and dtype_of(softmax_precision) is DType.F64:
        precise = b.map(lambda e: cast(e, DType.F64), scores)
    plain = mask is None and lengths is None and not windowed
    weights = softmax_over(b, precise, 3) if plain else weights_of(b, precise)
    y = mixed(b, weights, v, q.dtype)
    shown = {0: raw, 1: limited, 2: scores, 3: weights}.get(qk_matmul_output_mode)
    if shown is None:
        raise OperatorError(f"qk_matmul_output_mode {qk_matmul_output_mode} is unknown")
    return merge_heads(b, y) if flat else y, k, v, b.as_type(shown, q.dtype)
