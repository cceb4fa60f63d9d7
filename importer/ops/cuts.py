"""Operators that cut tensors into parts, and join parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import FEW, KnownSizesError, OperatorError, lit
from rutc.importer.building.size_builder import MANY
from rutc.importer.building.tensor import Tensor
from rutc.importer.free_sizes.pieces import Pieces, pieces
from rutc.importer.ops.operands import axes_of, axis_of, indices, ints
from rutc.importer.ops.run_time_axes import sliced
from rutc.importer.ops.size_operands import (
    checked,
    cut_dynamic,
    elements,
    most_of,
    number,
    split_dynamic,
)
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, Range, floordiv, maximum, minimum

FAR = (1 << 63) - 1
"""An end behind all elements."""
UNLIKE = "starts and ends differ in length, or are more than there are axes"


def _how_many(*operands: Tensor | None) -> int:
    """Of how many axes a slice's operands tell: 1 where each is of a length that a run tells."""
    lengths = [t.shape[0] for t in operands if t is not None and t.rank == 1]
    return next((n.const for n in lengths if n.is_const), 1)


def _for_axes(b: Builder, t: Tensor, what: str, count: int) -> list[Expr]:
    """The elements of starts or ends: of so many axes, where a run tells how many."""
    if not _is_open(t):
        return elements(b, t, what)
    fits = apply("eq", number(t.shape[0]), number(count))
    return [checked(b, e, fits, f"{what} and axes differ in length") for e in _first(b, t, count)]


def _is_open(t: Tensor) -> bool:
    """Whether a run tells how many elements a slice's operand has."""
    return t.rank == 1 and not t.shape[0].is_const


def _first(b: Builder, t: Tensor, count: int) -> list[Expr]:
    """So many elements from the first one on; 0 where there is none."""
    return [cast(b.read(t, [k], lit(0, t.dtype)), DType.I64) for k in range(count)]


def _of_first_axes(
    b: Builder, starts: Tensor, ends: Tensor, rank: int
) -> tuple[list[Expr], list[Expr]]:
    """The starts and ends of all axes, where a run tells of how many first ones they are."""
    length = number(starts.shape[0])
    alike = apply("eq", length, number(ends.shape[0]))
    fits = apply("and", alike, apply("le", length, number(rank)))

    def of(t: Tensor, default: int) -> list[Expr]:
        own = (checked(b, e, fits, UNLIKE) for e in _first(b, t, rank))
        given = [apply("lt", number(k), length) for k in range(rank)]
        return [apply("select", g, e, number(default)) for g, e in zip(given, own, strict=True)]

    return of(starts, 0), of(ends, FAR)


