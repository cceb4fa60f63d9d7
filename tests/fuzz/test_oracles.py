"""What the oracles say of single nodes: what counts, what is moved, and what is left open."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.fuzz.check import differs
from tests.fuzz.graph import RUNS
from tests.fuzz.oracles import NoOracle, evaluate


@pytest.mark.parametrize(("values", "given"), [(1, True), (2, False), (3, True), (4, False)])
def test_values_for_other_features_than_there_are_count_nowhere(values: int, given: bool) -> None:
    numbers = [float(n + 5) for n in range(values)]
    node = helper.make_node(
        "Imputer", ["x"], ["y"], domain="ai.onnx.ml", imputed_value_floats=numbers
    )
    feed = {"x": np.zeros((2, 3), np.float32)}
    if not given:
        with pytest.raises(NoOracle):
            evaluate(node, 18, [feed] * RUNS)
        return
    ((first, *_),) = evaluate(node, 18, [feed] * RUNS)
    np.testing.assert_array_equal(first, [numbers if values == 3 else numbers * 3] * 2)


@pytest.mark.parametrize(("op", "opset"), [("ScatterElements", 14), ("Scatter", 10)])
def test_no_oracle_counts_where_updates_are_more_than_indices(op: str, opset: int) -> None:
    node = helper.make_node(op, ["x", "at", "u"], ["y"], axis=0)
    feed = {"x": np.zeros((5, 1), np.float32), "at": np.array([[1], [3]])}
    own, more = ({**feed, "u": np.ones((n, 1), np.float32)} for n in (2, 4))
    ((first, *_),) = evaluate(node, opset, [own] * RUNS)
    assert first.ravel().tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(NoOracle):
        evaluate(node, opset, [more] * RUNS)


def test_a_rule_decides_between_oracles() -> None:
    node = helper.make_node("Div", ["a", "b"], ["y"])
    feed = {"a": np.array([7, -7], np.int32), "b": np.array([0, 2], np.int32)}
    ((first, *others),) = evaluate(node, 18, [feed] * RUNS)
    assert first[1] == -3
    assert all(o is first for o in others)


def test_long_sums_of_narrow_numbers_are_judged_by_wide_ones() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    feed = {"x": np.ones(1000, ml_dtypes.bfloat16)}
    ((first, *_),) = evaluate(node, 18, [feed] * RUNS)
    assert float(first) == 1000
    assert first.dtype == ml_dtypes.bfloat16


def test_results_are_moved_both_ways() -> None:
    x = np.linspace(1, 100, 300, dtype=np.float32)
    ((first, _, *moved),) = evaluate(helper.make_node("Sqrt", ["x"], ["y"]), 18, [{"x": x}] * RUNS)
    low, high = np.minimum(*moved), np.maximum(*moved)
    assert np.all((low < first) & (first < high))
    assert len({bool(b) for b in moved[0] < first}) == 2
    cancelling = helper.make_node("BlackmanWindow", ["n"], ["y"], periodic=0)
    ((_, _, *moved),) = evaluate(cancelling, 18, [{"n": np.array(5)}] * RUNS)
    assert {float(np.sign(m[0])) for m in moved} == {-1, 1}


def test_what_cancels_in_single_precision_is_moved() -> None:
    feed = {"x": np.array([-6.0])}
    (runs,) = evaluate(helper.make_node("Gelu", ["x"], ["y"]), 22, [feed] * RUNS)
    assert not differs(np.array([-6.0 * 9.8658765e-10]), runs, 1)
    assert differs(np.array([-1e-3]), runs, 1)


def test_sums_of_what_was_moved_are_moved() -> None:
    x = np.ones((1000, 10))
    (runs,) = evaluate(helper.make_node("Erf", ["x"], ["e"]), 18, [{"x": x}] * RUNS)
    sums = [r.sum(axis=1) for r in runs]
    moved = np.maximum(np.abs(sums[2] - sums[0]), np.abs(sums[3] - sums[0]))
    step = np.abs(runs[2] - runs[0]).min()
    assert np.all(moved > step / 100)


def test_what_is_open_stays_open_in_later_nodes() -> None:
    feed = {"x": np.array([[[np.inf], [1.0]]], np.float32)}
    (spectra,) = evaluate(helper.make_node("DFT", ["x"], ["y"], axis=1), 18, [feed] * RUNS)
    infinite = helper.make_node("IsInf", ["y"], ["z"])
    (runs,) = evaluate(infinite, 18, [{"y": y} for y in spectra])
    assert not differs(np.ones_like(runs[0]), runs, 1)
    assert not differs(np.zeros_like(runs[0]), runs, 1)


@pytest.mark.parametrize("value", [0.25, 3.0, -3.0])
@pytest.mark.parametrize("op", ["Asin", "Acos", "Acosh", "Atanh", "Log", "Sqrt", "IsNaN", "IsInf"])
def test_what_is_drawn_may_be_in_the_domain_of_a_function(value: float, op: str) -> None:
    given = {"shape": [1], "low": value, "high": value + 0.5}
    draw = helper.make_node("RandomUniform", [], ["r"], **given)
    (drawn,) = evaluate(draw, 18, [{}] * RUNS)
    (runs,) = evaluate(helper.make_node(op, ["r"], ["y"]), 18, [{"r": r} for r in drawn])
    assert value <= float(drawn[0][0]) <= value + 0.5
    assert not differs(np.ones_like(runs[0]), runs, 1)
    assert not differs(np.zeros_like(runs[0]), runs, 1)


@pytest.mark.parametrize("op", ["Hardmax", "ArgMax", "TopK"])
def test_any_of_what_is_drawn_may_be_the_largest(op: str) -> None:
    draw = helper.make_node("RandomUniform", [], ["r"], shape=[9])
    (drawn,) = evaluate(draw, 18, [{}] * RUNS)
    (moved,) = evaluate(helper.make_node("Tanh", ["r"], ["t"]), 18, [{"r": r} for r in drawn])
    inputs, outputs = (["t", "k"], ["v", "y"]) if op == "TopK" else (["t"], ["y"])
    given = {} if op == "TopK" else {"axis": 0}
    feeds = [{"t": t, "k": np.array([3])} if op == "TopK" else {"t": t} for t in moved]
    *_, runs = evaluate(helper.make_node(op, inputs, outputs, **given), 18, feeds)
    for number in range(9):
        got = np.full_like(runs[0], number) if op != "Hardmax" else np.eye(9, dtype="f4")[number]
        assert not differs(got, runs, 1)


def test_what_is_undefined_for_all_that_are_not_open_stays_so() -> None:
    x = np.array([-2.0, 4.0], np.float32)
    (runs,) = evaluate(helper.make_node("Sqrt", ["x"], ["y"]), 18, [{"x": x}] * RUNS)
    assert differs(np.array([1.0, 2.0], np.float32), runs, 1)
    assert not differs(np.array([np.nan, 2.0], np.float32), runs, 1)


@pytest.mark.parametrize("op", ["Atanh", "Acosh", "Log", "IsInf", "Cos"])
def test_what_is_open_stays_open_in_functions_of_any_domain(op: str) -> None:
    feed = {"x": np.array([[[np.inf], [1.0]]], np.float32)}
    (spectra,) = evaluate(helper.make_node("DFT", ["x"], ["y"], axis=1), 18, [feed] * RUNS)
    (runs,) = evaluate(helper.make_node(op, ["y"], ["z"]), 18, [{"y": y} for y in spectra])
    assert not np.isfinite(spectra[0]).all()
    assert not differs(np.full_like(runs[0], 0), runs, 1)


@pytest.mark.parametrize("op", ["Greater", "Less", "Equal", "Max"])
def test_a_whole_number_beside_an_open_one_may_be_on_either_side(op: str) -> None:
    feed = {"x": np.array([3 << 60, 3]), "e": np.float32(1.9)}
    (powers,) = evaluate(helper.make_node("Pow", ["x", "e"], ["p"]), 18, [feed] * RUNS)
    feeds = [{"x": feed["x"], "p": p} for p in powers]
    (runs,) = evaluate(helper.make_node(op, ["x", "p"], ["y"]), 18, feeds)
    for value in (0, 1):
        got = runs[0].copy()
        got[0] = value
        assert not differs(got, runs, 1)
        got[1] = not runs[0][1]
        assert differs(got, runs, 1)


def test_a_mask_that_is_no_number_may_count_where_the_future_is_left_out() -> None:
    q, k = np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
    feed = {"q": q, "k": k, "v": k, "m": np.array([[0.0, np.nan]], np.float32)}
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], is_causal=1)
    (runs,) = evaluate(node, 24, [feed] * RUNS)
    assert not differs(np.ones_like(runs[0]), runs, 1)
    assert not differs(np.full_like(runs[0], np.nan), runs, 1)


def test_any_of_nearly_equal_numbers_may_be_the_largest() -> None:
    feed = {"x": np.array([0.1, 0.7, 0.7, 0.7], np.float32)}
    (sums,) = evaluate(
        helper.make_node("ReduceSum", ["x", "a"], ["s"]),
        18,
        [{"x": feed["x"].reshape(4, 1), "a": np.array([1])}] * RUNS,
    )
    (runs,) = evaluate(
        helper.make_node("Hardmax", ["s"], ["y"], axis=0), 18, [{"s": s} for s in sums]
    )
    for number in (1, 2, 3):
        assert not differs(np.eye(4, dtype="f4")[number].reshape(runs[0].shape), runs, 1)


def test_the_largest_of_minus_infinity_may_be_the_least_number() -> None:
    feed = {"x": np.full((1, 1, 2), -np.inf, np.float32)}
    (runs,) = evaluate(
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2]), 18, [feed] * RUNS
    )
    assert not differs(np.full((1, 1, 1), -np.inf, np.float32), runs, 1)


@pytest.mark.parametrize("op", ["Relu", "Selu", "Celu"])
def test_a_zero_may_have_either_sign(op: str) -> None:
    feed = {"x": np.array([-0.0], np.float16)}
    (zeros,) = evaluate(helper.make_node(op, ["x"], ["y"]), 18, [feed] * RUNS)
    (runs,) = evaluate(helper.make_node("Reciprocal", ["y"], ["z"]), 18, [{"y": y} for y in zeros])
    assert not differs(np.array([np.inf], np.float16), runs, 1)
    assert not differs(np.array([-np.inf], np.float16), runs, 1)


def test_rows_of_equal_elements_may_deviate_by_a_rounding() -> None:
    feed = {"x": np.full(3, -0.7791039, np.float32)}
    node = helper.make_node(
        "LayerNormalization", ["x", "x"], ["y"], domain="com.microsoft", epsilon=1e-12
    )
    (runs,) = evaluate(node, 18, [feed] * RUNS)
    assert not differs(np.full(3, -0.046355940, np.float32), runs, 1)


def test_bits_of_what_is_computed_may_be_others() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    feed = {"x": np.array([0.125977, -0.131836]).astype(bf16)}
    (products,) = evaluate(helper.make_node("Swish", ["x"], ["y"], alpha=2.0), 26, [feed] * RUNS)
    cast = helper.make_node("BitCast", ["y"], ["z"], to=5)
    (runs,) = evaluate(cast, 26, [{"y": y} for y in products])
    assert not differs(runs[0] + np.int16(1), runs, 1)
    (runs,) = evaluate(cast, 26, [{"y": feed["x"]}] * RUNS)
    assert differs(runs[0] + np.int16(1), runs, 1)


def test_an_infinite_factor_may_be_taken_out_of_a_sum() -> None:
    feed = {"w": np.array([[np.inf]], np.float32), "x": np.array([[1.0, -0.5]], np.float32)}
    node = helper.make_node("Einsum", ["w", "x"], ["y"], equation="ij,ij->i")
    (runs,) = evaluate(node, 18, [feed] * RUNS)
    assert not differs(np.array([np.nan], np.float32), runs, 1)
    assert not differs(np.array([np.inf], np.float32), runs, 1)


def test_a_result_of_another_type_than_defined_does_not_count() -> None:
    node = helper.make_node("ReduceSumSquare", ["x"], ["y"])
    with pytest.raises(NoOracle):
        evaluate(node, 18, [{"x": np.ones(3, np.uint32)}] * RUNS)


def test_numbers_among_strings_do_not_count() -> None:
    node = helper.make_node("Trilu", ["x"], ["y"])
    with pytest.raises(NoOracle):
        evaluate(node, 18, [{"x": np.full((3, 3), "a", object)}] * RUNS)


def test_an_open_quantised_number_may_be_any() -> None:
    feed = {"x": np.array([np.inf], np.float32), "s": np.array(0.5, np.float32)}
    (runs,) = evaluate(helper.make_node("QuantizeLinear", ["x", "s"], ["q"]), 18, [feed] * RUNS)
    feeds = [{"q": q, "s": feed["s"]} for q in runs]
    (runs,) = evaluate(helper.make_node("DequantizeLinear", ["q", "s"], ["y"]), 18, feeds)
    assert not differs(np.array([0.0], np.float32), runs, 1)
    assert not differs(np.array([127.5], np.float32), runs, 1)


def test_rows_of_old_softmaxes_are_the_reference_s_too() -> None:
    x = np.array([[[1.0, np.nan]], [[1.0, 3.0]]], np.float32)
    for op in ("Softmax", "LogSoftmax"):
        node = helper.make_node(op, ["x"], ["y"], axis=1)
        (runs,) = evaluate(node, 9, [{"x": x}] * RUNS)
        undefined = np.isnan(runs[0])
        assert undefined[0].all()
        assert not undefined[1].any()


def test_the_largest_of_minus_infinities_may_be_the_least_number() -> None:
    node = helper.make_node("GlobalMaxPool", ["x"], ["y"])
    x = np.array([[[-np.inf, -np.inf]]], np.float32)
    (runs,) = evaluate(node, 18, [{"x": x}] * RUNS)
    assert not differs(np.array([[[-np.inf]]], np.float32), runs, 1)
    (runs,) = evaluate(node, 18, [{"x": np.array([[[-np.inf, 2.0]]], np.float32)}] * RUNS)
    assert differs(np.array([[[-np.inf]]], np.float32), runs, 1)


def test_nothing_is_counted_that_is_open() -> None:
    draw = helper.make_node("RandomUniform", [], ["r"], shape=[9])
    (drawn,) = evaluate(draw, 18, [{}] * RUNS)
    for op in ("Unique", "NonZero"):
        with pytest.raises(NoOracle):
            evaluate(helper.make_node(op, ["r"], ["y"]), 18, [{"r": r} for r in drawn])


def test_inverses_may_be_those_of_matrices_a_rounding_away() -> None:
    x = np.array([[1.0, 1.0], [1.0, 1.001]], np.float32)
    exact = np.linalg.inv(x.astype(np.float64))
    node = helper.make_node("Inverse", ["x"], ["y"], domain="com.microsoft")
    (runs,) = evaluate(node, 18, [{"x": x}] * RUNS)
    assert not differs((exact * 1.0005).astype(np.float32), runs, 2)
    assert differs((exact * 1.1).astype(np.float32), runs, 2)


def test_determinants_with_a_row_that_takes_all_digits_are_open() -> None:
    x = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 5.0], [1.0, 4e246, 4e246]])
    (runs,) = evaluate(helper.make_node("Det", ["x"], ["y"]), 18, [{"x": x}] * RUNS)
    assert not differs(np.array(0.0), runs, 3)
    (runs,) = evaluate(helper.make_node("Det", ["x"], ["y"]), 18, [{"x": x.clip(max=6)}] * RUNS)
    assert differs(np.array(0.0), runs, 3)


def test_what_may_be_on_either_side_of_a_pole_is_open() -> None:
    """Beside 1.5708 the tangent is any number; beside 0.5 it is what it is."""
    for x, is_open in ((np.pi / 2, True), (0.5, False)):
        near = [np.array([x + step], np.float16) for step in (0, 0, 0.002, -0.002)]
        (runs,) = evaluate(helper.make_node("Tan", ["x"], ["y"]), 18, [{"x": a} for a in near])
        assert is_open == (not differs(np.array([-9e3], np.float16), runs, 1))


def test_the_end_of_a_domain_may_be_passed_by_a_rounding() -> None:
    x = np.array([0.0, 3.0], np.float32)
    near = [x + np.array([step, 0], np.float32) for step in (-7, -7, -9, 8)]
    (runs,) = evaluate(helper.make_node("Acos", ["x"], ["y"]), 18, [{"x": a} for a in near])
    assert not differs(np.array([1.5, np.nan], np.float32), runs, 1)
    assert differs(np.array([1.5, 0.0], np.float32), runs, 1)


def test_errors_of_one_operator_after_another_add_up() -> None:
    x = np.linspace(0.1, 0.9, 2000)
    (first,) = evaluate(helper.make_node("Erf", ["x"], ["y"]), 18, [{"x": x}] * RUNS)
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    (then,) = evaluate(node, 18, [{"x": a} for a in first])
    assert all(
        (abs(b - then[0]) >= abs(a - first[0])).all() for a, b in zip(first, then, strict=True)
    )
