"""Scheduled kernels timed by themselves, also in processes of their own.

A process compiles a kernel, fills its operands and takes samples of its time, between samples of a
chain of operations that tells the clock, or of a kernel whose cycles are known. Operands are
*near*, in the caches since the run before, or *far*: each run has the next of several copies, which
the second cache cannot hold. What crashes or hangs in a process of its own is an outcome.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from statistics import median

import numpy as np

from benchmarks.in_process import KernelCode, in_huge_pages
from rutc.base.record import record
from rutc.driver.timing.answering_process import Served, Unanswered
from rutc.driver.timing.trials import Clock, Outcome, Timing, interval, sample, unanswered
from rutc.errors import RutcError
from rutc.tensor_ir.indices.affine import typical
from rutc.tensor_ir.indices.ranges import common_sizes
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.database.trial import ALONE, State

SAMPLE_NS = 50_000
"""A sample has as many runs as take so long, or one."""
SPENT_NS = 8_000_000
"""Samples of near operands are taken for so long, and of far ones likewise."""
FEWEST_SAMPLES = 5
TIMEOUT_S = 20.0
"""A trial that takes longer hangs."""
LONGEST_S = 2.0
"""Of a kernel whose first run takes longer, only that is timed."""
MOST_BYTES = 1 << 28
"""Copies of operands take no more."""
MOST_COPIES = 64
LINE_BYTES = 64


def arguments_of(kernel: Kernel, sets: int = 1) -> list[list[np.ndarray]]:
    """Returns memory for so many sets of a kernel's arguments at common sizes, of small numbers.

    There is room for one line before and behind each, from `first_line` on. All lie in one block,
    in huge pages like the arena of a session: how pages share the sets of a cache is no chance.
    """
    symbols = dict(kernel.symbols)
    types = [np.dtype(np.uint8) if b.layout.nibbles else b.dtype.numpy for b in kernel.args]
    sizes = [-(-typical(b.bytes, symbols) // LINE_BYTES) * LINE_BYTES for b in kernel.args]
    block, place, found = in_huge_pages(sets * sum(n + 4 * LINE_BYTES for n in sizes)), 0, []
    for seed in range(sets):
        rng, own = np.random.default_rng(seed), []
        for dtype, size in zip(types, sizes, strict=True):
            end = place + size + 4 * LINE_BYTES
            own.append(block[place:end].view(dtype))
            _fill(rng, own[-1])
            place = end
        found.append(own)
    return found


def _fill(rng: np.random.Generator, memory: np.ndarray) -> None:
    if memory.dtype.kind in "iu":
        memory[:] = rng.integers(0, 3, memory.size)
    elif memory.dtype.kind != "b":
        memory[:] = rng.standard_normal(memory.size, np.float32).astype(memory.dtype)


def first_line(memory: np.ndarray) -> int:
    """Returns the first address of a line in memory."""
    return -(-memory.ctypes.data // LINE_BYTES) * LINE_BYTES


def enough(run: Callable[[int], object]) -> tuple[int, float]:
    """Returns how many runs make a sample of about `SAMPLE_NS`, and what one takes by then.

    The least of three samples tells: one may have waited for its operands, or for other work, and
    too few runs in a sample would be counted together with their call.
    """
    ns = sample(run, 1)
    if ns > LONGEST_S * 1e9:
        return 1, ns
    count = 1
    while (ns := min(sample(run, count) for _ in range(3))) * count < SAMPLE_NS / 2:
        count *= 2
    return max(1, int(SAMPLE_NS / ns)), ns


class PreparedKernel:
    """A scheduled kernel as code of this process, with operands."""

    def __init__(
        self,
        kernel: Kernel,
        machine: Machine,
        states: Sequence[State],
        beside: PreparedKernel | None = None,
    ) -> None:
        """Compile it, fill the operands and run it once on each copy that the states need.

        The operands of a kernel that runs `beside` it are its own, too, if they are as large: where
        memory lies, and in pages of which size, may make more of a difference than a schedule.
        """
        self._code = KernelCode(kernel, machine)
        symbols = common_sizes(dict(kernel.symbols))
        size = sum(typical(b.bytes, dict(kernel.symbols)) for b in kernel.args)
        copies = 1
        if "far" in states and 2 * size <= MOST_BYTES:
            copies = min(MOST_COPIES, max(2, ceil(2 * machine.l2 / max(size, 1)) + 1))
        self.memory = arguments_of(kernel, copies)
        for own, other in zip(self.memory, beside.memory if beside else (), strict=False):
            for number, (x, y) in enumerate(zip(own, other, strict=False)):
                if (x.dtype, x.size) == (y.dtype, y.size):
                    own[number] = y
        sets = [[first_line(m) for m in own] for own in self.memory]
        self.runs: dict[State, Callable[[int], None]] = {
            "near": self._code.repeated(sets[:1], symbols),
            "far": self._code.repeated(sets, symbols),
        }
        """What runs it so many times."""
        self.runs["far"](len(sets))


def _timing(
    kernel: PreparedKernel,
    reference: tuple[PreparedKernel, float] | None,
    state: State,
    clock: Clock,
) -> Timing:
    """Times of runs, each time of one of them or of several together.

    A reference is a kernel whose cycles are known: it takes turns, and tells how long a cycle takes
    where the processor has other work, too, that the clock does not feel. Each sample is compared
    with the one beside it, as other work comes and goes; what ratios tell is given at the median
    length of a cycle.
    """
    run = kernel.runs[state]
    each, once = enough(run)
    if once > LONGEST_S * 1e9:
        return Timing(once, once, once, clock.cycle_ns())
    beside = 0 if reference is None else enough(reference[0].runs[state])[0]
    clocks, samples, others, spent = [clock.cycle_ns()], list[float](), list[float](), 0.0
    while spent < SPENT_NS or len(samples) < FEWEST_SAMPLES:
        samples.append(sample(run, each))
        if reference is not None:
            others.append(sample(reference[0].runs[state], beside))
        spent += samples[-1] * each
    clocks.append(clock.cycle_ns())
    cycle_ns = min(clocks)
    if reference is not None:
        usual = median(others)
        cycle_ns = usual / reference[1]
        samples = [usual * own / other for own, other in zip(samples, others, strict=True)]
    low, high = interval(samples)
    return Timing(median(samples), low, high, cycle_ns)


@record
class ReferenceKernel:
    """A scheduled kernel that takes turns with others, and its cycles in either state."""

    kernel: Kernel
    near: float
    far: float


class Timer:
    """What times kernels in this process, on one thread."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine."""
        self._machine = machine
        self._clock = Clock(machine)
        self._known: tuple[bytes, PreparedKernel] | None = None

    def timed(
        self,
        kernel: Kernel,
        reference: ReferenceKernel | None = None,
        states: Sequence[State] = ALONE,
    ) -> Outcome:
        """Returns the times of a scheduled kernel in some states, beside those of a reference.

        Raises:
            RutcError: it does not compile.
        """
        beside = None if reference is None else self._prepared(reference.kernel, states)
        own = PreparedKernel(kernel, self._machine, states, beside)
        cycles = {} if reference is None else {"near": reference.near, "far": reference.far}
        found = {
            state: _timing(
                own, None if beside is None else (beside, cycles[state]), state, self._clock
            )
            for state in states
        }
        return Outcome("measured", found.get("near"), found.get("far"))

    def _prepared(self, kernel: Kernel, states: Sequence[State]) -> PreparedKernel:
        """A reference: mostly that of the time before."""
        text = pickle.dumps((kernel, states))
        if self._known is None or self._known[0] != text:
            self._known = text, PreparedKernel(kernel, self._machine, states)
        return self._known[1]


class KernelBench(Served):
    """A process that times kernels on one processor core, and is replaced when it ends."""

    def __init__(self, machine: Machine, cpu: int | None = None) -> None:
        """A bench for code of a machine; the process begins with the first kernel."""
        super().__init__(lambda: partial(_outcome, Timer(machine)), cpu)

    def time(
        self, kernel: Kernel, reference: ReferenceKernel | None = None, timeout_s: float = TIMEOUT_S
    ) -> Outcome:
        """Returns what becomes of a scheduled kernel, timed beside a reference."""
        try:
            outcome = self.ask((kernel, reference), timeout_s)
        except Unanswered as why:
            return unanswered(why)
        assert isinstance(outcome, Outcome)
        return outcome


def _outcome(timer: Timer, question: tuple[Kernel, ReferenceKernel | None]) -> Outcome:
    """What becomes of a scheduled kernel beside a reference."""
    try:
        return timer.timed(*question)
    except (RutcError, MemoryError) as error:
        return Outcome("failed", error=str(error).splitlines()[0])
