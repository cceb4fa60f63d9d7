"""Whole parts of f32 as i64: those that 32 bits hold together, others lane by lane."""

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import V3, on_machines
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
    graph "whole"
    dims a = 3, b = 37
    %x : f32{{a,b}} = input "x" [a, b]
    %y : i64{{a,b}} = {value}
    output "y" [a, b] = %y
"""
EDGES = [2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 1e30, -1e30, np.inf, -np.inf, np.nan]


@on_machines
@pytest.mark.parametrize("value", ["i64(%x[a, b])", "i64(min(max(%x[a, b], -7.0), 1000.0))"])
@pytest.mark.parametrize("edge", [0.0, *EDGES])
@pytest.mark.parametrize("lanes", [4, 32])
def test_whole_parts(machine: Machine, value: str, edge: float, lanes: int) -> None:
    steps = f"split(b, {lanes}); peel(b.o); mark(b.i, vector)"
    kernel = apply_schedule(kernel_of(SOURCE.format(value=value)), parse_schedule(steps))
    x = (np.random.default_rng(1).standard_normal(3 * 37) * 1e4).astype(np.float32)
    x[[0, 7, 50, 110]] = edge
    x[60:62] = np.nextafter(np.float32([2.0**31, -(2.0**31)]), np.float32(0))
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros(3 * 37, np.int64)})


def test_bounded_whole_parts_are_those_of_32_bits() -> None:
    text = SOURCE.format(value="i64(min(max(%x[a, b], -7.0), 1000.0))")
    steps = "split(b, 32); peel(b.o); mark(b.i, vector)"
    bounded = emit_kernel(apply_schedule(kernel_of(text), parse_schedule(steps)), V3).text
    assert "x i64> @" not in bounded
    assert "long.slow" not in bounded
    text = SOURCE.format(value="i64(%x[a, b])")
    either = emit_kernel(apply_schedule(kernel_of(text), parse_schedule(steps)), V3).text
    assert "long.slow" in either
