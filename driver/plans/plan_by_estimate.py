"""The search for a better plan of a model by estimates: nothing is compiled or run.

From the usual plan on, decisions are changed one at a time (`graph_opt.decide.neighbours`), those
of values sooner whose launches take long. A change stays if by the estimates it gains clearly more
of the launches that are others than estimates are off. Where no single change does, the least bad
ones are steps to others: changes of the same launches are tried on top of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from heapq import nsmallest
from time import monotonic

from rutc.base.record import record
from rutc.driver.parts.build import machine_of
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.plans.estimates import Known, LaunchEstimate, PlanEstimate, estimate_plan
from rutc.errors import RutcError
from rutc.graph_opt.assignment import Assignment
from rutc.graph_opt.decide.neighbours import Neighbour, neighbours
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Illegal, launched_groups
from rutc.tensor_ir.machine import Machine

MOVES = 200
"""Changes that are tried where no time is given: as many on every machine."""
LEAST_ROOM = 0.002
"""Of a run: what launches of a value may gain at least."""
STEPS = 8
"""Worse plans from which further changes are tried."""
DEPTH = 5
"""Changes that gain together though none does alone, at most."""
FARTHEST = 4.0
"""Worse plans take at most so many times as long, of the launches that are others."""


class Prices:
    """Estimates of plans of one graph: what several of them have is estimated once."""

    def __init__(self, first: Realisation, machine: Machine) -> None:
        """Estimate plans for a machine as the `first` is, on one thread."""
        self._machine = machine_of([first.plan], machine)
        self._known: Known = {}
        self._lowered = Lowered()

    def of(self, found: Realisation) -> PlanEstimate | None:
        """The estimate of a plan; None if there is no such plan."""
        try:
            return self.legal(found)
        except (Illegal, RutcError):
            return None

    def legal(self, found: Realisation) -> PlanEstimate:
        """The estimate of a plan that there is."""
        return estimate_plan(found.plan, self._machine, known=self._known, lowered=self._lowered)


@record
class Difference:
    """The launches that only either of two plans has, or that take another time in it."""

    gone: tuple[LaunchEstimate, ...]
    new: tuple[LaunchEstimate, ...]

    @property
    def before(self) -> float:
        """Cycles of the launches of the first plan."""
        return sum(x.cycles for x in self.gone)

    @property
    def after(self) -> float:
        """Cycles of those of the second."""
        return sum(x.cycles for x in self.new)

    @property
    def values(self) -> frozenset[str]:
        """What they read or write."""
        return frozenset[str]().union(*(x.values for x in (*self.gone, *self.new)))


def difference(before: PlanEstimate, after: PlanEstimate) -> Difference:
    """What tells two plans' launches apart."""
    a, b = (Counter((x.values, x.cycles) for x in e.launches) for e in (before, after))
    return Difference(_only(before, a - b), _only(after, b - a))


def _only(
    found: PlanEstimate, counts: Counter[tuple[frozenset[str], float]]
) -> tuple[LaunchEstimate, ...]:
    kept: list[LaunchEstimate] = []
    for x in found.launches:
        if counts[x.values, x.cycles] > 0:
            counts[x.values, x.cycles] -= 1
            kept.append(x)
    return tuple(kept)


@record
class WorsePlan:
    """A worse plan than the best: what it takes, and the values of the launches that are others."""

    found: Realisation
    estimate: PlanEstimate
    touched: frozenset[str]


@dataclass
class Estimated:
    """What a search has come to: the best plan, how long it takes, and what was tried."""

    found: Realisation
    estimate: PlanEstimate
    first_cycles: float
    tried: int = 0
    kept: int = 0
    complete: bool = False
    """Whether no change that was looked for gains anything."""


