"""The versions of a graph that one artifact holds; most have one.

Where sums have many rows it pays to take their factors apart
(`alternatives/split_precision.py`), where they have few it costs. If only the inputs' shapes tell
how many there are, an artifact holds both:

    where = batch*seq // 64    positive: the graph with parts    otherwise: the one without

The one for many rows is made for the common sizes of ranges of which nothing is told: a batch that
is 1 mostly is none of its runs.

A sum over windows may save too little by a filter, or by one of as many outputs a tile, where a run
is as small as it commonly is, as of one image, and enough of several: then there is a version for
several, planned for so many.

    where = batch - 4          positive: the graph with the filter
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeGuard

from rutc.base.record import record
from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.alternatives.choices import Chosen
from rutc.graph_opt.alternatives.factor_parts import ROUNDED
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.split_precision import MultiplyParts
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.pipeline import FILTERING, OnStep, filtering_for, optimize, pipeline_for
from rutc.tensor_ir import Call, Graph, Node
from rutc.tensor_ir.graph import Nest, bound_symbols, walk_nodes
from rutc.tensor_ir.indices.affine import ONE, Index, minimum
from rutc.tensor_ir.indices.ranges import (
    SOME,
    Range,
    common_size,
    common_sizes,
    with_common,
    with_some,
    without_common,
)
from rutc.tensor_ir.machine import Machine

FEW_ROWS = " for few rows"
"""What the names of steps end in that only the version for few rows goes through."""
SEVERAL = " for several"
"""What they end in, after that, of the version for more than commonly."""
MOST_PLACES = 1 << 62
"""Products of sizes stay below this."""

RANDOM = frozenset({"uniform"})
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


def step_of(name: str) -> str:
    """The step of the pipeline that was told of by a name, whichever version it made."""
    return name.removesuffix(SEVERAL).removesuffix(FEW_ROWS)


def versions(
    graph: Graph,
    machine: Machine,
    leeway: Leeway = USUAL_LEEWAY,
    *,
    on_step: OnStep | None = None,
    where: Callable[[Graph], Index | None] | None = None,
) -> tuple[Version, ...]:
    """The graph after all rewrites for a machine, in one version or in several.

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
    filtered = _Filtered(on_step)
    usual = _by_rows(graph, machine, leeway, filtered, where)
    of_several = filtered.of_several(machine, leeway)
    if of_several is None or graph.states or draws(graph):
        return usual
    several = replace(graph, symbols=tuple(with_some(dict(graph.symbols)).items()))

    def on_other(name: str, other: Graph, changed: bool) -> None:
        if on_step is not None:
            on_step(name + SEVERAL, other, changed)

    on_other("plan", several, True)
    more = _by_rows(several, machine, leeway, on_other, where)
    computed = {frozenset(bound_symbols(v.graph.nodes)) for v in (*more, *usual)}
    if len(computed) > 1:
        return usual
    symbols = dict(graph.symbols)
    return (
        *(
            replace(
                v, where=of_several if v.where is None else minimum(of_several, v.where, symbols)
            )
            for v in more
        ),
        *usual,
    )


@dataclass
class _Filtered:
    """Notes the graphs before the step that filters: a listener, which calls `after`."""

    after: OnStep | None
    before: Graph | None = None
    asked: list[Graph] = field(default_factory=list)

    def __call__(self, name: str, graph: Graph, changed: bool) -> None:
        """Note what a step made."""
        if name == FILTERING and self.before is not None:
            self.asked.append(self.before)
        self.before = graph
        if self.after is not None:
            self.after(name, graph, changed)

    def of_several(self, machine: Machine, leeway: Leeway) -> Index | None:
        """The size that is positive where sums are filtered otherwise than of a common run.

        None where there are none of them.
        """
        rule = filtering_for(machine, leeway, None)
        return next((w for g in self.asked if (w := better_filtered(rule, g)) is not None), None)


def _is_sum(n: Node) -> TypeGuard[Nest]:
    return isinstance(n, Nest) and n.is_sum


