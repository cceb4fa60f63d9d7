"""Reduction of huge arguments modulo pi/2 in integer arithmetic [Payne & Hanek 1983].

`x = m * 2**e` with a 53-bit integer `m`. Bits of 2/pi whose product with `x` is a multiple of 4 do
not matter, so a window of 192 bits is enough: the two bits above the point are the quarter turns,
and the fraction keeps more than 64 correct bits however close `x` is to a multiple of pi/2.
"""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import i64
from rutc.emit.vector_math.lanes import Lanes, Mask, Real, Whole
from rutc.emit.vector_math.slow_lanes import where_wanted

FUNCTION = "rutc.reduce_large_angle"
TABLE = "rutc.two_over_pi"
I32, I64, F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
WINDOW, WIDE, PRODUCT = 192, ir.IntType(256), ir.IntType(128)
WINDOW_TYPE = ir.IntType(WINDOW)
# The leading word is zero, so that the window may begin before the point.
TABLE_WORDS = 21
HALF_PI_TIMES_2_63 = 0xC90FDAA22168C234
EXPONENT_MASK, MANTISSA_MASK = 0x7FF, 2**52 - 1
# Exponent of the unit in the last place of a float with a zero exponent field.
EXPONENT_OFFSET = 1075


def pi_bits(count: int) -> int:
    """`floor(pi * 2**count)` by Machin's formula."""
    guard = 32
    one = 1 << (count + guard)

    def arctan_inverse(n: int) -> int:
        term, total, k = one // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    return (16 * arctan_inverse(5) - 4 * arctan_inverse(239)) >> guard


def two_over_pi_words() -> list[int]:
    """A zero word, then the fraction of 2/pi in 64-bit words, leading bits first."""
    count = 64 * (TABLE_WORDS - 1)
    fraction = (2 << (2 * count)) // pi_bits(count)
    return [0, *((fraction >> (count - 64 * (i + 1))) % 2**64 for i in range(TABLE_WORDS - 1))]


def emit_reduce_large(x: Real, large: Mask, r: Real, quarter_turns: Whole) -> tuple[Real, Whole]:
    """Remainder and quarter turns, replaced in the lanes where `large` and finite.

    Args:
        x: Non-negative.
        large: The lanes to reduce here.
        r: The remainders of the other lanes.
        quarter_turns: The quarter turns of the other lanes.
    """
    lanes = x.lanes
    scalar = Lanes(lanes.builder, lanes.format, None, lanes.features)
    found, turns = where_wanted(
        "angle",
        large & x.compare("<", float("inf")),
        [x.value],
        [r.value, quarter_turns.value],
        lambda operands: reduced_scalar(scalar, *operands),
    )
    return Real(lanes, found), Whole(lanes, turns)


