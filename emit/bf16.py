"""bf16 by an instruction of the processor's, where it has one."""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.tensor_ir.machine import BF16_VECTORS, Machine

I16 = ir.IntType(16)


def narrowed(memory: MemoryEmitter, value: ir.Value, machine: Machine) -> ir.Value | None:
    """The nearest bf16 of a vector of f32, as bit patterns; None where no instruction does it.

    Subnormal numbers count as zeros.
    """
    lanes, builder = value.lanes, memory.builder
    if lanes > machine.width:
        found = [narrowed(memory, x, machine) for x in builder.parts(value, machine.width)]
        known = [x for x in found if x is not None]
        return builder.joined(known) if len(known) == len(found) else None
    if BF16_VECTORS not in machine.features or 32 * lanes not in (256, 512):
        return None
    result = ir.VectorType(ir.BFloatType(), lanes)
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
    call = builder.call_named(name, result, [value])
    return builder.bitcast(call, ir.VectorType(I16, lanes))
