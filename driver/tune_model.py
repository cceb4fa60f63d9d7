"""`tune_model`: a model's kernels searched for better schedules, all trials kept in the database.

The model is imported, optimised and planned as for a compilation. Its kernels are the subjects of
the search (`driver.tuning`). At last the model is compiled twice, with default schedules and with
those that were found, and both artifacts take turns: what is not faster in the model, too, gets a
note in the database, and no compilation takes it.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from rutc.base.progress import Progress
from rutc.base.record import record
from rutc.driver.build import Alternative, machine_of
from rutc.driver.compiler import compile_model, planned
from rutc.driver.options import Options
from rutc.driver.plan_steps import Pending, PlanSteps
from rutc.driver.trials import Bench
from rutc.driver.tuning import Limits, Progressing, Subject, Tried, Tuning, chooser_of
from rutc.driver.tuning_records import doubted, known_of, origin_of, rows_of
from rutc.driver.weights import Weights
from rutc.emit.targets import target_named
from rutc.emit.targets.select import host_features
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.runtime import InferenceSession, load
from rutc.tensor_ir.machine import Machine
from rutc.tuner.cost_model import CostModel
from rutc.tuner.database import Database
from rutc.tuner.search import Candidate
from rutc.verify.session_values import session_values

IN_MODEL_S = 1.0
"""For each of two artifacts that take turns; five runs at least."""
FEWEST_RUNS = 5


@record
class Tuned:
    """What became of one subject: its launches, cycles before and after, and in the model.

    `us` is what its launches take in a run of the model, with the default schedule and the other;
    None where the default one stays.
    """

    name: str
    launches: int
    trials: int
    default_cycles: float
    best_cycles: float
    template: str
    us: tuple[float, float] | None
    believed: bool


@record
class TuningReport:
    """What a search found, and what a run takes before and after."""

    tuned: tuple[Tuned, ...]
    trials: int
    failed: int
    errors: tuple[str, ...]
    """Why, the most common reasons first."""
    seconds: float
    database: str
    interrupted: bool
    default_us: float | None
    tuned_us: float | None


def tune_model(
    model: Path,
    database: Database,
    limits: Limits,
    *,
    options: Options | None = None,
    names: Sequence[str] = (),
    cpu: int | None = None,
    seed: int = 0,
    on_batch: Callable[[Progressing, Tuning], None] = lambda subject, tuning: None,
    on_progress: Progress | None = None,
) -> TuningReport:
    """Search for schedules of a model's kernels; `names` are parts of names of those to search.

    Raises:
        UserError: the model or an option is at fault, or the machine cannot run such code.
    """
    options = options or Options()
    machine = target_named(options.target).machine
    missing = sorted(machine.features - host_features())
    if missing:
        raise UserError(
            f"code for {machine.name} cannot be timed here: this processor lacks "
            f"{', '.join(missing)}; tune on a machine that has them"
        )
    began = perf_counter()
    tell = on_progress or (lambda stage, done, total: None)
    tell("plan", 0, 1)
    graph = import_model(model, shapes=options.shapes, dims=options.dims, values=options.values)
    found = versions(graph, machine, exact=options.exact_algorithms, spread=options.spread)
    plan, alternatives = planned(found, machine)
    launches = launches_of(plan, alternatives, machine)
    chosen = {
        s: own
        for s, own in launches.items()
        if not names or any(part in name_of(own[0]) for part in names)
    }
    if names and not chosen:
        known = ", ".join(sorted({name_of(own[0]) for own in launches.values()}))
        raise UserError(f"no kernel's name has {' or '.join(names)} in it; there are {known}")
    origin = origin_of(machine)
    kept: Counter[str] = Counter()
    errors: Counter[str] = Counter()

    def keep(tried: Sequence[Tried]) -> None:
        for final in (False, True):
            rows = [row for t in tried if t.final is final for row in rows_of(t, origin)]
            if rows:
                database.add(rows, replace=final)
        kept.update(t.outcome.status for t in tried if not t.final)
        errors.update(f"{t.outcome.status}: {t.outcome.error}" for t in tried if t.outcome.error)

    interrupted = False
    with Bench(machine, cpu) as bench:
        tuning = Tuning(
            {s: (len(own), name_of(own[0])) for s, own in chosen.items()},
            bench,
            CostModel,
            keep,
            seed,
            lambda subject: known_of(subject, origin, database),
        )
        try:
            for subject in tuning.run(limits):
                on_batch(subject, tuning)
        except KeyboardInterrupt:
            # All that was measured is kept.
            interrupted = True
        faster = {} if interrupted else tuning.faster()
    compared = _in_model(model, options, launches, faster, tell) if faster else None
    if compared is not None:
        for s, c in faster.items():
            if not compared.believed(s):
                database.add(doubted(c, s, origin, database), replace=True)
    return TuningReport(
        tuple(_told(t, compared) for t in tuning.subjects),
        sum(kept.values()),
        sum(n for status, n in kept.items() if status != "measured"),
        tuple(error for error, _ in errors.most_common()),
        perf_counter() - began,
        str(database.location),
        interrupted,
        None if compared is None else compared.run_us[0],
        None if compared is None else compared.run_us[1],
    )


def name_of(launch: Pending) -> str:
    """Returns how a user knows a launch: by the nodes that it computes."""
    first, *others = launch.origin or (launch.name,)
    return f"{first} .. {others[-1]}" if others else first


def launches_of(
    plan: Plan, alternatives: Sequence[Alternative], machine: Machine
) -> dict[Subject, list[Pending]]:
    """Returns what may be searched of a model: kernels, and their launches."""
    plans = [*(a.plan for a in alternatives), plan]
    machine = machine_of(plans, machine)
    found: defaultdict[Subject, list[Pending]] = defaultdict(list)
    for each in plans:
        for pending in PlanSteps(each, Weights()).pending:
            job = pending.job
            for kernel, constants in zip(job.kernels, job.constants, strict=True):
                subject = Subject(kernel, frozenset(constants), job.seen(machine))
                found[subject].append(pending)
    return dict(found)


# -- in the model -------------------------------------------------------------------------------
@record
class InModel:
    """What launches take in a run of the model: with default schedules, and with those found."""

    us: Mapping[Subject, tuple[float, float]]
    run_us: tuple[float, float]

    def believed(self, subject: Subject) -> bool:
        """Whether a subject's schedule is faster in the model, too."""
        return subject in self.us and self.us[subject][1] < self.us[subject][0]


