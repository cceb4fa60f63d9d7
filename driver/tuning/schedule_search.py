"""The search for schedules of several kernels: which of them get the next trials.

Time goes, one round of trials after the other, where most is expected of it: to subjects that take
much of a run, and of which the last batches brought something. A round happens in the model that
the kernels are of (`driver.timing.model_bench`), and each trial takes turns with the default
schedule. What a round's trials took is kept at once, all together. At last the fastest schedule of
each subject is timed again; it is believed if it is faster than the default one again.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf
from random import Random
from time import monotonic
from typing import Protocol

from rutc.base.interrupts import ending
from rutc.base.record import record
from rutc.driver.parts.compile_job import with_schedule
from rutc.driver.parts.worker_pool import done_in_pool
from rutc.driver.timing.certainty import CERTAIN
from rutc.driver.timing.model_bench import Subject, Try, Usual
from rutc.driver.timing.trials import Outcome
from rutc.driver.tuning.search_rounds import Rounds
from rutc.errors import InternalError, RutcError
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner.choice import Choice
from rutc.tuner.database.trial import State
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.search import Candidate, Judge, Met, Place, Search
from rutc.tuner.search.seeds import Seed, first_proposals

BATCH = 8
"""Candidates of a subject of which it is asked whether they brought anything."""
PATIENCE = 4
"""A subject has had enough when so many batches brought nothing."""
SHARED = "parallel"
"""The parameter that no measurement on one thread tells anything of."""
HOPE = 0.1
"""What is expected of a subject that nothing is known of: the share of its time that it loses."""
WORTH = 0.02
"""Of what is expected of all: the subjects that bring no more together wait for later rounds."""
GROWTH = 2.0
"""How many times as large as the last one a round is at most: the first is of one batch."""
FEWEST_NS = 1_000
"""Kernels that take less are not told from the call."""


def kernel_after(kernel: Kernel, choice: Choice, constants: frozenset[str] | None = None) -> Kernel:
    """Returns a kernel after a choice, which may pack no buffers but the `constants`.

    Raises:
        NotApplicable: it does not apply.
    """
    try:
        return with_schedule(kernel, choice, constants).kernel
    except InternalError as error:
        raise NotApplicable(str(error).splitlines()[0]) from error


@dataclass
class Progressing:
    """A subject that is searched: what is known of it so far."""

    subject: Subject
    runs: float
    """How often it runs in a run of the model."""
    name: str
    search: Search
    default_cycles: float
    trials: int = 0
    queue: list[Candidate] = field(default_factory=list)
    """Those that are tried first."""
    left: int = 0
    """How many of a batch are not tried yet."""
    before: float = inf
    """The least that was measured before that batch."""
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
    def goal(self) -> float:
        """What is to be believed, or better than the best, takes less: by the default schedule."""
        return min(1 - CERTAIN, self.best_cycles / self.default_cycles)

    @property
    def finished(self) -> bool:
        """Whether no more is expected of it."""
        return self.idle >= PATIENCE

    @property
    def expected(self) -> float:
        """Cycles of a run that the next batch is expected to save."""
        return 0.0 if self.finished else self.runs * self.best_cycles * self.hope

    @property
    def begins(self) -> bool:
        """Whether a batch begins with the next candidate."""
        return not self.queue and not self.left

    def next(self, count: int, met: Sequence[Met]) -> list[Candidate]:
        """Returns so many candidates to try, or fewer where there are no others in the batch.

        They are of what is `met`, too, and chosen by all that was measured by then.
        """
        if self.begins:
            self.before, self.left = self.best_cycles, BATCH
        taken, self.queue = self.queue[:count], self.queue[count:]
        if not taken:
            taken = self.search.propose(min(count, self.left), met)
            self.left -= len(taken)
            if not taken:
                # A batch that ends early has been one, unless there was nothing in it.
                nothing, self.left = self.left == BATCH, 0
                self.learn()
                self.idle = PATIENCE if nothing else self.idle
        return taken

    def learn(self) -> None:
        """Tell what a batch has brought, if all of it was tried."""
        if not self.begins:
            return
        gain = max(0.0, 1 - self.best_cycles / self.before)
        self.idle = 0 if gain > 0 else self.idle + 1
        self.hope = (self.hope + gain) / 2


Seen = tuple[Progressing, Candidate, Outcome]
"""A candidate of a subject, and what became of it."""


@record
class SearchLimits:
    """When to stop: after so many seconds or trials, whichever is first."""

    seconds: float = inf
    trials: float = inf

    def share(self, part: float) -> SearchLimits:
        """A part of both."""
        return SearchLimits(part * self.seconds, part * self.trials)

    def after(self, seconds: float, trials: int) -> SearchLimits:
        """What is left of both."""
        return SearchLimits(max(self.seconds - seconds, 0.0), max(self.trials - trials, 0))


@record
class Tried:
    """One trial, for those who keep it: the default schedule, and what that takes (cycles).

    The default schedule itself has nothing `beside` it. What is final takes the place of earlier
    trials.
    """

    subject: Subject
    candidate: Candidate
    place: Place | None
    outcome: Outcome
    default: Candidate
    beside: Mapping[State, float] | None
    final: bool = False


@record
class Known:
    """What a schedule took that was tried before, by the default one's time; None if it failed."""

    place: Place
    text: str
    ratio: float | None


