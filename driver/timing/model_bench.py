"""Candidates timed in the model that they are for: as many at once as it has launches.

A library whose launches have candidates takes turns with one that has default schedules only. Every
run tells what each launch takes, so one run is a trial of many kernels, each with the operands in
the caches that it finds them in. Code is made on all CPUs before, runs happen on one.

Kernels of a chain are one function: one of them at a time has a candidate, and what the function
takes more or less is due to it.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from time import monotonic

import numpy as np

from rutc.base.record import record
from rutc.driver.parts.build import PlanVersion, machine_of, plans_of
from rutc.driver.parts.compile_job import Chooser, CompileJob, key, make, scheduled
from rutc.driver.parts.launches import Pending
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.parts.worker_pool import done_in_pool
from rutc.driver.timing.answering_process import Ended, Served, Unanswered
from rutc.driver.timing.certainty import Asked, Question
from rutc.driver.timing.launch_times import (
    Profiled,
    TimedLibrary,
    run_in_turns,
    values_to_time,
    written,
)
from rutc.driver.timing.trials import Clock, Outcome, Timing, interval, unanswered
from rutc.emit import cache
from rutc.errors import RutcError
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.indices.ranges import Range, common_size, without_common
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.choice import Choice
from rutc.verify.feeding.sizes import narrowed

ROUND = 64
"""Candidates that are tried at once, at most."""
SECONDS = 1.0
"""For each of two libraries that take turns in a round, at most."""
COMPILE_S = 20
"""A kernel that takes longer to compile hangs."""
SLOWEST = 50
"""A library that takes so many times as long as the default one hangs."""


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


@record(eq=False)
class Try:
    """A subject with another schedule than its default one; equal to itself only.

    What it takes by that is asked for if it may be below the `goal`; None: in any case.
    """

    subject: Subject
    choice: Choice
    goal: float | None = None


@record
class Usual:
    """What a subject takes with its default schedule: a call of it, and calls in a run."""

    timing: Timing
    calls: float
    share: float
    """Of what its functions take: all of it, unless they are chains."""


@record
class Planned:
    """A plan, those of `earlier` versions, and the machine that they are for.

    `sizes` are what a run that is timed has instead of common ones, by the names of the inputs'.
    In such a run subnormal numbers count as zeros unless they are kept.
    """

    plan: Plan
    earlier: tuple[PlanVersion, ...]
    machine: Machine
    sizes: Mapping[str, int] = field(default_factory=dict)
    keep_subnormals: bool = False

    def pending(self) -> list[Pending]:
        """Returns all launches, in the order in which a builder has them."""
        plans = plans_of(self.plan, self.earlier)
        return [p for each in plans for p in PlanSteps(each, Weights()).pending]

    def written(self, path: Path, *, chooser: Chooser | None = None) -> TimedLibrary:
        """Returns the artifact of the plans, which is written to a path."""
        return written(
            self.plan,
            self.machine,
            path,
            earlier=self.earlier,
            chooser=chooser,
            keep_subnormals=self.keep_subnormals,
        )

    def seen(self) -> Machine:
        """Returns the machine that kernels are compiled for."""
        return machine_of(plans_of(self.plan, self.earlier), self.machine)

    def launches(self) -> dict[Subject, list[Pending]]:
        """Returns the kernels that may be searched, each with its launches."""
        found: defaultdict[Subject, list[Pending]] = defaultdict(list)
        machine = self.seen()
        for pending in self.pending():
            for subject in subjects_of(pending.job, machine):
                found[subject].append(pending)
        return dict(found)

    def timed(self) -> Mapping[Subject, Mapping[str, int]]:
        """Returns the sizes of each subject's symbols in a run that is timed, by its names.

        Raises:
            UserError: there are no such sizes.
        """
        symbols = dict(self.plan.graph.symbols)
        sizes = timed_sizes(symbols, self.sizes)
        found: dict[Subject, dict[str, int]] = {}
        for s, (p, *_) in self.launches().items():
            # A chain counts its slices by symbols as well, which are those of no run.
            named = {name: p.canonical.dims[name] for name, _ in s.kernel.symbols}
            found[s] = {name: sizes[own] for name, own in named.items() if own in sizes}
        return found


def timed_sizes(symbols: Mapping[str, Range], sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns what symbols are in a run with these sizes, or else commonly.

    Raises:
        UserError: there is no such size, or it is out of its range.
    """
    told = narrowed(without_common(symbols), sizes, option="--size")
    return {
        name: told[name][0] if told[name][0] == told[name][1] else common_size(limits)
        for name, limits in symbols.items()
    }


