"""Types of values in registers, and conversions between them.

In registers a bool is an i1, f16 is `half`, bf16 an i16 with its bit pattern, and what has fewer
than 8 bits an i8 with its pattern in the low bits (the others are ignored when read, zero when
written, as in numpy's arrays of such types).
"""

from __future__ import annotations

from functools import cache

from rutc.emit.llvm import ir
from rutc.emit.narrow_float import lane_count, narrow, widen, with_lanes
from rutc.emit.numbers import operand
from rutc.emit.rounded_quotient import Reciprocal, rounded_by
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType, integer_range
from rutc.tensor_ir.machine import Machine

_BYTES = {True: DType.I8, False: DType.U8}
F32, F64 = ir.FloatType(), ir.DoubleType()
SMALL = 1 << 22
"""Sums of three whole numbers of this size are exact in f32."""
NEAREST = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}
"""Instructions for the nearest integers of so many f32."""
AS_SET = 4
"""Rounding as the processor is set to do it: to the nearest."""


@cache
def llvm_type(dtype: DType, lanes: int | None = None) -> ir.Type:
    """The type of a value in a register, or of a vector of `lanes` of them.

    Raises:
        InternalError: Strings and boxes have no register type.
    """
    return with_lanes(_element_type(dtype), lanes)


def _element_type(dtype: DType) -> ir.Type:
    match dtype:
        case DType.BOOL:
            return ir.IntType(1)
        case DType.F64:
            return F64
        case DType.F32:
            return F32
        case DType.F16:
            return ir.HalfType()
        case DType.STRING | DType.TENSOR:
            raise InternalError(f"a {dtype} in generated code")
        case _:
            return ir.IntType(max(8, dtype.bits))


