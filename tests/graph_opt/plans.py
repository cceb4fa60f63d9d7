"""Plans of small graphs in text form, and what tests ask of them."""

import re
from collections.abc import Mapping

from hypothesis import assume

from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.chains import leader
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import realise
from rutc.graph_opt.plan import Plan, Run
from rutc.tensor_ir import Call, Graph, While
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.examples import examples
from tests.machines import V4


def plan_of(text: str, machine: Machine = V4) -> Plan:
    """The plan of a graph's text, with no rewrite before it."""
    graph = parse(text)
    verify(graph)
    return decide(graph, machine)


def assigned(text: str, *lines: str, machine: Machine = V4) -> Plan:
    """The plan of a graph's text with these lines added to the assignment that is chosen.

    In them, `%a .. %b` stands for all kernels from that of %a to that of %b.
    """
    graph = parse(text)
    verify(graph)
    prepared = prepare(graph)
    found = greedy(prepared, machine).realisation
    runs = [s.group for s in found.steps if isinstance(s, Run)]
    number = {v: i for i, g in enumerate(runs) for v in g.computed}

    def between(match: re.Match[str]) -> str:
        first, last = (number[match[i]] for i in (1, 2))
        return ", ".join(f"%{leader(g)}" for g in runs[first : last + 1])

    given = [re.sub(r"%(\S+) \.\. %(\S+)", between, line) for line in lines]
    return realise(prepared, parse_assignment("\n".join([str(found.assignment), *given])), machine)


def innermost(plan: Plan, value: str) -> str:
    """The innermost dim of a value in memory."""
    return plan.layouts[value].axes[-1].dim


def kernels(plan: Plan) -> list[set[str]]:
    """The values that each kernel computes, in running order."""
    return [{v.name for n in g.stages for v in n.outs} for g in plan.groups()]


def stored(plan: Plan) -> set[str]:
    """The values that some kernel writes to memory."""
    return {v for g in plan.groups() for v in g.stored}


def reasons(plan: Plan) -> Mapping[tuple[str, str], str]:
    """(reader, value) -> why they do not share a kernel."""
    return {(r.reader, r.value): r.reason for r in plan.refusals}


some_plans = examples(60)


def planned(graph: Graph) -> None:
    """Leaves the example out if it holds nodes that no code is made for."""
    assume(not any(isinstance(n, While | Call) for n in walk_nodes(graph.nodes)))
