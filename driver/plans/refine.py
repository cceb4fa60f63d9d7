"""The usual plan made better by estimates, as far as that takes little time for any model.

Graphs of few nests are searched: their plans are about the best of all that changes of orders and
kernels lead to. Of all graphs, kernels go whose only value those that read it compute in less time
than it takes to store and to load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from rutc.base.record import record
from rutc.driver.parts.build import machine_of
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.parts.plan_cost import cycles_of
from rutc.driver.plans.estimates import AtSizes, Known, LaunchEstimate, estimate_plan
from rutc.driver.plans.plan_by_estimate import LEAST_ROOM, EstimateSearch, Prices
from rutc.errors import RutcError
from rutc.graph_opt.decide.neighbours import Neighbour, computed_anew
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.recompute import may_be_anew, recomputable
from rutc.graph_opt.plan import Illegal, launched_groups
from rutc.tensor_ir.expr import has_functions, reads
from rutc.tensor_ir.graph import Nest, walk_nodes
from rutc.tensor_ir.indices.affine import typical
from rutc.tensor_ir.indices.ranges import common_sizes, with_some
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine

FEW = 8
"""Nests of a graph whose plans are few enough to be searched for every model."""
EVALUATED = 12
"""Kernels of a larger graph that plans without them are estimated for: as many on all machines."""


def refined(found: Realisation, machine: Machine) -> Realisation:
    """The plan that estimates find better, where that is soon known.

    Dims that commonly have one index and may have many keep their places in orders: of those,
    estimates say nothing. What they say of others holds of several indices as well, or the orders
    stay. What a kernel passes on they tell of one index as of many.
    """
    known = found.known
    nests = [n for n in walk_nodes(found.graph.nodes) if isinstance(n, Nest)]
    if len(nests) <= FEW:
        points = sum(prod(known.extents[d] for d in n.dims) for n in nests)
        if not found.graph.symbols:
            found = _of_few(found, machine)
        elif points >= machine.launch_cycles * machine.width:
            # What sizes commonly are says least of what rows take that share a kernel.
            other = EstimateSearch(found, machine, allowed=of_known_order).run().found
            found = other if _gains_of_several(found, other, machine) else found
    return without_kernels(found, machine)


def _of_few(found: Realisation, machine: Machine) -> Realisation:
    """The best plan of a graph of few nests, unless it gains as good as nothing."""
    prices = Prices(found, machine)
    first = prices.legal(found)
    if _called_for_long(first.launches):
        return found
    search = EstimateSearch(
        found, machine, least_gain=0.0, allowed=of_order_or_kernel, prices=prices
    )
    best = search.run()
    least = machine.coefficients.plans.least_of_few
    return best.found if best.estimate.cycles < (1 - least) * first.cycles else found


def _gains_of_several(usual: Realisation, other: Realisation, machine: Machine) -> bool:
    """Whether another plan is estimated to gain in runs of several examples, too.

    Values that lie in a cache where there is one example may lie beyond it where there are more.
    """
    symbols = dict(usual.graph.symbols)
    several = with_some(symbols)
    if other is usual or several == symbols:
        return True
    estimates, sizes = AtSizes(machine_of([usual.plan], machine)), common_sizes(several)
    before, after = (estimates.plan(x.plan).cycles(sizes) for x in (usual, other))
    return after < (1 - machine.coefficients.plans.least_gain) * before


def _cycles(launches: Iterable[LaunchEstimate]) -> float:
    return sum(x.cycles for x in launches)


def _called_for_long(launches: Sequence[LaunchEstimate]) -> bool:
    """Whether launches take about as long as it takes to call them.

    Estimates do not tell such plans apart.
    """
    return _cycles(launches) < 2 * sum(x.runs * x.estimate.parts["overhead"] for x in launches)


def of_order(found: Realisation, n: Neighbour) -> bool:
    """Whether a change of a plan is of the order of a value's dims alone."""
    if n.kind != "layout":
        return False
    before, after = (a.arrangements[n.subject] for a in (found.assignment, n.assignment))
    return replace(before, order=after.order) == after


def of_known_order(found: Realisation, n: Neighbour) -> bool:
    """Whether a change is of the order of dims of which estimates at common sizes tell."""
    if not of_order(found, n):
        return False
    known = found.known
    before, after = (a.arrangements[n.subject].order for a in (found.assignment, n.assignment))
    one = {d for d in before if d in known.varying and known.extents[d] == 1}
    return all(d == e for d, e in zip(before, after, strict=True) if not one.isdisjoint((d, e)))


