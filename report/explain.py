"""What became of a model, or of one ONNX node: nests, kernels, and why some share none.

`rutc explain` shows it, with the rules that would round too much, and with what is on record of the
plan and of the kernels' schedules. The model is imported, rewritten and planned as for compiling
with the same options and database; no code is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.record import record
from rutc.driver.check_options import check_precision
from rutc.driver.options import Options
from rutc.driver.parts.build import machine_of, plans_of
from rutc.driver.parts.compile_job import scheduled, with_schedule
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.plans.estimates import estimate_plan
from rutc.driver.plans.narrow_weights import StoredAs, stored_types
from rutc.driver.plans.planning import ModelPlan, imported, machine_for, model_plan, versions_for
from rutc.driver.precision.apply_precision import in_precision, precedes_rewrites
from rutc.driver.timing.model_bench import Subject, subjects_of
from rutc.errors import UserError
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.pipeline import OnStep, pipeline_for
from rutc.graph_opt.plan import Joined, Plan
from rutc.graph_opt.rewrite import Pass, Rule, Sweep, rule_name, why_not
from rutc.graph_opt.rounding import OverBudget, rounding_of
from rutc.graph_opt.versions import step_of
from rutc.importer.extract import ModelParts, NodeInfo
from rutc.tensor_ir import Const, Graph, Input, Node
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.graph import outs, used, walk_nodes
from rutc.tensor_ir.indices.affine import Size, typical
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.text import node_lines
from rutc.tuner import choose
from rutc.tuner.choice import OnRecord
from rutc.tuner.search.cost_model import CostModel

if TYPE_CHECKING:
    from rutc.driver.tuning.records_in import Records
    from rutc.driver.tuning.tuning_records import RecordedSchedules


@record
class Stage:
    """The node's part after one step: how many nests carry its name."""

    step: str
    nodes: int


@record
class StoredValue:
    """A value in memory: its layout, and where it lies (a space and an offset in bytes).

    `common` is what it takes at common sizes, None where it takes the same at all.
    """

    name: str
    layout: str
    place: str
    bytes: Size
    common: int | None = None

    def __str__(self) -> str:
        """What a reader wants of it: formulas of sizes fill screens."""
        told = f"stored as {self.name} {self.layout}"
        if self.common is None:
            return f"{told}, {self.bytes} bytes at {self.place}"
        return f"{told}, {self.common} bytes at common sizes in {self.place.partition('+')[0]}"


@record
class Part:
    """One node of the graph that the ONNX node became: its text, its kernel, what it stores.

    `kernel` is None for what the host program does itself, and for a concatenation that is no work
    as the `joined` values lie in it. A nest without stored values lives in its kernel's registers.
    """

    text: str
    kernel: str | None
    stored: tuple[StoredValue, ...]
    joined: tuple[str, ...] = ()


@record
class Cycles:
    """What a schedule takes by itself by the estimate and by the learned model, and in the model.

    The latter is None where it was not measured.
    """

    estimated: float
    learned: float
    measured: float | None = None


@record
class Took:
    """What a kernel's default schedule takes, and the one on record that is taken instead of it.

    Where none is, `why` says it.
    """

    default: Cycles
    recorded: Cycles | None = None
    record: OnRecord | None = None
    why: str = ""


@record
class PlanMade:
    """Where the plan comes from, and estimates of a run in cycles with default schedules.

    Those of the usual plan are None where it is that.
    """

    source: str
    record: OnRecord | None
    cycles: float
    usual_cycles: float | None


@record
class Launch:
    """A kernel that holds a part of the node: what it computes together, and its schedule.

    `launch` is what the artifact's manifest calls it, alone or with the others of its chain.
    """

    name: str
    launch: str
    origin: tuple[str, ...]
    loops: tuple[str, ...]
    schedule: tuple[str, ...]
    took: Took | None = None


@record
class Apart:
    """Two values in different kernels though one is computed from the other, and why."""

    reader: str
    reader_origin: tuple[str, ...]
    value: str
    value_origin: tuple[str, ...]
    reason: str


@record
class RuleRefusal:
    """A rule that does not apply to a value, as it would round more than the budget allows."""

    rule: str
    value: str
    reason: str


@record
class Explanation:
    """All that is known of a node. `operator` is empty for a name that only the graph knows."""

    node: str
    operator: str
    history: tuple[Stage, ...]
    parts: tuple[Part, ...]
    kernels: tuple[Launch, ...]
    apart: tuple[Apart, ...]
    refused: tuple[RuleRefusal, ...]
    types: tuple[StoredAs, ...]
    """What the node's nests read and give that is stored in fewer bits than it is computed in."""
    plan: PlanMade


@record
class ModelExplanation:
    """The plan of a model, and all of its kernels in their order."""

    plan: PlanMade
    kernels: tuple[Launch, ...]


