"""Tables of f32 that lie in a register, of which every lane picks an element in one instruction."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.emit.llvm import ir
from rutc.emit.vector_math import avx512
from rutc.emit.vector_math.lanes import Lanes, Real, Whole, fills_registers, per_register
from rutc.errors import InternalError

BITS = 32
AVX2_BITS = 256


def size(lanes: Lanes) -> int:
    """How many elements a table for these lanes has: 16, 8, or 0 where there are none."""
    if avx512.has_tables(lanes):
        return avx512.REGISTER_BITS // BITS
    has_table = lanes.format.bits == BITS and "avx2" in lanes.features
    return AVX2_BITS // BITS if has_table and fills_registers(lanes, AVX2_BITS) else 0


def looked_up(table: Sequence[float], index: Whole) -> Real:
    """The element of `table` that the lowest bits of `index` tell, of three or four."""
    if index.lanes.format.bits != BITS or len(table) != size(index.lanes):
        raise InternalError(f"a table of {len(table)} elements in a register")
    wide = len(table) * BITS == avx512.REGISTER_BITS

    def emit(parts: list[Real]) -> Real:
        lanes = parts[0].lanes
        elements = ir.Constant(lanes.real_type, [lanes.format.split(x) for x in table])
        picked = [elements, parts[0].bits().value]
        name = "llvm.x86.avx512.permvar.sf.512" if wide else "llvm.x86.avx2.permps"
        return Real(lanes, lanes.builder.call_named(name, lanes.real_type, picked))

    return per_register([index.as_real()], emit, len(table) * BITS)
