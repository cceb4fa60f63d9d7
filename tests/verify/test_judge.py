"""What passes beside float64 and ONNX Runtime, slice by slice."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rutc.verify.judging.axis_slices import slices
from rutc.verify.judging.compare import Array, OutputComparison, compare_values
from rutc.verify.judging.judge import judged, judged_by_reference
from rutc.verify.judging.tolerance import Level
from rutc.verify.verification import Verification

MODEL = Level.MODEL
RANDOM = np.random.default_rng(11)


def _judge(
    ours: Array, theirs: Array, truth: Array, noise: Sequence[Array] = (), *, steps: bool = False
) -> OutputComparison:
    (compared,) = compare_values("y", ours, theirs, MODEL)
    return judged(compared, ours, theirs, truth, lambda: noise, steps=steps)


def _rounded(truth: Array, error: float = 1e-6) -> Array:
    """A result with errors relative to the magnitude of each column."""
    scale = np.abs(truth).max(axis=tuple(range(truth.ndim - 1)), keepdims=True)
    made = truth + RANDOM.standard_normal(truth.shape) * scale * error
    return made.astype(np.float32)


def _boxes() -> Array:
    """Corners up to 640 and a score in one output."""
    return RANDOM.random((1, 300, 5)) * np.array([640, 640, 640, 640, 1])


def test_results_as_near_as_the_other_runtime_pass() -> None:
    truth = _boxes()
    found = _judge(_rounded(truth), _rounded(truth), truth)
    assert found.passed
    assert found.judged == "float64"
    assert found.error is not None
    assert found.reference_error is not None
    assert 1e-7 < found.error < 1e-5
    assert 0 < found.share < 1


def test_noise_is_asked_for_until_it_explains_a_result() -> None:
    truth = RANDOM.standard_normal((4, 8))
    ours, theirs = truth + 1e-2, truth + 2e-3
    asked: list[float] = []

    def noise() -> Iterator[Array]:
        for moved in (1e-3, 1e-3, 1e-3, 2e-2, 1.0):
            asked.append(moved)
            yield truth + moved

    (compared,) = compare_values("y", ours.astype(np.float32), theirs.astype(np.float32), MODEL)
    single = ours.astype(np.float32), theirs.astype(np.float32)
    assert judged(compared, *single, truth, noise).passed
    assert asked == [1e-3, 1e-3, 1e-3, 2e-2]
    assert not judged(compared, *single, truth, lambda: [truth + 1e-3] * 8).passed


def test_labels_are_looked_at_until_noise_explains_them() -> None:
    truth = np.arange(6)
    ours = np.array([0, 1, 2, 3, 4, 7])
    (compared,) = compare_values("y", ours, truth, MODEL)
    runs = iter([truth, truth, truth, ours, truth])
    assert judged(compared, ours, truth, truth, lambda: runs).passed
    assert len(list(runs)) == 1


@pytest.mark.parametrize("column", range(5))
def test_one_element_of_one_column_is_found(column: int) -> None:
    truth = _boxes()
    ours = _rounded(truth)
    ours[0, 17, column] += 0.001 * truth[0, :, column].max()
    found = _judge(ours, _rounded(truth), truth)
    assert not found.passed
    assert found.group in (f"index {column} of axis 2", "indices 16 to 19 of axis 1")
    # Beside corners a score is one of four in its row, and small.
    assert column < 4 or found.group == "index 4 of axis 2"


def test_a_single_row_of_boxes_and_score_is_judged_number_by_number() -> None:
    truth = np.array([[512.0, 300.0, 80.0, 640.0, 0.9]])
    ours = truth.astype(np.float32)
    assert _judge(ours, truth.astype(np.float32), truth).passed
    ours[0, 4] += 0.01
    assert not _judge(ours, truth.astype(np.float32), truth).passed


def test_a_result_far_more_precise_than_the_other_need_not_be_near_it() -> None:
    truth = _boxes()
    assert _judge(truth.astype(np.float32), _rounded(truth, 5e-6), truth).passed
    assert not _judge(_rounded(truth, 2e-4), truth.astype(np.float32), truth).passed


def test_noise_explains_what_is_ill_conditioned() -> None:
    truth = _boxes()
    apart = [truth + RANDOM.standard_normal(truth.shape) * 0.1 for _ in range(3)]
    ours = (truth + RANDOM.standard_normal(truth.shape) * 0.05).astype(np.float32)
    theirs = (truth + RANDOM.standard_normal(truth.shape) * 0.05).astype(np.float32)
    assert not _judge(ours, theirs, truth).passed
    found = _judge(ours, theirs, truth, apart)
    assert found.passed
    assert found.judged == "float64 by noise"


def test_boxes_of_nearly_equal_scores_come_in_any_order() -> None:
    truth = np.tile([100.0, 70.0, 10.0, 5.0], 16).reshape(64, 1) + np.zeros((1, 4))

    def exchanged(i: int, j: int) -> Array:
        made = truth.copy()
        made[[i, j]] = truth[[j, i]]
        return made.astype(np.float32)

    theirs = truth.astype(np.float32)
    seldom, often = [truth + 20] * 8, [exchanged(0, 1)] * 8
    assert not _judge(exchanged(0, 2), theirs, truth, seldom).passed
    assert _judge(exchanged(0, 2), theirs, truth, often).passed
    assert not _judge(exchanged(32, 34), theirs, truth, often).passed
    beyond = exchanged(0, 2)
    beyond[2] = 111
    assert not _judge(beyond, theirs, truth, often).passed


def test_where_both_differ_from_float64_alike_the_two_are_compared() -> None:
    truth = _boxes()
    ours = (truth * 1.01).astype(np.float32)
    found = _judge(ours, ours.copy(), truth)
    assert found.passed
    assert found.remark.startswith("float32 decides it")
    ours[0, 3, 4] += 0.05
    assert not _judge(ours, (truth * 1.01).astype(np.float32), truth).passed


def test_float64_and_the_other_runtime_must_agree() -> None:
    truth = _boxes()
    noise = [_rounded(truth, 8e-6) for _ in range(3)]
    found = _judge(_rounded(truth), (truth * 1.01).astype(np.float32), truth, noise)
    assert not found.passed
    assert "rutc agrees with float64, ONNX Runtime is" in found.reason


def test_zeros_are_not_near_small_numbers() -> None:
    truth = RANDOM.random((4, 8)) * 1e-6
    assert not _judge(np.zeros((4, 8), np.float32), _rounded(truth), truth).passed


@pytest.mark.parametrize("lost", [-np.inf, np.inf, np.nan])
def test_numbers_that_count_as_zeros_are_told_where_a_result_is_not_finite(lost: float) -> None:
    truth = np.array([-91.7, 3.0])
    found = _judge(np.array([lost, 3.0], np.float32), truth.astype(np.float32), truth)
    assert not found.passed
    assert "a logarithm or a reciprocal is infinite" in found.reason
    assert "--keep-subnormals" in found.reason
    wrong = _judge(np.array([-90.0, 3.0], np.float32), truth.astype(np.float32), truth)
    assert not wrong.passed
    assert "--keep-subnormals" not in wrong.reason


def test_what_overflows_in_the_other_runtime_may_overflow() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    theirs = np.array([1.0, np.inf, 3.0], np.float32)
    assert _judge(np.array([1.0, 2.0, 3.0], np.float32), theirs, truth).passed
    assert _judge(theirs.copy(), theirs, truth).passed
    assert not _judge(np.array([np.nan, 2.0, 3.0], np.float32), theirs, truth).passed
    beyond = np.array([1.0, 1e39, 3.0])
    assert _judge(theirs.copy(), theirs, beyond).passed


def test_nan_is_right_where_the_truth_is_nan() -> None:
    truth = np.array([1.0, np.nan, -np.inf])
    same = truth.astype(np.float32)
    assert _judge(same, same, truth).passed
    assert not _judge(np.array([1.0, 0.0, -np.inf], np.float32), same, truth).passed


@pytest.mark.parametrize("lost", [np.nan, np.inf, 1e39])
def test_nan_is_wrong_where_the_other_runtime_is_finite(lost: float) -> None:
    truth = np.array([1.0, lost, 3.0])
    ours = np.array([1.0, lost if np.isnan(lost) else np.inf, 3.0], np.float32)
    theirs = np.array([1.0, 2.0, 3.0], np.float32)
    found = _judge(ours, theirs, truth)
    assert not found.passed
    assert found.contradicted
    assert "ONNX Runtime is finite where neither is" in found.reason
    assert "float16" not in found.reason
    # Unless float64 with noise is finite as well: then roundings decide.
    assert _judge(ours, theirs, truth, [theirs.astype(np.float64)]).passed


def test_where_half_precision_ends_is_told() -> None:
    ours = np.array([1.0, np.inf, 3.0], np.float16)
    found = _judge(ours, np.array([1.0, 2.0, 3.0], np.float16), np.array([1.0, 1e6, 3.0]))
    assert not found.passed
    assert "beyond float16's 65504" in found.reason


def test_what_is_finite_but_in_float64_is_compared_with_the_other_runtime() -> None:
    truth = np.array([1.0, np.nan, 3.0])
    theirs = np.array([1.0, 2.0, 3.0], np.float32)
    found = _judge(theirs.copy(), theirs, truth)
    assert found.passed
    assert found.remark == "1 of 3 elements are finite, and not in float64"
    assert not _judge(np.array([1.0, 2.1, 3.0], np.float32), theirs, truth).passed


def test_complex_numbers_are_judged_by_float64() -> None:
    truth = RANDOM.standard_normal(64) + 1j * RANDOM.standard_normal(64)
    ours = truth.astype(np.complex64)
    found = _judge(ours, truth.astype(np.complex64), truth)
    assert (found.passed, found.judged) == (True, "float64")
    ours[3] += 1e-4j
    assert not _judge(ours, truth.astype(np.complex64), truth).passed


def test_labels_may_be_strings() -> None:
    truth = np.array(["cat", "dog", "cat"], object)
    ours = np.array(["cat", "cat", "cat"], object)
    assert not _judge(ours, truth, truth).passed
    assert _judge(ours, truth, truth, [ours]).passed
    assert _judge(truth.copy(), ours, truth).contradicted
    assert _judge(truth.copy(), truth, truth).judged == "float64"


def test_labels_may_differ_where_noise_changes_them() -> None:
    truth = np.array([3, 1, 4, 1, 5])
    ours, noisy = truth.copy(), truth.copy()
    ours[2] = noisy[2] = 9
    assert not _judge(ours, truth, truth).passed
    assert _judge(ours, truth, truth, [noisy]).passed
    ours[0] = 7
    found = _judge(ours, truth, truth, [noisy])
    assert not found.passed
    assert found.mismatches == 1


def test_a_few_labels_that_noise_moves_elsewhere_may_be_missed_by_its_runs() -> None:
    truth = np.arange(400)
    noisy, ours = truth.copy(), truth.copy()
    noisy[:64] += 1
    ours[100:102] += 1
    assert _judge(ours, truth, truth, [noisy]).passed
    ours[102] += 1
    assert not _judge(ours, truth, truth, [noisy]).passed
    # Nor more than noise moves at all.
    noisy[2:64] -= 1
    assert not _judge(ours, truth, truth, [noisy]).passed


def test_labels_of_the_other_runtime_that_noise_does_not_explain_contradict() -> None:
    truth = np.arange(50)
    theirs = truth.copy()
    theirs[:20] += 1
    found = _judge(truth.copy(), theirs, truth)
    assert not found.passed
    assert found.contradicted
    assert "ONNX Runtime has 20 of 50 other elements" in found.reason
    # Where rutc is elsewhere too, the fault is its own.
    assert not _judge(truth + 2, theirs, truth).contradicted


def test_quantised_values_may_be_as_many_steps_off_as_noise_shows() -> None:
    truth = RANDOM.integers(-100, 100, (1, 500)).astype(np.int8)
    noisy, ours = truth.copy(), truth.copy()
    noisy[0, 3] += 1
    ours[0, 400] += 1
    assert not _judge(ours, truth, truth).passed
    assert _judge(ours, truth, truth, [noisy]).passed
    ours[0, 400] += 1
    assert not _judge(ours, truth, truth, [noisy]).passed


def test_few_pixels_may_not_be_anything_where_noise_moves_many_by_a_step() -> None:
    truth = RANDOM.integers(100, 200, (1, 3, 64, 64)).astype(np.uint8)
    noisy = truth + RANDOM.integers(0, 2, truth.shape).astype(np.uint8)
    ours = truth.copy()
    ours[0, 0, 5, :20] += 2
    assert _judge(ours, truth, truth, [noisy]).passed
    ours[0, 0, 5, :20] = 0
    found = _judge(ours, truth, truth, [noisy])
    assert not found.passed
    assert found.mismatches == 20


def test_labels_are_told_by_their_number_beside_errors_of_floats() -> None:
    truth, labels = _boxes(), np.arange(100)
    noisy = labels.copy()
    noisy[:20] += 1
    outputs = (
        _judge(_rounded(truth), _rounded(truth), truth),
        _judge(noisy, noisy, labels, [noisy]),
    )
    at = Path("m.onnx"), Path("m.so"), Level.MODEL, "given inputs", "", 1
    told = Verification(*at, outputs, 0.0, 0.0, with_truth=1).summary()
    assert "e-06 of the output's largest magnitude" in told
    assert "20% of an output's integers are not float64's" in told


def test_sums_of_quantised_values_stay_near_what_noise_makes_of_them() -> None:
    truth = RANDOM.integers(-30000, 30000, (8, 40)).astype(np.int32)
    noisy = truth + RANDOM.integers(1, 100, truth.shape).astype(np.int32)
    ours = truth - RANDOM.integers(1, 100, truth.shape).astype(np.int32)
    assert _judge(ours, truth, truth, [noisy]).passed
    ours[:, ::2] = 0
    assert not _judge(ours, truth, truth, [noisy]).passed


def test_a_shape_may_differ_where_noise_changes_it() -> None:
    ours, truth = np.arange(3), np.arange(4)
    assert _judge(ours, ours, truth).passed
    (compared,) = compare_values("y", ours, np.arange(5), Level.MODEL)
    assert not judged(compared, ours, np.arange(5), truth, lambda: [truth]).passed


def test_a_shape_that_roundings_decide_may_be_another_than_the_other_runtimes() -> None:
    truth, theirs = np.arange(40), np.arange(41)
    noise = [truth, theirs, truth]
    for ours in (truth.copy(), np.arange(42)):
        found = _judge(ours, theirs, truth, noise)
        assert found.passed
        assert found.remark == "its shape depends on roundings"
    assert not _judge(np.arange(80), theirs, truth, noise).passed
    assert not _judge(np.arange(40).reshape(4, 10), theirs, truth, noise).passed
    found = _judge(truth.copy(), theirs, truth, [truth] * 3)
    assert not found.passed
    assert found.contradicted


def test_without_truth_slices_must_be_near_as_well() -> None:
    truth = _boxes()
    theirs = truth.astype(np.float32)
    (compared,) = compare_values("y", _rounded(truth), theirs, MODEL)
    assert judged_by_reference(compared, _rounded(truth), theirs).passed
    ours = theirs.copy()
    ours[0, 17, 4] += 0.07
    (compared,) = compare_values("y", ours, theirs, MODEL)
    assert compared.passed
    assert not judged_by_reference(compared, ours, theirs).passed


def test_slices_cover_each_axis_once() -> None:
    shape = (1, 7, 1000)
    found = list(slices(shape))
    assert [along.axis for along in found] == [None, 1, 2]
    assert len(found[1].starts) == 7
    assert str(found[2][1]) == "indices 3 to 5 of axis 2"
    x = RANDOM.random(shape)
    for along in found:
        assert along.largest(x).max() == x.max()
        assert along.largest(x).size == len(along.starts)
    assert [along.axis for along in slices(())] == [None]
    assert [along.axis for along in slices((0, 3))] == [None]


def test_a_finite_number_is_judged_where_the_other_runtime_overflows() -> None:
    truth = _boxes()
    theirs = truth.astype(np.float32)
    theirs[0, 5, 2] = np.inf
    overflowing, wrong = theirs.copy(), theirs.copy()
    wrong[0, 5, 2] = 2 * truth[0, 5, 2]
    found = _judge(overflowing, theirs, truth, [truth])
    assert found.passed
    assert found.remark.startswith("1 of 1500 elements not compared")
    exact = _judge(truth.astype(np.float32), theirs, truth, [truth])
    assert (exact.passed, exact.remark) == (True, "")
    assert not _judge(wrong, theirs, truth, [truth]).passed
    # Where the model itself may overflow, what follows from that is not known.
    apart = truth.copy()
    apart[0, 5, 2] = np.inf
    assert _judge(wrong, theirs, truth, [apart]).passed


def test_infinities_that_follow_from_zeros_for_subnormal_numbers_are_told() -> None:
    truth = _boxes()
    theirs, flushed = truth.astype(np.float32), truth.copy()
    flushed[0, 5, 2] = -np.inf
    ours = flushed.astype(np.float32)
    (compared,) = compare_values("y", ours, theirs, MODEL)

    def found(x: Array, would_be: Array | None) -> OutputComparison:
        return judged(compared, x, theirs, truth, list, flushed=lambda: would_be)

    told = found(ours, flushed)
    assert told.passed
    assert told.remark.startswith("1 of 1500 elements are infinite, as numbers below 1.2e-38 ")
    # What both overflow in is counted beside them.
    overflown, others = ours.copy(), theirs.copy()
    overflown[0, 9, 3] = others[0, 9, 3] = np.inf
    both = judged(compared, overflown, others, truth, list, flushed=lambda: flushed)
    assert both.passed
    assert both.remark.startswith("1 of 1500 elements are infinite, ")
    assert both.remark.endswith("; 1 of 1500 elements not compared: the model may overflow there")
    assert not found(ours, None).passed
    assert not found(ours, truth).passed
    assert not found(-ours, flushed).passed
    ours[0, 7, 1] = np.inf
    assert not found(ours, flushed).passed
    # Zeros that become other numbers are no excuse.
    flushed[0, 7, 1] = ours[0, 7, 1] = 0.0
    assert not found(ours, flushed).passed


def test_steps_that_noise_took_elsewhere_explain_the_other_runtime() -> None:
    """Each run moves other elements by a step: ONNX Runtime's are not those of the runs made."""
    # A few runs do not show all that noise may do: one in 25 such numbers is explained too little.
    random = np.random.default_rng(0)
    truth = random.standard_normal((4, 64))
    noise = [truth + 1e-2 * (random.random(truth.shape) < 0.05) for _ in range(4)]
    theirs = (truth + 4e-2 * (random.random(truth.shape) < 0.05)).astype(np.float32)
    ours = truth.astype(np.float32)
    assert _judge(ours, theirs, truth, noise).contradicted
    assert _judge(ours, theirs, truth, noise, steps=True).passed
    far = (truth + 0.5 * (np.arange(64) == 7)).astype(np.float32)
    assert _judge(ours, far, truth, noise, steps=True).contradicted
    # What is explained of the other runtime allows rutc no more than before.
    assert not _judge(far, theirs, truth, noise, steps=True).passed


