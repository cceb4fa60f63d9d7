"""Rounds of a search end in time."""

import pytest

from rutc.driver.tuning import search_rounds
from rutc.driver.tuning.search_rounds import Rounds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(search_rounds, "monotonic", made)
    return made


def begun(clock: Clock, until: float, lengths: list[float]) -> int:
    """How many rounds of these lengths are begun until then."""
    found = Rounds(clock.now + until)
    for k, length in enumerate(lengths):
        if not found.another():
            return k
        clock.now += length
    return len(lengths)


def test_no_round_is_begun_that_would_end_late(clock: Clock) -> None:
    assert begun(clock, 10.0, [3.0] * 9) == 3
    assert begun(clock, 10.0, [3.0, 5.0, 1.0, 1.0]) == 2  # as long as the longest of two
    assert begun(clock, 12.0, [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 6  # the first was longer


def test_time_for_what_follows_is_left(clock: Clock) -> None:
    found = Rounds(clock.now + 10.0, 2.0)
    assert found.another(7.0)
    clock.now += 2.0
    assert not found.another(7.0)
    assert found.another()


def test_the_first_is_begun_whatever_it_takes(clock: Clock) -> None:
    assert begun(clock, 0.5, [7.0, 0.1]) == 1
    assert begun(clock, 0.0, [7.0]) == 0


def test_the_first_is_not_begun_where_it_is_known_to_take_too_long(clock: Clock) -> None:
    assert not Rounds(clock.now + 2.0, 3.0).another()
    assert Rounds(clock.now + 4.0, 3.0).another()


def test_a_round_is_larger_as_far_as_time_allows(clock: Clock) -> None:
    found = Rounds(clock.now + 20.0, 1.0)
    assert found.another(4.0, 2.0) == 2.0
    clock.now += 6.0
    # 10 s are left of the 20, and the last round took 6.
    assert found.another(4.0, 2.0) == pytest.approx(10 / 6)
    clock.now += 10.0
    assert found.another(4.0, 2.0) == 0.0


def test_a_round_is_smaller_where_a_larger_one_would_end_late(clock: Clock) -> None:
    """Of 8 s 2 do not depend on its size: half of it is done in 5 s."""
    found = Rounds(clock.now + 15.0, 1.0)
    assert found.another(2.0, fixed=2.0)
    clock.now += 8.0
    assert found.another(2.0, fixed=2.0) == pytest.approx(0.5)
    clock.now += 5.0
    assert not found.another(0.0, fixed=2.0)


def test_rounds_go_on_where_less_follows_than_was_thought(clock: Clock) -> None:
    """What happens between the last one and the next is no part of a round."""
    found = Rounds(clock.now + 40.0, 1.0)
    assert found.another(20.0)
    clock.now += 8.0
    assert found.another(20.0)
    clock.now += 8.0
    assert not found.another(20.0)
    clock.now += 10.0
    assert found.left == 14.0
    assert found.another(5.0)
    clock.now += 8.0
    assert not found.another(0.0)