def reduced_scalar(lanes: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Remainder and quarter turns of one float."""
    builder = lanes.builder
    narrow = lanes.format.bits == 32
    wide_x = builder.fpext(x, F64) if narrow else x
    pair = builder.call(reduction_function(builder.module), [wide_x])
    r, turns = builder.extract_value(pair, 0), builder.extract_value(pair, 1)
    if narrow:
        return builder.fptrunc(r, ir.FloatType()), builder.trunc(turns, I32)
    return r, turns


def reduction_function(module: ir.Module) -> ir.Function:
    """The module's `{double r, i64 quarter_turns} (double x)`, emitted on first use."""
    pair = ir.LiteralStructType(F64, I64)
    function = module.declared(FUNCTION, pair, [F64])
    if function.blocks:
        return function
    function.internal = function.noinline = True
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    bits = builder.bitcast(function.args[0], I64)
    field = builder.and_(builder.lshr(bits, i64(52)), i64(EXPONENT_MASK))
    mantissa = builder.or_(builder.and_(bits, i64(MANTISSA_MASK)), i64(2**52))
    product = builder.mul(window(module, builder, field), builder.zext(mantissa, WINDOW_TYPE))
    # product / 2**190 is x * 2/pi modulo 4.
    rounded = builder.add(product, ir.Constant(WINDOW_TYPE, 1 << (WINDOW - 3)))
    turns = builder.trunc(builder.lshr(rounded, ir.Constant(WINDOW_TYPE, WINDOW - 2)), I64)
    fraction = builder.shl(product, ir.Constant(WINDOW_TYPE, 2))
    r = fraction_times_half_pi(builder, fraction)
    result = builder.insert_value(ir.Constant(pair, ir.Undefined), r, 0)
    builder.ret(builder.insert_value(result, turns, 1))
    return function


def window(module: ir.Module, builder: ir.IRBuilder, field: ir.Value) -> ir.Value:
    """The 192 bits of 2/pi that matter to a float with this exponent field."""
    # The first of them has weight 2**(1 - position) relative to the last place of x; 64 is the
    # zero word before the point.
    position = builder.add(field, i64(64 - EXPONENT_OFFSET - 2))
    # Lanes that need no reduction come here too: any window inside the table will do for them.
    position = builder.select(builder.icmp_signed("<", position, i64(0)), i64(0), position)
    last = 64 * (TABLE_WORDS - 4)
    position = builder.select(builder.icmp_signed(">", position, i64(last)), i64(last), position)
    table = table_of_two_over_pi(module)
    first_word = builder.lshr(position, i64(6))
    wide: ir.Value = ir.Constant(WIDE, 0)
    for i in range(4):
        index = builder.add(first_word, i64(i))
        address = builder.gep(table, [i64(0), index], inbounds=True, type_=table.value_type)
        word = builder.zext(builder.load(address, type_=I64, align=8), WIDE)
        wide = builder.or_(wide, builder.shl(word, ir.Constant(WIDE, 64 * (3 - i))))
    shift = builder.zext(builder.and_(position, i64(63)), WIDE)
    aligned = builder.lshr(builder.shl(wide, shift), ir.Constant(WIDE, 256 - WINDOW))
    return builder.trunc(aligned, WINDOW_TYPE)


def table_of_two_over_pi(module: ir.Module) -> ir.GlobalVariable:
    """The module's table of the bits of 2/pi, emitted on first use."""
    found = module.globals.get(TABLE)
    if isinstance(found, ir.GlobalVariable):
        return found
    array = ir.ArrayType(I64, TABLE_WORDS)
    return ir.GlobalVariable(module, TABLE, ir.Constant(array, two_over_pi_words()))


def fraction_times_half_pi(builder: ir.IRBuilder, fraction: ir.Value) -> ir.Value:
    """`fraction / 2**192 * pi/2` of a signed fraction, to the last bit of f64."""
    zero = ir.Constant(WINDOW_TYPE, 0)
    negative = builder.icmp_signed("<", fraction, zero)
    magnitude = builder.select(negative, builder.sub(zero, fraction), fraction)
    name, arguments = f"llvm.ctlz.{WINDOW_TYPE}", [magnitude, ir.Constant(ir.I1, 0)]
    leading_zeros = builder.call_named(name, WINDOW_TYPE, arguments)
    top = builder.lshr(builder.shl(magnitude, leading_zeros), ir.Constant(WINDOW_TYPE, 128))
    product = builder.mul(
        builder.zext(builder.trunc(top, I64), PRODUCT), ir.Constant(PRODUCT, HALF_PI_TIMES_2_63)
    )
    high = builder.trunc(builder.lshr(product, ir.Constant(PRODUCT, 64)), I64)
    # high / 2**63 * 2**-leading_zeros: 2**-63 and the power are put together as one float.
    exponent = builder.sub(i64(1023 - 63), builder.trunc(leading_zeros, I64))
    scale = builder.bitcast(builder.shl(exponent, i64(52)), F64)
    r = builder.fmul(builder.uitofp(high, F64), scale)
    return builder.select(negative, builder.fneg(r), r)
