"""Floats of at most 16 bits: conversion to and from f32 on their bit patterns.

f16 is LLVM's `half`. The others live in registers as integers: i16 for bf16, i8 for the rest.
Widening is exact; narrowing rounds to nearest, ties to even, and treats what lies beyond the
largest finite value as the format's definition says (infinity, NaN or the largest value).
"""

from __future__ import annotations

from enum import Enum

from rutc.base.record import record
from rutc.emit.llvm import ir
from rutc.emit.vector_math.lanes import Format, Lanes, Mask, Real, Whole
from rutc.tensor_ir.dtype import DType

F32_MANTISSA_BITS = 23
F32_BIAS = 127
F32_INFINITY = 0x7F800000
F32_QUIET_NAN = 0x7FC00000
F32_MAGNITUDE = 0x7FFFFFFF
BF16_QUIET_BIT = 0x40


class Special(Enum):
    """What a format has beyond finite numbers."""

    INFINITY_AND_NAN = "as IEEE 754"
    NAN_AT_TOP = "NaN in place of the largest magnitude, no infinity"
    NAN_AT_MINUS_ZERO = "NaN in place of -0, no infinity"
    NOTHING = "finite numbers only"


@record
class NarrowFloat:
    """Sign, exponent and mantissa of a format stored in one byte."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Special

    @property
    def sign_bit(self) -> int:
        """The pattern with only the sign bit set."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def largest(self) -> int:
        """The pattern of the largest finite magnitude."""
        top = self.sign_bit - 1
        if self.special is Special.INFINITY_AND_NAN:
            return top - (1 << self.mantissa_bits)
        return top - 1 if self.special is Special.NAN_AT_TOP else top


BYTE_FLOATS = {
    DType.F4E2M1: NarrowFloat(2, 1, 1, Special.NOTHING),
    DType.F6E2M3: NarrowFloat(2, 3, 1, Special.NOTHING),
    DType.F6E3M2: NarrowFloat(3, 2, 3, Special.NOTHING),
    DType.F8E4M3FN: NarrowFloat(4, 3, 7, Special.NAN_AT_TOP),
    DType.F8E4M3FNUZ: NarrowFloat(4, 3, 8, Special.NAN_AT_MINUS_ZERO),
    DType.F8E5M2: NarrowFloat(5, 2, 15, Special.INFINITY_AND_NAN),
    DType.F8E5M2FNUZ: NarrowFloat(5, 2, 16, Special.NAN_AT_MINUS_ZERO),
}


def lane_count(value: ir.Value) -> int | None:
    """Lanes of a vector, None of a scalar."""
    return value.lanes if isinstance(value.type, ir.VectorType) else None


def with_lanes(element: ir.Type, lanes: int | None) -> ir.Type:
    """The scalar or vector type."""
    return element if lanes is None else ir.VectorType(element, lanes)


