"""The float64 form of graphs, and what it computes with and without noise."""

import time
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.tensor_ir import DType, Graph, Nest
from rutc.tensor_ir.graph import outs, walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import MULTIPLE, Level, unit_roundoff
from rutc.verify.truth.float64 import widened
from rutc.verify.truth.truth import TooMuchWork, Truth
from rutc.verify.truth.workload import MOVED_PER_S, NODE_S
from tests.close import assert_close

RANDOM = np.random.default_rng(3)
Arrays = Mapping[str, np.ndarray]


def _model(
    folder: Path, nodes: list[onnx.NodeProto], inputs: Arrays, weights: Arrays, kind: int = 1
) -> Graph:
    takes = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in inputs.items()
    ]
    gives = [helper.make_tensor_value_info("y", kind, None)]
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "m", takes, gives, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    return import_model(folder / "m.onnx")


def _single(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


CASES: Mapping[str, tuple[list[onnx.NodeProto], Arrays, Arrays]] = {
    "convolution": (
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1])],
        {"x": _single(2, 3, 9, 7)},
        {"w": _single(4, 3, 3, 3)},
    ),
    "grouped": (
        [helper.make_node("Conv", ["x", "w"], ["y"], group=6)],
        {"x": _single(1, 6, 9, 7)},
        {"w": _single(6, 1, 3, 3)},
    ),
    "products": (
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Softmax", ["p"], ["s"], axis=-1),
            helper.make_node("MatMul", ["s", "z"], ["y"]),
        ],
        {"x": _single(2, 5, 8), "z": _single(2, 4, 3)},
        {"w": _single(8, 4)},
    ),
    "pooling": (
        [
            helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[3, 3], strides=[2, 2]),
            helper.make_node("ReduceMean", ["m"], ["y"], keepdims=0),
        ],
        {"x": _single(1, 3, 11, 11)},
        {},
    ),
    "recurrence": (
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)],
        {"x": _single(6, 2, 5)},
        {"w": _single(1, 16, 5), "r": _single(1, 16, 4)},
    ),
    "sorting": (
        [
            helper.make_node("Exp", ["x"], ["e"]),
            helper.make_node("TopK", ["e", "k"], ["y", "at"], axis=1),
        ],
        {"x": _single(3, 9)},
        {"k": np.array([4], np.int64)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_truth_is_what_the_graph_means(name: str, tmp_path: Path) -> None:
    nodes, inputs, weights = CASES[name]
    graph = _model(tmp_path, nodes, inputs, weights)
    wide = widened(graph)
    verify(wide)
    (expected,) = interpret(graph, inputs).values()
    (found,) = Truth(graph).run(inputs).values()
    (plain,) = interpret(wide, inputs).values()
    assert found.dtype == np.float64
    # The products of matrices and the folds of numpy add in another order.
    assert_close(found, plain, reduction=1024, dtype=np.float64)
    assert_close(found, expected, level=Level.MODEL, dtype=np.float32)


def test_no_value_but_inputs_and_constants_stays_narrow(tmp_path: Path) -> None:
    nodes, inputs, weights = CASES["products"]
    wide = widened(_model(tmp_path, nodes, inputs, weights))
    kinds = {v.dtype for n in walk_nodes(wide.nodes) if isinstance(n, Nest) for v in outs(n)}
    assert kinds == {DType.F64}
    assert all(n.out.dtype is DType.F32 for n in wide.inputs)


def test_noise_moves_what_rounds_and_nothing_else(tmp_path: Path) -> None:
    x = np.array([1.0, 3.0, 0.1], np.float32)
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    truth = Truth(_model(tmp_path, nodes, {"x": x}, {"w": np.float32([2.0, 4.0, 0.3])}))
    exact = truth.run({"x": x})["y"]
    moved = np.array([truth.run({"x": x}, seed)["y"] - exact for seed in range(20)])
    assert not moved[:, :2].any()
    assert moved[:, 2].any()
    largest = np.abs(moved[:, 2]).max()
    assert largest <= (MULTIPLE + 1) * unit_roundoff(np.float32) * abs(exact[2])
    assert np.array_equal(truth.run({"x": x}, 3)["y"], truth.run({"x": x}, 3)["y"])


def _moved(folder: Path, products: int) -> float:
    """By how many roundings noise moves a sum of products that cancels to near nothing."""
    x = _single(1, products)
    w = _single(products, 64)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    truth = Truth(_model(folder, nodes, {"x": x}, {"w": w}))
    exact = truth.run({"x": x})["y"]
    apart = max(float(np.abs(truth.run({"x": x}, k)["y"] - exact).max()) for k in range(4))
    magnitude = float(np.sqrt((np.abs(x) @ np.abs(w)).max()))
    return apart / (unit_roundoff(np.float32) * magnitude)


def test_noise_of_sums_grows_as_their_rounding_errors_do(tmp_path: Path) -> None:
    short, long = _moved(tmp_path, 16), _moved(tmp_path, 4096)
    # 256 times as many products: 16 times as many roundings, of a sum 16 times as large.
    assert 8 < long / short < 32


def test_sums_are_moved_where_their_summands_are_rounded_on_the_way(tmp_path: Path) -> None:
    # 8 * 0.1 has a place in float32, 3 * 0.1 has none; dyadic numbers have one on all of the way.
    x = np.array([[0.1] * 8, [0.25] * 8], np.float32)
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    truth = Truth(_model(tmp_path, nodes, {"x": x}, {"axes": np.array([1])}))
    exact = truth.run({"x": x})["y"]
    assert exact[0] == np.float32(exact[0])
    moved = np.array([truth.run({"x": x}, seed)["y"] - exact for seed in range(5)])
    assert moved[:, 0].any()
    assert not moved[:, 1].any()


def test_sums_of_equal_numbers_are_moved_as_far_as_they_may_be_off(tmp_path: Path) -> None:
    # A variance as the difference of two means, down columns of two values each.
    values = np.float32([[0.7, 0.3, 1.1], [0.7003, 0.301, 1.1001]])
    x = values[np.random.default_rng(3).integers(0, 2, (2048, 1)), np.arange(3)]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["square"], keepdims=0),
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "mean"], ["other"]),
        helper.make_node("Sub", ["square", "other"], ["y"]),
    ]
    truth = Truth(_model(tmp_path, nodes, {"x": x}, {"axes": np.array([0])}))
    exact = truth.run({"x": x})["y"]
    count = np.float32(len(x))
    # numpy's running sums add in order.
    mean = np.cumsum(x, axis=0, dtype=np.float32)[-1] / count
    square = np.cumsum(x * x, axis=0, dtype=np.float32)[-1] / count
    off = np.abs((square - mean * mean) - exact)
    moved = np.abs([truth.run({"x": x}, seed)["y"] - exact for seed in range(8)]).max(axis=0)
    assert (off < moved).all()
    assert (moved < 16 * off.max()).all()