def emit_cast(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    """`value` converted as `tensor_ir.expr` says: rounding, wrapping or saturating.

    Args:
        builder: Where to emit.
        value: Scalar or vector of type `llvm_type(src, lanes)`.
        src: The type of `value`.
        dst: The type wanted.

    Raises:
        InternalError: One of the types is no number.
    """
    if src is dst:
        return value
    if src.is_opaque or dst.is_opaque:
        raise InternalError(f"a cast from {src} to {dst} in generated code")
    if src.is_float:
        if src.bits < 32:
            return emit_cast(builder, widen(builder, value, src), DType.F32, dst)
        return _from_float(builder, value, src, dst)
    if src.is_int and src.bits < 8:
        value, src = _low_bits_value(builder, value, src), _BYTES[src.is_signed]
    if dst is DType.BOOL:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
    if dst.is_float:
        return _int_to_float(builder, value, src, dst)
    return _int_to_int(builder, value, src, dst)


def emit_bit_cast(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    """The bits of `value` as `dst`, a type of the same width (see `tensor_ir.expr`)."""
    if src is DType.BOOL:
        value = emit_cast(builder, value, src, DType.U8)
    if dst is DType.BOOL:
        return emit_cast(builder, value, DType.U8, dst)
    return builder.bitcast(value, llvm_type(dst, lane_count(value)))


def _from_float(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    if dst is DType.BOOL:
        return builder.fcmp_unordered("!=", value, ir.Constant(value.type, None))
    if not dst.is_float:
        return _float_to_int(builder, value, src, dst)
    if dst is DType.F64:
        return builder.fpext(value, llvm_type(dst, lane_count(value)))
    if src is DType.F64:
        if dst is DType.F32:
            return builder.fptrunc(value, llvm_type(dst, lane_count(value)))
        value = _truncated_to_odd(builder, value)
    return value if dst is DType.F32 else narrow(builder, value, dst)


def _truncated_to_odd(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The f32 of an f64, the last bit set where inexact, so that a second rounding is right.

    [Boldo & Melquiond 2008, When double rounding is odd].
    """
    count = lane_count(value)
    nearest = builder.fptrunc(value, with_lanes(F32, count))
    back = builder.fpext(nearest, with_lanes(F64, count))
    bits = builder.bitcast(nearest, with_lanes(ir.IntType(32), count))
    one = splat_int(bits.type, 1)
    sizes = (builder.intrinsic("fabs", x) for x in (back, value))
    away = builder.fcmp_ordered(">", *sizes)
    bits = builder.select(away, builder.sub(bits, one), bits)
    inexact = builder.fcmp_ordered("!=", back, value)
    bits = builder.select(inexact, builder.or_(bits, one), bits)
    return builder.bitcast(bits, nearest.type)


def _float_to_int(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    """The whole part, saturated; 0 of NaN.

    LLVM takes its own saturating conversions of vectors apart into branches for every lane.
    """
    lanes = lane_count(value)
    least, greatest = integer_range(dst)
    low, high = float(least), _float_below(greatest, src)
    # Comparisons with NaN fail, so that it becomes the lower bound.
    bounded = _bounded(builder, ">", value, low, of_type=True)
    bounded = _bounded(builder, "<", bounded, high, of_type=True)
    kind = ir.IntType(max(32, dst.bits))
    convert = builder.fptosi if dst.is_signed or dst.bits < 32 else builder.fptoui
    whole = convert(bounded, with_lanes(kind, lanes))
    if high < greatest:
        beyond = builder.fcmp_ordered(">", value, splat_real(value.type, high))
        whole = builder.select(beyond, splat_int(whole.type, greatest), whole)
    if dst.is_signed:
        number = builder.fcmp_ordered("ord", value, value)
        whole = builder.select(number, whole, splat_int(whole.type, 0))
    if dst.bits < 32:
        whole = builder.trunc(whole, llvm_type(dst, lanes))
    return _low_bits(builder, whole, dst) if dst.bits < 8 else whole


def emit_clamped_cast(
    builder: ir.IRBuilder, value: ir.Value, src: DType, low: float, high: float, dst: DType
) -> ir.Value | None:
    """The whole part of an f32 or f64 kept within bounds, 0 of NaN; None unless `dst` holds both.

    min(max(x, 0.0), 255.0) as i32   ->   two comparisons, and none with the ends of i32
    """
    least, greatest = integer_range(dst)
    if dst is DType.I64 and integer_range(DType.I32)[0] <= low <= high < 1 << 31:
        # Few processors convert vectors to 64 bits.
        whole = emit_clamped_cast(builder, value, src, low, high, DType.I32)
        return None if whole is None else _int_to_int(builder, whole, DType.I32, dst)
    inside = (
        dst.bits >= 32 and least <= low <= high <= greatest and high <= _float_below(greatest, src)
    )
    if not dst.is_signed or not inside:
        return None
    bounded = _bounded(builder, "<", _bounded(builder, ">", value, low), high)
    whole = builder.fptosi(bounded, llvm_type(dst, lane_count(value)))
    return _zero_of_nan(builder, whole, value, low)


def emit_clamped_round(
    builder: ir.IRBuilder,
    value: ir.Value,
    shift: float,
    bounds: tuple[float, float],
    dst: DType,
    divisor: float,
) -> ir.Value | None:
    """The whole number nearest to an f32 over `divisor`, plus `shift`, in bounds; 0 of NaN.

    min(max(round(x) + 3.0, 0.0), 255.0) as i32   ->   nearest(min(max(x, -3.0), 252.0)) + 3

    Conversions round by themselves, and what is kept within whole bounds first stays there.
    None unless all numbers are small whole ones, and those of a divisor other than 1 few.
    """
    found = None if dst is not DType.I32 else _rounded_within(shift, bounds, divisor)
    if found is None:
        return None
    limits, by = found
    bounded = _bounded(builder, ">", value, limits[0])
    bounded = _bounded(builder, "<", bounded, limits[1])
    if by is not None:
        bounded = _times(builder, bounded, by)
    whole = builder.nearest(bounded, llvm_type(dst, lane_count(value)))
    if shift:
        whole = builder.add(whole, operand(builder, splat_int(whole.type, int(shift))))
    return _zero_of_nan(builder, whole, value, bounds[0])


def emit_saturated_round(
    builder: ir.IRBuilder,
    value: ir.Value,
    shift: float,
    bounds: tuple[float, float],
    dst: DType,
    machine: Machine,
    divisor: float,
) -> ir.Value | None:
    """What `emit_clamped_round` gives, as bytes that instructions keep within one of the bounds.

    min(max(round(x) + 3.0, 0.0), 255.0) as u8   ->   saturated(nearest(max(x, -3.0)) + 3)

    What is beyond i32 becomes its least number, which is a large one without a sign: so unsigned
    bytes need no bound above, and signed ones none below. Where vectors are packed as bytes, what
    becomes that is below all of them, and only a bound above is needed. None where the bound is not
    the type's own, and where the machine has no such instructions.
    """
    lanes = lane_count(value)
    found = _rounded_within(shift, bounds, divisor)
    if (
        lanes is None
        or min(lanes, machine.width) not in NEAREST
        or dst not in _BYTES.values()
        or found is None
        or shift < 0
    ):
        return None
    (low, high), (least, greatest), (limits, by) = bounds, integer_range(dst), found
    above = dst.is_signed or not machine.saturates
    if low < least or high > greatest or (low != least if above else high != greatest):
        return None
    if not machine.saturates and not machine.packs:
        return None
    if not above:
        bounded = _bounded(builder, ">", value, limits[0])
    elif dst.is_signed:
        bounded = _bounded(builder, "<", value, limits[1])
    else:
        # What is NaN becomes the least number as well, and so 0.
        bounded = _not_above(builder, value, limits[1])
    if by is not None:
        bounded = _times(builder, bounded, by)
    whole = _nearest(builder, bounded, machine.width)
    if shift:
        whole = builder.add(whole, operand(builder, splat_int(whole.type, int(shift))))
    # What is NaN became the bound that is kept.
    whole = _zero_of_nan(builder, whole, value, high if dst.is_signed else low)
    if above:
        whole = builder.intrinsic("smax", whole, splat_int(whole.type, least))
        whole = builder.intrinsic("smin", whole, splat_int(whole.type, greatest))
    else:
        whole = builder.intrinsic("umin", whole, splat_int(whole.type, greatest))
    return builder.trunc(whole, llvm_type(dst, lanes))


def _rounded_within(
    shift: float, bounds: tuple[float, float], divisor: float
) -> tuple[tuple[float, float], Reciprocal | None] | None:
    """The bounds of what is rounded, and what it is multiplied by first.

    None unless all numbers are small whole ones, and those of a divisor other than 1 few.
    """
    low, high = bounds
    if low > high or not all(abs(v) <= SMALL and v.is_integer() for v in (shift, low, high)):
        return None
    limits = low - shift, high - shift
    if divisor == 1.0:
        return limits, None
    by = rounded_by(divisor, int(limits[0]), int(limits[1]))
    return None if by is None else (by.limits, by)


def _nearest(builder: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    """The nearest integers by an instruction: the least one of what is beyond all of them."""
    if value.lanes > width:
        return builder.joined([_nearest(builder, x, width) for x in builder.parts(value, width)])
    result = ir.VectorType(ir.IntType(32), value.lanes)
    name, operands = NEAREST[value.lanes], [value]
    if ".mask." in name:
        mask = ir.Constant(ir.IntType(value.lanes), (1 << value.lanes) - 1)
        operands += [ir.Constant(result, None), mask, ir.Constant(ir.IntType(32), AS_SET)]
    return builder.call_named(f"llvm.x86.{name}", result, operands)


def _zero_of_nan(builder: ir.IRBuilder, whole: ir.Value, value: ir.Value, low: float) -> ir.Value:
    """`whole`, or 0 where `value` is NaN, which became the lower bound."""
    if low == 0.0:
        return whole
    number = builder.fcmp_ordered("ord", value, value)
    return builder.select(number, whole, splat_int(whole.type, 0))


def _float_below(limit: int, dtype: DType) -> float:
    """The largest f32 or f64 that is at most `limit`."""
    spare = max(0, limit.bit_length() - (53 if dtype is DType.F64 else 24))
    return float(limit >> spare << spare)


def _bounded(
    builder: ir.IRBuilder,
    relation: str,
    value: ir.Value,
    bound: float,
    *,
    of_type: bool = False,
) -> ir.Value:
    """What becomes an integer, kept on one side of a bound, which NaN becomes.

    The bound is one of the model's numbers, or the type's own.
    LLVM masks lanes that become 0.0 after a comparison, where -0.0 takes one instruction in all.
    """
    literal = splat_real(value.type, bound or -0.0)
    limit = literal if of_type else operand(builder, literal)
    return builder.select(builder.fcmp_ordered(relation, value, limit), value, limit)


def _not_above(builder: ir.IRBuilder, value: ir.Value, bound: float) -> ir.Value:
    """The same as `_bounded` from above, but NaN stays."""
    limit = operand(builder, splat_real(value.type, bound))
    return builder.select(builder.fcmp_ordered(">", value, limit), limit, value)


def _int_to_float(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    wide = llvm_type(DType.F64 if dst is DType.F64 else DType.F32, lane_count(value))
    whole = builder.sitofp(value, wide) if src.is_signed else builder.uitofp(value, wide)
    return whole if dst in (DType.F32, DType.F64) else narrow(builder, whole, dst)


def _int_to_int(builder: ir.IRBuilder, value: ir.Value, src: DType, dst: DType) -> ir.Value:
    target = llvm_type(dst, lane_count(value))
    source_bits, target_bits = _bits(value.type), _bits(target)
    if target_bits > source_bits:
        value = builder.sext(value, target) if src.is_signed else builder.zext(value, target)
    elif target_bits < source_bits:
        value = builder.trunc(value, target)
    return _low_bits(builder, value, dst) if dst.bits < 8 else value


def _low_bits(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """The pattern of a type of fewer than 8 bits."""
    return builder.and_(value, splat_int(value.type, (1 << dtype.bits) - 1))


def _low_bits_value(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """The i8 or u8 of a pattern of fewer than 8 bits."""
    if not dtype.is_signed:
        return _low_bits(builder, value, dtype)
    spare = splat_int(value.type, 8 - dtype.bits)
    return builder.ashr(builder.shl(value, spare), spare)


def element_of(type_: ir.Type) -> ir.Type:
    """The element of a vector type, or the scalar type itself."""
    return type_.element if isinstance(type_, ir.VectorType) else type_


def _bits(type_: ir.Type) -> int:
    """The bits of an integer, or of each lane's."""
    element = element_of(type_)
    assert isinstance(element, ir.IntType)
    return element.width


def _times(builder: ir.IRBuilder, x: ir.Value, by: Reciprocal) -> ir.Value:
    """A number that is rounded as the quotient is, for `x` within the limits."""
    high = operand(builder, splat_real(x.type, by.high))
    if not by.low:
        return builder.fmul(x, high)
    low = operand(builder, splat_real(x.type, by.low))
    return builder.intrinsic("fma", x, high, builder.fmul(x, low))


def splat_int(type_: ir.Type, value: int) -> ir.Constant:
    """An integer constant in every lane, taken modulo the width."""
    wrapped = value % (1 << _bits(type_))
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [wrapped] * type_.count)
    return ir.Constant(type_, wrapped)


def splat_real(type_: ir.Type, value: float) -> ir.Constant:
    """A float constant in every lane."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [value] * type_.count)
    return ir.Constant(type_, value)
