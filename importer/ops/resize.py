"""Resize, axis by axis: each output position reads a few input positions with fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.operands import array, axes_of, indices, static
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import Coord, DType, Expr, Index, apply, cast
from rutc.tensor_ir.affine import ZERO, floordiv

_LARGEST = 1 << 24
"""The largest extent that a table of positions is made for."""


@dataclass(frozen=True)
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
                factor = np.float32((n - 1) / span) if size > 1 or span > 0 else np.float32(0)
                return np.asarray(o * factor)
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
    """`x` interpolated to other extents; `sizes` or `scales` must be known when compiling."""
    chosen = axes_of(tuple(axes), x.rank) if axes is not None else tuple(range(x.rank))
    scheme = Scheme(
        coordinate_transformation_mode,
        mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    factors, extents = _targets(b, x, chosen, scales, sizes, keep_aspect_ratio_policy)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    corners = array(roi, "roi").astype(float) if crop and roi is not None else None
    y = x
    for i, a in enumerate(chosen):
        region = (0.0, 1.0)
        if corners is not None:
            region = (float(corners[i]), float(corners[len(chosen) + i]))
        outside = extrapolation_value if crop else None
        if extents[i] != x.shape[a] or factors[i] != 1.0 or corners is not None:
            y = _along(b, y, a, extents[i], factors[i], scheme, region, outside)
    return y


def _targets(
    b: Builder,
    x: Tensor,
    chosen: Sequence[int],
    scales: Tensor | None,
    sizes: Tensor | None,
    policy: str,
) -> tuple[list[float | None], list[Index]]:
    """The scale (None where it depends on a symbolic size) and the new extent of each axis."""
    if scales is not None and scales.shape != (Index.of(0),):
        factors = [float(s) for s in array(scales, "scales").reshape(-1)]
        extents = [_scaled_extent(b, x.shape[a], f) for a, f in zip(chosen, factors, strict=True)]
        return list(factors), extents
    if sizes is None:
        raise OperatorError("neither scales nor sizes are given")
    wanted = list(indices(sizes, "sizes"))
    if policy != "stretch":
        numbers = [static(e, "the size") for e in wanted]
        old = [static(x.shape[a], "the extent") for a in chosen]
        pick = min if policy == "not_larger" else max
        factor = pick(s / n for s, n in zip(numbers, old, strict=True))
        return [factor] * len(old), [Index.of(int(np.floor(n * factor + 0.5))) for n in old]
    found: list[float | None] = []
    for a, e in zip(chosen, wanted, strict=True):
        n = x.shape[a]
        whole = floordiv(e, n, b.ranges)
        if e.is_const and n.is_const:
            found.append(e.const / n.const)
        elif whole.is_const and n * whole == e:
            found.append(float(whole.const))
        else:
            found.append(None)
    return found, wanted


def _scaled_extent(b: Builder, n: Index, factor: float) -> Index:
    if n.is_const:
        return Index.of(int(np.floor(np.float32(n.const) * np.float32(factor))))
    if factor.is_integer():
        return n * int(factor)
    if (1 / factor).is_integer():
        return floordiv(n, Index.of(int(1 / factor)), b.ranges)
    raise OperatorError(f"the symbolic size {n} times {factor} is no size; fix it")


def _along(
    b: Builder,
    x: Tensor,
    axis: int,
    extent: Index,
    scale: float | None,
    scheme: Scheme,
    region: tuple[float, float],
    outside: float | None,
) -> Tensor:
    """`x` resized along one axis."""
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
    if scale is None:
        raise OperatorError(f"the ratio of the symbolic sizes {extent} and {n} is not known")
    count, size = static(n, "the extent"), static(extent, "the new extent")
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
