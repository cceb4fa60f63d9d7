"""Operators of scalar expressions as LLVM values, for scalars and vectors.

The semantics are those of `tensor_ir.expr`. Types of values are those of `emit.cast`; floats of
fewer than 32 bits compute in f32 and integers of fewer than 8 bits in i32, the result converted
back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rutc.emit.cast import (
    element_of,
    emit_bit_cast,
    emit_cast,
    llvm_type,
    splat_int,
    splat_real,
)
from rutc.emit.llvm import ir
from rutc.emit.narrow_float import lane_count, with_lanes
from rutc.emit.short_quotient import EXACT_BITS, Part, short_quotient
from rutc.emit.vector_math import BINARY_OPS, UNARY_OPS, emit_binary, emit_unary
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType

__all__ = ["COMPARISONS", "emit_bit_cast", "emit_cast", "emit_op", "llvm_type"]

Args = Sequence[ir.Value]

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BOTH, _EITHER = ir.IRBuilder.and_, ir.IRBuilder.or_
_LOGIC = {"and": _BOTH, "or": _EITHER, "xor": ir.IRBuilder.xor}
_BITWISE = {"bitand": _BOTH, "bitor": _EITHER, "bitxor": ir.IRBuilder.xor}
# What numpy's arithmetic means for bools.
_BOOL_OPS = {"add": _EITHER, "max": _EITHER, "mul": _BOTH, "min": _BOTH, **_BITWISE}
_ROUNDING = frozenset({"floor", "ceil", "round"})


def emit_op(
    builder: ir.IRBuilder,
    op: str,
    args: Args,
    dtype: DType,
    features: frozenset[str] = frozenset(),
) -> ir.Value:
    """The operator `op` of `tensor_ir.expr.OPS` applied to `args`.

    Args:
        builder: Where to emit; some operators end in a new block.
        op: Name of the operator.
        args: Operands of type `llvm_type(dtype, lanes)`; the first of `select` is an i1.
        dtype: Type of the operands (for `select`, of the two values).
        features: Target features that the code may use.

    Raises:
        InternalError: `dtype` has no such operator.
    """
    if op == "select":
        return builder.select(*args)
    if op in _LOGIC:
        truth = [emit_cast(builder, a, dtype, DType.BOOL) for a in args]
        return _LOGIC[op](builder, *truth)
    if op == "not":
        return builder.not_(emit_cast(builder, args[0], dtype, DType.BOOL))
    wide = dtype.computing
    operands = [emit_cast(builder, a, dtype, wide) for a in args]
    if op in COMPARISONS:
        return _compare(builder, COMPARISONS[op], operands, wide)
    if op in ("isnan", "isinf"):
        return _classify(builder, op, operands[0], wide)
    if wide is DType.BOOL:
        result = _bool_op(builder, op, operands)
    elif wide.is_float:
        result = _float_op(builder, op, operands, features)
        if op in _ROUNDING and dtype is DType.F16:
            # Their sign is what it was; without it LLVM 22 rounds numbers of 16 bits, one by one.
            result = builder.intrinsic("copysign", result, operands[0])
    else:
        result = _int_op(builder, op, operands, wide)
    return emit_cast(builder, result, wide, dtype)


def _compare(builder: ir.IRBuilder, relation: str, args: Args, dtype: DType) -> ir.Value:
    if dtype.is_float:
        if relation == "!=":
            return builder.fcmp_unordered(relation, *args)
        return builder.fcmp_ordered(relation, *args)
    if dtype.is_signed:
        return builder.icmp_signed(relation, *args)
    return builder.icmp_unsigned(relation, *args)


def _classify(builder: ir.IRBuilder, op: str, x: ir.Value, dtype: DType) -> ir.Value:
    if not dtype.is_float:
        return ir.Constant(with_lanes(ir.IntType(1), lane_count(x)), None)
    if op == "isnan":
        return builder.fcmp_unordered("uno", x, x)
    magnitude = builder.intrinsic("fabs", x)
    return builder.fcmp_ordered("==", magnitude, splat_real(x.type, float("inf")))


def _bool_op(builder: ir.IRBuilder, op: str, args: Args) -> ir.Value:
    if op == "bitnot":
        return builder.not_(args[0])
    if op in ("abs", "sign", *_ROUNDING):
        return args[0]
    if op not in _BOOL_OPS:
        raise InternalError(f"operator {op} on bool")
    return _BOOL_OPS[op](builder, *args)


# -- floats -------------------------------------------------------------------------------------
def _float_op(builder: ir.IRBuilder, op: str, args: Args, features: frozenset[str]) -> ir.Value:
    match op:
        case "add":
            return builder.fadd(*args)
        case "sub":
            return builder.fsub(*args)
        case "mul":
            return builder.fmul(*args)
        case "div":
            return builder.fdiv(*args)
        case "neg":
            return builder.fneg(args[0])
        case "abs":
            return builder.intrinsic("fabs", *args)
        case "sign":
            return _float_sign(builder, args[0])
        case "min":
            return _float_extreme(builder, "minimum", *args)
        case "max":
            return _float_extreme(builder, "maximum", *args)
    if op in UNARY_OPS:
        return emit_unary(builder, op, args[0], features)
    if op in BINARY_OPS:
        return emit_binary(builder, op, args[0], args[1], features)
    raise InternalError(f"operator {op} on floats")


def _float_extreme(builder: ir.IRBuilder, name: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller or larger; NaN where either is NaN, either of two zeros."""
    # On x86 the first operand alone is tested for NaN: reductions wait for `a` only.
    return builder.intrinsic(name, b, a, fastmath="nsz")


