"""What became of one ONNX node: its nests, their kernels, and why they share none with neighbours.

`rutc explain` shows it, with the rules that would round too much. The model is imported, rewritten
and planned as for compiling; no code is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from rutc.base.record import record
from rutc.driver.build import machine_of
from rutc.driver.compile_job import scheduled
from rutc.driver.in_precision import rounded, rounds
from rutc.driver.options import BF16, Options
from rutc.driver.plan_steps import PlanSteps
from rutc.driver.planning import planned
from rutc.driver.precision import StoredAs, stored_types
from rutc.driver.weights import Weights
from rutc.emit.targets import target_named
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.graph_opt.pipeline import pipeline_for
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.rewrite import Pass, Rule, Sweep, rule_name, why_not
from rutc.graph_opt.rounding import OverBudget, rounding_of
from rutc.graph_opt.versions import FEW_ROWS
from rutc.importer import import_model
from rutc.importer.extract import ModelParts, NodeInfo
from rutc.report.arguments import check_precision
from rutc.tensor_ir import Const, Graph, Input, Node
from rutc.tensor_ir.affine import Size
from rutc.tensor_ir.graph import outs, used, walk_nodes
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.text import node_lines


@record
class Stage:
    """The node's part after one step: how many nests carry its name."""

    step: str
    nodes: int


@record
class StoredValue:
    """A value in memory: its layout, and where it lies (a space and an offset in bytes)."""

    name: str
    layout: str
    place: str
    bytes: Size


@record
class Part:
    """One node of the graph that the ONNX node became: its text, its kernel, what it stores.

    `kernel` is None for what the host program does itself. A nest without stored values lives in
    its kernel's registers.
    """

    text: str
    kernel: str | None
    stored: tuple[StoredValue, ...]


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


@record
class Apart:
    """Two values in different kernels though one is computed from the other, and why."""

    reader: str
    reader_origin: tuple[str, ...]
    value: str
    value_origin: tuple[str, ...]
    reason: str


@record
class Refusal:
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
    refused: tuple[Refusal, ...]
    types: tuple[StoredAs, ...] = ()
    """What the node's nests read and give that is stored in fewer bits than it is computed in."""


def explain(
    model: Path,
    node: str,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int | tuple[int, ...] | str] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    target: str = "native",
    precision: str = "fp32",
    exact_algorithms: bool = False,
) -> Explanation:
    """The explanation of a node, named by its name or by one of its outputs.

    Raises:
        UserError: The model cannot be planned, or has no such node; there is no such precision.
    """
    check_precision(precision)
    machine = target_named(target).machine
    graph = import_model(model, shapes=shapes, dims=dims, values=values)
    info = _find(ModelParts(model).nodes, graph, node)
    name = node if info is None else info.name or info.outputs[0]
    history = [Stage("import", _count(graph, name))]
    rules = _rounding_rules(pipeline_for(machine, exact=exact_algorithms, bf16=precision == BF16))
    refused: dict[str, tuple[Refusal, ...]] = {}

    def note(step: str, after: Graph, changed: bool) -> None:
        found = _count(after, name)
        if changed and found != history[-1].nodes:
            history.append(Stage(step, found))
        for rule in rules.get(step.removesuffix(FEW_ROWS), ()):
            refused[rule_name(rule)] = _refusals(rule, after, name)

    options = Options(precision=precision)
    if rounds(options):
        graph = rounded(graph, machine, options).graph
        note("round", graph, True)
    found = versions(graph, machine, exact=exact_algorithms, bf16=precision == BF16, on_step=note)
    plan, alternatives = planned(found, machine, precision)
    return _explanation(
        plan,
        machine_of([*(a.plan for a in alternatives), plan], machine),
        name,
        "" if info is None else info.op,
        tuple(history),
        tuple(r for found in refused.values() for r in found),
    )


def _rounding_rules(pipeline: tuple[Pass, ...]) -> dict[str, tuple[Rule, ...]]:
    """The rules of each step that declare to round."""
    return {
        s.name: tuple(r for r in s.rules if rounding_of(r) is not None)
        for s in pipeline
        if isinstance(s, Sweep)
    }


def _refusals(rule: Rule, graph: Graph, name: str) -> tuple[Refusal, ...]:
    """Where a rule would round too much in the nests of an ONNX node."""
    found: list[Refusal] = []
    for n in _named(graph, name):
        value = outs(n)[0].name
        reason = why_not(rule, graph, value)
        if isinstance(reason, OverBudget):
            found.append(Refusal(rule_name(rule), value, str(reason)))
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
    plan: Plan,
    machine: Machine,
    name: str,
    operator: str,
    history: tuple[Stage, ...],
    refused: tuple[Refusal, ...],
) -> Explanation:
    nodes = _named(plan.graph, name)
    own = {v.name for n in nodes for v in outs(n)}
    home = {v.name: g for g in plan.groups() for n in g.stages for v in n.outs}
    stored = {v for g in plan.groups() for v in g.stored}
    parts: list[Part] = []
    for n in nodes:
        group = home.get(outs(n)[0].name)
        kept = tuple(
            StoredValue(v.name, str(plan.layouts[v.name]), str(place), place.bytes)
            for v in outs(n)
            if (group is None or v.name in stored)
            and (place := plan.places.get(v.name)) is not None
        )
        text = "\n".join(node_lines(n))
        parts.append(Part(text, None if group is None else group.name, kept))
    groups = dict.fromkeys(home[v.name].name for n in nodes for v in outs(n) if v.name in home)
    found = launches(plan, machine, groups)
    kernels = tuple(found[g] for g in groups)
    origin = {v.name: n.origin for n in walk_nodes(plan.graph.nodes) for v in outs(n)}
    apart = tuple(
        Apart(r.reader, origin[r.reader], r.value, origin[r.value], r.reason)
        for r in plan.refusals
        if r.reader in own or r.value in own
    )
    touched = own.union(*map(used, nodes))
    types = tuple(s for s in stored_types([plan]) if s.value in touched)
    return Explanation(name, operator, history, tuple(parts), kernels, apart, refused, types)


def launches(
    plan: Plan, machine: Machine, groups: Iterable[str] | None = None
) -> dict[str, Launch]:
    """How groups of a plan run, by their names: all of them, or some. As they are compiled.

    `machine` is that of `rutc.driver.build.machine_of`.
    """
    wanted = None if groups is None else frozenset(groups)
    own = {g.name: g for g in plan.groups()}
    found: dict[str, Launch] = {}
    for pending in PlanSteps(plan, Weights()).pending:
        names = [k.name for k in pending.kernels]
        if not own.keys() & names or not (wanted is None or wanted & set(names)):
            continue
        for kernel, part in zip(pending.kernels, scheduled(pending.job, machine), strict=True):
            if kernel.name in own:
                schedule = tuple(pending.named(str(step)) for step in part.schedule)
                shared = own[kernel.name].shared
                found[kernel.name] = Launch(
                    kernel.name, pending.name, kernel.origin, shared, schedule
                )
    return found
