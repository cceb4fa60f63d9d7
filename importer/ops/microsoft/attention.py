"""Attention as ONNX Runtime fuses it: with projections, biases, caches and padding masks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add
from rutc.importer.ops.attention import (
    biased,
    changed,
    merge_heads,
    mixed,
    scores_of,
    split_heads,
    weights_of,
)
from rutc.importer.ops.contraction import matmul_of
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.contraction import matmul_integer_to_float
from rutc.importer.ops.operands import static
from rutc.importer.ops.reshape import reshape
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO


@record
class Masks:
    """What keeps a query from keys: padding, the future, or what is added to the scores.

    `padding` gives lengths {n}, ends and starts {2n}, or 1 where a key counts: {n, j}, {n, i, j} or
    {n, 1, p, p} with p positions of which the queries are those from `past` on. `filler` is added
    to the scores of the other keys.
    """

    padding: Tensor | None = None
    bias: Tensor | None = None
    unidirectional: bool = False
    filler: float = -10000.0
    past: Index = ZERO

    def applied(self, b: Builder, scores: Tensor) -> Tensor:
        """The masked scores {n, h, i, j}."""
        if self.bias is not None:
            scores = biased(b, scores, self.bias)

        def change(e: Expr, axes: Sequence[Axis]) -> Expr:
            n, _, i, j = (a.index for a in axes)
            if self.padding is not None:
                counts = self._counts(b, self.padding, scores.shape[0], (n, i, j))
                nothing = lit(0, e.dtype)
                e = add(e, apply("select", counts, nothing, lit(self.filler, e.dtype)))
            if self.unidirectional:
                seen = apply("le", IndexValue(j - i - self.past), lit(0, DType.I64))
                e = apply("select", seen, e, lit(-inf, e.dtype))
            return e

        if self.padding is None and not self.unidirectional:
            return scores
        return changed(b, scores, change)

    def _counts(self, b: Builder, t: Tensor, batch: Index, at: tuple[Index, Index, Index]) -> Expr:
        """Whether the key at (n, i, j) is none of the padding."""
        n, i, j = at
        if t.rank == 1:
            position = cast(IndexValue(j), t.dtype)
            before = apply("lt", position, b.read(t, [n]))
            if t.shape[0] == batch:
                return before
            if t.shape[0] != batch * 2:
                raise OperatorError(f"the mask {t} gives neither lengths nor ends and starts")
            return apply("and", before, apply("ge", position, b.read(t, [n + batch])))
        places: dict[int, list[Index]] = {2: [n, j], 3: [n, i, j], 4: [n, ZERO, self.past + i, j]}
        if t.rank not in places:
            raise OperatorError(f"the mask {t} has no known form")
        coords = [ZERO if e == ONE else c for c, e in zip(places[t.rank], t.shape, strict=True)]
        return apply("gt", b.read(t, coords), lit(0, t.dtype))


def _attended(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, scale: float | None, masks: Masks
) -> tuple[Tensor, Tensor]:
    """The result {n, i, h*d} and the weights."""
    scores = masks.applied(b, scores_of(b, q, k, scale or None))
    weights = weights_of(b, scores)
    return merge_heads(b, mixed(b, weights, v, q.dtype)), weights


def _columns(b: Builder, t: Tensor, start: int, size: int) -> Tensor:
    """`size` elements of the last axis."""
    shape = (*t.shape[:-1], Index.of(size))
    return b.view(t, shape, lambda *at: [*at[:-1], at[-1] + start])


def _half(b: Builder, past: Tensor, which: int) -> Tensor:
    """The keys or the values of a cache {2, n, h, j, d}."""
    return b.view(past, past.shape[1:], lambda *at: [Index.of(which), *at])


def _stacked(b: Builder, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values as a cache {2, n, h, j, d}."""
    return concat(b, *(b.reshaped(t, (b.axis(1), *t.axes)) for t in (k, v)), axis=0)


