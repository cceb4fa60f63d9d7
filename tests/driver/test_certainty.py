"""Rounds of trials go on until what may be faster is known well enough, and no longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from rutc.driver.timing import launch_times
from rutc.driver.timing.certainty import CERTAIN, MOST_RUNS, Asked, Question, clear, known
from rutc.driver.timing.launch_times import FEWEST_RUNS, Profiled, TimedLibrary, run_in_turns
from rutc.verify.judging.compare import Value

RUNS = 100


def times(*launches: tuple[float, float]) -> np.ndarray:
    """Microseconds {run, launch} that lie evenly around (middle, width) of each."""
    around = np.linspace(-0.5, 0.5, RUNS)
    np.random.default_rng(0).shuffle(around)
    return np.array([middle + width * around for middle, width in launches]).T


FIRST, SECOND = Asked((0,), (0,)), Asked((1,), (1,))
USUAL = times((400, 0), (1000, 0))


@pytest.mark.parametrize(
    ("other", "enough"),
    [
        pytest.param(((600, 200), (1000, 0)), True, id="slower for sure"),
        pytest.param(((300, 200), (1000, 0)), False, id="faster, who knows how much"),
        pytest.param(((380, 200), (1000, 0)), False, id="perhaps faster"),
        pytest.param(((300, 10), (900, 10)), True, id="faster, known well"),
        pytest.param(((300, 80), (900, 10)), True, id="what takes less is known less well"),
        pytest.param(((300, 10), (900, 200)), False, id="than what takes long"),
    ],
)
def test_what_may_be_faster_has_to_be_known(
    other: tuple[tuple[float, float], ...], enough: bool
) -> None:
    assert known((FIRST, SECOND), USUAL, times(*other)) is enough


def test_a_candidate_may_have_other_launches_instead() -> None:
    both = Asked((0, 1), (1,))
    assert both.before(USUAL) == pytest.approx(1400)
    assert both.ratios(USUAL, times((7, 0), (700, 0))) == pytest.approx(0.5)
    # Of a chain that takes a tenth less, a kernel with half of it takes a fifth less.
    assert Asked((0,), (0,), 0.5).ratios(USUAL, times((360, 0))) == pytest.approx(0.8)


def test_what_is_no_better_than_the_best_is_known_well_enough() -> None:
    other = times((300, 200), (1000, 0))
    assert not known((FIRST, SECOND), USUAL, other)
    assert known((replace(FIRST, goal=0.6), SECOND), USUAL, other)


def test_at_last_runs_take_all_the_time() -> None:
    same = times((400, 0), (1000, 0))
    assert known((FIRST, SECOND), USUAL, same)
    assert not known((FIRST, replace(SECOND, goal=None)), USUAL, same)


class Steps:
    """Stands for a library whose steps take these microseconds in each run."""

    threads = 1

    def __init__(self, us: Callable[[], float]) -> None:
        self._us = us
        self.ran = 0

    def steps_of(self, launches: Sequence[str]) -> list[int]:
        return [0]

    def run(self, given: Mapping[str, Value]) -> np.ndarray:
        self.ran += 1
        return np.array([self._us()])


def test_runs_end_when_they_tell_enough() -> None:
    rng = np.random.default_rng(1)
    usual, other = Steps(lambda: 100.0), Steps(lambda: 80 + 20 * rng.standard_normal())
    asked: list[int] = []

    def enough(us: Sequence[np.ndarray]) -> bool:
        asked.append(len(us[0]))
        return known((FIRST,), *us)

    found = run_in_turns(cast(list[Profiled], [usual, other]), {}, 60.0, enough)
    assert usual.ran == other.ran == 1 + len(found[0])
    assert asked[0] == FEWEST_RUNS
    assert all(b == 2 * a for a, b in pairwise(asked))
    low, high = np.percentile(FIRST.ratios(*found), (45, 55))
    assert high - low < CERTAIN * 4
    slow = Steps(lambda: 200 + 60 * rng.random())
    slower = run_in_turns(cast(list[Profiled], [usual, slow]), {}, 60.0, enough)
    assert len(slower[0]) == FEWEST_RUNS


def test_runs_are_as_many_where_others_use_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def ran() -> float:
        spent[0] += 0.25
        return 1.0

    monkeypatch.setattr(launch_times, "process_time", lambda: spent[0])
    found = run_in_turns(cast(list[Profiled], [Steps(ran), Steps(ran)]), {}, 2.0)
    assert [len(us) for us in found] == [8, 8]


def test_what_is_clear_needs_no_more_runs() -> None:
    rng = np.random.default_rng(2)
    same, faster = 1 + 0.1 * rng.standard_normal(100), 0.8 + 0.1 * rng.standard_normal(100)
    assert clear(faster)
    assert clear(2 - faster)
    assert not clear(same)
    assert not clear(faster[:5])


@pytest.mark.parametrize("clearly", [False, True])
def test_short_runs_end_when_there_are_many(*, clearly: bool) -> None:
    """Runs of some microseconds, none of which is faster, take no whole second."""
    library = TimedLibrary(Path("any.so"), {}, ("first",))
    rng = np.random.default_rng(3)
    both = [Steps(lambda: 100 + rng.standard_normal()) for _ in range(2)]
    question = Question(library, (Asked((0,), (0,)),) if clearly else None, clearly=clearly)
    given = cast(list[Profiled], both)
    found = run_in_turns(given, {}, 60.0, question.enough(library, given))
    assert MOST_RUNS <= len(found[0]) <= 2 * MOST_RUNS
