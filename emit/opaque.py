"""Values that LLVM is kept from reasoning about, where it would emit wrong code under AVX-512.

Both are faults of LLVM 22, found by running compiled models between pages that nothing may access.
"""

from __future__ import annotations

from llvmlite import ir

from rutc.emit.index import I32
from rutc.tensor_ir.machine import Machine

LEAST_MASK = 8
"""Lanes of the shortest mask that an inline assembly may have in a register."""


def opaque_count(builder: ir.IRBuilder, count: ir.Value, machine: Machine) -> ir.Value:
    """The number of lanes, from which a mask for truncating stores will be made.

    A single lane of a truncated vector is stored in its full width if it is known that the mask
    has one lane; see `MemoryEmitter.masked_store` for masks that are constant already.
    """
    if "avx512f" not in machine.features:
        return count
    same = ir.FunctionType(I32, [I32])
    return builder.asm(same, "", "=r,0", [count], side_effect=False)


def opaque_mask(builder: ir.IRBuilder, mask: ir.Value, machine: Machine) -> ir.Value:
    """The mask, for choosing lanes of a result whose operands are loaded under the same mask.

    A load under the mask of the operation that it feeds is folded into it; if that operation's
    register is needed again, the two are then parted, and the load is left without its mask.
    """
    if "avx512f" not in machine.features:
        return mask
    lanes = mask.type.count
    if lanes < LEAST_MASK:
        picks = [min(i, lanes) for i in range(LEAST_MASK)]
        mask = _shuffled(builder, mask, picks)
    same = ir.FunctionType(mask.type, [mask.type])
    found = builder.asm(same, "", "=^Yk,0", [mask], side_effect=False)
    return found if lanes >= LEAST_MASK else _shuffled(builder, found, list(range(lanes)))


def _shuffled(builder: ir.IRBuilder, mask: ir.Value, picks: list[int]) -> ir.Value:
    undefined = ir.Constant(mask.type, ir.Undefined)
    chosen = ir.Constant(ir.VectorType(I32, len(picks)), picks)
    return builder.shuffle_vector(mask, undefined, chosen)