def _self_attention(
    b: Builder,
    projected: Tensor,
    sizes: Sequence[int],
    heads: int,
    past: Tensor | None,
    scale: float | None,
    masks: Masks,
) -> tuple[Tensor, Tensor]:
    """Attention of the projections {n, s, q + k + v}, and the cache with them."""
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        split_heads(b, _columns(b, projected, start, size), heads)
        for start, size in zip(starts, sizes, strict=True)
    )
    if past is not None:
        k, v = (concat(b, _half(b, past, i), t, axis=2) for i, t in enumerate((k, v)))
    y, _ = _attended(b, q, k, v, scale, masks)
    same = k.shape == v.shape
    return y, _stacked(b, k, v) if same else k


@operator("Attention", DOMAIN)
def attention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """Self-attention of x @ weights + bias; and the cache {2, n, h, j, d}."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise OperatorError("rotary embedding and shared cache buffers are not supported")
    projected = matmul_of(b, x, weights)
    if bias is not None:
        projected = b.map(add, projected, bias)
    whole = static(weights.shape[1], "the hidden size")
    sizes = tuple(qkv_hidden_sizes) or (whole // 3,) * 3
    masks = Masks(
        mask,
        attention_bias,
        bool(unidirectional),
        mask_filter_value,
        ZERO if past is None else past.shape[3],
    )
    return _self_attention(b, projected, sizes, num_heads, past, scale, masks)


@operator("QAttention", DOMAIN)
def quantised_attention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    mask: Tensor | None = None,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """Attention whose projection is a product of quantised operands."""
    if do_rotary or past_present_share_buffer:
        raise OperatorError("rotary embedding and shared cache buffers are not supported")
    projected = matmul_integer_to_float(b, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
    size = static(weights.shape[1], "the hidden size") // 3
    start = ZERO if past is None else past.shape[3]
    masks = Masks(mask, None, bool(unidirectional), mask_filter_value, start)
    return _self_attention(b, projected, (size,) * 3, num_heads, past, scale, masks)


def _biased_columns(b: Builder, t: Tensor, bias: Tensor | None, start: int) -> Tensor:
    """`t` plus its part of the bias, from `start` on."""
    if bias is None:
        return t
    part = _columns(b, bias, start, static(t.shape[-1], "the hidden size"))
    return b.map(add, t, part)


def _unpacked(b: Builder, t: Tensor, count: int) -> list[Tensor]:
    """{n, s, h, count, d} as `count` tensors {n, s, h*d}."""

    def part(which: int) -> Tensor:
        n, s, h, _, d = t.shape
        shape = (n, s, h, d)
        chosen = b.view(t, shape, lambda i, j, k, m: [i, j, k, Index.of(which), m])
        return reshape(b, chosen, (n, s, h * d))

    return [part(i) for i in range(count)]


@operator("MultiHeadAttention", DOMAIN)
def multi_head_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Tensor | None = None,
    indirection: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """Attention of projected operands; the keys and values with the past, and the weights."""
    if past_length is not None or indirection is not None:
        raise OperatorError("shared cache buffers and beams are not supported")
    if query.rank == 5:
        query, key, value = _unpacked(b, query, 3)
    elif key is not None and key.rank == 5:
        key, value = _unpacked(b, key, 2)
    if key is None or value is None:
        raise OperatorError("keys and values are missing")
    size = static(query.shape[2], "the hidden size")
    q = split_heads(b, _biased_columns(b, query, bias, 0), num_heads)
    if key.rank == 4:
        k, v = key, value
    else:
        k = split_heads(b, _biased_columns(b, key, bias, size), num_heads)
        v = split_heads(b, _biased_columns(b, value, bias, 2 * size), num_heads)
    start = ZERO
    if past_key is not None and past_value is not None:
        start = past_key.shape[2]
        k, v = concat(b, past_key, k, axis=2), concat(b, past_value, v, axis=2)
    masks = Masks(mask, attention_bias, bool(unidirectional), mask_filter_value, start)
    y, weights = _attended(b, q, k, v, scale, masks)
    return y, k, v, weights
