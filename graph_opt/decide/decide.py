"""The plan of a graph: what is chosen for it, realised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.join_choice import joined
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Plan, Refusal
from rutc.tensor_ir.graph import Graph, outs, walk_nodes
from rutc.tensor_ir.machine import Machine

Change = Callable[[Realisation], Realisation]


def decide(
    graph: Graph,
    machine: Machine,
    assigned: Assigned = DIRECT,
    change: Change | None = None,
    improve: Change | None = None,
) -> Plan:
    """The plan of an optimized graph, whose sums are computed by these algorithms, for a machine.

    `change` may assign otherwise what is chosen before concatenations are joined, `improve` after.

    Raises:
        UserError: it has what cannot be planned yet.
    """
    chosen = greedy(prepare(graph), machine)
    assignment = replace(chosen.assignment, algorithms=assigned.algorithms)
    found = chosen.realisation.but(assignment)
    if change is not None:
        found = change(found)
    found = joined(found)
    if improve is not None:
        found = improve(found)
    return replace(found.plan, refusals=_still(chosen.refusals, found.plan))


def _still(refusals: tuple[Refusal, ...], plan: Plan) -> tuple[Refusal, ...]:
    """The refusals of nests that a plan has, and in another kernel than their operands."""
    homes = {v: number for number, g in enumerate(plan.groups()) for v in g.computed}
    there = {v.name for n in walk_nodes(plan.graph.nodes) for v in outs(n)}
    apart = (r for r in refusals if homes.get(r.reader, -1) != homes.get(r.value, -2))
    return tuple(r for r in apart if {r.reader, r.value} <= there)