class ScheduleBench(Protocol):
    """Times schedules: here, or on other machines like this one."""

    def usual(self) -> Mapping[Subject, Usual]:
        """Returns what subjects take with default schedules, those that a run has."""

    def room(self, subject: Subject, taken: Mapping[Subject, int]) -> int:
        """Returns how many of a subject may be tried at once beside so many of others."""

    def time(self, tries: Sequence[Try]) -> list[Outcome]:
        """Returns what becomes of each."""


class Tuning:
    """The search for the schedules of several subjects."""

    def __init__(
        self,
        names: Mapping[Subject, str],
        bench: ScheduleBench,
        judge: Callable[[Subject], Judge],
        keep: Callable[[Sequence[Tried]], None],
        seed: int = 0,
        known: Callable[[Subject], Sequence[Known]] = lambda subject: (),
        given: Callable[[Subject], Iterable[Choice]] = lambda subject: (),
        seeds: Sequence[Seed] = (),
        jobs: int = 1,
    ) -> None:
        """`keep` is given the trials of each round, and `known` has what was tried before.

        `given` comes first, after that what was the fastest of other kernels, `seeds`. At most
        `jobs` processes look for more.

        Nothing is searched of subjects without a space, or that a run does not have.

        Raises:
            UserError: the model does not run.
        """
        self._bench = bench
        self._keep = keep
        self._jobs = jobs
        self._began = monotonic()
        self.rounds = 0
        """Those of trials that were begun."""
        self._size = 0
        """The candidates of the last one."""
        self._again: set[Candidate] = set()
        """What was timed again."""
        self.subjects: list[Progressing] = []
        usual = bench.usual()
        for subject, name in names.items():
            if subject not in usual or usual[subject].timing.ns < FEWEST_NS:
                continue
            own = spaces(subject.kernel, subject.machine, subject.constants, fixed=(SHARED,))
            rng = Random(f"{seed} {subject.text}")
            made = partial(kernel_after, constants=subject.constants)
            search = Search(subject.kernel, own, judge(subject), made, rng)
            if search.default is None:
                continue
            timing, calls = usual[subject].timing, usual[subject].calls
            self.subjects.append(Progressing(subject, calls, name, search, timing.cycles))
        defaults = [(t, t.search.default, usual[t.subject].timing) for t in self.subjects]
        self._seen(
            [
                (t, c, Outcome("measured", model=timing))
                for t, c, timing in defaults
                if c is not None
            ]
        )
        for t in self.subjects:
            for k in known(t.subject):
                cycles = None if k.ratio is None else k.ratio * t.default_cycles
                t.search.recall(k.place, k.text, cycles)
            first = (t.search.given(choice) for choice in given(t.subject))
            t.queue = [c for c in first if c is not None] + first_proposals(t.search, seeds)
            t.before = t.best_cycles
        self.subjects.sort(key=lambda t: -t.runs * t.default_cycles)

    @property
    def seconds(self) -> float:
        """How long the search has gone on."""
        return monotonic() - self._began

    @property
    def finished(self) -> bool:
        """Whether no more is expected of any subject."""
        return all(t.finished for t in self.subjects)

    @property
    def trials(self) -> int:
        """How many schedules were tried besides the default ones."""
        return sum(t.trials for t in self.subjects)

    def run(
        self,
        limits: SearchLimits,
        rounds: Rounds | None = None,
        after: Callable[[], float] = lambda: 0.0,
        fixed: Callable[[], float | None] = lambda: None,
    ) -> Iterator[Progressing]:
        """Yields subjects after rounds of trials, until nothing is expected of any.

        What follows the last of the `rounds` takes so many seconds `after` it, and each so many
        that are `fixed`. They grow from a batch on, as far as time allows. They may go on later,
        where there is more time than was thought.
        """
        rounds = rounds or Rounds(self._began + limits.seconds)
        if not self.rounds:
            yield from self.subjects
        while self.trials < limits.trials:
            larger = rounds.another(after(), GROWTH, fixed())
            size = max(BATCH, int(larger * self._size)) if larger >= 1 else int(larger * self._size)
            if not larger or size < BATCH:
                return
            ended = ending()
            if ended is not None:
                # Whatever has lost it: nobody waits for more.
                raise ended
            chosen = self._chosen(min(size, limits.trials - self.trials))
            self._size = len(chosen)
            if not chosen and self.finished:
                return
            self.rounds += 1
            tries = [Try(t.subject, c.choice, t.goal) for t, c in chosen]
            outcomes = self._bench.time(tries)
            self._seen([(t, c, o) for (t, c), o in zip(chosen, outcomes, strict=True)])
            for t in {id(t): t for t, _ in chosen}.values():
                t.learn()
                yield t

    def _chosen(self, most: float) -> list[tuple[Progressing, Candidate]]:
        """What is tried next, all at once: candidates of those of which most is expected."""
        wanted = sorted((t for t in self.subjects if not t.finished), key=lambda t: -t.expected)
        left = every = sum(t.expected for t in wanted)
        taken: Counter[Subject] = Counter()
        places: list[tuple[Progressing, int]] = []
        for t in wanted:
            if left < WORTH * every:
                break
            left -= t.expected
            room = int(min(self._bench.room(t.subject, taken), most - taken.total()))
            if room >= 1:
                taken[t.subject] = room
                places.append((t, room))
        met = self._met([t for t, _ in places if not t.queue])
        return [(t, c) for t, room in places for c in t.next(room, met.get(t.subject, ()))]

    def _met(self, wanted: Sequence[Progressing]) -> Mapping[Subject, Sequence[Met]]:
        """What is drawn and changed of some subjects and judged, on all CPUs."""
        chances = [t.search.chance() for t in wanted]

        def work(number: int) -> bytes:
            return pickle.dumps(wanted[number].search.met(chances[number]))

        found: dict[int, Sequence[Met]] = {}
        with suppress(RutcError):
            for number, met in done_in_pool(range(len(wanted)), work, self._jobs):
                found[number] = pickle.loads(met)
        # What a process had to do that the system has ended is done here.
        found |= {n: pickle.loads(work(n)) for n in range(len(wanted)) if n not in found}
        return {wanted[number].subject: met for number, met in found.items()}

    def _seen(self, seen: Sequence[Seen]) -> None:
        """Keep what became of candidates, and take it into account."""
        self._keep([_tried(t, c, outcome) for t, c, outcome in seen])
        for t, c, outcome in seen:
            default = c is t.search.default
            # One that is fast by chance has a wide interval.
            t.search.observe(c, t.default_cycles if default else outcome.most_cycles)
            t.trials += not default

    def faster(self) -> dict[Subject, Candidate]:
        """Returns what is faster than default schedules when both take turns again.

        What was timed again before is known.
        """
        best = [
            (t, t.search.best[0])
            for t in self.subjects
            if t.search.best and t.best_cycles <= (1 - CERTAIN) * t.default_cycles
        ]
        new = [(t, c) for t, c in best if c not in self._again]
        outcomes = self._bench.time([Try(t.subject, c.choice) for t, c in new])
        seen = [(t, c, outcome) for (t, c), outcome in zip(new, outcomes, strict=True)]
        self._keep([_tried(t, c, outcome, final=True) for t, c, outcome in seen])
        for t, c, outcome in seen:
            # The least of many is less than it will be again.
            t.search.correct(c, outcome.most_cycles)
            self._again.add(c)
        found = {}
        for t in self.subjects:
            again = [(c, cycles) for c, cycles in t.search.measured if c in self._again]
            least = min(again, key=lambda x: x[1], default=None)
            if least is not None and exp(least[1]) <= (1 - CERTAIN) * t.default_cycles:
                found[t.subject] = least[0]
        return found

    def doubt(self, doubted: Mapping[Subject, Candidate]) -> None:
        """Take it that some schedules are no faster than default ones, as whole runs tell."""
        for t in self.subjects:
            if t.subject in doubted:
                t.search.correct(doubted[t.subject], t.default_cycles)


def _tried(t: Progressing, c: Candidate, outcome: Outcome, *, final: bool = False) -> Tried:
    """The trial of a candidate, for those who keep it."""
    default = t.search.default
    assert default is not None
    beside: Mapping[State, float] | None = {"model": t.default_cycles}
    if c is default:
        beside = None
    return Tried(t.subject, c, t.search.place(c), outcome, default, beside, final)
