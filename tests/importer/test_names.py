"""Symbolic sizes, folding at import, and the names of dims and values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.importer import import_model
from rutc.tensor_ir import Const, Input, Nest
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests.close import assert_close


def save(path, nodes, inputs, outputs, constants=()):
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    data = [onnx.numpy_helper.from_array(a, n) for n, a in constants]
    graph = helper.make_graph(nodes, "g", infos, results, data)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.fixture
def heads(tmp_path, make_node):
    """Splits x[batch, seq, 12] into 3 heads by shape arithmetic, and merges them again."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["batch"]),
        make_node("Gather", ["shape", "one"], ["seq"]),
        make_node("Unsqueeze", ["batch", "axes"], ["b"]),
        make_node("Unsqueeze", ["seq", "axes"], ["s"]),
        make_node("Concat", ["b", "s", "heads"], ["split"], axis=0),
        make_node("Reshape", ["x", "split"], ["parts"]),
        make_node("Transpose", ["parts"], ["turned"], perm=[0, 2, 1, 3]),
        make_node("Exp", ["turned"], ["raised"]),
        make_node("Transpose", ["raised"], ["back"], perm=[0, 2, 1, 3]),
        make_node("Mul", ["b", "s"], ["rows"]),
        make_node("Concat", ["rows", "rest"], ["flat"], axis=0),
        make_node("Reshape", ["back", "flat"], ["y"]),
    ]
    constants = [
        ("zero", np.array(0)),
        ("one", np.array(1)),
        ("axes", np.array([0])),
        ("heads", np.array([3, 4])),
        ("rest", np.array([-1])),
    ]
    inputs = {"x": (TensorProto.FLOAT, ["batch", "seq", 12])}
    return save(tmp_path / "heads.onnx", nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("dims", [{}, {"seq": 5}, {"batch": 1, "seq": 5}])
def test_shape_arithmetic_folds(dims, heads, rng):
    graph = import_model(heads, dims=dims)
    verify(graph)
    assert not any(isinstance(n, Const) for n in graph.nodes)
    batch = dims.get("batch", 2)
    x = rng.standard_normal((batch, 5, 12)).astype("f4")
    got = interpret(graph, {"x": x})["y"]
    assert_close(got, np.exp(x).reshape(-1, 12), reduction=16)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_sizes_wrap_in_types_that_do_not_hold_them(kind, tmp_path, make_node):
    """i64(`kind`(n - 300)) for n rows; of a type without a sign, what is below 0 is large."""
    to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [
        make_node("Shape", ["x"], ["n"]),
        make_node("Sub", ["n", "k"], ["less"]),
        make_node("Cast", ["less"], ["narrow"], to=to),
        make_node("Cast", ["narrow"], to=TensorProto.INT64),
    ]
    inputs = {"x": (TensorProto.FLOAT, ["n"])}
    constants = [("k", np.array([300]))]
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y"], constants))
    for n in (0, 1, 299, 300, 428, 431, 601):
        got = interpret(graph, {"x": np.zeros(n, "f4")})["y"]
        np.testing.assert_array_equal(got, np.array([n - 300]).astype(kind).astype(np.int64))


def test_repeats_that_are_made_of_known_operands_are_known(tmp_path, make_node, rng):
    """As torch.repeat_interleave is exported, and an extent that is a root."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "one"], ["count"]),
        make_node("Unsqueeze", ["count", "first"], ["counts"]),
        make_node("Concat", ["ones", "counts"], ["off_on"], axis=0),
        make_node("OneHot", ["first_axis", "rank", "off_on"], ["hot"]),
        make_node("Reshape", ["hot", "flat"], ["repeats"]),
        make_node("Tile", ["x", "repeats"], ["tiled"]),
        make_node("Pow", ["nine", "half"], ["root"]),
        make_node("Cast", ["root"], ["three"], to=TensorProto.INT64),
        make_node("Unsqueeze", ["three", "first"], ["threes"]),
        make_node("Concat", ["minus", "threes"], ["split"], axis=0),
        make_node("Reshape", ["tiled", "split"], ["y"]),
    ]
    constants = [
        ("one", np.array(1)),
        ("first", np.array([0])),
        ("ones", np.array([1])),
        ("first_axis", np.array([-2])),
        ("rank", np.array(2)),
        ("flat", np.array([-1])),
        ("nine", np.array(9, np.float32)),
        ("half", np.array(0.5, np.float32)),
        ("minus", np.array([-1])),
    ]
    inputs = {"x": (TensorProto.FLOAT, [6, "n"])}
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y"], constants))
    verify(graph)
    assert [s for s, _ in graph.symbols] == ["n"]
    x = rng.standard_normal((6, 4)).astype("f4")
    got = interpret(graph, {"x": x})["y"]
    assert np.array_equal(got, np.tile(x, (4, 1)).reshape(-1, 3))


def test_names_are_deterministic_and_readable(heads):
    first, second = import_model(heads), import_model(heads)
    assert first == second
    assert str(first) == str(second)
    assert [s for s, _ in first.symbols] == ["batch", "seq"]
    values = [v for v in first.values if not isinstance(v, Input)]
    assert {"x", "parts", "raised", "y"} <= set(values)
    fixed = import_model(heads, dims={"batch": 2, "seq": 5})
    assert fixed.inputs[0].axes[:2] == ("batch", "seq")


def test_residual_block_shares_dims(tmp_path, make_node, rng):
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        make_node("Add", ["a", "x"], ["y"]),
    ]
    weights = [("w", rng.standard_normal((8, 8, 3, 3)).astype("f4"))]
    inputs = {"x": (TensorProto.FLOAT, [2, 8, 5, 6])}
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y"], weights))
    verify(graph)
    extents = sorted(graph.extent(d) for d, _ in graph.dims)
    assert extents == [2, 3, 3, 5, 6, 8, 8]


def test_axes_of_the_interface_and_units(tmp_path, make_node):
    nodes = [make_node("Softmax", ["x"], axis=1)]
    inputs = {"x": (TensorProto.FLOAT, [1, 10, 1, 1])}
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y"]))
    verify(graph)
    (out,) = graph.outputs
    assert [graph.extent(d) for d in out.axes] == [1, 10, 1, 1]
    inner = [n for n in graph.nodes if isinstance(n, Nest) and n.out.name != out.value]
    assert all(graph.extent(d) == 10 for n in inner for d in n.dims)


def test_outputs_that_are_inputs_or_constants(tmp_path, make_node):
    nodes = [make_node("Identity", ["x"], ["y"]), make_node("Identity", ["x"], ["z"])]
    nodes.append(make_node("Identity", ["k"], ["w"]))
    inputs = {"x": (TensorProto.FLOAT, [2, 1])}
    constants = [("k", np.array([[1.5], [2.5]], "f4"))]
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y", "z", "w"], constants))
    verify(graph)
    x = np.array([[1.0], [2.0]], "f4")
    got = interpret(graph, {"x": x})
    np.testing.assert_array_equal(got["y"], x)
    np.testing.assert_array_equal(got["z"], x)
    np.testing.assert_array_equal(got["w"], constants[0][1])


def test_weights_are_not_copied_and_unused_ones_dropped(tmp_path, make_node, rng):
    nodes = [make_node("MatMul", ["x", "w"]), make_node("Exp", ["x"], ["unused"])]
    weights = [
        ("w", rng.standard_normal((30, 40)).astype("f4")),
        ("idle", rng.standard_normal((30, 40)).astype("f4")),
    ]
    inputs = {"x": (TensorProto.FLOAT, [2, 30])}
    graph = import_model(save(tmp_path / "m.onnx", nodes, inputs, ["y"], weights))
    names = [n.out.name for n in graph.nodes if isinstance(n, Const)]
    assert names == ["w"]
    assert [n.origin for n in graph.nodes if isinstance(n, Nest)] == [("MatMul_y",)]


def test_old_models_have_weights_as_inputs(tmp_path, make_node, make_model, rng):
    w = rng.standard_normal((3, 4)).astype("f4")
    model = make_model([make_node("MatMul", ["x", "w"])], {"x": w.T, "w": w}, ["y"], {"w": w}, 8)
    model.ir_version = 3
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert [i.name for i in graph.inputs] == ["x"]


def test_model_local_functions_are_expanded(tmp_path, make_node, make_model, rng):
    opsets = [helper.make_opsetid("", 21)]
    body = [make_node("Exp", ["a"], ["e"]), make_node("Neg", ["e"], ["r"])]
    function = helper.make_function("acme", "Twist", ["a"], ["r"], body, opsets)
    call = helper.make_node("Twist", ["x"], ["y"], domain="acme")
    x = rng.standard_normal((2, 3)).astype("f4")
    model = make_model([call], {"x": x}, ["y"], {})
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    onnx.save(model, tmp_path / "m.onnx")
    got = interpret(import_model(tmp_path / "m.onnx"), {"x": x})["y"]
    assert_close(got, -np.exp(x), reduction=16)


@pytest.mark.parametrize(
    "sizes",
    [
        ("a b", "a.b"),
        ("p.n", "p_n"),
        ("日本", "中国"),
        ("é", "è"),
        ("rows日", "rows中"),
        ("n+m", "n-m"),
    ],
)
def test_sizes_of_other_names_are_others(tmp_path, make_node, sizes):
    """Whatever is left of their names in those of symbols."""
    inputs = {n: (TensorProto.FLOAT, [s, 4]) for n, s in zip("xy", sizes, strict=True)}
    nodes = [make_node("Concat", ["x", "y"], ["z"], axis=0)]
    path = save(tmp_path / "m.onnx", nodes, inputs, ["z"])
    graph = import_model(path, dims={sizes[0]: (1, 9)})
    assert len({symbol for symbol, _ in graph.symbols}) == 2
    assert [most for _, (_, most) in graph.symbols].count(9) == 1
    x, y = np.ones((3, 4), np.float32), np.zeros((5, 4), np.float32)
    np.testing.assert_array_equal(interpret(graph, {"x": x, "y": y})["z"], np.concatenate([x, y]))


def test_a_size_keeps_a_name_that_a_symbol_can_have(tmp_path, make_node):
    inputs = {n: (TensorProto.FLOAT, [s, 4]) for n, s in (("x", "p.n"), ("y", "p_n"))}
    path = save(
        tmp_path / "m.onnx", [make_node("Concat", ["x", "y"], ["z"], axis=0)], inputs, ["z"]
    )
    graph = import_model(path, dims={"p_n": (2, 3)})
    assert tuple(graph.ranges["p_n"]) == (2, 3)


def test_a_size_has_one_name_in_any_script(tmp_path, make_node):
    inputs = {n: (TensorProto.FLOAT, ["长度", 4]) for n in "xy"}
    path = save(tmp_path / "m.onnx", [make_node("Add", ["x", "y"], ["z"])], inputs, ["z"])
    assert len(import_model(path).symbols) == 1
    assert not import_model(path, dims={"长度": 7}).symbols


def test_a_size_without_a_name_is_none_that_has_one(tmp_path, make_node):
    """Not that of another input, nor of one whose name is spelled alike in symbols."""
    inputs = {name: (TensorProto.FLOAT, [None]) for name in ("x", "x.1", "x_1")}
    inputs["y"] = (TensorProto.FLOAT, ["x_0"])
    node = make_node("Concat", list(inputs), ["z"], axis=0)
    graph = import_model(save(tmp_path / "m.onnx", [node], inputs, ["z"]))
    assert [name for name, _ in graph.symbols] == ["x_0_2", "x_1_0", "x_1_0_2", "x_0"]
    given = {name: np.arange(n, dtype=np.float32) for n, name in enumerate(inputs, 2)}
    assert interpret(graph, given)["z"].tolist() == np.concatenate([*given.values()]).tolist()
