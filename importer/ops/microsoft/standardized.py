"""Operators that the standard has got since, matrix inverses, blocked n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.elementwise import trilu
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.movement import gather_nd, range_of
from rutc.importer.ops.operands import array, ints, static
from rutc.importer.ops.padding import pad
from rutc.importer.ops.reductions import place_of_extreme
from rutc.importer.ops.sampling import grid_sample
from rutc.importer.ops.scans import scanned
from rutc.importer.ops.unit_axes import unsqueeze
from rutc.importer.registry import operator
from rutc.importer.shapes import folded
from rutc.tensor_ir import DType, Index, IndexValue, apply, cast


@operator("Trilu", DOMAIN)
def triangle(b: Builder, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """Trilu of the standard."""
    return trilu(b, x, k, upper=upper)


@operator("GatherND", DOMAIN)
def gathered(b: Builder, x: Tensor, at: Tensor) -> Tensor:
    """GatherND of the standard."""
    return gather_nd(b, x, at)


@operator("GridSample", DOMAIN)
def sampled(
    b: Builder,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Tensor:
    """GridSample of the standard, whose modes have other names."""
    name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return grid_sample(
        b, x, grid, align_corners=align_corners, mode=name, padding_mode=padding_mode
    )


@operator("ExpandDims", DOMAIN)
def expand_dims(b: Builder, x: Tensor, axis: Tensor) -> Tensor:
    """`x` with an axis of extent 1 put in."""
    (at,) = ints(axis, "the axis")
    return unsqueeze(b, x, b.constant(np.array([at], np.int64)))


@operator("Range", DOMAIN)
def numbers(b: Builder, start: Tensor, limit: Tensor, step: Tensor | None = None) -> Tensor:
    """start, start + step, .. below the limit; the step is 1 where none is given."""
    one = b.constant(np.ones((), start.dtype.numpy), start.dtype)
    bounds = [b.reshaped(t, ()) for t in (start, limit, step or one)]
    known = folded("Range", bounds, {}, b.ranges)
    return range_of(b, *bounds) if known is None else b.constant(*known)


@operator("Pad", DOMAIN)
def padded(
    b: Builder, x: Tensor, pads: Tensor, value: Tensor | None = None, *, mode: str = "constant"
) -> Tensor:
    """Pad of the standard, whose pads may be a row of a matrix."""
    flat = array(pads, "the pads").reshape(-1)
    fill = None if value is None else b.reshaped(value, ())
    return pad(b, x, b.constant(flat), fill, mode=mode)


@operator("Inverse", DOMAIN)
def inverse(b: Builder, x: Tensor) -> Tensor:
    """The inverse of each matrix by Gauss-Jordan elimination with row pivots.

    The carried state is [x | 1]; step t brings the largest element of column t, from row t on, to
    row t, scales that row to 1 and clears the column.
    """
    n = static(x.shape[-1], "the matrices' size")
    if x.rank < 2 or x.shape[-2] != x.shape[-1]:
        raise OperatorError(f"{x} holds no square matrices")
    kind = x.dtype
    outer = x.shape[:-2]
    axes = b.axes((*outer, n, 2 * n))
    *front, i, j = (a.index for a in axes)
    unit = apply("eq", IndexValue(j - i - n), lit(0, DType.I64))
    right = apply("select", unit, lit(1, kind), lit(0, kind))
    left = b.read(x, [*front, i, j], lit(0, kind))
    inside = apply("lt", IndexValue(j - n), lit(0, DType.I64))
    start = b.nest(axes, apply("select", inside, left, right))

    def step(t: Index, states: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        (state,) = states
        rows = b.axes((*outer, n))
        *at, r = (a.index for a in rows)
        below = apply("ge", IndexValue(r - t), lit(0, DType.I64))
        size = apply("abs", b.read(state, [*at, r, t]))
        candidate = apply("select", below, size, lit(-1, kind))
        chosen = place_of_extreme(b, rows[:-1], candidate, rows[-1])
        space = b.axes((*outer, n, 2 * n))
        *at, r, c = (a.index for a in space)
        pivot = b.read(chosen, at)
        is_pivot = apply("eq", IndexValue(r), pivot)
        is_step = apply("eq", IndexValue(r - t), lit(0, DType.I64))
        source = apply("select", is_pivot, IndexValue(t), IndexValue(r))
        source = apply("select", is_step, pivot, source)
        turned = b.nest(space, b.read(state, [*at, source, c]))
        space = b.axes((*outer, n, 2 * n))
        *at, r, c = (a.index for a in space)
        row = apply("div", b.read(turned, [*at, t, c]), b.read(turned, [*at, t, t]))
        rest = apply("mul", b.read(turned, [*at, r, t]), row)
        cleared = apply("sub", b.read(turned, [*at, r, c]), rest)
        is_step = apply("eq", IndexValue(r - t), lit(0, DType.I64))
        return (b.nest(space, apply("select", is_step, row, cleared)),), ()

    (last,), _ = scanned(b, Index.of(n), [start], step)
    return b.view(last, x.shape, lambda *at: [*at[:-1], at[-1] + n])


@operator("NGramRepeatBlock", DOMAIN)
def block_repeated(b: Builder, ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """The scores, -inf for every id that would repeat an n-gram of `ids` at its end."""
    length = static(ids.shape[1], "the length of the sequences")
    places = length - ngram_size + 1
    if places < 1:
        return scores
    n, v, s = b.axis(scores.shape[0], "n"), b.axis(scores.shape[1], "v"), b.axis(places, "s")
    before = ngram_size - 1
    last = b.read(ids, [n.index, s.index + before])
    hit = apply("eq", cast(last, DType.I64), IndexValue(v.index))
    for k in range(before):
        here, end = (b.read(ids, [n.index, at]) for at in (s.index + k, length - before + k))
        hit = apply("and", hit, apply("eq", here, end))
    blocked = b.nest((n, v), hit, (s,), "any")
    return b.map(lambda e, m: apply("select", m, lit(-inf, e.dtype), e), scores, blocked)
