"""Typed handles on LLVM values, so that a function reads like the formula it implements.

`Real`, `Whole` and `Mask` hold a float, an integer of the same width and a bool per lane, for a
scalar or a vector. Python numbers on either side of an operator become constants.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from rutc.base.record import record
from rutc.emit.llvm import ir

I1 = ir.IntType(1)


@record
class Format:
    """One float width: 32 or 64 bits."""

    bits: int

    @property
    def mantissa_bits(self) -> int:
        """Stored significand bits."""
        return 23 if self.bits == 32 else 52

    @property
    def bias(self) -> int:
        """Exponent bias."""
        return 127 if self.bits == 32 else 1023

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return float(2.0 ** (1 - self.bias))

    @property
    def round_shift(self) -> float:
        """1.5 * 2**mantissa_bits: adding it rounds to an integer held in the low bits."""
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The integer with only the sign bit set."""
        return 1 << (self.bits - 1)

    def split(self, value: float) -> float:
        """`value` rounded to this width."""
        if self.bits == 64:
            return value
        return float(struct.unpack("f", struct.pack("f", value))[0])

    def pattern(self, value: float) -> int:
        """The bits of `value` as an unsigned integer."""
        float_code, int_code = ("f", "I") if self.bits == 32 else ("d", "Q")
        return int(struct.unpack(int_code, struct.pack(float_code, value))[0])


@record
class Lanes:
    """Where code is emitted and for which lanes.

    Attributes:
        builder: Positioned IR builder.
        format: Float width.
        count: Lanes of the vector, or None for a scalar.
        features: Target feature names that may be used, such as `avx512f`.
    """

    builder: ir.IRBuilder
    format: Format
    count: int | None
    features: frozenset[str]

    @staticmethod
    def of(builder: ir.IRBuilder, x: ir.Value, features: frozenset[str]) -> Lanes:
        """The lanes of a float scalar or vector `x`.

        Raises:
            TypeError: The elements of `x` are neither f32 nor f64.
        """
        element = x.type.element if isinstance(x.type, ir.VectorType) else x.type
        count = x.lanes if isinstance(x.type, ir.VectorType) else None
        if isinstance(element, ir.FloatType):
            return Lanes(builder, Format(32), count, features)
        if isinstance(element, ir.DoubleType):
            return Lanes(builder, Format(64), count, features)
        raise TypeError(f"vector math needs f32 or f64 elements, got {x.type}")

    @property
    def real_element(self) -> ir.Type:
        """The float type of one lane."""
        return ir.FloatType() if self.format.bits == 32 else ir.DoubleType()

    @property
    def real_type(self) -> ir.Type:
        """The LLVM type of a `Real`."""
        return self._vector(self.real_element)

    @property
    def whole_type(self) -> ir.Type:
        """The LLVM type of a `Whole`."""
        return self._vector(ir.IntType(self.format.bits))

    def _vector(self, element: ir.Type) -> ir.Type:
        return element if self.count is None else ir.VectorType(element, self.count)

    def widened(self) -> Lanes:
        """The same lanes in f64."""
        return Lanes(self.builder, Format(64), self.count, self.features)

    def real(self, value: float) -> Real:
        """A float constant in every lane."""
        return Real(self, self._splat(self.real_element, value))

    def whole(self, value: int) -> Whole:
        """An integer constant in every lane; taken modulo 2**bits."""
        return Whole(self, self._splat(ir.IntType(self.format.bits), value % 2**self.format.bits))

    def _splat(self, element: ir.Type, value: float) -> ir.Constant:
        scalar = ir.Constant(element, value)
        if self.count is None:
            return scalar
        return ir.Constant.splat(ir.VectorType(element, self.count), scalar)

    def intrinsic(self, name: str, *operands: Real) -> Real:
        """`llvm.NAME` on floats of these lanes."""
        return Real(self, self.builder.intrinsic(name, *(x.value for x in operands)))


