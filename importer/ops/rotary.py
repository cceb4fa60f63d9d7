"""Rotary position embedding: pairs of elements turned by an angle of their position.

    (re, im) -> (re * cos - im * sin, re * sin + im * cos)

The pairs are the two halves of the rotated elements, or with `interleaved` their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import mul
from rutc.importer.ops.attention import merge_heads, split_heads
from rutc.importer.ops.control import unless
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.operands import static
from rutc.importer.ops.size_operands import number
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv, mod

Row = Callable[[Index, Index], Sequence[Coord]]
"""(batch, place in the sequence) -> the coordinates of the caches' row for it."""


def rotated(
    b: Builder, x: Tensor, cos: Tensor, sin: Tensor, row: Row, *, interleaved: bool, size: int
) -> Tensor:
    """x{n, h, s, d} with the first `size` elements (0: all) of d rotated."""
    whole = static(x.shape[3], "the head size")
    size = size or whole
    half = size // 2
    if size > whole or size % 2 or cos.shape[-1] != Index.of(half) or cos.shape != sin.shape:
        raise OperatorError(f"the caches {cos} and {sin} do not fit {size} elements of {x}")
    cos = _with_rows(b, cos, x)

    def turned(*, imaginary: bool) -> Tensor:
        axes = b.axes((*x.shape[:3], half), ("n", "h", "s", "d"))
        n, h, s, d = (a.index for a in axes)
        first, second = (d * 2, d * 2 + 1) if interleaved else (d, d + half)
        re, im = (b.read(x, [n, h, s, at]) for at in (first, second))
        at = row(n, s)
        c, w = (cast(b.read(t, [*at, d]), x.dtype) for t in (cos, sin))
        if imaginary:
            return b.nest(axes, apply("add", mul(re, w), mul(im, c)))
        return b.nest(axes, apply("sub", mul(re, c), mul(im, w)))

    parts = [turned(imaginary=False), turned(imaginary=True)]
    if interleaved:
        parts = [_alternating(b, *parts)]
    if size < whole:
        shape = (*x.shape[:3], Index.of(whole - size))
        parts.append(b.view(x, shape, lambda n, h, s, d: [n, h, s, d + size]))
    return concat(b, *parts, axis=3)


def _with_rows(b: Builder, cos: Tensor, x: Tensor) -> Tensor:
    """The cache; a run ends in which it has no rows, and `x` elements to rotate."""
    rows, known = cos.shape[0], cos.shape[0].bounds(b.ranges)
    if cos.rank != 2 or (known is not None and known[0] > 0):
        return cos
    without = (apply("eq", number(rows), number(0)), apply("ne", number(x.size), number(0)))
    message = f"{', '.join(b.origin)}: the cache {cos} has no rows"
    return unless(b, b.nest((), apply("and", *without)), cos, message)


def _alternating(b: Builder, even: Tensor, odd: Tensor) -> Tensor:
    """The elements of both in turn along the last axis."""
    units = [b.reshaped(t, (*t.axes, b.axis(1))) for t in (even, odd)]
    both = concat(b, *units, axis=4)
    two = Index.of(2)

    def place(n: Index, h: Index, s: Index, d: Index) -> Sequence[Index]:
        return n, h, s, floordiv(d, two, b.ranges), mod(d, two, b.ranges)

    return b.view(both, (*even.shape[:3], even.shape[3] * 2), place)


def position_at(b: Builder, positions: Tensor, n: Index, s: Index) -> Expr:
    """The element of positions {n, s} (or {1, s}), as i64."""
    batch = ZERO if positions.shape[0] == ONE else n
    return cast(b.read(positions, [batch, s]), DType.I64)


@operator("RotaryEmbedding")
def rotary_embedding(
    b: Builder,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """x{n, h, s, d}, or {n, s, h*d}, rotated by rows of the caches that its positions choose."""
    heads = x if x.rank == 4 else split_heads(b, x, num_heads)

    def row(n: Index, s: Index) -> Sequence[Coord]:
        if positions is None:
            return ZERO if cos.shape[0] == ONE else n, ZERO if cos.shape[1] == ONE else s
        return (position_at(b, positions, n, s),)

    y = rotated(b, heads, cos, sin, row, interleaved=bool(interleaved), size=rotary_embedding_dim)
    return y if x.rank == 4 else merge_heads(b, y)