@operator("Slice")
def slice_of(
    b: Builder,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """x[start:end:step] along the named axes.

    Where a run tells the lengths of all other operands, one axis is meant: a run with others ends.
    Without axes and steps these are the first ones, as many as it has starts and ends.
    """
    if axes is None and steps is None and _is_open(starts) and _is_open(ends):
        begin, end = _of_first_axes(b, starts, ends, x.rank)
    else:
        count = _how_many(axes, steps, starts, ends)
        begin, end = _for_axes(b, starts, "starts", count), _for_axes(b, ends, "ends", count)
    if any(t is not None and t.known is None for t in (axes, steps)):
        places = (
            elements(b, axes, "axes") if axes is not None else list(map(number, range(len(begin))))
        )
        by = elements(b, steps, "steps") if steps is not None else [number(1)] * len(begin)
        if not len(begin) == len(end) == len(places) == len(by):
            raise OperatorError("starts, ends, axes and steps differ in length")
        extents, firsts, jumps = sliced(b, x, begin, end, places, by)

        def found(*out: Index) -> Sequence[Index]:
            return [o * s + f for o, s, f in zip(out, jumps, firsts, strict=True)]

        return b.view(x, extents, found, fill=lit(0, x.dtype))
    named = ints(axes, "axes") if axes is not None else tuple(range(len(begin)))
    chosen = axes_of(named, x.rank)
    step = ints(steps, "steps") if steps is not None else (1,) * len(begin)
    if not len(begin) == len(end) == len(chosen) == len(step):
        raise OperatorError("starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    first: dict[int, Index] = {}
    strides: dict[int, int] = {}
    fill: Lit | None = None
    for a, lo, hi, given in zip(chosen, begin, end, step, strict=True):
        s = _limited(b, x.shape[a], given)
        cut, told = _cut_by_sign(b, x.shape[a], lo, hi, s)
        if cut is None:
            fill = lit(0, x.dtype)
            cut = cut_dynamic(b, x.shape[a], lo, hi, s)
            b.pieces |= {n: p for e, p in zip(cut, told, strict=False) if (n := e.as_var)}
        first[a], shape[a] = cut
        strides[a] = s
    if shape == list(x.shape) and all(s == 1 for s in strides.values()):
        return x

    def coords(*out: Index) -> Sequence[Index]:
        return [o * strides[i] + first[i] if i in first else o for i, o in enumerate(out)]

    return b.view(x, shape, coords, fill=fill)


def _limited(b: Builder, n: Index, step: int) -> int:
    """A step that does among n elements what the given one does, and is no longer than they are."""
    longest = max(most_of(b, n), 1)
    return max(min(step, longest), -longest)


def _cut_by_sign(
    b: Builder, n: Index, begin: Expr, stop: Expr, step: int
) -> tuple[tuple[Index, Index] | None, tuple[Pieces, ...]]:
    """The first element and the extent of [begin:stop:step] of n elements, if they can be told.

    Else what each of them is in pieces of a size's range, if that can be told.
    """
    if step == 0:
        raise OperatorError("a step of 0")
    start, end = (_index(e) for e in (begin, stop))
    if start is None or end is None:
        return None, ()
    if _have_signs((start, end), b.ranges):
        return _cut(n, start, end, step, b.ranges), ()
    names = start.names() | end.names()
    symbol = next(iter(names), "")
    limits = (
        pieces(symbol, b.ranges, partial(_have_signs, (start, end))) if len(names) == 1 else None
    )
    if limits is None:
        return None, ()
    cuts = [_cut(n, start, end, step, {**b.ranges, symbol: part}) for part in limits]
    told = (tuple(zip(limits, found, strict=True)) for found in zip(*cuts, strict=True))
    return None, tuple(Pieces(symbol, start, parts) for parts in told)


def _cut(
    n: Index, start: Index, end: Index, step: int, ranges: Mapping[str, Range]
) -> tuple[Index, Index]:
    """The first element and the extent of [start:end:step] of n elements, of known signs."""

    def wrapped(i: Index) -> Index:
        bounds = i.bounds(ranges)
        assert bounds is not None
        return i + n if bounds[1] < 0 else i

    def clamped(i: Index, low: int, high: Index) -> Index:
        return minimum(maximum(i, low, ranges), high, ranges)

    if step > 0:
        first, last = clamped(wrapped(start), 0, n), clamped(wrapped(end), 0, n)
        count = floordiv(last - first + (step - 1), Index.of(step), ranges)
    else:
        first, last = clamped(wrapped(start), 0, n - 1), clamped(wrapped(end), -1, n - 1)
        count = floordiv(first - last + (-step - 1), Index.of(-step), ranges)
    return first, maximum(count, 0, ranges)


def _index(e: Expr) -> Index | None:
    """What an element is, where it is known at import."""
    if isinstance(e, IndexValue):
        return e.index
    return Index.of(int(e.value)) if isinstance(e, Lit) else None


def _have_signs(places: Sequence[Index], ranges: Mapping[str, Range]) -> bool:
    """Whether it is known of each place if it is counted from the end."""
    found = [i.bounds(ranges) for i in places]
    return all(x is not None and not x[0] < 0 <= x[1] for x in found)


@operator("Split")
def split(
    b: Builder,
    x: Tensor,
    sizes: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:
    """`x` cut along an axis into parts of given or equal sizes."""
    at = axis_of(axis, x.rank)
    fill: Lit | None = None
    if sizes is not None and sizes.known is None:
        parts: Sequence[Index] = split_dynamic(b, x.shape[at], sizes, len(b.outputs))
        fill = lit(0, x.dtype)
    elif sizes is not None:
        parts = _parts(b, indices(sizes, "split"), x.shape[at])
    else:
        parts = _equal_parts(b, x.shape[at], num_outputs or len(b.outputs))
    out: list[Tensor] = []
    start = ZERO
    for size in parts:
        out.append(_part(b, x, at, start, size, fill))
        start = start + size
    return tuple(out)


def _equal_parts(b: Builder, whole: Index, count: int) -> Sequence[Index]:
    """The parts of an extent n, each of ceil(n / count) elements as long as there are so many."""
    part = floordiv(whole + (count - 1), Index.of(count), b.ranges)
    span = whole.bounds(b.ranges)
    ends = [part * i for i in range(count)]
    # From so many elements on, all parts but the last are whole ones.
    if count > 2 and part * count != whole and (span is None or span[0] < (count - 1) ** 2):
        ends = [minimum(end, whole, b.ranges) for end in ends]
    return tuple(end - start for start, end in zip(ends, [*ends[1:], whole], strict=True))


def _parts(b: Builder, parts: Sequence[Index], whole: Index) -> Sequence[Index]:
    """The parts, which make up the whole."""
    total = sum(parts, ZERO)
    if total == whole:
        return parts
    if total.is_const and whole.is_const:
        raise OperatorError(f"the parts {tuple(map(str, parts))} do not sum up to {whole}")
    # The last part is made of the size that is checked, so that it is known to end with the whole.
    return (*parts[:-1], parts[-1] + b.same(whole, total) - total)


def _part(b: Builder, x: Tensor, axis: int, start: Index, size: Index, fill: Lit | None) -> Tensor:
    shape = [size if i == axis else e for i, e in enumerate(x.shape)]
    if shape == list(x.shape):
        return x
    if x.known is not None and start.is_const and size.is_const:
        cut = [slice(None)] * x.rank
        cut[axis] = slice(start.const, start.const + size.const)
        return b.constant(x.known[tuple(cut)], x.dtype)
    return b.view(
        x,
        shape,
        lambda *out: [o + start if i == axis else o for i, o in enumerate(out)],
        fill=fill,
    )


@operator("Concat")
def concat(b: Builder, *parts: Tensor, axis: int) -> Tensor:
    """The parts one after the other along an axis, as a choice on the position along it."""
    if not parts:
        raise OperatorError("no operand")
    sizes = {n for t in parts for e in t.shape for n in e.names()}
    few = FEW if len(sizes) <= MANY else 2 * MANY
    while len(parts) > few:
        runs = [parts[k : k + few] for k in range(0, len(parts), few)]
        parts = tuple(concat(b, *run, axis=axis) for run in runs)
    at = axis_of(axis, parts[0].rank)
    filled = [t for t in parts if t.shape[at] != ZERO] or [parts[0]]
    first = filled[0]
    shape = list(first.shape)
    for t in filled[1:]:
        if t.rank != first.rank:
            raise KnownSizesError(f"{first} and {t} do not fit along axis {at}")
        for i, (p, q) in enumerate(zip(shape, t.shape, strict=True)):
            if i != at and p != q:
                if p.is_const and q.is_const:
                    raise KnownSizesError(f"{first} and {t} do not fit along axis {at}")
                shape[i] = b.same(p, q)
    if len(filled) == 1:
        return first
    shape[at] = b.total(sum((t.shape[at] for t in filled), ZERO).simplify(b.ranges))
    axes = b.axes(shape)
    if any(e == ZERO for e in shape):
        return b.empty(axes, first.dtype)
    here = axes[at].index
    fill = lit(0, first.dtype)
    starts = [ZERO]
    for t in filled:
        starts.append(starts[-1] + t.shape[at])
    body: Expr | None = None
    for t, start, end in reversed(list(zip(filled, starts, starts[1:], strict=False))):
        unit = t.shape[at] == ONE
        coords = [
            (ZERO if unit else here - start) if i == at else a.index for i, a in enumerate(axes)
        ]
        element = b.read(t, coords, fill)
        if body is None:
            body = element
        else:
            before = apply("lt", IndexValue(here - end), lit(0, DType.I64))
            body = apply("select", before, element, body)
    assert body is not None
    return b.nest(axes, body)
