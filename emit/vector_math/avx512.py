"""The AVX-512 instructions for exponents and mantissas, on vectors of whole 512-bit registers."""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.emit.vector_math.lanes import Lanes, Real, fills_registers, per_register

REGISTER_BITS = 512
I32 = ir.IntType(32)
CURRENT_ROUNDING = ir.Constant(I32, 4)
# vrange: 2 selects the operand of the smaller magnitude, with the sign of the first.
NEARER_ZERO_CONTROL = ir.Constant(I32, 2)
# vgetmant: 3 selects [3/4, 3/2), 8 asks for NaN where the operand is negative.
MANTISSA_CONTROL = ir.Constant(I32, 3 + 8)


def available(lanes: Lanes) -> bool:
    """Whether these lanes are 1, 2, 4, ... full registers of a target with AVX-512."""
    return "avx512f" in lanes.features and fills_registers(lanes, REGISTER_BITS)


def has_tables(lanes: Lanes) -> bool:
    """Whether these lanes are such registers of f32, which can hold a table of 16."""
    return lanes.format.bits == 32 and "avx512dq" in lanes.features and available(lanes)


def scaled_by_power(x: Real, k: Real) -> Real:
    """`x * 2**k` for an integer `k`, with overflow and gradual underflow."""

    def emit(parts: list[Real]) -> Real:
        a, b = parts
        return _call("scalef", a.lanes, [a.value, b.value, a.value, _all(a), CURRENT_ROUNDING])

    return per_register([x, k], emit, REGISTER_BITS)


def nearer_zero(x: Real, limit: float) -> Real:
    """`x` where that is between `-limit` and `limit`, else one of these; `limit` of NaN."""

    def emit(parts: list[Real]) -> Real:
        a = parts[0]
        operands = [a.value, a.lanes.real(limit).value, NEARER_ZERO_CONTROL]
        return _call("range", a.lanes, [*operands, a.value, _all(a), CURRENT_ROUNDING])

    return per_register([x], emit, REGISTER_BITS)


def exponent(x: Real) -> Real:
    """`floor(log2(abs(x)))`; -inf at zero, inf at infinity."""

    def emit(parts: list[Real]) -> Real:
        a = parts[0]
        return _call("getexp", a.lanes, [a.value, a.value, _all(a), CURRENT_ROUNDING])

    return per_register([x], emit, REGISTER_BITS)


def mantissa(x: Real) -> Real:
    """`x` scaled by a power of two into [3/4, 3/2); 1 at zero and infinity, NaN below zero."""

    def emit(parts: list[Real]) -> Real:
        a = parts[0]
        operands = [a.value, MANTISSA_CONTROL, a.value, _all(a), CURRENT_ROUNDING]
        return _call("getmant", a.lanes, operands)

    return per_register([x], emit, REGISTER_BITS)


def _all(x: Real) -> ir.Constant:
    return ir.Constant(ir.IntType(x.lanes.count or 1), -1)


def _call(name: str, lanes: Lanes, operands: list[ir.Value]) -> Real:
    kind = "ps" if lanes.format.bits == 32 else "pd"
    name = f"llvm.x86.avx512.mask.{name}.{kind}.512"
    return Real(lanes, lanes.builder.call_named(name, lanes.real_type, operands))
