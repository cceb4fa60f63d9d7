"""Plans as records of the database: what a search tried, and which plan a compilation takes.

The task is the imported graph without its weights, and how it is to be compiled. A record is of a
change that was tried, or of a plan that was found, whose text is that of its assignment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rutc.base.record import record
from rutc.driver.options import Options
from rutc.driver.tuning.tuning_records import nearest, origin_of
from rutc.errors import InternalError
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.assignment import Assignment, parse_assignment
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.pipeline import OnStep
from rutc.graph_opt.plan import Illegal, Plan
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tuner.choice import OnRecord
from rutc.tuner.database import trial
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import digest

if TYPE_CHECKING:
    from rutc.driver.timing.plan_bench import PlanChange
    from rutc.driver.timing.side_by_side import Ratio

PLAN, CHANGE = "plan", "change of a plan"
"""In the place of a schedule's template."""
WEIGHTS = re.compile(r'\bdata "[0-9a-f]+"')
"""What stands for a large constant's elements in the text of a graph."""


def plan_task(graph: Graph, machine: Machine, options: Options) -> trial.Task:
    """Returns how the database knows the plans of an imported graph.

    What a calibration decides is in the usual plan, which records name.
    """
    how = {
        "precision": options.precision,
        "exact": options.exact_algorithms,
        "spread": options.spread,
    }
    text = WEIGHTS.sub("data", str(graph))
    return trial.Task(f"plan {json.dumps(how)}\n{text}", (), machine.name)


def row_of_change(
    task: trial.Task,
    origin: trial.Origin,
    c: PlanChange,
    ratio: Ratio | None,
    base: Assignment,
    sizes: Mapping[str, int] | None = None,
) -> trial.Trial:
    """Returns the row of a change that was tried of a plan; without a ratio it did not run.

    `sizes` are those of its run, where they are symbolic.
    """
    return _row(task, origin, f"{c}\nof {digest(str(base))}", CHANGE, ratio, base, sizes)


def known_changes(
    task: trial.Task,
    origin: trial.Origin,
    base: Assignment,
    database: Database,
    sizes: Mapping[str, int] | None = None,
) -> frozenset[str]:
    """Returns what was tried already of a plan on this machine, at these sizes."""
    like, end = trial.like(origin), f"\nof {digest(str(base))}"
    return frozenset(
        t.schedule.removesuffix(end)
        for t in database.trials(task)
        if t.template == CHANGE
        and t.schedule.endswith(end)
        and like(t.origin) == 0
        and (t.status != "measured" or json.loads(t.summary).get("sizes", {}) == (sizes or {}))
    )


def row_of_plan(
    task: trial.Task,
    origin: trial.Origin,
    found: Assignment,
    ratio: Ratio,
    usual: Assignment,
    sizes: Mapping[str, int] | None = None,
) -> trial.Trial:
    """Returns the row of a plan whose run, of these sizes, takes so much of the usual one's."""
    return _row(task, origin, str(found), PLAN, ratio, usual, sizes)


def _row(
    task: trial.Task,
    origin: trial.Origin,
    text: str,
    kind: str,
    ratio: Ratio | None,
    usual: Assignment,
    sizes: Mapping[str, int] | None,
) -> trial.Trial:
    if ratio is None:
        failed = "it does not run"
        return trial.Trial(
            task, origin, text, template=kind, state="model", status="failed", error=failed
        )
    said = {
        "ratio": [ratio.median, ratio.low, ratio.high],
        "us": ratio.us,
        "usual": digest(str(usual)),
        **({"sizes": dict(sizes)} if sizes else {}),
    }
    ns = 1e3 * ratio.us
    return trial.Trial(
        task,
        origin,
        text,
        template=kind,
        state="model",
        median_ns=ns * ratio.median,
        low_ns=ns * ratio.low,
        high_ns=ns * ratio.high,
        summary=json.dumps(said),
    )


@record
class PlanOnRecord:
    """The plan on record that is taken for a model, and what it took; or why none is."""

    assignment: Assignment | None = None
    told: OnRecord | None = None
    why: str = ""


@record
class PlanTaken:
    """A plan on record as it is compiled, with its algorithms."""

    plan: Plan
    algorithms: Algorithms
    told: OnRecord


class RecordedPlans:
    """Gives graphs the fastest plans that are on record for them, on a machine like this one.

    It has to be faster than the usual one, which took turns with it and is still the same.
    """

    def __init__(self, database: Database, machine: Machine, options: Options) -> None:
        """Of a database, for code of a machine."""
        self._database, self._machine, self._options = database, machine, options
        self._likeness = trial.like(origin_of(machine))

    def __call__(self, graph: Graph, usual: Plan) -> PlanTaken | str:
        """Returns the plan of an imported graph, or why it is the usual one."""
        if usual.assignment is None:
            return ""
        best = self.look_up(graph, usual.assignment)
        if best.assignment is None or best.told is None:
            return best.why
        algorithms = Algorithms(
            self._machine, self._options.leeway, assigned=Assigned(best.assignment.algorithms)
        )
        exact = self._options.exact_algorithms
        found = realised(graph, best.assignment, self._machine, exact=exact, on_step=algorithms)
        if found is None:
            return "the plan on record is of another version and cannot be made any more"
        return PlanTaken(found.plan, algorithms, best.told)

    def look_up(self, graph: Graph, usual: Assignment) -> PlanOnRecord:
        """Returns the assignment that is the fastest of those known, or why there is none."""
        task = plan_task(graph, self._machine, self._options)
        known = [
            t
            for t in nearest(self._database.trials(task), self._likeness)
            if t.template in (PLAN, CHANGE)
        ]
        if not known:
            return PlanOnRecord()
        tried = sum(t.template == CHANGE for t in known)
        first = known[0].origin
        about = f"of {tried} other decision{'s' * (tried != 1)} tried on {first.cpu}, {first.date}"
        found: list[tuple[float, str, PlanOnRecord]] = []
        why = f"{about}, none is faster for sure"
        for t in known:
            if t.template != PLAN or t.status != "measured":
                continue
            try:
                said = json.loads(t.summary)
                ratio, low, high = map(float, said["ratio"])
                if high >= 1:
                    continue
                if said["usual"] != digest(str(usual)):
                    why = f"{about}, those that are faster took turns with another usual plan"
                    continue
                assignment = parse_assignment(t.schedule)
            except (LookupError, TypeError, ValueError, ParseError):
                # Of another version, or made by others.
                continue
            told = OnRecord(tried, ratio, low, high, t.origin.cpu, t.origin.date)
            found.append((ratio, t.schedule, PlanOnRecord(assignment, told)))
        return min(found, key=lambda x: x[:2])[2] if found else PlanOnRecord(why=why)


def realised(
    graph: Graph,
    assignment: Assignment,
    machine: Machine,
    *,
    exact: bool = False,
    on_step: OnStep | None = None,
) -> Realisation | None:
    """Returns the plan of an imported graph that an assignment says; None if it has none."""
    assigned = Assigned(assignment.algorithms)
    try:
        other = with_algorithms(graph, machine, assigned, exact=exact, on_step=on_step)
        found = Realisation(prepare(other), assignment, machine)
        found.plan  # noqa: B018
    except (Illegal, InternalError):
        return None
    return found
