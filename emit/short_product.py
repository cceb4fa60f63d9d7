"""Products of whole numbers that 16 bits hold, in lanes of 32 bits.

x86 multiplies lanes of 32 bits by two operations, and adds up the two products of 16 bits in every
lane by one, or by none of its own where a sum follows. The upper half of a number is its sign, so
the second product is 0 as soon as that of one factor is taken away.

    (i32(%x) - 22) * (i32(%w) - 103)
    ->
    pairs(i32(%x) - 22, (i32(%w) - 103) & 0xffff)
"""

from __future__ import annotations

from rutc.emit.cast import splat_int
from rutc.emit.llvm import ir
from rutc.tensor_ir.dtype import DType, integer_range
from rutc.tensor_ir.expr import Apply
from rutc.tensor_ir.facts.products import limits_of

PAIRS = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
"""The instruction that adds up pairs of products of 16 bits, by lanes of 32."""
FEATURES = {16: "avx512bw", 8: "avx2", 4: "avx2"}
"""What processors have that have it, by lanes."""


def pairs(builder: ir.IRBuilder, p: ir.Value, q: ir.Value, lanes: int) -> ir.Value:
    """The sums of the two products of i16 in every lane of i32."""
    halves, sums = ir.VectorType(ir.IntType(16), 2 * lanes), ir.VectorType(ir.IntType(32), lanes)
    both = [builder.bitcast(x, halves) for x in (p, q)]
    return builder.call_named(f"llvm.x86.{PAIRS[lanes]}", sums, both)


def is_short_product(e: Apply) -> bool:
    """Whether factors are i32 that i16 holds; not if one has no sign, as LLVM sees that itself."""
    if e.op != "mul" or e.dtype is not DType.I32:
        return False
    low, high = integer_range(DType.I16)
    found = [limits_of(a) or integer_range(a.dtype) for a in e.args]
    return all(low <= least < 0 and most <= high for least, most in found)


def short_product(
    builder: ir.IRBuilder, kept: ir.Value, cut: ir.Value, features: frozenset[str]
) -> ir.Value | None:
    """The product of two vectors of short numbers, the upper halves of one of them cut off.

    None where no instruction has so many lanes.
    """
    type_ = kept.type
    if not isinstance(type_, ir.VectorType) or type_ != cut.type:
        return None
    lanes = type_.count
    if lanes not in PAIRS or FEATURES[lanes] not in features:
        return None
    low = splat_int(type_, (1 << DType.I16.bits) - 1)
    return pairs(builder, kept, builder.and_(cut, low), lanes)
