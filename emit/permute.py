"""Vectors whose lanes are picked by numbers that the run gives."""

from __future__ import annotations

from rutc.emit import ir
from rutc.emit.load_store import MemoryEmitter

FUNCTIONS = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}
"""What picks lanes of so many floats, each by the lowest bits of a number."""


def permuted(memory: MemoryEmitter, vector: ir.Value, picks: ir.Value) -> ir.Value:
    """Lane i of the result is the lane of a vector of floats that number i of `picks` tells."""
    types = [vector.type, picks.type]
    function = memory.intrinsic(FUNCTIONS[vector.lanes], vector.type, types)
    return memory.builder.call(function, [vector, picks])
