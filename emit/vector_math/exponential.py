"""exp, tanh, sinh, cosh and erf: everything built on `2**k * exp(r)`.

The argument is split as `x = k*log(2) + r` with `|r| <= log(2)/2` [Cody & Waite 1980]. Adding
`1.5 * 2**mantissa_bits + bias` rounds to the integer `k` and leaves `k + bias` in the low bits, so
a shift alone makes the float `2**k`.
"""

from __future__ import annotations

import math

from rutc.base.record import record
from rutc.emit.vector_math import avx512, coefficients, register_tables
from rutc.emit.vector_math.lanes import Real, horner, polynomial

LOG2_E = 1 / math.log(2)
# The sums of each pair equal log(2) to twice the width. Both parts are positive, so that an
# infinite multiple is infinite.
LN2_HIGH = {32: 0.693147122859954833984375, 64: 0.6931471805599453}
LN2_LOW = {32: 5.769998878690785e-08, 64: 2.3190468138462996e-17}
# exp overflows above the second and rounds to zero below the first.
EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
SIXTEENTHS = 16
EIGHTHS = 8
EIGHTHS_EXPONENT = -64
# Above log(2)/32, what is left of an argument besides whole sixteenths.
MOST_LEFT = 1 / 16
LN2 = {32: 0.693147182464599609375, 64: 0.6931471805599453}
# -2/sqrt(pi) in two floats.
ERF_SLOPE_HIGH = -1.12837922573089599609375
ERF_SLOPE_LOW = 5.8635382771399236e-08
# Beyond these arguments the rounded result no longer changes.
TANH_FLAT = {32: 9.1, 64: 19.1}
ERF_FLAT = {32: 3.93, 64: 5.95}
# Just above the argument where sinh and cosh overflow.
SINH_LIMIT = {32: 89.45, 64: 710.6}


@record
class Reduced:
    """`x = k*log(2) + r`.

    Attributes:
        shifted: `k + offset` in the low bits of its representation.
        k: The integer, as a float.
        r: The remainder, `|r| <= log(2)/2`.
    """

    shifted: Real
    k: Real
    r: Real

    def power_of_two(self) -> Real:
        """`2**(k + offset - bias)`."""
        return (self.shifted.bits() << self.k.lanes.format.mantissa_bits).as_real()


def reduced(x: Real, offset: int) -> Reduced:
    """Splits `x` for a function that needs `k + offset` as an exponent field."""
    bits = x.lanes.format.bits
    shift = x.lanes.format.round_shift + offset
    shifted = x.fma(LOG2_E, shift)
    k = shifted - shift
    r = k.fma(-LN2_LOW[bits], k.fma(-LN2_HIGH[bits], x))
    return Reduced(shifted, k, r)


def expm1_of_remainder(r: Real) -> Real:
    """`exp(r) - 1` for `|r| <= log(2)/2`."""
    return (r * r).fma(polynomial(r, coefficients.EXPM1[r.lanes.format.bits]), r)


def exp(x: Real) -> Real:
    """`e**x`."""
    if avx512.has_tables(x.lanes):
        return exp_by_table(x)
    return exp_by_eighths(x) if register_tables.size(x.lanes) else exp_of_sum(x, None)


def exp_of_sum(x: Real, low: Real | None) -> Real:
    """`e**(x + low)` where `low` is below the last bit of `x`."""
    lanes = x.lanes
    bits = lanes.format.bits
    smallest, largest = EXP_RANGE[bits]
    # Twice the bias: it is shared by the two factors of 2**k below.
    parts = reduced(x.at_least(smallest).at_most(largest), 2 * lanes.format.bias)
    r = parts.r if low is None else parts.r + low
    if bits == 32 and not avx512.available(lanes):
        # `first * exp(r)` is rounded once, and waits for less than Horner's rule does.
        first, second = two_powers(parts)
        square = r * r
        rest = square.fma(by_pairs(r, square, coefficients.EXPM1[32]), r)
        return first.fma(rest, first) * second
    if bits == 32:
        scaled = horner(r, (1.0, 1.0, *coefficients.EXPM1[32]))
    else:
        scaled = expm1_of_remainder(r) + 1.0
    return times_power_of_two(scaled, parts)


