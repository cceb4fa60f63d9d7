"""The largest elements along an axis, by counting for each element how many come before it."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.operands import axis_of, ints
from rutc.importer.ops.scatter import scattered
from rutc.importer.registry import operator
from rutc.importer.tensor import Axis, Tensor
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, apply
from rutc.tensor_ir.affine import ONE


@operator("TopK")
def top_k(
    b: Builder,
    x: Tensor,
    k: Tensor,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
) -> tuple[Tensor, ...]:
    """The k largest (or smallest) elements along an axis in order, and their positions.

    rank{.., i} = sum{j} (x[j] before x[i]); the element of rank r is the r-th result. Equal
    elements come in the order of their positions, NaN before all numbers if the largest are
    asked for and after all if the smallest.
    """
    at = axis_of(axis, x.rank)
    (count,) = ints(k, "k")
    n = x.shape[at]
    if n.is_const and not 0 <= count <= n.const:
        raise OperatorError(f"k = {count} of {n} elements")
    shape = [*x.shape[:at], Index.of(count), *x.shape[at + 1 :]]
    if n == ONE or count == 0:
        axes = b.axes(shape)
        first = b.nest(axes, b.spread(x, axes)) if count else b.nest(axes, lit(0, x.dtype))
        return first, b.nest(b.axes(shape), lit(0, DType.I64))
    axes = b.axes(x.shape)
    other = b.axis(n, "j")
    mine = b.spread(x, axes)
    theirs = b.read(x, [other.index if i == at else a.index for i, a in enumerate(axes)])
    earlier = apply("lt", IndexValue(other.index - axes[at].index), lit(0, DType.I64))
    before = _before(theirs, mine, earlier, largest=bool(largest))
    one = apply("select", before, lit(1, DType.I64), lit(0, DType.I64))
    rank = b.nest(axes, one, (other,))
    results: list[Tensor] = []
    for position in (False, True):
        space = b.axes(x.shape)
        value: Expr = IndexValue(space[at].index) if position else b.spread(x, space)
        place = b.spread(rank, space)
        if count == 1:
            results.append(_first(b, value, place, space, at))
            continue
        coords: list[Coord] = [a.index for a in space]
        coords[at] = place
        base = b.nest(b.axes(shape), lit(0, value.dtype))
        results.append(scattered(b, base, space, coords, value))
    return tuple(results)


def _before(a: Expr, c: Expr, earlier: Expr, *, largest: bool) -> Expr:
    """Whether `a`, which stands `earlier` or not, comes before `c`."""
    before: Expr = apply("gt" if largest else "lt", a, c)
    same: Expr = apply("eq", a, c)
    if a.dtype.is_float:
        nan_a, nan_c = apply("isnan", a), apply("isnan", c)
        first, second = (nan_a, nan_c) if largest else (nan_c, nan_a)
        before = apply("or", before, apply("and", first, apply("not", second)))
        same = apply("or", same, apply("and", nan_a, nan_c))
    return apply("or", before, apply("and", same, earlier))


def _first(b: Builder, value: Expr, rank: Expr, space: Sequence[Axis], at: int) -> Tensor:
    """The only element of rank 0 along an axis."""
    hit = apply("eq", rank, lit(0, DType.I64))
    body = apply("select", hit, value, lit(0, value.dtype))
    kept = [a for i, a in enumerate(space) if i != at]
    found = b.nest(kept, body, (space[at],))
    return b.reshaped(found, (*found.axes[:at], b.axis(1), *found.axes[at:]))
