"""Operands that say sizes and are computed when the model runs: each becomes a size of its own.

Where a run's sizes contradict each other, it ends with a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from rutc.importer.building.broadcast import learn_stride
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, check_rank, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Tensor, ints_of
from rutc.importer.free_sizes.overflow import LONGEST, holds
from rutc.importer.ops.control import unless
from rutc.importer.ops.operands import static
from rutc.importer.ops.reshape import linear
from rutc.importer.told import told
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import floordiv


def number(value: int | Index) -> Expr:
    """A number or size as an element."""
    index = Index.of(value)
    return Lit(index.const, DType.I64) if index.is_const else IndexValue(index)


def elements(b: Builder, t: Tensor, what: str, length: int | None = None) -> list[Expr]:
    """The elements of a scalar or of a row, as i64; `length` is how many they must be."""
    if t.rank > 1:
        raise OperatorError(f"{what} must have one axis, not {t}")
    count = 1
    if t.rank and length is not None:
        count = b.number(t.shape[0], length, f"the length of {what}")
    elif t.rank:
        count = static(t.shape[0], f"the length of {what}")
    if t.known is not None and t.dtype.is_int:
        return [number(i) for i in ints_of(t.known)]
    places = [[k] for k in range(count)] if t.rank else [[]]
    return [told(b, cast(b.read(t, place), DType.I64)) for place in places]


def bound(
    b: Builder,
    value: Expr,
    role: str,
    most: int = MOST,
    least: int = 0,
    usual: Index | None = None,
) -> Index:
    """An element as a size, which commonly is `usual`."""
    if isinstance(value, IndexValue) and least == 0 and _is_size(b, value.index):
        return value.index
    if isinstance(value, Lit):
        return b.size(b.constant(np.array(value.value, np.int64)), role, most, least)
    size = b.size(b.nest((), value), role, most, least)
    if usual is not None and size.as_var is not None:
        b.usual[size.as_var] = usual
    return size


def _is_size(b: Builder, index: Index) -> bool:
    """Whether an expression of sizes is never negative."""
    bounds = index.bounds(b.ranges)
    return bounds is not None and bounds[0] >= 0


def sizes(
    b: Builder,
    t: Tensor,
    what: str,
    least: int = 0,
    length: int | None = None,
    usual: Sequence[Index | None] = (),
) -> tuple[Index, ...]:
    """The elements of an operand as sizes; `length` is how many they must be.

    Sizes that only a run tells commonly are the `usual` ones, where these are given.
    """
    if t.known is not None:
        if t.rank and length is not None:
            b.number(t.shape[0], length, f"the length of {what}")
        return ints_of(t.known)
    role = "".join(c if c.isalnum() else "_" for c in what.removeprefix("the "))
    found = elements(b, t, what, length)
    common = usual or [None] * len(found)
    return tuple(bound(b, e, role, MOST, least, n) for e, n in zip(found, common, strict=False))


def checked(b: Builder, value: Expr, ok: Expr, message: str) -> Expr:
    """`value`, or the end of the run with the message."""
    if isinstance(ok, Lit):
        if not ok.value:
            raise OperatorError(message)
        return value
    return b.read(b.unless_failed(value, ok, message), [])


def reshape_dynamic(b: Builder, x: Tensor, shape: Tensor, *, allowzero: bool) -> Tensor:
    """`x` with a shape that is computed: its elements in row-major order."""
    given = elements(b, shape, "the shape")
    check_rank(len(given))
    total = number(x.size)
    zero, minus = number(0), number(-1)
    kept: list[Expr] = []
    for i, v in enumerate(given):
        if not allowzero and i < x.rank:
            v = apply("select", apply("eq", v, zero), number(x.shape[i]), v)
        kept.append(v)
    rest: Expr = number(1)
    unwrapped: Expr = lit(1, DType.F64)
    open_: Expr = number(0)
    for v in kept:
        is_open = apply("eq", v, minus)
        factor = apply("select", is_open, number(1), v)
        rest = apply("mul", rest, factor)
        unwrapped = apply("mul", unwrapped, cast(factor, DType.F64))
        open_ = apply("add", open_, cast(is_open, DType.I64))
    rest, open_ = (b.read(b.nest((), e), []) for e in (rest, open_))
    small = b.read(b.nest((), holds(unwrapped)), [])
    some = apply("max", rest, number(1))
    left = apply("select", apply("eq", open_, number(1)), apply("div", total, some), number(1))
    found = [apply("select", apply("eq", v, minus), left, v) for v in kept]
    fits = apply("and", small, apply("eq", apply("mul", left, rest), total))
    fits = apply("and", fits, apply("le", open_, number(1)))
    why = f"{x} does not fit the shape"
    return linear(b, x, tuple(bound(b, checked(b, v, fits, why), "extent") for v in found))


def expand_dynamic(b: Builder, x: Tensor, shape: Tensor) -> Tensor:
    """`x` broadcast to a shape that is computed."""
    given = elements(b, shape, "the shape")
    rank = max(len(given), x.rank)
    check_rank(rank)
    extents: list[Index] = []
    wrong: list[Expr] = []
    for i in range(rank):
        own = i - (rank - x.rank)
        asked = i - (rank - len(given))
        extent = x.shape[own] if own >= 0 else Index.of(1)
        if asked < 0:
            extents.append(extent)
        elif extent.is_const and extent.const != 1:
            extents.append(extent)
            others = (apply("ne", given[asked], number(e)) for e in (1, extent))
            wrong.append(reduce(partial(apply, "and"), others))
        elif extent == Index.of(1):
            extents.append(bound(b, given[asked], "extent"))
        else:
            # An extent of 1 in the shape leaves that of x.
            one = apply("eq", given[asked], number(1))
            wanted = bound(b, apply("select", one, number(extent), given[asked]), "extent")
            learn_stride(b, extent, wanted, (x.shape, (wanted,)))
            extents.append(wanted)
    if wrong:
        other = b.nest((), reduce(partial(apply, "or"), wrong))
        x = unless(b, other, x, f"{', '.join(b.origin)}: {x} does not broadcast to the shape")
    out = b.axes(extents)
    return b.nest(out, b.spread(x, out))


def cut_dynamic(b: Builder, n: Index, start: Expr, end: Expr, step: int) -> tuple[Index, Index]:
    """The first element and the extent of [start:end:step] of n elements, as sizes."""
    size = number(n)
    last = apply("sub", size, number(1))
    if step > 0:
        first, stop = (_clamped(i, size, number(0), size) for i in (start, end))
        span = apply("sub", stop, first)
    else:
        first = _clamped(start, size, number(0), apply("max", last, number(0)))
        stop = _clamped(end, size, number(-1), last)
        span = apply("sub", first, stop)
    span = apply("min", apply("max", span, number(0)), size)
    reach = apply("add", span, number(abs(step) - 1))
    count = apply("div", reach, number(abs(step)))
    most = most_of(b, n)
    return bound(b, first, "start", most), bound(b, count, "length", most)


def _clamped(i: Expr, size: Expr, low: Expr, high: Expr) -> Expr:
    """A position, counted from the end if it is negative, moved between two others."""
    i = apply("select", apply("lt", i, number(0)), apply("add", i, size), i)
    return apply("min", apply("max", i, low), high)


def most_of(b: Builder, n: Index) -> int:
    """The most that an extent may be."""
    bounds = n.bounds(b.ranges)
    return MOST if bounds is None else min(max(bounds[1], 0), LONGEST)


def cut_by(b: Builder, n: Index, start: Expr, end: Expr, step: Expr) -> tuple[Index, Index, Index]:
    """(first element, extent, step) of [start:end:step] of n elements, for a step of any sign."""
    up = apply("gt", step, number(0))
    by = b.read(b.unless_failed(step, apply("ne", step, number(0)), "a step of 0"), [])
    size = number(n)
    last = apply("sub", size, number(1))
    lowest = apply("select", up, number(0), number(-1))
    highest = apply("select", up, size, last)
    first = apply("max", _clamped(start, size, number(0), highest), number(0))
    stop = _clamped(end, size, lowest, highest)
    span = apply("select", up, apply("sub", stop, first), apply("sub", first, stop))
    span = apply("min", apply("max", span, number(0)), size)
    most = most_of(b, n)
    # A step over all elements is as good as any longer one.
    longest = min(max(most, MOST), LONGEST // 2)
    limited = apply("max", apply("min", by, number(longest)), number(-longest))
    far = apply("max", apply("abs", limited), number(1))
    reach = apply("add", span, apply("sub", far, number(1)))
    count = bound(b, apply("div", reach, far), "length", most)
    return bound(b, first, "start", most), count, bound(b, limited, "by", longest, -longest)


def split_dynamic(b: Builder, whole: Index, sizes: Tensor, parts: int) -> list[Index]:
    """The extents of the parts of an axis, which they must make up."""
    given = elements(b, sizes, "split", parts)
    total: Expr = number(0)
    for v in given:
        total = apply("add", total, v)
    fits = apply("eq", b.read(b.nest((), total), []), number(whole))
    why, usual = f"the parts do not make up {whole}", floordiv(whole, Index.of(parts), b.ranges)
    return [bound(b, checked(b, v, fits, why), "part", usual=usual) for v in given]


def range_dynamic(b: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """start, start + delta, ... before limit, as many as they say."""
    first, last, step = (b.read(t, [0] * t.rank) for t in (start, limit, delta))
    kind = start.dtype
    zero = lit(0, kind)
    if kind.is_float:
        wide = DType.F64
        span = apply("sub", cast(last, wide), cast(first, wide))
        count = cast(apply("ceil", apply("div", span, cast(step, wide))), DType.I64)
    else:
        # Without a sign, no difference is too large.
        wide, one = DType.U64, Lit(1, DType.U64)
        low, high, by = (cast(e, DType.I64) for e in (first, last, step))
        up = apply("gt", by, number(0))
        some = apply("select", up, apply("lt", low, high), apply("lt", high, low))
        span = apply("select", up, apply("sub", high, low), apply("sub", low, high))
        far = cast(apply("select", up, by, apply("neg", by)), wide)
        whole = apply("add", apply("div", apply("sub", cast(span, wide), one), far), one)
        count = cast(apply("min", whole, Lit(MOST + 1, wide)), DType.I64)
        count = apply("select", some, count, number(0))
    count = apply("max", count, number(0))
    moves = apply("ne", step, zero)
    extent = bound(b, checked(b, count, moves, "delta is 0"), "count")
    (axis,) = b.axes((extent,))
    computed = DType.F32 if kind.is_float and kind.bits < 32 else kind
    place = cast(IndexValue(axis.index), computed)
    body = apply("add", cast(first, computed), apply("mul", place, cast(step, computed)))
    return b.nest((axis,), cast(body, kind))
