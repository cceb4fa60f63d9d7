"""Which algorithms a graph's sums have, which else they may have, and graphs that have others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rutc.graph_opt.alternatives import Assigned, Choosing, Offer
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.pipeline import OnStep, optimize, pipeline_for
from rutc.graph_opt.rewrite import Pass, Sweep
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine


def with_algorithms(
    graph: Graph,
    machine: Machine,
    assigned: Assigned,
    *,
    exact: bool = False,
    on_step: OnStep | None = None,
) -> Graph:
    """An imported graph after all rewrites, its sums computed by these algorithms and no others."""
    steps = pipeline_for(machine, Leeway(exact=exact), assigned=assigned)
    return optimize(graph, on_step=on_step, pipeline=steps)


def offers(
    graph: Graph, machine: Machine, assigned: Assigned, *, exact: bool = False
) -> tuple[Offer, ...]:
    """The algorithms of an imported graph's sums that are `assigned`, and all others there are.

    Some are of sums that those assigned make.
    """
    steps = pipeline_for(machine, Leeway(exact=exact), assigned=assigned)
    found: list[Offer] = []
    for number, step in enumerate(steps):
        for rule in choosing(step):
            found += rule.offers(Editor(graph))
        graph = optimize(graph, pipeline=steps[number : number + 1])
    return tuple(found)


def choosing(step: Pass) -> Iterator[Choosing]:
    """What of a step chooses algorithms: itself, or rules of its."""
    parts = (step, *step.rules) if isinstance(step, Sweep) else (step,)
    return (part for part in parts if isinstance(part, Choosing))


@dataclass
class Chosen:
    """Notes what the steps of a pipeline choose: give an instance as `on_step`; it calls `after`.

    `before` is the graph before the first step that chooses, where no step runs before it.
    """

    steps: tuple[Pass, ...]
    after: OnStep | None = None
    found: list[tuple[str, str]] = field(default_factory=list)
    before: Graph | None = None

    def __call__(self, name: str, graph: Graph, changed: bool) -> None:
        """Note what the step of that name has chosen."""
        if changed and self.before is not None:
            for step in self.steps:
                for rule in choosing(step) if step.name == name else ():
                    self.found += rule.chosen(Editor(self.before))
        self.before = graph
        if self.after is not None:
            self.after(name, graph, changed)

    @property
    def assigned(self) -> Assigned:
        """What has been chosen."""
        return Assigned(tuple(self.found))
