"""Schedules that were faster one by one are believed as far as whole runs are, on all CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from rutc.driver.plans.planning import planned
from rutc.driver.timing import side_by_side as beside
from rutc.driver.timing.answering_process import Ended
from rutc.driver.timing.certainty import Asked, Question
from rutc.driver.timing.launch_times import FEWEST_RUNS, TimedLibrary, written
from rutc.driver.timing.model_bench import HandedOut, Pace, Planned, Subject
from rutc.driver.timing.side_by_side import Beside, Runs, ratio_of, thread_counts
from rutc.driver.tuning import confirm as confirmed
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner.choice import Choice
from tests.driver.test_model_bench import PRODUCTS, others_of

MACHINE = native_target().machine
Found = Mapping[Subject, Choice]
Shares = Mapping[Subject, tuple[float, float]]
"""What a subject's launches take by what they took, on one thread and on two."""


@pytest.fixture(scope="module")
def own() -> Planned:
    """A model with two launches of a kernel, and one of another."""
    plan, others = planned(versions(parse(PRODUCTS), MACHINE), MACHINE)
    return Planned(plan, others, MACHINE)


@pytest.fixture(scope="module")
def found(own: Planned) -> Found:
    """Another schedule of each kernel."""
    return {s: others_of(s, 1)[0].choice for s in own.launches()}


@pytest.fixture(scope="module")
def default(own: Planned, tmp_path_factory: pytest.TempPathFactory) -> TimedLibrary:
    """The model with default schedules."""
    return written(own.plan, MACHINE, tmp_path_factory.mktemp("usual") / "default.so")


