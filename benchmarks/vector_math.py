"""Times the elementary functions on arrays that stay in the first-level cache.

    python benchmarks/vector_math.py [--target NAME]

Prints, per function and width, ns per element and cycles per vector, loads and stores included,
the best of several runs. The clock rate is measured with a chain of rotations and additions,
which take one cycle each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.in_process import Elementwise
from rutc.emit.llvm import ir
from rutc.emit.targets.select import TARGETS, target_named
from rutc.emit.vector_math import BINARY_OPS, UNARY_OPS, emit_binary, emit_unary
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine

ELEMENTS = 2048
RUNS = 15
CHAIN = 1000


def best_seconds(call: Callable[[int], object]) -> float:
    """Seconds of one repetition, the best of the runs; the call's own cost is subtracted."""
    repeats = 1
    while _seconds(call, repeats) < 2e-3:
        repeats *= 2
    overhead = min(_seconds(call, 1) for _ in range(RUNS))
    longest = min(_seconds(call, repeats + 1) for _ in range(RUNS))
    return (longest - overhead) / repeats


def _seconds(call: Callable[[int], object], repeats: int) -> float:
    start = time.perf_counter()
    call(repeats)
    return time.perf_counter() - start


def clock_ghz(machine: Machine) -> float:
    """Cycles per nanosecond of the core this runs on."""

    def chain(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        i64 = ir.IntType(64)
        rotate = builder.module.declared("llvm.fshl.i64", i64, [i64] * 3)
        x = args[0]
        for step in range(CHAIN):
            x = builder.call(rotate, [x, x, ir.Constant(i64, 13)])
            x = builder.add(x, ir.Constant(i64, step + 1))
        return x

    compiled = Elementwise(chain, [DType.I64], DType.I64, None, machine)
    x = np.arange(1, dtype=np.int64)
    return 2 * CHAIN / (best_seconds(lambda repeats: compiled(x, repeats=repeats)) * 1e9)


def time_function(op: str, dtype: DType, lanes: int, machine: Machine) -> float:
    """Seconds per element."""
    rng = np.random.default_rng(0)
    high = 0.99 if op in ("acos", "asin", "atanh") else 4.0
    low = 1.01 if op == "acosh" else 0.01
    arguments = 1 if op in UNARY_OPS else 2
    inputs = [rng.uniform(low, high, ELEMENTS).astype(dtype.numpy) for _ in range(arguments)]

    def body(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        if len(args) == 1:
            return emit_unary(builder, op, args[0], machine.features)
        return emit_binary(builder, op, args[0], args[1], machine.features)

    compiled = Elementwise(body, [dtype] * arguments, dtype, lanes, machine)
    return best_seconds(lambda repeats: compiled(*inputs, repeats=repeats)) / ELEMENTS


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="native")
    machine = target_named(parser.parse_args().target).machine
    ghz = clock_ghz(machine)
    f32_lanes, f64_lanes = machine.vector_bits // 32, machine.vector_bits // 64
    print(f"{machine.name}, {ghz:.2f} GHz, {f32_lanes} lanes of f32, {f64_lanes} of f64")
    print("function   f32 ns/element  cycles/vector   f64 ns/element  cycles/vector")
    for op in (*UNARY_OPS, *BINARY_OPS):
        cells = []
        for dtype, lanes in ((DType.F32, f32_lanes), (DType.F64, f64_lanes)):
            ns = time_function(op, dtype, lanes, machine) * 1e9
            cells.append(f"{ns:14.3f}  {ns * lanes * ghz:13.1f}")
        print(f"{op:9}  {'   '.join(cells)}")


if __name__ == "__main__":
    main()
