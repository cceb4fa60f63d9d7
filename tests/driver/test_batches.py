"""How a subject's candidates are taken, one after the other or many at once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf, log
from random import Random
from typing import Any, cast

import pytest

from rutc.driver.tuning.schedule_search import (
    BATCH,
    HOPE,
    PATIENCE,
    Progressing,
    SearchLimits,
    Seen,
    Tuning,
)
from rutc.tuner.search.search import Candidate, Met, Search


class Numbers:
    """Stands for a search: candidates are numbers, each what it takes, proposed in their order."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._waiting: Iterator[float] = iter(numbers)
        self.measured: list[float] = [100.0]
        self.asked: list[tuple[int, int]] = []
        """How many were to be proposed when so many were measured."""

    def propose(self, count: int, met: Sequence[Met]) -> list[float]:
        self.asked.append((count, len(self.measured)))
        pairs = zip(range(count), self._waiting, strict=False)
        return [x for _, x in pairs if x < inf]

    def chance(self) -> Random:
        return Random(0)

    def met(self, rng: Random) -> list[Met]:
        return []

    @property
    def best(self) -> tuple[float, float]:
        return min((x, log(x)) for x in self.measured)


def subject_of(search: Numbers) -> Progressing:
    return Progressing(cast(Any, None), 1.0, "it", cast(Search, search), 100.0)


def tried(t: Progressing, search: Numbers, rounds: int, at_once: int) -> None:
    """Tries so many in each round."""
    for _ in range(rounds):
        found = cast(list[float], t.next(at_once, ()))
        search.measured += found
        if found:
            t.learn()


@pytest.mark.parametrize("at_once", [1, 3, BATCH])
def test_what_is_next_is_chosen_by_all_that_was_measured(at_once: int) -> None:
    search = Numbers([200.0] * 99)
    t = subject_of(search)
    tried(t, search, 3, at_once)
    known = [1 + n for n in range(0, BATCH, at_once)]
    assert [measured for _, measured in search.asked][: len(known)] == known[:3]
    assert all(count <= at_once for count, _ in search.asked)


def test_a_batch_that_brings_nothing_counts() -> None:
    search = Numbers([200.0] * BATCH + [50.0] * BATCH + [200.0] * 99)
    t = subject_of(search)
    tried(t, search, BATCH, 1)
    assert t.idle == 1
    assert t.hope == HOPE / 2
    tried(t, search, BATCH, 1)
    assert t.idle == 0
    assert t.hope > HOPE
    tried(t, search, PATIENCE, BATCH)
    assert t.finished


def test_a_batch_may_be_short() -> None:
    """What was drawn is tried: the next ones are others."""
    search = Numbers([200.0, 200.0, inf, 200.0, 200.0])
    t = subject_of(search)
    tried(t, search, 3, 1)
    assert t.idle == 1
    assert t.begins
    assert not t.finished
    tried(t, search, 2, 1)
    assert t.next(1, ()) == []
    assert not t.finished
    assert t.next(1, ()) == []
    assert t.finished


def test_those_that_are_given_come_first() -> None:
    search = Numbers([200.0] * 99)
    t = subject_of(search)
    t.queue = cast(list[Candidate], [70.0, 80.0])
    assert t.next(1, ()) == [70.0]
    assert not t.begins
    assert t.next(5, ()) == [80.0]
    assert not search.asked


class Number(float):
    """A candidate of `Numbers` that is tried in a round."""

    choice = None


class NoBench:
    """Times nothing, one of a subject at once."""

    def usual(self) -> dict[Any, Any]:
        return {}

    def room(self, subject: Any, taken: Any) -> int:
        return 1

    def time(self, tries: Sequence[Any]) -> list[Any]:
        return [None for _ in tries]


class Counting(Tuning):
    """Keeps nothing of what it tries, but how much that is."""

    def _seen(self, seen: Sequence[Seen]) -> None:
        for t, c, _ in seen:
            cast(Numbers, t.search).measured.append(cast(Any, c))
            t.trials += 1


def test_a_search_goes_on_after_short_batches() -> None:
    """A round in which batches of all subjects end is not the last."""
    search = Numbers([Number(200), Number(200), inf, Number(200), inf, Number(200), Number(200)])
    tuning = Counting({}, NoBench(), cast(Any, None), cast(Any, None))
    tuning.subjects.append(subject_of(search))
    for _ in tuning.run(SearchLimits()):
        pass
    assert tuning.trials == 5
    assert tuning.subjects[0].finished


def busy_with(runs: Sequence[float]) -> tuple[Counting, list[Counter[float]]]:
    """A search of subjects that run so often, and how many of each its rounds try."""
    rounds: list[Counter[float]] = []

    class Counted(NoBench):
        def room(self, subject: Any, taken: Any) -> int:
            return 3

    class Kept(Counting):
        def _chosen(self, most: float) -> list[tuple[Progressing, Candidate]]:
            found = super()._chosen(most)
            rounds.append(Counter(t.runs for t, _ in found))
            return found

    tuning = Kept({}, Counted(), cast(Any, None), cast(Any, None))
    for n in runs:
        search = cast(Search, Numbers([Number(200)] * 99))
        tuning.subjects.append(Progressing(cast(Any, n), n, "it", search, 100.0))
    return tuning, rounds


def test_rounds_grow_from_a_batch_on() -> None:
    """The first tells how long the others take."""
    tuning, rounds = busy_with([10.0 + n for n in range(10)])
    list(tuning.run(SearchLimits(trials=50)))
    assert [r.total() for r in rounds[:2]] == [BATCH, 2 * BATCH]
    assert rounds[2].total() > 2 * BATCH
    assert sum(r.total() for r in rounds) == 50


def test_a_round_is_no_larger_than_the_trials_that_are_left() -> None:
    tuning, rounds = busy_with([1.0, 2.0])
    list(tuning.run(SearchLimits(trials=2)))
    assert [r.total() for r in rounds] == [2]


def test_small_kernels_that_are_many_have_trials_in_the_first_rounds() -> None:
    """Each is expected to bring a hundredth of the largest one, all together as much."""
    tuning, rounds = busy_with([100.0, *(1 + n / 1000 for n in range(100))])
    list(tuning.run(SearchLimits(trials=2 * BATCH)))
    assert rounds[0][100.0] == 3
    assert rounds[0].total() == BATCH
    tuning, rounds = busy_with([100.0, 1.0])
    list(tuning.run(SearchLimits(trials=2 * BATCH)))
    # By itself it waits until less is expected of the other.
    assert rounds[0] == Counter({100.0: 3})


def test_what_a_process_had_to_do_that_the_system_ended_is_done_here() -> None:
    """As it does where memory is short: the search goes on as it would have."""
    here = os.getpid()

    class Dying(Numbers):
        def met(self, rng: Random) -> list[Met]:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            return [Met(0, None, str(rng.random()), cast(Any, None))]

    class Alone(Numbers):
        def met(self, rng: Random) -> list[Met]:
            return [Met(0, None, str(rng.random()), cast(Any, None))]

    found = []
    for kind in (Dying, Alone):
        tuning = Counting({}, NoBench(), cast(Any, None), cast(Any, None), jobs=2)
        subjects = [
            Progressing(cast(Any, n), 1.0, "it", cast(Search, kind([])), 100.0) for n in range(3)
        ]
        found.append(tuning._met(subjects))
    assert found[0] == found[1]
    assert len(found[0]) == 3
