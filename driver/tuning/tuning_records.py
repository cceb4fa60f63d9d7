"""How trials become records of the database, and records what is known of a kernel's schedules."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from math import exp, log
from typing import Any

from rutc.base.processor import cpu_name
from rutc.base.record import record
from rutc.driver.timing.certainty import CERTAIN
from rutc.driver.timing.model_bench import Subject
from rutc.driver.timing.trials import Timing
from rutc.driver.tuning.schedule_search import Known, Tried, kernel_after
from rutc.emit.targets.select import host_processor
from rutc.tensor_ir.cost import Region
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, parse_schedule, print_schedule
from rutc.tuner import choose
from rutc.tuner.choice import Choice, OnRecord
from rutc.tuner.database import trial
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import digest
from rutc.tuner.search.nest_features import features
from rutc.tuner.search.search import Place, text_of
from rutc.tuner.search.seeds import Seed, point_on_record

NOT_BELIEVED = "not faster in a model"
"""The note of a record whose schedule was the fastest, and is not when it runs for longer."""
BELIEVED = "believed"
"""What the summary of a record says of which whole runs have told that it is faster."""


def origin_of(machine: Machine) -> trial.Origin:
    """Returns where trials for a machine are made now."""
    return trial.Origin(
        cpu_name(),
        host_processor(),
        tuple(sorted(machine.features)),
        trial.facts(machine),
        _version(),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _version() -> str:
    """The version of this package, which is on a path of modules and may have no metadata."""
    # The package's own module imports this one, if only by name.
    return str(import_module("rutc").__version__)


def task_of(subject: Subject) -> trial.Task:
    """Returns how the database knows a subject."""
    return trial.Task(str(subject.kernel), tuple(sorted(subject.constants)), subject.machine.name)


def rows_of(
    tried: Tried, origin: trial.Origin, sizes: Mapping[str, int] | None = None
) -> list[trial.Trial]:
    """Returns the rows of a trial, one for each state that it was tried in.

    `sizes` are those of the kernel's symbols in the run, by its names.
    """
    c, outcome, beside, place = tried.candidate, tried.outcome, tried.beside, tried.place
    said: dict[str, object] = {
        "place": None if place is None else [place.space, *place.numbers],
        "point": point_on_record(c),
        "default": digest(text_of(tried.default.choice)),
        "beside": None if beside is None else dict(beside),
        "regions": [
            [r.times, r.entries, dict(r.work), dict(r.functions), r.chain, r.moved, r.evicted]
            for r in c.judged.regions
        ],
        **({"sizes": dict(sizes)} if sizes else {}),
    }
    text = json.dumps(said, separators=(",", ":"))
    times: dict[trial.State, Timing | None] = {**outcome.times} or {"model": None}
    return [
        trial.Trial(
            task_of(tried.subject),
            origin,
            print_schedule(c.choice.schedule),
            c.template,
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


def known_of(
    subject: Subject,
    origin: trial.Origin,
    database: Database,
    sizes: Mapping[str, int] | None = None,
) -> list[Known]:
    """Returns what is known of a subject's schedules on this machine, at these sizes."""
    likeness = trial.like(origin)
    own = [
        t
        for t in database.trials(task_of(subject))
        if likeness(t.origin) == 0 and _said(t).get("sizes", {}) == (sizes or {})
    ]
    return [Known(r.place, r.text, _known_ratio(r)) for r in recorded(own) if r.place is not None]


def _known_ratio(r: Recorded) -> float | None:
    """What a schedule takes by the default one; what no whole run is faster with is no faster."""
    return max(r.ratio, 1.0) if r.ratio is not None and r.doubted else r.ratio


