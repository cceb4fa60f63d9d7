"""The first diverging node is named and isolated; the faults are put into the compiled model."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.bisect import Divergence, bisect
from rutc.driver.compiler import Options, Report, compile_model
from rutc.runtime import ModelError
from rutc.verify.judging.compare import Value
from tests.onnx_files import write_model
from tests.run_time_structure.models import PAIRS, floats, graph, ints, rows

Fault = Callable[[onnx.GraphProto], None]
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model y = abs(tanh(relu(x @ w) + 1)) whose nodes are named."""
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float32(1))),
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Relu", ["a"], ["b"], name="positive"),
        helper.make_node("Add", ["b", "one"], ["c"], name="more"),
        helper.make_node("Tanh", ["c"], ["d"], name="squash"),
        helper.make_node("Abs", ["d"], ["y"], name="size"),
    ]
    return write_model(tmp_path / "m.onnx", nodes, {"x": [4, 6]}, {"y": [4, 5]}, {"w": weight})


def _find(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault | None = None,
    feed: Mapping[str, Value] | None = None,
) -> Divergence | None:
    """Bisects with a compiler that has a fault: it changes the graph before it compiles."""

    def compile_with_fault(path: Path, output: Path, options: Options, tell: None) -> Report:
        changed = onnx.load(path)
        if fault is not None:
            fault(changed.graph)
        onnx.save(changed, path.with_suffix(".changed.onnx"))
        return compile_model(path.with_suffix(".changed.onnx"), output, options, tell)

    monkeypatch.setattr("rutc.driver.bisect.compile_model", compile_with_fault)
    return bisect(model, feed or {"x": X}, model.parent, threads=1)


def test_operands_of_the_run_decide_how_parts_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["t"], name="total"),
        helper.make_node("Tanh", ["t"], ["y"], name="squash"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6]),
        helper.make_tensor_value_info("axes", TensorProto.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph(nodes, "sums", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "m.onnx")
    feed = {"x": X, "axes": np.array([1])}
    assert _find(tmp_path / "m.onnx", monkeypatch, feed=feed) is None
    found = _find(tmp_path / "m.onnx", monkeypatch, _wrong_tanh, feed)
    assert found is not None
    assert found.node.name == "squash"


def _wrong_tanh(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"


def _wrong_tanh_if_fused(graph: onnx.GraphProto) -> None:
    """Wrong only where the sum that it reads is computed in the model and is not observed."""
    made = {name for node in graph.node if node.op_type == "Add" for name in node.output}
    if made - {output.name for output in graph.output}:
        _wrong_tanh(graph)


def test_a_model_that_agrees_diverges_nowhere(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(model.parent.iterdir())
    assert _find(model, monkeypatch) is None
    assert sorted(model.parent.iterdir()) == before


def test_the_first_diverging_node_of_a_model_whose_nodes_are_in_no_order(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(model)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[::-1])
    onnx.save(proto, model)
    found = _find(model, monkeypatch, _wrong_tanh)
    assert found is not None
    assert (found.node.name, found.minimal_nodes) == ("squash", 1)


def test_the_first_diverging_node_is_named_and_isolated(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _find(model, monkeypatch, _wrong_tanh)
    assert found is not None
    assert (found.node.name, found.node.op, found.fused) == ("squash", "Tanh", False)
    assert found.output.name == "d"
    assert found.minimal_nodes == 1
    assert found.minimal is not None
    assert found.minimal_inputs is not None
    assert [node.name for node in onnx.load(found.minimal).graph.node] == ["squash"]
    with np.load(found.minimal_inputs) as stored:
        assert stored.files == ["c"]


def test_a_fault_of_a_fusion_is_found_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _find(model, monkeypatch, _wrong_tanh_if_fused)
    assert found is not None
    assert (found.node.name, found.fused) == ("squash", True)
    assert found.minimal is not None
    names = [node.name for node in onnx.load(found.minimal).graph.node if node.name]
    assert names == ["more", "squash"]
    assert "only while what it reads is fused into it" in str(found)


def test_a_model_may_take_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("SequenceAt", ["s", "one"], ["a"], name="pick"),
        helper.make_node("Tanh", ["a"], ["y"], name="squash"),
        helper.make_node("SequenceLength", ["s"], ["n"], name="count"),
    ]
    outputs = {"y": floats(None, 2), "n": ints()}
    inner = graph(nodes, {"s": PAIRS}, outputs, {"one": np.array(1)})
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(inner, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    feed = {"s": [rows(3, 2), rows(2, 2), rows(1, 2)]}

    def wrong_place(changed: onnx.GraphProto) -> None:
        changed.initializer.append(numpy_helper.from_array(np.array(2), "two"))
        for n in changed.node:
            if n.op_type == "SequenceAt":
                n.input[1] = "two"

    assert _find(tmp_path / "m.onnx", monkeypatch, feed=feed) is None
    found = _find(tmp_path / "m.onnx", monkeypatch, _wrong_tanh, feed)
    assert found is not None
    assert (found.node.name, found.minimal_nodes) == ("squash", 1)
    found = _find(tmp_path / "m.onnx", monkeypatch, wrong_place, feed)
    assert found is not None
    assert (found.node.name, found.minimal_nodes) == ("pick", 1)
    assert found.minimal_inputs is not None
    with np.load(found.minimal_inputs) as stored:
        assert stored.files == ["s[0]", "s[1]", "s[2]"]
        np.testing.assert_array_equal(stored["s[1]"], feed["s"][1])


def _wrong_small_column(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.name == "scales":
            scales = numpy_helper.to_array(tensor).copy()
            scales[-1] *= 1.03
            tensor.CopyFrom(numpy_helper.from_array(scales, "scales"))


def test_parts_are_judged_slice_by_slice_as_models_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "scales"], ["boxes"], name="scale"),
        helper.make_node("Neg", ["boxes"], ["y"], name="turn"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    scales = numpy_helper.from_array(np.float32([640, 640, 640, 640, 640, 1]), "scales")
    graph = helper.make_graph(nodes, "boxes", [x], [y], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    found = _find(tmp_path / "m.onnx", monkeypatch, _wrong_small_column)
    assert found is not None
    assert (found.node.name, found.minimal_nodes) == ("scale", 1)
    assert "index 5 of axis 1" in found.output.reason


def test_parts_that_do_not_run_alone_are_not_judged(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(library: Path, threads: int | None) -> None:
        raise ModelError("no such memory")

    monkeypatch.setattr("rutc.driver.bisect.load", refuse)
    assert _find(model, monkeypatch, _wrong_tanh) is None
