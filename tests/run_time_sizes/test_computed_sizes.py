"""Models whose sizes depend on their data, compiled, against ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, helper, numpy_helper

from rutc.driver.parts.build import Builder
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import InferenceSession, ModelError
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.machines import NATIVE

Arrays = Mapping[str, np.ndarray]


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """One ONNX node."""
    return helper.make_node(op, inputs, [output], name=output, **attributes)


def model_of(
    nodes: Sequence[NodeProto], feed: Arrays, constants: Arrays, outputs: Sequence[str]
) -> onnx.ModelProto:
    """A model with the shapes of `feed`."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        infos,
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def compiled(model: onnx.ModelProto, folder: Path) -> InferenceSession:
    """A session of the model's library."""
    onnx.save(model, folder / "m.onnx")
    plan = decide(optimize(import_model(folder / "m.onnx")), NATIVE)
    built = Builder(plan, target_named("native").machine, "m", 1).build()
    build_library(built.program, built.objects, folder / "m.so", {})
    return InferenceSession(folder / "m.so", threads=2)


def check(model: onnx.ModelProto, feeds: Sequence[Arrays], folder: Path) -> None:
    """One session runs all feeds, as ONNX Runtime does."""
    reference = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in model.graph.output]
    with compiled(model, folder) as session:
        for feed in feeds:
            wanted = reference.run(names, dict(feed))
            for name, got, want in zip(names, session.run(names, feed), wanted, strict=True):
                assert got.shape == want.shape
                assert got.dtype == want.dtype
                assert_close(got, want, level=Level.MODEL, err_msg=name)


def test_detection(tmp_path: Path) -> None:
    """Boxes by non-maximum suppression, gathered, labelled, and the best of them."""
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], "chosen"),
        node("Gather", ["chosen", "two"], "box", axis=1),
        node("Gather", ["chosen", "one"], "kind", axis=1),
        node("Squeeze", ["boxes", "axis0"], "all"),
        node("Gather", ["all", "box"], "corners", axis=0),
        node("Cast", ["kind"], "label", to=onnx.TensorProto.FLOAT),
        node("Unsqueeze", ["label", "axis1"], "column"),
        node("Concat", ["corners", "column"], "rows", axis=1),
        node("Shape", ["rows"], "shape"),
        node("Gather", ["shape", "axis0"], "count", axis=0),
        node("Concat", ["count", "five"], "target", axis=0),
        node("Reshape", ["rows", "target"], "found"),
        node("Min", ["count", "three"], "k"),
        helper.make_node("TopK", ["label", "k"], ["best", "where"], axis=0, name="TopK"),
        node("ReduceMax", ["found"], "extreme", axes=[0], keepdims=0),
    ]
    constants = {
        "most": np.array([4]),
        "iou": np.array([0.3], np.float32),
        "least": np.array([0.5], np.float32),
        "one": np.array(1),
        "two": np.array(2),
        "axis0": np.array([0]),
        "axis1": np.array([1]),
        "three": np.array([3]),
        "five": np.array([5]),
    }
    feeds = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        boxes = rng.random((1, 40, 4)).astype(np.float32)
        boxes[..., 2:] = boxes[..., :2] + 0.25
        feeds.append({"boxes": boxes, "scores": rng.random((1, 3, 40)).astype(np.float32)})
    outputs = ["found", "best", "where", "extreme", "chosen"]
    check(model_of(nodes, feeds[0], constants, outputs), feeds, tmp_path)


