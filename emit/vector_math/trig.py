"""sin, cos and tan over the whole range of floats.

Up to a bound the argument is reduced to `|r| <= pi/4` with pi/2 as a sum of three floats
[Cody & Waite 1980], each product exact to the last bit of the sum by fused multiply-add. When a
lane is beyond the bound, one branch leads to a loop over the lanes that reduces each with the bits
of 2/pi that matter to it [Payne & Hanek 1983].
"""

from __future__ import annotations

from rutc.base.record import record
from rutc.emit.vector_math import coefficients
from rutc.emit.vector_math.lanes import Real, Whole, polynomial
from rutc.emit.vector_math.payne_hanek import emit_reduce_large

TWO_OVER_PI = 0.6366197723675814
# Three floats whose sum is pi/2 to three times the width.
HALF_PI_PARTS = {
    32: (1.57079637050628662109375, -4.371138828673793e-08, -1.7151245100058819e-15),
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
# Up to here the three parts leave the remainder accurate and the quotient within half a turn's
# rounding of the nearest integer.
FAST_BOUND = {32: 2.0**16, 64: 2.0**28}


@record
class Angle:
    """`x = quarter_turns * pi/2 + r`.

    Attributes:
        r: The remainder, `|r|` at most slightly above pi/4.
        quarter_turns: Right modulo 4 only.
    """

    r: Real
    quarter_turns: Whole


def reduced(x: Real) -> Angle:
    """The angle of a non-negative `x`; NaN for infinity and NaN."""
    form = x.lanes.format
    shifted = x.fma(TWO_OVER_PI, form.round_shift)
    k = shifted - form.round_shift
    r = x
    for part in HALF_PI_PARTS[form.bits]:
        r = k.fma(-part, r)
    fast = Angle(r, shifted.bits())
    large = x.compare(">", FAST_BOUND[form.bits])
    r, quarter_turns = emit_reduce_large(x, large, fast.r, fast.quarter_turns)
    return Angle(r, quarter_turns)


def sin_of_remainder(r: Real) -> Real:
    """`sin(r)` for `|r|` up to slightly above pi/4."""
    z = r * r
    return (r * z).fma(polynomial(z, coefficients.SIN[r.lanes.format.bits]), r)


def cos_of_remainder(r: Real) -> Real:
    """`cos(r)` for `|r|` up to slightly above pi/4."""
    z = r * r
    quartic = (z * z) * polynomial(z, coefficients.COS[r.lanes.format.bits])
    half = z * 0.5
    high = 1.0 - half
    # (1 - high) - half is the rounding error of high.
    return high + (((1.0 - high) - half) + quartic)


def sin(x: Real) -> Real:
    """The sine."""
    angle = reduced(x.abs())
    sign = x.bits() & x.lanes.format.sign_bit
    return wave(angle, angle.quarter_turns, sign)


def cos(x: Real) -> Real:
    """The cosine, which is the sine a quarter turn on."""
    angle = reduced(x.abs())
    return wave(angle, angle.quarter_turns + 1, x.lanes.whole(0))


def wave(angle: Angle, quarter_turns: Whole, sign: Whole) -> Real:
    """`sin(r + quarter_turns * pi/2)`, negated where `sign` has its top bit set."""
    form = angle.r.lanes.format
    odd = (quarter_turns & 1).equals(1)
    value = odd.select(cos_of_remainder(angle.r), sin_of_remainder(angle.r))
    half_turn = (quarter_turns & 2) << (form.bits - 2)
    return (value.bits() ^ half_turn ^ sign).as_real()


def tan(x: Real) -> Real:
    """The tangent."""
    form = x.lanes.format
    angle = reduced(x.abs())
    s, c = sin_of_remainder(angle.r), cos_of_remainder(angle.r)
    odd = (angle.quarter_turns & 1).equals(1)
    quotient = odd.select(c, s) / odd.select(s, c)
    turned = (angle.quarter_turns & 1) << (form.bits - 1)
    sign = x.bits() & form.sign_bit
    return (quotient.bits() ^ turned ^ sign).as_real()