def widen(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """The f32 of a float of fewer bits."""
    count = lane_count(value)
    lanes = Lanes(builder, Format(32), count, frozenset())
    if dtype is DType.F16:
        return builder.fpext(value, lanes.real_type)
    pattern = Whole(lanes, builder.zext(value, lanes.whole_type))
    if dtype is DType.BF16:
        return (pattern << 16).as_real().value
    if dtype is DType.F8E8M0:
        return widen_power_of_two(pattern).value
    return widen_byte(pattern, BYTE_FLOATS[dtype]).value


def narrow(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """The nearest float of fewer bits of an f32."""
    count = lane_count(value)
    if dtype is DType.F16:
        return builder.fptrunc(value, with_lanes(ir.HalfType(), count))
    x = Real(Lanes(builder, Format(32), count, frozenset()), value)
    if dtype is DType.BF16:
        return builder.trunc(narrow_to_bf16(x).value, with_lanes(ir.IntType(16), count))
    if dtype is DType.F8E8M0:
        pattern = narrow_to_power_of_two(x)
    else:
        pattern = narrow_to_byte(x, BYTE_FLOATS[dtype])
    return builder.trunc(pattern.value, with_lanes(ir.IntType(8), count))


def select(mask: Mask, yes: Whole | int, no: Whole) -> Whole:
    """`yes` where true, else `no`."""
    other = yes if isinstance(yes, Whole) else no.lanes.whole(yes)
    return Whole(no.lanes, no.lanes.builder.select(mask.value, other.value, no.value))


def above(x: Whole, limit: int) -> Mask:
    """`x > limit`."""
    builder = x.lanes.builder
    return Mask(x.lanes, builder.icmp_signed(">", x.value, x.lanes.whole(limit).value))


def rounded_shift(x: Whole, amount: int) -> Whole:
    """`x / 2**amount` of a non-negative `x`, to nearest, ties to even."""
    odd = (x >> amount) & 1
    return (x + odd + ((1 << (amount - 1)) - 1)) >> amount


def narrow_to_bf16(x: Real) -> Whole:
    """The bf16 pattern in the low bits; a NaN stays one."""
    bits = x.bits()
    odd = (bits >> 16) & 1
    builder = x.lanes.builder
    rounded = bits + odd + 0x7FFF
    shift = x.lanes.whole(16).value
    quiet = builder.or_(builder.lshr(bits.value, shift), x.lanes.whole(BF16_QUIET_BIT).value)
    number = Whole(x.lanes, builder.lshr(rounded.value, shift))
    return select(x.is_nan(), Whole(x.lanes, quiet), number)


def widen_power_of_two(pattern: Whole) -> Real:
    """`2**(pattern - 127)`, NaN at 255."""
    bits = pattern << F32_MANTISSA_BITS
    # 2**-127 is subnormal.
    bits = select(pattern.equals(0), 1 << (F32_MANTISSA_BITS - 1), bits)
    return select(pattern.equals(255), F32_QUIET_NAN, bits).as_real()


def narrow_to_power_of_two(x: Real) -> Whole:
    """The nearest power of two; NaN for what is not positive or too large."""
    bits = x.bits()
    # Halves round up, as in numpy's arrays of this type.
    exponent = (bits + (1 << (F32_MANTISSA_BITS - 1))) >> F32_MANTISSA_BITS
    # Below 2**-126 the f32 is subnormal: its own bits say which of 2**-127 and 2**-126 is nearer.
    three_halves = 3 << (F32_MANTISSA_BITS - 2)
    tiny = select(above(bits, three_halves - 1), 1, x.lanes.whole(0))
    small = x.compare("<", Format(32).smallest_normal)
    result = select(small, tiny, exponent)
    valid = x.compare(">", 0.0) & x.compare("<", float("inf"))
    return select(valid, result, x.lanes.whole(255))


def widen_byte(pattern: Whole, form: NarrowFloat) -> Real:
    """The f32 of a pattern."""
    magnitude = pattern & (form.sign_bit - 1)
    rebased = (F32_BIAS - form.bias) << F32_MANTISSA_BITS
    normal = (magnitude << (F32_MANTISSA_BITS - form.mantissa_bits)) + rebased
    # No step may pass through a subnormal f32, which the processor may take for 0.
    lanes = pattern.lanes
    count = Real(lanes, lanes.builder.sitofp(magnitude.value, lanes.real_type))
    tiny = (count * 2.0 ** (1 - form.bias - form.mantissa_bits)).bits()
    bits = select(above(magnitude, (1 << form.mantissa_bits) - 1), normal, tiny)
    if form.special is Special.INFINITY_AND_NAN:
        infinity = form.largest + 1
        bits = select(magnitude.equals(infinity), F32_INFINITY, bits)
        bits = select(above(magnitude, infinity), F32_QUIET_NAN, bits)
    elif form.special is Special.NAN_AT_TOP:
        bits = select(magnitude.equals(form.largest + 1), F32_QUIET_NAN, bits)
    sign_position = form.exponent_bits + form.mantissa_bits
    sign = (pattern & form.sign_bit) << (31 - sign_position)
    bits = bits ^ sign
    if form.special is Special.NAN_AT_MINUS_ZERO:
        bits = select(pattern.equals(form.sign_bit), F32_QUIET_NAN, bits)
    return bits.as_real()


def narrow_to_byte(x: Real, form: NarrowFloat) -> Whole:
    """The nearest pattern."""
    dropped = F32_MANTISSA_BITS - form.mantissa_bits
    bits = x.bits()
    magnitude_bits = bits & F32_MAGNITUDE
    magnitude = magnitude_bits.as_real()
    rebased = magnitude_bits - ((F32_BIAS - form.bias) << F32_MANTISSA_BITS)
    normal = rounded_shift(rebased, dropped)
    # Adding this float leaves the count of the smallest subnormals in the low bits.
    counter = 2.0 ** (F32_MANTISSA_BITS + 1 - form.bias - form.mantissa_bits)
    subnormal = (magnitude + counter).bits() - Format(32).pattern(counter)
    code = select(magnitude.compare("<", 2.0 ** (1 - form.bias)), subnormal, normal)
    sign = (bits ^ magnitude_bits).is_negative()
    too_large = above(code, form.largest)
    nan = x.is_nan()
    match form.special:
        case Special.INFINITY_AND_NAN:
            code = select(too_large, form.largest + 1, code)
            code = select(nan, form.sign_bit - 1 - (1 << (form.mantissa_bits - 1)) + 1, code)
        case Special.NAN_AT_TOP:
            code = select(too_large | nan, form.largest + 1, code)
        case Special.NOTHING:
            code = select(too_large, form.largest, code)
            code = select(sign, code ^ form.sign_bit, code)
            # What NaN becomes is not defined; this is what numpy's arrays of this type hold.
            return select(nan, form.sign_bit, code)
        case Special.NAN_AT_MINUS_ZERO:
            negative = select(sign & ~code.equals(0), code ^ form.sign_bit, code)
            return select(too_large | nan, form.sign_bit, negative)
    return select(sign, code ^ form.sign_bit, code)
