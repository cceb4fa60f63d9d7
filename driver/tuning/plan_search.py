"""The search for a better plan of a model: decisions changed one at a time, and timed in it.

A plan's neighbours (`graph_opt.decide.neighbours`) differ from it in one decision: a layout, a copy
of an operand, which nests share a kernel, what is computed anew, slices, turns. What one changes is
a few launches: those that it has instead of others. Changes whose launches have nothing in common
are made in one library, which takes turns with the one of the plan as it is, so one run is a trial
of several. Those that are faster are made together, and stay if they are faster again and the whole
run is. Then the search goes on from there.

Before, other algorithms of sums are tried in the same way: they change the graph that is planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, log
from random import Random
from time import monotonic

from rutc.base.interrupts import ending
from rutc.base.record import record
from rutc.driver.parts.compile_job import CompileJob, joined
from rutc.driver.timing.answering_process import Unanswered
from rutc.driver.timing.certainty import CERTAIN
from rutc.driver.timing.plan_bench import PlanBench, PlanChange, PlanLaunch, PlanRuns
from rutc.driver.timing.side_by_side import Ratio, thread_counts
from rutc.driver.tuning.confirm import Needed
from rutc.driver.tuning.search_rounds import Rounds
from rutc.errors import RutcError
from rutc.graph_opt.alternatives import Assigned, Offer
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.assignment import Assignment
from rutc.graph_opt.decide.combine import combined
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.pipeline import rounded_by
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.graph import Graph

ROUND = 16
"""Changes that are tried at once, at most."""
AGAIN = 3
"""Processes in which what is faster is timed again."""
LEAST_SHARE = 0.004
"""Of a run: changes of launches that take less are not told from noise."""
WORST = 1.2
"""What is estimated to take so many times as long is not tried."""
ALGORITHMS = 0.3
"""The share of a search that is for algorithms of sums, at most."""
COMPARED = 0.5
"""The share of what is left that is for comparing what is found, at most: with fewer runs then."""
IDLE = 0.25
"""The share of a search in which nothing is found, after which the time is for something else."""
PATIENCE = 400
"""Neighbours in a row that come to nothing, after which a plan has no more to try."""


@record
class Kept:
    """A change that stays."""

    candidate: PlanChange
    ratio: Ratio


@dataclass
class PlanProgress:
    """What a search has come to so far."""

    best: Realisation
    steps: list[Kept] = field(default_factory=list)
    tried: int = 0
    failed: int = 0
    runs: Mapping[int, Ratio] = field(default_factory=dict)
    """A run of the best plan by one of the usual plan, once the search has found one, by threads.
    """


@record
class PlanSpace:
    """Which plans are searched: from the `first` on, if one is given, with algorithms as it has.

    The sums that are `spread` keep their algorithms, too. Where `only` names sums, factors of no
    others are rounded to bf16. `change` assigns the types of values after other algorithms are
    chosen, all of which are `exact` if they have to be.
    """

    first: Realisation | None = None
    exact: bool = False
    spread: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    change: Callable[[Realisation], Realisation] = lambda found: found


@record
class PlanMemory:
    """What is `known` of an assignment, which is not tried again, and who is told what is `tried`.

    With the assignment that it changes, and None if it did not run.
    """

    known: Callable[[Assignment], frozenset[str]] = lambda base: frozenset()
    tried: Callable[[PlanChange, Ratio | None, Assignment], None] = lambda *told: None


ANY_PLAN, NOTHING_KNOWN = PlanSpace(), PlanMemory()


class PlanSearch:
    """The search for a plan of a model."""

    def __init__(
        self,
        graph: Graph,
        usual: Realisation,
        runs: PlanRuns,
        space: PlanSpace = ANY_PLAN,
        memory: PlanMemory = NOTHING_KNOWN,
        seed: int = 0,
    ) -> None:
        """Search from the `usual` plan of an imported graph on, or from the first of a space."""
        self._graph, self._machine, self._runs = graph, runs.machine, runs
        self._space, self._memory = space, memory
        self._threads = thread_counts(runs.cpu)
        self._rng = Random(seed)
        self._usual, self._first = usual, space.first or usual
        self._seen: set[tuple[frozenset[PlanLaunch], frozenset[PlanLaunch]]] = set()
        self._cycles: dict[CompileJob, float] = {}
        self.outcome = PlanProgress(self._first)
        self._end = inf
        self._compared = Needed(0.0, 0.0)
        """What it takes to compare a plan with another."""

    def run(self, seconds: float, trials: float = inf) -> Iterator[PlanProgress]:
        """Yields what is known after each round, until nothing more is expected.

        Raises:
            UserError: the first plan does not run.
        """
        began = monotonic()
        self._end = began + seconds
        bench = self._open(self._first)
        opened = monotonic() - began
        asked = AGAIN * len(self._threads)
        self._compared = Needed(opened + asked * bench.begun_s, asked * bench.runs_s)
        try:
            yield self.outcome
            sources = [(self._by_algorithm, ALGORITHMS), (self._by_neighbour, 1.0)]
            for source, share in sources if self._first is self._usual else sources[1:]:
                waiting: Iterator[PlanChange] | None = None
                end = began + share * seconds
                rounds, idle_since = Rounds(end, opened), monotonic()
                # A round may find something, which is compared by the end of the whole search.
                most = COMPARED * (self._end - monotonic())
                compared_s = max(self._compared.made, min(self._compared.seconds, most))
                after = max(0.0, compared_s - (self._end - end)) if seconds < inf else 0.0
                while (
                    self.outcome.tried < trials
                    and monotonic() - idle_since < IDLE * seconds
                    and rounds.another(after)
                ):
                    if waiting is None:
                        waiting = source(bench)
                    chosen = _apart(waiting, int(min(ROUND, trials - self.outcome.tried)), end)
                    if not chosen:
                        break
                    faster = self._faster(bench, self._round(bench, chosen))
                    if faster is not None:
                        bench.close()
                        bench = self._open(faster)
                        self.outcome.best = faster
                        waiting, idle_since = None, monotonic()
                    yield self.outcome
        finally:
            bench.close()
        if self.outcome.steps:
            # What crashes or hangs, on several threads perhaps, is no better plan.
            with self._open(self._usual) as bench, suppress(Unanswered, RutcError):
                best = self.outcome.best
                share = self._share()
                runs = {n: bench.time(best, (), AGAIN, n, share)[1] for n in self._threads}
                self.outcome.runs = runs
            yield self.outcome

    def _share(self) -> float:
        """The share of runs that there is time for where a plan is compared with another now."""
        return self._compared.share(self._end - monotonic())

    def _open(self, found: Realisation) -> PlanBench:
        return PlanBench(found, self._runs)

    # -- rounds ----------------------------------------------------------------------------------
    def _round(self, bench: PlanBench, tries: list[PlanChange]) -> list[Kept]:
        """Those of some changes that are faster; halves are tried if all together do not run."""
        together = self._together(bench, tries)
        if together is not None:
            try:
                ratios, _ = bench.time(together, tries)
            except (Unanswered, RutcError):
                pass
            else:
                for c, r in zip(tries, ratios, strict=True):
                    self._memory.tried(c, r, bench.found.assignment)
                    self.outcome.tried += 1
                steps = [Kept(c, r) for c, r in zip(tries, ratios, strict=True)]
                return [s for s in steps if s.ratio.high <= 1 - CERTAIN]
        if len(tries) == 1:
            self._memory.tried(tries[0], None, bench.found.assignment)
            self.outcome.tried += 1
            self.outcome.failed += 1
            return []
        half = len(tries) // 2
        return self._round(bench, tries[:half]) + self._round(bench, tries[half:])

    def _faster(self, bench: PlanBench, steps: list[Kept]) -> Realisation | None:
        """The plan with all changes that are faster once more, if the whole run is.

        On all CPUs each has to be faster as well, if not by as much.
        """
        while steps:
            tries = [s.candidate for s in steps]
            together = self._together(bench, tries)
            if together is None:
                # They were timed in other companies.
                steps = sorted(steps, key=lambda s: (1 - s.ratio.median) * s.ratio.us)[1:]
                continue
            try:
                share = self._share()
                told = [bench.time(together, tries, AGAIN, n, share) for n in self._threads]
            except (Unanswered, RutcError):
                return None
            (ratios, _), *shared = told
            again = [
                Kept(c, r)
                for number, (c, r) in enumerate(zip(tries, ratios, strict=True))
                if r.high <= 1 - CERTAIN and all(own[number].median < 1 for own, _ in shared)
            ]
            if len(again) == len(steps):
                if not all(whole.faster for _, whole in told):
                    return None
                self.outcome.steps += again
                return together
            steps = again
        return None

    def _together(self, bench: PlanBench, tries: Sequence[PlanChange]) -> Realisation | None:
        """The plan with some changes, if it has the launches that each of them has by itself."""
        if len(tries) == 1:
            return tries[0].found
        if tries[0].algorithms is not None:
            found = self._with_algorithms(_all_of(bench.found.assignment.algorithms, tries))
        else:
            others = (c.found.assignment for c in tries)
            found = bench.found.but(combined(bench.found.assignment, others))
        try:
            launches = frozenset(bench.launches_of(found))
        except (Illegal, RutcError):
            return None
        gone = frozenset[PlanLaunch]().union(*(c.gone for c in tries))
        new = frozenset[PlanLaunch]().union(*(c.new for c in tries))
        return found if launches == (frozenset(bench.launches) - gone) | new else None

    # -- changes ---------------------------------------------------------------------------------
    def _by_algorithm(self, bench: PlanBench) -> Iterator[PlanChange]:
        """The plan with another algorithm for a sum, or with the sum as it stands.

        Sums that are estimated to take longest, as they stand, come first: there is no time for all
        of a large model.
        """
        own = bench.found.assignment.algorithms
        exact, spread, choices = self._space.exact, self._space.spread, dict(own)
        offered: defaultdict[str, list[Offer]] = defaultdict(list)
        for o in offers(self._graph, self._machine, Assigned(own), exact=exact):
            # Sums of nothing take no time.
            if o.direct and o.value not in spread and self._may_lose(o):
                offered[o.value].append(o)
        longest = sorted(offered.items(), key=lambda x: -max(o.direct for o in x[1]))
        for value, known in longest:
            if sum(v == value for v, _ in own) > 1:
                continue
            # What it has now, and others, by what the sum takes as it stands.
            shares = {o.algorithm: o.cost / o.direct for o in known}
            most = WORST * shares.get(choices.get(value, ""), 1.0)
            others: list[str | None] = [
                a
                for a in sorted(shares, key=shares.__getitem__)
                if a != choices.get(value) and shares[a] <= most
            ]
            if value in choices and most >= 1:
                others.append(None)
            for algorithm in others:
                kept = tuple((v, a) for v, a in own if v != value)
                new = kept if algorithm is None else (*kept, (value, algorithm))
                try:
                    found = self._with_algorithms(new)
                except (Illegal, RutcError):
                    continue
                change = f"sum of %{value}: {algorithm or 'as it stands'}"
                c = self._candidate(bench, change, found, new)
                if c is not None:
                    yield c

    def _may_lose(self, o: Offer) -> bool:
        """Whether a sum may lose what an algorithm costs by rounding its factors."""
        only = self._space.only
        return only is None or o.value in only or not rounded_by(o.algorithm)

    def _with_algorithms(self, algorithms: tuple[tuple[str, str], ...]) -> Realisation:
        assigned = Assigned(algorithms)
        graph = with_algorithms(self._graph, self._machine, assigned, exact=self._space.exact)
        found = greedy(prepare(graph), self._machine).realisation
        return self._space.change(found.but(replace(found.assignment, algorithms=algorithms)))

    def _by_neighbour(self, bench: PlanBench) -> Iterator[PlanChange]:
        """The neighbours of the plan, those of values sooner whose launches take long.

        Where a clock saw none take any time, there is nothing to gain.
        """
        taken: defaultdict[str, float] = defaultdict(float)
        for launch, us in bench.us.items():
            for _, value in launch.buffers:
                taken[value] = max(taken[value], us)
        for g in bench.found.plan.groups():
            longest = max((taken[v] for v in g.stored), default=0.0)
            for v in g.computed:
                taken[v] = max(taken[v], longest)
        least = LEAST_SHARE * bench.total_us
        known = self._memory.known(bench.found.assignment)
        drawn = [
            (log(1 - self._rng.random()) / taken[n.subject], n)
            for n in neighbours(bench.found, types=False)
            if taken[n.subject] >= least and taken[n.subject] and str(n) not in known
        ]
        drawn.sort(key=lambda x: -x[0])
        idle = 0
        for _, n in drawn:
            if idle >= PATIENCE:
                return
            idle += 1
            found = legal(bench.found, n)
            c = None if found is None else self._candidate(bench, str(n), found)
            if c is not None:
                idle = 0
                yield c

    def _candidate(
        self,
        bench: PlanBench,
        change: str,
        found: Realisation,
        algorithms: tuple[tuple[str, str], ...] | None = None,
    ) -> PlanChange | None:
        """A change, unless it changes nothing, too little, or for the worse."""
        ended = ending()
        if ended is not None:
            # Whatever has lost it: nobody waits for more.
            raise ended
        try:
            own = frozenset(bench.launches_of(found))
        except (Illegal, RutcError):
            return None
        gone, new = frozenset(bench.launches) - own, own - frozenset(bench.launches)
        us = sum(bench.us[x] for x in gone)
        if not gone or (gone, new) in self._seen or us < LEAST_SHARE * bench.total_us:
            return None
        self._seen.add((gone, new))
        if self._estimate(new) > WORST * self._estimate(gone):
            return None
        return PlanChange(change, found, gone, new, algorithms)

    def _estimate(self, launches: frozenset[PlanLaunch]) -> float:
        return sum(self._cycles_of(x.job) for x in launches)

    def _cycles_of(self, job: CompileJob) -> float:
        if job not in self._cycles:
            kernel = joined(job, self._machine).kernel
            self._cycles[job] = estimate(summarise(kernel, self._machine), self._machine).cycles
        return self._cycles[job]


def _all_of(
    own: tuple[tuple[str, str], ...], tries: Sequence[PlanChange]
) -> tuple[tuple[str, str], ...]:
    """The algorithms of some changes, each of which is of another sum."""
    kept = tuple(x for x in own if all(x in (c.algorithms or ()) for c in tries))
    new = (x for c in tries for x in (c.algorithms or ()) if x not in own)
    return (*kept, *new)


def _apart(waiting: Iterator[PlanChange], most: int, end: float) -> list[PlanChange]:
    """The next changes whose launches have nothing in common; those between are not tried.

    Fewer than `most` where they are not found until the `end`.
    """
    chosen: list[PlanChange] = []
    touched: set[PlanLaunch] = set()
    passed = 0
    for c in waiting:
        own = c.gone | c.new
        if touched.isdisjoint(own):
            touched |= own
            chosen.append(c)
        else:
            passed += 1
        if len(chosen) == most or passed == ROUND or monotonic() >= end:
            break
    return chosen
