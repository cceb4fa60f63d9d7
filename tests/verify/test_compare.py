"""What differs, by how much, and where."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.verify.judging.compare import OutputComparison, Value, compare_outputs, compare_values
from rutc.verify.judging.tolerance import Level
from rutc.verify.verification import Verification


def _one(ours: Value, reference: Value, level: Level = Level.MODEL) -> OutputComparison:
    (result,) = compare_values("y", ours, reference, level)
    return result


def test_equal_values_pass_with_no_difference() -> None:
    y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    result = _one(y, y.copy(), Level.EXACT)
    assert result.passed
    assert (result.max_abs, result.max_rel, result.max_ulp) == (0, 0, 0)


def test_the_worst_element_is_named() -> None:
    reference = np.ones((2, 3), np.float32)
    ours = reference.copy()
    ours[1, 2] = 1.5
    result = _one(ours, reference)
    assert not result.passed
    assert result.worst == (1, 2)
    assert (result.ours, result.reference) == ("1.5", "1.0")
    assert result.mismatches == 1
    assert result.max_abs == 0.5
    assert "at [1, 2]" in result.reason


def test_small_elements_are_judged_by_the_largest() -> None:
    reference = np.array([1000.0, 0.0], np.float32)
    assert _one(reference + np.array([0, 1e-2], np.float32), reference).passed
    assert not _one(reference + np.array([0, 1.0], np.float32), reference).passed


def test_nan_equals_nan_and_infinity_equals_infinity() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert _one(special.copy(), special, Level.EXACT).passed


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (np.nan, 1.0),
        (1.0, np.nan),
        (np.inf, 1.0),
        (1.0, np.inf),
        (np.inf, -np.inf),
        (np.nan, np.inf),
    ],
)
def test_other_special_values_differ(ours: float, reference: float) -> None:
    result = _one(np.array([2, ours], np.float32), np.array([2, reference], np.float32))
    assert not result.passed
    assert result.mismatches == 1
    assert result.worst == (1,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_neighbours_are_one_ulp_apart(dtype: type[np.generic]) -> None:
    reference = np.array([1.0, -1.0]).astype(dtype)
    ours = (reference.view(f"u{reference.dtype.itemsize}") + 1).view(dtype)
    assert _one(ours, reference, Level.KERNEL).max_ulp == 1


def test_ulps_count_across_zero() -> None:
    tiny = np.float32(np.finfo(np.float32).smallest_subnormal)
    assert _one(np.array([-tiny]), np.array([tiny])).max_ulp == 2


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_every_value_equals_itself(values: list[float]) -> None:
    y = np.array(values, np.float32)
    result = _one(y.copy(), y, Level.EXACT)
    assert result.passed
    assert result.max_ulp == 0


@pytest.mark.parametrize(
    ("ours", "reference", "reason"),
    [
        (np.zeros(2, np.float32), np.zeros(3, np.float32), "shape is (2,), not (3,)"),
        (np.zeros(2, np.float64), np.zeros(2, np.float32), "dtype is float64, not float32"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 elements differ"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "1 of 2 elements differ"),
        (None, np.zeros(1, np.float32), "ours is an empty optional"),
        ([np.zeros(1)], [np.zeros(1), np.zeros(1)], "a sequence of 1 values"),
        ([np.zeros(1)], np.zeros(1), "one is a tensor"),
    ],
)
def test_reasons(ours: Value, reference: Value, reason: str) -> None:
    result = _one(ours, reference)
    assert not result.passed
    assert reason in result.reason


def test_sequences_compare_element_by_element() -> None:
    first, second = compare_values(
        "s", [np.zeros(1), np.ones(1)], [np.zeros(1), np.zeros(1)], Level.MODEL
    )
    assert (first.name, first.passed) == ("s[0]", True)
    assert (second.name, second.passed) == ("s[1]", False)


def test_complex_values_compare_by_their_parts() -> None:
    reference = np.array([1 + 1j, 2 - 1j], np.complex64)
    assert _one(reference.copy(), reference).passed
    assert not _one(reference.conj(), reference).passed


def test_a_missing_output_does_not_pass() -> None:
    (result,) = compare_outputs({}, {"y": np.zeros(1)}, Level.MODEL)
    assert result.reason == "this output is missing"


def test_empty_outputs_pass() -> None:
    assert _one(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).passed


def test_differences_of_labels_are_told_beside_the_largest_one() -> None:
    found = _one(np.array([10, 1000]), np.array([10, 2000]))
    assert (found.max_abs, found.largest) == (1000, 2000)
    at = Path("m.onnx"), Path("m.so"), Level.MODEL, "given inputs", "", 1
    told = Verification(*at, (found,), 0.0, 0.0).summary()
    assert told.endswith("largest difference 0.5 of the output's largest magnitude")
    found = _one(np.array([True, False]), np.array([True, True]))
    assert (found.max_abs, found.largest) == (1, 1)
