"""`tune_model`: a model searched for a better plan and schedules, all trials kept in the database.

The model is imported, optimised and planned as for a compilation. First decisions of the plan are
tried (`driver.tuning.tune_plan`), then schedules of its kernels, the subjects of the search
(`driver.tuning.schedule_search`). At last whole runs tell which of those that were found are
believed (`driver.tuning.confirm`): compilations take no others.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter

from rutc.base.blas import one_blas_thread
from rutc.base.record import record
from rutc.driver.options import Options
from rutc.driver.parts.launches import Pending
from rutc.driver.plans.planning import imported, machine_for, planned, versions_for
from rutc.driver.precision.apply_precision import in_precision
from rutc.driver.timing.cluster import ClusterBench
from rutc.driver.timing.model_bench import ModelBench, Planned, Subject, timed_sizes
from rutc.driver.timing.side_by_side import Ratio
from rutc.driver.tuning.confirm import Confirmed, Reserve, confirmed, needed
from rutc.driver.tuning.schedule_search import Progressing, SearchLimits, Tried, Tuning
from rutc.driver.tuning.search_rounds import Rounds
from rutc.driver.tuning.search_terms import (
    ANYWHERE,
    EVERYTHING,
    NOBODY,
    Listeners,
    Searched,
    TimedRuns,
)
from rutc.driver.tuning.tune_plan import PlanFound, tune_plan
from rutc.driver.tuning.tuning_records import judged, known_of, origin_of, rows_of, seeds_in
from rutc.emit.targets.select import host_features
from rutc.errors import UserError
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import bound_symbols
from rutc.tensor_ir.indices.ranges import Range, sizes_text
from rutc.tensor_ir.machine import Machine
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import Origin, Trial
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.search import Candidate

PLANS = 0.5
"""The share of a search that is for plans."""
CONFIRMED = 0.5
"""The share of what is left of a search for schedules that is for confirming, at most: with fewer
runs then."""


@record
class Tuned:
    """What became of one subject: its launches, cycles before and after, and in the model.

    `us` is what its launches take in a run of the model on one thread, with the default schedule
    and the other; None where no other was tried in whole runs.
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
    runs: Mapping[int, Ratio]
    """What a run takes with the schedules that are believed by what it took, by threads."""
    plan: PlanFound | None = None
    """What became of the plan, if it was searched."""
    sizes: str = ""
    """Those of the runs that were timed, where they are symbolic: `batch=1`."""
    no_plans: str = ""
    """Why plans were not searched though they were to be."""
    lacked: float = 0.0
    """The seconds that a first round of schedules would have taken, with what confirms it, where
    there were fewer left; 0 elsewhere."""


@one_blas_thread()
def tune_model(
    model: Path,
    database: Database,
    limits: SearchLimits,
    options: Options | None = None,
    searched: Searched = EVERYTHING,
    runs: TimedRuns = ANYWHERE,
    told: Listeners = NOBODY,
) -> TuningReport:
    """Search for a model's plan, then for schedules of its kernels.

    Raises:
        UserError: the model or an option is at fault, or the machine cannot run such code.
    """
    options = options or Options()
    machine = machine_for(options)
    _check_runs_here(machine)
    began = perf_counter()
    told.on_progress("plan", 0, 1)
    graph = imported(model, options)
    at = sizes_text(timed_sizes(input_symbols(graph), runs.sizes))
    narrow = in_precision(graph, machine, options, told.on_progress)
    graph = narrow.graph
    found = versions_for(graph, machine, narrow.options)
    plan, earlier = planned(found, machine, narrow.options.precision)
    better: PlanFound | None = None
    # A plan is of all kernels: those of some names keep the plan that they have.
    plans = searched.plans and runs.cluster is None
    if plans and not earlier and not searched.names:
        better = tune_plan(
            graph,
            plan,
            machine,
            database,
            options,
            narrow.options,
            limits.share(PLANS),
            runs,
            searched.seed,
            told.on_plan,
        )
        if better.interrupted:
            spent, place = perf_counter() - began, str(database.location)
            counts = better.tried, better.failed
            return TuningReport((), *counts, (), spent, place, True, {}, better, at)
        plan = better.plan
    tried, failed = (0, 0) if better is None else (better.tried, better.failed)
    own = Planned(plan, earlier, machine, runs.sizes, options.keep_subnormals)
    left = limits.after(0.0, tried)
    schedules = _search_schedules(own, database, left, began, searched, runs, told)
    keep = schedules.kept
    return TuningReport(
        schedules.tuned,
        keep.trials + tried,
        keep.failed + failed,
        tuple(error for error, _ in keep.errors.most_common()),
        perf_counter() - began,
        str(database.location),
        schedules.interrupted,
        schedules.runs,
        better,
        at,
        "by sizes, a model has several plans" if searched.plans and earlier else "",
        schedules.lacked,
    )


