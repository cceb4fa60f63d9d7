"""`--precision int8`: sums of products of a model as sums of 8-bit integers, where that is faster.

The graph is brought into normal form, run on calibration cases for the ranges of its values
(`driver.precision.calibration`), and quantised (`graph_opt.quantise`). Which sums are is chosen by
what the plan of each choice takes, by the estimate of its kernels: all, those of many terms, or
none. Then those are left out that filters of factors in bf16 make faster, and no less accurate
(`graph_opt.filtered_instead`), if the plan is estimated to be faster. Sums that are left may have
factors in bf16.

`--precision auto` takes back as many as results need to be within the tolerance on the cases: first
those that cost most of it for the time that they save. What each costs tells a library of which a
run computes one sum in the other way, and all else as it was: errors of many have random signs, and
their squares add up. How far results are off tells a library of what is left. If they are too far
off without any sum in 8 bits, factors in bf16 are left to as many sums, chosen in the same way.
Weights that are waited for are then in f16, which loses an eighth of that, and in f32 if even this
is too much. What bf16 costs is not known where the processor at hand does not multiply it: for
another one that does, none is used then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.options import AUTO, FP16, FP32, Calibration, Options
from rutc.driver.parts.build import machine_of
from rutc.driver.plans.estimates import Known, estimate_plan
from rutc.driver.precision.calibration import RunningLibrary, spans
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.choices import offers
from rutc.graph_opt.decide import decide
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.filtered_instead import filtered_instead, no_less_accurate
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway, Looser
from rutc.graph_opt.pipeline import rounded_by
from rutc.graph_opt.quantise import (
    WHICH,
    Site,
    Span,
    normal,
    one_quantised,
    one_rounded,
    quantised,
    sites,
)
from rutc.tensor_ir import DType, Graph, Nest
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.machine import Machine
from rutc.verify.budget import relative_error
from rutc.verify.compare import Value

LEAST_TERMS = (0, 32, 128)
"""The least terms of sums of 8-bit integers, of which the best is chosen."""
FEW = 2
"""Cases that tell what each sum costs, of which there are many."""
MARGIN = 0.75
"""The share of a tolerance that is used up on calibration cases: others are further off."""


@record
class ChosenSums:
    """The sums of a graph in normal form that are of 8-bit integers, and what else is rounded.

    Factors of others may be rounded to bf16: those of `only` so many, None: of all; filters of some
    are `looser` then. If not all are, weights are stored as the precision `rest` has them.
    """

    sums: tuple[Site, ...]
    looser: Looser = ()
    only: tuple[str, ...] | None = None
    rest: str = FP16

    def leeway_of(self, given: Leeway, *, rounds: bool = True) -> Leeway:
        """The leeway for what is made of the graph then, if the processor `rounds` at all."""
        bf16 = rounds and self.only != ()
        return replace(given, bf16=bf16, looser=self.looser, only=self.only)

    def precision_of(self, asked: str) -> str:
        """The precision of what is made of the graph then, whose own one was asked for."""
        return asked if self.only is None else self.rest

    def options_of(self, options: Options) -> Options:
        """The options for what is made of the graph then."""
        precision = self.precision_of(options.precision)
        return replace(options, precision=precision, looser=self.looser, only=self.only)


NOT_ROUNDED = ChosenSums((), only=(), rest=FP32)
"""All in float32."""


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

    choice = best(_choices(usable, None if bf16 else ()))
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


def _choices(usable: tuple[Site, ...], only: tuple[str, ...] | None) -> Iterator[ChosenSums]:
    """All sums, fewer, and none, each choice once."""
    tried = [tuple(s for s in usable if s.terms >= least) for least in LEAST_TERMS]
    yield from (ChosenSums(sums, only=only) for sums in dict.fromkeys([*tried, ()]))


def _without(choice: ChosenSums, looser: Looser) -> ChosenSums:
    """A choice but for some sums, whose filters may lose more."""
    kept = tuple(s for s in choice.sums if s.nest not in dict(looser))
    return replace(choice, sums=kept, looser=looser)


T = TypeVar("T")


def _most(order: Sequence[T], fits: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """The first of an order, as many as fit: none do, and all do not."""
    within, beyond = 0, len(order)
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if fits(tuple(order[:middle])):
            within = middle
        else:
            beyond = middle
    return tuple(order[:within])


def _error(ours: Sequence[Value], wanted: Sequence[Value]) -> float:
    """The largest relative error of an output."""
    return max(
        relative_error(x, y)
        for x, y in zip(ours, wanted, strict=True)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    )


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
        with RunningLibrary(graph, how, NOT_ROUNDED.leeway_of(leeway)) as running:
            self._few = list(islice(running.cases(), FEW))
            self._wanted = list(running.results())

    def within(self, choice: ChosenSums, tolerance: float) -> ChosenSums:
        """As many of some sums as leave results within a tolerance, those that cost least.

        If factors in bf16 are beyond it without any, as many of these.
        """
        if self.of(choice) <= tolerance:
            return choice
        chosen, none = choice.sums, replace(choice, sums=())
        if chosen and self.of(none) <= tolerance:
            sums = {s.nest: s for s in chosen}
            other = one_quantised(self._graph, chosen, self._known, self._machine)
            order = self.cheapest(other, self._products(chosen))
            kept = _most(
                tuple(sums[name] for name in order),
                lambda own: self.of(replace(choice, sums=own)) <= tolerance,
            )
            return replace(choice, sums=tuple(s for s in chosen if s in kept))
        # A filter of looser ones is one of those that lose most.
        none = replace(none, looser=())
        if self.of(replace(none, only=())) > tolerance:
            return NOT_ROUNDED
        if choice.only is not None:
            return replace(none, only=())
        saved = self.saved(none)
        order = self.cheapest(one_rounded(self._graph, tuple(saved)), saved)
        only = _most(order, lambda own: self.of(replace(none, only=own)) <= tolerance)
        return replace(none, only=only)

    def _products(self, chosen: Iterable[Site]) -> dict[str, float]:
        """How many products each sums, which is what all save a like share of."""
        editor = Editor(self._graph)
        nests = (editor.nest(s.nest) for s in chosen)
        return {n.out.name: editor.typical(n.dims) for n in nests if n is not None}

    def saved(self, choice: ChosenSums) -> dict[str, float]:
        """The sums whose factors a choice rounds to bf16, with the cycles that this saves."""
        saved = {outs(n)[0].name: 0.0 for n in self._graph.nodes if isinstance(n, Nest)}
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        for version in versions(self._graph, self._machine, leeway):
            own = [x for x in version.assigned.algorithms if rounded_by(x[1])]
            every = offers(self._graph, self._machine, version.assigned, exact=leeway.exact)
            for o in every:
                if (o.value, o.algorithm) in own and o.value in saved:
                    saved[o.value] += o.direct - o.cost
        return {name: cycles for name, cycles in saved.items() if cycles > 0}

    def cheapest(self, graph: Graph, saved: Mapping[str, float]) -> tuple[str, ...]:
        """The sums by what each costs for the time that it has `saved`, the least first.

        A run of the graph computes one of them in the other way: the one that an input numbers.
        """
        costs = dict.fromkeys(saved, 0.0)
        with RunningLibrary(graph, self._how) as running:
            for case, wanted in zip(self._few, self._wanted, strict=False):
                for number, name in enumerate(saved):
                    found = running.run({**case, WHICH: np.array(number)})
                    costs[name] += _error(found, wanted) ** 2
        return tuple(sorted(saved, key=lambda name: costs[name] / max(saved[name], 1.0)))

    def of(self, choice: ChosenSums) -> float:
        """The largest relative error of an output in any case."""
        own = quantised(self._graph, choice.sums, self._known, self._machine)
        # The processor at hand may have instructions that code for another one does without.
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        precision = choice.precision_of(AUTO if self._rounds else FP16)
        with RunningLibrary(own, self._how, leeway, precision) as running:
            return max(map(_error, running.results(), self._wanted))
