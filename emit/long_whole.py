"""Whole parts of f32 as integers of 64 bits, where no instruction makes vectors of them."""

from __future__ import annotations

from rutc.emit.cast import emit_cast, splat_real
from rutc.emit.llvm import ir
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine

BEYOND = 2.0**31
"""The least size of what 32 bits do not hold."""


def long_whole(builder: ir.IRBuilder, value: ir.Value, machine: Machine) -> ir.Value | None:
    """Returns a vector of f32 as i64, as `emit_cast` does; None where instructions do that.

    all(abs(x) < 2**31)  ->  the whole parts in 32 bits, widened; else lane by lane
    """
    if machine.architecture != "x86_64" or "avx512dq" in machine.features:
        return None
    lanes = value.lanes
    limit = splat_real(value.type, BEYOND)
    outside = builder.fcmp_unordered(">=", builder.intrinsic("fabs", value), limit)
    bit = ir.IntType(1)
    some = builder.call_named(f"llvm.vector.reduce.or.v{lanes}i1", bit, [outside])
    short = builder.fptosi(value, ir.VectorType(ir.IntType(32), lanes))
    found = builder.sext(short, ir.VectorType(ir.IntType(64), lanes))
    before = builder.block
    slow, done = (builder.append_basic_block(f"long.{name}") for name in ("slow", "done"))
    builder.cbranch(some, slow, done)
    builder.position_at_end(slow)
    one_by_one = emit_cast(builder, value, DType.F32, DType.I64)
    after = builder.block
    builder.branch(done)
    builder.position_at_end(done)
    return builder.merged((found, before), (one_by_one, after))
