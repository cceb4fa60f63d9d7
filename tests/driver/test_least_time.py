"""What kernels take at least: arithmetic at the peak, or bytes from where they were left."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rutc.driver.parts.outline import Outline, PlanOutline, StepOutline, ValueOutline, WeightOutline
from rutc.report.least_time import Least, least_times
from tests.machines import V3

MACHINE = replace(
    V3, l1=1 << 15, l2=1 << 20, l3=1 << 25, l2_bytes_per_cycle=32.0, l3_bytes_per_cycle=16.0
)
NEAR, MIDDLE, LARGE = 1 << 12, 1 << 18, 3 << 20
"""Bytes that the first cache, the second one and the last one have room for."""


def step(
    number: int,
    reads: Sequence[int],
    writes: Sequence[int],
    touched: Sequence[int],
    *,
    kind: str = "elementwise",
    runs: int = 1,
    weights: Sequence[int] = (),
) -> StepOutline:
    operands = tuple(reads), tuple(writes), tuple(weights)
    return StepOutline(
        number + 1, kind, f"g{number}", 0, runs, number, *operands, (), (), tuple(touched)
    )


def outline(*steps: StepOutline) -> Outline:
    count = 1 + max((n for s in steps for n in (*s.reads, *s.writes)), default=0)
    value = ValueOutline("v", "float32", {}, "[]", "arena", 0, 0, 0, 1, 9, ())
    weight = WeightOutline("w", "float32", {}, "[]", 0, 0)
    plan = PlanOutline("", 0, 9, (value,) * count, (weight,), steps)
    return Outline({"fma_per_cycle": MACHINE.fma_per_cycle}, (plan,))


def least(*steps: StepOutline, computing: int = 0, flops: int = 0) -> list[Least]:
    kernels = [{"computing": computing, "flops": flops} for _ in steps]
    found = least_times(outline(*steps), kernels, MACHINE)
    return [found[n] for n in range(len(steps))]


def test_what_lies_near_takes_its_arithmetic() -> None:
    """And nothing for its call: kernels in loops are called within a few cycles."""
    (found,) = least(step(0, [0], [1], [NEAR, NEAR]), computing=1000)
    assert found == Least(1000, "arithmetic")


def test_products_take_no_more_than_their_operations_at_the_peak() -> None:
    """Rows that a tile has beyond the edge are no work, and instructions may add up more."""
    at_peak = 2 * MACHINE.fma_per_cycle * MACHINE.width
    flops = round(600 * at_peak)
    (padded,) = least(step(0, [0], [1], [NEAR, NEAR], kind="products"), computing=1000, flops=flops)
    (other,) = least(step(0, [0], [1], [NEAR, NEAR]), computing=1000, flops=flops)
    (dots,) = least(step(0, [0], [1], [NEAR, NEAR], kind="products"), computing=150, flops=flops)
    assert [round(x.cycles) for x in (padded, other, dots)] == [600, 1000, 150]


def test_arithmetic_is_at_the_rate_that_was_measured() -> None:
    """Code for a target that is named has counts for the usual rate, and the machine another."""
    kernels = [{"computing": 1000, "flops": 0}]
    slow = replace(MACHINE, fma_per_cycle=MACHINE.fma_per_cycle / 2)
    found = least_times(outline(step(0, [0], [1], [NEAR, NEAR])), kernels, slow)
    assert found[0].cycles == 2000


def test_bytes_come_from_the_cache_that_has_them() -> None:
    """What was just written is near; what all steps between push out comes from farther away."""
    first = step(0, [0], [1], [NEAR, MIDDLE])
    found = least(first, step(1, [1], [2], [MIDDLE, NEAR]), step(2, [1], [3], [MIDDLE, LARGE]))
    assert [x.limit for x in found] == ["second cache", "second cache", "last cache"]
    assert found[1].cycles == MIDDLE / 32
    assert found[2].cycles == LARGE / 16


def test_weights_that_no_cache_keeps_come_from_memory() -> None:
    size = MACHINE.l3 + 1
    (found,) = least(step(0, [0], [1], [0, 0, size], weights=[0]))
    assert found == Least(size / MACHINE.memory_bytes_per_cycle, "memory")


def test_loops_find_their_operands_near() -> None:
    (found,) = least(step(0, [0], [1], [LARGE, LARGE], runs=50), computing=70)
    assert found == Least(70, "arithmetic")


def test_what_is_joined_was_touched_as_its_parts() -> None:
    """A concatenation that is no work gives a name to what lies in the caches."""
    join = replace(step(1, [1], [2], ()), kind="join", kernel=None)
    last = replace(step(2, [2], [3], [MIDDLE, NEAR]), kernel=1)
    kernels = [{"computing": 0, "flops": 0}] * 2
    found = least_times(outline(step(0, [0], [1], [NEAR, MIDDLE]), join, last), kernels, MACHINE)
    assert found[1].limit != "memory"


@pytest.mark.parametrize("touched", [(), (NEAR,)])
def test_nothing_is_told_of_an_older_library(touched: tuple[int, ...]) -> None:
    found = least_times(outline(step(0, [0], [1], touched)), [{"computing": 9}], MACHINE)
    assert found == {}
