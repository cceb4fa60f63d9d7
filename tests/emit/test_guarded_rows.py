"""Rows that may lie outside of what is read: their place is chosen before the loop along them."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
    graph "rows"
    dims i = 6, p = 6, k = 3, c = {length}, o = 16
    %x : {type}{{i,c}} = input "x" [i, c]
    %w : {type}{{k,c,o}} = input "w" [k, c, o]
    %y : {type}{{p,o}} = sum{{k,c}} %x[i=p+3*k-3, c else {fill}] * %w[k, c, o]
    output "y" [p, o] = %y
"""
TILES = "split(p, 3); reorder([p.o, p.i, o]); tile([p.i, o], [unroll, vector]); "
ALONG = TILES + "reorder([k, c]); split(c, 2); mark(c.i, unroll)"
ACROSS = TILES + "reorder([c, k])"


def rows(length: int, steps: str, fill: str = "0.0", dtype: str = "f32") -> Kernel:
    source = SOURCE.format(length=length, fill=fill, type=dtype)
    return apply_schedule(kernel_of(source), parse_schedule(steps))


def choices(kernel: Kernel, machine: Machine) -> set[str]:
    """The types of what is chosen by tests."""
    return set(re.findall(r"select i1 \S+, (\S+) ", emit_kernel(kernel, machine).text))


@on_machines
@pytest.mark.parametrize(("fill", "dtype"), [("0.0", "f32"), ("1.5", "f32"), ("-2", "i32")])
def test_the_place_of_a_row_is_chosen_once(machine: Machine, fill: str, dtype: str) -> None:
    kernel = rows(8, ALONG, fill, dtype)
    assert choices(kernel, machine) == {"ptr"}
    rng = np.random.default_rng(1)
    numpy = kernel.args[0].dtype.numpy
    sizes = {"x": 6 * 8, "w": 3 * 8 * 16, "y": 6 * 16}
    given = {name: rng.integers(-3, 4, size).astype(numpy) for name, size in sizes.items()}
    run_as_interpreted(kernel, machine, given)


@on_machines
def test_fills_take_a_line_of_each_set_at_most(machine: Machine) -> None:
    most = machine.l1_way_bytes // 4
    assert choices(rows(most, ALONG), machine) == {"ptr"}
    assert "ptr" not in choices(rows(most + 2, ALONG), machine)


@on_machines
def test_rows_that_the_innermost_loop_tests_have_no_place(machine: Machine) -> None:
    assert "ptr" not in choices(rows(8, ACROSS), machine)
