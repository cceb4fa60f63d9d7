"""pow, fmod and mod."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rutc.base.record import record
from rutc.emit.llvm import ir
from rutc.emit.vector_math import coefficients
from rutc.emit.vector_math.exponential import Reduced, exp_of_sum, times_power_of_two
from rutc.emit.vector_math.lanes import Mask, Real, polynomial
from rutc.emit.vector_math.logarithm import split, with_log_limits
from rutc.emit.vector_math.slow_lanes import where_wanted
from rutc.tensor_ir.roots import ROOTS, roots_taken

# log(2) in two floats; the first has 33 bits, so that its product with an exponent is exact.
LN2_SHORT = 0.6931471804855391
LN2_REST = 7.440617110012397e-11
# 2**x of f32 rounds to zero below the first and overflows above the second.
EXP2_RANGE = (-151.0, 129.0)
# exp of f64 is infinite or zero at any argument of at least this magnitude.
EXP_DECIDED = 1024.0
# 2/3 in two floats.
TWO_THIRDS = 2.0 / 3.0
TWO_THIRDS_LOW = 3.700743415417188e-17


def pow(x: Real, y: Real) -> Real:
    """`x**y` with C's special values: NaN for a negative base and a fractional exponent."""
    lanes = x.lanes
    if isinstance(y.value, ir.Constant) and y.value.constant in ROOTS:
        return of_roots(x, float(y.value.constant))
    if lanes.format.bits == 32:
        magnitude = exp2_of_product(log2_in_f64(x.abs()), y)
    else:
        magnitude = exp_of_product(log_in_two(x.abs()), y)
    one = lanes.real(1.0)
    unit = (x.compare("==", 1.0) | y.compare("==", 0.0)) | (
        x.compare("==", -1.0) & y.abs().compare("==", math.inf)
    )
    magnitude = unit.select(one, magnitude)
    negative = x.bits().is_negative() & ~x.is_nan() & ~unit
    result = (negative & is_odd(y)).select(-magnitude, magnitude)
    undefined = x.compare("<", 0.0) & x.compare(">", -math.inf) & ~is_integer(y) & ~unit
    return undefined.select(lanes.real(math.nan), result)


def of_roots(x: Real, y: float) -> Real:
    """`x**y` for one of the `ROOTS`: each root, and each product, rounds once."""
    root = x.sqrt()
    factors = [x] if y >= 1.0 else []
    factors += [root] if y % 1.0 >= 0.5 else []
    factors += [root.sqrt()] if roots_taken(y) > 1 else []
    result = factors[0] if len(factors) == 1 else factors[0] * factors[1]
    # Only -inf has a power, though no root; that of -0 is 0.
    return x.compare("==", -math.inf).select(x, result).abs()


def is_integer(y: Real) -> Mask:
    """True where `y` is an integer or infinite."""
    return y.lanes.intrinsic("trunc", y).compare("==", y)


def is_odd(y: Real) -> Mask:
    """True where `y` is an odd integer."""
    return is_integer(y) & ~is_integer(y * 0.5)


def log2_in_f64(x: Real) -> Real:
    """`log2(x)` of a non-negative f32 to about 2**-36, in f64."""
    wide = x.lanes.widened()
    parts = split(x)
    f = parts.f.to(wide)
    result = f.fma(polynomial(f, coefficients.LOG2_1P[64]), parts.exponent.to(wide))
    finite = x.compare("<", math.inf).select(result, x.to(wide))
    return x.compare("==", 0.0).select(wide.real(-math.inf), finite)


def exp2_of_product(log2_x: Real, y: Real) -> Real:
    """`2**(log2_x * y)` in f32."""
    lanes, wide = y.lanes, log2_x.lanes
    exponent = (log2_x * y.to(wide)).at_least(EXP2_RANGE[0]).at_most(EXP2_RANGE[1])
    whole = wide.intrinsic("roundeven", exponent)
    r, k = (exponent - whole).to(lanes), whole.to(lanes)
    shifted = k + (lanes.format.round_shift + 2 * lanes.format.bias)
    value = r.fma(polynomial(r, coefficients.EXP2M1[32]), 1.0)
    return times_power_of_two(value, Reduced(shifted, k, r))


