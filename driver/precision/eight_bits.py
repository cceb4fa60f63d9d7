"""`--precision int8`: sums of products of a model as sums of 8-bit integers, where that is faster.

The graph is brought into normal form, run on calibration cases for the ranges of its values
(`driver.precision.calibration`), and quantised (`graph_opt.quantise`). Which sums are is chosen by
what the plan of each choice takes, by the estimate of its kernels: all, those of many terms, or
none. Then those are left out that filters of factors in bf16 make faster, and no less accurate
(`graph_opt.filtered_instead`), if the plan is estimated to be faster. Sums that are left may have
factors in bf16. Values that such sums multiply, and that all else adds to others, as residuals are,
are added as the sums have them, if the kernels that touch them gain enough by it.

`--precision auto` computes as many sums otherwise as leave results within the tolerance
(`within_tolerance`). What bf16 costs is not known where the processor at hand does not multiply it:
for another one that does, none is used then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.options import Calibration
from rutc.driver.parts.build import machine_of
from rutc.driver.plans.estimates import Known, PlanEstimate, estimate_plan
from rutc.driver.precision.calibration import Case, spans
from rutc.driver.precision.chosen_sums import NOT_ROUNDED, ChosenSums
from rutc.driver.precision.measured_filters import LargerFilters
from rutc.driver.precision.within_tolerance import WithinTolerance
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.bf16_pairs import multiplies_bf16
from rutc.graph_opt.decide import decide
from rutc.graph_opt.filtered_instead import filtered_instead, no_less_accurate
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway, Looser
from rutc.graph_opt.quantise import (
    Site,
    added_values,
    normal,
    other_types,
    quantised,
    sites,
)
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.compare import Value

LEAST_TERMS = (0, 32, 128)
"""The least terms of sums of 8-bit integers, of which the best is chosen."""


@record
class EightBits:
    """A graph some of whose sums are of 8-bit integers, which, and of how many.

    `ranges` are those of their values; `cases` says what they were found on. Sums of products with
    constants that can be none have factors of `others`.
    """

    graph: Graph
    choice: ChosenSums
    sums: int
    ranges: dict[str, tuple[float, float]]
    cases: str
    others: tuple[DType, ...] = ()

    @property
    def chosen(self) -> tuple[Site, ...]:
        """Which sums are."""
        return self.choice.sums

    def facts(self) -> dict[str, object]:
        """What the manifest says."""
        return {
            "sums": [s.nest for s in self.chosen],
            "of": self.sums,
            "added": list(self.choice.added),
            "filtered": [name for name, _ in self.choice.looser],
            "rounded": self.choice.only,
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
    others = other_types(before)
    if not found and tolerance is None:
        return EightBits(graph, ChosenSums(()), 0, {}, "nothing", others)
    here = native_target().machine
    bf16 = tolerance is None or multiplies_bf16(here) or not multiplies_bf16(machine)
    filters = bf16 and not leeway.exact
    instead = filtered_instead(before, found, machine, leeway.spread) if filters else ()
    larger = LargerFilters(before, found if filters else (), machine, leeway.spread)
    energies: dict[tuple[str, str], np.ndarray] = {}

    def see(value: str, array: np.ndarray) -> None:
        own = [i for i in instead if i.site.value == value]
        if own and array.size and np.isfinite(array).all():
            energies.update((i.algorithm, i.energies(array)) for i in own)
        larger.see(value, array)

    told: list[tuple[Case, list[Value]]] = []
    known, cases = spans(
        before,
        (s.value for s in found),
        how,
        on_progress,
        see,
        None if tolerance is None else lambda *own: told.append(own),
        NOT_ROUNDED.leeway_of(leeway),
    )
    usable = tuple(s for s in found if s.value in known)
    estimated: Known = {}

    @cache
    def planned(choice: ChosenSums) -> PlanEstimate:
        own = quantised(before, choice.sums, known, machine, choice.added)
        version = versions(own, machine, choice.leeway_of(leeway))[-1]
        plan = decide(version.graph, machine, version.assigned)
        return estimate_plan(plan, machine_of([plan], machine), known=estimated)

    def cycles(choice: ChosenSums) -> float:
        return planned(choice).cycles

    def best(choices: Iterable[ChosenSums]) -> ChosenSums:
        return min(choices, key=lambda choice: (cycles(choice), len(choice.sums)))

    choice = best(_choices(usable, None if bf16 else ()))
    looser = no_less_accurate(
        [i for i in instead if i.site in choice.sums], energies, before, known, machine
    )
    choice = best([choice, _without(choice, looser)])
    if tolerance is None:
        choice = _with_additions(choice, added_values(before, choice.sums), planned, machine)
    else:
        floats = ChosenSums((), larger.within_bits(), choice.only)
        within = WithinTolerance(before, known, machine, how, told, leeway, cycles, on_progress)
        # Where filters left no integers, floats as fast may have other filters as well.
        choice = within.chosen(best([floats, choice]), floats, tolerance)
    result = graph
    if choice.sums:
        result = quantised(before, choice.sums, known, machine, choice.added)
    ranges = {s.value: (known[s.value].low, known[s.value].high) for s in choice.sums}
    return EightBits(result, choice, len(found), ranges, cases, others)


def _with_additions(
    choice: ChosenSums,
    added: tuple[str, ...],
    planned: Callable[[ChosenSums], PlanEstimate],
    machine: Machine,
) -> ChosenSums:
    """A choice with values added to others as sums have them, if kernels gain enough by that.

    They are the kernels that write and read these values. The sums lose as much of them.
    """
    if not added:
        return choice
    other = replace(choice, added=added)
    usual = planned(choice)
    touching = sum(x.cycles for x in usual.launches if not x.values.isdisjoint(added))
    least = machine.coefficients.stored_types.least_gain
    return other if usual.cycles - planned(other).cycles >= least * touching else choice


def _choices(usable: tuple[Site, ...], only: tuple[str, ...] | None) -> Iterator[ChosenSums]:
    """All sums, fewer, and none, each choice once."""
    tried = [tuple(s for s in usable if s.terms >= least) for least in LEAST_TERMS]
    yield from (ChosenSums(sums, only=only) for sums in dict.fromkeys([*tried, ()]))


def _without(choice: ChosenSums, looser: Looser) -> ChosenSums:
    """A choice but for some sums, whose filters may lose more."""
    kept = tuple(s for s in choice.sums if s.nest not in dict(looser))
    return replace(choice, sums=kept, looser=looser)
