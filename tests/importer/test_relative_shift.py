"""The shift of relative positions: a row for each distance is reshaped, cut and reshaped again."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.graph_opt.pipeline import optimize
from rutc.importer import import_model
from rutc.tensor_ir import Call, Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.onnx_files import i64


@pytest.fixture
def shifted(tmp_path):
    """x{batch, seq} times its distances {batch, 2*seq}, of which row i is read from seq - i on."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["rows"]),
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=1),
        helper.make_node("Unsqueeze", ["twice", "one"], ["columns"]),
        helper.make_node("MatMul", ["rows", "columns"], ["product"]),
        helper.make_node("Shape", ["x"], ["batch"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Add", ["n", "n"], ["far"]),
        helper.make_node("Sub", ["far", "one"], ["less"]),
        helper.make_node("Concat", ["batch", "far", "n"], ["turned"], axis=0),
        helper.make_node("Reshape", ["product", "turned"], ["tall"]),
        helper.make_node("Slice", ["tall", "one", "end", "one"], ["cut"]),
        helper.make_node("Concat", ["batch", "n", "less"], ["back"], axis=0),
        helper.make_node("Reshape", ["cut", "back"], ["wide"]),
        helper.make_node("Squeeze", ["n"], ["count"]),
        helper.make_node("Range", ["zero", "count", "step"], ["places"]),
        helper.make_node("Gather", ["wide", "places"], ["y"], axis=2),
    ]
    constants = {"one": i64(1), "last": i64(2), "end": i64(1 << 40)}
    constants |= {"zero": np.array(0), "step": np.array(1)}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq"])
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], data)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_shift_is_a_read_beside_the_diagonal(shifted):
    """No text has no words, as 2*seq - 1 is a size: the places are known to be in range."""
    g = import_model(shifted)
    assert dict(g.symbols)["seq"][0] == 1
    assert not any(isinstance(n, Call) for n in g.nodes)
    ready = optimize(g)
    coords = [
        c
        for n in ready.nodes
        if isinstance(n, Nest)
        for e in n.body
        for r in reads(e)
        for _, c in r.coords
    ]
    assert not any("//" in str(c) or "%" in str(c) for c in coords)
    x = np.arange(1, 11, dtype="f4").reshape(2, 5)
    product = x[:, :, None] * np.tile(x, 2)[:, None, :]
    wanted = np.stack([product[:, i, 5 - i : 10 - i] for i in range(5)], 1)
    for graph in (g, ready):
        np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], wanted)
