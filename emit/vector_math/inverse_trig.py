"""asin, acos, atan and atan2 from the odd polynomials of asin and atan."""

from __future__ import annotations

import math

from rutc.emit.vector_math import coefficients
from rutc.emit.vector_math.lanes import Mask, Real, polynomial

# pi/2 as an unevaluated sum of two floats.
HALF_PI_HIGH = {32: 1.57079637050628662109375, 64: 1.5707963267948966}
HALF_PI_LOW = {32: -4.37113882867379e-08, 64: 6.123233995736766e-17}
TAN_PI_8 = math.tan(math.pi / 8)


def arcsine_parts(x: Real) -> tuple[Mask, Real, Real]:
    """`near, s, p` with `asin(s) = s + p`.

    `s` is `abs(x)` where near, that is up to 1/2, else `sqrt((1 - abs(x)) / 2)`, of which
    `asin(abs(x)) = pi/2 - 2*asin(s)`.
    """
    u = x.abs()
    near = u.compare("<=", 0.5)
    z = near.select(u * u, u.fma(-0.5, 0.5))
    s = near.select(u, z.sqrt())
    return near, s, (s * z) * polynomial(z, coefficients.ASIN[x.lanes.format.bits])


def asin(x: Real) -> Real:
    """The arcsine; NaN outside [-1, 1]."""
    bits = x.lanes.format.bits
    near, s, p = arcsine_parts(x)
    far = HALF_PI_HIGH[bits] - ((s + p) * 2.0 - HALF_PI_LOW[bits])
    return near.select(s + p, far).with_sign_of(x)


def acos(x: Real) -> Real:
    """The arccosine; NaN outside [-1, 1]."""
    bits = x.lanes.format.bits
    near, s, p = arcsine_parts(x)
    signed_s, signed_p = s.with_sign_of(x), p.with_sign_of(x)
    middle = HALF_PI_HIGH[bits] - (signed_s - (HALF_PI_LOW[bits] - signed_p))
    positive = (s + p) * 2.0
    negative = (HALF_PI_HIGH[bits] - (s - (HALF_PI_LOW[bits] - p))) * 2.0
    far = x.compare("<", 0.0).select(negative, positive)
    return near.select(middle, far)


def atan(x: Real) -> Real:
    """The arctangent."""
    return atan_of_ratio(x.abs(), x.lanes.real(1.0)).with_sign_of(x)


def atan2(y: Real, x: Real) -> Real:
    """The angle of the point `(x, y)`, with C's values at zeros and infinities."""
    form = y.lanes.format
    a, b = y.abs(), x.abs()
    both_infinite = a.compare("==", math.inf) & b.compare("==", math.inf)
    one = y.lanes.real(1.0)
    a, b = both_infinite.select(one, a), both_infinite.select(one, b)
    # Keeps a + b finite; what underflows here is far below the last bit of the angle.
    huge = a.compare(">", 2.0**100) | b.compare(">", 2.0**100)
    a, b = huge.select(a * 2.0**-30, a), huge.select(b * 2.0**-30, b)
    angle = atan_of_ratio(a, b)
    pi_less = HALF_PI_HIGH[form.bits] * 2.0 - (angle - HALF_PI_LOW[form.bits] * 2.0)
    nan = x.is_nan() | y.is_nan()
    behind = x.bits().is_negative() & ~nan
    return behind.select(pi_less, angle).with_sign_of(y)


def atan_of_ratio(a: Real, b: Real) -> Real:
    """`atan(a / b)` in `[0, pi/2]` for non-negative operands with a finite sum; 0 for 0/0."""
    bits = a.lanes.format.bits
    swapped = a.compare(">", b)
    low, high = swapped.select(b, a), swapped.select(a, b)
    # atan(low/high) = pi/4 + atan((low - high) / (low + high))
    middle = low.compare(">", high * TAN_PI_8)
    numerator = middle.select(low - high, low)
    denominator = middle.select(low + high, high)
    s = numerator / denominator.compare("==", 0.0).select(a.lanes.real(1.0), denominator)
    z = s * s
    p = (s * z) * polynomial(z, coefficients.ATAN[bits])
    quarter = middle.select(a.lanes.real(HALF_PI_HIGH[bits] / 2), 0.0)
    angle = quarter + (s + p)
    return swapped.select(HALF_PI_HIGH[bits] - (angle - HALF_PI_LOW[bits]), angle)
