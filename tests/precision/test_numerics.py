"""Compiled models err little more than their own order of float32 operations does."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.graph_opt import EXACT, optimize
from rutc.importer import import_model
from rutc.tensor_ir.machine import Machine
from tests.close import assert_close
from tests.graph_opt.truth import assert_as_close
from tests.machines import on_machines

POINTS = 64
OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
Steps = list[tuple[str, float]]


def rows() -> list[tuple[np.ndarray, Steps]]:
    """Inputs and what is done to them: features standardised, times, rounding, far exponents."""
    rng = np.random.default_rng(17)

    def around(offset: float, spread: float) -> np.ndarray:
        return (offset + spread * rng.standard_normal(POINTS)).astype(np.float32)

    found: list[tuple[np.ndarray, Steps]] = [
        (around(1e6, 3), [("Sub", 1e6), ("Div", 3.0), ("Mul", 0.7), ("Add", 0.1)]),
        (around(1.7e9, 1e4), [("Sub", 1.7e9), ("Div", 1e4), ("Mul", 0.7)]),
        (around(0, 100), [("Add", 12582912.0), ("Sub", 12582912.0)]),
        (around(0, 1e-30), [("Mul", 1e30), ("Mul", 1e30)]),
        (around(1e30, 1e29), [("Div", 1e30), ("Mul", 1e-10)]),
    ]
    for _ in range(9):
        offset = float(10 ** rng.uniform(-20, 20) * rng.choice([1, -1]))
        spread = abs(offset) * float(10 ** rng.uniform(-6, 0))
        scale = float(rng.uniform(0.1, 10))
        x = around(offset, spread)
        found += [
            (x, [("Sub", offset), ("Div", spread), ("Mul", scale), ("Add", scale / 7)]),
            (x, [("Sub", offset), ("Mul", 1 / spread), ("Mul", scale)]),
            (x, [("Mul", 1 / spread), ("Add", -offset / spread), ("Div", scale)]),
        ]
        large = float(10 ** rng.uniform(20, 37))
        magic = float(2.0 ** rng.integers(0, 30) * 12582912)
        found += [
            (around(0, magic * 1e-6), [("Add", magic), ("Sub", magic)]),
            (around(0, large**-0.9), [("Mul", large), ("Mul", large**0.7)]),
            (around(large, large / 9), [("Div", large), ("Mul", scale / large)]),
        ]
    return found


def products() -> list[tuple[np.ndarray, np.ndarray, Steps]]:
    """Inputs, weights, and what is done to their product: scales that meet only there."""
    rng = np.random.default_rng(18)
    found = []
    for x, w, s in [(-20, 20, 20), (-18, 18, 15), (15, -30, -20), (-25, 20, 30), (0, 0, -30)]:
        left = (rng.standard_normal((8, 32)) * 10.0**x).astype(np.float32)
        right = (rng.standard_normal((32, 16)) * 10.0**w).astype(np.float32)
        steps = [("Mul", 10.0**s)]
        found.append((left, right, steps))
        found.append((left, right, [("Sub", 10.0 ** (x + w + 6)), ("Add", 10.0 ** (x + w + 6))]))
    x = (1e6 + 3 * rng.standard_normal((8, 32))).astype(np.float32)
    normalised: Steps = [("Sub", 1e6), ("Div", 3.0), ("Mul", 0.7), ("Add", 0.1)]
    found.append((x, np.eye(32, 16, dtype=np.float32), normalised))
    return found


def follow(x: np.ndarray, steps: Steps, kind: type[np.floating]) -> np.ndarray:
    """The steps in a type, one after the other."""
    with np.errstate(all="ignore"):
        for name, by in steps:
            x = OPERATORS[name](x, kind(np.float32(by)))
    return x


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A model of all rows and products, and its inputs."""
    nodes, inputs, weights, outputs = [], {}, [], []

    def follow_in_graph(value: str, steps: Steps, shape: tuple[int, ...]) -> None:
        for number, (name, by) in enumerate(steps):
            weights.append(numpy_helper.from_array(np.float32(by), f"{value}.c{number}"))
            nodes.append(helper.make_node(name, [value, f"{value}.c{number}"], [f"{value}'"]))
            nodes[-1].output[0] = value = f"{value}'"
        outputs.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, shape))

    for number, (x, steps) in enumerate(rows()):
        inputs[f"x{number}"] = x
        follow_in_graph(f"x{number}", steps, x.shape)
    for number, (x, w, steps) in enumerate(products()):
        inputs[f"p{number}"] = x
        weights.append(numpy_helper.from_array(w, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"p{number}", f"w{number}"], [f"m{number}"]))
        follow_in_graph(f"m{number}", steps, (len(x), w.shape[1]))
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in inputs.items()
    ]
    graph = helper.make_graph(nodes, "rows", infos, outputs, weights)
    path = tmp_path_factory.mktemp("numerics") / "rows.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    return path, inputs


