"""The tolerance table: strict where nothing rounds, and wide enough for what does."""

import ml_dtypes
import numpy as np
import pytest

from rutc.verify.judging.tolerance import EXACT, Level, tolerance, unit_roundoff

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(np.float64, 53), (np.float32, 24), (np.float16, 11), (ml_dtypes.bfloat16, 8)],
)
def test_unit_roundoff(dtype: type[np.generic], bits: int) -> None:
    assert unit_roundoff(dtype) == 2.0**-bits


def test_unit_roundoff_of_an_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="int32 is not a floating-point dtype"):
        unit_roundoff(np.int32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_levels_get_wider(dtype: type[np.generic]) -> None:
    scales = [tolerance(level, dtype).scale for level in Level]
    assert scales == sorted(scales)
    assert scales[0] == 0


@pytest.mark.parametrize("dtype", FLOATS[:4])
def test_the_scale_grows_with_the_root_of_the_reduction(dtype: type[np.generic]) -> None:
    narrow = unit_roundoff(dtype) > unit_roundoff(np.float32)
    once, many = (tolerance(Level.KERNEL, dtype, k).scale for k in (1, 10_000))
    ratio = many / once
    assert 1 <= ratio < 2 if narrow else ratio == pytest.approx(100)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.uint16])
@pytest.mark.parametrize("level", list(Level))
def test_integers_are_exact(level: Level, dtype: type[np.generic]) -> None:
    assert tolerance(level, dtype) == EXACT


def test_quantised_outputs_of_a_model_may_differ_by_one_step() -> None:
    assert tolerance(Level.MODEL, np.uint8).steps == 1
    assert tolerance(Level.KERNEL, np.uint8).steps == 0


def test_a_network_that_quantises_may_differ_by_several_steps() -> None:
    assert tolerance(Level.QUANTISED, np.int8).steps == 8
    assert tolerance(Level.QUANTISED, np.float32).scale == pytest.approx(1 / 32, rel=0.01)


@pytest.mark.parametrize("length", [1, 64, 4608])
def test_a_float32_sum_of_products_is_within_the_kernel_level(length: int) -> None:
    random = np.random.default_rng(length)
    a = random.standard_normal((64, length))
    b = random.standard_normal((length, 64))
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    exact = a32.astype(np.float64) @ b32.astype(np.float64)
    limit = tolerance(Level.KERNEL, np.float32, length)
    one_after_another = np.zeros((64, 64), np.float32)
    for k in range(length):
        one_after_another += a32[:, k, None] * b32[None, k]
    assert np.all(np.abs(one_after_another - exact) <= limit.allowed(exact))


def test_one_dropped_product_is_outside_the_kernel_level() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 64, 4608))
    exact = (a * b).sum(axis=1)
    wrong = (a[:, 1:] * b[:, 1:]).sum(axis=1)
    limit = tolerance(Level.KERNEL, np.float32, 4608)
    assert np.mean(np.abs(wrong - exact) > limit.allowed(exact)) > 0.9
