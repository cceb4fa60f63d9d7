"""The search for schedules of several kernels: which of them gets the next trials.

A *subject* is a kernel without names of its own and before its schedule. Time goes, one batch of
trials after the other, where most is expected of it: to subjects that take much of a run, and of
which the last batches brought something. Every trial takes turns with the default schedule, which
tells how fast the processor is meanwhile, and is kept at once. At last the fastest schedule of each
subject is timed again; it is believed if it is faster than the default one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random
from time import monotonic

from rutc.base.record import record
from rutc.driver.compile_job import Chooser, with_schedule
from rutc.driver.trials import Bench, Outcome, Reference
from rutc.errors import InternalError
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner.access import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces
from rutc.tuner.search import Candidate, Judge, Place, Search

BATCH = 8
"""Trials of a subject one after the other."""
PATIENCE = 4
"""A subject has had enough when so many batches brought nothing."""
SHARED = "parallel"
"""The parameter that no measurement on one thread tells anything of."""
CERTAIN = 0.015
"""So much faster than the default, at least, the fastest has to be when both take turns."""
TURNS = 3
"""Of the fastest schedule beside the default one, at last."""
HOPE = 0.1
"""What is expected of a subject that nothing is known of: the share of its time that it loses."""
FEWEST_NS = 1_000
"""Kernels that take less are not told from the call."""


@record
class Subject:
    """A kernel to find a schedule of, its constants, and the machine as it sees it."""

    kernel: Kernel
    constants: frozenset[str]
    machine: Machine

    @property
    def text(self) -> str:
        """What tells it from others."""
        return f"{self.kernel}\nconstants {' '.join(sorted(self.constants))}"


def scheduled(kernel: Kernel, choice: Choice) -> Kernel:
    """Returns a kernel after a choice.

    Raises:
        NotApplicable: it does not apply.
    """
    try:
        return with_schedule(kernel, choice).kernel
    except InternalError as error:
        raise NotApplicable(str(error).splitlines()[0]) from error


@dataclass
class Progressing:
    """A subject that is searched: what is known of it so far."""

    subject: Subject
    runs: int
    """How often it runs in a run of the model."""
    name: str
    search: Search
    reference: Reference | None = None
    """The default schedule: it takes turns with all others."""
    default_cycles: float = inf
    trials: int = 0
    idle: int = 0
    """Batches since the last that brought something."""
    hope: float = HOPE
    """What the next batch is expected to bring: a share of its time."""

    @property
    def best_cycles(self) -> float:
        """The least that was measured."""
        best = self.search.best
        return inf if best is None else exp(best[1])

    @property
    def finished(self) -> bool:
        """Whether no more is expected of it."""
        return self.idle >= PATIENCE

    @property
    def expected(self) -> float:
        """Cycles of a run that the next batch is expected to save."""
        best = min(self.best_cycles, self.default_cycles)
        return 0.0 if self.finished or best == inf else self.runs * best * self.hope


@record
class Limits:
    """When to stop: after so many seconds or trials, whichever is first."""

    seconds: float = inf
    trials: float = inf


@record
class Tried:
    """One trial, for those who keep it: beside which default schedule, and whether it is final.

    The default schedule itself has none beside it. What is final takes the place of earlier trials.
    """

    subject: Subject
    candidate: Candidate
    place: Place
    outcome: Outcome
    default: Candidate
    reference: Reference | None
    final: bool = False


@record
class Known:
    """What a schedule took that was tried before, by the default one's time; None if it failed."""

    place: Place
    text: str
    ratio: float | None


