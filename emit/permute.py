"""Vectors whose lanes are picked by numbers that the run gives."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.emit import ir
from rutc.emit.load_store import MemoryEmitter

ONE = {
    8: "llvm.x86.avx2.permps",
    16: "llvm.x86.avx512.permvar.sf.512",
    64: "llvm.x86.avx512.permvar.qi.512",
}
TWO = {16: "llvm.x86.avx512.vpermi2var.ps.512", 64: "llvm.x86.avx512.vpermi2var.qi.512"}
"""What picks lanes of one vector, or two, of so many floats or bytes, by the lowest bits of
numbers."""


def permuted(memory: MemoryEmitter, vectors: Sequence[ir.Value], picks: ir.Value) -> ir.Value:
    """Lane i of the result is that of one vector, or two, which number i tells."""
    first, *others = vectors
    arguments = [first, picks, *others]
    return memory.builder.call_named((TWO if others else ONE)[first.lanes], first.type, arguments)
