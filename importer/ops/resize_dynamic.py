"""Resize along an axis where sizes or scales are known at run time only.

What `resize` computes in tables while importing, nests compute here, in f32.
"""

from __future__ import annotations

from math import ceil

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.activations import scaled, shifted
from rutc.importer.ops.dynamic import number
from rutc.importer.tensor import Tensor
from rutc.record import record
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, Lit, apply, cast

REAL = DType.F32


@record
class Ratio:
    """Along one axis: output elements per input element, and the output's length, as f32.

    The length is the exact product where scales are given, not the whole number of outputs.
    """

    scale: Expr
    length: Expr


@record
class Filter:
    """How output positions correspond to input positions, and what weights surround them."""

    coordinates: str
    mode: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool

    def position(self, o: Index, n: Expr, size: Expr, by: Ratio, roi: tuple[Expr, Expr]) -> Expr:
        """The input position of output element `o`; `n` and `size` are the axis's extents."""
        here = cast(IndexValue(o), REAL)
        centered = shifted(apply("div", shifted(here, 0.5), by.scale), -0.5)
        one, zero = lit(1, REAL), lit(0, REAL)
        match self.coordinates:
            case "half_pixel":
                return centered
            case "pytorch_half_pixel":
                return apply("select", apply("gt", size, one), centered, zero)
            case "half_pixel_symmetric":
                adjusted = apply("div", size, by.length)
                offset = apply("mul", scaled(n, 0.5), apply("sub", one, adjusted))
                return apply("add", offset, centered)
            case "asymmetric":
                return apply("div", here, by.scale)
            case "align_corners":
                span = shifted(by.length, -1)
                known = apply("gt", span, zero)
                safe = apply("select", known, span, one)
                at = apply("div", apply("mul", here, shifted(n, -1)), safe)
                return apply("select", known, at, zero)
            case "tf_crop_and_resize":
                first, last = roi
                width = shifted(n, -1)
                middle = apply("mul", scaled(apply("add", first, last), 0.5), width)
                many = apply("gt", size, one)
                steps = apply("select", many, shifted(size, -1), one)
                along = apply("mul", apply("mul", here, apply("sub", last, first)), width)
                place = apply("add", apply("mul", first, width), apply("div", along, steps))
                return apply("select", many, place, middle)
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def rounded(self, at: Expr) -> Expr:
        """The nearest input position."""
        match self.nearest:
            case "round_prefer_floor":
                return apply("ceil", shifted(at, -0.5))
            case "round_prefer_ceil":
                return apply("floor", shifted(at, 0.5))
            case "floor" | "ceil":
                return apply(self.nearest, at)
            case other:
                raise OperatorError(f"nearest_mode {other!r} is unknown")

    def weight(self, d: Expr) -> Expr:
        """The weight at a distance."""
        if self.mode == "linear":
            return apply("max", apply("sub", lit(1, REAL), d), lit(0, REAL))
        a = self.cubic
        square = apply("mul", d, d)
        near = shifted(apply("mul", shifted(scaled(d, a + 2), -(a + 3)), square), 1)
        inner = shifted(apply("mul", shifted(scaled(d, a), -5 * a), d), 8 * a)
        far = shifted(apply("mul", inner, d), -4 * a)
        outer = apply("select", apply("lt", d, lit(2, REAL)), far, lit(0, REAL))
        return apply("select", apply("le", d, lit(1, REAL)), near, outer)


def resize_along(
    b: Builder,
    x: Tensor,
    axis: int,
    extent: Index,
    by: Ratio,
    how: Filter,
    roi: tuple[Expr, Expr],
    outside: float | None,
) -> Tensor:
    """`x` resized along one axis."""
    n, size = (cast(number(e), REAL) for e in (x.shape[axis], extent))
    o = b.axis(extent)
    position = b.nest((o,), how.position(o.index, n, size, by, roi))
    shape = [extent if i == axis else e for i, e in enumerate(x.shape)]
    axes = b.axes(shape)

    def element(place: Coord) -> Expr:
        coords: list[Coord] = [a.index for a in axes]
        coords[axis] = place
        return b.read(x, coords)

    def guarded(value: Expr, at: Expr) -> Expr:
        if outside is None:
            return value
        inside = apply("and", apply("ge", at, lit(0, REAL)), apply("le", at, shifted(n, -1)))
        return apply("select", inside, value, lit(outside, value.dtype))

    if how.mode == "nearest":
        o = b.axis(extent)
        place = cast(how.rounded(b.read(position, [o.index])), DType.I64)
        rows = b.nest((o,), _inside(place, x.shape[axis]))
        here = axes[axis].index
        value = element(b.read(rows, [here]))
        return b.nest(axes, guarded(value, b.read(position, [here])))
    rows, weights = _taps(b, position, x.shape[axis], by, how)
    k = b.axis(rows.shape[1], "k")
    wide = REAL if x.dtype.bits < 32 or not x.dtype.is_float else x.dtype
    here = axes[axis].index
    factor = cast(b.read(weights, [here, k.index]), wide)
    value = cast(element(b.read(rows, [here, k.index])), wide)
    total = b.nest(axes, apply("mul", value, factor), (k,))
    if wide is x.dtype and outside is None:
        return total
    axes = b.axes(shape)
    e = b.spread(total, axes)
    e = cast(apply("round", e) if x.dtype.is_int else e, x.dtype)
    return b.nest(axes, guarded(e, b.read(position, [axes[axis].index])))


def _inside(place: Expr, n: Index) -> Expr:
    """A position moved to the nearest element."""
    last = apply("sub", number(n), number(1))
    return apply("max", apply("min", place, last), number(0))


def _taps(b: Builder, position: Tensor, n: Index, by: Ratio, how: Filter) -> tuple[Tensor, Tensor]:
    """(places, weights) {output, tap} around every position."""
    shrink = 1.0
    if how.antialias:
        if not isinstance(by.scale, Lit):
            raise OperatorError("antialias needs a scale that is known when compiling")
        shrink = min(float(by.scale.value), 1.0)
    reach = ceil((1 if how.mode == "linear" else 2) / shrink)
    o, k = b.axis(position.shape[0]), b.axis(2 * reach, "k")
    at = b.read(position, [o.index])
    first = cast(apply("floor", at), DType.I64)
    where = apply("add", first, IndexValue(k.index + (1 - reach)))
    distance = apply("abs", apply("sub", at, cast(where, REAL)))
    weight = how.weight(scaled(distance, shrink))
    if how.exclude_outside:
        low, high = apply("ge", where, number(0)), apply("lt", where, number(n))
        weight = apply("select", apply("and", low, high), weight, lit(0, REAL))
    weights = b.nest((o, k), weight)
    places = b.nest((o, k), _inside(where, n))
    if not (how.exclude_outside or how.antialias):
        return places, weights
    o, k = b.axes(weights.shape)
    total = b.nest((o,), b.read(weights, [o.index, k.index]), (k,))
    o, k = b.axes(weights.shape)
    whole = b.read(total, [o.index])
    safe = apply("select", apply("eq", whole, lit(0, REAL)), lit(1, REAL), whole)
    return places, b.nest((o, k), apply("div", b.read(weights, [o.index, k.index]), safe))