def _float_sign(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """-1, 0 or 1; NaN of NaN."""
    zero = splat_real(x.type, 0.0)
    sign = builder.select(builder.fcmp_ordered("==", x, zero), zero, x)
    sign = builder.select(builder.fcmp_ordered("<", x, zero), splat_real(x.type, -1.0), sign)
    return builder.select(builder.fcmp_ordered(">", x, zero), splat_real(x.type, 1.0), sign)


# -- integers -----------------------------------------------------------------------------------
def _int_op(builder: ir.IRBuilder, op: str, args: Args, dtype: DType) -> ir.Value:
    if op in _BITWISE:
        return _BITWISE[op](builder, *args)
    if op in _ROUNDING:
        return args[0]
    if op not in _INT_OPS:
        raise InternalError(f"operator {op} on {dtype}")
    return _INT_OPS[op](builder, args, dtype)


def _negate(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    return builder.neg(args[0])


def _magnitude(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    x = args[0]
    if not dtype.is_signed:
        return x
    negative = builder.icmp_signed("<", x, splat_int(x.type, 0))
    return builder.select(negative, builder.neg(x), x)


def _int_sign(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    x = args[0]
    zero, one = splat_int(x.type, 0), splat_int(x.type, 1)
    sign = builder.select(builder.icmp_unsigned("!=", x, zero), one, zero)
    if not dtype.is_signed:
        return sign
    negative = builder.icmp_signed("<", x, zero)
    return builder.select(negative, splat_int(x.type, -1), sign)


def _extreme(relation: str) -> Callable[[ir.IRBuilder, Args, DType], ir.Value]:
    def emit(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
        return builder.select(_compare(builder, relation, args, dtype), args[0], args[1])

    return emit


def _safe_divisor(builder: ir.IRBuilder, b: ir.Value, dtype: DType) -> ir.Value:
    """`b`, or 1 where dividing by `b` could trap: 0, and -1 because of the least integer."""
    unsafe = builder.icmp_unsigned("==", b, splat_int(b.type, 0))
    if dtype.is_signed:
        unsafe = builder.or_(unsafe, builder.icmp_unsigned("==", b, splat_int(b.type, -1)))
    return builder.select(unsafe, splat_int(b.type, 1), b)


def _quotient(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, dtype: DType) -> ir.Value:
    """a / b without its fraction; 0 and -1 count as divisors of 1.

    Processors divide vectors of floats only. The exact quotient of two numbers of n bits is a whole
    number or at least 2**-n away from the next one, relatively, so rounding to more bits than that
    does not reach it.
    """
    divisor = _safe_divisor(builder, b, dtype)
    if dtype.quotient is None or lane_count(a) is None or isinstance(b, ir.Constant):
        return (builder.sdiv if dtype.is_signed else builder.udiv)(a, divisor)
    return _real_quotient(builder, a, divisor, dtype)


def _real_quotient(builder: ir.IRBuilder, a: ir.Value, divisor: ir.Value, dtype: DType) -> ir.Value:
    """The quotient of vectors of integers as that of floats that hold all of their type."""
    real_type = ir.DoubleType() if dtype.quotient is DType.F64 else ir.FloatType()
    real = with_lanes(real_type, lane_count(a))
    to_real = builder.sitofp if dtype.is_signed else builder.uitofp
    ratio = builder.fdiv(to_real(a, real), to_real(divisor, real))
    return (builder.fptosi if dtype.is_signed else builder.fptoui)(ratio, a.type)


def _asks_for_size(a: ir.Value, b: ir.Value, dtype: DType) -> bool:
    """Whether vectors of integers are divided as floats of their size where they are small.

    By what is known, processors divide 32 bits with a product of 64, and by powers of two with
    shifts.
    """
    if lane_count(a) is None or dtype.bits not in EXACT_BITS:
        return False
    if not isinstance(b, ir.Constant):
        return True
    lanes = b.constant if isinstance(b.constant, list) else [b.constant]
    shifts = all(isinstance(x, int) and x.bit_count() == 1 for x in lanes)
    return dtype.quotient is None and not shifts


def _by_size(
    builder: ir.IRBuilder,
    args: Args,
    dtype: DType,
    part: Part,
    any_size: Callable[[ir.IRBuilder, Args, DType], ir.Value],
) -> ir.Value:
    """A part of a division of floats where vectors of integers are small, else that of any size."""
    a, b = args
    if not _asks_for_size(a, b, dtype):
        return any_size(builder, args, dtype)
    return short_quotient(builder, a, b, dtype, lambda: any_size(builder, args, dtype), part)


def _divide(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    return _by_size(builder, args, dtype, Part.QUOTIENT, _divide_any)


def _divide_any(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    a, b = args
    quotient = _quotient(builder, a, b, dtype)
    if dtype.is_signed:
        minus = builder.icmp_unsigned("==", b, splat_int(b.type, -1))
        quotient = builder.select(minus, builder.neg(a), quotient)
    zero = splat_int(b.type, 0)
    return builder.select(builder.icmp_unsigned("==", b, zero), zero, quotient)


def _remainder(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    return _by_size(builder, args, dtype, Part.REMAINDER, _remainder_any)


def _remainder_any(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    a, b = args
    divisor = _safe_divisor(builder, b, dtype)
    if lane_count(a) is None or dtype.quotient is None or isinstance(b, ir.Constant):
        return builder.srem(a, divisor) if dtype.is_signed else builder.urem(a, divisor)
    return builder.sub(a, builder.mul(_real_quotient(builder, a, divisor, dtype), divisor))


def _modulo(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    return _by_size(builder, args, dtype, Part.MODULUS, _modulo_any)


def _modulo_any(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    b = args[1]
    rest = _remainder_any(builder, args, dtype)
    if not dtype.is_signed:
        return rest
    zero = splat_int(b.type, 0)
    opposite = builder.icmp_signed("<", builder.xor(rest, b), zero)
    moves = builder.and_(opposite, builder.icmp_unsigned("!=", rest, zero))
    return builder.select(moves, builder.add(rest, b), rest)


def _shift_left(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    x, amount = args
    fits, safe = _shift_amount(builder, amount, dtype)
    return builder.select(fits, builder.shl(x, safe), splat_int(x.type, 0))


def _shift_right(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    x, amount = args
    fits, safe = _shift_amount(builder, amount, dtype)
    if not dtype.is_signed:
        return builder.select(fits, builder.lshr(x, safe), splat_int(x.type, 0))
    sign = builder.ashr(x, splat_int(x.type, dtype.bits - 1))
    return builder.select(fits, builder.ashr(x, safe), sign)


def _shift_amount(
    builder: ir.IRBuilder, amount: ir.Value, dtype: DType
) -> tuple[ir.Value, ir.Value]:
    """Whether the amount is below the width, and the amount or 0."""
    fits = builder.icmp_unsigned("<", amount, splat_int(amount.type, dtype.bits))
    return fits, builder.select(fits, amount, splat_int(amount.type, 0))


def _power(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    """`a**b`, wrapping; the truncated reciprocal for a negative exponent."""
    a, b = args
    zero, one = splat_int(a.type, 0), splat_int(a.type, 1)
    if not dtype.is_signed:
        return _power_loop(builder, a, b)
    negative = builder.icmp_signed("<", b, zero)
    whole = _power_loop(builder, a, builder.select(negative, zero, b))
    minus = splat_int(a.type, -1)
    odd = builder.icmp_unsigned("!=", builder.and_(b, one), zero)
    of_minus = builder.select(odd, minus, one)
    inverse = builder.select(builder.icmp_unsigned("==", a, minus), of_minus, zero)
    inverse = builder.select(builder.icmp_unsigned("==", a, one), one, inverse)
    return builder.select(negative, inverse, whole)


def _power_loop(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """`a**b` of a non-negative `b` by squaring, until no lane has exponent bits left."""
    zero, one = splat_int(a.type, 0), splat_int(a.type, 1)
    before = builder.block
    body = builder.append_basic_block("power.step")
    after = builder.append_basic_block("power.done")
    builder.branch(body)
    builder.position_at_end(body)
    result, square, rest = (builder.phi(a.type) for _ in range(3))
    odd = builder.icmp_unsigned("!=", builder.and_(rest, one), zero)
    next_result = builder.select(odd, builder.mul(result, square), result)
    next_square, next_rest = builder.mul(square, square), builder.lshr(rest, one)
    for phi, first, following in (
        (result, one, next_result),
        (square, a, next_square),
        (rest, b, next_rest),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(following, body)
    builder.cbranch(_any_nonzero(builder, next_rest), body, after)
    builder.position_at_end(after)
    return next_result


def _any_nonzero(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    if isinstance(x.type, ir.VectorType):
        name = f"llvm.vector.reduce.or.{x.type.suffix}"
        x = builder.call_named(name, x.type.element, [x])
    return builder.icmp_unsigned("!=", x, splat_int(element_of(x.type), 0))


def _invert(builder: ir.IRBuilder, args: Args, dtype: DType) -> ir.Value:
    return builder.xor(args[0], splat_int(args[0].type, -1))


_INT_OPS: Mapping[str, Callable[[ir.IRBuilder, Args, DType], ir.Value]] = {
    "neg": _negate,
    "abs": _magnitude,
    "sign": _int_sign,
    "bitnot": _invert,
    "add": lambda builder, args, dtype: builder.add(*args),
    "sub": lambda builder, args, dtype: builder.sub(*args),
    "mul": lambda builder, args, dtype: builder.mul(*args),
    "div": _divide,
    "mod": _modulo,
    "fmod": _remainder,
    "pow": _power,
    "min": _extreme("<"),
    "max": _extreme(">"),
    "shl": _shift_left,
    "shr": _shift_right,
}
