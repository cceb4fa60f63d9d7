"""Files that are no acceptable model, and requests that contradict the model."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.reading import proto
from rutc.importer.reading.proto import load, subgraphs
from rutc.tensor_ir import Const, Data

X = np.zeros((2, 3), "f4")


@pytest.fixture
def product(make_node, make_model, rng):
    """x @ w with w a constant of 3 x 300."""
    weights = {"w": rng.standard_normal((3, 300)).astype("f4")}
    return make_model([make_node("MatMul", ["x", "w"])], {"x": X}, ["y"], weights)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a", b"\x00" * 64])
def test_no_model(content, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"m\.onnx"):
        import_model(path)


def test_missing_directory_truncated(tmp_path, product):
    with pytest.raises(UserError, match="no such file"):
        import_model(tmp_path / "none.onnx")
    with pytest.raises(UserError, match="directory"):
        import_model(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(product.SerializeToString()[:-100])
    with pytest.raises(UserError, match="truncated"):
        import_model(path)


def test_the_two_names_of_the_standard_s_domain(tmp_path, make_node):
    """Read, both are the empty one: of nodes in graphs and functions, and of opsets, said once."""
    made = [make_node("Exp", ["x"], ["z"], domain="ai.onnx"), make_node("Own", ["z"], domain="own")]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, X.shape)
    held = {f"{k}_branch": helper.make_graph(made[:1], k, [], [z]) for k in ("then", "else")}
    nodes = [make_node("If", ["c"], ["a"], domain="ai.onnx", **held), *made]
    opsets = [helper.make_opsetid(name, 21) for name in ("ai.onnx", "")]
    body = [make_node("Neg", ["a"], ["b"], domain="ai.onnx")]
    own = helper.make_function("own", "Own", ["a"], ["b"], body, opsets)
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2]), c], [z])
    imports = [*opsets, helper.make_opsetid("own", 1)]
    whole = helper.make_model(graph, opset_imports=imports, functions=[own], ir_version=10)
    onnx.save(whole, tmp_path / "m.onnx")
    read = load(tmp_path / "m.onnx")
    (function,) = read.functions
    inner = [n for g in subgraphs(read.graph)[1:] for n in g.node]
    assert [n.domain for n in (*read.graph.node, *inner, *function.node)] == [
        *("", "", "own"),
        *("", ""),
        "",
    ]
    assert [(o.domain, o.version) for o in read.opset_import] == [("", 21), ("own", 1)]
    assert [(o.domain, o.version) for o in function.opset_import] == [("", 21)]


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_malformed_node_is_told_under_both_names(domain, tmp_path, make_node, make_model):
    """EyeLike is of matrices."""
    made = make_model([make_node("EyeLike", ["x"])], {"x": X[0]}, ["y"], {})
    made.graph.node[0].domain = made.opset_import[0].domain = domain
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"EyeLike .* malformed"):
        import_model(tmp_path / "m.onnx")


def test_data_that_does_not_fit(tmp_path, product):
    product.graph.initializer[0].raw_data = b"1234"
    onnx.save(product, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"'w'.*4 bytes"):
        import_model(tmp_path / "m.onnx")


def external(product, path, **fields):
    tensor = product.graph.initializer[0]
    data = tensor.raw_data
    (path.parent / "w.bin").write_bytes(data)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **fields}.items():
        tensor.external_data.add(key=key, value=str(value))
    tensor.ClearField("raw_data")
    path.write_bytes(product.SerializeToString())
    return data


def test_external_data_is_mapped(tmp_path, product):
    data = external(product, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    (const,) = [n for n in graph.nodes if isinstance(n, Const)]
    assert const.data.array.tobytes() == data
    base = const.data.array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"location": "../w.bin"}, "leaves"),
        ({"location": "/etc/passwd"}, "absolute"),
        ({"location": "C:\\w.bin"}, "absolute"),
        ({"location": "sub/../../w.bin"}, "leaves"),
        ({"location": "none.bin"}, "missing"),
        ({"location": ""}, "no file"),
        ({"offset": 8}, "outside"),
        ({"offset": -4}, "outside"),
        ({"length": 4}, "4 bytes"),
        ({"length": "3_600"}, "bad"),
        ({"offset": "\u0660"}, "bad"),
    ],
)
def test_external_data_refused(fields, why, tmp_path, product):
    external(product, tmp_path / "m.onnx", **fields)
    with pytest.raises(UserError, match=f"'w'.*{why}"):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("size", [1 << 30, 1 << 40])
def test_large_files_that_are_no_model_are_not_read(size, tmp_path):
    path = tmp_path / "m.onnx"
    with path.open("wb") as stream:
        stream.truncate(size)
    with pytest.raises(UserError, match="not an ONNX model"):
        load(path)


def test_devices_without_end_are_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(proto, "MOST_BYTES", 1 << 16)
    path = tmp_path / "m.onnx"
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not an ONNX model"):
        load(path)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_external_links_refused(link, tmp_path, product):
    external(product, tmp_path / "m.onnx")
    (tmp_path / "w.bin").rename(tmp_path / "other.bin")
    link(tmp_path / "other.bin", tmp_path / "w.bin")
    with pytest.raises(UserError, match="link"):
        import_model(tmp_path / "m.onnx")


def test_all_unsupported_operators_are_listed(tmp_path, make_node, make_model):
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first", domain="acme"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="second", domain="acme"),
        helper.make_node("Twiddle", ["b"], ["y"], name="third", domain="acme"),
    ]
    model = make_model(nodes, {"x": X}, ["y"], {})
    model.opset_import.append(helper.make_opsetid("acme", 1))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError) as e:
        import_model(tmp_path / "m.onnx")
    text = str(e.value)
    assert "acme.Frobnicate (2): first, second" in text
    assert "acme.Twiddle (1): third" in text
    assert "ORT_ENABLE_EXTENDED" not in text


def test_models_that_were_laid_out_for_one_processor_say_what_to_compile(tmp_path, make_model):
    """What ONNX Runtime saves with all of its optimisations has weights in blocks."""
    domain = "com.microsoft.nchwc"
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=domain),
        helper.make_node("Conv", ["a", "w"], ["y"], domain=domain),
    ]
    model = make_model(
        nodes, {"x": np.zeros((1, 16, 4, 4), "f4")}, ["y"], {"w": np.zeros((16, 16, 3, 3), "f4")}
    )
    model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"nchwc\.Conv(.|\n)*at most ORT_ENABLE_EXTENDED"):
        import_model(tmp_path / "m.onnx")


def test_operator_errors_name_node_and_shapes(tmp_path, make_node, make_model):
    weights = {"w": np.zeros((4, 5), "f4")}
    model = make_model([make_node("MatMul", ["x", "w"])], {"x": X}, ["y"], weights)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"MatMul.*MatMul_y.*f32\[2, 3\].*f32\[4, 5\]"):
        import_model(tmp_path / "m.onnx")


@pytest.fixture
def symbolic(tmp_path, make_node):
    """y = relu(x) with x of [batch, 3]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([make_node("Relu", ["x"])], "g", [x], [y])
    path = tmp_path / "symbolic.onnx"
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_sizes_can_be_fixed(symbolic):
    assert [s for s, _ in import_model(symbolic).symbols] == ["batch"]
    for fixed in ({"shapes": {"x": (7, 3)}}, {"dims": {"batch": 7}}):
        graph = import_model(symbolic, **fixed)
        assert not graph.symbols
        assert [graph.extent(d) for d in graph.outputs[0].axes] == [7, 3]


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"shapes": {"x": (7, 4)}}, r"'x'.*\[batch, 3\].*\[7, 4\]"),
        ({"shapes": {"x": (7,)}}, r"'x'.*\[batch, 3\].*\[7\]"),
        ({"shapes": {"x": (-1, 3)}}, "negative"),
        ({"shapes": {"z": (7, 3)}}, "'z'.*no input"),
        ({"dims": {"seq": 7}}, "'seq'.*batch"),
        ({"shapes": {"x": (7, 3)}, "dims": {"batch": 8}}, "'batch'.*7.*8"),
    ],
)
def test_contradictions(fixed, message, symbolic):
    with pytest.raises(UserError, match=message):
        import_model(symbolic, **fixed)