def explain(model: Path, node: str, options: Options | None = None) -> Explanation:
    """The explanation of a node, named by its name or by one of its outputs.

    Raises:
        UserError: The model cannot be planned, or has no such node; there is no such precision.
    """
    options = options or Options()
    check_precision(options.precision)
    machine = machine_for(options)
    graph = imported(model, options)
    info = _find(ModelParts(model).nodes, graph, node)
    name = node if info is None else info.name or info.outputs[0]
    history = [Stage("import", _count(graph, name))]
    rules = _rounding_rules(pipeline_for(machine, options.leeway))
    refused: dict[str, tuple[RuleRefusal, ...]] = {}

    def note(step: str, after: Graph, changed: bool) -> None:
        found = _count(after, name)
        if changed and found != history[-1].nodes:
            history.append(Stage(step, found))
        for rule in rules.get(step_of(step), ()):
            refused[rule_name(rule)] = _refusals(rule, after, name)

    with _records(options) as records:
        chosen = _planned(graph, machine, options, records, note)
        return _explanation(
            chosen,
            machine,
            None if records is None else records.schedules,
            name,
            "" if info is None else info.op,
            tuple(history),
            tuple(r for found in refused.values() for r in found),
        )


def explain_model(model: Path, options: Options | None = None) -> ModelExplanation:
    """The explanation of a whole model.

    Raises:
        UserError: The model cannot be planned; there is no such precision.
    """
    options = options or Options()
    check_precision(options.precision)
    machine = machine_for(options)
    with _records(options) as records:
        chosen = _planned(imported(model, options), machine, options, records)
        schedules = None if records is None else records.schedules
        kernels = launches(chosen.plan, _seen(chosen, machine), schedules=schedules, judged=True)
        return ModelExplanation(_made(chosen, machine), tuple(kernels.values()))


@contextmanager
def _records(options: Options) -> Iterator[Records | None]:
    """What is on record, if a compilation with these options looks there."""
    if options.db is None:
        yield None
        return
    from rutc.driver.tuning.records_in import records_in
    from rutc.tuner.database.database import Database

    with Database.open(options.db, create=False) as database:
        yield records_in(database, options)


def _planned(
    graph: Graph,
    machine: Machine,
    options: Options,
    records: Records | None,
    note: OnStep = lambda step, after, changed: None,
) -> ModelPlan:
    """What a compilation makes of an imported graph; its steps are told."""
    if precedes_rewrites(options, machine):
        narrow = in_precision(graph, machine, options)
        graph, options = narrow.graph, narrow.options
        note("round", graph, True)
    algorithms = Algorithms(machine, options.leeway, note)
    found = versions_for(graph, machine, options, algorithms)
    recorded = None if records is None else records.plans
    return model_plan(graph, found, machine, options, algorithms, recorded)


def _seen(chosen: ModelPlan, machine: Machine) -> Machine:
    """The machine that the kernels are for."""
    return machine_of(plans_of(chosen.plan, chosen.earlier), machine)


def _made(chosen: ModelPlan, machine: Machine) -> PlanMade:
    """Where a plan comes from."""
    seen, usual = _seen(chosen, machine), None
    if chosen.plan is not chosen.usual:
        usual = estimate_plan(chosen.usual, seen).cycles
    cycles = estimate_plan(chosen.plan, seen).cycles
    return PlanMade(str(chosen.source), chosen.source.told, cycles, usual)


def _rounding_rules(pipeline: tuple[Pass, ...]) -> dict[str, tuple[Rule, ...]]:
    """The rules of each step that declare to round."""
    return {
        s.name: tuple(r for r in s.rules if rounding_of(r) is not None)
        for s in pipeline
        if isinstance(s, Sweep)
    }


def _refusals(rule: Rule, graph: Graph, name: str) -> tuple[RuleRefusal, ...]:
    """Where a rule would round too much in the nests of an ONNX node."""
    found: list[RuleRefusal] = []
    for n in _named(graph, name):
        value = outs(n)[0].name
        reason = why_not(rule, graph, value)
        if isinstance(reason, OverBudget):
            found.append(RuleRefusal(rule_name(rule), value, str(reason)))
    return tuple(found)


def _find(nodes: tuple[NodeInfo, ...], graph: Graph, name: str) -> NodeInfo | None:
    """The ONNX node of that name; None where only the graph knows the name."""
    for info in nodes:
        if info.name == name:
            return info
    for info in nodes:
        if name in info.outputs:
            return info
    if _count(graph, name):
        return None
    known = [info.name or info.outputs[0] for info in nodes if info.name or info.outputs]
    near = get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
    raise UserError(
        f"the model has no node {name!r} and no node computes a value of that name; "
        f"names like it are {', '.join(map(repr, near)) or 'none'}"
    )