def by_pairs(r: Real, square: Real, c: coefficients.Polynomial) -> Real:
    """The polynomial of five coefficients at `r`, by pairs of them [Estrin 1960]."""
    high = square.fma(c[4], r.fma(c[3], c[2]))
    return square.fma(high, r.fma(c[1], c[0]))


def exp_by_table(x: Real) -> Real:
    """`e**x` by powers of two to sixteenths, which lie in a register.

    The argument is split as `x = k*log(2) + r` with a multiple `k` of 1/16 and `|r| <= log(2)/32`:
    `2**k` is an element of the table, the lowest bits of `shifted`, times `2**floor(k)`. Where `x`
    is huge, `r` may be any number, and NaN of an infinity: brought near zero (`MOST_LEFT`) it does
    no harm, as scaling by `k` overflows, gives zero, or NaN of NaN.
    """
    shift = x.lanes.format.round_shift / SIXTEENTHS
    shifted = x.fma(LOG2_E, shift)
    k = shifted - shift
    r = k.fma(-LN2_LOW[32], k.fma(-LN2_HIGH[32], x))
    r = avx512.nearer_zero(r, MOST_LEFT)
    sixteenths = [2.0 ** (i / SIXTEENTHS) for i in range(SIXTEENTHS)]
    power = register_tables.looked_up(sixteenths, shifted.bits())
    rest = r.fma(horner(r, coefficients.EXPM1_NEAR_ZERO[32]), 1.0)
    return avx512.scaled_by_power((power * r).fma(rest, power), k)


def exp_by_eighths(x: Real) -> Real:
    """`e**x` by powers of two to eighths, which lie in a register, where 2**k takes two factors.

    The argument is split as in `exp_by_table`, by eighths and `|r| <= log(2)/16`. The elements of
    the table are times `2**EIGHTHS_EXPONENT`, so that both halves of `k` are positive numbers.
    """
    form = x.lanes.format
    smallest, largest = EXP_RANGE[form.bits]
    bounded = x.at_least(smallest).at_most(largest)
    shift = form.round_shift / EIGHTHS + form.bias - EIGHTHS_EXPONENT
    shifted = bounded.fma(LOG2_E, shift)
    k = shifted - shift
    r = k.fma(-LN2_LOW[form.bits], k.fma(-LN2_HIGH[form.bits], bounded))
    eighths = [2.0 ** (i / EIGHTHS + EIGHTHS_EXPONENT) for i in range(EIGHTHS)]
    power = register_tables.looked_up(eighths, shifted.bits())
    # Exponent fields: `whole` leaves out the eighths below them.
    whole = -1 << form.mantissa_bits
    field = shifted.bits() << (form.mantissa_bits - (EIGHTHS - 1).bit_length())
    half = field.logical_right(1) & whole
    first = (power.bits() + half).as_real()
    second = ((field - half) & whole).as_real()
    rest = r.fma(horner(r, coefficients.EXPM1_OF_SIXTEENTH[form.bits]), 1.0)
    return (first * r).fma(rest, first) * second


def times_power_of_two(x: Real, parts: Reduced) -> Real:
    """`x * 2**k` of parts whose offset is twice the bias, with overflow and gradual underflow."""
    if avx512.available(x.lanes):
        return avx512.scaled_by_power(x, parts.k)
    first, second = two_powers(parts)
    return x * first * second


def two_powers(parts: Reduced) -> tuple[Real, Real]:
    """Two factors of `2**k`, which itself overflows or is subnormal at the ends of the range."""
    biased = parts.shifted.bits()
    half = biased >> 1
    mantissa_bits = parts.k.lanes.format.mantissa_bits
    first = (half << mantissa_bits).as_real()
    return first, ((biased - half) << mantissa_bits).as_real()


