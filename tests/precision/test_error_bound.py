"""How far results of other inputs may be off: errors that are drawn stay within it."""

from __future__ import annotations

import numpy as np
import pytest

from rutc.driver.precision.error_bound import BEYOND, bound_of, errors_of

TRIALS = 400


@pytest.mark.parametrize("deviation", [0.06, 0.2, 0.8])
@pytest.mark.parametrize("seen", [16, 64])
def test_few_other_inputs_are_beyond_the_bound(deviation: float, seen: int) -> None:
    """About as few as is said, whatever the deviation is and however few inputs tell it."""
    rng = np.random.default_rng(7)
    drawn = np.exp(deviation * rng.standard_normal((TRIALS, seen + 500)))
    beyond = [np.mean(own[seen:] > bound_of(own[:seen, None])) for own in drawn]
    assert np.mean(beyond) < 4 * BEYOND


def test_more_inputs_make_the_bound_closer() -> None:
    errors = np.exp(0.05 * np.random.default_rng(0).standard_normal((64, 1)))
    bounds = [bound_of(errors[:n]) / np.exp(np.log(errors[:n]).mean()) for n in (1, 4, 16, 64)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 3
    assert bounds[-1] < 1.4


def test_each_output_has_its_own_errors() -> None:
    """The bound is that of the output that is furthest off, however much the others differ."""
    steady = np.full(16, 0.01)
    wild = 1e-6 * np.exp(np.random.default_rng(0).standard_normal(16))
    assert bound_of(np.stack([steady, wild], axis=1)) == bound_of(steady[:, None])


def test_what_is_not_off_tells_nothing_and_infinity_is_beyond_all() -> None:
    assert bound_of(np.zeros((4, 2))) == 0.0
    assert bound_of(np.zeros((4, 0))) == 0.0
    some = np.array([[0.0], [0.01], [0.012]])
    assert bound_of(some) == bound_of(some[1:])
    assert bound_of(np.array([[0.01], [np.inf]])) == np.inf


def test_errors_are_those_of_tensors() -> None:
    ones = np.ones(4, np.float32)
    found = errors_of([ones, [ones], ones], [2 * ones, [ones], ones])
    assert found.tolist() == [0.5, 0.0]
