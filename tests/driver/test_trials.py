"""Kernels timed in a process of their own: times, failures, crashes, and what hangs."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from time import monotonic, sleep

import pytest

from benchmarks import timer
from benchmarks.timer import KernelBench, PreparedKernel, ReferenceKernel, Timer
from rutc.driver.timing import answering_process as served
from rutc.driver.timing import trials
from rutc.driver.timing.trials import Clock, Outcome
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner import choose
from rutc.tuner.database.trial import State
from tests.signals import crash
from tests.tiles import FEATURES
from tests.tuner.subjects import of_text

TEXT = """
graph "product"
dims i = 64, j = 64, k = 64
%a : f32{i,k} = input "a" [i, k]
%b : f32{k,j} = input "b" [k, j]
%c : f32{i,j} = sum{k} %a[i, k] * %b[k, j]
output "c" [i, j] = %c
"""
MACHINE = native_target().machine.alone()


def kernel_of(text: str = TEXT) -> Kernel:
    """A product with its default schedule."""
    subject = of_text(text, frozenset(), Random(0))
    return kernel_after(subject.kernel, choose(subject.kernel, MACHINE, subject.free))


@pytest.fixture
def bench() -> Iterator[KernelBench]:
    """A bench for code of this machine."""
    with KernelBench(MACHINE) as found:
        yield found


def test_times_are_of_near_and_far_operands(bench: KernelBench) -> None:
    outcome = bench.time(kernel_of())
    assert outcome.status == "measured", outcome.error
    assert outcome.near is not None
    assert outcome.far is not None
    for t in (outcome.near, outcome.far):
        assert 0 < t.low <= t.ns <= t.high
        # 64 x 64 x 64 multiply-adds, 32 in a cycle at most.
        assert 64**3 / 64 < t.cycles < 64**3 * 20
        assert 0.1 < t.cycle_ns < 5


def test_times_are_of_kernels_and_not_of_their_calls() -> None:
    """A call from Python, and a question for the time, take a thousand cycles and more."""
    text = """
graph "little"
dims i = 16
%a : f32{i} = input "a" [i]
%b : f32{i} = %a[i] + 1.0
output "b" [i] = %b
"""
    found = [Timer(MACHINE).timed(kernel_of(text)).near for _ in range(3)]
    assert min(t.cycles for t in found if t is not None) < 300


def test_the_clock_counts_no_call() -> None:
    """Many more pairs take as many cycles each."""
    clock = Clock(MACHINE)
    place = clock._result.ctypes.data
    more = partial(clock._run, place, place, 7)
    count = 10 * trials.PAIRS
    pairs = [(clock.cycle_ns(), trials.sample(more, count) / trials.PAIR_CYCLES) for _ in range(9)]
    assert min(own for own, _ in pairs) < 1.05 * min(long for _, long in pairs)


@pytest.mark.parametrize("states", [("near",), ("near", "far")])
def test_kernels_that_take_turns_have_their_operands_in_one_place(
    states: tuple[State, ...],
) -> None:
    """Those that are as large in both."""
    kernel = kernel_of()
    first = PreparedKernel(kernel, MACHINE, states)
    again = PreparedKernel(kernel, MACHINE, states, first)
    assert len(again.memory) == len(first.memory)
    for own, other in zip(again.memory, first.memory, strict=True):
        assert all(x is y for x, y in zip(own, other, strict=True))
    smaller = PreparedKernel(kernel_of(TEXT.replace("i = 64", "i = 61")), MACHINE, states, first)
    own, other = smaller.memory[0], first.memory[0]
    assert [x is y for x, y in zip(own, other, strict=True)] == [False, True, False]


def test_processes_ask_for_registers_for_matrices() -> None:
    """Linux ends a process that uses them unasked."""
    machine = replace(MACHINE, features=MACHINE.features | FEATURES)
    text = (
        TEXT.replace("%b : f32", "%b : i8")
        .replace("%a : f32", "%a : u8")
        .replace("%c : f32", "%c : i32")
        .replace("%a[i, k] * %b[k, j]", "i32(%a[i, k]) * i32(%b[k, j])")
    )
    subject = of_text(text, frozenset({"b"}), Random(0))
    kernel = kernel_after(subject.kernel, choose(subject.kernel, machine, subject.free))
    assert " matrix {" in str(kernel)
    with KernelBench(machine) as bench:
        outcome = bench.time(kernel)
    if native_target().machine.has_matrices(DType.I8):
        assert outcome.status == "measured", outcome.error
    else:
        assert outcome.status == "failed"
        assert "code for registers for matrices (AMX) cannot run in this process" in outcome.error


def test_a_reference_tells_the_clock(bench: KernelBench) -> None:
    """A kernel beside itself takes as many cycles as it is said to."""
    kernel = kernel_of()
    outcome = bench.time(kernel, ReferenceKernel(kernel, 1000.0, 2000.0))
    assert outcome.near is not None
    assert outcome.far is not None
    assert 700 < outcome.near.cycles < 1400
    assert 1400 < outcome.far.cycles < 2800


def test_a_sample_that_waited_does_not_make_others_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a first run waits for its operands, samples have as many runs as where it does not."""
    call_ns, run_ns, waits = 2_000.0, 3_000.0, [40_000.0]

    def waited(run: object, count: int) -> float:
        return (call_ns + count * run_ns + (waits.pop() if waits else 0.0)) / count

    monkeypatch.setattr(timer, "sample", waited)
    late, waits = timer.enough(lambda count: None), []
    assert late == timer.enough(lambda count: None)
    assert late[0] > 10


