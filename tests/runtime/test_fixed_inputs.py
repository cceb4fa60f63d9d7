"""Inputs that are given when compiling: constants to the compiler, checked by every run."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.runtime import ModelError, load
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPE = np.array([3, 2])
WRONG = r'input "shape" must be \[3, 2\]: the model was compiled for this value'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = Clip(Reshape(x, shape), low)."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Clip", ["r", "low"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"]),
        helper.make_tensor_value_info("low", TensorProto.FLOAT, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path = tmp_path / "model.onnx"
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def test_a_run_with_anything_else_fails(model: Path, tmp_path: Path) -> None:
    dims = {"a": 2, "b": 3}
    with pytest.raises(UserError, match="fix it"):
        rutc.compile(model, tmp_path / "m.so", dims=dims, verify=False)
    values = {"shape": SHAPE, "low": np.array(2)}
    compiled = rutc.compile(model, tmp_path / "m.so", dims=dims, values=values)
    assert compiled.verification is not None
    assert compiled.verification.passed
    low = np.float32(2)
    expected = np.maximum(X, 2).reshape(3, 2)
    with load(compiled.library) as session:
        ports = {port.name: port.value for port in session.get_inputs()}
        assert ports["x"] is None
        np.testing.assert_array_equal(ports["shape"], SHAPE)
        np.testing.assert_array_equal(ports["low"], low)
        strided = np.array([3, 0, 2, 0])[::2]
        for shape in (SHAPE, strided):
            (y,) = session.run(None, {"x": X, "shape": shape, "low": low})
            np.testing.assert_array_equal(y, expected)
        for shape in (np.array([2, 3]), np.array([3, 0, 1, 0])[::2]):
            with pytest.raises(ModelError, match=WRONG):
                session.run(None, {"x": X, "shape": shape, "low": low})
        with pytest.raises(ModelError, match='input "low" must be 2'):
            session.run(None, {"x": X, "shape": SHAPE, "low": np.float32(3)})
        with pytest.raises(ModelError, match="must have shape"):
            session.run(None, {"x": X, "shape": SHAPE[:1], "low": low})
        with pytest.raises(ModelError, match="missing"):
            session.run(None, {"x": X, "low": low})


def test_the_graph_says_so(model: Path) -> None:
    graph = import_model(model, dims={"a": 2, "b": 3}, values={"shape": SHAPE})
    assert '= input "shape" [rank] fixed [3, 2]' in str(graph)
    assert parse(str(graph)) == graph
    feed = {"x": X, "shape": SHAPE, "low": np.float32(2)}
    np.testing.assert_array_equal(interpret(graph, feed)["y"], np.maximum(X, 2).reshape(3, 2))
    with pytest.raises(UserError, match=r"input 'shape' must be \[3, 2\]"):
        interpret(graph, {**feed, "shape": np.array([6, 1])})


def test_a_value_fixes_the_symbolic_sizes_of_its_shape(model: Path) -> None:
    graph = import_model(model, values={"x": X, "shape": SHAPE})
    assert {i.name: [graph.extent(d) for d in i.axes] for i in graph.inputs} == {
        "x": [2, 3],
        "shape": [2],
        "low": [],
    }