class EstimateSearch:
    """The search for a plan from one on."""

    def __init__(
        self,
        first: Realisation,
        machine: Machine,
        *,
        least_gain: float | None = None,
        allowed: Callable[[Realisation, Neighbour], bool] = lambda found, n: True,
        prices: Prices | None = None,
    ) -> None:
        """Search from a legal plan on, by changes that are `allowed`.

        A change that stays takes less of the time of the launches that it touches, by the share
        `least_gain`; None: that of the machine's coefficients. `prices` are what is known of plans.
        """
        own = machine.coefficients.plans.least_gain
        self._least_gain = own if least_gain is None else least_gain
        self._allowed = allowed
        self._prices = prices or Prices(first, machine)
        estimate = self._prices.legal(first)
        self.best = Estimated(first, estimate, estimate.cycles)

    def run(self, seconds: float = 0.0) -> Estimated:
        """What is found in so much time; in 0 seconds: by `MOVES` changes, however long they take.

        The latter is the same on all machines.
        """
        end = monotonic() + seconds
        best = self.best

        def going() -> bool:
            return monotonic() < end if seconds else best.tried < MOVES

        while going():
            worse = self._descend(going)
            if not going():
                break
            if not self._by_steps(worse, going):
                best.complete = going()
                break
        return best

    def _descend(self, going: Callable[[], bool]) -> list[WorsePlan]:
        """Make single changes until none gains; the best of those that do not."""
        worse: list[WorsePlan] = []
        while True:
            # What gained nothing before a change may do so after it.
            kept, passed, worse = self.best.kept, set[str](), []
            changed = True
            while changed:
                changed = False
                for n in self._ordered():
                    if not going():
                        return worse
                    if str(n) in passed:
                        continue
                    passed.add(str(n))
                    step = self._try(self.best.found, n)
                    if step is None:
                        changed = True
                        break
                    if step.touched:
                        worse = nsmallest(STEPS, [*worse, step], key=lambda s: s.estimate.cycles)
            if self.best.kept == kept:
                return worse

    def _by_steps(self, worse: list[WorsePlan], going: Callable[[], bool]) -> bool:
        """Whether several changes were made that gain together.

        They are the first of `worse` plans and others on top of it, of what it touches: the
        `STEPS` least bad plans that are `DEPTH` changes away at most.
        """
        seen = {unordered(s.found.assignment) for s in worse}
        for _ in range(DEPTH - 1):
            further: list[WorsePlan] = []
            for step in worse:
                for n in neighbours(step.found, types=False):
                    if not going():
                        return False
                    if n.subject not in step.touched or not self._allowed(step.found, n):
                        continue
                    own = unordered(n.assignment)
                    if own in seen:
                        continue
                    seen.add(own)
                    other = self._try(step.found, n)
                    if other is None:
                        return True
                    if other.touched:
                        further.append(replace(other, touched=step.touched | other.touched))
            worse = nsmallest(STEPS, further, key=lambda s: s.estimate.cycles)
        return False

    def _ordered(self) -> list[Neighbour]:
        """The neighbours of the best plan that may gain enough, those first that may gain most.

        Launches gain no more than what they take besides the products that they sum.
        """
        best = self.best
        cycles: defaultdict[str, float] = defaultdict(float)
        room: defaultdict[str, float] = defaultdict(float)
        for x in best.estimate.launches:
            for v in x.values:
                cycles[v] += x.cycles
                room[v] += max(x.cycles - x.runs * x.estimate.multiplying, 0.0)
        # What one kernel of a launch passes on to another is none of the launch's values.
        for together in launched_groups(best.found.plan.steps):
            stored = {v for g in together for v in g.stored}
            most = max(stored & room.keys(), key=lambda v: (room[v], v), default=None)
            for v in frozenset[str]().union(*(g.computed for g in together)) - room.keys():
                if most is not None:
                    cycles[v], room[v] = cycles[most], room[most]
        least = LEAST_ROOM * best.estimate.cycles
        near = [
            n
            for n in neighbours(best.found, types=False)
            if room[n.subject] >= max(least, self._least_gain * cycles[n.subject])
            and self._allowed(best.found, n)
        ]
        return sorted(near, key=lambda n: -room[n.subject])

    def _try(self, base: Realisation, n: Neighbour) -> WorsePlan | None:
        """Make a change if it gains, and return None; else what it comes to."""
        best = self.best
        best.tried += 1
        found = base.but(n.assignment)
        estimate = self._prices.of(found)
        if estimate is None:
            return WorsePlan(base, best.estimate, frozenset())
        apart = difference(best.estimate, estimate)
        if apart.after < (1 - self._least_gain) * apart.before:
            best.found, best.estimate = found, estimate
            best.kept += 1
            return None
        near = apart.after <= FARTHEST * apart.before
        return WorsePlan(found, estimate, _within(found, apart.values) if near else frozenset())


def _within(found: Realisation, values: frozenset[str]) -> frozenset[str]:
    """Values, and all that kernels compute that store one of them."""
    groups = (g for g in found.plan.groups() if not values.isdisjoint(g.stored))
    return values.union(*(g.computed for g in groups))


def unordered(a: Assignment) -> Hashable:
    """What is assigned, whatever the order in which it is listed."""
    groups = frozenset(a.groups)
    arrangements = frozenset(a.arrangements.items())
    anew = frozenset(a.recomputed)
    return arrangements, groups, a.copies, a.slices, a.turns, anew, a.types, a.joins
