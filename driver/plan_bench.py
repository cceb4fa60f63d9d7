"""Plans timed in turns with one of them, and what a change of a few launches takes of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from rutc.base.record import record
from rutc.driver.certainty import Asked, Question
from rutc.driver.compile_job import Chooser, CompileJob
from rutc.driver.in_model import SECONDS
from rutc.driver.launch_times import LEAST_US, Profiled, TimedLibrary, run_in_turns, written
from rutc.driver.launches import Pending
from rutc.driver.lowered import Lowered
from rutc.driver.plan_steps import PlanSteps
from rutc.driver.served import Served
from rutc.driver.trials import interval
from rutc.driver.weights import Weights
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir.machine import Machine
from rutc.verify.session_values import session_values

TIMEOUT_S = 60.0
"""A library that takes longer for a round hangs."""


@record
class PlanLaunch:
    """A launch, told from others by the code and the values of the plan that it is called with."""

    job: CompileJob
    buffers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, pending: Pending) -> PlanLaunch:
        """That of what is to be launched."""
        return cls(pending.job, tuple(sorted(pending.canonical.buffers.items())))


@record(eq=False)
class PlanChange:
    """A plan with a change: which, what it has instead of which launches; equal to itself only."""

    change: str
    found: Realisation
    gone: frozenset[PlanLaunch]
    new: frozenset[PlanLaunch]
    algorithms: tuple[tuple[str, str], ...] | None = None
    """All algorithms of its graph, where they are what is changed."""

    def __str__(self) -> str:
        return self.change


@record
class Ratio:
    """What a change takes by what was there before: the median, and the ends of its interval."""

    median: float
    low: float
    high: float
    us: float
    """What the launches took before, of a run."""


@record
class Runs:
    """Microseconds of launches {run, launch} and of all steps {run} of two libraries in turns."""

    us: tuple[np.ndarray, np.ndarray]
    whole: tuple[np.ndarray, np.ndarray]


class PlanBench:
    """Times plans beside the one that is the best so far."""

    def __init__(
        self,
        found: Realisation,
        machine: Machine,
        folder: Path,
        chooser: Chooser | None,
        cpu: int | None = None,
        keep_subnormals: bool = False,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Compile the plan that others are timed beside; libraries go into a folder.

        Runs have these `sizes`, or common ones.

        Raises:
            UserError: it does not compile, or does not run.
        """
        self.found, self.machine = found, machine
        self._folder, self._chooser = folder, chooser
        self._keep_subnormals = keep_subnormals
        self._made = 0
        self._lowered = Lowered()
        self.launches = self.launches_of(found)
        self.artifact = self._written(found)
        self._served = Served(partial(_answering, self.artifact, sizes), cpu)
        runs = self._ask(Question(self.artifact))
        own = _by_launch(self.launches, runs.us[0])
        self.us = {x: float(np.median(t)) for x, t in own.items()}
        self.total_us = float(np.median(runs.whole[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End its process and remove its library."""
        self._served.close()
        _removed(self.artifact)

    def launches_of(self, found: Realisation) -> tuple[PlanLaunch, ...]:
        """The launches of a plan, in their order."""
        steps = PlanSteps(found.plan, Weights(), lowered=self._lowered)
        return tuple(PlanLaunch.of(p) for p in steps.pending)

    def time(
        self, found: Realisation, tries: Sequence[PlanChange], processes: int = 0
    ) -> tuple[list[Ratio], Ratio]:
        """What each of some changes takes that a plan has, and the whole run.

        With `processes` in so many new ones: where values lie in memory, and so which of them
        drive each other out of caches, is another matter in each.

        Raises:
            RutcError: it does not compile, or does not run.
            Unanswered: it crashes or hangs.
        """
        artifact = self._written(found)
        launches = self.launches_of(found)
        changes = [Asked(_places(c.gone, self.launches), _places(c.new, launches)) for c in tries]
        question = Question(artifact, None if processes else tuple(changes))
        try:
            asked = [self._ask(question, new=processes > 0) for _ in range(max(processes, 1))]
        finally:
            _removed(artifact)
        us = [
            (_by_launch(self.launches, runs.us[0]), _by_launch(launches, runs.us[1]))
            for runs in asked
        ]
        return [
            _ratio([(sum(b[x] for x in c.gone), sum(a[x] for x in c.new)) for b, a in us])
            for c in tries
        ], _ratio([runs.whole for runs in asked])

    def _written(self, found: Realisation) -> TimedLibrary:
        self._made += 1
        return written(
            found.plan,
            self.machine,
            self._folder / f"plan{id(self)}_{self._made}.so",
            chooser=self._chooser,
            keep_subnormals=self._keep_subnormals,
        )

    def _ask(self, question: Question, *, new: bool = False) -> Runs:
        if new:
            self._served.close()
        runs = self._served.ask(question, TIMEOUT_S)
        assert isinstance(runs, Runs)
        return runs


def _removed(artifact: TimedLibrary) -> None:
    """The files of an artifact are there no more."""
    for path in (artifact.library, artifact.library.with_suffix(".h")):
        path.unlink(missing_ok=True)


def _places(own: frozenset[PlanLaunch], launches: Sequence[PlanLaunch]) -> tuple[int, ...]:
    """The numbers of some launches among all."""
    return tuple(number for number, launch in enumerate(launches) if launch in own)


def _answering(
    artifact: TimedLibrary, sizes: Mapping[str, int] | None
) -> Callable[[Question], Runs]:
    """What answers how long the steps of a library take, in turns with those of this one."""
    usual = Profiled(artifact.library)
    given = session_values(usual.session, (), dims=sizes)

    def runs(question: Question) -> Runs:
        with Profiled(question.artifact.library) as instead:
            both = [usual, instead]
            first, second = run_in_turns(both, given, SECONDS, question.enough(artifact, both))
            us = question.launches((first, second), artifact, both)
            return Runs(us, (first.sum(axis=1), second.sum(axis=1)))

    return runs


def _by_launch(launches: Sequence[PlanLaunch], us: np.ndarray) -> dict[PlanLaunch, np.ndarray]:
    """Microseconds {run} of each launch, of those {run, launch} of all."""
    found: dict[PlanLaunch, np.ndarray] = {}
    for launch, own in zip(launches, us.T, strict=True):
        found[launch] = found.get(launch, 0.0) + own
    return found


Times = np.ndarray | int
"""Microseconds {run}; 0 where nothing runs."""


def _ratio(processes: Sequence[tuple[Times, Times]]) -> Ratio:
    """The ratio of what takes turns (before, after), by that of neighbouring runs."""
    ratios = [np.atleast_1d(after / np.maximum(before, LEAST_US)) for before, after in processes]
    every = np.concatenate(ratios)
    low, high = interval(list(every))
    us = float(np.median(np.concatenate([np.atleast_1d(before) for before, _ in processes])))
    return Ratio(float(np.median(every)), float(low), float(high), us)
