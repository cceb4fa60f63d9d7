"""Quotients by a literal that are rounded to few whole numbers, by products."""

from __future__ import annotations

from functools import cache

import numpy as np

from rutc.base.record import record

DIVISORS = (2.0**-60, 2.0**60)
"""Divisors between these have a normal reciprocal, and residues that do not underflow."""
MOST_STEPS = 255
"""Whole numbers that quotients are rounded to, but for one: those of 8 bits."""
AROUND = 4
"""Floats on either side of where a rounded quotient changes; the products change next to it."""


@record
class Reciprocal:
    """`1 / divisor` as the sum of two f32, the second below the last digit of the first.

    Attributes:
        limits: The dividends beyond which quotients count as those of these.
    """

    high: float
    low: float
    limits: tuple[float, float]


@cache
def rounded_by(divisor: float, low: int, high: int) -> Reciprocal | None:
    """The reciprocal whose products are rounded as quotients, if these are kept within bounds.

    round(min(max(x / divisor, low), high)) = round(x * high + x * low), x kept within limits

    Both sides never fall as `x` grows and change next to the same numbers, the halves. So they are
    the same where they are at the floats around these. None where they are not, if there are more
    whole numbers than 8 bits have, or if the divisor is extreme.
    """
    if not DIVISORS[0] < divisor < DIVISORS[1] or not low <= high <= low + MOST_STEPS:
        return None
    first = np.float32(1.0 / divisor)
    second = np.float32(1.0 / divisor - float(first))
    middles = ((np.arange(low, high) + 0.5) * divisor).astype(np.float32).view(np.int32)
    limits = (np.array([low, high]) * divisor).astype(np.float32)
    x = (middles[:, None] + np.arange(-AROUND, AROUND + 1, dtype=np.int32)).view(np.float32)
    quotients = [np.rint(v / np.float32(divisor)) for v in (x, limits)]
    products = [_rounded_products(v, first, second) for v in (x, limits)]
    known = all(p is not None and (p == q).all() for p, q in zip(products, quotients, strict=True))
    changes = (quotients[0][:, 0] != quotients[0][:, -1]).all()
    if not known or not changes or list(quotients[1]) != [low, high]:
        return None
    return Reciprocal(float(first), float(second), (float(limits[0]), float(limits[1])))


def _rounded_products(x: np.ndarray, first: np.float32, second: np.float32) -> np.ndarray | None:
    """`round(fma(x, first, x * second))`; None if f64 does not tell how that rounds to f32."""
    product, rest = x.astype(np.float64) * float(first), (x * second).astype(np.float64)
    total = product + rest
    inexact = (product - (total - (total - product))) + (rest - (total - product)) != 0
    near = total.astype(np.float32)
    tie = np.abs(total - near) == np.spacing(np.abs(near)).astype(np.float64) / 2
    return None if (tie & inexact).any() else np.rint(near)