@pytest.mark.parametrize("exact", [False, True])
def test_rows_err_little_more_than_their_own_order(
    model: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, *, exact: bool
) -> None:
    path, inputs = model
    library = tmp_path / "rows.so"
    rutc.compile(path, library, verify=False, exact_algorithms=exact)
    found = rutc.load(library, threads=1).run(None, inputs)
    for got, (x, steps) in zip(found, rows(), strict=False):
        own = follow(x, steps, np.float32)
        text = f"{x[:3]} {steps}"
        assert_as_close(got, own, follow(x.astype(np.float64), steps, np.float64), text)
        if exact:
            np.testing.assert_array_equal(got, own, err_msg=text)
    for got, (x, w, steps) in zip(found[len(rows()) :], products(), strict=True):
        own = follow(x @ w, steps, np.float32)
        true = follow(x.astype(np.float64) @ w.astype(np.float64), steps, np.float64)
        assert_as_close(got, own, true, f"{x[:1, :3]} {w[:1, :3]} {steps}")


@pytest.mark.parametrize("exact", [False, True])
def test_long_rows_far_from_zero_are_normalised(tmp_path: Path, *, exact: bool) -> None:
    shape = (1, 1, 300, 300)
    one = [numpy_helper.from_array(np.full(1, v, np.float32), n) for n, v in (("s", 1), ("b", 0))]
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    graph = helper.make_graph([node], "norm", infos[:1], infos[1:], one)
    path, library = tmp_path / "norm.onnx", tmp_path / "norm.so"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    rutc.compile(path, library, verify=False, exact_algorithms=exact)
    session = rutc.load(library, threads=1)

    def normalised(x: np.ndarray) -> np.ndarray:
        # One after the other, as a sum is written; numpy adds up pairs of halves.
        total = x.reshape(-1).cumsum()[-1]
        centered = x - x.dtype.type(total / x.dtype.type(x.size))
        squares = np.square(centered).reshape(-1).cumsum()[-1]
        variance = squares / x.dtype.type(x.size)
        return np.asarray(centered / np.sqrt(variance + x.dtype.type(1e-5)))

    for offset in (0.0, 1e2, 1e4):
        noise = np.random.default_rng(4).standard_normal(shape)
        x = (offset + noise).astype(np.float32)
        (got,) = session.run(None, {"x": x})
        exactly = normalised(x.astype(np.float64))
        assert_as_close(np.asarray(got), normalised(x), exactly, str(offset))


