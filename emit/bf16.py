"""bf16 by an instruction of the processor's, where it has one."""

from __future__ import annotations

from llvmlite import ir

from rutc.emit.access import MemoryEmitter
from rutc.tensor_ir.machine import Machine

FEATURE = "avx512bf16"
I16 = ir.IntType(16)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's type, of which llvmlite knows nothing."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def narrowed(memory: MemoryEmitter, value: ir.Value, machine: Machine) -> ir.Value | None:
    """The nearest bf16 of a vector of f32, as bit patterns; None where no instruction does it.

    Subnormal numbers count as zeros.
    """
    lanes = value.type.count
    if FEATURE not in machine.features or 32 * lanes not in (256, 512):
        return None
    result = ir.VectorType(BFloat(), lanes)
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
    call = memory.builder.call(memory.intrinsic(name, result, [value.type]), [value])
    return memory.builder.bitcast(call, ir.VectorType(I16, lanes))