def test_other_work_that_comes_and_goes_is_not_in_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It slows samples down that lie beside each other, here most of one kernel's."""
    kernel = kernel_of()
    own, known = (PreparedKernel(kernel, MACHINE, ["near"]) for _ in range(2))
    taken = []

    def slowed(run: object, count: int) -> float:
        taken.append(run)
        # Every third pair, and from the middle of one to the middle of the next.
        slow = len(taken) // 2 % 3 == 0 or len(taken) % 6 == 2
        return 60_000.0 * (3.0 if slow else 1.0) * (2.0 if run == own.runs["near"] else 1.0)

    monkeypatch.setattr(timer, "sample", slowed)
    timing = timer._timing(own, (known, 1000.0), "near", Clock(MACHINE))
    assert timing.cycles == pytest.approx(2000)


def test_a_process_that_dies_is_an_outcome(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of()

    def dying(self: Timer, kernel: Kernel, reference: ReferenceKernel | None = None) -> Outcome:
        crash()

    monkeypatch.setattr(Timer, "timed", dying)
    outcome = bench.time(kernel)
    assert (outcome.status, outcome.error) == ("crashed", "SIGSEGV")
    monkeypatch.undo()
    # Another process takes its place.
    assert bench.time(kernel).status == "measured"


def test_what_hangs_is_ended(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "timed", lambda *args: sleep(60))
    start = monotonic()
    outcome = bench.time(kernel_of(), timeout_s=0.7)
    assert outcome.status == "timeout"
    assert "0.7 s" in outcome.error
    assert monotonic() - start < 10


def test_what_does_not_compile_has_a_reason(bench: KernelBench) -> None:
    kernel = kernel_of()
    broken = replace(kernel, args=kernel.args[:1])
    outcome = bench.time(broken)
    assert outcome.status in ("failed", "crashed")
    assert outcome.error
    assert bench.time(kernel).status == "measured"


def test_an_interruption_leaves_no_answer_to_take_for_the_next(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of()

    def interrupted(*args: object) -> bool:
        raise KeyboardInterrupt

    assert bench.time(kernel).status == "measured"
    monkeypatch.setattr(served.Connection, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.time(kernel)
    monkeypatch.undo()
    outcome = bench.time(kernel, ReferenceKernel(kernel, 10.0, 10.0))
    assert outcome.near is not None
    assert outcome.near.cycles < 20


def test_a_closed_bench_has_no_process(bench: KernelBench) -> None:
    assert bench.time(kernel_of()).status == "measured"
    process = bench._process
    bench.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    bench.close()
