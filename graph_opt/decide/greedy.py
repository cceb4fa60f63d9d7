"""The usual choices: one after the other, each by what it costs with those before as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.assignment import Arrangement, Assignment, Grouping
from rutc.graph_opt.decide.fusion import Fuser
from rutc.graph_opt.decide.layout import choose_innermost, order_dims
from rutc.graph_opt.decide.operand_copies import OperandCopies
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Refusal
from rutc.tensor_ir.graph import Node, bodies
from rutc.tensor_ir.machine import Machine


@record
class Greedy:
    """The assignment that is chosen, and why nests do not share kernels with their operands."""

    realisation: Realisation
    refusals: tuple[Refusal, ...]

    @property
    def assignment(self) -> Assignment:
        """What is chosen."""
        return self.realisation.assignment


def greedy(prepared: Prepared, machine: Machine) -> Greedy:
    """Layouts, copies and halos, groups, then slices and turns."""
    nodes = prepared.graph.nodes
    inner = choose_innermost(
        nodes,
        prepared.extents,
        prepared.fixed,
        prepared.homes,
        machine,
        prepared.steps,
        prepared.varying,
    )
    operands = OperandCopies(prepared, machine, inner)
    operands.choose(nodes)
    said = Assignment(prepared.graph.name, {}, tuple(operands.copies))
    found = Realisation(prepared, said, machine)
    graph = found.graph
    order = order_dims(graph.nodes, inner, prepared.fixed, prepared.homes)
    arrangements: dict[str, Arrangement] = {}
    for name, v in graph.values.items():
        if name in prepared.constants or prepared.home(name) != name or name in prepared.fixed:
            continue
        halo = tuple((d, *around) for d, around in sorted(operands.halo.get(name, {}).items()))
        fill = operands.fill.get(name)
        usual = Arrangement(order.get(name, v.dims), halo, fill)
        arrangements[name] = operands.arranged.get(name, usual)
    groups: list[Grouping] = []
    refusals: list[Refusal] = []
    for scope in _scopes(graph.nodes):
        fuser = Fuser(prepared, inner, machine)
        groups += fuser.fuse(scope)
        refusals += fuser.refusals
    said = replace(said, arrangements=arrangements, groups=tuple(groups))
    return Greedy(found.but(said).in_turn(), tuple(refusals))


def _scopes(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """The scope and all those of bodies in it."""
    yield nodes
    for n in nodes:
        for body in bodies(n):
            yield from _scopes(body)