def test_sizes_from_inputs(tmp_path: Path) -> None:
    """Range, Expand, Tile and Slice by inputs, in runs of growing and shrinking sizes."""
    nodes = [
        node("Range", ["zero", "n", "one"], "count"),
        node("Cast", ["count"], "numbers", to=onnx.TensorProto.FLOAT),
        node("Unsqueeze", ["numbers", "axis1"], "column"),
        node("Mul", ["column", "x"], "table"),
        node("Softmax", ["table"], "rows", axis=1),
        node("MatMul", ["rows", "w"], "product"),
        node("Slice", ["product", "start", "end", "axis0"], "part"),
        node("ReduceSum", ["part", "axis0"], "total", keepdims=0),
        node("Tile", ["total", "times"], "again"),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "axis0": np.array([0]),
        "axis1": np.array([1]),
        "w": np.random.default_rng(0).standard_normal((8, 33)).astype(np.float32),
    }
    x = np.random.default_rng(1).standard_normal(8).astype(np.float32)
    feeds = [
        {
            "n": np.array(n),
            "x": x,
            "start": np.array([start]),
            "end": np.array([end]),
            "times": np.array([times]),
        }
        for n, start, end, times in ((5, 1, 4, 2), (200, -90, 300, 1), (1, 0, 1, 3), (0, 0, 0, 0))
    ]
    outputs = ["rows", "product", "part", "again"]
    check(model_of(nodes, feeds[0], constants, outputs), feeds, tmp_path)


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (-5, "node: the size repeats is -5, outside of"),
        (2**40, "node: the size repeats is 1099511627776, outside of"),
    ],
)
def test_sizes_that_make_no_sense_end_the_run(n: int, message: str, tmp_path: Path) -> None:
    feed = {"x": np.ones((4, 2), np.float32), "r": np.array([1, 1])}
    model = model_of([node("Tile", ["x", "r"], "node")], feed, {}, ["node"])
    with compiled(model, tmp_path) as session:
        with pytest.raises(ModelError, match=message):
            session.run(None, {**feed, "r": np.array([n, 1])})
        with pytest.raises(ModelError, match="bytes"):
            session.run(None, {**feed, "r": np.array([2**31 - 1, 2**31 - 1])})
        assert session.run(None, {**feed, "r": np.array([2, 1])})[0].shape == (8, 2)


