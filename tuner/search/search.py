"""The search for a kernel's schedule: what to try next, given what was measured before.

A *candidate* is a point of a space with its schedule. Candidates are judged by a model before they
are tried, many for each one that is: it takes milliseconds to judge one, and a good model has good
ones among its first few [Chen et al. 2018, section 3.2]. They are drawn at random from all of the
space. Chains of single changes begin at the best ones that were measured and at those that the
model likes best, and keep a change that it likes, or with a chance that falls as they go on
[Kirkpatrick et al. 1983]. Of all of these that were not tried yet, those that the model likes are
tried that differ from each other, and now and then one by chance.

The model is that of all kernels (`Judge`), corrected by what was measured of this one: a Gaussian
process over the same features, whose spread tells where little is known.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import exp, inf, log
from random import Random
from typing import Any, Protocol

import numpy as np

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.cost import Region
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.steps import NotApplicable, print_schedule
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import usual
from rutc.tuner.space import Space

FIRST, DRAWN = 64, 16
"""Points that are drawn at random for the first proposal, and for each later one."""
CHAINS = 4
"""Chains of changes that are made for a proposal."""
FROM_BEST = 2
"""Those of them that begin at the best ones that were measured."""
STEPS = 2
"""Changes of each."""
WARM, COLD = 0.2, 0.02
"""How much slower, as a logarithm, what a chain goes on to may seem, at its beginning and end."""
CHANCE_EVERY = 6
"""One in so many that are tried is drawn by chance, the rarer the slower it seems."""
LIKED_SPREAD = 0.5
"""Spreads that count in favour of a candidate: what is not known may be better."""
LENGTH, NOISE, SCALE = 1.0, 0.02, 0.25
"""Of the Gaussian process: features' distance, measurements' and corrections' deviation."""
GIVEN = "given"
"""In the place of a template's name: schedules that were made by hand."""
MOST_KNOWN = 300
"""The fastest of those measured that it takes into account."""


@record
class Judged:
    """What a model says of a scheduled kernel: the logarithm of its cycles, and its features.

    `regions` has the counts that these come from.
    """

    log_cycles: float
    features: tuple[float, ...]
    regions: tuple[Region, ...] = ()


def text_of(choice: Choice) -> str:
    """What tells a schedule from others."""
    return print_schedule(choice.schedule)


class Judge(Protocol):
    """Says what scheduled kernels take, without running them."""

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns what it says of each."""
        ...


class Schedule(Protocol):
    """Makes a scheduled kernel of a choice."""

    def __call__(self, kernel: Kernel, choice: Choice) -> Kernel:
        """Returns it.

        Raises:
            NotApplicable: it does not apply.
        """
        ...


@record(eq=False)
class Candidate:
    """A point of a space, its schedule, the scheduled kernel, and what a model says of it.

    One that was made by hand has no space.
    """

    space: Space[Any] | None
    point: Any
    choice: Choice
    kernel: Kernel
    judged: Judged

    @cached_property
    def text(self) -> str:
        """What tells its schedule from others."""
        return text_of(self.choice)

    @property
    def template(self) -> str:
        """The name of what made it."""
        return GIVEN if self.space is None else self.space.template.name


@record
class Place:
    """Where a point is: the number of its space, and of its value of every parameter."""

    space: int
    numbers: tuple[int, ...]


@record
class Met:
    """A point that was judged: where it is, its schedule's text, and what a model says of it.

    What it says is without regions, which are large: another process may have met it.
    """

    space: int
    point: Any
    text: str
    judged: Judged


@record
class _Made:
    """A point, its schedule's text, and the kernel after it; None: another point has it."""

    space: int
    point: Any
    text: str
    kernel: Kernel | None


