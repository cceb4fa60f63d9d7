"""Values that LLVM is kept from reasoning about.

Counts and masks, since it would emit wrong code under AVX-512: both are faults of LLVM 22, found by
running compiled models between pages that nothing may access. Indices, for speed: see
`IndexEmitter`; and sums of pairs of products, which it would add up in another order.
"""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.tensor_ir.machine import Machine

LEAST_MASK = 8
"""Lanes of the shortest mask that an inline assembly may have in a register."""
ANY_REGISTER = "r"
MASK_REGISTER = "^Yk"


def vector_register(machine: Machine) -> str:
    """Any vector register of the machine."""
    return "v" if "avx512f" in machine.features else "x"


def opaque(
    builder: ir.IRBuilder,
    value: ir.Value,
    register: str = ANY_REGISTER,
    *,
    in_order: bool = False,
) -> ir.Value:
    """The value, of which nothing is known; `in_order` with loads around it."""
    return builder.asm(value.type, "", f"={register},0", [value], in_order=in_order)


def opaque_zero(builder: ir.IRBuilder) -> ir.Value:
    """A distance of 0, of which nothing is known: what is read so far away is read anew."""
    zero = ir.Constant(ir.IntType(64), 0)
    return builder.asm(zero.type, "", f"={ANY_REGISTER},0", [zero], anew=True)


def opaque_count(builder: ir.IRBuilder, count: ir.Value, machine: Machine) -> ir.Value:
    """The number of lanes, from which a mask for truncating stores will be made.

    A single lane of a truncated vector is stored in its full width if it is known that the mask
    has one lane; see `MemoryEmitter.masked_store` for masks that are constant already.
    """
    if "avx512f" not in machine.features:
        return count
    return opaque(builder, count)


def opaque_mask(builder: ir.IRBuilder, mask: ir.Value, machine: Machine) -> ir.Value:
    """The mask, for choosing lanes of a result whose operands are loaded under the same mask.

    A load under the mask of the operation that it feeds is folded into it; if that operation's
    register is needed again, the two are then parted, and the load is left without its mask.
    """
    if "avx512f" not in machine.features:
        return mask
    lanes = mask.lanes
    if lanes < LEAST_MASK:
        picks = [min(i, lanes) for i in range(LEAST_MASK)]
        mask = builder.shuffled(mask, picks)
    found = opaque(builder, mask, MASK_REGISTER)
    return found if lanes >= LEAST_MASK else builder.shuffled(found, range(lanes))