@pytest.mark.parametrize(("mean", "folds"), [(0.3, True), (1e6, False)])
def test_batch_normalisation_goes_into_ordinary_weights(
    tmp_path: Path, mean: float, *, folds: bool
) -> None:
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)) / 5,
        "g": rng.uniform(0.5, 2.0, 4),
        "b": rng.standard_normal(4),
        "m": mean + rng.standard_normal(4) / 9,
        "v": rng.uniform(0.5, 2.0, 4),
    }
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 3, 9, 9]), ("y", [1, 4, 7, 7]))
    )
    path = tmp_path / "conv.onnx"
    graph = helper.make_graph(nodes, "conv", [x], [y], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    assert (".scaled" in str(optimize(import_model(path)))) == folds
    assert ".scaled" not in str(optimize(import_model(path), pipeline=EXACT))


def made_of(
    nodes: list[onnx.NodeProto], x: tuple[int, ...], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """A model of one input `x`, whose outputs are those values that no node reads."""
    read = {name for n in nodes for name in n.input}
    outputs = [o for n in nodes for o in n.output if o not in read]
    constants = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x)
    made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    graph = helper.make_graph(nodes, "made", [given], made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("exact", [False, True])
def test_means_are_quotients(tmp_path: Path, *, exact: bool) -> None:
    """The mean of 41 ones is 1, and no less: 41 times the float next to 1/41 is less than 1."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["r"]),
        helper.make_node("GlobalAveragePool", ["x"], ["g"]),
        helper.make_node("AveragePool", ["x"], ["a"], kernel_shape=[41], strides=[1]),
    ]
    model = made_of(nodes, (1, 3, 41), {"axes": np.array([2], np.int64)})
    onnx.save(model, tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False, exact_algorithms=exact)
    x = np.ones((1, 3, 41), np.float32)
    for found in rutc.load(tmp_path / "m.so", threads=1).run(None, {"x": x}):
        np.testing.assert_array_equal(found, np.ones_like(found))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("place", [0, 5])
def test_the_mean_of_a_long_row_with_an_infinity_is_infinite(
    tmp_path: Path, place: int, *, exact: bool
) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"]),
        helper.make_node("Identity", ["m"], ["mean"]),
        helper.make_node("Sub", ["x", "m"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["s"]),
        helper.make_node("ReduceMean", ["s", "axes"], ["v"]),
    ]
    model = made_of(nodes, (2, 70_000), {"axes": np.array([1], np.int64)})
    onnx.save(model, tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False, exact_algorithms=exact)
    x = np.random.default_rng(6).standard_normal((2, 70_000)).astype(np.float32)
    x[0, place] = np.inf
    mean, variance = rutc.load(tmp_path / "m.so", threads=1).run(None, {"x": x})
    assert mean[0, 0] == np.inf
    assert np.isfinite(mean[1, 0])
    np.testing.assert_array_equal(np.isnan(variance[:, 0]), [True, False])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("length", [1, 7, 16, 97])
@pytest.mark.parametrize("axis", [-1, 1])
@on_machines
def test_probabilities_of_rows_with_nan_and_infinities(
    tmp_path: Path, machine: Machine, axis: int, length: int, *, exact: bool
) -> None:
    """A row is NaN that has a NaN, at its largest element or beside it, or nothing but -inf."""
    x = np.random.default_rng(length).standard_normal((11, length)).astype(np.float32) * 9
    x[0, 0], x[1, length // 2], x[2, -1], x[3] = np.nan, np.nan, np.nan, np.nan
    x[4], x[5, 0], x[6, length // 2 :], x[7, -1] = -np.inf, np.inf, -np.inf, -300.0
    x[1, -1], x[8] = np.inf if length > 2 else np.nan, -1e30
    given = np.moveaxis(np.stack([x, x * np.float32(0.01)]), -1, axis)
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=axis),
        helper.make_node("LogSoftmax", ["x"], ["q"], axis=axis),
    ]
    onnx.save(made_of(nodes, given.shape, {}), tmp_path / "m.onnx")
    rutc.compile(
        tmp_path / "m.onnx",
        tmp_path / "m.so",
        verify=False,
        exact_algorithms=exact,
        target=machine.name,
    )
    p, q = rutc.load(tmp_path / "m.so", threads=1).run(None, {"x": given})
    with np.errstate(all="ignore"):
        d = given.astype(np.float64) - given.max(axis, keepdims=True)
        total = np.exp(d).sum(axis, keepdims=True)
        assert_close(p, np.exp(d) / total, reduction=length)
        assert_close(q, d - np.log(total), reduction=length)
