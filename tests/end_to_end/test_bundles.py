"""Models whose inputs and outputs are sequences, optionals and maps, compiled and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, TypeProto, helper

import rutc
from rutc.importer import import_model
from rutc.runtime.errors import ModelError
from rutc.tensor_ir.textual.parse import parse
from rutc.verify import verify_model

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 2])
SEQUENCE = helper.make_sequence_type_proto(FLOATS)


def save(path: Path, nodes, inputs: dict[str, TypeProto], outputs: list[str]) -> Path:
    """A model of these nodes."""
    infos = [helper.make_value_info(n, t) for n, t in inputs.items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph(nodes, "g", infos, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def compiled(path: Path, **options) -> rutc.InferenceSession:
    """The compiled model's session."""
    rutc.compile(path, path.with_suffix(".so"), verify=False, **options)
    return rutc.load(path.with_suffix(".so"))


def test_sequences(tmp_path):
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x"], ["longer"]),
        helper.make_node("ConcatFromSequence", ["longer"], ["y"], axis=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"s": SEQUENCE, "x": FLOATS}, ["longer", "y"])
    shapes = {"s[0]": (3, 2), "s[1]": (1, 2), "x": (2, 2)}
    parts = [np.arange(2 * n, dtype="f4").reshape(n, 2) for n in (3, 1)]
    feed = {"s": parts, "x": np.ones((2, 2), "f4")}
    with compiled(path, shapes=shapes) as session:
        assert [(i.name, i.type) for i in session.get_inputs()] == [
            ("s", "seq(tensor(float))"),
            ("x", "tensor(float)"),
        ]
        longer, y = session.run(None, feed)
        (again,) = session.run(["y"], feed)
        with pytest.raises(ModelError, match="list of 2 tensors, not of 1"):
            session.run(None, {**feed, "s": parts[:1]})
        with pytest.raises(ModelError, match="must be a list"):
            session.run(None, {**feed, "s": parts[0]})
        with pytest.raises(ModelError, match="missing input 's'"):
            session.run(None, {"x": feed["x"]})
    want = onnxruntime.InferenceSession(path).run(None, feed)
    for mine, theirs in zip(longer, want[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(y, want[1])
    np.testing.assert_array_equal(again, y)


@pytest.mark.parametrize("length", [3, (1, 4), None])
def test_the_length_of_a_sequence(length, tmp_path):
    node = helper.make_node("SequenceLength", ["s"], ["y"])
    path = save(tmp_path / "m.onnx", [node], {"s": SEQUENCE}, ["y"])
    parts = [np.zeros((k, 2), "f4") for k in range(5)]
    with compiled(path, dims={} if length is None else {"s": length}) as session:
        assert session.run(None, {"s": parts[1:4]})[0] == 3
        if length is None:
            assert session.run(None, {"s": []})[0] == 0
            return
        with pytest.raises(ModelError, match=r"list of 3 tensors|compiled for s from 1 to 4"):
            session.run(None, {"s": parts})


def test_the_interface_survives_as_text(tmp_path):
    node = helper.make_node("Identity", ["s"], ["t"])
    path = save(tmp_path / "m.onnx", [node], {"s": SEQUENCE}, ["t"])
    graph = import_model(path, dims={"s": 2})
    text = str(graph)
    assert 'interface input "s" = sequence("s[0]", "s[1]")' in text
    assert parse(text) == graph


def test_optionals(tmp_path):
    optional = helper.make_optional_type_proto(FLOATS)
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("Identity", ["o"], ["same"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"o": optional}, ["has", "same"])
    x = np.ones((3, 2), "f4")
    with compiled(path) as session:
        for value in (x, None):
            has, same = session.run(None, {"o": value})
            assert bool(has) == (value is not None)
            np.testing.assert_array_equal(same, value)
    with compiled(path, shapes={"o": (3, 2)}) as session:
        has, same = session.run(None, {"o": x})
        assert has
        np.testing.assert_array_equal(same, x)
        with pytest.raises(ModelError, match="must not be None"):
            session.run(None, {"o": None})
    with compiled(path, dims={"o?": 0}) as session:
        has, same = session.run(None, {"o": None})
        assert not has
        assert same is None


def test_sequence_map(tmp_path):
    inner = [
        helper.make_node("Add", ["a", "x"], ["sum"]),
        helper.make_node("Shape", ["a"], ["shape"]),
    ]
    infos = [helper.make_value_info(n, FLOATS) for n in ("a", "b")]
    results = [onnx.ValueInfoProto(name=n) for n in ("sum", "shape")]
    body = helper.make_graph(inner, "body", infos, results)
    node = helper.make_node("SequenceMap", ["s", "s"], ["t", "shapes"], body=body)
    inputs = {"s": SEQUENCE, "x": helper.make_tensor_type_proto(TensorProto.FLOAT, [])}
    path = save(tmp_path / "m.onnx", [node], inputs, ["t", "shapes"])
    shapes = {"s[0]": (3, 2), "s[1]": (1, 2)}
    parts = [np.ones((n, 2), "f4") for n in (3, 1)]
    with compiled(path, shapes=shapes) as session:
        t, extents = session.run(None, {"s": parts, "x": np.array(2, "f4")})
    assert [e.tolist() for e in extents] == [[3, 2], [1, 2]]
    assert [part.sum() for part in t] == [18, 6]


@pytest.mark.parametrize(
    "keys", [{"classlabels_strings": ["a", "b"]}, {"classlabels_int64s": [7, 3]}]
)
def test_zip_map(keys, tmp_path):
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **keys)
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [3, 2])
    path = save(tmp_path / "m.onnx", [node], {"x": kind}, ["y"])
    x = np.arange(6, dtype="f4").reshape(3, 2)
    with compiled(path) as session:
        (y,) = session.run(None, {"x": x})
        kind_of = "string" if "classlabels_strings" in keys else "int64"
        assert session.get_outputs()[0].type == f"seq(map({kind_of},tensor(float)))"
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    assert y == want


