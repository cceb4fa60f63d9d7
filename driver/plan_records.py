"""Plans as records of the database: what a search tried, and which plan a compilation takes.

The task is the imported graph without its weights, and how it is to be compiled. A record is of a
change that was tried, or of a plan that was found, whose text is that of its assignment.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from rutc.driver.options import Options
from rutc.driver.tuning_records import nearest, origin_of
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
from rutc.tensor_ir.lexer import ParseError
from rutc.tensor_ir.machine import Machine
from rutc.tuner import trial
from rutc.tuner.database import Database
from rutc.tuner.trial import digest

if TYPE_CHECKING:
    from rutc.driver.plan_bench import PlanChange, Ratio

PLAN, CHANGE = "plan", "change of a plan"
"""In the place of a schedule's template."""
WEIGHTS = re.compile(r'\bdata "[0-9a-f]+"')
"""What stands for a large constant's elements in the text of a graph."""


def plan_task(graph: Graph, machine: Machine, options: Options) -> trial.Task:
    """Returns how the database knows the plans of an imported graph."""
    how = {
        "precision": options.precision,
        "exact": options.exact_algorithms,
        "spread": options.spread,
    }
    text = WEIGHTS.sub("data", str(graph))
    return trial.Task(f"plan {json.dumps(how)}\n{text}", (), machine.name)


def row_of_change(
    task: trial.Task, origin: trial.Origin, c: PlanChange, ratio: Ratio | None, base: Assignment
) -> trial.Trial:
    """Returns the row of a change that was tried of a plan; without a ratio it did not run."""
    return _row(task, origin, f"{c}\nof {digest(str(base))}", CHANGE, ratio, base)


def known_changes(
    task: trial.Task, origin: trial.Origin, base: Assignment, database: Database
) -> frozenset[str]:
    """Returns what was tried already of a plan on this machine."""
    like, end = trial.like(origin), f"\nof {digest(str(base))}"
    return frozenset(
        t.schedule.removesuffix(end)
        for t in database.trials(task)
        if t.template == CHANGE and t.schedule.endswith(end) and like(t.origin) == 0
    )


def row_of_plan(
    task: trial.Task, origin: trial.Origin, found: Assignment, ratio: Ratio, usual: Assignment
) -> trial.Trial:
    """Returns the row of a plan whose run takes so much of that of the usual one."""
    return _row(task, origin, str(found), PLAN, ratio, usual)


def _row(
    task: trial.Task,
    origin: trial.Origin,
    text: str,
    kind: str,
    ratio: Ratio | None,
    usual: Assignment,
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


class RecordedPlans:
    """Gives graphs the fastest plans that are on record for them, on a machine like this one.

    It has to be faster than the usual one, which took turns with it and is still the same.
    """

    def __init__(self, database: Database, machine: Machine, options: Options) -> None:
        """Of a database, for code of a machine."""
        self._database, self._machine, self._options = database, machine, options
        self._likeness = trial.like(origin_of(machine))

    def __call__(self, graph: Graph, usual: Plan) -> tuple[Plan, Algorithms] | None:
        """Returns the plan of an imported graph, and its algorithms; None for the usual one."""
        if usual.assignment is None:
            return None
        best = self.best(graph, usual.assignment)
        if best is None:
            return None
        algorithms = Algorithms(
            self._machine, self._options.spread, assigned=Assigned(best.algorithms)
        )
        exact = self._options.exact_algorithms
        found = realised(graph, best, self._machine, exact=exact, on_step=algorithms)
        return None if found is None else (found.plan, algorithms)

    def best(self, graph: Graph, usual: Assignment) -> Assignment | None:
        """Returns the assignment that is the fastest of those known."""
        if graph.symbols:
            return None
        task = plan_task(graph, self._machine, self._options)
        found: list[tuple[float, str, Assignment]] = []
        for t in nearest(self._database.trials(task), self._likeness):
            if t.template != PLAN or t.status != "measured":
                continue
            try:
                said = json.loads(t.summary)
                if said["usual"] == digest(str(usual)) and float(said["ratio"][2]) < 1:
                    ratio = float(said["ratio"][0])
                    found.append((ratio, t.schedule, parse_assignment(t.schedule)))
            except (LookupError, TypeError, ValueError, ParseError):
                # Of another version, or made by others.
                continue
        return min(found, key=lambda x: x[:2])[2] if found else None


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
