"""What is found once while a kernel is counted, or kept of kernels counted before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.driver.parts.compile_job import with_schedule
from rutc.tensor_ir.cost import footprint, summarise
from rutc.tensor_ir.cost.addresses import Around, Places, Touch
from rutc.tensor_ir.cost.footprint import Footprints, Passing, Print
from rutc.tensor_ir.cost.frames import Frames
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.step import apply_schedule
from rutc.tuner import choose
from tests.examples import examples
from tests.kernels import LONG, Case, cases
from tests.machines import V3, V4
from tests.tensor_ir.test_cost import after
from tests.tuner.test_schedules import lowered

TAPS = " + ".join(f"%x[a={a}, b={b}, i, j]" for a in range(6) for b in range(6))
SUMS = f"""
graph "sums of taps"
dims a = 6, b = 6, i = 64, j = 48
%x : f32{{a,b,i,j}} = input "x" [a, b, i, j]
%y : f32{{i,j}} = {TAPS}
output "y" [i, j] = %y
"""


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be remembered of frames, nor of accesses that move alike."""

    def passing(self: Footprints, number: int, caches: tuple[int, ...]) -> Passing:
        return self.found_passing(number, caches)

    def around(self: Places, frames: Frames) -> Around:
        return Around(frames)

    monkeypatch.setattr(Footprints, "passing", passing)
    monkeypatch.setattr(Places, "around", around)


@pytest.mark.parametrize("machine", [V3, V4], ids=str)
@examples(100)
@given(case=cases(lengths=LONG, points=100_000), data=st.data())
def test_what_is_found_once_is_what_each_access_has(
    machine: Machine, case: Case, data: st.DataObject
) -> None:
    kernel = case.kernel()
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = frozenset(data.draw(st.sets(st.sampled_from(reads))) if reads else ())
    scheduled = with_schedule(kernel, choose(kernel, machine, free)).kernel
    found = [summarise.__wrapped__(k, machine) for k in (kernel, scheduled)]
    with pytest.MonkeyPatch.context() as patch:
        forgetful(patch)
        assert [summarise.__wrapped__(k, machine) for k in (kernel, scheduled)] == found


def test_accesses_that_loops_move_alike_have_one_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(t: Touch, at: int, machine: Machine) -> Print:
        asked.append(t.buffer)
        return print_of(t, at, machine)

    print_of = footprint.footprint
    monkeypatch.setattr(footprint, "footprint", counted)
    summary = summarise.__wrapped__(after(SUMS), V4)
    assert summary.arguments["x"] == 6 * 6 * 64 * 48 * 4
    # Inside of no loop, of one, and of both; what is stored moves as what is read.
    assert len(asked) == 3


def test_a_schedule_that_is_chosen_is_neither_applied_nor_counted_again() -> None:
    kernel, constants = lowered(SUMS)
    choice = choose(kernel, V4, constants)
    assert choice.schedule
    made = apply_schedule(kernel, choice.schedule)
    again = apply_schedule(replace(kernel), choice.schedule)
    assert again is made
    assert summarise(replace(made), V4) is summarise(made, V4)
    assert summarise(made, V3) is not summarise(made, V4)
