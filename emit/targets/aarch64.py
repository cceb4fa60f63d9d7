"""64-bit Arm machines: NEON (Advanced SIMD), which every one of them has."""

from __future__ import annotations

from rutc.tensor_ir.machine import Machine

TRIPLE = "aarch64-unknown-linux-gnu"

FEATURES = frozenset(["neon"])


def neon(l1: int = 64 << 10, l2: int = 1 << 20) -> Machine:
    """A machine with NEON: 32 registers of 128 bits."""
    return Machine(
        "aarch64",
        TRIPLE,
        FEATURES,
        128,
        32,
        l1=l1,
        l1_way_bytes=16 << 10,
        l2=l2,
        l2_bytes_per_cycle=16.0,
    )