def test_a_score_of_few_steps_may_be_another_step_where_no_run_had_it() -> None:
    """Of 32 x 1000 scores nearly all are nothing; which of the others go up differs in each run.

    What is right is a run with noise itself, and the judge that refuses it is at fault.
    """
    random = np.random.default_rng(3)
    logits = random.standard_normal((32, 1000)) * 2.5
    step = 1 / 255

    def scores(noise: float) -> Array:
        moved = np.exp(logits + noise * random.standard_normal(logits.shape))
        shares = moved / moved.sum(axis=1, keepdims=True)
        return np.round(shares / step) * step

    truth = scores(0.0)
    for _ in range(20):
        noise = [scores(0.05) for _ in range(6)]
        ours, theirs = (scores(0.05).astype(np.float32) for _ in range(2))
        changed = np.count_nonzero(ours != truth.astype(np.float32))
        assert truth.size / 300 < changed < truth.size / 75
        assert _judge(ours, theirs, truth, noise, steps=True).passed
    # As much more as that is a fault: all of a class, or one of its scores.
    wrong = ours.copy()
    wrong[:, np.argmax(truth.max(axis=0))] = 0
    assert not _judge(wrong, theirs, truth, noise, steps=True).passed
    quiet = int(np.argmin(sum(np.abs(n - truth) for n in noise).max(axis=0)))
    wrong = ours.copy()
    wrong[4, quiet] += 4 * step
    assert not _judge(wrong, theirs, truth, noise, steps=True).passed
    # And so is a step where noise takes nothing to another one.
    still = truth.astype(np.float32)
    wrong = still.copy()
    wrong[4, quiet] += step
    assert not _judge(wrong, still, truth, [truth] * 6, steps=True).passed


@pytest.mark.parametrize(
    ("theirs", "passes"),
    [
        ("9.9999997e-06", True),
        ("1.00001e-05", False),
        ("0", False),
        ("a word", False),
        ("-1e-05", False),
    ],
)
def test_numbers_may_be_spelled_otherwise(theirs: str, passes: bool) -> None:
    """ONNX Runtime writes eight digits, and rutc as few as tell the number."""
    truth = np.array(["1e-05", "2.0", "here"], object)
    for shape in ((3,), (3, 1)):
        other = np.array([theirs, "2", "here"], object).reshape(shape)
        found = _judge(truth.reshape(shape), other, truth.reshape(shape))
        assert found.passed is passes
        assert found.contradicted is not passes
        # What rutc writes is the truth's to the letter.
        assert not _judge(other, other[::-1], truth.reshape(shape)).passed
    assert _judge(*(np.array(x, object) for x in ("2.0", "2", "2.0"))).passed