MALFORMED = [
    ("Softmax", {"axis": 1.5}, "axis.*must be of type INT"),
    ("Softmax", {"axis": 7}, "axis 7 is out of range"),
    ("Softmax", {"bogus": 7}, "'bogus'"),
    ("MaxPool", {}, "kernel_shape"),
    ("Transpose", {"perm": [0, 0]}, "permutation"),
    ("DepthToSpace", {"blocksize": 2}, "rank 4"),
    ("Cast", {"to": 99}, "99"),
    ("Einsum", {"equation": "ij->k"}, "output letter"),
]


@pytest.mark.parametrize(("op", "attributes", "message"), MALFORMED)
def test_malformed_nodes(op, attributes, message, tmp_path, make_node, make_model):
    model = make_model([make_node(op, ["x"], **attributes)], {"x": X}, ["y"], {})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("op", "constant", "message"),
    [
        ("Reshape", [7, -1], "cannot be reshaped"),
        ("Reshape", [-1, -1], "more than one -1"),
        ("Expand", [-5, 3], "broadcast"),
        ("Tile", [-5, 3], "extent -10"),
        ("Tile", [1 << 60, 1 << 60], "too large"),
        ("MatMul", [1, 2, 3], "types.*differ"),
    ],
)
def test_operands_that_do_not_fit(op, constant, message, tmp_path, make_node, make_model):
    constants = {"c": np.array(constant)}
    model = make_model([make_node(op, ["x", "c"])], {"x": X}, ["y"], constants)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "m.onnx")


def test_graphs_that_do_not_connect(tmp_path, make_node, make_model):
    cases = [
        ([make_node("Relu", ["q"])], "'q'.*nothing computes"),
        ([make_node("Relu", ["x"], ["z"])], "output 'y'"),
        ([make_node("Relu", ["x"]), make_node("Neg", ["x"])], "more than one node"),
    ]
    for nodes, message in cases:
        onnx.save(make_model(nodes, {"x": X}, ["y"], {}), tmp_path / "m.onnx")
        with pytest.raises(UserError, match=message):
            import_model(tmp_path / "m.onnx")


def test_inputs_can_be_given_values(tmp_path, make_node, make_model):
    axes = np.array([1])
    node = make_node("ReduceSum", ["x", "s"], keepdims=0)
    model = make_model([node], {"x": X, "s": axes}, ["y"], {})
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert len(import_model(path).symbols) > 0
    graph = import_model(path, values={"s": axes})
    assert [(i.name, i.fixed) for i in graph.inputs] == [("x", None), ("s", Data(axes))]
    assert [graph.extent(d) for d in graph.outputs[0].axes] == [2]
    assert import_model(path, values={"s": axes.astype("f4")}) == graph
    for wrong in ({"t": axes}, {"s": axes[:0]}, {"s": axes + 0.5}, {"s": axes > 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            import_model(path, values=wrong)
