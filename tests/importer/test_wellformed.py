"""Models that are in doubt: refused where ONNX Runtime refuses them, else the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret

X = np.array([10, 20], "f4")


def model(nodes: list[NodeProto], *tensors: TensorProto, domains: dict[str, int]) -> ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    imports = [helper.make_opsetid(d, v) for d, v in {"": 21, **domains}.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def named(*values: float, dtype: str = "f4") -> TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), "w")


def sum_of(*tensors: TensorProto) -> ModelProto:
    return model([helper.make_node("Add", ["x", "w"], ["y"])], *tensors, domains={})


def in_branch(*tensors: TensorProto) -> ModelProto:
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])
    add = helper.make_node("Add", ["x", "w"], ["z"])
    body = helper.make_graph([add], "b", [], [result], tensors)
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return model([node], numpy_helper.from_array(np.array(True), "c"), domains={})


def of_domain(domain: str, version: int, op: str = "Neg", where: str = "") -> ModelProto:
    return model([helper.make_node(op, ["x"], ["y"], domain=where)], domains={domain: version})


def called(version: int, inside: dict[str, int]) -> ModelProto:
    made = model([helper.make_node("F", ["x"], ["y"], domain="acme")], domains={"acme": version})
    imports = [helper.make_opsetid(d, v) for d, v in {"": 21, **inside}.items()]
    body = [helper.make_node("Neg", ["a"], ["r"])]
    made.functions.append(helper.make_function("acme", "F", ["a"], ["r"], body, imports))
    return made


TAKEN = {
    "an initializer twice": sum_of(named(1, 2), named(1, 2)),
    "an initializer with other elements": sum_of(named(1, 2), named(3, 4), named(5, 6)),
    "in a branch, one that is outside, too": in_branch(named(1, 2)),
    "a domain without use, of version 0": of_domain("acme", 0),
    "a domain without use, of version -1": of_domain("com.microsoft", -1),
    "a domain of functions, of version 0": called(0, {}),
}
REFUSED = {
    "other shapes": (sum_of(named(1, 2), named(5)), r"'w' .* twice, of the shapes \[2\] and \[1\]"),
    "other types": (
        sum_of(named(1, 2), named(5, 6, dtype="i8")),
        "'w' .* twice, of the types FLOAT and INT64",
    ),
    "in a branch": (in_branch(named(1, 2), named(5, 6)), "'w' is an initializer of .* twice"),
    "a domain with use, of version 0": (
        of_domain("com.microsoft", 0, "Gelu", "com.microsoft"),
        "version 0 of the operators of 'com.microsoft'; there are versions 1 to .* again$",
    ),
    "a domain in a function, of version 0": (
        called(1, {"acme": 0}),
        "the function 'F' uses version 0 of the operators of 'acme'; there are versions 1 to",
    ),
    "ONNX's own of version 0": (of_domain("", 0), "version 0 .* 'ai.onnx'; rutc knows opsets 1 to"),
}


def session(made: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("name", TAKEN)
def test_what_onnx_runtime_takes(name: str, tmp_path: Path) -> None:
    (wanted,) = session(TAKEN[name]).run(None, {"x": X})
    onnx.save(TAKEN[name], tmp_path / "m.onnx")
    found = interpret(import_model(tmp_path / "m.onnx"), {"x": X})["y"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_runtime_refuses(name: str, tmp_path: Path) -> None:
    made, words = REFUSED[name]
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        session(made)
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=words):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("nodes", [[], [helper.make_node("Neg", ["x"], ["y"])]])
def test_what_computes_nothing_is_refused(nodes: list[NodeProto], tmp_path: Path) -> None:
    """ONNX Runtime loads it, and refuses every run."""
    made = model(nodes, domains={})
    del made.graph.output[:]
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(UserError, match="the graph has no outputs"):
        import_model(tmp_path / "m.onnx")


def test_an_input_without_a_shape_needs_one(tmp_path):
    made = model([helper.make_node("Relu", ["x"], ["y"])], domains={})
    made.graph.input[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    with pytest.raises(UserError, match=r"'x' has no declared shape; give one, with --shape x="):
        import_model(path)
    assert interpret(import_model(path, shapes={"x": [2]}), {"x": -X})["y"].tolist() == [0, 0]


NAN = float("nan")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("y = Clip (x, n, h)", [NAN] * 4),
        ("y = Clip (x, l, n)", [NAN] * 4),
        ("y = Hardmax (x)", [0, 1, 0, 0]),
    ],
)
def test_nan_counts_as_in_the_text_and_not_as_in_onnx_runtime(source, wanted, tmp_path):
    """Clip is Min(max, Max(input, min)); the first NaN is the maximum."""
    made = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4] x, float n, float l, float h) => (float[4] y) {{ {source} }}""")
    onnx.save(made, tmp_path / "m.onnx")
    given = dict(zip("xnlh", map(np.float32, ([1, NAN, 3, NAN], NAN, 0, 2)), strict=True))
    given = {name: np.asarray(value) for name, value in given.items()}
    found = interpret(import_model(tmp_path / "m.onnx"), given)["y"]
    np.testing.assert_array_equal(found, np.float32(wanted))
    (theirs,) = ReferenceEvaluator(made).run(None, given)
    np.testing.assert_array_equal(found, theirs)


def test_an_extent_of_zero_is_declared(tmp_path: Path) -> None:
    """It is no size that a run decides, as -1 is in some exporters' models."""
    for declared, symbols in ((0, set()), (-1, {"x_0"})):
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [declared, 4]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
        onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
        found = import_model(tmp_path / "m.onnx")
        assert set(dict(found.symbols)) == symbols
        assert interpret(found, {"x": np.ones((0, 4), "f4")})["y"].shape == (0, 4)
