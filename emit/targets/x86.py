"""x86-64 machines: AVX2 with FMA (`x86-64-v3`) and AVX-512 (`x86-64-v4`)."""

from __future__ import annotations

from dataclasses import replace

from rutc.tensor_ir.machine import Machine

TRIPLE = "x86_64-unknown-linux-gnu"

V3_FEATURES = frozenset(
    [
        "cx16",
        "popcnt",
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "avx",
        "avx2",
        "bmi",
        "bmi2",
        "f16c",
        "fma",
        "lzcnt",
        "movbe",
    ]
)
V4_FEATURES = V3_FEATURES | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
OPTIONAL_FEATURES = frozenset(
    ["avxvnni", "avx512vbmi", "avx512vnni", "amx-tile", "amx-int8", "amx-bf16", "avx512bf16"]
)
"""Features that kernels use where the machine at hand has them; no named target asks for them."""


def avx2(l1: int = 32 << 10, l2: int = 512 << 10) -> Machine:
    """A machine with AVX2 and FMA: 16 registers of 256 bits."""
    return Machine("x86-64-v3", TRIPLE, V3_FEATURES, 256, 16, l1=l1, l2=l2)


def avx512(l1: int = 32 << 10, l2: int = 1 << 20) -> Machine:
    """A machine with AVX-512 F, BW, CD, DQ and VL: 32 registers of 512 bits."""
    return Machine("x86-64-v4", TRIPLE, V4_FEATURES, 512, 32, l1=l1, l2=l2)


def with_costs(machine: Machine, processor: str) -> Machine:
    """The machine with what no loop measures yet, by a processor's name to LLVM.

    Costs may depend on it, but never what is legal: names can be wrong.
    """
    if processor == "znver4" and machine.vector_bits == 512:
        # Operations of 512 bits take their units for two cycles.
        return replace(machine, load_cycles=0.0, sort_cycles=6.0, store_cycles=4.0)
    return machine
