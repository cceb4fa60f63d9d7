"""Literals that the caller of a kernel holds, so that kernels that differ in nothing else are one.

    x * 0.37 + 12.5   ->   x * %numbers[0] + %numbers[1]

They are loaded where the function begins, and put into lanes there, as constants would be: which
scales and zero points quantised layers have changes no loop. Those that LLVM makes other code of,
and what is no finite number, stay literals.
"""

from __future__ import annotations

import struct
from math import isfinite

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_module import Number
from rutc.emit.llvm.ir_vectors import i64, splat

LITERALS = (0.0, 1.0, -1.0)
"""Sums, products and bounds with these take other instructions than those with others."""
ARITHMETIC = frozenset({"add", "sub", "mul"})
"""Operations of f32 that take the same instructions for all other literals."""
BYTES = 4
"""Each number's: they are f32 or i32."""
F32, I32 = ir.FloatType(), ir.IntType(32)


class Numbers:
    """The numbers of one function, whose last argument points to them, if there are any.

    Each is at `BYTES` times its place, and once for each type that it has.
    """

    def __init__(self, function: ir.Function, entry: ir.Block) -> None:
        """None yet; they are loaded in the block `entry`."""
        self._function = function
        self._builder = ir.IRBuilder(entry)
        self._scalars: dict[Number, ir.Value] = {}
        self._vectors: dict[tuple[Number, int], ir.Value] = {}
        self._named: dict[str, Number] = {}

    @property
    def bytes(self) -> bytes:
        """All numbers, as they lie in memory."""
        pairs = [("<f" if type_ is F32 else "<I", value) for type_, value in self._scalars]
        return b"".join([struct.pack(kind, value) for kind, value in pairs])

    def scalar(self, number: Number) -> ir.Value:
        """A number."""
        if number not in self._scalars:
            if not self._scalars:
                self._function.args.append(ir.Value(ir.PointerType(), "%numbers"))
            at = i64(BYTES * len(self._scalars))
            place = self._builder.gep(self._function.args[-1], [at], type_=ir.IntType(8))
            self._scalars[number] = loaded = self._builder.load(place, type_=number[0])
            self._named[loaded.ref] = number
        return self._scalars[number]

    def vector(self, number: Number, lanes: int) -> ir.Value:
        """A number in so many lanes."""
        key = number, lanes
        if key not in self._vectors:
            self._vectors[key] = splat(self._builder, self.scalar(number), lanes)
        return self._vectors[key]

    def in_lanes(self, value: ir.Value, lanes: int) -> ir.Value | None:
        """What `scalar` gave, in so many lanes; None of any other value."""
        number = self._named.get(value.ref)
        return None if number is None else self.vector(number, lanes)


def operand(builder: ir.IRBuilder, literal: ir.Constant) -> ir.Value:
    """A literal, the same in all lanes, as one of the function's numbers, if it may have any."""
    numbers, given = builder.function.numbers, literal.constant
    value = given[0] if isinstance(given, list) else given
    type_ = literal.type.element if isinstance(literal.type, ir.VectorType) else literal.type
    if numbers is None or type_ not in (F32, I32) or not isinstance(value, int | float):
        return literal
    if value in LITERALS or not isfinite(value):
        return literal
    if isinstance(literal.type, ir.VectorType):
        return numbers.vector((type_, value), literal.type.count)
    return numbers.scalar((type_, value))
