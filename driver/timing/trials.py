"""What became of schedules that were tried: their times, and a clock in whose cycles these are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, sqrt
from statistics import geometric_mean
from time import thread_time_ns

import numpy as np

from rutc.base.record import record
from rutc.driver.timing.answering_process import TooLong, Unanswered
from rutc.emit.llvm.jit import Code
from rutc.tensor_ir.machine import Machine
from rutc.tuner.database.trial import State, Status

WIDTH = 0.98
"""Half the width of the 95 % confidence interval of a median, in ranks per root of samples."""
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


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the 95 % confidence interval of the median of some samples."""
    samples = sorted(samples)
    middle, half = len(samples) / 2, WIDTH * sqrt(len(samples))
    return samples[max(0, int(middle - half))], samples[min(len(samples) - 1, ceil(middle + half))]


def unanswered(why: Unanswered) -> Outcome:
    """Returns what became of a trial that a process did not answer for."""
    return Outcome("timeout" if isinstance(why, TooLong) else "crashed", error=str(why))
