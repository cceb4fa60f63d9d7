"""Libraries that take turns with one of them, on one thread and on several, in other processes.

What is faster on one thread need not be on several: there are fewer parts to share, or one of them
is longer. So what is to be taken has to be faster on all CPUs, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Self

import numpy as np

from rutc.base.record import record
from rutc.driver.timing.answering_process import Served
from rutc.driver.timing.certainty import Question
from rutc.driver.timing.launch_times import (
    LEAST_US,
    Profiled,
    TimedLibrary,
    run_in_turns,
    values_to_time,
)
from rutc.driver.timing.model_bench import SECONDS
from rutc.driver.timing.trials import interval

TIMEOUT_S = 60.0
"""A library that takes longer for a round hangs."""
Times = np.ndarray | int
"""Microseconds {run}; 0 where nothing runs."""


@record
class Ratio:
    """What a change takes by what was there before: the median, and the ends of its interval."""

    median: float
    low: float
    high: float
    us: float
    """What the launches took before, of a run."""

    @property
    def faster(self) -> bool:
        """Whether it takes less for sure."""
        return self.high < 1


@record
class Runs:
    """Microseconds of launches {run, launch} and of all steps {run} of two libraries in turns.

    `seconds` passed while they ran.
    """

    us: tuple[np.ndarray, np.ndarray]
    whole: tuple[np.ndarray, np.ndarray]
    seconds: float = 0.0


def thread_counts(cpu: int | None = None) -> tuple[int, ...]:
    """Returns how many threads have to run what is to be faster: one, and one for each CPU.

    One only where runs are to happen on a CPU that is given.
    """
    cpus = len(os.sched_getaffinity(0))
    return (1, cpus) if cpu is None and cpus > 1 else (1,)


class Beside:
    """Runs libraries in turns with one that is the usual one."""

    def __init__(
        self,
        usual: TimedLibrary,
        sizes: Mapping[str, int] | None = None,
        cpu: int | None = None,
    ) -> None:
        """Runs have these `sizes`, or common ones, and happen on a CPU if that is given."""
        self._served = {
            count: Served(partial(_answering, usual, sizes, count), cpu)
            for count in thread_counts(cpu)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for served in self._served.values():
            served.close()

    def runs(self, question: Question, threads: int = 1, *, new: bool = False) -> Runs:
        """Returns what a library and the usual one take on so many threads, in a `new` process.

        Where values lie in memory, and so which of them drive each other out of caches, is another
        matter in each.

        Raises:
            RutcError: it does not run.
            Unanswered: it crashes or hangs.
        """
        served = self._served[threads]
        if new:
            served.close()
        try:
            found = served.ask(question, TIMEOUT_S)
        finally:
            # Its threads and its memory are in the way of what runs on another number of threads.
            if threads > 1:
                served.close()
        assert isinstance(found, Runs)
        return found


def _answering(
    usual: TimedLibrary, sizes: Mapping[str, int] | None, threads: int
) -> Callable[[Question], Runs]:
    """What answers how long the steps of a library take, in turns with those of the usual one."""
    first = Profiled(usual.library, threads)
    given = values_to_time(first, sizes)

    def runs(question: Question) -> Runs:
        with Profiled(question.artifact.library, threads) as second:
            both = [first, second]
            seconds = SECONDS * question.share
            began = monotonic()
            us = run_in_turns(both, given, seconds, question.enough(usual, both))
            passed = monotonic() - began
            launches = question.launches(us, usual, both)
            return Runs(launches, (us[0].sum(axis=1), us[1].sum(axis=1)), passed)

    return runs


def ratio_of(processes: Sequence[tuple[Times, Times]]) -> Ratio:
    """The ratio of what takes turns (before, after), by that of neighbouring runs."""
    ratios = [np.atleast_1d(after / np.maximum(before, LEAST_US)) for before, after in processes]
    every = np.concatenate(ratios)
    low, high = interval(list(every))
    us = float(np.median(np.concatenate([np.atleast_1d(before) for before, _ in processes])))
    return Ratio(float(np.median(every)), float(low), float(high), us)
