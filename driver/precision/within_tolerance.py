"""`--precision auto`: the fastest way to compute each sum that leaves results within a tolerance.

A sum of products may be as the model states it, of factors in bf16, or of 8-bit integers. How far
results are off when one of them alone is computed otherwise is measured, in a library of which a
run computes each sum in the way that it is told (`graph_opt.quantise.in_ways`); how much time that
saves is estimated. From all in float32 on, the steps are taken that cost least for the time that
they save, as errors of many sums have random signs and their squares add up: a multiple-choice
knapsack by its convex hull [Sinha & Zoltners 1979]. How many steps are within the tolerance tells
the same library, which computes any mix. It filters nothing in bf16: what a sum loses by that comes
on top (`filtering.lost_bits`).

What was chosen is then compiled as it will be, and measured. If that is further off, as values
between are stored in 16 bits then and windows are filtered, fewer steps are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.options import AUTO, FP16, Calibration
from rutc.driver.precision.calibration import Case, RunningLibrary
from rutc.driver.precision.chosen_sums import NOT_ROUNDED, ChosenSums
from rutc.driver.precision.error_bound import bound_of, errors_of
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.bf16_pairs import multiplies_bf16
from rutc.graph_opt.alternatives.choices import offers
from rutc.graph_opt.alternatives.filtering import lost_bits
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.pipeline import filtering_for, rounded_by
from rutc.graph_opt.quantise import (
    QUANTISED,
    ROUNDED,
    WAYS,
    Site,
    Span,
    in_ways,
    quantised,
    sites,
    ways_of,
)
from rutc.graph_opt.rounded_filters import rounded_filters
from rutc.tensor_ir import Graph, Nest
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.compare import Value

FEW = 2
"""Cases that tell what each sum costs, of which there are many."""

Told = Sequence[tuple[Case, Sequence[Value]]]
"""Inputs, and the outputs that results on them are compared with."""
Ways = Mapping[str, int]
"""The sums that are not computed as the model states them, and how."""


@record
class Step:
    """A sum in another way than before, the mean square error that this adds by a cycle saved."""

    nest: str
    way: int
    cost: float


class WithinTolerance:
    """Chooses the ways of a graph's sums, the graph in normal form, by errors on cases.

    The outputs of `cases` are in float32; `cycles` estimates what a choice takes.
    """

    def __init__(
        self,
        graph: Graph,
        known: Mapping[str, Span],
        machine: Machine,
        how: Calibration,
        cases: Told,
        leeway: Leeway,
        cycles: Callable[[ChosenSums], float],
        tell: Progress = nobody,
    ) -> None:
        self._graph, self._known, self._machine, self._how = graph, known, machine, how
        self._cases, self._leeway, self._cycles, self._tell = cases, leeway, cycles, tell
        self._rounds = multiplies_bf16(machine)
        self._bounds: dict[ChosenSums, float] = {}
        self._offered: dict[ChosenSums, dict[str, list[Offer]]] = {}

    def chosen(self, first: ChosenSums, floats: ChosenSums, tolerance: float) -> ChosenSums:
        """The first choice, if results are within the tolerance then; else one of fewer sums.

        What that is of sums without integers is `floats`.
        """
        if self.bound(first) <= tolerance:
            return first
        own = self._mixed(first.sums, floats, tolerance)
        if own is not None:
            return own
        # Weights in f16 lose an eighth of what bf16 does.
        waited = replace(floats, looser=(), only=())
        return waited if self.bound(waited) <= tolerance else NOT_ROUNDED

    def _mixed(
        self, sums: tuple[Site, ...], floats: ChosenSums, tolerance: float
    ) -> ChosenSums | None:
        """What leaves out that costs too much of the tolerance; None: that is all."""
        usual = replace(floats, looser=())
        saved = self.saved(usual)
        gains = {name: {ROUNDED: cycles} for name, cycles in saved.items()}
        for name, cycles in self._saved_by_integers(sums, floats).items():
            own = gains.setdefault(name, {})
            own[QUANTISED] = own.get(ROUNDED, 0.0) + cycles
        if not gains:
            return None
        rounded = tuple(saved)
        graph = in_ways(self._graph, rounded, sums, self._known, self._machine)
        with RunningLibrary(graph, self._how) as running:
            every = ways_of(rounded, sums)
            mix = Mix(running, every, self._cases, self.losses(usual), self._tell)
            steps = _steps(gains, mix.costs(gains))

            def choice(ways: Ways) -> ChosenSums:
                """What computes sums so; all that can be rounded are if none is in float32."""
                own = tuple(s for s in sums if ways.get(s.nest) == QUANTISED)
                if floats.only is None and all(name in ways for name in rounded):
                    names = {s.nest for s in own}
                    looser = tuple(f for f in floats.looser if f[0] not in names)
                    return replace(floats, sums=own, looser=looser)
                only = tuple(name for name, way in ways.items() if way == ROUNDED)
                return replace(floats, sums=own, looser=(), only=only)

            return self._longest(choice, rounded, steps, mix, tolerance)

    def _longest(
        self,
        choice: Callable[[Ways], ChosenSums],
        rounded: tuple[str, ...],
        steps: Sequence[Step],
        mix: Mix,
        tolerance: float,
    ) -> ChosenSums | None:
        """What the most steps make that are within the tolerance; None: not even one is.

        What was measured of a choice as it will be compiled says how much further off others are,
        too, than the mix tells.
        """
        beyond, own = len(steps) + 1, tolerance
        while length := mix.most(steps[: beyond - 1], own):
            ways = _ways(steps[:length])
            found = choice(ways)
            if self.bound(found) > tolerance:
                # Filters lose more than the mix tells.
                found = replace(found, looser=())
            bound = self.bound(found)
            if bound <= tolerance:
                # Without integers it is no further off, and has no borders between both.
                floats = choice({name: ROUNDED for name in ways if name in rounded})
                return min(found, replace(floats, looser=found.looser), key=self._cycles)
            beyond = length
            own = min(own, tolerance * mix.bound(ways) / bound)
        return None

    def saved(self, choice: ChosenSums) -> dict[str, float]:
        """The sums whose factors a choice rounds to bf16, with the cycles that this saves.

        Beside float32, which may filter what bf16 does not, or with more outputs at a time.
        """
        every, usual = self._offers(choice), self._offers(NOT_ROUNDED)
        saved = {}
        for name, own in every.items():
            if any(rounded_by(o.algorithm) for o in own):
                cycles = sum(o.direct - o.cost for o in own)
                saved[name] = cycles - sum(o.direct - o.cost for o in usual.get(name, ()))
        return {name: cycles for name, cycles in saved.items() if cycles > 0}

    def losses(self, choice: ChosenSums) -> dict[str, float]:
        """How many times as large mean square errors of sums are that a choice filters in bf16."""
        editor = Editor(self._graph)
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        rule = filtering_for(self._machine, leeway, None)
        chosen = {(o.value, o.algorithm) for own in self._offers(choice).values() for o in own}
        every = (f for s in sites(self._graph) for _, f in rounded_filters(s, editor, rule))
        return {
            f.site.nest: 4.0 ** lost_bits(f.form.filters) for f in every if f.algorithm in chosen
        }

    def _offers(self, choice: ChosenSums) -> dict[str, list[Offer]]:
        """The algorithms of sums that are not as the model states them by a choice, by sum."""
        if choice in self._offered:
            return self._offered[choice]
        found = self._offered[choice] = dict[str, list[Offer]]()
        names = {outs(n)[0].name for n in self._graph.nodes if isinstance(n, Nest)}
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        for version in versions(self._graph, self._machine, leeway):
            own = version.assigned
            for o in offers(self._graph, self._machine, own, exact=leeway.exact):
                if o.value in names and (o.value, o.algorithm) in own.algorithms:
                    found.setdefault(o.value, []).append(o)
        return found

    def _saved_by_integers(self, sums: tuple[Site, ...], floats: ChosenSums) -> dict[str, float]:
        """The cycles that sums of integers save beside those of floats, by their products."""
        usual = replace(floats, looser=())
        whole = self._cycles(usual) - self._cycles(replace(usual, sums=sums))
        editor = Editor(self._graph)
        nests = (editor.nest(s.nest) for s in sums)
        products = {n.out.name: editor.typical(n.dims) for n in nests if n is not None}
        every = sum(products.values())
        return {name: whole * own / every for name, own in products.items()} if whole > 0 else {}

    def bound(self, choice: ChosenSums) -> float:
        """How far results of other cases may be off, by what is compiled for a choice."""
        if choice in self._bounds:
            return self._bounds[choice]
        own = quantised(self._graph, choice.sums, self._known, self._machine)
        # The processor at hand may have instructions that code for another one does without.
        leeway = choice.leeway_of(self._leeway, rounds=self._rounds)
        precision = choice.precision_of(AUTO if self._rounds else FP16)
        with RunningLibrary(own, self._how, leeway, precision) as running:
            errors = np.array([errors_of(running.run(c), wanted) for c, wanted in self._cases])
        self._bounds[choice] = bound_of(errors)
        return self._bounds[choice]


class Mix:
    """A library whose runs compute each of some sums in the way that they are told.

    `cases` are inputs, and the outputs in float32. Mean square errors of rounded sums are so many
    times as large as it computes them as `losses` says, 1 if that has none.
    """

    def __init__(
        self,
        running: RunningLibrary,
        sums: tuple[str, ...],
        cases: Told,
        losses: Mapping[str, float],
        tell: Progress = nobody,
    ) -> None:
        self._running, self._sums, self._cases, self._tell = running, sums, cases, tell
        self._losses = losses
        self._alone: dict[tuple[str, int], float] = {}
        self._bounds: dict[tuple[int, ...], float] = {}

    def _errors(self, ways: Ways, cases: int | None = None) -> Iterator[np.ndarray]:
        """The errors of outputs {output} in each case, or in the first ones, without losses."""
        given = np.array([ways.get(name, 0) for name in self._sums])
        for case, wanted in self._cases[:cases]:
            yield errors_of(self._running.run({**case, WAYS: given}), wanted)

    def costs(self, gains: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, int], float]:
        """The mean square error when a sum alone is computed in some way."""
        asked = [(name, way) for name, own in gains.items() for way in own]
        for done, (name, way) in enumerate(asked):
            self._tell("measure", done, len(asked))
            errors = [float(e.max(initial=0.0)) for e in self._errors({name: way}, FEW)]
            self._alone[name, way] = float(np.mean(np.square(errors)))
        return {own: self._with_loss(*own) for own in asked}

    def bound(self, ways: Ways) -> float:
        """How far results of other cases may be off, by sums whose costs are known."""
        key = tuple(ways.get(name, 0) for name in self._sums)
        if key not in self._bounds:
            energy = sum(self._alone[own] for own in ways.items())
            whole = sum(self._with_loss(*own) for own in ways.items())
            more = sqrt(whole / energy) if energy else 1.0
            self._bounds[key] = more * bound_of(np.array(list(self._errors(ways))))
        return self._bounds[key]

    def _with_loss(self, name: str, way: int) -> float:
        """The mean square error of a sum alone, with what it loses by its filter."""
        return self._alone[name, way] * (self._losses.get(name, 1.0) if way == ROUNDED else 1.0)

    def most(self, steps: Sequence[Step], tolerance: float) -> int:
        """How many steps, the first ones, leave results within a tolerance."""
        if self.bound(_ways(steps)) <= tolerance:
            return len(steps)
        within, beyond = 0, len(steps)
        while beyond - within > 1:
            middle = (within + beyond) // 2
            if self.bound(_ways(steps[:middle])) <= tolerance:
                within = middle
            else:
                beyond = middle
        return within


def _steps(
    gains: Mapping[str, Mapping[int, float]], costs: Mapping[tuple[str, int], float]
) -> tuple[Step, ...]:
    """The steps from all as stated to each sum as fast as it can be, those of least cost first.

    A way that saves less than another one and costs more for it is not among them.
    """
    steps = []
    for name, own in gains.items():
        cycles, cost = 0.0, 0.0
        while faster := {way: saved for way, saved in own.items() if saved > cycles}:
            rates = {w: (costs[name, w] - cost) / (c - cycles) for w, c in faster.items()}
            way = min(rates, key=lambda w: (rates[w], -faster[w]))
            steps.append(Step(name, way, rates[way]))
            cycles, cost = faster[way], costs[name, way]
    return tuple(sorted(steps, key=lambda step: step.cost))


def _ways(steps: Sequence[Step]) -> dict[str, int]:
    """What steps make of sums, in the order of these: each as its last one says."""
    return {step.nest: step.way for step in steps}
