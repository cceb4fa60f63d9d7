"""Reductions over whole axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import squared
from rutc.importer.ops.operands import axes_of, axis_of, ints
from rutc.importer.ops.reshape import linear
from rutc.importer.ops.run_time_axes import Named, named_axes
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Local, apply, cast, reducer
from rutc.tensor_ir.indices.affine import ONE, maximum, product

Lift = Callable[[Expr], Expr]


def reduced(
    b: Builder,
    x: Tensor,
    axes: Sequence[int] | Named,
    how: str,
    *,
    keepdims: bool,
    lift: Lift = lambda e: e,
    finish: Lift = lambda e: e,
) -> Tensor:
    """`finish` of the reduction of `lift` of x's elements; `how` is a reducer's name or `mean`.

    The mean of no elements is 0. All of it is computed in f32 for narrow floats, and rounded in
    the end.
    """
    mean = how == "mean"
    space = [b.axis(e) for e in x.shape]
    if isinstance(axes, Named):
        kept = [b.axis(e) for e in axes.chosen(x.shape, named=False)]
        bound = [b.axis(e) for e in axes.chosen(x.shape, named=True)]
        element = b.read(x, [k.index + r.index for k, r in zip(kept, bound, strict=True)])
    else:
        bound = [space[a] for a in axes]
        kept = [a for i, a in enumerate(space) if i not in axes]
        element = b.read(x, [a.index for a in space])
    exact = how in ("max", "min", "any", "all")
    body = lift(element if exact else cast(element, x.dtype.computing))
    total = b.nest(kept, body, bound, "sum" if mean else how)
    count = maximum(product(a.extent for a in bound), ONE, b.ranges)

    def finished(e: Expr) -> Expr:
        return cast(finish(divided(e, count) if mean and count != ONE else e), x.dtype)

    probe = Local("e", total.dtype)
    if finished(probe) != probe:
        total = b.map(finished, total)
    if isinstance(axes, Named):
        return total if keepdims else linear(b, total, axes.without(x.shape))
    if not keepdims:
        return total
    return b.reshaped(total, keep_units(b, total.axes, axes, x.rank))


def divided(e: Expr, count: Index) -> Expr:
    """`e` divided by a number of elements."""
    return apply("div", e, cast(IndexValue(count), e.dtype))


def keep_units(
    b: Builder, kept: Sequence[Axis], axes: Sequence[int], rank: int
) -> tuple[Axis, ...]:
    """The kept axes with an axis of extent 1 in place of each reduced one."""
    left = iter(kept)
    return tuple(b.axis(1) if i in axes else next(left) for i in range(rank))


def _chosen(
    b: Builder, x: Tensor, axes: Tensor | None, *, noop_with_empty_axes: int
) -> tuple[int, ...] | Named | None:
    """The axes to reduce over; None where nothing is to be reduced."""
    if axes is not None and axes.known is None:
        return named_axes(b, axes, x.rank)
    given = ints(axes, "axes") if axes is not None else ()
    if given:
        return axes_of(given, x.rank)
    return None if noop_with_empty_axes else tuple(range(x.rank))


def _register(name: str, how: str, lift: Lift, finish: Lift) -> None:
    @operator(name)
    def reduction(
        b: Builder,
        x: Tensor,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = _chosen(b, x, axes, noop_with_empty_axes=noop_with_empty_axes)
        kind = how
        if x.dtype is DType.BOOL:
            kind = {"max": "any", "min": "all"}.get(how, how)
        if chosen is None:
            return b.wide(lambda e: finish(lift(e)), x)
        return reduced(b, x, chosen, kind, keepdims=bool(keepdims), lift=lift, finish=finish)


def _same(e: Expr) -> Expr:
    return e


def _root(e: Expr) -> Expr:
    if e.dtype.is_float:
        return apply("sqrt", e)
    return cast(apply("sqrt", cast(e, DType.F64)), e.dtype)


def _logarithm(e: Expr) -> Expr:
    if e.dtype.is_float:
        return apply("log", e)
    return cast(apply("log", cast(e, DType.F64)), e.dtype)


_register("ReduceSum", "sum", _same, _same)
_register("ReduceMean", "mean", _same, _same)
_register("ReduceMax", "max", _same, _same)
_register("ReduceMin", "min", _same, _same)
_register("ReduceProd", "prod", _same, _same)
_register("ReduceL1", "sum", lambda e: apply("abs", e), _same)
_register("ReduceL2", "sum", squared, _root)
_register("ReduceSumSquare", "sum", squared, _same)
_register("ReduceLogSum", "sum", _same, _logarithm)


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(
    b: Builder,
    x: Tensor,
    axes: Tensor | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """`m` + log(sum of exp(x - m)) with m the maximum, which does not overflow.

    Of whole numbers it is cut off.
    """
    chosen = _chosen(b, x, axes, noop_with_empty_axes=noop_with_empty_axes)
    if chosen is None:
        return x
    kind = x.dtype
    real = kind.computing if kind.is_float else DType.F64
    wide = b.as_type(x, real)
    peak = reduced(b, wide, chosen, "max", keepdims=True)

    def finite(m: Expr) -> Expr:
        return apply("select", apply("isinf", m), lit(0, m.dtype), m)

    shifted = b.map(lambda e, m: apply("exp", apply("sub", e, finite(m))), wide, peak, onto=True)
    total = reduced(b, shifted, chosen, "sum", keepdims=True)
    y = b.map(lambda s, m: cast(apply("add", apply("log", s), finite(m)), kind), total, peak)
    if keepdims:
        return y
    if isinstance(chosen, Named):
        return linear(b, y, chosen.without(x.shape))
    return b.reshaped(y, tuple(a for i, a in enumerate(y.axes) if i not in chosen))


def place_of_extreme(
    b: Builder, kept: Sequence[Axis], element: Expr, along: Axis, how: str = "argmax"
) -> Tensor:
    """Where along an axis the element is the extreme, as the reducer `how` says, in 64 bits."""
    return extreme_and_place(b, kept, element, along, how)[1]


def extreme_and_place(
    b: Builder, kept: Sequence[Axis], element: Expr, along: Axis, how: str
) -> tuple[Tensor, Tensor]:
    """The extreme along an axis, as the reducer `how` says, and where it is, in 64 bits.

    Places are reduced in 32 bits where these have room for all: twice as many fill a register.
    """
    bounds = along.extent.bounds(b.ranges)
    small = bounds is not None and bounds[1] <= 1 << (DType.I32.bits - 1)
    place = cast(IndexValue(along.index), DType.I32 if small else DType.I64)
    kind = reducer(how, element.dtype, place.dtype)
    extreme, found = b.multi(kept, (element, place), (along,), kind)
    return extreme, b.map(lambda e: cast(e, DType.I64), found)


def _register_extreme(name: str, how: str) -> None:
    @operator(name)
    def extreme(
        b: Builder, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Tensor:
        at = axis_of(axis, x.rank)
        space = [b.axis(e) for e in x.shape]
        kept = [a for i, a in enumerate(space) if i != at]
        if space[at].dim is None:
            found = b.nest(kept, lit(0, DType.I64))
        else:
            kind = how + "_last" if select_last_index else how
            read = b.read(x, [a.index for a in space])
            found = _some(b, place_of_extreme(b, kept, read, space[at], kind), x.shape[at])
        if not keepdims:
            return found
        return b.reshaped(found, keep_units(b, found.axes, (at,), x.rank))


def _some(b: Builder, found: Tensor, extent: Index) -> Tensor:
    """Places along an axis; the end of the run where there are to be some and it has no element."""
    bounds = extent.bounds(b.ranges)
    if bounds is not None and bounds[0] > 0:
        return found
    zero = lit(0, DType.I64)
    fits = apply("gt", IndexValue(extent), zero)
    if found.rank:
        fits = apply("or", fits, apply("eq", IndexValue(product(found.shape)), zero))
    told = "there is no largest or least of 0 elements"
    last = b.read(b.unless_failed(IndexValue(extent - 1), fits, told), [])
    return b.map(lambda e: apply("min", e, last), found)


_register_extreme("ArgMax", "argmax")
_register_extreme("ArgMin", "argmin")
