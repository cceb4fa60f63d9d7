"""What the learned order of schedules is told of a kernel: nothing but what its code does."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.targets import aarch64
from rutc.tensor_ir.cost import Region, estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.nest_features import NAMES, features
from tests.examples import examples
from tests.kernels import LONG, Case, cases
from tests.machines import TILES, V3, V4
from tests.tuner.subjects import of_case, product_of_bf16
from tests.tuner.test_schedules import PRODUCTS, lowered

MACHINES = {m.name: m for m in (V3, V4, aarch64.neon())}


def regions(kernel: Kernel, machine: Machine) -> tuple[Region, ...]:
    return summarise(kernel, machine).regions


def candidates(machine: Machine, count: int, text: str = PRODUCTS) -> list[Kernel]:
    """A kernel under its default schedule, and some that are drawn."""
    kernel, constants = lowered(text)
    rng = Random(0)
    chosen = [choose(kernel, machine, constants)]
    for space in spaces(kernel, machine, constants):
        drawn = [space.draw(rng) for _ in range(count)]
        chosen += [x[1] for x in drawn if x is not None]
    return [with_schedule(kernel, c).kernel for c in chosen[:count]]


def named(found: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, map(float, found), strict=True))


@pytest.mark.parametrize("name", MACHINES)
@examples(30)
@given(case=cases(lengths=LONG, points=5_000), data=st.data())
def test_features_are_numbers_of_any_kernel(name: str, case: Case, data: st.DataObject) -> None:
    machine = MACHINES[name]
    kernel = of_case(case, frozenset()).kernel
    done = with_schedule(kernel, choose(kernel, machine, frozenset())).kernel
    found = features(regions(done, machine), machine)
    assert found.shape == (len(NAMES),)
    assert np.isfinite(found).all()
    assert np.array_equal(found, features(regions(done, machine), machine))


def test_the_first_is_the_estimate() -> None:
    for kernel in candidates(V4, 4):
        found = features(regions(kernel, V4), V4)
        assert 2 ** found[0] == pytest.approx(estimate(summarise(kernel, V4), V4).cycles)


def without_order(found: Sequence[Region]) -> list[Region]:
    """Regions in another order, with other names, those that only loop as one."""
    busy = [replace(r, name="", registers=0) for r in found if r.work]
    idle = [r for r in found if not r.work]
    times, entries = sum(r.times for r in idle), sum(r.entries for r in idle)
    return [Region("", times, entries, {}), *reversed(busy)]


def test_measured_kernels_are_kept_with_less_and_have_the_same() -> None:
    """`benchmarks.fit` keeps no names, and one region of all that do nothing."""
    for kernel in candidates(V3, 4):
        found = regions(kernel, V3)
        assert features(without_order(found), V3) == pytest.approx(features(found, V3), abs=1e-9)


def test_what_is_like_in_a_kernel_of_another_size_is_alike() -> None:
    """Of ten times as many products of matrices, only counts differ."""
    (few,), (many,) = (
        candidates(V4, 1, PRODUCTS.replace("b = 6", f"b = {count}")) for count in (6, 60)
    )
    one, other = (named(features(regions(k, V4), V4)) for k in (few, many))
    assert other["cycles"] - one["cycles"] == pytest.approx(np.log2(10), abs=0.2)
    for name in ("share of products", "mix of loads", "hottest", "hottest each", "hottest trip"):
        assert other[name] == pytest.approx(one[name], rel=0.05), name


def test_the_mix_tells_what_dominates() -> None:
    (kernel,) = candidates(V4, 1)
    found = named(features(regions(kernel, V4), V4))
    assert found["share of products"] > 0.7
    assert found["mix of multiply_adds"] > 0.5
    assert found["hottest"] > 0.7
    assert found["products by loads"] > 0
    assert found["lanes"] == 4


def test_rows_of_matrix_registers_are_loads_and_products_as_registers_are() -> None:
    """Four loads of sixteen rows are for as many products of blocks, and stores are few."""
    kernel, _ = lowered(product_of_bf16(96, 96, 128))
    choice = choose(kernel, TILES, frozenset("w"))
    found = named(features(regions(with_schedule(kernel, choice).kernel, TILES), TILES))
    assert found["share of products"] > 0.3
    assert found["hottest products"] > 0.3
    assert found["products by loads"] == pytest.approx(0, abs=0.5)
    assert found["hottest loaded"] == pytest.approx(0, abs=0.1)
    assert found["hottest multiply-adds"] > 5
