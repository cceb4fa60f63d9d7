"""The plan of a graph: what is chosen for it, realised."""

from __future__ import annotations

from dataclasses import replace

from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.machine import Machine


def decide(graph: Graph, machine: Machine, assigned: Assigned = DIRECT) -> Plan:
    """The plan of an optimized graph, whose sums are computed by these algorithms, for a machine.

    Raises:
        UserError: it has what cannot be planned yet.
    """
    found = greedy(prepare(graph), machine)
    assignment = replace(found.assignment, algorithms=assigned.algorithms)
    return replace(found.realisation.plan, refusals=found.refusals, assignment=assignment)