def subjects_of(job: CompileJob, machine: Machine) -> list[Subject]:
    """Returns the subjects of the kernels of a job."""
    pairs = zip(job.kernels, job.constants, strict=True)
    return [Subject(kernel, frozenset(names), job.seen(machine)) for kernel, names in pairs]


class HandedOut:
    """Chooses schedules: each launch of a subject gets the next of those that it is to have."""

    def __init__(self, choices: Mapping[Subject, Sequence[Choice]]) -> None:
        """Hand out, from the first again where there are fewer than launches."""
        self._choices = choices
        self._given: Counter[Subject] = Counter()

    def __call__(
        self, kernel: Kernel, constants: frozenset[str], machine: Machine
    ) -> Choice | None:
        """Returns the schedule of the next launch; None: the default one."""
        subject = Subject(kernel, constants, machine)
        own = self._choices.get(subject)
        if not own:
            return None
        self._given[subject] += 1
        return own[(self._given[subject] - 1) % len(own)]


@record
class Turns:
    """Microseconds of launches {run, launch} of two libraries that took turns, and the calls.

    `seconds` passed while they ran.
    """

    usual: np.ndarray
    other: np.ndarray
    calls: np.ndarray
    cycle_ns: float
    seconds: float


@record
class Pace:
    """The seconds that pass here, as busy as the machine is.

    A library is `written` from compiled kernels, a process is `begun` that runs it, and one library
    `runs` as long as it may when it takes turns; a single `run` of it. In the last round a library
    was written and asked about in `last` seconds.
    """

    written: float
    begun: float
    runs: float
    run: float
    last: float | None = None

    @property
    def round(self) -> float:
        """Of a round of trials, at most, but for what is judged and compiled."""
        return self.written + 2 * self.runs

    @property
    def fixed(self) -> float:
        """The same as the last round tells, most of whose candidates are seen to be slow soon."""
        return self.round if self.last is None else self.last


