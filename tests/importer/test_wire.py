"""Models read without their large elements: the same as read with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.proto import array_of, load
from rutc.importer.reading.wire import INSIDE, LEAST_BYTES, without_elements

LARGE = LEAST_BYTES // 4 + 3


def model(*initializers: TensorProto) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Add", ["x", initializers[0].name], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def tensors() -> list[TensorProto]:
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.standard_normal(LARGE).astype("f4"),
        "small": rng.standard_normal(3).astype("f4"),
        "b": rng.integers(0, 200, (2, LEAST_BYTES)).astype("u1"),
        "c": rng.standard_normal((2, LARGE)),
    }
    made = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    packed = TensorProto(name="packed", data_type=TensorProto.INT4, dims=[2, LEAST_BYTES])
    packed.raw_data = bytes(arrays["b"][0])
    listed = helper.make_tensor("listed", TensorProto.FLOAT, [LARGE], arrays["a"])
    return [*made, packed, listed]


def test_elements_are_those_that_protobuf_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(*tensors()), path)
    folder, plain = ModelFolder(tmp_path), ModelFolder(tmp_path)
    small, whole = load(path, folder), onnx.load(path)
    assert small.graph.node == whole.graph.node
    assert small.opset_import == whole.opset_import
    left = [t.name for t in small.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert left == ["a", "b", "c", "packed"]
    for found, expected in zip(small.graph.initializer, whole.graph.initializer, strict=True):
        array = array_of(found, folder)
        assert array.dtype == array_of(expected, plain).dtype
        assert np.array_equal(array, array_of(expected, plain))
    assert folder.used == {}


def test_elements_in_nodes_are_left_where_they_are(tmp_path: Path) -> None:
    t = tensors()[0]
    constant = helper.make_node("Constant", [], ["k"], value=t)
    inner = helper.make_graph([constant], "inner", [], [], [t])
    nodes = [constant, helper.make_node("If", ["c"], ["y"], then_branch=inner, values=[t, t])]
    made = model(tensors()[1])
    made.graph.node.extend(nodes)
    made.functions.append(helper.make_function("acme", "F", [], [], nodes, []))
    onnx.save(made, tmp_path / "m.onnx")
    folder = ModelFolder(tmp_path)
    small = load(tmp_path / "m.onnx", folder)
    assert small.ByteSize() < LEAST_BYTES
    for part in (small.graph, small.functions[0]):
        held = [a for node in part.node for a in node.attribute]
        (branch,) = (a.g for a in held if a.name == "then_branch")
        found = [*branch.initializer, branch.node[0].attribute[0].t]
        for a in held:
            found += [a.t] if a.name == "value" else a.tensors
        assert len(found) == 5
        for tensor in found:
            np.testing.assert_array_equal(array_of(tensor, folder), numpy_helper.to_array(t))


def test_a_tensor_of_an_attribute_that_is_written_twice() -> None:
    t = tensors()[0]
    attribute = _enclosed(b"\x2a", t.SerializeToString())
    attribute += _enclosed(b"\x2a", TensorProto(raw_data=b"abcd", dims=[1]).SerializeToString())
    node = _enclosed(b"\x2a", attribute)
    whole = _enclosed(b"\x3a", _enclosed(b"\x0a", node))
    assert without_elements(memoryview(whole)) is None


def test_a_large_model_is_imported_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "m.onnx"
    onnx.save(model(*tensors()), path)
    (tmp_path / "link.onnx").symlink_to(path)
    (tmp_path / "hard.onnx").hardlink_to(path)
    graphs = [import_model(p) for p in (path, tmp_path / "link.onnx", tmp_path / "hard.onnx")]
    assert len({graph.nodes for graph in graphs}) == 1


def test_data_that_does_not_fit_its_shape(tmp_path: Path) -> None:
    tensor = tensors()[0]
    tensor.dims[0] += 1
    onnx.save(model(tensor), tmp_path / "m.onnx")
    with pytest.raises(UserError, match=rf"'a'.*{4 * LARGE} bytes.*needs {4 * LARGE + 4}"):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "place",
    [
        {"location": INSIDE},
        {"location": INSIDE, "offset": "-8", "length": str(4 * LARGE)},
        {"location": INSIDE, "offset": str(1 << 62), "length": str(4 * LARGE)},
        {"location": INSIDE, "offset": "0", "length": "8"},
        {"location": INSIDE, "kept": "0"},
        {"location": INSIDE, "kept": "-1"},
        {"location": INSIDE, "offset": "9" * 5000, "length": "8"},
    ],
)
def test_a_model_cannot_name_bytes_of_its_own(tmp_path: Path, place: dict[str, str]) -> None:
    tensor = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[LARGE])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    onnx.save(model(tensor), tmp_path / "m.onnx")
    with pytest.raises(UserError, match="'a'"):
        import_model(tmp_path / "m.onnx")


def test_a_model_cannot_name_what_the_import_keeps(tmp_path: Path) -> None:
    """The elements of a large tensor in a node, which are of another type."""
    tensor = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[LARGE])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": INSIDE, "kept": "0"}.items():
        tensor.external_data.add(key=key, value=value)
    numbers = numpy_helper.from_array(np.arange(LARGE, dtype="i4"), "numbers")
    made = model(tensor)
    made.graph.node.append(helper.make_node("Constant", [], ["k"], value=numbers))
    made.graph.node.append(helper.make_node("Cast", ["k"], ["z"], to=TensorProto.FLOAT))
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"'a'.*NUL"):
        import_model(tmp_path / "m.onnx")


def test_what_is_written_twice_is_left_to_protobuf() -> None:
    data = tensors()[0].SerializeToString()
    graph = onnx.GraphProto(initializer=tensors()[:1]).SerializeToString()
    for twice in (data + data, data + b"\x4a\x01a"):
        message = onnx.GraphProto(name="g").SerializeToString() + _enclosed(b"\x2a", twice)
        whole = _enclosed(b"\x3a", message)
        assert without_elements(memoryview(whole)) == whole
    split = _enclosed(b"\x3a", graph) * 2
    found = onnx.load_model_from_string(without_elements(memoryview(split)) or b"")
    places = [{e.key: e.value for e in t.external_data} for t in found.graph.initializer]
    raw = tensors()[0].raw_data
    for place in places:
        offset, length = int(place["offset"]), int(place["length"])
        assert split[offset : offset + length] == raw
    assert len(places) == 2


@given(st.binary(max_size=64), st.integers(0, 400), st.integers(0, 40))
def test_damaged_files_end_in_a_model_or_none(junk: bytes, at: int, removed: int) -> None:
    data = bytearray(model(*tensors()[:2]).SerializeToString())
    data[at : at + removed] = junk
    found = without_elements(memoryview(data))
    assert found is None or isinstance(found, bytes)


def _enclosed(key: bytes, content: bytes) -> bytes:
    size = len(content)
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return key + bytes([*length, size]) + content
