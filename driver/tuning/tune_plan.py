"""A model's plan searched for a better one, all that is tried kept in the database."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

from rutc.base.record import record
from rutc.driver.options import Options
from rutc.driver.plans.planning import in_types_of
from rutc.driver.timing.model_bench import timed_sizes
from rutc.driver.timing.plan_bench import PlanChange, PlanRuns
from rutc.driver.timing.side_by_side import Ratio
from rutc.driver.tuning.plan_records import (
    known_changes,
    plan_task,
    realised,
    row_of_change,
    row_of_plan,
)
from rutc.driver.tuning.plan_search import (
    Kept,
    PlanMemory,
    PlanProgress,
    PlanSearch,
    PlanSpace,
)
from rutc.driver.tuning.records_in import records_in
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import ANYWHERE, TimedRuns
from rutc.driver.tuning.tuning_records import origin_of
from rutc.graph_opt.assignment import Assignment
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.machine import Machine
from rutc.tuner.database.database import Database


@record
class PlanFound:
    """The plan to go on with, what has changed in it, and a run of it by one of the usual plan.

    There are no `runs`, by threads, where the search has changed nothing.
    """

    plan: Plan
    tried: int = 0
    failed: int = 0
    steps: tuple[Kept, ...] = ()
    runs: Mapping[int, Ratio] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def taken(self) -> bool:
        """Whether compilations take it: it is faster on one thread and on all CPUs."""
        return bool(self.runs) and all(r.faster for r in self.runs.values())


def tune_plan(
    graph: Graph,
    usual: Plan,
    machine: Machine,
    database: Database,
    options: Options,
    narrow: Options,
    limits: SearchLimits,
    runs: TimedRuns = ANYWHERE,
    seed: int = 0,
    on_round: Callable[[PlanProgress], None] = lambda outcome: None,
) -> PlanFound:
    """Search from the usual plan of an imported graph on, or from that on record.

    It is on record for the `options` as they were given; `narrow` are those that their precision
    has become: what plans have to do with it, and of which sums factors are rounded. Kernels have
    the schedules that are on record.

    Raises:
        UserError: the model does not run.
    """
    records, origin = records_in(database, options), origin_of(machine)
    task, exact = plan_task(graph, machine, options), options.exact_algorithms
    assert usual.assignment is not None
    assignment = usual.assignment
    start = realised(graph, assignment, machine, exact=exact)
    if start is None:
        return PlanFound(usual)
    known = records.plans.look_up(graph, assignment).assignment
    first = None if known is None else realised(graph, known, machine, exact=exact)

    timed = timed_sizes(dict(graph.symbols), runs.sizes)

    def keep(c: PlanChange, ratio: Ratio | None, base: Assignment) -> None:
        rows = [row_of_change(task, origin, c, ratio, base, timed)]
        database.add(rows, replace=bool(timed))

    with tempfile.TemporaryDirectory() as folder:
        search = PlanSearch(
            graph,
            start,
            PlanRuns(
                machine,
                Path(folder),
                records.schedules,
                runs.cpu,
                runs.sizes,
                options.keep_subnormals,
            ),
            PlanSpace(
                first,
                exact,
                frozenset(options.spread),
                None if narrow.only is None else frozenset(narrow.only),
                in_types_of(machine, narrow.precision) or (lambda found: found),
            ),
            PlanMemory(lambda base: known_changes(task, origin, base, database, timed), keep),
            seed,
        )
        out, interrupted = search.outcome, False
        try:
            for found in search.run(limits.seconds, limits.trials):
                on_round(found)
        except KeyboardInterrupt:
            interrupted = True
    told = PlanFound(out.best.plan, out.tried, out.failed, tuple(out.steps), out.runs, interrupted)
    if told.taken:
        row = row_of_plan(task, origin, out.best.assignment, out.runs[1], assignment, timed)
        database.add([row], replace=bool(timed))
    elif out.steps or first is None:
        told = replace(told, plan=(first or start).plan)
    return told