def tanh(x: Real) -> Real:
    """`H / (H + 1)` with `H = (exp(2*abs(x)) - 1) / 2`, which is accurate near zero too.

    The argument is split as half of `k*log(2) + 2*r`.
    """
    form = x.lanes.format
    magnitude = x.abs().at_most(TANH_FLAT[form.bits])
    shift = form.round_shift + form.bias - 1
    shifted = magnitude.fma(2 * LOG2_E, shift)
    k = shifted - shift
    r = k.fma(-LN2[form.bits] / 2, magnitude)
    half_power = Reduced(shifted, k, r).power_of_two()
    # Of 2*r; additions run beside multiplications.
    c = tuple(c * 4.0 * 2.0**i for i, c in enumerate(coefficients.EXPM1[form.bits]))
    square, doubled = r * r, r + r
    curve = by_pairs(r, square, c) if form.bits == 32 else polynomial(r, c)
    half = half_power.fma(square.fma(curve, doubled), half_power - 0.5)
    return (half / (half + 1.0)).with_sign_of(x)


def expm1(x: Real) -> Real:
    """`exp(x) - 1` for `x` whose exponential is a normal float.

    Loses accuracy slowly as `abs(x)` grows, which erf does not notice: log(2) is taken as one
    float, because subtracting a second part would cost more in rounding where `k` is small.
    """
    form = x.lanes.format
    shift = form.round_shift + form.bias
    shifted = x.fma(LOG2_E, shift)
    k = shifted - shift
    parts = Reduced(shifted, k, k.fma(-LN2[form.bits], x))
    power = parts.power_of_two()
    return power.fma(expm1_of_remainder(parts.r), power - 1.0)


def sinh(x: Real) -> Real:
    """`(E + E / (E + 1)) / 2` with `E = exp(abs(x)) - 1`."""
    e4 = quarter_expm1(x)
    half = e4 + e4 / e4.fma(4.0, 1.0)
    return (half * 2.0).with_sign_of(x)


def cosh(x: Real) -> Real:
    """`exp(abs(x)) / 2 + exp(-abs(x)) / 2`."""
    quarter = quarter_expm1(x) + 0.25
    return (quarter + 0.0625 / quarter) * 2.0


def quarter_expm1(x: Real) -> Real:
    """`(exp(abs(x)) - 1) / 4`, which stays finite wherever sinh and cosh do."""
    magnitude = x.abs().at_most(SINH_LIMIT[x.lanes.format.bits])
    parts = reduced(magnitude, x.lanes.format.bias - 2)
    power = parts.power_of_two()
    return power.fma(expm1_of_remainder(parts.r), power - 0.25)


def erf(x: Real) -> Real:
    """`1 - exp(q(abs(x)))` with the polynomial `q = log(erfc)`.

    `exp(q) - 1` is computed without cancellation, so one polynomial serves the whole range in f32,
    where there are no tables. f64 uses the odd polynomial of erf below 1.
    """
    bits = x.lanes.format.bits
    u = x.abs().at_most(ERF_FLAT[bits])
    points = register_tables.size(x.lanes)
    if points:
        return erf_by_tables(u, points).with_sign_of(x)
    if bits == 32:
        bend = u.fma(polynomial(u, coefficients.LOG_ERFC[bits]), ERF_SLOPE_LOW)
        q = u.fma(ERF_SLOPE_HIGH, u * bend)
        return expm1(q).with_sign_of(x)
    near = u * polynomial(u * u, coefficients.ERF[bits])
    q = u * polynomial(u - 3.0, coefficients.LOG_ERFC_TAIL[bits])
    far = expm1(q)
    return u.compare("<", 1.0).select(near, far.abs()).with_sign_of(x)


def erf_by_tables(u: Real, points: int) -> Real:
    """`erf(u)` by a polynomial around the nearest of some points, for `0 <= u <= ERF_FLAT`.

    Its coefficients lie in registers, those of one power of all points in each. Few operations, and
    few of them one after the other: vectors overlap as far as a core sees ahead.
    """
    step = coefficients.ERF_STEP[points]
    shift = u.lanes.format.round_shift
    shifted = u.fma(1 / step, shift)
    t = (shifted - shift).fma(-step, u)
    number = shifted.bits()
    at, *slopes = [register_tables.looked_up(c, number) for c in coefficients.ERF_STEPS[points]]
    total = slopes[-1]
    for c in reversed(slopes[:-1]):
        total = total.fma(t, c)
    # The slope at zero takes two floats; what the second adds elsewhere is rounded away.
    return total.fma(t, t.fma(-ERF_SLOPE_LOW, at))
