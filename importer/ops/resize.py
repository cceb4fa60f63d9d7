"""Resize, axis by axis: each output position reads a few input positions with fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.activations import shifted
from rutc.importer.ops.dynamic import bound, number
from rutc.importer.ops.dynamic import sizes as sizes_of
from rutc.importer.ops.operands import axes_of
from rutc.importer.ops.resize_dynamic import REAL, Filter, Ratio, resize_along
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.record import record
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.affine import ZERO, floordiv

_LARGEST = 1 << 24
"""The largest extent that a table of positions is made for."""


@record
class Scheme:
    """How output positions correspond to input positions."""

    coordinates: str
    mode: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool

    def positions(self, n: int, size: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
        """The input position (a real number) of every output position, in f32 as ONNX has it."""
        o = np.arange(size, dtype=np.float32)
        s = np.float32(scale)
        match self.coordinates:
            case "half_pixel":
                return np.asarray((o + np.float32(0.5)) / s - np.float32(0.5))
            case "pytorch_half_pixel":
                at = (o + np.float32(0.5)) / s - np.float32(0.5)
                return np.asarray(at if size > 1 else np.zeros_like(o))
            case "half_pixel_symmetric":
                adjusted = np.float32(size) / (s * np.float32(n))
                offset = np.float32(n / 2) * (np.float32(1) - adjusted)
                return np.asarray(offset + (o + np.float32(0.5)) / s - np.float32(0.5))
            case "asymmetric":
                return np.asarray(o / s)
            case "align_corners":
                # The exact resized length counts here, not the whole number of outputs.
                span = scale * n - 1
                if size == 1 and span <= 0:
                    return np.zeros_like(o)
                # The quotient last: what is a whole number stays one.
                return np.asarray(o * np.float32(n - 1) / np.float32(span))
            case "tf_crop_and_resize":
                first, last = np.float32(roi[0]), np.float32(roi[1])
                width = np.float32(n - 1)
                if size == 1:
                    return np.full(1, np.float32(0.5) * (first + last) * width, np.float32)
                return np.asarray(first * width + o * (last - first) * width / np.float32(size - 1))
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def rounded(self, at: np.ndarray) -> np.ndarray:
        """The nearest input positions."""
        match self.nearest:
            case "round_prefer_floor":
                return np.asarray(np.ceil(at - np.float32(0.5)))
            case "round_prefer_ceil":
                return np.asarray(np.floor(at + np.float32(0.5)))
            case "floor":
                return np.asarray(np.floor(at))
            case "ceil":
                return np.asarray(np.ceil(at))
            case other:
                raise OperatorError(f"nearest_mode {other!r} is unknown")

    def taps(self, at: np.ndarray, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Input positions and weights {output, tap} of a linear or cubic filter."""
        shrink = min(scale, 1.0) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) / shrink
        low = np.floor(at).astype(np.int64)
        span = np.arange(1 - int(np.ceil(reach)), int(np.ceil(reach)) + 1)
        where = low[:, None] + span[None, :]
        distance = (at[:, None].astype(np.float64) - where) * shrink
        weights = self._filter(np.abs(distance))
        if self.exclude_outside:
            weights = np.where((where < 0) | (where >= n), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        return np.clip(where, 0, n - 1), weights / np.where(total == 0, 1, total)

    def _filter(self, d: np.ndarray) -> np.ndarray:
        if self.mode == "linear":
            return np.asarray(np.maximum(0.0, 1 - d))
        a = self.cubic
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


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
    y = x
    for i, (a, (extent, scale, ratio)) in enumerate(zip(chosen, targets, strict=True)):
        region = _region(b, roi, i, len(chosen)) if crop else (0.0, 1.0)
        outside = extrapolation_value if crop else None
        if extent == x.shape[a] and scale == 1.0 and region == (0.0, 1.0):
            continue
        done = None
        if region is not None:
            done = _along(b, y, a, extent, scale, scheme, region, outside)
        if done is not None:
            y = done
            continue
        how = Filter(*astuple(scheme))
        corners = _corners(b, roi, i, len(chosen)) if crop else (lit(0, REAL), lit(1, REAL))
        y = resize_along(b, y, a, extent, ratio, how, corners, outside)
    return y


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


Target = tuple[Index, float | None, Ratio]
"""An axis's new extent, its scale (None where that is known at run time only), its ratio."""


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
    wanted = sizes_of(b, sizes, "sizes", 1, len(chosen))
    old = [x.shape[a] for a in chosen]
    if policy == "stretch":
        return [_to_size(b, n, e) for n, e in zip(old, wanted, strict=True)]
    not_larger = policy == "not_larger"
    if all(e.is_const for e in (*wanted, *old)):
        pick = min if not_larger else max
        factor = pick(s.const / n.const for s, n in zip(wanted, old, strict=True))
        found = [Index.of(int(np.floor(n.const * factor + 0.5))) for n in old]
        return [(e, factor, _ratio(lit(factor, REAL), n)) for e, n in zip(found, old, strict=True)]
    ratios = [_quotient(e, n) for e, n in zip(wanted, old, strict=True)]
    one = ratios[0]
    for r in ratios[1:]:
        one = apply("min" if not_larger else "max", one, r)
    one = b.read(b.nest((), one), [])
    targets: list[Target] = []
    for n in old:
        size = apply("floor", shifted(apply("mul", cast(number(n), REAL), one), 0.5))
        targets.append((bound(b, cast(size, DType.I64), "size"), None, _ratio(one, n)))
    return targets


def _quotient(extent: Index, n: Index) -> Expr:
    return apply("div", cast(number(extent), REAL), cast(number(n), REAL))


def _ratio(scale: Expr, n: Index) -> Ratio:
    return Ratio(scale, apply("mul", cast(number(n), REAL), scale))


def _by_scale(b: Builder, n: Index, scales: Tensor, i: int) -> Target:
    if scales.array is None:
        scale = b.read(b.nest((), cast(b.read(scales, [i]), REAL)), [])
        ratio = _ratio(scale, n)
        size = cast(apply("floor", ratio.length), DType.I64)
        return bound(b, size, "size"), None, ratio
    factor = float(scales.array.reshape(-1)[i])
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
    ratio = Ratio(_quotient(extent, n), cast(number(extent), REAL))
    if extent.is_const and n.is_const:
        return extent, extent.const / max(n.const, 1), ratio
    whole = floordiv(extent, n, b.ranges)
    if whole.is_const and n * whole == extent:
        return extent, float(whole.const), ratio
    return extent, None, ratio


def _along(
    b: Builder,
    x: Tensor,
    axis: int,
    extent: Index,
    scale: float | None,
    scheme: Scheme,
    region: tuple[float, float],
    outside: float | None,
) -> Tensor | None:
    """`x` resized along one axis; None where that takes positions computed at run time."""
    n = x.shape[axis]
    shape = [extent if i == axis else e for i, e in enumerate(x.shape)]
    if any(e == ZERO for e in shape):
        return b.nest(b.axes(shape), lit(0, x.dtype))
    whole = scale is not None and scale.is_integer() and scale >= 1
    if scheme.mode == "nearest" and whole and outside is None and _is_repeat(scheme):
        times = Index.of(int(scale or 1))
        return b.view(
            x,
            shape,
            lambda *o: [floordiv(c, times, b.ranges) if i == axis else c for i, c in enumerate(o)],
        )
    if scale is None or not n.is_const or not extent.is_const:
        return None
    count, size = n.const, extent.const
    if size > _LARGEST:
        raise OperatorError(f"the new extent {size} is too large")
    at = scheme.positions(count, size, scale, region)
    axes = b.axes(shape)
    here = axes[axis].index

    def element(position: Coord) -> Expr:
        coords: list[Coord] = [a.index for a in axes]
        coords[axis] = position
        return b.read(x, coords)

    def guarded(value: Expr) -> Expr:
        if outside is None:
            return value
        inside = b.constant((at >= 0) & (at <= count - 1))
        return apply("select", b.read(inside, [here]), value, lit(outside, x.dtype))

    if scheme.mode == "nearest":
        table = np.clip(scheme.rounded(at), 0, count - 1).astype(np.int64)
        return b.nest(axes, guarded(element(_position(b, table, here))))
    wide = DType.F32 if x.dtype.bits < 32 or not x.dtype.is_float else x.dtype
    where, weights = scheme.taps(at, count, scale)
    k = b.axis(where.shape[1], "k")
    rows = b.constant(where)
    factors = b.constant(weights.astype(wide.numpy))
    position = b.read(rows, [here, k.index])
    term = apply("mul", cast(element(position), wide), b.read(factors, [here, k.index]))
    total = b.nest(axes, term, (k,))

    def finished(e: Expr) -> Expr:
        return guarded(cast(apply("round", e) if x.dtype.is_int else e, x.dtype))

    if wide is x.dtype and outside is None:
        return total
    axes = b.axes(shape)
    here = axes[axis].index
    return b.nest(axes, finished(b.spread(total, axes)))


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