@record
class Real:
    """A float per lane."""

    lanes: Lanes
    value: ir.Value

    def _of(self, other: Real | float) -> Real:
        return other if isinstance(other, Real) else self.lanes.real(other)

    def __add__(self, other: Real | float) -> Real:
        return Real(self.lanes, self.lanes.builder.fadd(self.value, self._of(other).value))

    def __sub__(self, other: Real | float) -> Real:
        return Real(self.lanes, self.lanes.builder.fsub(self.value, self._of(other).value))

    def __rsub__(self, other: float) -> Real:
        return self._of(other) - self

    def __mul__(self, other: Real | float) -> Real:
        return Real(self.lanes, self.lanes.builder.fmul(self.value, self._of(other).value))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(self.lanes, self.lanes.builder.fdiv(self.value, self._of(other).value))

    def __rtruediv__(self, other: float) -> Real:
        return self._of(other) / self

    def __neg__(self) -> Real:
        return Real(self.lanes, self.lanes.builder.fneg(self.value))

    def fma(self, factor: Real | float, addend: Real | float) -> Real:
        """`self * factor + addend`, rounded once."""
        return self.lanes.intrinsic("fma", self, self._of(factor), self._of(addend))

    def abs(self) -> Real:
        """The magnitude."""
        return self.lanes.intrinsic("fabs", self)

    def sqrt(self) -> Real:
        """The square root, correctly rounded."""
        return self.lanes.intrinsic("sqrt", self)

    def with_sign_of(self, other: Real) -> Real:
        """This magnitude with the sign of `other`."""
        return self.lanes.intrinsic("copysign", self, other)

    def compare(self, relation: str, other: Real | float) -> Mask:
        """An ordered comparison (`<`, `==`, ...): false where either side is NaN."""
        builder = self.lanes.builder
        return Mask(self.lanes, builder.fcmp_ordered(relation, self.value, self._of(other).value))

    def is_nan(self) -> Mask:
        """True where not a number."""
        return Mask(self.lanes, self.lanes.builder.fcmp_unordered("uno", self.value, self.value))

    def at_most(self, limit: float) -> Real:
        """The smaller of this and `limit`; NaN stays NaN."""
        return self._of(limit).compare("<", self).select(self._of(limit), self)

    def at_least(self, limit: float) -> Real:
        """The larger of this and `limit`; NaN stays NaN."""
        return self._of(limit).compare(">", self).select(self._of(limit), self)

    def bits(self) -> Whole:
        """The representation as an integer."""
        value = self.lanes.builder.bitcast(self.value, self.lanes.whole_type)
        return Whole(self.lanes, value)

    def to(self, lanes: Lanes) -> Real:
        """Converted to the width of `lanes`."""
        builder = self.lanes.builder
        if lanes.format.bits == self.lanes.format.bits:
            return self
        if lanes.format.bits > self.lanes.format.bits:
            return Real(lanes, builder.fpext(self.value, lanes.real_type))
        return Real(lanes, builder.fptrunc(self.value, lanes.real_type))


