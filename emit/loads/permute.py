"""Vectors whose lanes are picked by numbers that the run gives."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import splat
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.emit.loads.storage import I8
from rutc.tensor_ir.machine import SHUFFLED_BYTES

ONE = {
    8: "llvm.x86.avx2.permps",
    16: "llvm.x86.avx512.permvar.sf.512",
    64: "llvm.x86.avx512.permvar.qi.512",
}
TWO = {16: "llvm.x86.avx512.vpermi2var.ps.512", 64: "llvm.x86.avx512.vpermi2var.qi.512"}
"""What picks lanes of one vector, or two, of so many floats or bytes, by the lowest bits of
numbers."""

BYTES = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
"""What picks one of 16 bytes in each part of a vector by the lowest bits of numbers from 0 to 127,
and gives 0 for negative ones."""
HALF = 128 // SHUFFLED_BYTES
"""Parts of 16 bytes whose numbers are no negative bytes."""


def permuted(memory: MemoryEmitter, vectors: Sequence[ir.Value], picks: ir.Value) -> ir.Value:
    """Lane i of the result is that of one vector, or two, which number i tells."""
    first, *others = vectors
    arguments = [first, picks, *others]
    return memory.builder.call_named((TWO if others else ONE)[first.lanes], first.type, arguments)


def shuffled_bytes(memory: MemoryEmitter, steps: Sequence[ir.Value], picks: ir.Value) -> ir.Value:
    """Lane i of the result is the byte that number i tells, of up to 256 that lie 16 by 16.

    Each of `steps` has 16 bytes, over and over, as the xor with the 16 before; the first, and the
    one of number 128, as they are. A number is looked up in all of them, less 16 each time until it
    is negative: the steps up to its own make its byte.

    x = 37   ->   steps[0][37 % 16] ^ steps[1][21 % 16] ^ steps[2][5]
    """
    b = memory.builder
    sixteen = splat(b, ir.Constant(I8, SHUFFLED_BYTES), picks.lanes)
    found: ir.Value | None = None
    for first in range(0, len(steps), HALF):
        half = splat(b, ir.Constant(I8, -128), picks.lanes)
        left = b.xor(picks, half) if first else picks
        for i, step in enumerate(steps[first : first + HALF]):
            left = b.intrinsic("ssub.sat", left, sixteen) if i else left
            byte = b.call_named(BYTES[picks.lanes], picks.type, [step, left])
            found = byte if found is None else b.xor(found, byte)
    assert found is not None
    return found