def better_filtered(rule: MinimalFiltering, graph: Graph) -> Index | None:
    """The size that is positive where filters pay that a common run does not have.

    Those that pay in runs of `SOME`, from the least number on of which all of them do. None where
    there are no such sums, where they save too little of what all sums take to be worth a plan of
    their own, or where the program itself computes how many there are.
    """
    symbols = dict(graph.symbols)
    several = with_some(symbols)
    if several == symbols or not any(_is_sum(n) for n in walk_nodes(graph.nodes)):
        return None

    def sized(number: int) -> Editor:
        return Editor(replace(graph, symbols=tuple(with_some(symbols, number).items())))

    usual = dict(rule.chosen(sized(1)))
    of_several = sized(SOME)
    saved = dict(rule.better(of_several, usual))
    more = saved.keys()
    sums = filter(_is_sum, of_several.nodes.values())
    products = sum(of_several.typical(n.dims) for n in sums)
    cycles = products / (rule.machine.width * rule.machine.fma_per_cycle)
    if not more or sum(saved.values()) < rule.machine.coefficients.plans.least_of_few * cycles:
        return None
    least = next(n for n in range(1, SOME + 1) if more <= dict(rule.better(sized(n), usual)).keys())
    editor = Editor(graph)
    sizes = (editor.extents[d] for value in more for d in editor.values[value].dims)
    names = {name for size in sizes for name in size.names()}
    counted = {n: r for n, r in symbols.items() if n in names and several[n] != r}
    if not bound_symbols(graph.nodes).isdisjoint(counted):
        return None

    def places(number: int) -> int:
        return prod(common_sizes(with_some(counted, number)).values())

    return beyond(counted, places(1), places(least) - 1, places(SOME))


def _by_rows(
    graph: Graph,
    machine: Machine,
    leeway: Leeway,
    on_step: OnStep | None,
    where: Callable[[Graph], Index | None] | None,
) -> tuple[Version, ...]:
    """A version of a graph, or one for many rows and one for few."""
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
    # Plans with rounded factors have the same constants; with parts a library grows by these.
    if not has_state(graph) or (parts.parts == ROUNDED and _only_checks(graph)):
        if on_step is not None and many.symbols != before.symbols:
            on_step("plan for many rows", many, True)
        chosen = Chosen(pipeline, on_step, list(direct), many)
        apart = optimize(_where(many, pays), on_step=chosen, pipeline=pipeline[at:])
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
    same = replace(whole, symbols=_where(many, pays).symbols)
    return (*(v for v in others if v.graph != same), Version(whole, None, chosen.assigned))


def _where(graph: Graph, size: Index) -> Graph:
    """The graph that is planned for runs in which a size is positive: no others count as common.

    That is told where one symbol decides it. More of it never makes the size smaller.
    """
    symbols = dict(graph.symbols)
    names = size.names()
    if len(names) != 1 or not names <= symbols.keys():
        return graph
    (name,) = names
    low, high = symbols[name]
    least = low + bisect_left(range(low, high), 1, key=lambda n: int(size.evaluate({name: n})))
    common = max(common_size(symbols[name]), least)
    symbols[name] = with_common((low, high), common)
    return replace(graph, symbols=tuple(symbols.items()))


def has_state(graph: Graph) -> bool:
    """Whether steps depend on what ran before: on sizes that others compute, or on earlier runs."""
    return bool(bound_symbols(graph.nodes)) or draws(graph)


def _only_checks(graph: Graph) -> bool:
    """Whether all sizes that steps compute may be one number only, so that nothing depends on them.

    A run ends where they are another one.
    """
    ranges = dict(graph.symbols)
    computed = (ranges[s] for s in bound_symbols(graph.nodes))
    return all(low == high for low, high in computed) and not draws(graph)


def draws(graph: Graph) -> bool:
    """Whether random numbers are drawn, which are others in each run."""
    calls = (n for n in walk_nodes(graph.nodes) if isinstance(n, Call))
    return any(n.routine in RANDOM for n in calls)


def beyond(symbols: Mapping[str, Range], common: int, places: int, other: int) -> Index | None:
    """The size that is positive where the product of sizes is beyond `places`.

    It is not where that product is what is `common`, but where it is as for the `other` plan. None
    where the product may be too large a number.
    """
    small = other < common
    limit = min(max(places, other + 1), common) if small else max(min(places, other - 1), common)
    most = limit if small else limit + 1
    highest = [high for _, high in symbols.values()]
    capped = prod(highest) >= MOST_PLACES
    if capped and prod([min(high, most) for high in highest]) >= MOST_PLACES:
        return None
    total = ONE
    for name in symbols:
        size = Index.of(name)
        total *= minimum(size, Index.of(most), symbols) if capped else size
    return Index.of(limit) - total if small else total - limit