@record
class Whole:
    """An integer per lane, as wide as the float."""

    lanes: Lanes
    value: ir.Value

    def _of(self, other: Whole | int) -> Whole:
        return other if isinstance(other, Whole) else self.lanes.whole(other)

    def __add__(self, other: Whole | int) -> Whole:
        return Whole(self.lanes, self.lanes.builder.add(self.value, self._of(other).value))

    def __sub__(self, other: Whole | int) -> Whole:
        return Whole(self.lanes, self.lanes.builder.sub(self.value, self._of(other).value))

    def __rsub__(self, other: int) -> Whole:
        return self._of(other) - self

    def __and__(self, other: Whole | int) -> Whole:
        return Whole(self.lanes, self.lanes.builder.and_(self.value, self._of(other).value))

    def __xor__(self, other: Whole | int) -> Whole:
        return Whole(self.lanes, self.lanes.builder.xor(self.value, self._of(other).value))

    def __lshift__(self, amount: int) -> Whole:
        return Whole(self.lanes, self.lanes.builder.shl(self.value, self._of(amount).value))

    def __rshift__(self, amount: int) -> Whole:
        """The arithmetic shift: the sign fills."""
        return Whole(self.lanes, self.lanes.builder.ashr(self.value, self._of(amount).value))

    def logical_right(self, amount: int) -> Whole:
        """The shift that fills with zeros."""
        return Whole(self.lanes, self.lanes.builder.lshr(self.value, self._of(amount).value))

    def equals(self, other: Whole | int) -> Mask:
        """True where equal."""
        builder = self.lanes.builder
        return Mask(self.lanes, builder.icmp_signed("==", self.value, self._of(other).value))

    def below(self, limit: int) -> Mask:
        """True where less, without signs."""
        builder = self.lanes.builder
        return Mask(self.lanes, builder.icmp_unsigned("<", self.value, self._of(limit).value))

    def is_negative(self) -> Mask:
        """True where the top bit is set."""
        builder = self.lanes.builder
        return Mask(self.lanes, builder.icmp_signed("<", self.value, self._of(0).value))

    def as_real(self) -> Real:
        """The float with this representation."""
        return Real(self.lanes, self.lanes.builder.bitcast(self.value, self.lanes.real_type))

    def to_real(self) -> Real:
        """The float of this value."""
        return Real(self.lanes, self.lanes.builder.sitofp(self.value, self.lanes.real_type))


@record
class Mask:
    """A bool per lane."""

    lanes: Lanes
    value: ir.Value

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.lanes, self.lanes.builder.and_(self.value, other.value))

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.lanes, self.lanes.builder.or_(self.value, other.value))

    def __invert__(self) -> Mask:
        return Mask(self.lanes, self.lanes.builder.not_(self.value))

    def select(self, yes: Real, no: Real | float) -> Real:
        """`yes` where true, else `no`."""
        other = no if isinstance(no, Real) else yes.lanes.real(no)
        return Real(yes.lanes, self.lanes.builder.select(self.value, yes.value, other.value))

    def select_whole(self, yes: int, no: int) -> Whole:
        """The integer `yes` where true, else `no`."""
        a, b = self.lanes.whole(yes), self.lanes.whole(no)
        return Whole(self.lanes, self.lanes.builder.select(self.value, a.value, b.value))

    def any(self) -> ir.Value:
        """One i1: true where any lane is."""
        if self.lanes.count is None:
            return self.value
        vector = ir.VectorType(I1, self.lanes.count)
        name = f"llvm.vector.reduce.or.{vector.suffix}"
        return self.lanes.builder.call_named(name, I1, [self.value])


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """`sum(c * x**i)`, lowest power first.

    All but the constant term are summed by two interleaved Horner chains, which halves the
    latency; adding the constant last keeps its rounding the only one that matters for small `x`.
    """
    if len(coefficients) < 5:
        return horner(x, coefficients)
    square = x * x
    rest = coefficients[1:]
    rising = horner(square, rest[1::2]).fma(x, horner(square, rest[0::2]))
    return rising.fma(x, coefficients[0])


def horner(x: Real, coefficients: Sequence[float]) -> Real:
    """`sum(c * x**i)` by Horner's rule."""
    total = x.lanes.real(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total.fma(x, c)
    return total


def fills_registers(lanes: Lanes, register_bits: int) -> bool:
    """Whether lanes are 1, 2, 4, ... full registers of so many bits."""
    registers, rest = divmod((lanes.count or 1) * lanes.format.bits, register_bits)
    return rest == 0 and registers & (registers - 1) == 0


def per_register(
    operands: list[Real], emit: Callable[[list[Real]], Real], register_bits: int
) -> Real:
    """`emit` on each register's part of the operands, the results side by side."""
    lanes = operands[0].lanes
    builder = lanes.builder
    width = register_bits // lanes.format.bits
    part_lanes = Lanes(builder, lanes.format, width, lanes.features)
    parts = zip(*(builder.parts(x.value, width) for x in operands), strict=True)
    results = [emit([Real(part_lanes, x) for x in part]).value for part in parts]
    return Real(lanes, builder.joined(results))
