"""Which algorithms a graph's sums have, which else they may have, and graphs that have others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rutc.graph_opt.alternatives import Assigned, Offer
from rutc.graph_opt.alternatives.filtering import Filtered, MinimalFiltering, said
from rutc.graph_opt.alternatives.remainders import Parted, TakeRemainders
from rutc.graph_opt.alternatives.remainders import said as said_of_blocks
from rutc.graph_opt.alternatives.separable import SeparateWindows
from rutc.graph_opt.alternatives.separable import said as said_of_rows
from rutc.graph_opt.alternatives.signs import SAID as SAID_SIGNS
from rutc.graph_opt.alternatives.signs import Signed, TakeSigns
from rutc.graph_opt.alternatives.split_precision import MultiplyParts
from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.pipeline import OnStep, optimize, pipeline_for
from rutc.graph_opt.rewrite import Pass, Reason, Sweep
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
    steps = pipeline_for(machine, exact=exact, assigned=assigned)
    return optimize(graph, on_step=on_step, pipeline=steps)


def offers(
    graph: Graph, machine: Machine, assigned: Assigned, *, exact: bool = False
) -> tuple[Offer, ...]:
    """The algorithms of an imported graph's sums that are `assigned`, and all others there are.

    Some are of sums that those assigned make.
    """
    steps = pipeline_for(machine, exact=exact, assigned=assigned)
    found: list[Offer] = []
    for number, step in enumerate(steps):
        for rule in _choosing(step):
            editor = Editor(graph)
            if isinstance(rule, MultiplyParts):
                found += rule.offers(editor)
            else:
                for n in list(editor.nodes.values()):
                    found += rule.offers(n, editor)
        graph = optimize(graph, pipeline=steps[number : number + 1])
    return tuple(found)


Rule = TakeRemainders | TakeSigns | SeparateWindows | MinimalFiltering | MultiplyParts


def _choosing(step: Pass) -> Iterator[Rule]:
    """The rules of a step that choose algorithms."""
    if isinstance(step, MultiplyParts):
        yield step
    for rule in step.rules if isinstance(step, Sweep) else ():
        if isinstance(rule, TakeRemainders | TakeSigns | SeparateWindows | MinimalFiltering):
            yield rule


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
                if step.name == name:
                    self._note(step, self.before)
        self.before = graph
        if self.after is not None:
            self.after(name, graph, changed)

    @property
    def assigned(self) -> Assigned:
        """What has been chosen."""
        return Assigned(tuple(self.found))

    def _note(self, step: Pass, graph: Graph) -> None:
        for rule in _choosing(step):
            editor = Editor(graph)
            match rule:
                case MultiplyParts():
                    self.found += ((c.nest.out.name, rule.said) for c in rule.chosen(editor))
                case TakeRemainders():
                    parted = (rule.choice(n, editor) for n in editor.nodes.values())
                    blocks = (c for c in parted if isinstance(c, Parted))
                    self.found += ((c.nest.out.name, said_of_blocks(c.block)) for c in blocks)
                case TakeSigns():
                    signed = (rule.choice(n, editor) for n in editor.nodes.values())
                    sums = (c for c in signed if isinstance(c, Signed))
                    self.found += ((c.nest.out.name, SAID_SIGNS) for c in sums)
                case MinimalFiltering():
                    choices = (rule.choice(n, editor) for n in editor.nodes.values())
                    filtered = (c for c in choices if isinstance(c, Filtered))
                    self.found += (
                        (c.nest.out.name, said(c.filters, rounded=c.rounded)) for c in filtered
                    )
                case SeparateWindows():
                    self._separated(rule, editor)

    def _separated(self, rule: SeparateWindows, editor: Editor) -> None:
        """Rows of windows of more than two dims are separated again."""
        left = list(editor.nodes)
        while left:
            key = left.pop(0)
            n = editor.nodes[key]
            tap = rule.choice(n, editor)
            if isinstance(tap, Reason):
                continue
            self.found.append((key, said_of_rows(tap)))
            nodes = rule(n, editor)
            assert isinstance(nodes, tuple)
            editor.replace(n, nodes)
            left += map(key_of, nodes)
