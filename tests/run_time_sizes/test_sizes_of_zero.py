"""Inputs without an element, where nothing is said about sizes: what ONNX Runtime does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import rutc
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.machines import NATIVE

RNG = np.random.default_rng(0)
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


CONSTANTS = {
    "w": normal(4, 3, 3, 3),
    "dense": normal(4, 5),
    "flat": np.array([-1, 64]),
    "zero": np.array([0]),
    "last": np.array(-1),
    "square": normal(8, 8),
    "g": normal(8),
    "wl": normal(1, 20, 8),
    "rl": normal(1, 20, 5),
    "table": normal(10, 8),
    "twice": np.array([1, 1, 2, 2], "f4"),
}


def node(op: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(), **attributes)  # type: ignore[arg-type]


IMAGES = [
    node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
    node("Relu", "c", "r"),
    node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
    node("GlobalAveragePool", "p", "a"),
    node("Flatten", "a", "f"),
    node("MatMul", "f dense", "m"),
    node("Softmax", "m", "scores"),
    node("ArgMax", "m", "best", axis=1),
    node("Reshape", "x flat", "rows"),
    node("ReduceSum", "x zero", "sum", keepdims=0),
    node("ReduceMean", "x zero", "mean"),
    node("ReduceMax", "x zero", "max"),
    node("ReduceLogSumExp", "x zero", "log"),
    node("Concat", "x x", "twice", axis=0),
    node("NonZero", "m", "where"),
]
TEXTS = [
    node("Gather", "table t", "e"),
    node("MatMul", "e square", "q"),
    node("Transpose", "q", "k", perm=[0, 2, 1]),
    node("MatMul", "e k", "s"),
    node("Softmax", "s", "p"),
    node("MatMul", "p e", "mixed"),
    node("LayerNormalization", "mixed g", "normed"),
    node("CumSum", "normed zero", "summed"),
    node("Slice", "normed last_row end zero", "tail"),
]
SERIES = [node("LSTM", "x wl rl", "y h", hidden_size=5)]
MODELS = {
    "images": (
        IMAGES,
        {"x": ("f", ["n", 3, 8, 8])},
        "scores best rows sum mean max log twice where",
    ),
    "texts": (TEXTS, {"t": ("i", ["b", "s"])}, "mixed normed summed tail"),
    "series": (SERIES, {"x": ("f", ["n", 2, 8])}, "y h"),
}


def saved(path: Path, nodes: list[NodeProto], inputs: dict, outputs: str) -> Path:
    infos = [helper.make_tensor_value_info(n, KINDS[k], shape) for n, (k, shape) in inputs.items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs.split()]
    constants = {**CONSTANTS, "last_row": np.array([-1]), "end": np.array([1 << 60])}
    used = {i for n in nodes for i in n.input}
    data = [numpy_helper.from_array(a, n) for n, a in constants.items() if n in used]
    graph = helper.make_graph(nodes, "g", infos, results, data)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_sizes_of_zero(name: str, tmp_path: Path) -> None:
    nodes, inputs, outputs = MODELS[name]
    path = saved(tmp_path / "m.onnx", nodes, inputs, outputs)
    rutc.compile(path, tmp_path / "m.so", verify=False)
    reference = onnxruntime.InferenceSession(path)
    ((given, (kind, shape)),) = inputs.items()
    symbols = [e for e in shape if isinstance(e, str)]
    names = outputs.split()
    some = dict.fromkeys(symbols, 2)
    with rutc.load(tmp_path / "m.so") as session:
        for sizes in (some, *({**some, s: 0} for s in symbols)):
            extents = [sizes.get(e, e) for e in shape]
            array = (
                normal(*extents) if kind == "f" else np.arange(np.prod(extents)).reshape(extents)
            )
            feed = {given: array}
            got, want = session.run(names, feed), reference.run(names, feed)
            for output, ours, theirs in zip(names, got, want, strict=True):
                assert ours.shape == theirs.shape, output
                assert_close(ours, theirs, level=Level.MODEL, err_msg=output)


PYRAMID = [
    node("MaxPool", "x", "half", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    node("MaxPool", "half", "quarter", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    node("MaxPool", "quarter", "eighth", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    node("Resize", "eighth  twice", "up", mode="nearest"),
    node("Add", "quarter up", "sum"),
    node("Resize", "sum  twice", "up2", mode="nearest"),
    node("Add", "half up2", "scores"),
]


def test_sizes_that_may_be_zero_cost_nothing(tmp_path: Path) -> None:
    """What is added to a picture of twice the size is never 1 long, be it 0 or not."""
    inputs: dict = {"x": ("f", ["n", 3, "h", "w"])}
    path = saved(tmp_path / "m.onnx", PYRAMID, inputs, "scores")
    plans = [
        str(decide(optimize(import_model(path, dims=dict.fromkeys("nhw", (low, 1 << 31)))), NATIVE))
        for low in (0, 1)
    ]
    kernels = [re.findall(r"^ *g\d+ for .*? ->", plan, re.MULTILINE) for plan in plans]
    assert kernels[0] == kernels[1] != []


@pytest.mark.parametrize(
    ("node_", "message"),
    [
        (node("Gather", "x last", "y", axis=0), "out of range for 0 elements"),
        (node("ArgMax", "x", "y", axis=0), "no largest or least of 0 elements"),
        (node("MaxPool", "x", "y", kernel_shape=[2, 2]), "compiled for n from 2"),
    ],
)
def test_what_has_no_meaning_without_elements(
    node_: NodeProto, message: str, tmp_path: Path
) -> None:
    shape = [1, 2, "n", 4] if node_.op_type == "MaxPool" else ["n", 4]
    path = saved(tmp_path / "m.onnx", [node_], {"x": ("f", shape)}, "y")
    rutc.compile(path, tmp_path / "m.so", verify=False)
    full, empty = ([2 if e == "n" else e for e in shape], [0 if e == "n" else e for e in shape])
    with rutc.load(tmp_path / "m.so") as session:
        session.run(None, {"x": normal(*full)})
        with pytest.raises(rutc.ModelError, match=message):
            session.run(None, {"x": normal(*empty)})
