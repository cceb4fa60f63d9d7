"""Normalisations of a sum, with embeddings, by the mean square."""

from __future__ import annotations

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add, mul, sigmoid_of
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.contraction import with_channels_first, with_channels_last
from rutc.importer.ops.movement import gather
from rutc.importer.ops.normalization import (
    affine,
    centered_and_scaled,
    group_normalization,
    scaled_to_unit,
    widened,
)
from rutc.importer.ops.operands import axis_of
from rutc.importer.ops.reductions import reduced
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, apply, cast


@operator("SimplifiedLayerNormalization", DOMAIN)
def simplified_layer_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, ...]:
    """`x` / sqrt(mean square + epsilon) * scale, and 1 / sqrt(mean square + epsilon).

    The result has the type of scale.
    """
    at = tuple(range(axis_of(axis, x.rank), x.rank))
    y, inverse = scaled_to_unit(b, widened(b, x), at, epsilon)
    return affine(b, y, scale, None, scale.dtype), inverse


def _summed(b: Builder, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    """`x` + skip + bias in a type wide enough."""
    total = b.map(add, widened(b, x), widened(b, skip))
    return total if bias is None else b.map(lambda e, c: add(e, cast(c, e.dtype)), total, bias)


@operator("SkipLayerNormalization", DOMAIN)
def skip_layer_normalization(
    b: Builder,
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    """x + skip + bias normalised along the last axis; its mean, 1 / deviation and the sum."""
    total = _summed(b, x, skip, bias)
    y, mean, inverse = centered_and_scaled(b, total, (x.rank - 1,), epsilon)
    return affine(b, y, scale, shift, x.dtype), mean, inverse, b.as_type(total, x.dtype)


@operator("SkipSimplifiedLayerNormalization", DOMAIN)
def skip_simplified_layer_normalization(
    b: Builder,
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    """x + skip + bias by its root mean square along the last axis; its mean, 1 / root, the sum."""
    total, last = _summed(b, x, skip, bias), (x.rank - 1,)
    y, inverse = scaled_to_unit(b, total, last, epsilon)
    mean = reduced(b, total, last, "mean", keepdims=True)
    return affine(b, y, scale, None, x.dtype), mean, inverse, b.as_type(total, x.dtype)


@operator("EmbedLayerNormalization", DOMAIN)
def embed_layer_normalization(
    b: Builder,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, ...]:
    """The sum of word, position and segment embeddings, normalised; the masks' lengths; the sum."""
    if scale is None:
        raise OperatorError("gamma is missing")
    n, s = ids.shape
    total = gather(b, words, ids)
    if position_ids is None:
        axes = b.axes((s, positions.shape[1]))
        places = b.nest(axes, b.read(positions, [a.index for a in axes]))
    else:
        places = gather(b, positions, position_ids)
    total = b.map(add, total, places)
    if segments is not None and segment_table is not None:
        total = b.map(add, total, gather(b, segment_table, segments))
    y, _, _ = centered_and_scaled(b, widened(b, total), (2,), epsilon)
    kind = total.dtype
    if mask is None:
        lengths = b.nest(b.axes((n,)), lit(0, DType.I32))
    else:
        one = lit(1, mask.dtype)
        lengths = reduced(
            b,
            mask,
            (1,),
            "sum",
            keepdims=False,
            lift=lambda e: cast(apply("eq", e, one), DType.I32),
        )
    return affine(b, y, scale, shift, kind), lengths, total


@operator("GroupNorm", DOMAIN)
def group_norm(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    """Groups of channels normalised, every channel scaled and shifted; with 1, y * sigmoid(y)."""
    source = with_channels_first(b, x) if channels_last else x
    y = group_normalization(b, source, scale, shift, epsilon=epsilon, num_groups=groups)
    if activation:
        y = b.map(lambda e: mul(e, sigmoid_of(e)), y)
    return with_channels_last(b, y) if channels_last else y


@operator("SkipGroupNorm", DOMAIN)
def skip_group_norm(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """`GroupNorm` of s = x + skip + bias, and s; skip may also be {n, c} or {n, 1, 1, c}."""
    at = 3 if channels_last else 1

    def by_channel(t: Tensor, lead: tuple[Axis, ...]) -> Tensor:
        """{.., c} as {n, 1, 1, c} or {n, c, 1, 1}, which broadcasts to x."""
        ones = [b.axis(1), b.axis(1)]
        kept = [*lead, *ones, t.axes[-1]] if at == 3 else [*lead, t.axes[-1], *ones]
        return b.reshaped(t, kept)

    if skip.rank == 2:
        skip = by_channel(skip, skip.axes[:1])
    s = b.map(add, x, skip)
    if bias is not None:
        s = b.map(add, s, by_channel(bias, (b.axis(1),)))
    y = group_norm(
        b,
        s,
        scale,
        shift,
        activation=activation,
        channels_last=channels_last,
        epsilon=epsilon,
        groups=groups,
    )
    return y, s