def test_sums_of_whole_numbers_are_not_moved(tmp_path: Path) -> None:
    x, w = np.rint(8 * _single(3, 100)), np.rint(8 * _single(100, 5))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    truth = Truth(_model(tmp_path, nodes, {"x": x}, {"w": w}))
    np.testing.assert_array_equal(truth.run({"x": x}, 1)["y"], x.astype(np.float64) @ w)


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
def test_the_roundings_that_a_model_asks_for_are_done(
    narrow: type[np.generic], tmp_path: Path
) -> None:
    x = _single(50)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(narrow))
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=kind),
        helper.make_node("Cast", ["n"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["x", "w"], ["y"]),
    ]
    found = Truth(_model(tmp_path, nodes, {"x": x}, {})).run({"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(np.float64) - x.astype(narrow).astype(np.float64))


def test_the_bits_of_a_float_are_those_of_its_type() -> None:
    graph = parse(
        """
        graph "bits"
        dims n = 4
        %x : f32{n} = input "x" [n]
        %t : f32{n} = %x[n] * 2.0
        %b : i32{n} = bits_i32(%t[n])
        output "y" [n] = %b
        """
    )
    x = np.array([0.1, -3.0, 7e30, 0.0], np.float32)
    np.testing.assert_array_equal(Truth(graph).run({"x": x})["y"], (2 * x).view(np.int32))


def test_the_work_of_one_row_is_mostly_to_widen_the_weights(tmp_path: Path) -> None:
    w = _single(256, 512)

    def work_s(rows: int) -> float:
        inputs = {"x": _single(rows, 256)}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        truth = Truth(_model(tmp_path, nodes, inputs, {"w": w}))
        truth.run(inputs)
        return truth.work_s

    assert work_s(1) > w.size / 1e9
    assert work_s(2) < 1.1 * work_s(1)
    assert work_s(1000) > 10 * work_s(1)


def test_too_much_work_is_told_before_it_begins(tmp_path: Path) -> None:
    nodes, inputs, weights = CASES["products"]
    truth = Truth(_model(tmp_path, nodes, inputs, weights))
    truth.run(inputs)
    assert truth.work_s > 0
    with pytest.raises(TooMuchWork):
        truth.run(inputs, None, truth.work_s / 2)


def test_nodes_of_loops_count_in_each_trip(tmp_path: Path) -> None:
    def graph(trips: int) -> Graph:
        inside = [
            helper.make_node("Identity", ["go"], ["more"]),
            helper.make_node("Sin", ["v"], ["w"]),
        ]
        go, more = (helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go", "more"))
        v, w = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "vw")
        trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
        body = helper.make_graph(inside, "body", [trip, go, v], [more, w])
        nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
        return _model(tmp_path, nodes, {"x": _single(2)}, {"trips": np.array(trips)})

    x = {"x": np.float32([0.5, 1.0])}
    truth = Truth(graph(100))
    truth.run(x)
    assert truth.work_s > 100 * NODE_S
    many = Truth(graph(1_000_000))
    begin = time.process_time()
    with pytest.raises(TooMuchWork):
        many.run(x, None, 1.0)
    assert time.process_time() - begin < 10


def test_routines_and_scatters_count_by_their_elements(tmp_path: Path) -> None:
    def work_s(count: int) -> float:
        x, at = _single(count), np.arange(count)[:, np.newaxis]
        nodes = [
            helper.make_node("TopK", ["x", "k"], ["sorted", "order"], axis=0),
            helper.make_node("ScatterND", ["sorted", "at", "x"], ["y"]),
        ]
        weights = {"k": np.array([count]), "at": at}
        truth = Truth(_model(tmp_path, nodes, {"x": x}, weights))
        truth.run({"x": x})
        return truth.work_s

    assert work_s(100_000) - work_s(10_000) > 2 * 90_000 / MOVED_PER_S


def test_a_logistic_function_is_as_near_as_it_is_beside_one(tmp_path: Path) -> None:
    """Runtimes compute it as 0.5 + 0.5 * tanh(x / 2), which near 0 has the steps of 1."""
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    truth = Truth(import_model(tmp_path / "m.onnx"))
    values = {"x": np.array([-30, -11, 0.5, 20], np.float32)}
    exact = truth.run(values)["y"]
    apart = np.abs([truth.run(values, seed)["y"] - exact for seed in range(8)]).max(axis=0)
    assert (apart > 2.0**-24).all()
    assert (apart < 16 * 2.0**-24).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16])
