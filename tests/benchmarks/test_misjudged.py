"""What a fit makes small: errors, most of all of good schedules, and orders that lose time."""

from collections.abc import Sequence

import numpy as np

from benchmarks.fit import HELD_OUT, Timed
from benchmarks.misjudged import Misjudged

FITTED, HELD = f"{HELD_OUT + 1:x}", f"{HELD_OUT:x}"


def points(cycles: Sequence[float], digest: str = FITTED) -> list[Timed]:
    """Schedules of a kernel, the default one first."""
    return [
        Timed("", "", digest, "x86-64-v4", "tiled", number, "", each, ())
        for number, each in enumerate(cycles)
    ]


def loss(known: Sequence[Timed], estimates: Sequence[float]) -> float:
    """What a fit makes small."""
    return float(np.sum(Misjudged(known)(np.log(estimates)) ** 2))


def test_true_estimates_are_misjudged_least() -> None:
    known = points([100.0, 150.0, 400.0])
    least = loss(known, [100.0, 150.0, 400.0])
    assert least < 0.01
    for others in ([110.0, 150.0, 400.0], [100.0, 130.0, 400.0], [100.0, 150.0, 300.0]):
        assert loss(known, others) > least


def test_a_wrong_order_is_worse_than_the_same_errors_in_order() -> None:
    known = points([100.0, 130.0])
    assert loss(known, [120.0, 108.0]) > 2 * loss(known, [120.0, 156.0])
    assert loss(known, [120.0, 108.0]) > 2 * loss(known, [83.0, 108.0])


def test_a_wrong_order_counts_by_the_time_that_it_loses() -> None:
    """Estimates that are equal put the best schedule no further behind one that is much slower."""
    near, far = points([100.0, 101.0]), points([100.0, 300.0])
    order = [100.0, 100.0]
    of_order = slice(2, None)
    assert np.sum(Misjudged(far)(np.log(order))[of_order] ** 2) > 100 * np.sum(
        Misjudged(near)(np.log(order))[of_order] ** 2
    )


def test_defaults_and_good_schedules_count_more_than_others() -> None:
    known = points([100.0, 100.0, 300.0])
    off = [loss(known, [100.0 * 1.1**a, 100.0 * 1.1**b, 300.0 * 1.1**c]) for a, b, c in np.eye(3)]
    assert off[0] > off[1] > off[2]


def test_large_errors_grow_little() -> None:
    known = points([100.0])
    small, large, larger = (loss(known, [100.0 * x]) for x in (1.02, 10.0, 100.0))
    assert large > 50 * small
    assert larger < 1.5 * large


def test_kernels_count_alike_and_those_held_out_count_nothing() -> None:
    one, many = points([100.0], "4"), points([100.0] * 8, "5")
    found = loss([*one, *many], [200.0] * 9)
    alone, others = loss(one, [200.0]), loss([*one, *many], [100.0] + [200.0] * 8)
    assert 0.99 * alone < found - others < 1.01 * alone
    held = points([100.0, 200.0], HELD)
    assert loss([*one, *held], [100.0, 900.0, 300.0]) == loss([*one, *held], [100.0, 100.0, 200.0])