@record
class _Schedules:
    """What became of a search for schedules; `runs` are whole runs with all that are believed.

    `lacked` are the seconds of a first round and what follows, where there were fewer left.
    """

    tuned: tuple[Tuned, ...]
    kept: _Keeper
    runs: Mapping[int, Ratio]
    interrupted: bool
    lacked: float


def _search_schedules(
    own: Planned,
    database: Database,
    limits: SearchLimits,
    began: float,
    searched: Searched,
    runs: TimedRuns,
    told: Listeners,
) -> _Schedules:
    """Searches for schedules of kernels, then confirms what is found in whole runs.

    The seconds of the limits are those since the search for plans `began`, and for all.
    """
    chosen = _chosen(own.launches(), searched.names)
    timed, origin = own.timed(), origin_of(own.machine)
    keep = _Keeper(database, origin, timed)
    jobs = len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory() as folder,
        ModelBench(own, Path(folder), jobs, runs.cpu) as local,
    ):
        before = perf_counter() - began
        tuning = Tuning(
            chosen,
            local if runs.cluster is None else ClusterBench(local, own, runs.cluster),
            lambda subject: CostModel(subject.machine, timed[subject]),
            keep,
            searched.seed,
            lambda subject: known_of(subject, origin, database, timed[subject]),
            searched.given,
            seeds_in(database, own.machine) if searched.seeds else (),
            jobs,
        )
        left = limits.after(before, 0)
        rounds = Rounds(monotonic() + left.seconds - tuning.seconds, local.pace.round)
        place = Path(folder)
        search = _Search(own, tuning, local, rounds, database, origin, place, runs.cpu, told)
        try:
            search.run(left)
            interrupted = False
        except KeyboardInterrupt:
            # All that was measured is kept.
            interrupted = True
    compared = search.compared
    tuned = tuple(_told(t, compared) for t in tuning.subjects)
    whole = {} if compared is None else compared.runs
    return _Schedules(tuned, keep, whole, interrupted, search.lacked)


@dataclass
class _Search:
    """Rounds of trials, and whole runs with the fastest schedules, in turns while there is time."""

    own: Planned
    tuning: Tuning
    local: ModelBench
    rounds: Rounds
    database: Database
    origin: Origin
    folder: Path
    cpu: int | None
    told: Listeners
    reserve: Reserve = field(default_factory=Reserve)
    compared: Confirmed | None = None
    """What whole runs told, if there were any."""
    lacked: float = 0.0
    """The seconds of a first round and what follows, where there were fewer left."""

    def run(self, limits: SearchLimits) -> None:
        """Searches, confirms what is found, and what that leaves of its time is for more rounds."""
        tuning = self.tuning
        believed: dict[Subject, Candidate] = {}
        for number in count():
            done = tuning.rounds
            self.reserve.most = CONFIRMED * self.rounds.left
            for subject in tuning.run(limits, self.rounds, self._at_last, self._fixed):
                self.told.on_batch(subject, tuning)
            if not tuning.rounds and tuning.trials < limits.trials and not tuning.finished:
                self.lacked = self.local.pace.round + self._at_last()
            if number and tuning.rounds == done:
                break
            began = monotonic()
            faster = tuning.faster()
            if not faster or faster == believed:
                continue
            found = self._confirmed(faster)
            self.reserve.took = monotonic() - began
            self.compared = found if self.compared is None else self.compared.then(found)
            believed = {s: c for s, c in faster.items() if s in found.believed}
            tuning.doubt({s: c for s, c in faster.items() if s not in believed})

    def _fixed(self) -> float:
        """What a round takes however few are tried in it."""
        return self.local.pace.fixed

    def _at_last(self) -> float:
        """What follows the last round: the fastest are timed again, and confirmed."""
        return self.reserve.seconds(self.local.pace, self.cpu)

    def _confirmed(self, faster: Mapping[Subject, Candidate]) -> Confirmed:
        """What whole runs tell of schedules, which is kept."""
        self.told.on_progress("in the model", 0, 1)
        choices = {s: c.choice for s, c in faster.items()}

        def share() -> float:
            """As there is time for: how many artifacts there will be is not known."""
            return needed(self.local.pace, self.cpu).share(self.rounds.left)

        found = confirmed(self.own, choices, self.local.default, self.folder, self.cpu, share)
        for s, c in faster.items():
            rows = judged(c.choice, s, self.origin, self.database, faster=s in found.believed)
            self.database.add(rows, replace=True)
        self.told.on_progress("in the model", 1, 1)
        return found


