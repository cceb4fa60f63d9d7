"""Schedules that were faster one by one, confirmed together in whole runs.

An artifact with all of them takes turns with the one of default schedules, on one thread and on all
CPUs, in processes of their own. What is not faster on either is left out, and the rest is made
anew. The whole run has to be faster, for sure; or all launches that have other schedules are, taken
together, and the run may be faster by as much as these are. Else the half of it that brings least
is left out.

What others do on a machine moves a run by more than a kernel saves that takes a hundredth of it. So
it is not asked for that runs show what launches do, but that they do not show that the rest of a
run loses what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from rutc.base.record import record
from rutc.driver.timing.answering_process import Unanswered
from rutc.driver.timing.certainty import Asked, Question
from rutc.driver.timing.launch_times import FEWEST_RUNS, TimedLibrary
from rutc.driver.timing.model_bench import (
    SECONDS,
    HandedOut,
    Pace,
    Planned,
    Subject,
    subjects_of,
)
from rutc.driver.timing.side_by_side import Beside, Ratio, Runs, ratio_of, thread_counts
from rutc.tuner.choice import Choice

ARTIFACTS = 2
"""That take turns, if not all that was found is confirmed at once."""
PROCESSES = 2
"""In which an artifact takes turns: values lie elsewhere in each."""
ByThreads = Mapping[int, Ratio]
"""Ratios by the number of threads that run."""


@record
class Confirmed:
    """What launches and runs take with schedules by what they take with the default ones.

    `seen` has each schedule's, as it was in the last artifact with it; `runs` are those of the
    artifact with all that are `believed`, and there are none if nothing is.
    """

    seen: Mapping[Subject, ByThreads]
    believed: frozenset[Subject]
    runs: ByThreads

    def then(self, later: Confirmed) -> Confirmed:
        """Returns what is known after a later confirmation, of which those that it has not stay."""
        return replace(later, seen={**self.seen, **later.seen})

    def us(self, subject: Subject) -> tuple[float, float] | None:
        """Returns the microseconds of a subject's launches on one thread: before and after."""
        own = self.seen.get(subject)
        return None if own is None else (own[1].us, own[1].us * own[1].median)


def confirmed(
    own: Planned,
    faster: Mapping[Subject, Choice],
    default: TimedLibrary,
    folder: Path,
    cpu: int | None = None,
    share: Callable[[], float] = lambda: 1.0,
) -> Confirmed:
    """Returns which of some schedules whole runs are faster with.

    Runs of each artifact have a `share` of the seconds that they may have: less is certain after
    fewer.

    Raises:
        UserError: the model does not run.
    """
    places: dict[Subject, list[int]] = {s: [] for s in faster}
    machine = own.seen()
    for number, pending in enumerate(own.pending()):
        for subject in subjects_of(pending.job, machine):
            if subject in places:
                places[subject].append(number)
    seen: dict[Subject, ByThreads] = {}
    left = list(faster)
    with Beside(default, own.sizes, cpu) as beside:
        while left:
            chooser = HandedOut({s: (faster[s],) for s in left})
            path = folder / "found.so"
            found = own.written(path, chooser=chooser)
            try:
                own_places = [places[s] for s in left]
                told = _told(found, own_places, beside, thread_counts(cpu), share())
            except Unanswered:
                # Each of them ran alone.
                left = left[: len(left) // 2]
                continue
            runs = {n: t.whole for n, t in told.items()}
            seen |= {s: {n: t.each[i] for n, t in told.items()} for i, s in enumerate(left)}
            good = [s for s in left if all(r.median < 1 for r in seen[s].values())]
            if len(good) == len(left):
                if all(t.saves for t in told.values()):
                    return Confirmed(seen, frozenset(left), runs)
                good = sorted(left, key=lambda s: -_saved_us(seen[s]))[: len(left) // 2]
            left = good
    return Confirmed(seen, frozenset(), {})


@record
class Needed:
    """The seconds that pass while schedules are confirmed, or a plan is compared, at most.

    Artifacts are `made` and processes begun, which nothing shortens; both artifacts of each process
    have their `runs`.
    """

    made: float
    runs: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.made + self.runs

    def share(self, seconds: float) -> float:
        """Returns the share of the runs that there is time for in so many seconds."""
        return min(1.0, max(0.0, (seconds - self.made) / self.runs)) if self.runs else 1.0


def needed(pace: Pace, cpu: int | None) -> Needed:
    """Returns what confirming takes where things take as long as they did.

    On one thread others make runs longer, on several runs end after seconds that pass.
    """
    counts = thread_counts(cpu)
    made = pace.written + PROCESSES * len(counts) * pace.begun
    shared = max(SECONDS, FEWEST_RUNS * pace.run)
    runs = sum(2 * (pace.runs if count == 1 else shared) for count in counts)
    return Needed(ARTIFACTS * made, ARTIFACTS * PROCESSES * runs)


@dataclass
class Reserve:
    """The seconds to leave for what follows the last round: the fastest are timed again, confirmed.

    As long as it `took` before, if it did; else as long as it may take, but no more than the `most`
    unless it cannot be done in that time at all.
    """

    most: float = inf
    took: float = inf

    def seconds(self, pace: Pace, cpu: int | None) -> float:
        """Returns them, where things take as long as they did."""
        need = needed(pace, cpu)
        return min(self.took, pace.round + max(need.made, min(need.seconds, self.most)))


@record
class _Told:
    """What runs on so many threads take by what they took: all of it, and what was changed.

    `changed` are all launches with other schedules together, `each` those of each subject.
    """

    whole: Ratio
    changed: Ratio
    each: tuple[Ratio, ...]

    @property
    def saves(self) -> bool:
        """Whether a run is faster for sure, or what was changed is and a run may be by as much."""
        saved = (1 - self.changed.median) * self.changed.us / self.whole.us
        return self.whole.faster or (self.changed.faster and self.whole.low <= 1 - saved)


def _told(
    found: TimedLibrary,
    places: Sequence[Sequence[int]],
    beside: Beside,
    counts: Sequence[int],
    share: float,
) -> dict[int, _Told]:
    """What a run and the launches of subjects take by what they took, by threads.

    Raises:
        Unanswered: it crashes or hangs.
    """
    asked = tuple(Asked(tuple(own), tuple(own)) for own in places)
    question = Question(found, asked, clearly=True, share=share)
    every = sorted({place for own in places for place in own})
    told = {}
    for count in counts:
        runs = [beside.runs(question, count, new=True) for _ in range(PROCESSES)]
        told[count] = _Told(
            ratio_of([r.whole for r in runs]),
            ratio_of([_sums(r, every) for r in runs]),
            tuple(ratio_of([_sums(r, own) for r in runs]) for own in places),
        )
    return told


def _sums(runs: Runs, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds {run} of some launches, before and after."""
    before, after = (us[:, list(places)].sum(axis=1) for us in runs.us)
    return before, after


def _saved_us(ratios: ByThreads) -> float:
    """What a schedule saves of a run, on that number of threads where it saves least."""
    return min((1 - r.median) * r.us for r in ratios.values())