class ModelBench(Served):
    """Times schedules of kernels in a run of their model, and the default ones beside them."""

    def __init__(self, planned: Planned, folder: Path, jobs: int, cpu: int | None = None) -> None:
        """Compile the model with default schedules; libraries go into a folder.

        Raises:
            UserError: it does not compile.
        """
        self._planned = planned
        self._machine = planned.seen()
        self._folder, self._jobs = folder, jobs
        self._launches = planned.pending()
        self._places: defaultdict[Subject, list[int]] = defaultdict(list)
        for number, pending in enumerate(self._launches):
            for subject in subjects_of(pending.job, self._machine):
                self._places[subject].append(number)
        self._written = planned.written
        self.default = self._written(folder / "default.so")
        super().__init__(partial(_served, self.default, planned.machine, planned.sizes), cpu)
        self._usual: dict[Subject, Usual] = {}
        self._run_s = 0.0
        self._pace = Pace(0.0, 0.0, 0.0, 0.0)
        self._calls = np.zeros(0)
        self._rounds = 0

    # -- default schedules ----------------------------------------------------------------------
    def usual(self) -> Mapping[Subject, Usual]:
        """Returns what subjects take with default schedules, those that a run has.

        Raises:
            UserError: the model does not run.
        """
        if not self._usual:
            began = monotonic()
            turns = self._ask(None)
            begun, run = monotonic() - began - turns.seconds, turns.seconds / len(turns.usual)
            self._pace = Pace(0.0, begun, turns.seconds, run)
            self._calls = turns.calls
            self._run_s = float(np.median(turns.usual.sum(axis=1))) * 1e-6
            for subject, places in self._places.items():
                calls = float(turns.calls[places].sum())
                if calls:
                    share = self._share(subject)
                    own = turns.usual[:, places].sum(axis=1) * share * 1e3 / calls
                    timing = Timing(float(np.median(own)), *interval(own), turns.cycle_ns)
                    self._usual[subject] = Usual(timing, calls, share)
        return self._usual

    @property
    def pace(self) -> Pace:
        """How long things took; nothing was `written` in no time before the first round.

        What is written first is compiled, too.
        """
        self.usual()
        return self._pace

    def _share(self, subject: Subject) -> float:
        """The share of a subject in its functions: of a chain as the estimate has it."""
        pending = self._launches[self._places[subject][0]]
        if len(pending.job.kernels) == 1:
            return 1.0
        cycles = [
            estimate(summarise(s.kernel, subject.machine), subject.machine).cycles
            for s in scheduled(pending.job, self._machine)
        ]
        own = zip(subjects_of(pending.job, self._machine), cycles, strict=True)
        return sum(c for s, c in own if s == subject) / sum(cycles)

    # -- candidates -----------------------------------------------------------------------------
    def room(self, subject: Subject, taken: Mapping[Subject, int], rounds: int = 1) -> int:
        """Returns how many schedules of a subject fit into rounds beside so many of others."""
        places = self._running(subject)
        alone = all(len(self._launches[p].job.kernels) == 1 for p in places)
        if not alone and any(places.intersection(self._places[s]) for s in taken):
            return 0
        left = rounds * ROUND - sum(taken.values())
        return max(0, min(rounds * len(places) if alone else 1, left))

    def time(self, tries: Sequence[Try]) -> list[Outcome]:
        """Returns what becomes of each; as many are tried at once as fit into a round.

        Raises:
            UserError: the model does not run.
        """
        self.usual()
        found: dict[Try, Outcome] = {}
        waiting = list(tries)
        while waiting:
            taken: Counter[Subject] = Counter()
            chosen = []
            for t in waiting:
                others = {s: n for s, n in taken.items() if s != t.subject}
                if taken[t.subject] < self.room(t.subject, others):
                    taken[t.subject] += 1
                    chosen.append(t)
            found |= self._round(chosen)
            waiting = [t for t in waiting if t not in found]
        return [found[t] for t in tries]

    def _round(self, tries: Sequence[Try]) -> dict[Try, Outcome]:
        """What becomes of schedules that are tried at once; of halves if there is no answer."""
        try:
            failed = self._compiled(tries)
            return failed | self._timed([t for t in tries if t not in failed])
        except Unanswered as why:
            if len(tries) == 1:
                return {tries[0]: unanswered(why)}
            half = len(tries) // 2
            return self._round(tries[:half]) | self._round(tries[half:])

    def _compiled(self, tries: Sequence[Try]) -> dict[Try, Outcome]:
        """Compiles what launches need; returns those that do not compile.

        Raises:
            Ended: compiling ended a process.
        """
        jobs: dict[str, CompileJob] = {}
        needed: defaultdict[str, list[Try]] = defaultdict(list)
        for t in tries:
            for place in self._places[t.subject]:
                job = self._launches[place].job
                own = job.chosen(HandedOut({t.subject: (t.choice,)}), self._machine)
                name = key(own, self._machine)
                jobs[name] = own
                needed[name].append(t)
        names = [name for name in jobs if cache.lookup(name) is None]

        def work(number: int) -> bytes:
            signal.alarm(COMPILE_S)
            try:
                made = make(jobs[names[number]], self._machine)
            except RutcError as error:
                return str(error).encode()
            finally:
                signal.alarm(0)
            cache.store(names[number], made.encoded())
            return b""

        failed: dict[Try, Outcome] = {}
        try:
            for number, error in done_in_pool(range(len(names)), work, self._jobs, apart=True):
                if error:
                    first = error.decode().splitlines()[0]
                    failed |= {t: Outcome("failed", error=first) for t in needed[names[number]]}
        except RutcError as error:
            # What is wrong with a schedule is an answer: this is about processes.
            raise Ended(str(error)) from error
        return failed

    def _timed(self, tries: Sequence[Try]) -> dict[Try, Outcome]:
        """Times of schedules that compile.

        Raises:
            Unanswered: there are none.
        """
        if not tries:
            return {}
        own: defaultdict[Subject, list[Choice]] = defaultdict(list)
        for t in tries:
            own[t.subject].append(t.choice)
        choices = {s: self._dealt(s, found) for s, found in own.items()}
        asked = {t: self._asked(t, choices[t.subject]) for t in tries}
        self._rounds += 1
        path = self._folder / f"{self._rounds}.so"
        began = monotonic()
        artifact = self._written(path, chooser=HandedOut(choices))
        self._pace = replace(self._pace, written=monotonic() - began)
        try:
            turns = self._ask(Question(artifact, tuple(asked.values())))
        finally:
            path.unlink()
        self._pace = replace(self._pace, last=monotonic() - began)
        return {t: self._outcome(t, own, turns) for t, own in asked.items()}

    def _running(self, subject: Subject) -> set[int]:
        """The launches of a subject that a run does: of several plans, it does those of one.

        Before one has shown which, all may be.
        """
        return {p for p in self._places[subject] if not self._usual or self._calls[p]}

    def _dealt(self, subject: Subject, own: Sequence[Choice]) -> list[Choice]:
        """The schedule of each launch of a subject: those that a run does have them in turn."""
        running, in_turn = self._running(subject), cycle(own)
        return [next(in_turn) if p in running else own[0] for p in self._places[subject]]

    def _asked(self, t: Try, choices: Sequence[Choice]) -> Asked:
        """The launches that have a schedule, of those of its subject with these schedules."""
        places = zip(self._places[t.subject], choices, strict=True)
        ran = tuple(sorted({p for p, c in places if c == t.choice and self._calls[p]}))
        return Asked(ran, ran, self.usual()[t.subject].share, t.goal)

    def _outcome(self, t: Try, asked: Asked, turns: Turns) -> Outcome:
        """What turns tell of a schedule."""
        ratios = asked.ratios(turns.usual, turns.other)
        calls = float(turns.calls[list(asked.usual)].sum())
        now = float(np.median(asked.before(turns.usual))) * asked.share * 1e3 / calls
        low, high = interval(list(ratios))
        usual = self.usual()[t.subject].timing
        timing = Timing(now * float(np.median(ratios)), now * low, now * high, now / usual.cycles)
        return Outcome("measured", model=timing)

    def _ask(self, question: Question | None) -> Turns:
        """Runs a library in turns with the default one, or that one alone."""
        found = self.ask(question, COMPILE_S + SLOWEST * max(SECONDS, self._run_s))
        assert isinstance(found, Turns)
        return found


def _served(
    default: TimedLibrary, machine: Machine, sizes: Mapping[str, int]
) -> Callable[[Question | None], Turns]:
    """What answers how long a library's launches take beside the default one's."""
    clock = Clock(machine)
    usual = Profiled(default.library)
    given = values_to_time(usual, sizes)

    def turns(question: Question | None) -> Turns:
        if question is None:
            began = monotonic()
            (us,) = run_in_turns([usual], given, SECONDS)
            seconds, steps = monotonic() - began, usual.steps_of(default.launches)
            own = us[:, steps]
            return Turns(own, own, usual.calls[steps], clock.cycle_ns(), seconds)
        with Profiled(question.artifact.library) as other:
            both = [usual, other]
            began = monotonic()
            found = run_in_turns(both, given, SECONDS, question.enough(default, both))
            seconds = monotonic() - began
            us, others = question.launches(found, default, both)
            calls = usual.calls[usual.steps_of(default.launches)]
        return Turns(us, others, calls, clock.cycle_ns(), seconds)

    return turns
