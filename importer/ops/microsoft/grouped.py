"""Rotary embedding, and attention with shared heads over a cache that grows, of language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import scaled
from rutc.importer.ops.attention import (
    biased,
    capped,
    merge_heads,
    mixed,
    only_where,
    scores_of,
    split_heads,
    weights_of,
)
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.operands import static
from rutc.importer.ops.rotary import position_at, rotated
from rutc.importer.ops.size_operands import sizes
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, maximum


@operator("RotaryEmbedding", DOMAIN)
def rotary_embedding(
    b: Builder,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """x{n, h, s, d}, or {n, s, h*d}, rotated; one position is that of the first in the sequence."""
    heads = x
    if x.rank == 3:
        width = static(x.shape[2], "the hidden size")
        size = 2 * static(cos.shape[1], "the caches' extent")
        heads = split_heads(b, x, num_heads or width // size)

    def row(n: Index, s: Index) -> Sequence[Coord]:
        if positions.rank == 2:
            return (position_at(b, positions, n, s),)
        first = cast(b.read(positions, [ZERO]), DType.I64)
        return (apply("add", first, IndexValue(s)),)

    y = rotated(b, heads, cos, sin, row, interleaved=bool(interleaved), size=rotary_embedding_dim)
    if scale not in (0.0, 1.0):
        y = b.map(lambda e: scaled(e, scale), y)
    return y if x.rank == 4 else merge_heads(b, y)


def _separated(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries {n, h, s, d}, keys and values {n, g, s, d}, of operands that may be packed in one."""
    if key is not None and value is not None:
        return (
            split_heads(b, query, heads),
            split_heads(b, key, shared),
            split_heads(b, value, shared),
        )
    every = split_heads(b, query, heads + 2 * shared)

    def part(start: int, count: int) -> Tensor:
        shape = (every.shape[0], Index.of(count), *every.shape[2:])
        return b.view(every, shape, lambda n, h, s, d: [n, h + start, s, d])

    return part(0, heads), part(heads, shared), part(heads + shared, shared)


Seen = Callable[[Index], Expr]
"""The number of steps that a sequence of the batch had before."""


def _extended(b: Builder, past: Tensor | None, new: Tensor, length: Index, seen: Seen) -> Tensor:
    """A cache {n, g, length, d}: `seen(n)` steps of the past, then the new ones, then 0.

    Where that are all of the past, for all sequences, nothing follows.
    """
    axes = b.axes((*new.shape[:2], length, new.shape[3]))
    n, g, t, d = (a.index for a in axes)
    zero = lit(0, new.dtype)
    before = seen(n)
    if isinstance(before, IndexValue):
        return new if past is None else concat(b, past, new, axis=2)
    fresh = b.read(new, [n, g, apply("sub", IndexValue(t), before), d], zero)
    if past is None or past.shape[2] == ZERO:
        return b.nest(axes, fresh)
    old = b.read(past, [n, g, t, d], zero)
    return b.nest(axes, apply("select", apply("lt", IndexValue(t), before), old, fresh))


def _seen(b: Builder, last_key: Tensor, total: Index, steps: Index, *, alone: bool) -> Seen:
    """What each sequence had before: all but the new steps, none in the first call."""
    if alone:
        return lambda _: IndexValue(total - steps)
    rows = b.axes((last_key.shape[0],))
    before: Expr = lit(0, DType.I64)
    if total != steps:
        ends = apply("add", _position(b, last_key, rows[0].index), lit(1, DType.I64))
        longer = apply("ne", IndexValue(total - steps), before)
        before = apply("select", longer, apply("sub", ends, IndexValue(steps)), before)
    counts = b.nest(rows, before)
    return lambda n: b.read(counts, [n])


def _check_end(b: Builder, last_key: Tensor, total: Index, steps: Index) -> None:
    """A run ends whose only sequence is told to go on elsewhere than where its cache ends."""
    if (last_key.name, total) in b.demanded:
        return
    ends = apply("eq", _position(b, last_key, ZERO), IndexValue(total - 1))
    first = apply("eq", IndexValue(total - steps), lit(0, DType.I64))
    message = "the only sequence does not end with the last of its keys"
    found = b.unless_failed(lit(1, DType.I64), apply("or", ends, first), message)
    b.checks |= b.size(found, "ends", 1, 1).names()
    b.demanded.add((last_key.name, total))


