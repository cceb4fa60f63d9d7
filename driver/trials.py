"""Scheduled kernels timed in processes of their own: what crashes or hangs there is an outcome.

A process compiles a kernel, fills its operands and takes samples of its time, between samples of a
chain of operations that tells the clock, or of a kernel whose cycles are known. Operands are
*near*, in the caches since the run before, or *far*: each run has the next of several copies, which
the second cache cannot hold.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, sqrt
from statistics import geometric_mean, median
from time import thread_time_ns

import numpy as np

from rutc.base.huge_pages import in_huge_pages
from rutc.base.record import record
from rutc.driver.served import Served, TooLong, Unanswered
from rutc.emit.jit import Code, KernelCode
from rutc.errors import RutcError
from rutc.tensor_ir.affine import typical
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.ranges import common_sizes
from rutc.tuner.trial import ALONE, State, Status

SAMPLE_NS = 50_000
"""A sample has as many runs as take so long, or one."""
SPENT_NS = 8_000_000
"""Samples of near operands are taken for so long, and of far ones likewise."""
FEWEST_SAMPLES = 5
WIDTH = 0.98
"""Half the width of the 95 % confidence interval of a median, in ranks per root of samples."""
TIMEOUT_S = 20.0
"""A trial that takes longer hangs."""
LONGEST_S = 2.0
"""Of a kernel whose first run takes longer, only that is timed."""
MOST_BYTES = 1 << 28
"""Copies of operands take no more."""
MOST_COPIES = 64
LINE_BYTES = 64
PAIRS, PAIR_CYCLES = 100_000, 4
"""Multiplications and exclusive-ors, each waiting for the one before: they tell the clock.

So many that the call and the question for the time, some 2,000 cycles, do not count.
"""
CHAIN = """
define void @rutc_kernel(ptr %p, ptr %q, i64 %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %x = phi i64 [ %n, %entry ], [ %z, %loop ]
  %y = mul i64 %x, %a
  %z = xor i64 %y, %a
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  store i64 %z, ptr %p
  ret void
}
"""
"""What tells the clock: a chain of pairs that no compiler makes shorter."""


@record
class Timing:
    """The median nanoseconds of a run, the ends of its 95 % confidence interval, and the clock."""

    ns: float
    low: float
    high: float
    cycle_ns: float
    """How long a cycle took meanwhile, by the clock or by a reference."""

    @property
    def cycles(self) -> float:
        """The median, in cycles of the clock."""
        return self.ns / self.cycle_ns


@record
class Outcome:
    """What became of a trial: its times with near and far operands, or an error.

    The status is `measured`, `failed` (it does not compile), `crashed` or `timeout`.
    """

    status: Status
    near: Timing | None = None
    far: Timing | None = None
    model: Timing | None = None
    """In a run of the model that the kernel belongs to."""
    error: str = ""

    @property
    def times(self) -> Mapping[State, Timing]:
        """The states in which it was measured, with its times."""
        found: dict[State, Timing | None]
        found = {"near": self.near, "far": self.far, "model": self.model}
        return {state: timing for state, timing in found.items() if timing is not None}

    @property
    def cycles(self) -> float | None:
        """The geometric mean of its states; None if it was not measured."""
        own = [timing.cycles for timing in self.times.values()]
        return geometric_mean(own) if own else None

    @property
    def most_cycles(self) -> float | None:
        """The same of the upper ends of the intervals: what it takes at most, almost surely."""
        own = [timing.high / timing.cycle_ns for timing in self.times.values()]
        return geometric_mean(own) if own else None


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


class Clock:
    """A chain of operations whose cycles are known."""

    def __init__(self, machine: Machine) -> None:
        """Compile it."""
        words = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._code = Code(CHAIN, "rutc_kernel", machine)
        self._run = ctypes.CFUNCTYPE(None, *words)(self._code.address)
        self._result = np.zeros(8, np.int64)

    def cycle_ns(self) -> float:
        """Returns how long a cycle takes now."""
        place = self._result.ctypes.data
        least = min(sample(partial(self._run, place, place, 7), PAIRS) for _ in range(3))
        return least / PAIR_CYCLES


def sample(run: Callable[[int], object], count: int) -> float:
    """Returns the thread's nanoseconds of each of so many runs, which one call does."""
    start = thread_time_ns()
    run(count)
    return (thread_time_ns() - start) / count


def enough(run: Callable[[int], object]) -> tuple[int, float]:
    """Returns how many runs make a sample of about `SAMPLE_NS`, and what one takes by then."""
    count = 1
    # Few runs are counted together with their call.
    while (ns := sample(run, count)) * count < SAMPLE_NS / 2:
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
    where the processor has other work, too, that the clock does not feel.
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
    cycle_ns = min(clocks) if reference is None else median(others) / reference[1]
    low, high = interval(samples)
    return Timing(median(samples), low, high, cycle_ns)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the 95 % confidence interval of the median of some samples."""
    samples = sorted(samples)
    middle, half = len(samples) / 2, WIDTH * sqrt(len(samples))
    return samples[max(0, int(middle - half))], samples[min(len(samples) - 1, ceil(middle + half))]


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


def unanswered(why: Unanswered) -> Outcome:
    """Returns what became of a trial that a process did not answer for."""
    return Outcome("timeout" if isinstance(why, TooLong) else "crashed", error=str(why))


def _outcome(timer: Timer, question: tuple[Kernel, ReferenceKernel | None]) -> Outcome:
    """What becomes of a scheduled kernel beside a reference."""
    try:
        return timer.timed(*question)
    except (RutcError, MemoryError) as error:
        return Outcome("failed", error=str(error).splitlines()[0])