def _check_runs_here(machine: Machine) -> None:
    """Raises UserError if this processor does not run code for a machine."""
    missing = sorted(machine.features - host_features())
    if missing:
        raise UserError(
            f"code for {machine.name} cannot be timed here: this processor lacks "
            f"{', '.join(missing)}; tune on a machine that has them"
        )


def _chosen(
    launches: Mapping[Subject, Sequence[Pending]], names: Sequence[str]
) -> dict[Subject, str]:
    """The subjects with one of these parts in their names, or all if there are none; their names.

    Raises:
        UserError: no subject's name has any of them.
    """
    named = {s: name_of(first) for s, (first, *_) in launches.items()}
    if not names:
        return named
    chosen = {s: name for s, name in named.items() if any(part in name for part in names)}
    if not chosen:
        known = ", ".join(sorted(set(named.values())))
        raise UserError(f"no kernel's name has {' or '.join(names)} in it; there are {known}")
    return chosen


class _Keeper:
    """Adds trials to the database, and counts them, but for those of default schedules.

    `sizes` are those of each subject's runs.
    """

    def __init__(
        self, database: Database, origin: Origin, sizes: Mapping[Subject, Mapping[str, int]]
    ) -> None:
        self._database, self._origin, self._sizes = database, origin, sizes
        self.trials = 0
        self.failed = 0
        self.errors: Counter[str] = Counter()

    def __call__(self, tried: Sequence[Tried]) -> None:
        rows: dict[bool, list[Trial]] = {False: [], True: []}
        for t in tried:
            own = self._sizes[t.subject]
            # Of one schedule there is one time: that of the sizes that were asked for last.
            rows[t.final or bool(own)] += rows_of(t, self._origin, own)
        for replaces, these in rows.items():
            if these:
                self._database.add(these, replace=replaces)
        for t in tried:
            if t.final or t.candidate is t.default:
                continue
            self.trials += 1
            self.failed += t.outcome.status != "measured"
            if t.outcome.error:
                self.errors[f"{t.outcome.status}: {t.outcome.error}"] += 1


def input_symbols(graph: Graph) -> dict[str, Range]:
    """Returns the sizes that the inputs' shapes leave open."""
    bound = bound_symbols(graph.nodes)
    return {name: limits for name, limits in graph.symbols if name not in bound}


def name_of(launch: Pending) -> str:
    """Returns how a user knows a launch: by the nodes that it computes."""
    first, *others = launch.origin or (launch.name,)
    return f"{first} .. {others[-1]}" if others else first


def _told(t: Progressing, compared: Confirmed | None) -> Tuned:
    best = t.search.best
    return Tuned(
        t.name,
        round(t.runs),
        t.trials,
        t.default_cycles,
        t.best_cycles,
        "" if best is None else best[0].template,
        None if compared is None else compared.us(t.subject),
        compared is not None and t.subject in compared.believed,
    )
