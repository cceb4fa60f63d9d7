"""What free sizes are taken to be commonly: told, or 1 where they are numbers of examples."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.driver.api import compile
from rutc.driver.compiler import Options, compile_model
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.report.arguments import parse_dims
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.indices.ranges import CommonRange, common_size, common_sizes, with_common
from rutc.tensor_ir.textual.parse import parse_index
from rutc.verify.feeding.session_values import session_values

Shapes = Mapping[str, list[str | int]]


def model(folder: Path, shapes: Shapes) -> Path:
    """A model that squares each of its inputs."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    results = [onnx.ValueInfoProto(name=f"{n}_squared") for n in shapes]
    nodes = [helper.make_node("Mul", [n, n], [f"{n}_squared"]) for n in shapes]
    graph = helper.make_graph(nodes, "g", ports, results)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("shapes", "common"),
    [
        ({"x": ["N", 3, "h", "w"]}, {"N": 1, "h": 320, "w": 320}),
        ({"x": [3, "h", "w"], "y": [4, "h", "w"]}, {"h": 320, "w": 320}),
        ({"x": ["N", "h", "w", 1]}, {"N": 1, "h": 320, "w": 320}),
        ({"x": ["N", 3, "h", "h"]}, {"N": 1, "h": 320}),
        ({"x": ["N", "c", "h", "w"]}, {"N": 1, "c": 128, "h": 128, "w": 128}),
        ({"x": ["h", "w"]}, {"h": 1, "w": 128}),
        (
            {"ids": ["n", "seq"], "mask": ["n", 1, "seq", "all"]},
            {"n": 1, "seq": 128, "all": 128},
        ),
        ({"ids": ["n", "seq"], "mask": ["n", "seq"]}, {"n": 1, "seq": 128}),
        ({"ids": ["n", "seq"], "mask": ["seq"]}, {"n": 1, "seq": 128}),
        ({"x": ["batch", "seq"], "state": [2, "batch", 64]}, {"batch": 1, "seq": 128}),
        ({"x": ["seq", "batch_size", 64]}, {"seq": 128, "batch_size": 1}),
        ({"x": ["n", 4], "state": [2, "n", 64]}, {"n": 128}),
        ({"sound": ["samples"]}, {"samples": 128}),
        ({"a": ["n", 4], "b": ["m", 4]}, {"n": 1, "m": 1}),
        ({"x": ["n", "n"]}, {"n": 128}),
    ],
)
def test_a_batch_is_taken_as_one(tmp_path: Path, shapes: Shapes, common: dict[str, int]) -> None:
    graph = import_model(model(tmp_path, shapes))
    assert common_sizes(dict(graph.symbols)) == common