class Corrected:
    """A model corrected by measurements of one kernel: a Gaussian process of what it missed."""

    def __init__(self, known: Sequence[tuple[Candidate, float]]) -> None:
        """Take measured logarithms of cycles into account."""
        own = sorted(known, key=lambda x: x[1])[:MOST_KNOWN]
        self._offset = 0.0
        self._solved = None
        if not own:
            return
        missed = np.array([measured - c.judged.log_cycles for c, measured in own])
        features = np.array([c.judged.features for c, _ in own])
        self._offset = float(np.median(missed))
        self._middle = features.mean(axis=0)
        self._deviation = np.maximum(features.std(axis=0), 1e-3)
        self._own = self._scaled(features)
        matrix = self._kernel(self._own, self._own) + NOISE**2 * np.eye(len(own))
        self._factor = np.linalg.cholesky(matrix)
        self._solved = np.linalg.solve(
            self._factor.T, np.linalg.solve(self._factor, missed - self._offset)
        )

    def of(self, judged: Sequence[Judged]) -> list[tuple[float, float]]:
        """The logarithm of the cycles of each, and how far it may be off."""
        if self._solved is None or not judged:
            return [(j.log_cycles, SCALE) for j in judged]
        features = self._scaled(np.array([j.features for j in judged]))
        across = self._kernel(features, self._own)
        mean = across @ self._solved + self._offset
        explained = np.linalg.solve(self._factor, across.T)
        spread = np.sqrt(np.maximum(SCALE**2 - (explained**2).sum(axis=0), 0.0))
        return [
            (j.log_cycles + float(m), float(s))
            for j, m, s in zip(judged, mean, spread, strict=True)
        ]

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = (features - self._middle) / self._deviation
        found /= max(features.shape[1], 1) ** 0.5
        return found

    def _kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
        apart = np.maximum(squares - 2 * a @ b.T, 0.0)
        found: np.ndarray = SCALE**2 * np.exp(-0.5 * apart / LENGTH**2)
        return found