def test_loops_of_computed_length(tmp_path: Path) -> None:
    """A loop that a condition ends, its outputs stacked, over what data select."""
    infos = [
        helper.make_tensor_value_info("i", onnx.TensorProto.INT64, ()),
        helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, ()),
        helper.make_tensor_value_info("sum", onnx.TensorProto.FLOAT, None),
    ]
    inner = helper.make_graph(
        [
            node("Add", ["sum", "some"], "next"),
            node("ReduceSum", ["next"], "total", keepdims=0),
            node("Less", ["total", "limit"], "small"),
            node("Mul", ["next", "next"], "square"),
        ],
        "inner",
        infos,
        [
            helper.make_tensor_value_info("small", onnx.TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", onnx.TensorProto.FLOAT, None),
            helper.make_tensor_value_info("square", onnx.TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        node("Greater", ["x", "zero"], "mask"),
        node("Compress", ["x", "mask"], "some", axis=0),
        node("Mul", ["some", "zero"], "start"),
        helper.make_node("Loop", ["m", "", "start"], ["last", "all"], name="Loop", body=inner),
    ]
    constants = {"zero": np.array(0, np.float32), "limit": np.array(20, np.float32)}
    feeds = []
    for seed, m in ((0, 30), (1, 4), (2, 1), (3, 100)):
        x = np.random.default_rng(seed).standard_normal(9).astype(np.float32)
        feeds.append({"x": np.abs(x) if seed == 3 else x, "m": np.array(m)})
    check(model_of(nodes, feeds[0], constants, ["last", "all"]), feeds, tmp_path)


def test_an_output_without_elements_has_the_computed_shape(tmp_path: Path) -> None:
    feed = {"x": np.ones((3, 0), np.float32), "r": np.array([1, 1])}
    model = model_of([node("Tile", ["x", "r"], "y")], feed, {}, ["y"])
    feeds = [{**feed, "r": np.array([n, 2])} for n in (1, 3, 0)]
    check(model, feeds, tmp_path)


def test_a_size_of_one_is_known_in_the_run_only(tmp_path: Path) -> None:
    """Its axis is squeezed; a run with another size ends, and the session lives on."""
    nodes = [
        node("Relu", ["x"], "r"),
        node("Squeeze", ["r", "axes"], "s"),
        node("MatMul", ["s", "w"], "y"),
    ]
    rng = np.random.default_rng(0)
    constants = {"axes": np.array([1]), "w": rng.standard_normal((3, 5)).astype("f4")}
    feeds = [{"x": rng.standard_normal((rows, 1, 3)).astype("f4")} for rows in (2, 7, 1)]
    model = model_of(nodes, feeds[0], constants, ["y"])
    for axis, name in enumerate(("z", "b")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    session = compiled(model, tmp_path)
    with pytest.raises(ModelError, match=r"s: axis 1 of .* is left out, and is not of extent 1"):
        session.run(None, {"x": np.zeros((2, 2, 3), "f4")})
    for feed in feeds:
        wanted = np.maximum(feed["x"][:, 0], 0) @ constants["w"]
        assert_close(session.run(None, feed)[0], wanted, reduction=1024)


def test_a_computed_size_of_1_is_not_left_out_unsaid(tmp_path: Path) -> None:
    """Squeeze without axes: one place found would make a scalar of the list of places."""
    nodes = [node("NonZero", ["x"], "places"), node("Squeeze", ["places"], "y")]
    many, one = (np.array(a, np.float32) for a in ([1, 0, 2, 3], [0, 0, 0, 3]))
    check(model_of(nodes, {"x": many}, {}, ["y"]), [{"x": many}], tmp_path)
    with (
        compiled(model_of(nodes, {"x": many}, {}, ["y"]), tmp_path) as session,
        pytest.raises(ModelError, match=r"axis 1 .* has extent 1"),
    ):
        session.run(None, {"x": one})


WRAPPED = (1722007169, 630138255, 17, 1722007169, 630138255, 17)
"""Sizes whose product is 1 modulo 2^64."""


@pytest.mark.parametrize("told_by", ["the run", "another tensor's shape"])
def test_a_shape_of_more_elements_than_there_are_numbers(told_by: str, tmp_path: Path) -> None:
    nodes = [
        node("Reshape", ["x", "s" if told_by == "the run" else "same"], "t"),
        node("Slice", ["t", "first", "end"], "y"),
    ]
    if told_by != "the run":
        nodes[:0] = [node("ConstantOfShape", ["s"], "c"), node("Shape", ["c"], "same")]
    feed = {"x": np.arange(6, dtype="f4"), "s": np.array([1, 1, 3, 1, 2, 1, 1])}
    ends = {"first": np.full(7, -1), "end": np.full(7, 1 << 40)}
    with compiled(model_of(nodes, feed, ends, ["y"]), tmp_path) as session:
        assert session.run(None, feed)[0].tolist() == [[[[[[[5]]]]]]]
        with pytest.raises(ModelError, match=r"does not fit the shape|cannot be reshaped"):
            session.run(None, {**feed, "s": np.array([6, *WRAPPED])})


@pytest.mark.parametrize(
    "part",
    [
        "Slice(x, zero, end)",
        "Slice(x, end, all)",
        "Expand(one, end)",
        "ConstantOfShape <value = float[1] {0.5}> (end)",
        "Tile(x, end)",
        "OneHot(zero, depth, values)",
    ],
)
@pytest.mark.parametrize("extent", ["n", "7"])
def test_sizes_are_those_of_a_trip(part: str, extent: str, tmp_path: Path) -> None:
    """y = sum over i of the elements of a part of x that trip i tells the length of."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[{extent}] x, int64 trips) => (float y) {{
      yes = Constant <value = bool {{1}}> ()
      nothing = Constant <value_float = 0.0> ()
      zero = Constant <value_ints = [0]> ()
      one = Constant <value_floats = [1.0]> ()
      all = Constant <value_ints = [1000]> ()
      last = Constant <value_ints = [-1]> ()
      values = Constant <value_floats = [0.5, 2.0]> ()
      least = Constant <value_ints = [1]> ()
      y = Loop (trips, yes, nothing)
          <body = trip (int64 i, bool go, float a) => (bool more, float b) {{
        more = Identity(go)
        end = Reshape(i, last)
        depth = Max(end, least)
        p = {part}
        s = ReduceSum <keepdims = 0> (p)
        b = Add(a, s)
      }}>
    }}"""
    sizes = (1, 3, 17) if extent == "n" else (7,)
    x = np.random.default_rng(1).standard_normal(17).astype(np.float32)
    feeds = [{"x": x[:n], "trips": np.array(t)} for n in sizes for t in (0, 1, 5, 11)]
    check(onnx.parser.parse_model(text), feeds, tmp_path)