def test_subnormal_numbers_of_types_that_programs_flush_may_count_as_zeros(
    kind: type, tmp_path: Path
) -> None:
    least = float(ml_dtypes.finfo(kind).smallest_normal)
    x = np.array([least / 2, -least / 2, least, 3 * least, 0.0, np.nan], kind)
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["z"]),
        helper.make_node("Reciprocal", ["z"], ["y"]),
    ]
    number = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = _model(tmp_path, nodes, {"x": x}, {"half": np.array(0.5, kind)}, number)
    y = Truth(graph).run({"x": x}, flushing=True)["y"]
    assert list(y[:2]) == [np.inf, -np.inf] or kind is np.float16
    assert np.isfinite(y[2]) == (kind is np.float16)
    assert np.isfinite(y[3])
    assert y[4] == np.inf
    assert np.isnan(y[5])
    assert np.isfinite(Truth(graph).run({"x": x})["y"][2:4]).all()


def test_noise_leaves_sums_of_nothing_as_they_are() -> None:
    text = """
graph "nothing"
dims m = 3, k = 0
%x : f32{k,m} = input "x" [m, k]
%y : f32{m} = sum{k} %x[k, m]
output "y" [m] = %y
"""
    run = Truth(parse(text)).run({"x": np.zeros((3, 0), np.float32)}, 1)
    assert not run["y"].any()


def test_sums_that_a_model_rounds_to_fewer_bits_are_rounded() -> None:
    graph = parse("""
    graph "rounded"
    dims n = 3, k = 4
    %x : f16{n,k} = input "x" [n, k]
    %s : f32{n} = sum{k} f32(%x[n, k]) * 0.1
    %y : f16{n} = f16(%s[n])
    output "y" [n] = %y
    """)
    verify(graph)
    x = np.arange(12, dtype=np.float16).reshape(3, 4) / np.float16(7)
    exact = x.astype(np.float64).sum(1) * np.float64(np.float32(0.1))
    (y,) = Truth(graph).run({"x": x}).values()
    np.testing.assert_array_equal(y, exact.astype(np.float16).astype(np.float64))
    moved = [Truth(graph).run({"x": x}, noise=k)["y"] for k in range(8)]
    assert all((np.stack(moved) != y).any(0))


def test_noise_moves_subnormal_numbers_as_far_as_they_lie_apart() -> None:
    graph = parse("""
    graph "small"
    dims n = 4
    %x : f32{n} = input "x" [n]
    %y : f16{n} = f16(%x[n])
    output "y" [n] = %y
    """)
    step = np.finfo(np.float16).smallest_subnormal.astype(np.float64)
    x = np.array([2.6, -2.6, 0.4, 3.0], np.float32) * np.float32(step)
    truth = Truth(graph)
    moved = np.stack([truth.run({"x": x}, noise=k)["y"] for k in range(64)]) / step
    assert set(moved[:, 0]) == {2, 3, 4}
    assert set(moved[:, 1]) == {-2, -3, -4}
    assert set(moved[:, 2]) == {0, 1}
    assert set(moved[:, 3]) == {3}