def seeds_in(database: Database, machine: Machine) -> list[Seed]:
    """Returns the fastest schedules of all kernels on machines like this one.

    Of those that seem faster than default ones: they are proposals, to be measured. What was
    recorded without its point, or made by hand, is none.
    """
    likeness = trial.like(origin_of(machine))
    of_task: defaultdict[trial.Task, list[trial.Trial]] = defaultdict(list)
    for t in database.trials(status="measured"):
        of_task[t.task].append(t)
    found: list[Seed] = []
    for task, trials in of_task.items():
        own = nearest(trials, likeness)
        usual = next((said for t in own if (said := _said(t)).get("beside", 0) is None), {})
        known = [r for r in recorded(own) if not r.doubted and r.ratios is not None]
        best = min(known, key=lambda r: (r.ratios, r.text), default=None)
        if best is None or best.ratios is None or best.ratios[0] > 1 - CERTAIN:
            continue
        try:
            point = _said(best.trial)["point"]
            regions = [
                Region("", times, entries, work, functions, chain, 0, moved, evicted)
                for times, entries, work, functions, chain, moved, evicted in usual["regions"]
            ]
            row = features(regions, machine)
        except (LookupError, TypeError, ValueError):
            # Of an older version, or made by others.
            continue
        if isinstance(point, dict) and point:
            found.append(Seed(task.key, best.trial.template, point, tuple(map(float, row))))
    return found


def judged(
    choice: Choice, subject: Subject, origin: trial.Origin, database: Database, *, faster: bool
) -> list[trial.Trial]:
    """Returns the rows of a schedule with what whole runs tell: whether it is to be taken."""
    text, key = text_of(choice), origin.key
    own = [t for t in database.trials(task_of(subject)) if t.origin.key == key]
    return [
        replace(
            t,
            error="" if faster else NOT_BELIEVED,
            summary=json.dumps({**_said(t), BELIEVED: faster}, separators=(",", ":")),
        )
        for t in own
        if t.schedule == text
    ]


@record
class Recorded:
    """A schedule on record: its text and place, and its time by that of the default one beside it.

    `default` is the digest of that one. The `ratios` are those of the median time and of the ends
    of its interval, in a model, or else the means of near and far operands; None where they are not
    known. What is `believed` was faster in whole runs, what is `doubted` was not: only what is
    believed is taken.
    """

    text: str
    place: Place | None
    default: str
    ratios: tuple[float, float, float] | None
    doubted: bool
    believed: bool
    trial: trial.Trial

    @property
    def ratio(self) -> float | None:
        """What it takes at most, almost surely."""
        return None if self.ratios is None else self.ratios[2]

    @property
    def cycles(self) -> float | None:
        """Its median time, in cycles of the clock."""
        t = self.trial
        return t.median_ns / t.reference_ns if t.median_ns and t.reference_ns else None


def recorded(trials: Iterable[trial.Trial]) -> list[Recorded]:
    """Returns the schedules of some trials of one task."""
    found: defaultdict[str, dict[str, trial.Trial]] = defaultdict(dict)
    for t in trials:
        found[t.schedule][t.state] = t
    return [_recorded(text, states) for text, states in found.items()]


def _recorded(text: str, states: Mapping[str, trial.Trial]) -> Recorded:
    said = {state: _said(t) for state, t in states.items()}
    first = next(iter(said.values()))
    try:
        space, *numbers = first["place"]
        place = Place(space, tuple(numbers))
    except (LookupError, TypeError, ValueError):
        place = None
    logs = {state: _log_ratios(t, said[state], state) for state, t in states.items()}
    found = logs.get("model")
    alone = [x for state in trial.ALONE if (x := logs.get(state)) is not None]
    if found is None and len(alone) == len(trial.ALONE):
        median, low, high = (sum(each) / len(alone) for each in zip(*alone, strict=True))
        found = median, low, high
    return Recorded(
        text,
        place,
        str(first.get("default", "")),
        None if found is None else (exp(found[0]), exp(found[1]), exp(found[2])),
        any(t.error for t in states.values()),
        all(each.get(BELIEVED) is True for each in said.values()),
        next(iter(states.values())),
    )