@pytest.mark.parametrize(
    ("heads", "dims", "common"),
    [
        (1, {}, {"h": 80, "w": 80}),
        (8, {}, {"h": 40, "w": 40}),
        (8, {"h": (1, 640, 1, 320)}, {"h": 320, "w": 10}),
        (8, {"h": 16}, {"w": 128}),
        (1 << 40, {}, {"h": 1, "w": 1}),
    ],
)
def test_sides_are_shorter_where_all_places_are_compared(
    tmp_path: Path, heads: int, dims: dict[str, int | tuple[int, ...]], common: dict[str, int]
) -> None:
    """Scores of {heads, h * w, h * w}: 102400 places would have 41 GB for each head."""
    sizes = {"flat": [1, -1, 1], "turned": [1, 1, -1], "few": [heads, 1, 1]}
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["places"]),
        helper.make_node("Reshape", ["x", "turned"], ["others"]),
        helper.make_node("MatMul", ["places", "others"], ["scores"]),
        helper.make_node("Expand", ["scores", "few"], ["of_heads"]),
        helper.make_node("Exp", ["of_heads"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "h", "w"])
    constants = [numpy_helper.from_array(np.array(s, np.int64), n) for n, s in sizes.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    found = import_model(tmp_path / "m.onnx", dims=dims)
    assert common_sizes(dict(found.symbols)) == common


@pytest.mark.parametrize(
    ("features", "told", "common"),
    [
        (1 << 3, {}, 128),
        (1 << 9, {}, 93),
        (1 << 15, {}, 1),
        (1 << 22, {}, 1),
        (1 << 9, {"n": (1, 64)}, 64),
        (1 << 9, {"n": (1, 64, 2)}, 2),
    ],
)
def test_examples_of_little_work_are_taken_as_many(
    tmp_path: Path, features: int, told: Mapping[str, tuple[int, ...]], common: int
) -> None:
    spelled = [f"{n}={r[0]}..{r[1]}" + "".join(f"@{c}" for c in r[2:]) for n, r in told.items()]
    graph = import_model(model(tmp_path, {"x": ["n", features]}), dims=parse_dims(spelled))
    assert common_sizes(dict(graph.symbols)) == {"n": common}


@pytest.mark.parametrize(
    ("spelling", "limits", "common"),
    [
        ("N=1..64", (1, 64), 1),
        ("N=4..64", (4, 64), 4),
        ("N=1..64@8", (1, 64), 8),
        ("N=0..64@64", (0, 64), 64),
        ("h=32..640", (32, 640), 128),
        ("h=256..640", (256, 640), 256),
        ("h=1..64", (1, 64), 32),
        ("h=32..640@512", (32, 640), 512),
        ("h=32..640/32", (1, 20), 10),
        ("h=32..640/32@64", (1, 20), 2),
    ],
)
def test_ranges_have_common_sizes(
    tmp_path: Path, spelling: str, limits: tuple[int, int], common: int
) -> None:
    graph = import_model(model(tmp_path, {"x": ["N", 3, "h"]}), dims=parse_dims([spelling]))
    found = next(r for s, r in graph.symbols if s.startswith(spelling[0]))
    assert tuple(found) == limits
    assert common_size(found) == common


def test_the_spelling_of_common_sizes() -> None:
    assert parse_dims(["batch=1..64@8", "h=32..640/32@64", "w=2..4"]) == {
        "batch": (1, 64, 1, 8),
        "h": (32, 640, 32, 64),
        "w": (2, 4),
    }


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("n=1..64@65", "the common size 65 is none of the range"),
        ("n=4..64@3", "the common size 3 is none of the range"),
        ("n=32..640/32@65", "the common size 65 is none of the range"),
        ("n=1..64@", "write NAME=N"),
        ("n=8@8", "write NAME=N"),
        ("n=1..64@8/2", "write NAME=N"),
        ("n=1..64@-8", "write NAME=N"),
    ],
)
def test_common_sizes_that_cannot_be(item: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_dims([item])


def test_the_number_of_elements_of_a_sequence_has_no_common_size(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    taken = helper.make_value_info("s", kind)
    node = helper.make_node("SequenceLength", ["s"], ["count"])
    result = helper.make_tensor_value_info("count", TensorProto.INT64, [])
    graph = helper.make_graph([node], "g", [taken], [result])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    with pytest.raises(UserError, match="neither a step nor a common size"):
        import_model(tmp_path / "m.onnx", dims={"s": (1, 4, 1, 2)})


@pytest.mark.parametrize(
    ("operator", "operands", "common"),
    [
        ("Resize", {"scales": (TensorProto.FLOAT, 4)}, [1, 8, 64, 48]),
        ("Resize", {"sizes": (TensorProto.INT64, 4)}, [1, 8, 64, 48]),
        ("Pad", {"pads": (TensorProto.INT64, 8)}, [0] * 8 + [1, 8, 64, 48]),
        ("Split", {"split": (TensorProto.INT64, 2)}, [32, 32]),
    ],
)
def test_sizes_that_data_tell(
    tmp_path: Path, operator: str, operands: dict[str, tuple[int, int]], common: list[int]
) -> None:
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 64, 48])]
    ports += [helper.make_tensor_value_info(n, t, [k]) for n, (t, k) in operands.items()]
    names = {"scales": ["x", "", "scales"], "sizes": ["x", "", "", "sizes"]}
    (operand,) = operands
    attributes = {"axis": 2} if operator == "Split" else {}
    results = ["y", "z"] if operator == "Split" else ["y"]
    node = helper.make_node(operator, names.get(operand, ["x", operand]), results, **attributes)
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name=n) for n in results])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    found = common_sizes(dict(import_model(tmp_path / "m.onnx").symbols))
    assert list(found.values()) == common


def test_a_range_with_a_common_size_is_another_one() -> None:
    plain, eight = (1, 64), with_common((1, 64), 8)
    assert eight == CommonRange(1, 64, 8)
    assert hash(eight) == hash(CommonRange(1, 64, 8))
    assert eight != plain
    assert eight != with_common((1, 64), 9)
    assert repr(eight) == "1..64@8"
    low, high = eight
    assert (low, high) == plain
    assert typical(Index.of("n") * 3, {"n": eight}) == 24
    assert typical(Index.of("n") * 3, {"n": plain}) == 96


def test_an_artifact_knows_what_it_was_planned_for(tmp_path: Path) -> None:
    path = model(tmp_path, {"x": ["N", "h"]})
    made = compile(path, tmp_path / "m.so", dims={"N": (1, 64, 1, 8), "h": (1, 100)})
    assert made.verification is not None
    assert made.verification.passed
    with rutc.load(made.library) as session:
        assert session.manifest["common_sizes"] == {"N": 8}
        values = session_values(session, ())
        x = values["x"]
        assert isinstance(x, np.ndarray)
        assert x.shape == (8, 50)
        (squared,) = session.run(None, {"x": np.full((64, 3), 2, np.float32)})
        assert (squared == 4).all()


