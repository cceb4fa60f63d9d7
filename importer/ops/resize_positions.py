"""Where the elements of a resized axis lie in the axis as it was, known when compiling.

Sizes are whole numbers, and positions that follow from them are exact: 4 elements of 7 lie at 7/4,
7/2 and 21/4, of which 7/2 is between two elements, where f32 would find it before their middle.
Scales and regions are numbers in f32, rounded already, and so are positions that follow from them:
to resize by 1.3333334, rounded from 4/3, puts the fourth element at 3, though exact division says
2.9999999. ONNX Runtime computes the same.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, lcm

import numpy as np

from rutc.base.record import record
from rutc.importer.building.expressions import OperatorError

HALF = Fraction(1, 2)
Scale = Fraction | float
"""Output elements per input element: exact where sizes tell it, a float where it is an operand."""


@record
class Places:
    """Positions: the whole numbers that are not larger, and what is left, in [0, 1)."""

    whole: np.ndarray
    part: np.ndarray

    @staticmethod
    def at(position: np.ndarray) -> Places:
        """The places of positions in f32."""
        below = np.floor(position)
        return Places(below.astype(np.int64), (position - below).astype(np.float64))

    @staticmethod
    def along(step: Fraction, first: Fraction, size: int) -> Places:
        """The places of step * o + first for o < size."""
        over = lcm(step.denominator, first.denominator)
        a, b = int(step * over), int(first * over)
        fits = size * abs(a) + abs(b) < 1 << 62
        above = np.arange(size, dtype=np.int64 if fits else object) * a + b
        # Quotients of whole numbers are 1/2 and 0 where they are exactly that.
        return Places((above // over).astype(np.int64), (above % over / over).astype(np.float64))

    def nearest(self, mode: str) -> np.ndarray:
        """The nearest elements."""
        match mode:
            case "round_prefer_floor":
                return self.whole + (self.part > 0.5)
            case "round_prefer_ceil":
                return self.whole + (self.part >= 0.5)
            case "floor":
                return self.whole
            case "ceil":
                return self.whole + (self.part > 0)
            case other:
                raise OperatorError(f"nearest_mode {other!r} is unknown")

    def inside(self, n: int) -> np.ndarray:
        """Whether they are in [0, n - 1]."""
        return (self.whole >= 0) & (self.whole + (self.part > 0) < n)


@record
class Scheme:
    """How output positions correspond to input positions, and what weights surround them."""

    coordinates: str
    mode: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool

    def places(self, n: int, size: int, scale: Scale, roi: tuple[float, float]) -> Places:
        """Where every output element lies, of an axis of `n` elements that gets `size`."""
        if self.coordinates == "tf_crop_and_resize":
            return Places.at(_cropped(n, size, roi))
        if isinstance(scale, Fraction):
            return Places.along(*self._line(n, size, scale), size)
        return Places.at(self._rounded(n, size, scale))

    def _line(self, n: int, size: int, scale: Fraction) -> tuple[Fraction, Fraction]:
        """(step, first): output element o lies at step * o + first."""
        step = 1 / scale
        first = HALF * step - HALF
        match self.coordinates:
            case "half_pixel":
                return step, first
            case "pytorch_half_pixel":
                return (step, first) if size > 1 else (Fraction(0), Fraction(0))
            case "half_pixel_symmetric":
                return step, first + HALF * (n - size * step)
            case "asymmetric":
                return step, Fraction(0)
            case "tf_half_pixel_for_nn":
                return step, HALF * step
            case "align_corners":
                # The exact resized length counts here, not the whole number of outputs.
                span = scale * n - 1
                return ((n - 1) / span if span > 0 else Fraction(0)), Fraction(0)
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def _rounded(self, n: int, size: int, scale: float) -> np.ndarray:
        """The position of every output element, each step of the formula rounded to f32."""
        o = np.arange(size, dtype=np.float32)
        s = np.float32(scale)
        centered = (o + np.float32(0.5)) / s - np.float32(0.5)
        match self.coordinates:
            case "half_pixel":
                return np.asarray(centered)
            case "pytorch_half_pixel":
                return np.asarray(centered if size > 1 else np.zeros_like(o))
            case "half_pixel_symmetric":
                adjusted = np.float32(size) / (s * np.float32(n))
                return np.asarray(np.float32(n / 2) * (np.float32(1) - adjusted) + centered)
            case "asymmetric":
                return np.asarray(o / s)
            case "tf_half_pixel_for_nn":
                return np.asarray((o + np.float32(0.5)) / s)
            case "align_corners":
                span = scale * n - 1
                if size == 1 and span <= 0:
                    return np.zeros_like(o)
                # The quotient last: what is a whole number stays one.
                return np.asarray(o * np.float32(n - 1) / np.float32(span))
            case other:
                raise OperatorError(f"coordinate_transformation_mode {other!r} is unknown")

    def taps(self, places: Places, n: int, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
        """Input positions and weights {output, tap} of a linear or cubic filter."""
        shrink = min(scale, 1) if self.antialias else 1
        reach = ceil((1 if self.mode == "linear" else 2) / shrink)
        span = np.arange(1 - reach, reach + 1)
        where = places.whole[:, None] + span[None, :]
        distance = (places.part[:, None] - span[None, :]) * float(shrink)
        weights = self._filter(np.abs(distance))
        if self.exclude_outside:
            weights = np.where((where < 0) | (where >= n), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        return _shared(np.clip(where, 0, n - 1), weights / np.where(total == 0, 1, total))

    def _filter(self, d: np.ndarray) -> np.ndarray:
        if self.mode == "linear":
            return np.asarray(np.maximum(0.0, 1 - d))
        a = self.cubic
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _shared(where: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same filters {output, tap}, in which no element has the weight 0.

    0 times an infinite element would be NaN. Such a tap reads the element of the largest weight,
    and has a half of what is left of that, which rounds nothing.
    """
    where, weights = where.copy(), weights.copy()
    outputs = np.arange(len(where))
    largest = np.abs(weights).argmax(axis=1)
    for tap in range(where.shape[1]):
        idle = outputs[weights[:, tap] == 0]
        weights[idle, largest[idle]] /= 2
        for table in (where, weights):
            table[idle, tap] = table[idle, largest[idle]]
    return where, weights


def _cropped(n: int, size: int, roi: tuple[float, float]) -> np.ndarray:
    """The positions of outputs that are spread over a part of the axis, in f32."""
    first, last = np.float32(roi[0]), np.float32(roi[1])
    width = np.float32(n - 1)
    if size == 1:
        return np.full(1, np.float32(0.5) * (first + last) * width, np.float32)
    o = np.arange(size, dtype=np.float32)
    return np.asarray(first * width + o * (last - first) * width / np.float32(size - 1))


def fitted(old: list[int], wanted: list[int], *, not_larger: bool) -> tuple[Fraction, list[int]]:
    """(scale, sizes): what fits the wanted sizes, or covers them, and keeps all proportions."""
    pick = min if not_larger else max
    scale = pick(Fraction(s, n) for s, n in zip(wanted, old, strict=True))
    return scale, [floor(n * scale + HALF) for n in old]
