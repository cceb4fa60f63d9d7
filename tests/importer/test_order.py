"""Models whose nodes are not in order, against ONNX Runtime, which sorts them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.opsets.order import sort_nodes

X = np.array([[1, -2, 3], [4, 5, -6]], "f4")
FLOAT = TensorProto.FLOAT


def chain(make_node):
    return [
        make_node("Neg", ["a"], ["b"]),
        make_node("Exp", ["b"], ["c"]),
        make_node("Add", ["c", "a"], ["y"]),
        make_node("Abs", ["x"], ["a"]),
    ]


@pytest.mark.parametrize("places", [(0, 1, 2, 3), (2, 1, 0, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("opset", [11, 21])
def test_nodes_in_any_order(places, opset, check, make_node):
    nodes = chain(make_node)
    check([nodes[k] for k in places], {"x": X}, opset=opset)


def test_nodes_of_bodies_and_what_bodies_read(check, make_node):
    """A body reads what a later node of the graph around it computes.

    It is not in order itself, which ONNX Runtime does not take.
    """
    info = helper.make_tensor_value_info("r", FLOAT, None)
    branches = {
        f"{name}_branch": helper.make_graph(
            [make_node("Add", ["t", "late"], ["r"]), make_node(op, ["x"], ["t"])], name, [], [info]
        )
        for name, op in (("then", "Neg"), ("else", "Exp"))
    }
    nodes = [make_node("If", ["c"], ["y"], **branches), make_node("Abs", ["x"], ["late"])]
    for taken in (True, False):
        expected = np.abs(X) + (-X if taken else np.exp(X))
        check(nodes, {"x": X, "c": np.array(taken)}, expected=[expected])


def test_nodes_of_functions(tmp_path, make_node, make_model):
    body = [make_node("Exp", ["t"], ["o"]), make_node("Neg", ["i"], ["t"])]
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "F", ["i"], ["o"], body, imports)
    call = helper.make_node("F", ["x"], ["y"], domain="own")
    model = make_model([call], {"x": X}, ["y"], {})
    model.functions.append(function)
    onnx.save(model, tmp_path / "m.onnx")
    unsorted = import_model(tmp_path / "m.onnx")
    body.reverse()
    del model.functions[0].node[:]
    model.functions[0].node.extend(body)
    onnx.save(model, tmp_path / "m.onnx")
    assert str(import_model(tmp_path / "m.onnx")) == str(unsorted)


def test_nodes_in_order_stay_where_they_are(make_node, make_model):
    nodes = [make_node("Abs", ["x"], ["a"]), make_node("Exp", ["x"], ["b"])]
    nodes += [make_node("Add", ["b", "a"], ["y"]), make_node("Neg", ["b"], ["z"])]
    model = make_model(nodes, {"x": X}, ["y", "z"], {})
    before = model.SerializeToString()
    sort_nodes(model)
    assert model.SerializeToString() == before


def test_nodes_in_a_circle(tmp_path, make_node, make_model):
    nodes = [
        make_node("Abs", ["x"], ["a"]),
        make_node("Add", ["a", "d"], ["b"]),
        make_node("Exp", ["b"], ["c"]),
        make_node("Neg", ["c"], ["d"]),
        make_node("Exp", ["d"], ["y"]),
    ]
    onnx.save(make_model(nodes, {"x": X}, ["y"], {}), tmp_path / "m.onnx")
    circle = "in a circle: 'Add_b' -> 'Exp_c' -> 'Neg_d' -> 'Add_b'"
    with pytest.raises(UserError, match=circle):
        import_model(tmp_path / "m.onnx")