@pytest.fixture
def taking(
    own: Planned, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Makes runs take such shares, and the rest of a run so much if all schedules are there.

    What others do makes every other run so much longer, and those between shorter, by `swing`.
    """
    monkeypatch.setattr(confirmed, "thread_counts", lambda cpu: (1, 2))
    symbols: dict[str, Subject] = {}
    for s, choice in found.items():
        chooser = HandedOut({s: (choice,)})
        made = written(own.plan, MACHINE, tmp_path / "one.so", chooser=chooser)
        (name, *_) = (p.name for p in own.launches()[s])
        symbols[made.symbols[name]] = s

    def begin(shares: Shares, rest: float, swing: float = 0.0) -> None:
        def runs(self: Beside, question: Question, threads: int = 1, *, new: bool = False) -> Runs:
            there = [symbols.get(x) for x in question.artifact.launches]
            own = [1.0 if s is None else shares[s][threads > 1] for s in there]
            before = 100 + np.random.default_rng(0).random((20, len(own)))
            after = before * own
            beyond = rest if None not in there else 1.0
            others = 300 * (beyond + swing * (-1.0) ** np.arange(20))
            whole = before.sum(axis=1) + 300, after.sum(axis=1) + others
            return Runs((before, after), whole)

        monkeypatch.setattr(Beside, "runs", runs)

    return begin


def test_what_is_faster_on_one_thread_only_is_not_believed(
    own: Planned, found: Found, default: TimedLibrary, tmp_path: Path, taking: Callable[..., None]
) -> None:
    first, second = found
    taking({first: (0.5, 1.1), second: (0.9, 0.9)}, 1.0)
    told = confirmed.confirmed(own, found, default, tmp_path)
    assert told.believed == {second}
    assert all(r.faster for r in told.runs.values())
    assert list(told.runs) == [1, 2]
    us = told.us(first)
    assert us is not None
    assert us[1] < us[0]


def test_what_is_faster_one_by_one_but_not_together_is_halved(
    own: Planned, found: Found, default: TimedLibrary, tmp_path: Path, taking: Callable[..., None]
) -> None:
    first, second = found
    taking({first: (0.7, 0.7), second: (0.9, 0.9)}, 1.5)
    assert confirmed.confirmed(own, found, default, tmp_path).believed == {first}


def test_runs_that_others_disturb_need_not_show_what_launches_save(
    own: Planned, found: Found, default: TimedLibrary, tmp_path: Path, taking: Callable[..., None]
) -> None:
    """All launches are faster for sure, by 5 % of a run, but runs differ by 10 %."""
    taking(dict.fromkeys(found, (0.9, 0.9)), 1.0, 0.2)
    told = confirmed.confirmed(own, found, default, tmp_path)
    assert told.believed == set(found)
    assert not any(r.faster for r in told.runs.values())


def test_what_the_rest_of_a_run_loses_is_not_believed(
    own: Planned, found: Found, default: TimedLibrary, tmp_path: Path, taking: Callable[..., None]
) -> None:
    """With all schedules a run is not slower for sure, but it does not save what launches do."""
    taking(dict.fromkeys(found, (0.9, 0.9)), 1.102)
    assert len(confirmed.confirmed(own, found, default, tmp_path).believed) == 1


def test_what_no_run_is_faster_with_is_not_believed(
    own: Planned, found: Found, default: TimedLibrary, tmp_path: Path, taking: Callable[..., None]
) -> None:
    taking(dict.fromkeys(found, (1.1, 0.9)), 1.0)
    told = confirmed.confirmed(own, found, default, tmp_path)
    assert not told.believed
    assert not told.runs


def test_what_crashes_together_is_halved(
    own: Planned,
    found: Found,
    default: TimedLibrary,
    tmp_path: Path,
    taking: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taking(dict.fromkeys(found, (0.9, 0.9)), 1.0)
    real = Beside.runs

    def crashing(self: Beside, question: Question, threads: int = 1, *, new: bool = False) -> Runs:
        assert question.asked is not None
        if len(question.asked) > 1:
            raise Ended("it was killed")
        return real(self, question, threads, new=new)

    monkeypatch.setattr(Beside, "runs", crashing)
    assert len(confirmed.confirmed(own, found, default, tmp_path).believed) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_libraries_take_turns_on_any_number_of_threads(
    default: TimedLibrary, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "thread_counts", lambda cpu: (1, 2))
    monkeypatch.setattr(beside, "SECONDS", 0.01)
    with Beside(default) as both:
        asked = (Asked((0, 2), (0, 2)), Asked((1,), (1,)))
        runs = both.runs(Question(default, asked, clearly=True), threads, new=True)
    before, after = runs.us
    assert before.shape == after.shape
    assert before.shape[1] == 3
    assert ratio_of([runs.whole]).us > 0
    assert all(
        (us.sum(axis=1) <= whole).all() for us, whole in zip(runs.us, runs.whole, strict=True)
    )


def test_where_a_cpu_is_given_there_is_one_thread() -> None:
    assert thread_counts(0) == (1,)
    assert thread_counts()[0] == 1


def test_what_confirming_takes_is_what_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on several threads end after seconds that pass, however busy the machine is."""
    monkeypatch.setattr(confirmed, "thread_counts", lambda cpu: (1, 2))
    quiet, busy = Pace(1.0, 0.5, 1.0, 0.01), Pace(1.0, 0.5, 7.0, 0.07)
    made = confirmed.ARTIFACTS * (1.0 + 2 * confirmed.PROCESSES * 0.5)
    each = confirmed.ARTIFACTS * confirmed.PROCESSES * 2
    assert confirmed.needed(quiet, None) == confirmed.Needed(made, each * 2.0)
    assert confirmed.needed(busy, None) == confirmed.Needed(made, each * 8.0)
    # A run that takes long is done a few times in any case.
    assert confirmed.needed(Pace(1.0, 0.5, 7.0, 2.0), None).runs == each * 17.0


def test_runs_have_the_share_that_there_is_time_for(
    own: Planned,
    found: Found,
    default: TimedLibrary,
    tmp_path: Path,
    taking: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = confirmed.Needed(10.0, 40.0)
    assert [need.share(s) for s in (np.inf, 50.0, 20.0, 10.0, -3.0)] == [1.0, 1.0, 0.25, 0.0, 0.0]
    taking(dict.fromkeys(found, (0.9, 0.9)), 1.5)
    real, shares = Beside.runs, list[float]()

    def told(self: Beside, question: Question, threads: int = 1, *, new: bool = False) -> Runs:
        shares.append(question.share)
        return real(self, question, threads, new=new)

    monkeypatch.setattr(Beside, "runs", told)
    # With both a run is slower: there is another artifact, for which less time is left.
    left = iter([0.75, 0.25, 0.0])
    confirmed.confirmed(own, found, default, tmp_path, share=lambda: next(left))
    assert list(dict.fromkeys(shares)) == [0.75, 0.25]


def test_fewer_runs_are_done_in_a_share_of_the_time(
    default: TimedLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "SECONDS", 0.1)
    with Beside(default) as both:
        counts = [len(both.runs(Question(default, share=s)).whole[0]) for s in (0.0, 1.0)]
    assert counts[0] == FEWEST_RUNS < counts[1]