def layers(folder: Path) -> Path:
    """Three products of rows with matrices of 128 x 128 elements."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((128, 128), np.float32) / 8, f"w{i}")
        for i in range(3)
    ]
    names = ["x", "h1", "h2", "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(3)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 128])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, folder / "layers.onnx")
    return folder / "layers.onnx"


def test_threads_share_only_large_runs_of_what_is_commonly_small(tmp_path: Path) -> None:
    """One row is too little work for two threads, some hundred are not."""
    path = layers(tmp_path)
    dumps = {}
    for common in (1, 4096):
        dumps[common] = tmp_path / str(common)
        options = Options("x86-64-v3", dims={"batch": (1, 4096, 1, common)}, dump=dumps[common])
        compile_model(path, tmp_path / "m.so", options)
    for common, folder in dumps.items():
        text = (folder / "program.txt").read_text()
        found = re.findall(r"turns=(.*) sizes=", text)
        assert len(found) == 3, text
        for turns in found:
            few, many = (parse_index(turns).evaluate({"batch": n}) for n in (1, 4096))
            assert (few, many > 0) == (0, True), (common, turns)
    with rutc.load(tmp_path / "m.so", threads=2) as session:
        for rows in (1, 8, 300, 4096):
            x = np.full((rows, 128), 0.5, np.float32)
            (y,) = session.run(None, {"x": x})
            assert np.allclose(y, y[:1])


def test_schedules_have_tiles_of_rows_of_a_batch(tmp_path: Path) -> None:
    """Runs of eight examples read weights once, although runs of one are commoner."""
    path = layers(tmp_path)
    options = Options(
        "x86-64-v3", dims={"batch": (1, 64)}, dump=tmp_path / "dump", jobs=1, keep_subnormals=True
    )
    compile_model(path, tmp_path / "m.so", options)
    kernels = [f.read_text() for f in (tmp_path / "dump" / "kernels").glob("*.txt")]
    assert any("even(" in text or "peel(" in text for text in kernels)


def test_a_size_that_two_extents_must_have_is_what_they_commonly_are(tmp_path: Path) -> None:
    """Maps joined after both were made smaller, in steps of which the import cannot tell."""
    half, eighth = ({"kernel_shape": [k, 1], "strides": [k, 1]} for k in (2, 8))
    nodes = [
        helper.make_node("AveragePool", ["x"], ["half"], ceil_mode=1, **half),
        helper.make_node("AveragePool", ["half"], ["small"], ceil_mode=1, **eighth),
        helper.make_node("Resize", ["small", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("Concat", ["half", "large"], ["y"], axis=1),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 8, 1], np.float32), "scales")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", 5])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [scales])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    symbols = dict(import_model(tmp_path / "m.onnx").symbols)
    assert common_sizes(symbols) == {"n": 1, "h": 128, "same": 64}
    symbols = dict(import_model(tmp_path / "m.onnx", dims={"h": (16, 640, 1, 320)}).symbols)
    assert common_size(symbols["same"]) == 160


@pytest.mark.parametrize(
    ("dims", "common"),
    [({}, 1), ({"m": (0, 9, 1, 4)}, 4), ({"batch": (0, 9, 1, 4)}, 4)],
)
def test_sizes_that_must_be_equal_are_commonly_equal(
    tmp_path: Path, dims: dict[str, tuple[int, ...]], common: int
) -> None:
    """States of as many examples as there are, of which only a branch tells."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 32, 4), "r": (1, 32, 8)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in shapes.items()
    ]
    branches = [
        helper.make_graph(
            [
                helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "h"], [name], hidden_size=8),
                helper.make_node("Neg" if name == "then" else "Abs", [name], [f"{name}_y"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [3, 1, "any", 8])],
        )
        for name in ("then", "else")
    ]
    node = helper.make_node("If", ["p"], ["y"], then_branch=branches[0], else_branch=branches[1])
    sizes: Shapes = {"x": [3, "batch", 4], "h": [1, "m", 8]}
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    ports.append(helper.make_tensor_value_info("p", TensorProto.BOOL, []))
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    found = common_sizes(dict(import_model(tmp_path / "m.onnx", dims=dims).symbols))
    assert (found["batch"], found["m"]) == (common, common)


@pytest.mark.parametrize(("dims", "common"), [({}, 512), ({"t": (0, 200)}, 200), ({"t": 7}, None)])
def test_what_windows_in_steps_leave_of_a_sound_is_commonly_several(
    tmp_path: Path, dims: dict[str, int | tuple[int, int]], common: int | None
) -> None:
    """Sixty-four samples make one frame: of 128 there would be two."""
    steps = {"kernel_shape": [4], "strides": [4]}
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("AveragePool", [before], [after], **steps)
        for before, after in pairwise(names)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "t"])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    found = common_sizes(dict(import_model(tmp_path / "m.onnx", dims=dims).symbols))
    assert found.get("t") == common


def test_frames_of_a_sound_that_may_have_none_are_commonly_several(tmp_path: Path) -> None:
    """A size of 128 would leave no frame: plans would be made for no work at all."""
    constants = [numpy_helper.from_array(np.array(160), "step")]
    constants.append(numpy_helper.from_array(np.hanning(400).astype(np.float32), "window"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", 1])
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    found = common_sizes(dict(import_model(tmp_path / "m.onnx").symbols))
    assert (found["n"], found["t"]) == (1, 2048)