def _in_model(
    model: Path,
    options: Options,
    launches: Mapping[Subject, Sequence[Pending]],
    faster: Mapping[Subject, Candidate],
    tell: Progress,
) -> InModel:
    """Runs artifacts with default schedules and with the others in turns."""
    tell("in the model", 0, 1)
    chooser = chooser_of({s: c.choice for s, c in faster.items()})
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for name, own in (("default", None), ("found", chooser)):
            place = Path(folder) / name / "model.so"
            place.parent.mkdir()
            made.append(compile_model(model, place, options, chooser=own).library)
        default, found = _turns(made)
    tell("in the model", 1, 1)
    us = {s: (default.of(launches[s]), found.of(launches[s])) for s in faster}
    return InModel(us, (sum(default.us.values()), sum(found.us.values())))


@record
class Profile:
    """The median microseconds of an artifact's functions in a run, and those of launches."""

    us: Mapping[str, float]
    symbols: Mapping[str, str]

    def of(self, launches: Sequence[Pending]) -> float:
        """Returns what the functions of these launches take."""
        return sum(self.us.get(s, 0.0) for s in {self.symbols[p.name] for p in launches})


def _turns(libraries: Sequence[Path]) -> list[Profile]:
    """Returns the profiles of artifacts that take turns."""
    times: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in libraries]
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(load(library, threads=1, profile=True)) for library in libraries
        ]
        inputs = session_values(sessions[0], ())
        before: list[dict[str, float]] = [{} for _ in libraries]
        began, runs = perf_counter(), 0
        while runs <= FEWEST_RUNS or perf_counter() - began < IN_MODEL_S * len(libraries):
            for number, session in enumerate(sessions):
                session.run(None, inputs)
                now = {e.name: e.total_us for e in session.profile()}
                if runs:
                    for name, total in now.items():
                        times[number][name].append(total - before[number].get(name, 0.0))
                before[number] = now
            runs += 1
        symbols = [_symbols(session) for session in sessions]
    return [
        Profile({name: median(us) for name, us in own.items()}, known)
        for own, known in zip(times, symbols, strict=True)
    ]


def _symbols(session: InferenceSession) -> dict[str, str]:
    """The function of every launch."""
    kernels = session.manifest["kernels"]
    assert isinstance(kernels, list)
    return {k["name"]: k["symbol"] for k in kernels}


def _told(t: Progressing, compared: InModel | None) -> Tuned:
    best = t.search.best
    return Tuned(
        t.name,
        t.runs,
        t.trials,
        t.default_cycles,
        t.best_cycles,
        "" if best is None else best[0].space.template.name,
        None if compared is None else compared.us.get(t.subject),
        compared is not None and compared.believed(t.subject),
    )
