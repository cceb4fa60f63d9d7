"""What the steps of an artifact take, for `rutc inspect --profile`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from rutc.base.record import record
from rutc.report.display import StepTime, step_times
from rutc.runtime.session import ProfileEntry
from rutc.verify.bench import run_in_place
from rutc.verify.session_values import Ran, run_once
from rutc.verify.sizes import session_common_sizes
from rutc.verify.whole import WholeSession

RUNS = 20


@record
class Profiled:
    """What steps take, the medians of some runs by so many threads, and a run before them."""

    times: list[StepTime]
    ran: Ran
    threads: int

    @property
    def clock(self) -> str:
        """What is timed, as a word: of one thread its processor time, else what passes."""
        return "processor" if self.threads == 1 else "elapsed"

    @property
    def line(self) -> str:
        """What is timed, for a reader."""
        if self.threads == 1:
            return f"processor time of the thread, medians of {RUNS} runs"
        return (
            f"time that passes, with what other processes take of it, medians of {RUNS} runs by "
            f"{self.threads} threads: --threads 1 shows the processor time of one"
        )


def profiled(
    path: Path,
    kernels: Sequence[Mapping[str, object]],
    inputs: Sequence[str],
    dims: Mapping[str, int],
    threads: int | None,
    target: str | None,
) -> Profiled:
    """Returns what the steps of a run take, all that it reads and writes being there before."""
    with WholeSession(
        path, threads=threads, profile=True, check_integrity=True, target=target
    ) as session:
        ran = run_once(session, inputs, dims)
        usual = ran.sizes == session_common_sizes(session, {})
        run = run_in_place(session, ran.values)
        known = [session.profile()]
        for _ in range(RUNS):
            run()
            known.append(session.profile())
    steps = [_usual(of_step) for of_step in zip(*known, strict=True)]
    times = step_times(steps, kernels, usual=usual)
    return Profiled(times, ran, threads or len(os.sched_getaffinity(0)))


def _usual(totals: Sequence[ProfileEntry]) -> ProfileEntry:
    """What a step takes of a run, of what it had taken after each of several runs."""
    *_, before, last = totals
    us = median(b.total_us - a.total_us for a, b in pairwise(totals))
    return replace(last, calls=last.calls - before.calls, total_us=us)
