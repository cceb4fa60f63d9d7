"""Plans for sizes far from common ones.

A model's sums may want other algorithms there. A filter of windows, for example, takes few products
of many places, and large weights however few there are. So with `--plan search` an artifact may
hold a plan for small sizes and one for large ones:

    common 320 x 320, least 32 x 32    at 96 x 96 with fewer filters 0.82 of the time by estimates
    where = 81 - "h/16"*"w/16"         positive: that plan    otherwise: the usual one

Looked at are the sizes midway from common ones to the ends of all ranges, as factors: the smallest
sizes of all symbols, and the largest ones that are stated. A plan is made there if algorithms are
others, and stays if it is estimated to take clearly less than the usual one does
(`coefficients.plans.least_gain`). How large a run is tells which plan it has: the product of its
sizes, which is how many places there are. Both plans take equally long where one follows the other,
so where exactly that is matters little.

Plans with the same algorithms are not looked at. Those of other layouts, slices and schedules gain
less than estimates are off.

Runs of one example are the exception, where several are common because each is little work: vectors
along many rows leave all but one lane idle there, as of trees that each row goes through. Whatever
it is that differs, a plan for one example is made, and stays if it gains as much of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log, prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.driver.parts.build import PlanVersion, machine_of
from rutc.driver.plans.estimates import AtSizes, PlanAtSizes
from rutc.graph_opt.algorithms import Symbols
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.versions import Version, beyond, has_state
from rutc.importer.free_sizes.common_sizes import examples_of
from rutc.tensor_ir import Graph
from rutc.tensor_ir.indices.ranges import (
    MOST_SIZE,
    Range,
    common_sizes,
    midway,
    multiple,
    with_common,
)
from rutc.tensor_ir.machine import Machine

Sizes = Mapping[str, int]


@record
class Made:
    """A version of a graph, and its plan."""

    version: Version
    plan: Plan


def plans_by_size(
    graph: Graph,
    usual: Made,
    machine: Machine,
    differ: Callable[[Symbols], bool],
    make: Callable[[Graph], Version | None],
    plan: Callable[[Version], Plan],
) -> tuple[PlanVersion, ...]:
    """The plans of a graph that run instead of its usual one where sizes are small or large.

    Args:
        graph: The graph before its rewrites.
        usual: What is made of it for common sizes.
        machine: What plans are for.
        differ: Tells whether algorithms may be others where sizes have other common values.
        make: Rewrites a graph; None where it becomes several versions, which have conditions of
            their own.
        plan: Plans what it made.
    """
    symbols = dict(graph.symbols)
    if not _may_have_others(graph):
        return ()
    common = common_sizes(symbols)
    comparing = _Comparing(usual, machine, common)
    found: list[PlanVersion] = []
    for sizes in (midway(symbols), _larger(symbols)):
        sized = _at(graph, sizes)
        if prod(sizes.values()) == prod(common.values()) or not differ(sized.symbols):
            continue
        version = make(sized)
        if version is None or version.assigned == usual.version.assigned:
            continue
        other = plan(version)
        gains = comparing.gains(other, sizes)
        if gains is None:
            continue
        where = beyond(symbols, prod(common.values()), gains.places(), prod(sizes.values()))
        found += [] if where is None else [PlanVersion(other, where)]
    return tuple(found)


def plan_of_one(
    graph: Graph,
    usual: Made,
    machine: Machine,
    make: Callable[[Graph], Version | None],
    plan: Callable[[Version], Plan],
) -> tuple[PlanVersion, ...]:
    """The plan that runs of one example have instead of the usual one, if there is a better one.

    None where one example is no little work, as that is what plans are usually for. The arguments
    are those of `plans_by_size`.
    """
    symbols = dict(graph.symbols)
    common, one = common_sizes(symbols), {n: max(1, least) for n, (least, _) in symbols.items()}
    sized = _at(graph, one)
    if not _may_have_others(graph) or common == one or examples_of(sized) == 1:
        return ()
    version = make(sized)
    if version is None:
        return ()
    other = plan(version)
    if other.assignment == usual.plan.assignment:
        return ()
    # Threads that are started take about as long as all that a call does beside the kernels.
    if _Comparing(usual, machine, common).gains(other, one, machine.launch_cycles) is None:
        return ()
    examples = prod(one.values())
    where = beyond(symbols, prod(common.values()), examples, examples)
    return () if where is None else (PlanVersion(other, where),)


def _may_have_others(graph: Graph) -> bool:
    """Whether a graph's sizes may tell which of several plans a run has."""
    return bool(graph.symbols) and not graph.states and not has_state(graph)


@dataclass
class _Comparing:
    """Other plans beside the usual one for common sizes."""

    usual: Made
    machine: Machine
    common: Sizes

    @cached_property
    def _estimates(self) -> AtSizes:
        return AtSizes(machine_of([self.usual.plan], self.machine))

    @cached_property
    def _usually(self) -> PlanAtSizes:
        return self._estimates.plan(self.usual.plan)

    def gains(self, other: Plan, sizes: Sizes, call: float = 0.0) -> Gains | None:
        """What a plan takes less, if that is clearly less at these sizes.

        Of what is taken there, `call` cycles are no plan's.
        """
        if other.strings != self.usual.plan.strings:
            return None
        found = Gains(self.common, self._usually, sizes, self._estimates.plan(other))
        # Kernels that differ in what is common alone have the schedule of the usual plan.
        usually, costs = found.usually.cycles(sizes), found.costs.cycles(sizes)
        least = self.machine.coefficients.plans.least_gain * (usually + call)
        return found if usually - costs > least else None


def _at(graph: Graph, sizes: Sizes) -> Graph:
    """The graph, for which other sizes are common."""
    symbols = tuple([(n, with_common(limits, sizes[n])) for n, limits in graph.symbols])
    return replace(graph, symbols=symbols)


def _larger(symbols: Mapping[str, Range]) -> dict[str, int]:
    """The sizes midway from common ones to the largest; those that nobody bounds stay."""
    common = common_sizes(symbols)
    most = {
        n: r[1] if r[1] < MOST_SIZE // multiple(n)[1] else common[n] for n, r in symbols.items()
    }
    return _between(common, most, 0.5)


def _between(a: Sizes, b: Sizes, share: float) -> dict[str, int]:
    """The sizes on the way from some to others, as factors."""
    return {n: round(max(a[n], 1) ** (1 - share) * max(b[n], 1) ** share) for n in a}


@record
class Gains:
    """What a plan for other sizes takes less than the usual one, from common sizes to those."""

    common: Sizes
    usually: PlanAtSizes
    sizes: Sizes
    costs: PlanAtSizes

    def places(self) -> int:
        """The product of the sizes where the plans take equally long.

        Between sizes the logarithm of what they take is taken as a line, once more from what it is
        where that line says that it is 0.
        """
        low, high = 0.0, 1.0
        at_low, at_high = self._gain(low), self._gain(high)
        if at_low < 0.0:
            middle = at_low / (at_low - at_high)
            at_middle = self._gain(middle)
            if at_middle < 0.0:
                low, at_low = middle, at_middle
            else:
                high, at_high = middle, at_middle
        share = low + (high - low) * at_low / (at_low - at_high) if at_low < 0.0 else low
        return prod(_between(self.common, self.sizes, share).values())

    def _gain(self, share: float) -> float:
        sizes = _between(self.common, self.sizes, share)
        return log(self.usually.cycles(sizes) / self.costs.cycles(sizes))
