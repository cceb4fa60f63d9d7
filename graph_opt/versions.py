"""The versions of a graph that one artifact holds; most have one.

Where sums have many rows it pays to take their factors apart
(`alternatives/split_precision.py`), where they have few it costs. If only the inputs' shapes tell
how many there are, an artifact holds both:

    where = batch*seq // 64    positive: the graph with parts    otherwise: the one without

The one for many rows is made for the common sizes of ranges of which nothing is told: a batch that
is 1 mostly is none of its runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.alternatives.choices import Chosen
from rutc.graph_opt.alternatives.split_precision import MultiplyParts
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.pipeline import OnStep, optimize, pipeline_for
from rutc.tensor_ir import Call, Graph
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.graph import bound_symbols, walk_nodes
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.ranges import without_common

FEW_ROWS = " for few rows"
"""What the names of steps end in that only the version for few rows goes through."""

RANDOM = frozenset({"normal", "uniform"})
"""Routines that give other numbers in each run, by how often the same step ran before."""


@record
class Version:
    """An optimized graph, and the size that is positive where it runs; without, it runs elsewhere.

    Of several versions the first runs that may, and the last one has no condition.
    """

    graph: Graph
    where: Index | None = None
    assigned: Assigned = DIRECT
    """The algorithms of its sums."""


def versions(
    graph: Graph,
    machine: Machine,
    leeway: Leeway = USUAL_LEEWAY,
    *,
    on_step: OnStep | None = None,
    where: Callable[[Graph], Index | None] | None = None,
) -> tuple[Version, ...]:
    """The graph after all rewrites for a machine, in one version or in two.

    Args:
        graph: A verified graph.
        machine: What its instructions do best decides which rewrites there are.
        leeway: How far they may round otherwise than the model does.
        on_step: Called after every step with its name, the graph and whether the step changed it.
        where: Tells, of the graph before factors are taken apart, where that pays, instead of the
            step that does it.

    Raises:
        InternalError: A step produced an invalid graph; the message names it.
    """
    pipeline = pipeline_for(machine, leeway)
    chosen = Chosen(pipeline, on_step)
    parts = next((step for step in pipeline if isinstance(step, MultiplyParts)), None)
    if parts is None or not graph.symbols:
        found = optimize(graph, on_step=chosen, pipeline=pipeline)
        return (Version(found, None, chosen.assigned),)
    at = pipeline.index(parts)
    before = optimize(graph, on_step=chosen, pipeline=pipeline[:at])
    many = replace(before, symbols=tuple(without_common(dict(before.symbols)).items()))
    pays = (where or parts.many_rows)(many)
    bounds = pays.bounds(dict(graph.symbols)) if pays is not None else None
    if pays is None or (bounds is not None and bounds[0] > 0):
        found = optimize(before, on_step=chosen, pipeline=pipeline[at:])
        return (Version(found, None, chosen.assigned),)
    others = []
    direct = list(chosen.found)
    if not has_state(graph):
        if on_step is not None and many.symbols != before.symbols:
            on_step("plan for many rows", many, True)
        chosen = Chosen(pipeline, on_step, list(direct), many)
        apart = optimize(many, on_step=chosen, pipeline=pipeline[at:])
        others.append(Version(apart, pays, chosen.assigned))

    def on_other(name: str, other: Graph, changed: bool) -> None:
        if on_step is not None:
            on_step(name + FEW_ROWS, other, changed)

    on_other("leave factors whole", before, True)
    # Sums of as many rows in every run have parts in both.
    few = tuple(
        replace(step, symbolic=False) if isinstance(step, MultiplyParts) else step
        for step in pipeline[at:]
    )
    chosen = Chosen(few, on_other, direct, before)
    whole = optimize(before, on_step=chosen, pipeline=few)
    # Parts may have too little room, or constants none that are finite.
    same = replace(whole, symbols=many.symbols)
    return (*(v for v in others if v.graph != same), Version(whole, None, chosen.assigned))


def has_state(graph: Graph) -> bool:
    """Whether steps depend on what ran before: on sizes that others compute, or on earlier runs."""
    calls = (n for n in walk_nodes(graph.nodes) if isinstance(n, Call))
    return bool(bound_symbols(graph.nodes)) or any(n.routine in RANDOM for n in calls)
