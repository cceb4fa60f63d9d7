"""`rutc tune` uses the time that it is given, and ends in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rutc.driver.timing.model_bench import ModelBench, Pace, Subject, Try
from rutc.driver.timing.side_by_side import Ratio
from rutc.driver.timing.trials import Outcome, Timing
from rutc.driver.tuning import schedule_search, search_rounds, tune_model
from rutc.driver.tuning.confirm import Confirmed, needed
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import Searched
from rutc.tuner.choice import Choice
from rutc.tuner.database.database import Database
from rutc.tuner.search.search import text_of

pytestmark = pytest.mark.usefixtures("database")

BUSY = Pace(4.0, 4.0, 7.0, 0.07)
"""Things take long here: others keep the machine busy."""
ROUND_S, CONFIRM_S = 8.0, 6.0


class Busy:
    """A search on a clock that rounds and confirmations move: what each of the latter was of.

    Each later trial seems faster than all before it. Of what is confirmed only the first lot is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.rounds = 0.0, 0
        self.lots: list[tuple[int, dict[Subject, str]]] = []
        self.confirmed_at: list[float] = []
        for module in (tune_model, schedule_search, search_rounds):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(tune_model, "perf_counter", lambda: self.now)
        monkeypatch.setattr(schedule_search, "PATIENCE", 10**6)
        monkeypatch.setattr(ModelBench, "pace", BUSY)
        monkeypatch.setattr(ModelBench, "time", lambda bench, tries: self.time(bench, tries))
        monkeypatch.setattr(tune_model, "confirmed", self.confirmed)

    def time(self, bench: ModelBench, tries: Sequence[Try]) -> list[Outcome]:
        """A round; None of what is timed again is asked for a goal."""
        if tries:
            self.now += ROUND_S
            self.rounds += any(t.goal is not None for t in tries)
        share = 0.9 * 0.99**self.rounds
        return [self.outcome(bench, t, share) for t in tries]

    def outcome(self, bench: ModelBench, t: Try, share: float) -> Outcome:
        """What a trial takes."""
        usual = bench.usual()[t.subject].timing
        ns = share * usual.ns
        return Outcome("measured", model=Timing(ns, ns, ns, usual.cycle_ns))

    def confirmed(self, own: object, faster: dict[Subject, Choice], *_: object) -> Confirmed:
        """Believes the first lot."""
        self.now += CONFIRM_S
        self.confirmed_at.append(self.now)
        self.lots.append((self.rounds, {s: text_of(c) for s, c in faster.items()}))
        less = Ratio(0.9, 0.89, 0.91, 100.0)
        believed = frozenset(faster) if len(self.lots) == 1 else frozenset()
        return Confirmed({s: {1: less} for s in faster}, believed, {1: less} if believed else {})


@pytest.mark.parametrize("seconds", [250.0, 600.0])
def test_what_confirming_leaves_of_its_time_is_searched(
    wide: Path, database: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """It takes a tenth of what it may; what was left for it is nearly all used in the end."""
    busy = Busy(monkeypatch)
    kept = needed(BUSY, None).seconds + BUSY.round
    with Database.open(database) as db:
        limits = SearchLimits(seconds)
        found = tune_model.tune_model(wide, db, limits, searched=Searched(plans=False))
    assert kept > 100.0
    assert seconds - kept / 2 - ROUND_S < busy.confirmed_at[0] + kept / 2
    assert seconds - 2 * (ROUND_S + CONFIRM_S) - ROUND_S < busy.now <= seconds
    first, later = busy.lots[0], busy.lots[1:]
    # More was tried after the first lot; each other lot is of what is new.
    assert later
    assert all(n > first[0] for n, _ in later)
    assert all(own != first[1] for _, own in later)
    # What no later lot has lost stays as the report has it.
    assert all(t.us is not None for t in found.tuned if t.name == "second")


def test_where_nothing_was_found_its_time_is_searched_as_well(
    wide: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(monkeypatch)
    real = Busy.outcome
    monkeypatch.setattr(Busy, "outcome", lambda self, bench, t, share: real(self, bench, t, 1.2))
    seconds = 250.0
    with Database.open(database) as db:
        limits = SearchLimits(seconds)
        found = tune_model.tune_model(wide, db, limits, searched=Searched(plans=False))
    assert found.trials > 0
    assert not busy.lots
    # What confirms something that the last round might find is left.
    least = BUSY.round + needed(BUSY, None).made
    assert seconds - least - 2 * ROUND_S < busy.now <= seconds - least
