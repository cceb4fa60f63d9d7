"""Positions out of range end the run, as in ONNX Runtime; those in range give its result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.runtime import ModelError
from rutc.tensor_ir import Call, Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.onnx_files import i64
from tests.run_time_sizes.test_computed_sizes import compiled

Arrays = Mapping[str, np.ndarray]


def model_of(
    nodes: list[NodeProto], feed: Arrays, constants: Arrays, symbolic: str = ""
) -> onnx.ModelProto:
    """A model with the output y; each size of the `symbolic` inputs has a name of its own."""
    infos = []
    for n, a in feed.items():
        shape = [f"{n}{i}" for i in range(a.ndim)] if n in symbolic else a.shape
        kind = helper.np_dtype_to_tensor_dtype(a.dtype)
        infos.append(helper.make_tensor_value_info(n, kind, shape))
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], data)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


CASES = {
    "gather rows": ("Gather", {}, (5, 3), [((2, 2), (0, 4, -5, 1))], (5, -6)),
    "gather inside": ("Gather", {"axis": 1}, (2, 7, 3), [((3,), (6, -7, 0))], (7, -8, 1 << 40)),
    "gather one": ("Gather", {"axis": 1}, (3, 5), [((), (-2,))], (5, -6, -(1 << 62))),
    "gather of one": ("Gather", {}, (1, 3), [((2,), (0, -1))], (1, -2)),
    "elements": ("GatherElements", {"axis": 1}, (2, 3), [((2, 2), (0, 2, -3, 1))], (3, -4)),
    "elements of one": ("GatherElements", {"axis": 0}, (1, 2), [((1, 2), (0, -1))], (1, -2)),
    "points": ("GatherND", {}, (4, 3), [((2, 2), (3, 2, -4, -3))], (4, -5)),
    "points of one": ("GatherND", {}, (4, 1), [((2, 2), (3, 0, -4, -1))], (4, -5)),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("case", "kind"),
    [(c, k) for c in CASES for k in ("i4", "i8") if k == "i8" or "points" not in c],
)
def test_gathers(case: str, kind: str, symbolic: bool, tmp_path: Path) -> None:
    op, attributes, shape, ((at_shape, good),), bad = CASES[case]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    at = np.array(good, kind).reshape(at_shape)
    nodes = [helper.make_node(op, ["x", "i"], ["y"], name="pick", **attributes)]
    sizes = "" if not symbolic else "x" if op == "GatherND" else "xi"
    model = model_of(nodes, {"x": x, "i": at}, {}, sizes)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with compiled(model, tmp_path) as session:
        graph = import_model(tmp_path / "m.onnx")
        (want,) = reference.run(None, {"x": x, "i": at})
        np.testing.assert_array_equal(session.run(None, {"x": x, "i": at})[0], want)
        for value in bad:
            if value not in range(np.iinfo(kind).min, np.iinfo(kind).max):
                continue
            wrong = at.copy()
            wrong.reshape(-1)[0] = value
            feed = {"x": x, "i": wrong}
            with pytest.raises((Fail, InvalidArgument)):
                reference.run(None, feed)
            message = rf"pick: the index {value if abs(value) < 1 << 60 else '-?[0-9]+'} is out"
            with pytest.raises(ModelError, match=message):
                session.run(None, feed)
            with pytest.raises(UserError, match=message):
                interpret(graph, feed)
        np.testing.assert_array_equal(session.run(None, {"x": x, "i": at})[0], want)


SCATTERS = {
    "elements": ("ScatterElements", {"axis": 1}, (2, 3), (2, 2), (0, 2, -1, 1), (2, 2), (3, -4)),
    "elements of one": ("ScatterElements", {}, (1, 2), (1, 2), (0, -1), (1, 2), (1, -2)),
    "points": ("ScatterND", {}, (4, 3), (2, 1), (3, -3), (2, 3), (4, -5)),
    "points of one": ("ScatterND", {}, (1, 3), (1, 1), (0,), (1, 3), (1, -2)),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", SCATTERS)
def test_scatters(case: str, symbolic: bool, tmp_path: Path) -> None:
    op, attributes, shape, at_shape, good, update_shape, bad = SCATTERS[case]
    rng = np.random.default_rng(0)
    x, u = (rng.standard_normal(s).astype(np.float32) for s in (shape, update_shape))
    feed = {"x": x, "i": i64(*good).reshape(at_shape), "u": u}
    nodes = [helper.make_node(op, ["x", "i", "u"], ["y"], name="put", **attributes)]
    model = model_of(nodes, feed, {}, ("xu" if op == "ScatterND" else "xiu") if symbolic else "")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with compiled(model, tmp_path) as session:
        (want,) = reference.run(None, feed)
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
        for value in bad:
            wrong = feed["i"].copy()
            wrong.reshape(-1)[-1] = value
            with pytest.raises((Fail, InvalidArgument)):
                reference.run(None, {**feed, "i": wrong})
            with pytest.raises(ModelError, match=f"put: the index {value} is out of range"):
                session.run(None, {**feed, "i": wrong})


PLACES = {
    "images of aligned regions": (
        ("RoiAlign", ["x", "r", "i"], {"output_height": 2, "output_width": 2}),
        {"x": (2, 1, 4, 4), "r": (2, 4)},
        (0, 1),
        (2, -1, 1 << 40),
    ),
    "the only image": (
        ("RoiAlign", ["x", "r", "i"], {"mode": "max", "sampling_ratio": 2}),
        {"x": (1, 2, 4, 4), "r": (2, 4)},
        (0, 0),
        (7, -1),
    ),
    "ends of sequences": (
        ("ReverseSequence", ["x", "i"], {}),
        {"x": (3, 2, 2)},
        (3, 1),
        (4, -1, 1 << 40),
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_places_of_which_none_counts_from_the_end(case: str, tmp_path: Path) -> None:
    (op, names, attributes), shapes, good, bad = PLACES[case]
    rng = np.random.default_rng(0)
    feed = {n: rng.uniform(0, 3, s).astype(np.float32) for n, s in shapes.items()}
    feed["i"] = i64(*good)
    nodes = [helper.make_node(op, names, ["y"], name="pick", **attributes)]
    _refuses(model_of(nodes, feed, {}), feed, bad, tmp_path)


def test_images_of_pooled_regions(tmp_path: Path) -> None:
    feed = {
        "x": np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4),
        "i": np.float32([[0, 0, 0, 2, 2], [1, 1, 1, 3, 3]]),
    }
    nodes = [helper.make_node("MaxRoiPool", ["x", "i"], ["y"], name="pick", pooled_shape=[2, 2])]
    _refuses(model_of(nodes, feed, {}), feed, (2, -1, 9), tmp_path)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lengths_of_sequences(op: str, direction: str, tmp_path: Path) -> None:
    rows, ways = {"RNN": 3, "GRU": 9, "LSTM": 12}[op], 1 + (direction == "bidirectional")
    rng = np.random.default_rng(0)
    shapes = {"x": (4, 2, 2), "w": (ways, rows, 2), "r": (ways, rows, 3)}
    feed = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    feed["i"] = np.int32([4, 2])
    how = {"hidden_size": 3, "direction": direction, "name": "pick"}
    nodes = [helper.make_node(op, ["x", "w", "r", "", "i"], ["y"], **how)]
    _refuses(model_of(nodes, feed, {}), feed, (5, -1), tmp_path)


def _refuses(model: onnx.ModelProto, feed: Arrays, bad: Sequence[int], folder: Path) -> None:
    """Where the first of `i` is one of `bad`, the run ends, as in ONNX Runtime; before as there."""
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with compiled(model, folder) as session:
        graph = import_model(folder / "m.onnx")
        (want,) = reference.run(None, feed)
        assert_close(session.run(None, feed)[0], want, level=Level.MODEL)
        for value in bad:
            wrong = feed["i"].copy()
            wrong.reshape(-1)[0] = value
            with pytest.raises((Fail, InvalidArgument, RuntimeException)):
                reference.run(None, {**feed, "i": wrong})
            with pytest.raises(ModelError, match=r"pick: the index .* is out of range"):
                session.run(None, {**feed, "i": wrong})
            with pytest.raises(UserError, match=r"pick: the index .* is out of range"):
                interpret(graph, {**feed, "i": wrong})


def _checks(graph: Graph) -> int:
    return sum(isinstance(n, Call) and n.routine == "check_position" for n in graph.nodes)


@pytest.mark.parametrize("clipped", [True, False])
def test_what_is_known_to_be_in_range_is_not_checked(clipped: bool, tmp_path: Path) -> None:
    """The place of the largest of seven numbers, and clipped ones, in a table of eight."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "best"], ["a"]),
        helper.make_node("Clip", ["i", "low", "high"] if clipped else ["i", "low"], ["j"]),
        helper.make_node("Gather", ["table", "j"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    table = np.arange(8, dtype=np.float32)
    feed = {"x": np.ones((2, 7), np.float32), "i": i64(9, -9)}
    constants = {"table": table, "low": np.array(-8), "high": np.array(7)}
    onnx.save(model_of(nodes, feed, constants), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert _checks(graph) == (0 if clipped else 1)
    if clipped:
        np.testing.assert_array_equal(interpret(graph, feed)["y"], [-7, 0])


@pytest.mark.parametrize("index", [3, -4])
def test_a_constant_beyond_a_symbolic_size_is_checked(index: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="pick")]
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    model = model_of(nodes, {"x": x}, {"i": np.array(index)}, "x")
    with compiled(model, tmp_path) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[index])
        with pytest.raises(ModelError, match=f"pick: the index {index} is out of range for 3 el"):
            session.run(None, {"x": x[:3]})


@pytest.mark.parametrize("index", [5, -6])
def test_a_constant_out_of_range_is_refused(index: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="pick")]
    feed = {"x": np.zeros((5, 2), np.float32)}
    model = model_of(nodes, feed, {"i": i64(1, index)})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=rf"pick.*the index {index} is out of range for 5 el"):
        import_model(tmp_path / "m.onnx")


def test_writes_beyond_a_cache_end_the_run(tmp_path: Path) -> None:
    nodes = [helper.make_node("TensorScatter", ["x", "u", "w"], ["y"], axis=1, name="put")]
    past, u = np.zeros((2, 5, 3), np.float32), np.ones((2, 2, 3), np.float32)
    model = model_of(nodes, {"x": past, "u": u, "w": i64(0, 0)}, {})
    model.opset_import[0].version = 24
    with compiled(model, tmp_path) as session:
        y = session.run(None, {"x": past, "u": u, "w": i64(3, 0)})[0]
        assert y[..., 0].tolist() == [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]]
        for start in (4, -1):
            with pytest.raises(ModelError, match=f"put: the index {start} is out of range for 4"):
                session.run(None, {"x": past, "u": u, "w": i64(0, start)})