def _said(t: trial.Trial) -> Mapping[str, Any]:
    """What `rows_of` has put into a trial's summary; nothing if others have made it."""
    try:
        found = json.loads(t.summary)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _log_ratios(
    t: trial.Trial, said: Mapping[str, Any], state: str
) -> tuple[float, float, float] | None:
    """The logarithms of a trial's cycles (median, low, high) by the default one's beside it."""
    if t.median_ns is None or t.low_ns is None or t.high_ns is None or not t.reference_ns:
        return None
    if "beside" not in said:
        return None
    if said["beside"] is None:
        return 0.0, 0.0, 0.0
    try:
        one = t.reference_ns * float(said["beside"][state])
        return log(t.median_ns / one), log(t.low_ns / one), log(t.high_ns / one)
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return None


def nearest(trials: Iterable[trial.Trial], likeness: trial.Likeness) -> list[trial.Trial]:
    """Returns the trials that were made on the machines most like one."""
    near: defaultdict[int, list[trial.Trial]] = defaultdict(list)
    for t in trials:
        distance = likeness(t.origin)
        if distance is not None:
            near[distance].append(t)
    return near[min(near)] if near else []


@record
class ScheduleOnRecord:
    """The schedule on record that is taken for a kernel, or why none is.

    The cycles are those that the default schedule and this one took, where they are known.
    """

    choice: Choice | None
    why: str
    default_cycles: float | None = None
    cycles: float | None = None


class RecordedSchedules:
    """Chooses the fastest schedule that is on record for a kernel, on a machine like this one.

    It has to be faster than the default one, which took turns with it, and whole runs have to
    have confirmed it: the fastest of many that were timed once is often so by chance.
    """

    def __init__(self, database: Database, machine: Machine) -> None:
        """Of a database, for code of a machine."""
        self._database = database
        self._likeness = trial.like(origin_of(machine))
        self._known: dict[tuple[Kernel, frozenset[str], Machine], Choice | None] = {}

    def __call__(
        self, kernel: Kernel, constants: frozenset[str], machine: Machine
    ) -> Choice | None:
        """Returns the schedule; None for the default one. Of equal kernels it looks for one's."""
        key = kernel, constants, machine
        if key not in self._known:
            self._known[key] = self.look_up(Subject(kernel, constants, machine)).choice
        return self._known[key]

    def look_up(self, subject: Subject) -> ScheduleOnRecord:
        """Returns what is on record of a kernel."""
        own = self._database.trials(task_of(subject))
        known = recorded(nearest(own, self._likeness))
        if not known:
            return ScheduleOnRecord(None, "nothing is on record")
        text = text_of(choose(subject.kernel, subject.machine, subject.constants))
        usual = digest(text)
        before = next((r.cycles for r in known if r.text == text), None)
        others = sum(r.text != text for r in known)
        first = known[0].trial.origin
        if not others:
            why = f"no other one was tried on {first.cpu}, {first.date}"
            return ScheduleOnRecord(None, why, before)
        tried = f"of {others} tried on {first.cpu}, {first.date}"
        faster = [r for r in known if r.ratio is not None and r.ratio <= 1 - CERTAIN]
        if not faster:
            return ScheduleOnRecord(None, f"{tried}, none is faster for sure", before)
        doubted = any(r.doubted for r in faster)
        faster = [r for r in faster if r.believed and not r.doubted]
        if not faster:
            said = "none is faster in a model" if doubted else "whole runs have confirmed none"
            return ScheduleOnRecord(None, f"{tried}, {said}", before)
        faster = [r for r in faster if r.default == usual]
        if not faster:
            why = f"{tried}, those that are faster took turns with another default schedule"
            return ScheduleOnRecord(None, why, before)
        best = min(faster, key=lambda r: (r.ratio, r.text))
        row, ratios = best.trial, best.ratios
        assert ratios is not None
        told = OnRecord(others, *ratios, row.origin.cpu, row.origin.date)
        try:
            choice = Choice(parse_schedule(row.schedule), told)
            kernel_after(subject.kernel, choice, subject.constants)
        except (NotApplicable, ValueError):
            why = f"{tried}, the fastest is of another version and does not apply"
            return ScheduleOnRecord(None, why, before)
        after = best.cycles
        return ScheduleOnRecord(choice, "", None if after is None else after / ratios[0], after)