def _position(b: Builder, last_key: Tensor, n: Index) -> Expr:
    return cast(b.read(last_key, [n] if last_key.rank == 1 else [n, 0]), DType.I64)


def _next_row(
    b: Builder, cos: Tensor, positions: Tensor | None, seen: Seen
) -> Callable[[Index, Index], Sequence[Coord]]:
    """Where a step's cosines are: at the position that is told, or after what was there before."""

    def row(n: Index, s: Index) -> Sequence[Coord]:
        if positions is not None:
            return (position_at(b, positions, n, s),)
        before = seen(n)
        if isinstance(before, IndexValue) and b.inside(before.index + s, cos.shape[0]):
            return (before.index + s,)
        return (apply("add", before, IndexValue(s)),)

    return row


def _attended(
    b: Builder, seen: Seen, last_key: Tensor | None, window: int
) -> Callable[[Index, Index, Index, Index], list[Expr]]:
    """Which keys a step attends to: up to itself, or up to the last one that is told.

    Of a `window` of steps, if that is above 0.
    """

    def conditions(n: Index, _: Index, i: Index, j: Index) -> list[Expr]:
        before = seen(n)
        distance: Expr = apply("sub", IndexValue(j - i), before)
        if isinstance(before, IndexValue):
            distance = IndexValue(j - i - before.index)
        found: list[Expr] = [apply("le", distance, lit(0, DType.I64))]
        if last_key is not None:
            found = [apply("le", IndexValue(j), _position(b, last_key, n))]
        if window > 0:
            found.append(apply("gt", distance, lit(-window, DType.I64)))
        return found

    return conditions


@operator("GroupQueryAttention", DOMAIN)
def group_query_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    last_key: Tensor | None = None,
    total_length: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    attention_bias: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Tensor, ...]:
    """Causal attention of the last steps over a cache of keys and values, and the longer cache.

    `last_key{n}` is the position of each sequence's last key; `total_length` the longest sequence.
    A call whose queries are as many as that is the first: its cache is empty, and sequences may
    end earlier. That of the longest, where there is no other, goes on where its cache ends: a run
    in which `last_key` tells otherwise ends.
    """
    if last_key is None or total_length is None:
        raise OperatorError("seqlens_k and total_sequence_length are required")
    if qk_output or k_quant_type != "NONE" or v_quant_type != "NONE":
        raise OperatorError("quantised caches and the scores as an output are not supported")
    q, k, v = _separated(b, query, key, value, num_heads, kv_num_heads)
    steps = q.shape[2]
    (total,) = sizes(b, total_length, "the total sequence length")
    held = ZERO if past_key is None else past_key.shape[2]
    alone = q.shape[0] == ONE and held + steps == total and b.depth == 0
    if alone:
        _check_end(b, last_key, total, steps)
    seen = _seen(b, last_key, total, steps, alone=alone)
    if do_rotary:
        if cos is None or sin is None:
            raise OperatorError("rotary embedding needs cos_cache and sin_cache")
        row = _next_row(b, cos, positions, seen)
        size = 2 * static(cos.shape[1], "the caches' extent")
        q, k = (
            rotated(b, t, cos, sin, row, interleaved=bool(rotary_interleaved), size=size)
            for t in (q, k)
        )
    length = maximum(held, total, b.ranges)
    k, v = _extended(b, past_key, k, length, seen), _extended(b, past_value, v, length, seen)
    scores = capped(b, scores_of(b, q, k, scale or None), softcap)
    if attention_bias is not None:
        scores = biased(b, scores, attention_bias)
    last = None if causal else last_key
    scores = only_where(b, scores, _attended(b, seen, last, local_window_size))
    if sink is None and smooth_softmax == 1:
        sink = b.constant(np.zeros(num_heads, np.float32))
    if sink is not None:
        sink = b.reshaped(sink, (b.axis(1), sink.axes[0], b.axis(1), b.axis(1)))
    weights = weights_of(b, scores, sink=sink)
    return merge_heads(b, mixed(b, weights, v, q.dtype)), k, v