def test_maps_as_inputs(tmp_path):
    entries = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    by_name = TypeProto()
    by_name.map_type.key_type = TensorProto.STRING
    by_name.map_type.value_type.CopyFrom(entries)
    node = helper.make_node(
        "DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]
    )
    path = save(tmp_path / "m.onnx", [node], {"m": by_name}, ["y"])
    feed = {"m": {"c": 2.0, "a": 1.0}}
    with compiled(path) as session:
        (y,) = session.run(None, feed)
        with pytest.raises(ModelError, match="the key 'z', which is unknown"):
            session.run(None, {"m": {"z": 1.0}})
    (want,) = onnxruntime.InferenceSession(path).run(None, feed)
    np.testing.assert_array_equal(y, want)
    found = verify_model(path, path.with_suffix(".so"), feed)
    assert found.passed
    assert found.with_truth
    by_number = TypeProto()
    by_number.map_type.key_type = TensorProto.INT64
    by_number.map_type.value_type.CopyFrom(entries)
    for form, options in (("DENSE", {"dims": {"m": 2}}), ("SPARSE", {})):
        how = {"cast_to": "TO_INT64", "map_form": form, "max_map": 5}
        node = helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", **how)
        path = save(tmp_path / f"{form}.onnx", [node], {"m": by_number}, ["y"])
        numbers = {"m": {3: 2.0, 1: 7.0}}
        with compiled(path, **options) as session:
            (y,) = session.run(None, numbers)
        (want,) = onnxruntime.InferenceSession(path).run(None, numbers)
        np.testing.assert_array_equal(y, want)
        found = verify_model(path, path.with_suffix(".so"), numbers)
        assert found.passed
        assert found.with_truth


@pytest.mark.parametrize("position", [-3, -1, 0, 1, 2])
def test_positions_that_the_run_learns(position, tmp_path):
    whole = helper.make_tensor_type_proto(TensorProto.INT64, [])
    fixed = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b", "c"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["one"]),
        helper.make_node("SequenceErase", ["s", "p"], ["fewer"]),
        helper.make_node("SequenceInsert", ["s", "d", "p"], ["more"]),
        helper.make_node("ConcatFromSequence", ["fewer"], ["left"], axis=0, new_axis=1),
        helper.make_node("ConcatFromSequence", ["more"], ["all"], axis=0, new_axis=1),
    ]
    inputs = {**dict.fromkeys("abcd", fixed), "p": whole}
    path = save(tmp_path / "m.onnx", nodes, inputs, ["one", "left", "all"])
    feed = {n: np.array([i, i + 10], "f4") for i, n in enumerate("abcd")}
    feed["p"] = np.array(position)
    with compiled(path) as session:
        got = session.run(None, feed)
        with pytest.raises(ModelError, match="out of range for a sequence of 3"):
            session.run(None, {**feed, "p": np.array(3)})
    want = onnxruntime.InferenceSession(path).run(None, feed)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
