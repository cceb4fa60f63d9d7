"""How trials become records of the database, and records what is known of a kernel's schedules."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from math import exp, log

from rutc.base.processor import cpu_name
from rutc.driver.trials import Timing
from rutc.driver.tuning import CERTAIN, Known, Subject, Tried, scheduled
from rutc.emit.targets.select import host_processor
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, parse_schedule, print_schedule
from rutc.tuner import choose, trial
from rutc.tuner.choice import Choice
from rutc.tuner.database import Database
from rutc.tuner.search import Candidate, Place, text_of
from rutc.tuner.trial import digest

NOT_BELIEVED = "not faster in a model"
"""The note of a record whose schedule was the fastest alone, and not in the model."""


def origin_of(machine: Machine) -> trial.Origin:
    """Returns where trials for a machine are made now."""
    return trial.Origin(
        cpu_name(),
        host_processor(),
        tuple(sorted(machine.features)),
        trial.facts(machine),
        version("rutc"),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def task_of(subject: Subject) -> trial.Task:
    """Returns how the database knows a subject."""
    return trial.Task(str(subject.kernel), tuple(sorted(subject.constants)), subject.machine.name)


def rows_of(tried: Tried, origin: trial.Origin) -> list[trial.Trial]:
    """Returns the rows of a trial: of near operands, and of far ones."""
    c, outcome = tried.candidate, tried.outcome
    summary = summarise(c.kernel, tried.subject.machine)
    beside = tried.reference
    said = {
        "place": [tried.place.space, *tried.place.numbers],
        "default": digest(text_of(tried.default.choice)),
        "beside": None if beside is None else {"near": beside.near, "far": beside.far},
        "regions": [
            [r.times, r.entries, dict(r.work), dict(r.functions), r.chain, r.moved, r.evicted]
            for r in summary.regions
        ],
    }
    text = json.dumps(said, separators=(",", ":"))
    times: dict[trial.State, Timing | None] = {"near": outcome.near, "far": outcome.far}
    return [
        trial.Trial(
            task_of(tried.subject),
            origin,
            print_schedule(c.choice.schedule),
            c.choice.packing,
            c.space.template.name,
            state=state,
            status=outcome.status,
            median_ns=None if t is None else t.ns,
            low_ns=None if t is None else t.low,
            high_ns=None if t is None else t.high,
            reference_ns=None if t is None else t.cycle_ns,
            error=outcome.error,
            summary=text,
        )
        for state, t in times.items()
    ]


def known_of(subject: Subject, origin: trial.Origin, database: Database) -> list[Known]:
    """Returns what is known of a subject's schedules on this machine."""
    likeness = trial.like(origin)
    own = [t for t in database.trials(task_of(subject)) if likeness(t.origin) == 0]
    return [k for text, states in grouped(own).items() for k in _known(text, states)]


def doubted(
    candidate: Candidate, subject: Subject, origin: trial.Origin, database: Database
) -> list[trial.Trial]:
    """Returns the rows of a schedule with the note that it is not to be taken."""
    text, key = text_of(candidate.choice), origin.key
    own = [t for t in database.trials(task_of(subject)) if t.origin.key == key]
    return [replace(t, error=NOT_BELIEVED) for t in grouped(own).get(text, {}).values()]


def grouped(trials: Iterable[trial.Trial]) -> dict[str, dict[str, trial.Trial]]:
    """Returns trials by what tells their schedules apart, and by the state of operands."""
    found: defaultdict[str, dict[str, trial.Trial]] = defaultdict(dict)
    for t in trials:
        found[f"{t.schedule} {trial.packing_text(t.packing)}"][t.state] = t
    return dict(found)


def _known(text: str, states: Mapping[str, trial.Trial]) -> Iterator[Known]:
    first = next(iter(states.values()))
    try:
        space, *numbers = json.loads(first.summary)["place"]
    except (ValueError, LookupError, TypeError):
        return
    yield Known(Place(space, tuple(numbers)), text, ratio_of(states))


def ratio_of(states: Mapping[str, trial.Trial]) -> float | None:
    """Returns a schedule's time by that of the default one beside it; None where it is not known.

    It is the mean of near and far operands. The default schedule has no other beside it.
    """
    if set(states) != set(trial.STATES):
        return None
    logs = []
    for state, t in states.items():
        try:
            beside = json.loads(t.summary)["beside"]
            cycles = None if beside is None else float(beside[state])
        except (ValueError, LookupError, TypeError):
            return None
        if t.median_ns is None or not t.reference_ns:
            return None
        logs.append(0.0 if cycles is None else log(t.median_ns / t.reference_ns / cycles))
    return exp(sum(logs) / len(logs))


def default_of(states: Mapping[str, trial.Trial]) -> str:
    """Returns the digest of the default schedule beside which one was timed."""
    try:
        return str(json.loads(next(iter(states.values())).summary)["default"])
    except (ValueError, LookupError, TypeError):
        return ""


class RecordedSchedules:
    """Chooses the fastest schedule that is on record for a kernel, on a machine like this one.

    It has to be faster than the default one, which took turns with it.
    """

    def __init__(self, database: Database, machine: Machine) -> None:
        """Of a database, for code of a machine."""
        self._database = database
        self._origin = origin_of(machine)
        self.found = 0
        """Kernels that got a schedule of the database."""

    def __call__(
        self, kernel: Kernel, constants: frozenset[str], machine: Machine
    ) -> Choice | None:
        """Returns the schedule; None for the default one."""
        task = task_of(Subject(kernel, constants, machine))
        likeness = trial.like(self._origin)
        near: defaultdict[int, list[trial.Trial]] = defaultdict(list)
        for t in self._database.trials(task):
            distance = likeness(t.origin)
            if distance is not None:
                near[distance].append(t)
        if not near:
            return None
        usual = digest(text_of(choose(kernel, machine, constants)))
        by_text = grouped(near[min(near)])
        known = [
            (ratio, text)
            for text, states in by_text.items()
            if (ratio := ratio_of(states)) is not None
            and default_of(states) == usual
            and not any(t.error for t in states.values())
        ]
        if not known:
            return None
        ratio, text = min(known)
        if ratio > 1 - CERTAIN:
            return None
        row = next(iter(by_text[text].values()))
        choice = Choice(parse_schedule(row.schedule), row.packing)
        try:
            scheduled(kernel, choice)
        except (NotApplicable, ValueError):
            # Of an older version.
            return None
        self.found += 1
        return choice
