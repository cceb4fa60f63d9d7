"""Numbers as people read them, and profiles joined with the manifest."""

import pytest

from rutc.runtime import ProfileEntry
from rutc.views import BYTES, quantity, step_times


@pytest.mark.parametrize(
    ("value", "unit", "step", "text"),
    [
        (0, "FLOP", 1000.0, "0 FLOP"),
        (999, "FLOP", 1000.0, "999 FLOP"),
        (2_500_000_000, "FLOP", 1000.0, "2.5 GFLOP"),
        (1024, "B", BYTES, "1 KiB"),
        (1_600_000, "B", BYTES, "1.53 MiB"),
        (5e15, "FLOP", 1000.0, "5e+03 TFLOP"),
    ],
)
def test_quantities(value: float, unit: str, step: float, text: str) -> None:
    assert quantity(value, unit, step) == text


def test_steps_of_one_kernel_are_told_apart() -> None:
    """Two launches of one piece of code and a copy, which the manifest does not know."""
    kernels = [
        {"name": "g0", "symbol": "k_1", "origin": ["a", "b"], "flops": 2000, "bytes": 100},
        {"name": "g1", "symbol": "k_1", "origin": ["c"], "flops": 2000, "bytes": 100},
    ]
    entries = [
        ProfileEntry("k_1", "c", 2, 4.0),
        ProfileEntry("copy", "", 2, 1.0),
        ProfileEntry("k_1", "a, b", 2, 2.0),
    ]
    times = step_times(entries, kernels)
    assert [time.name for time in times] == ["g1", "copy", "g0"]
    assert [time.us for time in times] == [2.0, 0.5, 1.0]
    assert [time.gflops for time in times] == [1.0, 0.0, 2.0]


def test_a_step_whose_work_depends_on_sizes_has_no_rate() -> None:
    kernels = [
        {"name": "g0", "symbol": "k_1", "origin": [], "flops": 2000, "bytes": 100, "symbols": ["n"]}
    ]
    (time,) = step_times([ProfileEntry("k_1", "", 2, 4.0)], kernels)
    assert (time.us, time.gflops, time.gbytes) == (2.0, None, None)
