"""`--precision int8`: sums of products of a model as sums of 8-bit integers, where that is faster.

The graph is brought into normal form, run on calibration cases for the ranges of its values
(`driver.calibration`), and quantised (`graph_opt.quantise`). Which sums are is chosen by what the
plan of each choice takes, by the estimate of its kernels: all, those of many terms, or none. Then
those are left out that filters of factors in bf16 make faster, and no less accurate
(`graph_opt.filtered_instead`), if the plan is estimated to be faster. Sums that are left may have
factors in bf16.

`--precision auto` takes back as many as results need to be within the tolerance on the cases: first
those of which quantising changes most. How much that is a library tells that computes each sum in
both ways, from the same values. How far results are off tells a library of what is left.
If they are too far off without any sum in 8 bits, nothing is rounded. What bf16 costs is not known
where the processor at hand does not multiply it: for another one that does, none is used then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.build import machine_of
from rutc.driver.calibration import RunningLibrary, spans
from rutc.driver.estimates import Known, estimate_plan
from rutc.driver.options import FP32, Calibration, Options
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.decide import decide
from rutc.graph_opt.filtered_instead import filtered_instead, no_less_accurate
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway, Looser
from rutc.graph_opt.quantise import Site, Span, compared, normal, quantised, sites
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import Machine
from rutc.verify.budget import relative_error

LEAST_TERMS = (0, 32, 128)
"""The least terms of sums of 8-bit integers, of which the best is chosen."""
MARGIN = 0.75
"""The share of a tolerance that is used up on calibration cases: others are further off."""


@record
class ChosenSums:
    """The sums of a graph in normal form that are of 8-bit integers, and what else is rounded.

    With `bf16`, factors of others may be rounded to that; filters of some are `looser` then.
    """

    sums: tuple[Site, ...]
    looser: Looser = ()
    bf16: bool = True

    def leeway_of(self, given: Leeway, *, rounds: bool = True) -> Leeway:
        """The leeway for what is made of the graph then, if the processor `rounds` at all."""
        return replace(given, bf16=self.bf16 and rounds, looser=self.looser)

    def options_of(self, options: Options) -> Options:
        """The options for what is made of the graph then."""
        if not self.bf16:
            return replace(options, precision=FP32)
        return replace(options, looser=self.looser)


@record
class EightBits:
    """A graph some of whose sums are of 8-bit integers, which, and of how many.

    `ranges` are those of their values; `cases` says what they were found on.
    """

    graph: Graph
    choice: ChosenSums
    sums: int
    ranges: dict[str, tuple[float, float]]
    cases: str

    @property
    def chosen(self) -> tuple[Site, ...]:
        """Which sums are."""
        return self.choice.sums

    def facts(self) -> dict[str, object]:
        """What the manifest says."""
        return {
            "sums": [s.nest for s in self.chosen],
            "of": self.sums,
            "filtered": [name for name, _ in self.choice.looser],
            "ranges": self.ranges,
            "calibration": self.cases,
        }


def in_eight_bits(
    graph: Graph,
    machine: Machine,
    how: Calibration,
    tolerance: float | None = None,
    on_progress: Progress = nobody,
    leeway: Leeway = USUAL_LEEWAY,
) -> EightBits:
    """An imported graph with sums of 8-bit integers, where it then takes less time.

    With a `tolerance` only as many as leave results within it. What else is rounded is chosen as
    well: of the leeway, only what is `exact` or `spread` counts.

    Raises:
        UserError: a calibration case does not fit the model, or the model does not run on it.
    """
    before = normal(graph, machine)
    found = sites(before)
    here = native_target().machine
    bf16 = tolerance is None or _multiplies_bf16(here) or not _multiplies_bf16(machine)
    filters = bf16 and not leeway.exact
    instead = filtered_instead(before, found, machine, leeway.spread) if filters else ()
    energies: dict[tuple[str, str], np.ndarray] = {}

    def see(value: str, array: np.ndarray) -> None:
        own = [i for i in instead if i.site.value == value]
        if own and array.size and np.isfinite(array).all():
            energies.update((i.algorithm, i.energies(array)) for i in own)

    known, cases = spans(before, (s.value for s in found), how, on_progress, see)
    usable = tuple(s for s in found if s.value in known)
    estimated: Known = {}

    @cache
    def cycles(choice: ChosenSums) -> float:
        own = quantised(before, choice.sums, known, machine)
        version = versions(own, machine, choice.leeway_of(leeway))[-1]
        plan = decide(version.graph, machine, version.assigned)
        return estimate_plan(plan, machine_of([plan], machine), known=estimated).cycles

    def best(choices: Iterable[ChosenSums]) -> ChosenSums:
        return min(choices, key=lambda choice: (cycles(choice), len(choice.sums)))

    choice = best(_choices(usable, bf16=bf16))
    looser = no_less_accurate(
        [i for i in instead if i.site in choice.sums], energies, before, known, machine
    )
    choice = best([choice, _without(choice, looser)])
    if tolerance is not None:
        errors = _Errors(before, known, machine, how, leeway)
        choice = errors.within(choice, MARGIN * tolerance)
    result = quantised(before, choice.sums, known, machine) if choice.sums else graph
    ranges = {s.value: (known[s.value].low, known[s.value].high) for s in choice.sums}
    return EightBits(result, choice, len(found), ranges, cases)


def _multiplies_bf16(machine: Machine) -> bool:
    """Whether code for a machine may round factors to that."""
    return machine.has_matrices(DType.BF16) or adds_pairs(machine)


def _choices(usable: tuple[Site, ...], *, bf16: bool) -> Iterator[ChosenSums]:
    """All sums, fewer, and none, each choice once."""
    tried = [tuple(s for s in usable if s.terms >= least) for least in LEAST_TERMS]
    yield from (ChosenSums(sums, bf16=bf16) for sums in dict.fromkeys([*tried, ()]))


def _without(choice: ChosenSums, looser: Looser) -> ChosenSums:
    """A choice but for some sums, whose filters may lose more."""
    kept = tuple(s for s in choice.sums if s.nest not in dict(looser))
    return replace(choice, sums=kept, looser=looser)


class _Errors:
    """How far results are off when sums of a graph in normal form are of 8-bit integers."""

    def __init__(
        self,
        graph: Graph,
        known: Mapping[str, Span],
        machine: Machine,
        how: Calibration,
        leeway: Leeway,
    ) -> None:
        self._graph, self._known, self._machine, self._how = graph, known, machine, how
        self._leeway = leeway
        self._rounds = _multiplies_bf16(machine)
        with RunningLibrary(graph, how, ChosenSums((), bf16=False).leeway_of(leeway)) as running:
            self._wanted = list(running.results())

    def within(self, choice: ChosenSums, tolerance: float) -> ChosenSums:
        """As many of some sums as leave results within a tolerance, those that change least.

        Nothing is rounded if factors in bf16 are beyond it.
        """
        if self.of(choice) <= tolerance:
            return choice
        chosen = choice.sums
        if not chosen or self.of(replace(choice, sums=())) > tolerance:
            return ChosenSums((), bf16=False)
        changes = self.changes(chosen)
        order = sorted(chosen, key=lambda s: changes[s.nest])
        # So many are known to be within it, and so many not to be.
        within, beyond = 0, len(order)
        while beyond - within > 1:
            middle = (within + beyond) // 2
            if self.of(replace(choice, sums=tuple(order[:middle]))) <= tolerance:
                within = middle
            else:
                beyond = middle
        kept = {s.nest for s in order[:within]}
        return replace(choice, sums=tuple(s for s in chosen if s.nest in kept))

    def of(self, choice: ChosenSums) -> float:
        """The largest relative error of an output in any case."""
        own = quantised(self._graph, choice.sums, self._known, self._machine)
        # The processor at hand may have instructions that code for another one does without.
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        with RunningLibrary(own, self._how, leeway) as running:
            return max(
                relative_error(x, y)
                for ours, wanted in zip(running.results(), self._wanted, strict=True)
                for x, y in zip(ours, wanted, strict=True)
                if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
            )

    def changes(self, chosen: Sequence[Site]) -> dict[str, float]:
        """How much quantising each sum alone changes it, relative to it: the square of that."""
        totals = np.zeros((len(chosen), 2))
        with RunningLibrary(
            compared(self._graph, chosen, self._known, self._machine), self._how
        ) as found:
            for results in found.results():
                totals += np.reshape(np.array(results, np.float64), totals.shape)
        changed, whole = totals.T
        tiny = np.finfo(np.float64).tiny
        return dict(zip((s.nest for s in chosen), changed / np.maximum(whole, tiny), strict=True))
