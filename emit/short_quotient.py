"""Quotients of vectors of integers as those of floats of their size, where all of them fit."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rutc.emit.cast import splat_int, splat_real
from rutc.emit.llvm import ir
from rutc.emit.narrow_float import lane_count, with_lanes
from rutc.emit.vector_math.lanes import Format
from rutc.tensor_ir.dtype import DType

EXACT_BITS = {32: 23, 64: 51}
"""By the bits of a float, those of integers of which it tells the quotient exactly, signs aside."""
MAGIC = 1.5 * 2.0**52
"""Numbers so near to this one are as far from it as their bits are."""
MAGIC_BITS = Format(64).pattern(MAGIC)


class Part(Enum):
    """What is asked for of a division."""

    QUOTIENT = "quotient"
    """Without its fraction."""
    REMAINDER = "remainder"
    """It has the sign of the dividend."""
    MODULUS = "modulus"
    """It has the sign of the divisor."""

    @property
    def rounding(self) -> str:
        """How the quotient is rounded, as LLVM calls that."""
        return "floor" if self is Part.MODULUS else "trunc"


def short_quotient(
    builder: ir.IRBuilder,
    a: ir.Value,
    b: ir.Value,
    dtype: DType,
    otherwise: Callable[[], ir.Value],
    part: Part,
) -> ir.Value:
    """`a / b` without its fraction, or what is left, of vectors of integers of 32 or 64 bits.

    all lanes below 2**23, or 2**51, no b is 0  ->  floats of the same size; else `otherwise`

    The exact quotient of two numbers of n bits is a whole number or at least 2**-n away from the
    next one, relatively, so rounding to more bits does not reach it; what is left is exact.

    Args:
        builder: Where to emit; it ends in a new block.
        a: The dividends.
        b: The divisors.
        dtype: The type of both.
        otherwise: Emits the same of any integers.
        part: What is asked for.
    """

    def quick() -> ir.Value:
        x, y = _real(builder, a, dtype), _real(builder, b, dtype)
        found = builder.intrinsic(part.rounding, builder.fdiv(x, y))
        if part is not Part.QUOTIENT:
            found = builder.intrinsic("fma", builder.fneg(found), y, x)
        return _whole(builder, found, a.type, dtype)

    return builder.either(_some_long(builder, a, b, dtype), "quotient", quick, otherwise)


def _some_long(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, dtype: DType) -> ir.Value:
    """Whether the bits of any lane are too many, or a divisor is 0, as one i1."""
    zero = builder.icmp_unsigned("==", b, splat_int(b.type, 0))
    bits = EXACT_BITS[dtype.bits]
    if dtype.is_signed:
        # From the least such number on, they are no negative numbers and have a bit more.
        a, b = (builder.add(x, splat_int(x.type, 1 << bits)) for x in (a, b))
        bits += 1
    beyond = builder.and_(builder.or_(a, b), splat_int(a.type, -1 << bits))
    beyond = builder.select(zero, splat_int(a.type, -1), beyond)
    element = ir.IntType(dtype.bits)
    name = f"llvm.vector.reduce.or.v{lane_count(a)}i{dtype.bits}"
    some = builder.call_named(name, element, [beyond])
    return builder.icmp_unsigned("!=", some, ir.Constant(element, 0))


def _real(builder: ir.IRBuilder, x: ir.Value, dtype: DType) -> ir.Value:
    """Such integers as floats: of 64 bits by a sum, as not all processors convert vectors."""
    if dtype.bits == DType.I32.bits:
        return builder.sitofp(x, with_lanes(ir.FloatType(), lane_count(x)))
    real = with_lanes(ir.DoubleType(), lane_count(x))
    shifted = builder.bitcast(builder.add(x, splat_int(x.type, MAGIC_BITS)), real)
    return builder.fsub(shifted, splat_real(real, MAGIC))


def _whole(builder: ir.IRBuilder, x: ir.Value, type_: ir.Type, dtype: DType) -> ir.Value:
    """Whole floats of so few bits as integers."""
    if dtype.bits == DType.I32.bits:
        return builder.fptosi(x, type_)
    shifted = builder.bitcast(builder.fadd(x, splat_real(x.type, MAGIC)), type_)
    return builder.sub(shifted, splat_int(type_, MAGIC_BITS))
