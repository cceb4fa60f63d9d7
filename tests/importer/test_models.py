"""Whole models: the light networks of the onnx package and the digits network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from rutc.importer import import_model
from rutc.tensor_ir import Nest
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.onnx"


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda p: p.stem)
def test_light_models_import(path):
    graph = import_model(path)
    verify(graph)
    (out,) = graph.outputs
    assert [graph.extent(d) for d in out.axes][:2] == [1, 1000]
    assert all(n.origin for n in walk_nodes(graph.nodes))


def test_convolutions_are_one_nest_each():
    path = LIGHT / "light_resnet50.onnx"
    convs = sum(n.op_type == "Conv" for n in onnx.load(path).graph.node)
    nests = [n for n in import_model(path).nodes if isinstance(n, Nest)]
    sums = [n for n in nests if n.is_sum]
    # Besides the convolutions: the last pool, the classifier and the softmax.
    assert len(sums) == convs + 3


@pytest.mark.parametrize(
    ("path", "inputs"),
    [(LIGHT / "light_shufflenet.onnx", (1, 3, 224, 224)), (DIGITS, (16, 1, 8, 8))],
    ids=lambda v: v.stem if isinstance(v, Path) else "",
)
def test_results(path, inputs, rng):
    graph = import_model(path, shapes={onnx.load(path).graph.input[0].name: inputs})
    name = graph.inputs[0].name
    x = rng.standard_normal(inputs).astype("f4")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    want = session.run(None, {name: x})[0]
    (got,) = interpret(graph, {name: x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
