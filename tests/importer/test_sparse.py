"""Sparse initializers and sparse constants are made dense."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close

DENSE = np.array([[0, 0, 2.5, 0], [-1, 0, 0, 0], [0, 0, 0, 4]], "f4")


def sparse(at, name="w", dims=(3, 4), values=(2.5, -1, 4)):
    stored = numpy_helper.from_array(np.array(values, "f4"), name)
    return helper.make_sparse_tensor(stored, numpy_helper.from_array(np.array(at, "i8")), dims)


POSITIONS = [[2, 4, 11], [[0, 2], [1, 0], [2, 3]]]


def run(model, tmp_path, inputs):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return interpret(import_model(path), inputs)["y"]


@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("opset", [13, 28])
def test_initializer(at, opset, tmp_path, make_node, make_model, rng):
    x = rng.standard_normal((2, 3)).astype("f4")
    model = make_model([make_node("MatMul", ["x", "w"])], {"x": x}, ["y"], {}, opset)
    model.graph.sparse_initializer.append(sparse(at))
    assert_close(run(model, tmp_path, {"x": x}), x @ DENSE, reduction=16)


@pytest.mark.parametrize("at", POSITIONS)
def test_constant(at, tmp_path, make_node, make_model, rng):
    x = rng.standard_normal((3, 4)).astype("f4")
    nodes = [
        make_node("Constant", [], ["w"], sparse_value=sparse(at, "")),
        make_node("Add", ["x", "w"]),
    ]
    model = make_model(nodes, {"x": x}, ["y"], {})
    np.testing.assert_array_equal(run(model, tmp_path, {"x": x}), x + DENSE)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (sparse([0, 1, 12]), "an index is out of range"),
        (sparse([[0, 0], [1, 1], [3, 0]]), "an index is out of range"),
        (sparse([0, 1]), "do not fit"),
        (sparse([0, 1, 2], dims=(1 << 20, 1 << 20)), "not acceptable"),
    ],
)
def test_malformed(tensor, message, tmp_path, make_node, make_model):
    model = make_model([make_node("Identity", ["w"])], {}, ["y"], {})
    model.graph.sparse_initializer.append(tensor)
    with pytest.raises(UserError, match=message):
        run(model, tmp_path, {})