@record
class Pair:
    """An unevaluated sum of two floats; `low` is at most about the last bit of `high`."""

    high: Real
    low: Real


def ordered_sum(a: Real, b: Real) -> Pair:
    """`a + b` exactly, where `abs(a) >= abs(b)` or `a` is zero [Dekker 1971]."""
    high = a + b
    return Pair(high, (a - high) + b)


def product(a: Pair, b: Pair) -> Pair:
    """`a * b` to about twice the width."""
    high = a.high * b.high
    return Pair(high, a.low.fma(b.high, a.high.fma(b.low, a.high.fma(b.high, -high))))


def log_in_two(x: Real) -> Pair:
    """`log(x)` of a non-negative f64 to about 2**-65, with its limits in the high part.

    `log(1 + f) = 2*s + 2/3*s**3 + s**5 * P(s**2)` with `s = f/(2 + f)`, the first two terms and
    their sum in pairs of floats.
    """
    lanes = x.lanes
    parts = split(x)
    e, f = parts.exponent, parts.f
    divisor = f + 2.0
    divisor_low = f - (divisor - 2.0)
    inverse = 1.0 / divisor
    s_high = f * inverse
    remainder = s_high.fma(-divisor_low, (-s_high).fma(divisor, f))
    s = Pair(s_high, remainder * inverse)
    z = product(s, s)
    tail = z.high * polynomial(z.high, coefficients.ATANH_TAIL[64])
    factor = ordered_sum(lanes.real(TWO_THIRDS), tail)
    factor = Pair(factor.high, factor.low + TWO_THIRDS_LOW)
    cubic = product(product(s, z), factor)
    log_m = ordered_sum(s.high * 2.0, cubic.high)
    log_m_low = s.low.fma(2.0, cubic.low) + log_m.low
    total = ordered_sum(e * LN2_SHORT, log_m.high)
    low = e.fma(LN2_REST, total.low + log_m_low)
    return Pair(with_log_limits(x, total.high), low)


def exp_of_product(log_x: Pair, y: Real) -> Real:
    """`exp(log_x * y)`."""
    high = log_x.high * y
    low = log_x.low.fma(y, log_x.high.fma(y, -high))
    # Beyond, the high part decides alone; the low one, which grows with it, need not be small.
    near = high.abs().compare("<", EXP_DECIDED)
    return exp_of_sum(high, near.select(low, 0.0))


def fmod(x: Real, y: Real) -> Real:
    """The remainder of `x / y` with the sign of `x`, exact as in C.

    One quotient suffices while it fits in the significand; where it does not in some lane, one
    branch leads to a loop over the lanes with the `frem` instruction, which calls libm.
    """
    a, b = x.abs(), y.abs()
    quotient = x.lanes.intrinsic("trunc", a / b)
    remainder = (-quotient).fma(b, a)
    # The rounded quotient may be one too large.
    remainder = remainder.compare("<", 0.0).select(remainder + b, remainder)
    simple = quotient.compare("<", 2.0 ** (x.lanes.format.mantissa_bits - 1)) & b.compare(
        "<", math.inf
    )
    # Covers an infinite y and an x below it; the loop need not.
    below = a.compare("<", b)
    remainder = below.select(a, remainder)
    exact = replaced_by_frem(a, b, ~(simple | below), remainder)
    return exact.with_sign_of(x)


def replaced_by_frem(a: Real, b: Real, wanted: Mask, otherwise: Real) -> Real:
    """`a frem b` where `wanted`, else `otherwise`; skipped when no lane wants it."""

    def frem(operands: Sequence[ir.Value]) -> list[ir.Value]:
        left, right = operands
        return [a.lanes.builder.frem(left, right)]

    (found,) = where_wanted("fmod", wanted, [a.value, b.value], [otherwise.value], frem)
    return Real(a.lanes, found)


def mod(x: Real, y: Real) -> Real:
    """The remainder with the sign of `y`, as Python's and numpy's `%`."""
    remainder = fmod(x, y)
    zero = remainder.compare("==", 0.0)
    opposite = (remainder.bits() ^ y.bits()).is_negative()
    moved = opposite.select(remainder + y, remainder)
    return zero.select(remainder.with_sign_of(y), moved)