class Search:
    """What is known of a kernel's schedules, and which to try next."""

    def __init__(
        self,
        kernel: Kernel,
        spaces: Sequence[Space[Any]],
        judge: Judge,
        schedule: Schedule,
        rng: Random,
    ) -> None:
        """A search of the spaces of a kernel, those of its templates in the order of preference."""
        self._kernel = kernel
        self._spaces = [s for s in spaces if len(s) > 0]
        self._judge = judge
        self._schedule = schedule
        self._rng = rng
        self.measured: list[tuple[Candidate, float]] = []
        """What was tried, and the logarithm of its cycles; infinity of what failed."""
        self._seen: set[str] = set()
        self._code: set[str] = set()
        """The kernels that schedules made which were tried: several may make the same one."""
        self._pool: dict[str, Met] = {}
        """What was judged and not tried yet."""
        self._known: dict[str, Judged] = {}
        """What a model says of all that was judged, by the schedules' texts."""

    @cached_property
    def default(self) -> Candidate | None:
        """The point that is taken without a search."""
        return self.candidate(*(usual(self._spaces) or (None, None)))

    @property
    def best(self) -> tuple[Candidate, float] | None:
        """The fastest that was tried."""
        return min(self.measured, key=lambda x: x[1], default=None)

    @property
    def spaces(self) -> Sequence[Space[Any]]:
        """Those that have points."""
        return self._spaces

    def seen(self, candidate: Candidate) -> bool:
        """Whether it was tried."""
        return candidate.text in self._seen

    @property
    def size(self) -> float:
        """Points of all spaces, of which not all fit."""
        return float(sum(len(s) for s in self._spaces))

    def candidate(self, space: Space[Any] | None, point: Any) -> Candidate | None:
        """The candidate of a point; None where it does not fit."""
        if space is None:
            return None
        try:
            choice = space.unchecked(point)
            kernel = self._schedule(self._kernel, choice)
        except NotApplicable:
            return None
        return Candidate(space, point, choice, kernel, self._judge.judge([kernel])[0])

    def observe(self, candidate: Candidate, cycles: float | None) -> None:
        """Take into account what a candidate took; None where it failed."""
        self._seen.add(candidate.text)
        self._known[candidate.text] = replace(candidate.judged, regions=())
        self._code.add(str(candidate.kernel))
        self._pool.pop(candidate.text, None)
        self.measured.append((candidate, inf if cycles is None else log(cycles)))

    def correct(self, candidate: Candidate, cycles: float | None) -> None:
        """Take into account what a candidate took that was tried before, in the place of that."""
        self.measured = [x for x in self.measured if x[0] is not candidate]
        self.observe(candidate, cycles)

    def given(self, choice: Choice) -> Candidate | None:
        """The candidate of a schedule that was made by hand; None where it does not apply."""
        try:
            kernel = self._schedule(self._kernel, choice)
        except NotApplicable:
            return None
        return Candidate(None, None, choice, kernel, self._judge.judge([kernel])[0])

    def place(self, candidate: Candidate) -> Place | None:
        """Where a candidate is among the points of all spaces, if it is one of them."""
        if candidate.space is None:
            return None
        number = next(i for i, s in enumerate(self._spaces) if s is candidate.space)
        return Place(number, candidate.space.numbers(candidate.point))

    def recall(self, place: Place, text: str, cycles: float | None) -> bool:
        """Take into account what a schedule took that was tried before.

        False if there is no such point any more, or another schedule is there now.
        """
        if place.space not in range(len(self._spaces)):
            return False
        space = self._spaces[place.space]
        point = space.numbered(place.numbers)
        found = None if point is None else self.candidate(space, point)
        if found is None or found.text != text:
            return False
        if text not in self._seen:
            self.observe(found, cycles)
        return True

    def chance(self) -> Random:
        """Returns what the next chains draw by, here or in another process."""
        return Random(self._rng.random())

    def met(self, rng: Random) -> list[Met]:
        """Returns what is drawn and what chains come by, judged: the work of a proposal.

        Nothing that was tried is among it.
        """
        model = self._model()
        drawn = self._drawn(DRAWN if self._pool else FIRST, rng)
        found = {m.text: m for m in drawn}
        found |= {m.text: m for m in self._wandered(model, self._begun(model, found), rng)}
        return [m for m in found.values() if m.text not in self._seen]

    def propose(self, count: int, met: Sequence[Met] | None = None) -> list[Candidate]:
        """So many candidates to try next, or fewer where no others are found.

        They are of what was `met`, now or for an earlier proposal.
        """
        new = self.met(self.chance()) if met is None else met
        self._pool |= {m.text: m for m in new}
        # Another process may have judged them.
        self._known |= {m.text: m.judged for m in new}
        model = self._model()
        fresh = [m for m in self._pool.values() if m.text not in self._seen]
        scores = {
            m.text: mean - LIKED_SPREAD * spread
            for m, (mean, spread) in zip(fresh, model.of([m.judged for m in fresh]), strict=True)
        }
        fresh.sort(key=lambda m: (scores[m.text], m.text))
        taken: list[Candidate] = []
        number, code = len(self.measured), set(self._code)
        while fresh and len(taken) < count:
            apart = (m for m in fresh if not any(self._alike(m, t) for t in taken))
            found = next(apart, fresh[0])
            if (number + len(taken)) % CHANCE_EVERY == 0:
                least = scores[fresh[0].text]
                chances = [exp((least - scores[m.text]) / WARM) for m in fresh]
                (found,) = self._rng.choices(fresh, chances)
            fresh.remove(found)
            candidate = self.candidate(self._spaces[found.space], found.point)
            if candidate is None or str(candidate.kernel) in code:
                del self._pool[found.text]
                continue
            code.add(str(candidate.kernel))
            taken.append(candidate)
        return taken

    def _model(self) -> Corrected:
        """The model, corrected by what was measured."""
        return Corrected([(c, m) for c, m in self.measured if m < inf])

    def _met(self, c: Candidate) -> Met:
        space = next(number for number, s in enumerate(self._spaces) if s is c.space)
        return Met(space, c.point, c.text, replace(c.judged, regions=()))

    def _begun(self, model: Corrected, drawn: dict[str, Met]) -> list[Met]:
        """Where chains begin: at the best ones that were measured, and at what the model likes."""
        points = [(c, cycles) for c, cycles in self.measured if c.space is not None]
        best = map(self._met, (c for c, _ in sorted(points, key=lambda x: x[1])[:FROM_BEST]))
        begun = {m.text: m for m in best}
        others = [m for text, m in (self._pool | drawn).items() if text not in self._seen]
        means = zip((mean for mean, _ in model.of([m.judged for m in others])), others, strict=True)
        liked = [m for _, m in sorted(means, key=lambda x: (x[0], x[1].text))]
        return [*begun.values(), *liked[: CHAINS - len(begun)]]

    def _wandered(self, model: Corrected, begun: Sequence[Met], rng: Random) -> Iterator[Met]:
        """Everything that chains of changes come by."""
        chains = list(begun)
        at = [mean for mean, _ in model.of([m.judged for m in chains])]
        # Chains come by the same schedules again, from the best ones most of all.
        known = {m.text: m for m in chains}
        for step in range(STEPS):
            heat = WARM * (COLD / WARM) ** (step / max(STEPS - 1, 1))
            near = [
                (i, self._spaces[m.space].nearby(m.point, rng, partial(self._made, (), m.space)))
                for i, m in enumerate(chains)
            ]
            found = [(i, new[1]) for i, new in near if new is not None]
            if not found:
                return
            judged = self._judged([made for _, made in found])
            others = [known.setdefault(m.text, m) for m in judged]
            means = model.of([m.judged for m in others])
            for (i, _), other, (mean, _) in zip(found, others, means, strict=True):
                yield other
                if mean <= at[i] or rng.random() < exp((at[i] - mean) / heat):
                    chains[i], at[i] = other, mean

    def drawn(self) -> Candidate | None:
        """A random candidate of any space."""
        found = next(iter(self._drawn(1, self._rng)), None)
        return None if found is None else self.candidate(self._spaces[found.space], found.point)

    def _drawn(self, count: int, rng: Random) -> list[Met]:
        """So many random points of all spaces, judged, those of equal schedules once."""
        found: dict[str, _Made] = {}
        numbers = range(len(self._spaces))
        for _ in range(count):
            for number in rng.sample(numbers, len(numbers)):
                drawn = self._spaces[number].drawn(rng, partial(self._made, found, number))
                if drawn is not None:
                    found.setdefault(drawn[1].text, drawn[1])
                    break
        return self._judged(list(found.values()))

    def _made(self, waiting: Container[str], space: int, point: Any) -> _Made:
        """What becomes of a point; of schedules that wait to be judged the kernel is there already.

        Raises:
            NotApplicable: it does not fit.
        """
        choice = self._spaces[space].unchecked(point)
        text = text_of(choice)
        known = text in waiting or text in self._known
        return _Made(space, point, text, None if known else self._schedule(self._kernel, choice))

    def _judged(self, made: Sequence[_Made]) -> list[Met]:
        """What a model says of some points; it is asked of those of which it has not said it."""
        kernels = {m.text: m.kernel for m in made if m.kernel is not None}
        said = self._judge.judge(list(kernels.values()))
        self._known |= {t: replace(j, regions=()) for t, j in zip(kernels, said, strict=True)}
        return [Met(m.space, m.point, m.text, self._known[m.text]) for m in made]

    def _alike(self, a: Met, b: Candidate) -> bool:
        """Whether two points differ in one parameter only, of several that they might."""
        space = self._spaces[a.space]
        if space is not b.space:
            return False
        pairs = zip(space.numbers(a.point), space.numbers(b.point), strict=True)
        free = [x != y for (x, y), axis in zip(pairs, space.axes.values(), strict=True) if axis[1:]]
        return len(free) > 2 and sum(free) <= 1
