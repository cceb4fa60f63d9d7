"""What the steps of an artifact take, for `rutc inspect --profile`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import RenderableType

from rutc.base.record import record
from rutc.driver.parts.outline import Outline
from rutc.driver.timing.trials import Clock
from rutc.emit.targets import native_target
from rutc.errors import RutcError
from rutc.report.display import StepTime, least_of, profile_table, step_times
from rutc.report.least_time import least_times, machine_at_hand
from rutc.runtime.ports import undamaged
from rutc.runtime.step_profile import ProfileEntry
from rutc.verify.bench import run_in_place
from rutc.verify.feeding.session_values import Ran, run_once
from rutc.verify.feeding.sizes import session_common_sizes
from rutc.verify.feeding.whole import WholeSession

RUNS = 20


@record
class RunsOf:
    """What an artifact is run on for its times: inputs as users name them, sizes, and threads."""

    inputs: Sequence[str]
    dims: Mapping[str, int]
    threads: int | None
    """None: one for each CPU at hand."""


@record
class Profiled:
    """What steps take, the medians of some runs by so many threads, and a run before them.

    `cycle_ns` is how long a cycle of the clock is, None where that could not be measured.
    """

    times: list[StepTime]
    ran: Ran
    threads: int
    cycle_ns: float | None

    @property
    def clock(self) -> str:
        """What is timed, as a word: of one thread its processor time, else what passes."""
        return "processor" if self.threads == 1 else "elapsed"

    @property
    def bound(self) -> str:
        """What a run takes at least on this machine, for a reader; "" where it is not known."""
        least = least_of(self.times)
        total = sum(time.us for time in self.times)
        if least is None or not total:
            return ""
        return (
            f"at least {least / 1000:.3g} ms on this machine with these kernels, "
            f"{100 * least / total:.0f} % of what they take"
        )

    def facts(self) -> dict[str, object]:
        """What `--json` prints of it."""
        return {
            "profile": [asdict(time) for time in self.times],
            "least_us": least_of(self.times),
            "sizes": self.ran.sizes,
            "refused": self.ran.refused,
            "timed": self.clock,
        }

    def lines(self) -> list[RenderableType]:
        """What a reader sees of it."""
        table = profile_table(self.times)
        return [*self.ran.lines, self.line, table, *([self.bound] if self.bound else [])]

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
    outline: Outline | None,
    runs: RunsOf,
    target: str | None,
) -> Profiled:
    """Returns what the steps of a run take, all that it reads and writes being there before.

    What they take at least is told of an artifact with an `outline`, at common sizes.
    """
    with WholeSession(
        path, threads=runs.threads, profile=True, check_integrity=True, target=target
    ) as session:
        ran = run_once(session, runs.inputs, runs.dims)
        usual = ran.sizes == session_common_sizes(session, {})
        run = run_in_place(session, ran.values)
        known = [session.profile()]
        for _ in range(RUNS):
            run()
            known.append(session.profile())
    cycle_ns = _cycle_ns()
    steps = [_usual(of_step) for of_step in zip(*known, strict=True)]
    times = step_times(steps, kernels, usual=usual)
    count = runs.threads or len(os.sched_getaffinity(0))
    if outline is not None and cycle_ns is not None:
        own, each = outline, cycle_ns / count
        times = undamaged(path, lambda: _bounded(times, kernels, own, each))
    return Profiled(times, ran, count, cycle_ns)


def _bounded(
    times: Sequence[StepTime],
    kernels: Sequence[Mapping[str, object]],
    outline: Outline,
    cycle_ns: float,
) -> list[StepTime]:
    """The times with the least ones where work is known; all threads have a cycle in `cycle_ns`."""
    least = least_times(outline, kernels, machine_at_hand(outline))
    found: list[StepTime] = []
    for time in times:
        known = None if time.kernel is None or time.flops is None else least.get(time.kernel)
        if known is None or time.kernel is None:
            found.append(time)
            continue
        turns = kernels[time.kernel].get("turns", 1)
        runs = time.calls / max(turns if isinstance(turns, int) else 1, 1)
        us = known.cycles * runs * cycle_ns / 1000
        found.append(replace(time, least_us=us, limit=known.limit))
    return found


def _cycle_ns() -> float | None:
    """How long a cycle of this processor's clock is now; None if that cannot be measured."""
    try:
        return Clock(native_target().machine).cycle_ns()
    except RutcError:
        return None


def _usual(totals: Sequence[ProfileEntry]) -> ProfileEntry:
    """What a step takes of a run, of what it had taken after each of several runs."""
    *_, before, last = totals
    us = median(b.total_us - a.total_us for a, b in pairwise(totals))
    return replace(last, calls=last.calls - before.calls, total_us=us)
