"""Names of values in models of old opsets: none is mistaken for what the conversion makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, parser

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.opsets.scopes import name_values, number_values
from rutc.importer.reading.proto import subgraphs
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close

BRANCHES = """<ir_version: 6, opset_import: ["" : {opset}]>
    g (bool c, float[2, 3] x, float[2] q) => (float[2, 3] y, float[2] z)
    {{ {before} y, z = If (c) <
        then_branch = t () => (float[2, 3] h, float[2] r) {{ {inner} }},
        else_branch = e () => (float[2, 3] h, float[2] r) {{ {other} }}> }}"""
OTHER = "h = Neg (x) r = Neg (q)"
IN_BRANCHES = {
    "a value of the outer graph is read": (
        "h_shape = Neg (q)",
        "h = Hardmax (x) r = Exp (h_shape)",
        "h = Neg (x) r = Neg (h_shape)",
    ),
    "a value of the same graph": ("", "h = Hardmax (x) h_shape = Neg (q) r = Exp (h_shape)", OTHER),
    "a value that the converter makes": (
        "h_intermediate = Neg (q)",
        "h = Softmax <axis = 0> (x) r = Exp (h_intermediate)",
        OTHER,
    ),
    "a value of a graph beside it": (
        "",
        "h = Hardmax (x) r = Neg (q)",
        "h_shape = Neg (q) h_rows = Neg (x) h = Hardmax (h_rows) r = Exp (h_shape)",
    ),
    "in the same graph, and read in the nested one": (
        "w_shape = Neg (q) w = Hardmax (x)",
        "h = Softmax <axis = 0> (w) r = Exp (w_shape)",
        "h = Hardmax (w) r = Abs (w_shape)",
    ),
}


def _compare(path: Path, model: ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = interpret(import_model(path), feeds)
    wanted = session.run(None, feeds)
    for output, value in zip(session.get_outputs(), wanted, strict=True):
        assert_close(found[output.name], value, reduction=16, err_msg=output.name)


@pytest.mark.parametrize("name", IN_BRANCHES)
@pytest.mark.parametrize("taken", [True, False])
def test_values_called_like_what_the_conversion_makes(name, taken, tmp_path, rng) -> None:
    before, inner, other = IN_BRANCHES[name]
    source = BRANCHES.format(opset=11, before=before, inner=inner, other=other)
    x, q = rng.standard_normal((2, 3)).astype("f4"), rng.standard_normal(2).astype("f4")
    model = parser.parse_model(source)
    _compare(tmp_path / "m.onnx", model, {"c": np.array(taken), "x": x, "q": q})


def test_an_input_called_like_what_the_conversion_makes(tmp_path, rng) -> None:
    source = """<ir_version: 6, opset_import: ["" : 11]>
        g (float[2, 3] x, float[2] y_shape) => (float[2, 3] y, float[2] z)
        { y = Hardmax (x) z = Neg (y_shape) }"""
    x, q = rng.standard_normal((2, 3)).astype("f4"), rng.standard_normal(2).astype("f4")
    _compare(tmp_path / "m.onnx", parser.parse_model(source), {"x": x, "y_shape": q})


def test_messages_name_nodes_as_the_model_does(tmp_path) -> None:
    source = """<ir_version: 3, opset_import: ["" : 5]>
        g (float[2, 3] x) => (float[2, 3] y) { h = Neg (x) y = Cast <to = "NUMBER"> (h) }"""
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(source).SerializeToString())
    with pytest.raises(UserError, match=r"^Cast \(node 'y'\): the type 'NUMBER' is unknown"):
        import_model(tmp_path / "m.onnx")


def test_numbered_values_get_their_names_again() -> None:
    source = BRANCHES.format(
        opset=11,
        before="a = Neg (x)",
        inner="w = Exp (a) h = Abs (w) r = Neg (q)",
        other="w = Abs (a) h = Neg (w) r = Neg (lost)",
    )
    model = parser.parse_model(source)
    for graph in subgraphs(model.graph):
        for node in graph.node:
            node.name = node.output[0]
    before = ModelProto.FromString(model.SerializeToString())
    had = number_values(model)
    graphs = subgraphs(model.graph)
    made = [o for graph in graphs for node in graph.node for o in node.output]
    assert len({*made}) == len(made) == 9
    assert not {*made} & {*had.values()}
    name_values(model, had)
    assert model == before


def test_attributes_that_name_values(tmp_path) -> None:
    source = """<ir_version: 8, opset_import: ["" : 12, "ai.onnx.preview.training" : 1]>
        g (float[2, 3] x) => (float[2, 3] d, float[2, 3] h)
        { y = Exp (x) h = Hardmax (x)
          d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x) }"""
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(source).SerializeToString())
    x = np.array([[1, 2, 3], [4, 6, 5]], "f4")
    found = interpret(import_model(tmp_path / "m.onnx"), {"x": x})
    assert_close(found["d"], np.exp(x), reduction=16)
    np.testing.assert_array_equal(found["h"], [[0, 0, 1], [0, 1, 0]])
