"""log, asinh, acosh and atanh: everything built on `x = 2**e * m` with `3/4 <= m < 3/2`."""

from __future__ import annotations

import math

from rutc.base.record import record
from rutc.emit.llvm import ir
from rutc.emit.vector_math import avx512, coefficients
from rutc.emit.vector_math.exponential import LN2_HIGH, LN2_LOW
from rutc.emit.vector_math.lanes import Real, Whole, polynomial

INFINITY = math.inf
# Above these, sqrt(x*x +- 1) rounds to x.
SQUARE_DOMINATES = {32: 2.0**14, 64: 2.0**29}


@record
class Split:
    """`x = 2**exponent * (1 + f)`."""

    exponent: Real
    f: Real


def log(x: Real) -> Real:
    """The natural logarithm; -inf at zero and NaN below."""
    if avx512.available(x.lanes):
        # The instructions already give the special values, infinities included.
        m = avx512.mantissa(x)
        return log_of_split(Split(avx512.exponent(x) - avx512.exponent(m), m - 1.0))
    return log_of_any(x)


def log_of_any(x: Real) -> Real:
    """The logarithm; vectors of positive normal numbers, as most are, ask for no other ones."""
    builder, form = x.lanes.builder, x.lanes.format
    infinite = form.pattern(INFINITY)
    beyond = x.bits() - form.pattern(form.smallest_normal)
    special = ~beyond.below(infinite - form.pattern(form.smallest_normal))

    def of_normal() -> ir.Value:
        exponent, mantissa = split_normal(x)
        return log_of_split(Split(exponent.to_real(), mantissa - 1.0)).value

    def of_any() -> ir.Value:
        return with_log_limits(x, log_of_split(split(x))).value

    return Real(x.lanes, builder.either(special.any(), "log", of_normal, of_any))


def with_log_limits(x: Real, result: Real) -> Real:
    """`result` with the values of log at zero, below zero, at infinity and at NaN."""
    finite = x.compare("<", INFINITY).select(result, x)
    positive = x.compare("<", 0.0).select(x.lanes.real(math.nan), finite)
    return x.compare("==", 0.0).select(x.lanes.real(-INFINITY), positive)


def split(x: Real) -> Split:
    """The split of a positive finite `x`, subnormal or not."""
    form = x.lanes.format
    subnormal = x.compare("<", form.smallest_normal)
    normal = subnormal.select(x * 2.0**form.mantissa_bits, x)
    exponent, mantissa = split_normal(normal)
    adjust = subnormal.select_whole(-form.mantissa_bits, 0)
    return Split((exponent + adjust).to_real(), mantissa - 1.0)


def split_normal(x: Real) -> tuple[Whole, Real]:
    """The exponent and the mantissa in `[3/4, 3/2)` of a positive normal `x`."""
    form = x.lanes.format
    least = form.pattern(0.75)
    offset = x.bits() - least
    mantissa = (offset & (2**form.mantissa_bits - 1)) + least
    return offset >> form.mantissa_bits, mantissa.as_real()


def log_of_split(parts: Split) -> Real:
    """`exponent * log(2) + log(1 + f)`."""
    e, f = parts.exponent, parts.f
    bits = f.lanes.format.bits
    square = f * f
    if bits == 32:
        cubic = (square * f) * polynomial(f, coefficients.LOG1P[bits])
        small = e.fma(LN2_LOW[bits], square.fma(-0.5, cubic))
    else:
        # log(1 + f) = 2*atanh(s) with s = f/(2 + f), arranged so that only f itself is not small.
        s = f / (f + 2.0)
        z = s * s
        half = square * 0.5
        tail = z.fma(polynomial(z, coefficients.ATANH[bits]), half)
        small = e.fma(LN2_LOW[bits], s.fma(tail, -half))
    return e.fma(LN2_HIGH[bits], f + small)


def log_of_sum(high: Real, low: Real, exponent: Whole | int) -> Real:
    """`log((high + low) * 2**exponent)` for `1 <= high`, `high` below a quarter of the range.

    Args:
        high: The leading part.
        low: A correction below the last bit of `high`.
        exponent: An integer per lane, or for all.
    """
    form = high.lanes.format
    whole, mantissa = split_normal(high)
    inverse_power = ((form.bias - whole) << form.mantissa_bits).as_real()
    f = low.fma(inverse_power, mantissa - 1.0)
    result = log_of_split(Split((whole + exponent).to_real(), f))
    return high.compare("<", INFINITY).select(result, high)


def log1p(w: Real) -> Real:
    """`log(1 + w)` for `w >= 0`, up to a quarter of the range, or infinite."""
    high, low = one_plus(w)
    return log_of_sum(high, low, 0)


def one_plus(w: Real) -> tuple[Real, Real]:
    """`1 + w` as an unevaluated sum of two floats [Knuth, TAOCP 2, 4.2.2 theorem B]."""
    high = w + 1.0
    back = high - 1.0
    return high, (1.0 - (high - back)) + (w - back)


def log_of_large_or(x: Real, w: Real) -> Real:
    """`log(2*x)` where `x` is large, `log(1 + w)` elsewhere."""
    large = x.compare(">", SQUARE_DOMINATES[x.lanes.format.bits])
    high, low = one_plus(w)
    # A quarter keeps the largest x within the range of log_of_sum; 2*x = 2**3 * x/4.
    high, low = large.select(x * 0.25, high), large.select(x.lanes.real(0.0), low)
    return log_of_sum(high, low, large.select_whole(3, 0))


def asinh(x: Real) -> Real:
    """`log(u + sqrt(u*u + 1))` of `u = abs(x)`, with the sign of `x`."""
    u = x.abs()
    square = u * u
    w = u + square / ((square + 1.0).sqrt() + 1.0)
    return log_of_large_or(u, w).with_sign_of(x)


def acosh(x: Real) -> Real:
    """`log(x + sqrt(x*x - 1))`; NaN below 1."""
    t = x - 1.0
    w = t + t.fma(t, t + t).sqrt()
    result = log_of_large_or(x, w)
    return x.compare("<", 1.0).select(x.lanes.real(math.nan), result)


def atanh(x: Real) -> Real:
    """`log1p(2*u / (1 - u)) / 2` of `u = abs(x)`, with the sign of `x`; NaN beyond 1."""
    u = x.abs()
    result = log1p((u + u) / (1.0 - u)) * 0.5
    outside = u.compare(">", 1.0)
    return outside.select(x.lanes.real(math.nan), result).with_sign_of(x)