def of_order_or_kernel(found: Realisation, n: Neighbour) -> bool:
    """Whether a change is of an order, or of what shares a kernel."""
    return n.kind == "kernel" or of_order(found, n)


# -- kernels that go ------------------------------------------------------------------------------
@record
class Passing:
    """A kernel that only passes a value on.

    Attributes:
        group: Its nests.
        gone: Its value and the copies of that, which go with it.
        kept: What the launches store that read any of these, and are none.
        bytes: How large its value is.
    """

    group: Group
    gone: frozenset[str]
    kept: frozenset[str]
    bytes: int

    @property
    def value(self) -> str:
        """What it stores."""
        return self.group.stored[0]


def without_kernels(found: Realisation, machine: Machine) -> Realisation:
    """The plan without kernels whose value its readers compute in clearly less time.

    The largest values are looked at, by the launches that store or read them alone.
    """
    least = machine.coefficients.plans.least_gain
    passing = _passing(found, machine)
    if not passing:
        return found
    machine = machine_of([found.plan], machine)
    known: Known = {}
    lowered = Lowered()

    def launches(plan: Realisation, stored: frozenset[str]) -> list[LaunchEstimate]:
        own = estimate_plan(plan.plan, machine, known=known, reading=stored, lowered=lowered)
        return [x for x in own.launches if not stored.isdisjoint(x.stored)]

    for p in passing:
        before = launches(found, p.kept | p.gone)
        if _called_for_long(before):
            continue
        for n in computed_anew(found, (p.value,)):
            if not {s.out.name for s in p.group.stages} <= {*n.assignment.recomputed}:
                continue
            other = found.but(n.assignment)
            try:
                after = launches(other, p.kept)
            except (Illegal, RutcError):
                continue
            if _cycles(after) < (1 - least) * _cycles(before):
                found = other
                break
    return found


def _passing(found: Realisation, machine: Machine) -> list[Passing]:
    """Kernels of large values that their readers could compute, those of the largest ones first.

    No reduction computes an element more than once, and no reader a function: how sums hide what
    is computed beside them is estimated worst.
    """
    plan, known = found.plan, found.known
    outputs = {o.value for o in plan.graph.outputs}
    copies = [(c.value, c.name) for c in found.assignment.copies]
    readers: dict[str, list[tuple[Group, ...]]] = {}
    launched = list(launched_groups(plan.steps))
    for together in launched:
        for v in frozenset[str]().union(*(g.read_values for g in together)):
            readers.setdefault(v, []).append(together)
    total: float | None = None
    passing: list[Passing] = []
    for g in (g for together in launched for g in together):
        gone = {g.stored[0]}
        while more := {copy for v, copy in copies if v in gone} - gone:
            gone |= more
        own = [together for v in sorted(gone) for together in readers.get(v, [])]
        if len(g.stored) > 1 or g.stored[0] in outputs or not own or g.slices:
            continue
        if not (may_be_anew(g.stages) and all(recomputable(known, s) for s in g.stages)):
            continue
        size = prod(known.extents[d] for d in plan.values[g.stored[0]].dims)
        reading = [r for together in own for r in together]
        often = (x for v in gone for r in reading for x in _summed_by(r, v, known.extents))
        if max(often, default=0) > size or any(has_functions(e) for n in g.stages for e in n.body):
            continue
        bytes_ = size * plan.values[g.stored[0]].dtype.bytes
        far = bytes_ > machine.l2
        rate = machine.l3_bytes_per_cycle if far else machine.l2_bytes_per_cycle
        if total is None:
            total = float(typical(cycles_of(plan, machine), dict(plan.graph.symbols)))
        if bytes_ * (1 + len(own)) / rate >= LEAST_ROOM * total:
            kept = frozenset(v for r in reading for v in r.stored) - gone
            passing.append(Passing(g, frozenset(gone), kept, bytes_))
    passing.sort(key=lambda p: -p.bytes)
    return passing[:EVALUATED]


def _summed_by(group: Group, value: str, extents: Mapping[str, int]) -> Iterator[int]:
    """The elements of a value that each of a group's reductions reads, as often as it does."""
    for n in group.stages:
        found = {r for e in n.body for r in reads(e) if r.value == value}
        if found and n.reducer is not None:
            yield len(found) * prod(extents[d] for d in n.dims)
