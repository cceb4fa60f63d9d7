"""Tiles of few rows have several sums of each element, so that arithmetic need not wait."""

from dataclasses import replace

import pytest

from rutc.emit.targets import aarch64
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.indices.ranges import CommonRange
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Apart, apply_schedule
from rutc.tuner import choose
from tests.machines import V3, V4
from tests.tuner.test_schedules import lowered

ROWS = """
graph "rows"
symbols n = 0..4096
dims i = n, j = 512, k = 512
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
MACHINES = pytest.mark.parametrize("machine", [V3, V4, aarch64.neon()], ids=lambda m: m.name)


def waits(kernel: Kernel, rows: int, machine: Machine) -> float:
    """What a kernel waits for the operation before it, at most, where it has so many rows."""
    at = tuple([(s, CommonRange(*limits, rows)) for s, limits in kernel.symbols])
    return estimate(summarise(replace(kernel, symbols=at), machine), machine).parts["latency"]


@MACHINES
def test_a_row_of_any_number_has_several_sums(machine: Machine) -> None:
    kernel, constants = lowered(ROWS)
    schedule = choose(kernel, machine, constants).schedule
    (step,) = (s for s in schedule if isinstance(s, Apart))
    with_it = apply_schedule(kernel, schedule)
    without = apply_schedule(kernel, tuple(s for s in schedule if s != step))
    assert waits(with_it, 1, machine) <= 0.5 * waits(without, 1, machine)
    assert waits(with_it, 4096, machine) == waits(without, 4096, machine)


@MACHINES
def test_tiles_that_are_whole_stay_as_they_are(machine: Machine) -> None:
    kernel, constants = lowered(ROWS.replace("symbols n = 0..4096\n", "").replace("= n", "= 96"))
    schedule = choose(kernel, machine, constants).schedule
    without = tuple(s for s in schedule if not isinstance(s, Apart))
    assert apply_schedule(kernel, schedule) == apply_schedule(kernel, without)


@MACHINES
def test_sums_of_a_part_of_a_vector_are_not_apart(machine: Machine) -> None:
    kernel, constants = lowered(ROWS.replace("j = 512", "j = 518"))
    schedule = choose(kernel, machine, constants).schedule
    assert not any(isinstance(s, Apart) for s in schedule)
