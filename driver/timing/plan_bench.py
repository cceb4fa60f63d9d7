"""Plans timed in turns with one of them, and what a change of a few launches takes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from time import monotonic
from typing import Self

import numpy as np

from rutc.base.record import record
from rutc.driver.parts.compile_job import Chooser, CompileJob
from rutc.driver.parts.launches import Pending
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.timing.certainty import Asked, Question
from rutc.driver.timing.launch_times import TimedLibrary, written
from rutc.driver.timing.side_by_side import Beside, Ratio, ratio_of
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir.machine import Machine


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
class PlanRuns:
    """How plans are compiled for a machine and run: libraries go into a folder.

    The `chooser` gives kernels schedules. Runs happen on a CPU, or any, and have these `sizes`, or
    common ones.
    """

    machine: Machine
    folder: Path
    chooser: Chooser | None = None
    cpu: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    keep_subnormals: bool = False


class PlanBench:
    """Times plans beside the one that is the best so far."""

    def __init__(self, found: Realisation, runs: PlanRuns) -> None:
        """Compile the plan that others are timed beside.

        Raises:
            UserError: it does not compile, or does not run.
        """
        self.found, self._runs = found, runs
        self._made = 0
        self._lowered = Lowered()
        self.launches = self.launches_of(found)
        self.artifact = self._written(found)
        self._beside = Beside(self.artifact, runs.sizes, runs.cpu)
        began = monotonic()
        alone = self._beside.runs(Question(self.artifact))
        self.runs_s = alone.seconds
        """How long runs go on where a new process is asked, at most."""
        self.begun_s = monotonic() - began - alone.seconds
        """How long it takes to ask one, but for that."""
        own = _by_launch(self.launches, alone.us[0])
        self.us = {x: float(np.median(t)) for x, t in own.items()}
        self.total_us = float(np.median(alone.whole[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End its process and remove its library."""
        self._beside.close()
        _removed(self.artifact)

    def launches_of(self, found: Realisation) -> tuple[PlanLaunch, ...]:
        """The launches of a plan, in their order."""
        steps = PlanSteps(found.plan, Weights(), lowered=self._lowered)
        return tuple(PlanLaunch.of(p) for p in steps.pending)

    def time(
        self,
        found: Realisation,
        tries: Sequence[PlanChange],
        processes: int = 0,
        threads: int = 1,
        share: float = 1.0,
    ) -> tuple[list[Ratio], Ratio]:
        """What each of some changes takes that a plan has, and the whole run, on so many threads.

        With `processes` in so many new ones, where runs have a `share` of the seconds that they
        may take.

        Raises:
            RutcError: it does not compile, or does not run.
            Unanswered: it crashes or hangs.
        """
        artifact = self._written(found)
        launches = self.launches_of(found)
        changes = [Asked(_places(c.gone, self.launches), _places(c.new, launches)) for c in tries]
        question = Question(artifact, None if processes else tuple(changes), share=share)
        try:
            asked = [
                self._beside.runs(question, threads, new=processes > 0)
                for _ in range(max(processes, 1))
            ]
        finally:
            _removed(artifact)
        us = [
            (_by_launch(self.launches, runs.us[0]), _by_launch(launches, runs.us[1]))
            for runs in asked
        ]
        return [
            ratio_of([(sum(b[x] for x in c.gone), sum(a[x] for x in c.new)) for b, a in us])
            for c in tries
        ], ratio_of([runs.whole for runs in asked])

    def _written(self, found: Realisation) -> TimedLibrary:
        self._made += 1
        return written(
            found.plan,
            self._runs.machine,
            self._runs.folder / f"plan{id(self)}_{self._made}.so",
            chooser=self._runs.chooser,
            keep_subnormals=self._runs.keep_subnormals,
        )


def _removed(artifact: TimedLibrary) -> None:
    """The files of an artifact are there no more."""
    for path in (artifact.library, artifact.library.with_suffix(".h")):
        path.unlink(missing_ok=True)


def _places(own: frozenset[PlanLaunch], launches: Sequence[PlanLaunch]) -> tuple[int, ...]:
    """The numbers of some launches among all."""
    return tuple(number for number, launch in enumerate(launches) if launch in own)


def _by_launch(launches: Sequence[PlanLaunch], us: np.ndarray) -> dict[PlanLaunch, np.ndarray]:
    """Microseconds {run} of each launch, of those {run, launch} of all."""
    found: dict[PlanLaunch, np.ndarray] = {}
    for launch, own in zip(launches, us.T, strict=True):
        found[launch] = found.get(launch, 0.0) + own
    return found
