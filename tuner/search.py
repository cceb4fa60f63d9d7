"""The search for a kernel's schedule: what to try next, given what was measured before.

A *candidate* is a point of a space with its schedule. Candidates are judged by a model before they
are tried: chains of single changes begin at the best ones that were measured and at random points,
and keep a change that the model likes, or with a chance that falls as they go on [Kirkpatrick et
al. 1983]. Of what they come by, those that the model likes are tried that differ from each other,
and now and then a random one [Chen et al. 2018, section 3.2].

The model is that of all kernels (`Judge`), corrected by what was measured of this one: a Gaussian
process over the same features, whose spread tells where little is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

CHAINS = 4
"""Chains of changes that are made for a batch."""
STEPS = 4
"""Changes of each."""
WARM, COLD = 0.2, 0.02
"""How much slower, as a logarithm, what a chain goes on to may seem, at its beginning and end."""
RANDOM_EVERY = 6
"""One in so many that are tried is drawn at random."""
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

    @property
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
    """A point that chains came by: where it is, its schedule's text, and what a model says of it.

    What it says is without regions, which are large: another process may have met it.
    """

    space: int
    point: Any
    text: str
    judged: Judged


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
        chains: int = CHAINS,
    ) -> None:
        """A search of the spaces of a kernel, those of its templates in the order of preference.

        So many chains of changes are made for a batch.
        """
        self._kernel = kernel
        self._spaces = [s for s in spaces if len(s) > 0]
        self._judge = judge
        self._schedule = schedule
        self._rng = rng
        self._chains = chains
        self.measured: list[tuple[Candidate, float]] = []
        """What was tried, and the logarithm of its cycles; infinity of what failed."""
        self._seen: set[str] = set()
        self._pool: dict[str, Met] = {}
        """What chains came by and was not tried yet."""

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
            choice, kernel = self._made(space, point)
        except NotApplicable:
            return None
        return self._judged([(space, (point, (choice, kernel)))])[0]

    def observe(self, candidate: Candidate, cycles: float | None) -> None:
        """Take into account what a candidate took; None where it failed."""
        self._seen.add(candidate.text)
        self._pool.pop(candidate.text, None)
        self.measured.append((candidate, inf if cycles is None else log(cycles)))

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
        """Returns what chains of changes come by, which were not tried: the work of a proposal."""
        own = {id(space): number for number, space in enumerate(self._spaces)}
        model = Corrected([(c, m) for c, m in self.measured if m < inf])
        found = {
            c.text: Met(own[id(c.space)], c.point, c.text, replace(c.judged, regions=()))
            for c in self._wandered(model, rng)
        }
        return [m for m in found.values() if m.text not in self._seen]

    def propose(self, count: int, met: Sequence[Met] | None = None) -> list[Candidate]:
        """So many candidates to try next, or fewer where no others are found.

        They are of what chains have `met`, now or for an earlier proposal.
        """
        self._pool |= {m.text: m for m in (self.met(self.chance()) if met is None else met)}
        model = Corrected([(c, m) for c, m in self.measured if m < inf])
        fresh = [m for m in self._pool.values() if m.text not in self._seen]
        scores = {
            m.text: mean - LIKED_SPREAD * spread
            for m, (mean, spread) in zip(fresh, model.of([m.judged for m in fresh]), strict=True)
        }
        fresh.sort(key=lambda m: (scores[m.text], m.text))
        taken: list[Candidate] = []
        for number in range(count):
            by_chance = (len(self.measured) + number) % RANDOM_EVERY == 0
            drawn = self.drawn() if by_chance else None
            if drawn is not None and drawn.text not in self._seen:
                taken.append(drawn)
                continue
            found = next((m for m in fresh if not any(self._alike(m, t) for t in taken)), None)
            found = found or next(iter(fresh), None)
            if found is None:
                break
            fresh.remove(found)
            candidate = self.candidate(self._spaces[found.space], found.point)
            if candidate is not None:
                taken.append(candidate)
        return list({c.text: c for c in taken}.values())

    def _wandered(self, model: Corrected, rng: Random) -> Iterator[Candidate]:
        """Everything that chains of changes come by."""
        points = [(c, cycles) for c, cycles in self.measured if c.space is not None]
        chains = [c for c, _ in sorted(points, key=lambda x: x[1])[: self._chains // 2]]
        while len(chains) < self._chains:
            drawn = self.drawn(rng)
            if drawn is None:
                break
            chains.append(drawn)
        yield from chains
        at = [mean for mean, _ in model.of([c.judged for c in chains])] if chains else []
        # Chains come by the same points again, from the best ones most of all.
        known = {c.text: c for c in chains}
        made_before: dict[tuple[int, Any], tuple[Choice, Kernel]] = {}

        def made(space: Space[Any], point: Any) -> tuple[Choice, Kernel]:
            place = id(space), point
            if place not in made_before:
                made_before[place] = self._made(space, point)
            return made_before[place]

        for step in range(STEPS):
            heat = WARM * (COLD / WARM) ** (step / max(STEPS - 1, 1))
            near = [
                (i, c.space, c.space.nearby(c.point, rng, partial(made, c.space)))
                for i, c in enumerate(chains)
                if c.space is not None
            ]
            found = [(i, space, new, text_of(new[1][0])) for i, space, new in near if new]
            if not found:
                return
            fresh = {text: (space, new) for _, space, new, text in found if text not in known}
            known |= {c.text: c for c in self._judged(list(fresh.values()))}
            others = [known[text] for *_, text in found]
            means = model.of([c.judged for c in others])
            for (i, *_), other, (mean, _) in zip(found, others, means, strict=True):
                yield other
                if mean <= at[i] or rng.random() < exp((at[i] - mean) / heat):
                    chains[i], at[i] = other, mean

    def drawn(self, rng: Random | None = None) -> Candidate | None:
        """A random candidate of any space."""
        rng = rng or self._rng
        for space in rng.sample(self._spaces, len(self._spaces)):
            made = space.drawn(rng, partial(self._made, space))
            if made is not None:
                return self._judged([(space, made)])[0]
        return None

    def _made(self, space: Space[Any], point: Any) -> tuple[Choice, Kernel]:
        """The schedule of a point, and the kernel after it.

        Raises:
            NotApplicable: it does not fit.
        """
        choice = space.unchecked(point)
        return choice, self._schedule(self._kernel, choice)

    def _judged(
        self, made: Sequence[tuple[Space[Any], tuple[Any, tuple[Choice, Kernel]]]]
    ) -> list[Candidate]:
        """The candidates of some points."""
        judged = self._judge.judge([kernel for _, (_, (_, kernel)) in made])
        return [
            Candidate(space, point, choice, kernel, j)
            for (space, (point, (choice, kernel))), j in zip(made, judged, strict=True)
        ]

    def _alike(self, a: Met, b: Candidate) -> bool:
        """Whether two points differ in one parameter only, of several that they might."""
        space = self._spaces[a.space]
        if space is not b.space:
            return False
        pairs = zip(space.numbers(a.point), space.numbers(b.point), strict=True)
        free = [x != y for (x, y), axis in zip(pairs, space.axes.values(), strict=True) if axis[1:]]
        return len(free) > 2 and sum(free) <= 1
