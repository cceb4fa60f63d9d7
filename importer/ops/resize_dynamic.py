"""Resize along an axis where sizes or scales are known at run time only.

What `resize_positions` computes in tables while importing, nests compute here: positions that
follow from sizes as quotients of whole numbers, those that follow from scales and regions in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import scaled, shifted
from rutc.importer.ops.resize_positions import Scheme
from rutc.importer.ops.resize_steps import ResizedAxis, Step, filtered, move
from rutc.importer.ops.size_operands import bound, number
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply, cast

REAL = DType.F32


@record
class Ratio:
    """Along one axis: output elements per input element, and the output's length, as f32.

    The length is the exact product where scales are given, not the whole number of outputs.
    """

    scale: Expr
    length: Expr


@record
class Sizes:
    """Along one axis: `out` output elements for `of` input elements, whole numbers in i64."""

    out: Expr
    of: Expr


@record
class Quotient:
    """A position above / over, of whole numbers in i64, `over` positive."""

    above: Expr
    over: Expr

    @property
    def whole(self) -> Expr:
        """The largest whole number that is not larger."""
        return apply("div", apply("sub", self.above, self._rest), self.over)

    @property
    def part(self) -> Expr:
        """The position less `whole`."""
        return apply("div", cast(self._rest, REAL), cast(self.over, REAL))

    @property
    def _rest(self) -> Expr:
        return apply("mod", self.above, self.over)

    def compared(self, op: str, twice: int) -> Expr:
        """How the position less `whole` compares with `twice` / 2."""
        return apply(op, scaled(self._rest, 2), scaled(self.over, twice))


@record
class Real:
    """A position in f32."""

    at: Expr

    @property
    def whole(self) -> Expr:
        """The largest whole number that is not larger."""
        return cast(apply("floor", self.at), DType.I64)

    @property
    def part(self) -> Expr:
        """The position less `whole`."""
        return apply("sub", self.at, apply("floor", self.at))

    def compared(self, op: str, twice: int) -> Expr:
        """How the position less `whole` compares with `twice` / 2."""
        return apply(op, self.part, lit(twice / 2, REAL))


Place = Callable[[Index], Quotient | Real]
"""Where each output element lies."""


@record
class Formulas:
    """The positions and weights of a scheme as expressions of what only a run tells."""

    scheme: Scheme

    def place(
        self, o: Index, n: Index, size: Index, by: Ratio | Sizes, roi: tuple[Expr, Expr]
    ) -> Quotient | Real:
        """Where output element `o` lies, of an axis of `n` elements that gets `size`."""
        if self.scheme.coordinates == "tf_crop_and_resize":
            return Real(_cropped(o, n, size, roi))
        if isinstance(by, Sizes):
            return self._quotient(IndexValue(o), number(n), number(size), by)
        return Real(self._position(o, n, size, by))

    def _quotient(self, o: Expr, n: Expr, size: Expr, by: Sizes) -> Quotient:
        zero, one = number(0), number(1)
        between = apply("mul", shifted(scaled(o, 2), 1), by.of)
        centered = Quotient(apply("sub", between, by.out), scaled(by.out, 2))
        match self.scheme.coordinates:
            case "half_pixel":
                return centered
            case "pytorch_half_pixel":
                several = apply("gt", size, one)
                return replace(centered, above=apply("select", several, centered.above, zero))
            case "half_pixel_symmetric":
                # n/2 less half of the outputs, which by.out / by.of * n need not be.
                left = apply("sub", apply("mul", n, by.out), apply("mul", size, by.of))
                return replace(centered, above=apply("add", centered.above, left))
            case "asymmetric":
                return Quotient(apply("mul", o, by.of), by.out)
            case "tf_half_pixel_for_nn":
                return Quotient(between, scaled(by.out, 2))
            case "align_corners":
                above, span = apply("mul", o, shifted(n, -1)), shifted(by.out, -1)
                if by.of != n:
                    above = apply("mul", above, by.of)
                    span = apply("sub", apply("mul", n, by.out), by.of)
                known = apply("gt", span, zero)
                return Quotient(apply("select", known, above, zero), apply("max", span, one))
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def _position(self, o: Index, n: Index, size: Index, by: Ratio) -> Expr:
        here = cast(IndexValue(o), REAL)
        centered = shifted(apply("div", shifted(here, 0.5), by.scale), -0.5)
        one, zero = lit(1, REAL), lit(0, REAL)
        match self.scheme.coordinates:
            case "half_pixel":
                return centered
            case "pytorch_half_pixel":
                return apply("select", apply("gt", _real(size), one), centered, zero)
            case "half_pixel_symmetric":
                adjusted = apply("div", _real(size), by.length)
                offset = apply("mul", scaled(_real(n), 0.5), apply("sub", one, adjusted))
                return apply("add", offset, centered)
            case "asymmetric":
                return apply("div", here, by.scale)
            case "tf_half_pixel_for_nn":
                return apply("div", shifted(here, 0.5), by.scale)
            case "align_corners":
                span = shifted(by.length, -1)
                known = apply("gt", span, zero)
                safe = apply("select", known, span, one)
                at = apply("div", apply("mul", here, shifted(_real(n), -1)), safe)
                return apply("select", known, at, zero)
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def rounded(self, place: Quotient | Real) -> Expr:
        """The nearest input position."""
        match self.scheme.nearest:
            case "round_prefer_floor":
                up = place.compared("gt", 1)
            case "round_prefer_ceil":
                up = place.compared("ge", 1)
            case "floor":
                return place.whole
            case "ceil":
                up = place.compared("gt", 0)
            case other:
                raise OperatorError(f"nearest_mode {other!r} is unknown")
        return apply("add", place.whole, cast(up, DType.I64))

    def weight(self, d: Expr) -> Expr:
        """The weight at a distance."""
        if self.scheme.mode == "linear":
            return apply("max", apply("sub", lit(1, REAL), d), lit(0, REAL))
        near, far = cubic_weights(d, self.scheme.cubic)
        outer = apply("select", apply("lt", d, lit(2, REAL)), far, lit(0, REAL))
        return apply("select", apply("le", d, lit(1, REAL)), near, outer)


def cubic_weights(d: Expr, a: float) -> tuple[Expr, Expr]:
    """The weights of cubic interpolation at distances up to 1, and from 1 to 2."""
    square = apply("mul", d, d)
    near = shifted(apply("mul", shifted(scaled(d, a + 2), -(a + 3)), square), 1)
    inner = shifted(apply("mul", shifted(scaled(d, a), -5 * a), d), 8 * a)
    return near, shifted(apply("mul", inner, d), -4 * a)


def _real(size: Index) -> Expr:
    return cast(number(size), REAL)


def _cropped(o: Index, n: Index, size: Index, roi: tuple[Expr, Expr]) -> Expr:
    """The position of an output of those that are spread over a part of the axis."""
    first, last = roi
    width, one = shifted(_real(n), -1), lit(1, REAL)
    middle = apply("mul", scaled(apply("add", first, last), 0.5), width)
    many = apply("gt", _real(size), one)
    steps = apply("select", many, shifted(_real(size), -1), one)
    here = cast(IndexValue(o), REAL)
    along = apply("mul", apply("mul", here, apply("sub", last, first)), width)
    place = apply("add", apply("mul", first, width), apply("div", along, steps))
    return apply("select", many, place, middle)


def step_along(
    b: Builder,
    n: Index,
    axis: ResizedAxis,
    by: Ratio | Sizes,
    formulas: Formulas,
    roi: tuple[Expr, Expr],
) -> Step:
    """What resizes along an axis of `n` elements, by tables that nests compute."""
    extent, scheme = axis.extent, formulas.scheme
    place = _placed(b, lambda o: formulas.place(o, n, extent, by, roi), extent)
    if scheme.coordinates == "tf_crop_and_resize":
        axis = replace(axis, known=_known(b, place, extent, n))
    if scheme.mode == "nearest":
        o = b.axis(extent)
        rows = b.nest((o,), _inside(formulas.rounded(place(o.index)), n))
        return move(b, axis, lambda here: b.read(rows, [here]))
    rows, weights = _taps(b, place, extent, n, by, formulas)
    # Other filters have no weight 0.
    return filtered(b, axis, rows, weights, idle=scheme.antialias or scheme.exclude_outside)


def _known(b: Builder, place: Place, extent: Index, n: Index) -> Tensor:
    """Whether every output element lies within the axis {output}."""
    o = b.axis(extent)
    at = place(o.index)
    after = apply("add", at.whole, cast(at.compared("gt", 0), DType.I64))
    return b.nest(
        (o,), apply("and", apply("ge", at.whole, number(0)), apply("lt", after, number(n)))
    )


def _placed(b: Builder, place: Place, extent: Index) -> Place:
    """The same places; those in f32, which take long expressions, are computed once."""
    o = b.axis(extent)
    found = place(o.index)
    if isinstance(found, Quotient):
        return place
    positions = b.nest((o,), found.at)
    return lambda o: Real(b.read(positions, [o]))


def _inside(place: Expr, n: Index) -> Expr:
    """A position moved to the nearest element."""
    last = apply("sub", number(n), number(1))
    return apply("max", apply("min", place, last), number(0))


def _taps(
    b: Builder,
    place: Place,
    extent: Index,
    n: Index,
    by: Ratio | Sizes,
    formulas: Formulas,
) -> tuple[Tensor, Tensor]:
    """(places, weights) {output, tap} around every position.

    At an element itself, where the others have no weight, all taps read that one, and share what
    is exactly 1; with a filter that is made wider they do not.
    """
    side = 1 if formulas.scheme.mode == "linear" else 2
    shrink, reach = _widened(b, by, side, antialias=formulas.scheme.antialias)
    o = b.axis(extent)
    wholes = b.nest((o,), place(o.index).whole)
    o = b.axis(extent)
    parts = b.nest((o,), place(o.index).part)
    o, k = b.axis(extent), b.axis(2 * reach, "k")
    step = IndexValue(k.index + (1 - reach))
    here, part = (b.read(of, [o.index]) for of in (wholes, parts))
    where = apply("add", here, step)
    distance = apply("abs", apply("sub", part, cast(step, REAL)))
    weight = formulas.weight(distance if shrink is None else apply("mul", distance, shrink))
    if not formulas.scheme.antialias:
        last = 2 * side - 1
        shares = np.exp2(-np.minimum(np.arange(last + 1) + 1, last)).astype(np.float32)
        share = b.read(b.constant(shares), [k.index])
        alone = apply("eq", part, lit(0, REAL))
        where, weight = apply("select", alone, here, where), apply("select", alone, share, weight)
    if formulas.scheme.exclude_outside:
        low, high = apply("ge", where, number(0)), apply("lt", where, number(n))
        weight = apply("select", apply("and", low, high), weight, lit(0, REAL))
    weights = b.nest((o, k), weight)
    places = b.nest((o, k), _inside(where, n))
    if not (formulas.scheme.exclude_outside or formulas.scheme.antialias):
        return places, weights
    o, k = b.axes(weights.shape)
    total = b.nest((o,), b.read(weights, [o.index, k.index]), (k,))
    o, k = b.axes(weights.shape)
    whole = b.read(total, [o.index])
    safe = apply("select", apply("eq", whole, lit(0, REAL)), lit(1, REAL), whole)
    return places, b.nest((o, k), apply("div", b.read(weights, [o.index, k.index]), safe))


def _widened(
    b: Builder, by: Ratio | Sizes, taps: int, *, antialias: bool
) -> tuple[Expr | None, Index]:
    """How much wider a filter of `taps` on each side gets: distances times a scale below 1, if any.

    And how many elements on each side it then reaches.
    """
    if not antialias:
        return None, Index.of(taps)
    known = _known_scale(by)
    if known is not None:
        shrink = min(known, 1.0)
        return lit(shrink, REAL), Index.of(ceil(taps / shrink))
    if isinstance(by, Sizes):
        of = apply("max", by.of, number(1))
        out = apply("max", apply("min", by.out, of), number(1))
        reach: Expr = apply("div", shifted(apply("add", scaled(of, taps), out), -1), out)
        factor: Expr = apply("div", cast(out, REAL), cast(of, REAL))
    else:
        factor = apply("min", by.scale, lit(1, REAL))
        reach = cast(apply("ceil", apply("div", lit(taps, REAL), factor)), DType.I64)
    return b.read(b.nest((), factor), []), bound(b, reach, "reach", least=1)


def _known_scale(by: Ratio | Sizes) -> float | None:
    """Output elements per input element, where that is known when compiling."""
    if isinstance(by, Ratio) and isinstance(by.scale, Lit):
        return float(by.scale.value)
    if isinstance(by, Sizes) and isinstance(by.out, Lit) and isinstance(by.of, Lit):
        return float(by.out.value) / float(by.of.value)
    return None