class Tuning:
    """The search for the schedules of several subjects."""

    def __init__(
        self,
        subjects: Mapping[Subject, tuple[int, str]],
        bench: Bench,
        judge: Callable[[Machine], Judge],
        keep: Callable[[Tried], None],
        seed: int = 0,
        known: Callable[[Subject], Sequence[Known]] = lambda subject: (),
    ) -> None:
        """`keep` is given each trial; `known` has what was tried before.

        Nothing is searched of subjects without a space, or whose loops have no fixed lengths.
        """
        self._bench = bench
        self._keep = keep
        self.subjects: list[Progressing] = []
        for subject, (runs, name) in subjects.items():
            if analyse(subject.kernel, subject.constants).symbolic:
                continue
            own = spaces(subject.kernel, subject.machine, subject.constants, fixed=(SHARED,))
            if not own:
                continue
            rng = Random(f"{seed} {subject.text}")
            search = Search(subject.kernel, own, judge(subject.machine), scheduled, rng)
            self.subjects.append(Progressing(subject, runs, name, search))
        self._known = known
        self._began = monotonic()

    @property
    def seconds(self) -> float:
        """How long the search has gone on."""
        return monotonic() - self._began

    def run(self, limits: Limits) -> Iterator[Progressing]:
        """Yields each subject after a batch of its trials, until nothing is expected of any."""
        end = monotonic() + limits.seconds
        for t in self.subjects:
            self._begin(t)
            yield t
            if monotonic() >= end:
                return
        self.subjects.sort(key=lambda t: -t.runs * t.default_cycles)
        while sum(t.trials for t in self.subjects) < limits.trials and monotonic() < end:
            best = max(self.subjects, key=lambda t: t.expected, default=None)
            if best is None or best.expected == 0:
                return
            self._batch(best)
            yield best

    def _begin(self, t: Progressing) -> None:
        """Measure the default schedule, and take those into account that were measured before."""
        default = t.search.default
        if default is None:
            t.idle = PATIENCE
            return
        outcome = self._bench.time(default.kernel)
        cycles = self._seen(t, default, outcome)
        if cycles is None or outcome.near is None or outcome.far is None:
            t.idle = PATIENCE
            return
        t.default_cycles = cycles
        t.reference = Reference(default.kernel, outcome.near.cycles, outcome.far.cycles)
        if outcome.near.ns < FEWEST_NS:
            t.idle = PATIENCE
        for k in self._known(t.subject):
            t.search.recall(k.place, k.text, None if k.ratio is None else k.ratio * cycles)

    def _batch(self, t: Progressing) -> None:
        before = t.best_cycles
        proposed = t.search.propose(BATCH)
        if not proposed:
            t.idle = PATIENCE
            return
        for c in proposed:
            self._seen(t, c, self._bench.time(c.kernel, t.reference))
        gain = max(0.0, 1 - t.best_cycles / before)
        t.idle = 0 if gain > 0 else t.idle + 1
        t.hope = (t.hope + gain) / 2

    def _kept(self, t: Progressing, c: Candidate, outcome: Outcome, *, final: bool = False) -> None:
        place, default = t.search.place(c), t.search.default
        assert default is not None
        self._keep(Tried(t.subject, c, place, outcome, default, t.reference, final))

    def _seen(self, t: Progressing, candidate: Candidate, outcome: Outcome) -> float | None:
        """Keep what became of a candidate, and return its cycles; None where it failed."""
        self._kept(t, candidate, outcome)
        t.search.observe(candidate, outcome.cycles)
        t.trials += 1
        return outcome.cycles

    def faster(self) -> dict[Subject, Candidate]:
        """Returns what is faster than default schedules when both take turns again."""
        chosen = {}
        for t in self.subjects:
            best, default = t.search.best, t.search.default
            if best is None or default is None or best[0].text == default.text:
                continue
            if t.best_cycles > (1 - CERTAIN) * t.default_cycles:
                continue
            again = [self._bench.time(best[0].kernel, t.reference) for _ in range(TURNS)]
            again.sort(key=lambda x: x.cycles or inf)
            middle = again[TURNS // 2]
            # The least of many is less than it will be again.
            self._kept(t, best[0], middle, final=True)
            if (middle.cycles or inf) < (1 - CERTAIN) * t.default_cycles:
                chosen[t.subject] = best[0]
        return chosen


def chooser_of(choices: Mapping[Subject, Choice]) -> Chooser:
    """Returns what gives kernels these schedules."""

    def chosen(kernel: Kernel, constants: frozenset[str], machine: Machine) -> Choice | None:
        return choices.get(Subject(kernel, constants, machine))

    return chosen