def _named(graph: Graph, name: str) -> list[Node]:
    return [
        n for n in walk_nodes(graph.nodes) if name in n.origin and not isinstance(n, Input | Const)
    ]


def _count(graph: Graph, name: str) -> int:
    return len(_named(graph, name))


def _explanation(
    chosen: ModelPlan,
    machine: Machine,
    schedules: RecordedSchedules | None,
    name: str,
    operator: str,
    history: tuple[Stage, ...],
    refused: tuple[RuleRefusal, ...],
) -> Explanation:
    plan = chosen.plan
    nodes = _named(plan.graph, name)
    own = {v.name for n in nodes for v in outs(n)}
    home = {v.name: g for g in plan.groups() for n in g.stages for v in n.outs}
    stored = {v for g in plan.groups() for v in g.stored}
    joins = {s.node.out.name: s.node for s in plan.steps if isinstance(s, Joined)}
    symbols = dict(plan.graph.symbols)
    parts: list[Part] = []
    for n in nodes:
        group = home.get(outs(n)[0].name)
        kept = tuple(
            StoredValue(
                v.name,
                str(plan.layouts[v.name]),
                str(place),
                place.bytes,
                None if isinstance(place.bytes, int) else typical(place.bytes, symbols),
            )
            for v in outs(n)
            if (group is None or v.name in stored)
            and (place := plan.places.get(v.name)) is not None
        )
        text = "\n".join(node_lines(n))
        joined = (v for v in map(joins.get, (v.name for v in outs(n))) if v is not None)
        inside = tuple(dict.fromkeys(v for x in joined for v in used(x)))
        parts.append(Part(text, None if group is None else group.name, kept, inside))
    groups = dict.fromkeys(home[v.name].name for n in nodes for v in outs(n) if v.name in home)
    found = launches(plan, _seen(chosen, machine), groups, schedules=schedules, judged=True)
    kernels = tuple(found[g] for g in groups)
    origin = {v.name: n.origin for n in walk_nodes(plan.graph.nodes) for v in outs(n)}
    apart = tuple(
        Apart(r.reader, origin[r.reader], r.value, origin[r.value], r.reason)
        for r in plan.refusals
        if r.reader in own or r.value in own
    )
    touched = own.union(*map(used, nodes))
    types = tuple(s for s in stored_types([plan]) if s.value in touched)
    made = _made(chosen, machine)
    return Explanation(name, operator, history, tuple(parts), kernels, apart, refused, types, made)


def launches(
    plan: Plan,
    machine: Machine,
    groups: Iterable[str] | None = None,
    *,
    schedules: RecordedSchedules | None = None,
    judged: bool = False,
) -> dict[str, Launch]:
    """How groups of a plan run, by their names: all of them, or some. As they are compiled.

    `machine` is that of `rutc.driver.parts.build.machine_of`; `schedules` are those on record. With
    `judged` what they take is told.
    """
    wanted = None if groups is None else frozenset(groups)
    own = {g.name: g for g in plan.groups()}
    found: dict[str, Launch] = {}
    known: dict[Subject, Took] = {}
    for pending in PlanSteps(plan, Weights()).pending:
        names = [k.name for k in pending.kernels]
        if not own.keys() & names or not (wanted is None or wanted & set(names)):
            continue
        job = pending.job if schedules is None else pending.job.chosen(schedules, machine)
        subjects = subjects_of(job, machine)
        parts = zip(pending.kernels, scheduled(job, machine), subjects, strict=True)
        for kernel, part, subject in parts:
            if kernel.name not in own:
                continue
            if judged and subject not in known:
                known[subject] = _took(subject, part.kernel, schedules)
            found[kernel.name] = Launch(
                kernel.name,
                pending.name,
                kernel.origin,
                own[kernel.name].shared,
                tuple(pending.named(str(step)) for step in part.schedule),
                known.get(subject),
            )
    return found


def _took(subject: Subject, chosen: Kernel, schedules: RecordedSchedules | None) -> Took:
    """What a kernel takes as it is `chosen`, and what it would with its default schedule."""
    machine, model = subject.machine, CostModel(subject.machine)

    def cycles(kernel: Kernel, measured: float | None) -> Cycles:
        (judged,) = model.judge([kernel])
        estimated = estimate(summarise(kernel, machine), machine).cycles
        return Cycles(estimated, exp(judged.log_cycles), measured)

    if schedules is None:
        return Took(cycles(chosen, None))
    found = schedules.look_up(subject)
    if found.choice is None:
        return Took(cycles(chosen, found.default_cycles), why=found.why)
    usual = with_schedule(subject.kernel, choose(subject.kernel, machine, subject.constants))
    return Took(
        cycles(usual.kernel, found.default_cycles),
        cycles(chosen, found.cycles),
        found.choice.record,
    )
