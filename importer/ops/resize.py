"""Resize, axis by axis: each output position reads a few input positions with fixed weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import scaled
from rutc.importer.ops.operands import axes_of
from rutc.importer.ops.resize_dynamic import (
    REAL,
    Formulas,
    Ratio,
    Sizes,
    step_along,
)
from rutc.importer.ops.resize_positions import Scale, Scheme, fitted
from rutc.importer.ops.resize_steps import ResizedAxis, Step, filtered, interpolating, move, repeat
from rutc.importer.ops.size_operands import bound, number
from rutc.importer.ops.size_operands import sizes as sizes_of
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import ZERO, floordiv

_LARGEST = 1 << 24
"""The largest extent that a table of positions is made for."""


@operator("Resize")
def resize(
    b: Builder,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """`x` interpolated to other extents."""
    chosen = axes_of(tuple(axes), x.rank) if axes is not None else tuple(range(x.rank))
    scheme = Scheme(
        coordinate_transformation_mode,
        mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    targets = _targets(b, x, chosen, scales, sizes, keep_aspect_ratio_policy)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    shape, steps = list(x.shape), []
    for i, (a, (extent, scale, ratio)) in enumerate(zip(chosen, targets, strict=True)):
        region = _region(b, roi, i, len(chosen)) if crop else (0.0, 1.0)
        n, axis = x.shape[a], ResizedAxis(a, extent, outside=extrapolation_value)
        if extent == n and scale == 1.0 and region == (0.0, 1.0):
            continue
        if n == ZERO and extent != ZERO:
            raise OperatorError(f"axis {a} has no elements: it cannot be resized to {extent}")
        shape[a] = extent
        step = None
        if scale is not None and region is not None:
            step = _along(b, x, axis, scale, scheme, region)
        if step is None:
            corners = _corners(b, roi, i, len(chosen)) if crop else (lit(0, REAL), lit(1, REAL))
            step = step_along(b, n, axis, ratio, Formulas(scheme), corners)
        steps.append(step)
    if ZERO in shape:
        return b.empty(b.axes(shape), x.dtype)
    y = x
    for step in steps:
        y = step(y)
    if y.dtype is x.dtype:
        return y
    return b.map(lambda e: cast(apply("round", e) if x.dtype.is_int else e, x.dtype), y)


def _region(b: Builder, roi: Tensor | None, i: int, count: int) -> tuple[float, float] | None:
    """The part of the i-th axis to read; None where it is known at run time only."""
    if roi is None:
        return 0.0, 1.0
    if roi.array is None:
        return None
    return float(roi.array[i]), float(roi.array[count + i])


def _corners(b: Builder, roi: Tensor | None, i: int, count: int) -> tuple[Expr, Expr]:
    if roi is None:
        return lit(0, REAL), lit(1, REAL)
    return cast(b.read(roi, [i]), REAL), cast(b.read(roi, [count + i]), REAL)


Target = tuple[Index, Scale | None, Ratio | Sizes]
"""An axis's new extent, its scale (None where that is known at run time only), and the same in
elements."""


def _targets(
    b: Builder,
    x: Tensor,
    chosen: Sequence[int],
    scales: Tensor | None,
    sizes: Tensor | None,
    policy: str,
) -> list[Target]:
    """What becomes of each axis."""
    if scales is not None and scales.shape != (ZERO,):
        if scales.size.is_const:
            b.number(scales.size, len(chosen), "the number of scales")
        return [_by_scale(b, x.shape[a], scales, i) for i, a in enumerate(chosen)]
    if sizes is None:
        raise OperatorError("neither scales nor sizes are given")
    old = [x.shape[a] for a in chosen]
    wanted = sizes_of(b, sizes, "sizes", 1, len(chosen), usual=old)
    if policy == "stretch":
        return [_to_size(b, n, e) for n, e in zip(old, wanted, strict=True)]
    not_larger = policy == "not_larger"
    if all(e.is_const for e in (*wanted, *old)):
        factor, found = fitted(
            [n.const for n in old], [s.const for s in wanted], not_larger=not_larger
        )
        whole = Sizes(number(factor.numerator), number(factor.denominator))
        return [(Index.of(size), factor, whole) for size in found]
    fitting = zip(old, _fitted(b, old, wanted, policy), strict=True)
    return [(bound(b, size, "size", usual=n), None, by) for n, (size, by) in fitting]


def _fitted(
    b: Builder, old: Sequence[Index], wanted: Sequence[Index], policy: str
) -> Iterator[tuple[Expr, Sizes]]:
    """The sizes of the run that fit the wanted ones, or cover them, and keep all proportions."""
    first, *rest = [(number(s), number(n)) for s, n in zip(wanted, old, strict=True)]
    out, of = first
    for s, n in rest:
        compare = "lt" if policy == "not_larger" else "gt"
        better = apply(compare, apply("mul", s, of), apply("mul", out, n))
        out, of = apply("select", better, s, out), apply("select", better, n, of)
    by = Sizes(b.read(b.nest((), out), []), b.read(b.nest((), of), []))
    for length in map(number, old):
        # To the nearest, halves up: (2 * length * out + of) // (2 * of).
        twice = apply("add", apply("mul", scaled(length, 2), by.out), by.of)
        yield apply("div", twice, scaled(by.of, 2)), by


def _ratio(scale: Expr, n: Index) -> Ratio:
    return Ratio(scale, apply("mul", cast(number(n), REAL), scale))


def _by_scale(b: Builder, n: Index, scales: Tensor, i: int) -> Target:
    if scales.array is None:
        scale = b.read(b.nest((), cast(b.read(scales, [i]), REAL)), [])
        ratio = _ratio(scale, n)
        size = cast(apply("floor", ratio.length), DType.I64)
        return bound(b, size, "size", usual=n), None, ratio
    factor = float(scales.array.reshape(-1)[i])
    if not 0 < factor < inf:
        raise OperatorError(f"the scale {factor} is no positive number")
    ratio = _ratio(lit(factor, REAL), n)
    if n.is_const:
        extent = Index.of(int(np.floor(np.float32(n.const) * np.float32(factor))))
    elif factor.is_integer():
        extent = n * int(factor)
    elif (1 / factor).is_integer():
        extent = floordiv(n, Index.of(int(1 / factor)), b.ranges)
    else:
        extent = bound(b, cast(apply("floor", ratio.length), DType.I64), "size")
    return extent, factor, ratio


def _to_size(b: Builder, n: Index, extent: Index) -> Target:
    by = Sizes(number(extent), number(n))
    if extent.is_const and n.is_const:
        return extent, Fraction(extent.const, max(n.const, 1)), by
    whole = floordiv(extent, n, b.ranges)
    if whole.is_const and n * whole == extent:
        return extent, Fraction(whole.const), by
    return extent, None, by


def _along(
    b: Builder,
    x: Tensor,
    axis: ResizedAxis,
    scale: Scale,
    scheme: Scheme,
    region: tuple[float, float],
) -> Step | None:
    """What resizes `x` along one axis; None where that takes positions computed at run time."""
    n, extent = x.shape[axis.number], axis.extent
    if scheme.mode == "nearest" and scale >= 1 and scale % 1 == 0 and _is_repeat(scheme):
        return repeat(b, axis, int(scale))
    if not n.is_const or not extent.is_const:
        return None
    count, size = n.const, extent.const
    if size > _LARGEST:
        raise OperatorError(f"the new extent {size} is too large")
    at = scheme.places(count, size, scale, region)
    if scheme.coordinates == "tf_crop_and_resize":
        axis = replace(axis, known=b.constant(at.inside(count)))
    if scheme.mode == "nearest":
        table = np.clip(at.nearest(scheme.nearest), 0, count - 1)
        return move(b, axis, lambda here: _position(b, table, here))
    where, weights = scheme.taps(at, count, scale)
    wide = interpolating(x.dtype).numpy
    return filtered(b, axis, b.constant(where), b.constant(weights.astype(wide)))


def _is_repeat(scheme: Scheme) -> bool:
    """Whether nearest at a whole scale repeats every element."""
    if scheme.coordinates == "asymmetric":
        return scheme.nearest == "floor"
    return scheme.coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric") and (
        scheme.nearest in ("round_prefer_floor", "round_prefer_ceil")
    )


def _position(b: Builder, table: np.ndarray, o: Index) -> Coord:
    """table[o], as an index expression where it is (o*p + r) // q for small numbers."""
    size = len(table)
    if size == 1:
        return Index.of(int(table[0]))
    p = int(table[-1] - table[0])
    if p % (size - 1) == 0:
        step = p // (size - 1)
        if np.array_equal(table, table[0] + step * np.arange(size)):
            return o * step + int(table[0])
    return b.read(b.constant(table), [o])
