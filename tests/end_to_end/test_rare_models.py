"""What few models hold, compiled with nothing said but the file, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

import rutc
from tests.close import assert_close

RNG = np.random.default_rng(0)
FLOATS = TensorProto.FLOAT


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """Operands are separated by spaces; `-` is none."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


@dataclass(frozen=True)
class Model:
    """A model of one output, the feeds of its runs, and what they give; None: ask ONNX Runtime."""

    nodes: tuple[NodeProto, ...]
    feeds: tuple[dict[str, Any], ...]
    opset: int = 21
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, TypeProto] = field(default_factory=dict)
    output: TypeProto | None = None
    expected: tuple[Any, ...] | None = None

    def save(self, path: Path) -> Path:
        infos = [self._input(name) for name in self.feeds[0]]
        result = onnx.ValueInfoProto(name="y")
        if self.output is not None:
            result.type.CopyFrom(self.output)
        data = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", infos, [result], data)
        opsets = [helper.make_opsetid("", self.opset)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    def _input(self, name: str) -> onnx.ValueInfoProto:
        """An input with a symbolic size where its feeds differ."""
        if name in self.types:
            return helper.make_value_info(name, self.types[name])
        shapes = [feed[name].shape for feed in self.feeds]
        shape = [
            column[0] if len(set(column)) == 1 else f"{name}{k}"
            for k, column in enumerate(zip(*shapes, strict=True))
        ]
        kind = helper.np_dtype_to_tensor_dtype(self.feeds[0][name].dtype)
        return helper.make_tensor_value_info(name, kind, shape)


def early(op: str, x: np.ndarray, expected: np.ndarray, **attributes: Any) -> Model:
    """An operator of opset 1 that ONNX dropped."""
    return Model((node(op, "x", **attributes),), ({"x": x},), opset=1, expected=(expected,))


X = normal(2, 3, 5, 6)
TENSOR = helper.make_tensor_type_proto(FLOATS, ["k"])
SEQUENCE = helper.make_sequence_type_proto(TENSOR)
OPTIONAL = helper.make_optional_type_proto(TENSOR)
RATIOS = np.array([1, 1, 0.4, 0.7], "f4"), np.array([1, 1, 1.6, 2], "f4")


def resized(*operands: str, **attributes: Any) -> tuple[NodeProto, ...]:
    return (node("Resize", " ".join(("x", *operands)), **attributes),)


def branch(of: NodeProto, kind: TypeProto) -> onnx.GraphProto:
    return helper.make_graph([of], of.output[0], [], [helper.make_value_info(of.output[0], kind)])


def bags() -> tuple[NodeProto, ...]:
    """Sums of the rows from each place on to the next, bag by bag, as torch exports them."""
    row = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOATS, None))
    number, whether = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            node("Reshape", "k one", "begin"),
            node("Add", "begin one", "behind"),
            node("Slice", "places begin behind", "first"),
            node("Add", "behind one", "beyond"),
            node("Slice", "places behind beyond", "last"),
            node("Slice", "x first last", "rows"),
            node("ReduceSum", "rows zero", "sum", keepdims=0),
            node("SequenceInsert", "before sum", "after"),
            node("Add", "k step", "next"),
            node("Less", "next count", "more"),
        ],
        "bag",
        [
            helper.make_tensor_value_info("trip", number, []),
            helper.make_tensor_value_info("going", whether, []),
            helper.make_tensor_value_info("k", number, []),
            helper.make_value_info("before", row),
        ],
        [
            helper.make_tensor_value_info("more", whether, []),
            helper.make_tensor_value_info("next", number, []),
            helper.make_value_info("after", row),
        ],
    )
    return (
        node("Shape", "x", "rows_in_all", start=0, end=1),
        node("Concat", "bag rows_in_all", "places", axis=0),
        node("Size", "bag", "count"),
        node("SequenceEmpty", "", "empty"),
        node("Less", "begin_at count", "any"),
        node("Loop", "- any begin_at empty", "end_at sums", body=body),
        node("ConcatFromSequence", "sums", axis=0, new_axis=1),
    )


MODELS = {
    "bags of embeddings": Model(
        bags(),
        (
            {"x": normal(7, 5), "bag": np.array([0, 2, 2, 6])},
            {"x": normal(13, 5), "bag": np.array([0])},
            {"x": normal(1, 5), "bag": np.array([0, 1])},
        ),
        constants={
            "begin_at": np.array(0),
            "step": np.array(1),
            "one": np.array([1]),
            "zero": np.array([0]),
        },
    ),
    "nodes out of order": Model(
        (node("Add", "e a"), node("Exp", "a", "e"), node("Abs", "x", "a")), ({"x": X},)
    ),
    "tf_half_pixel_for_nn": Model(
        resized(
            "none",
            "scales",
            mode="nearest",
            coordinate_transformation_mode="tf_half_pixel_for_nn",
            nearest_mode="floor",
        ),
        tuple({"x": X, "scales": r} for r in RATIOS),
        opset=11,
        constants={"none": np.zeros(0, "f4")},
    ),
    "Col2Im": Model(
        (node("Col2Im", "x image block"),),
        (
            {"x": normal(1, 12, 20), "image": np.array([5, 6])},
            {"x": normal(1, 12, 6), "image": np.array([3, 4])},
        ),
        constants={"block": np.array([2, 2])},
    ),
    **{
        f"antialiased {mode}": Model(
            resized("-", "scales", mode=mode, antialias=1),
            tuple({"x": X, "scales": r} for r in RATIOS),
        )
        for mode in ("linear", "cubic")
    },
    "MaxUnpool": Model(
        (node("MaxUnpool", "x at shape", kernel_shape=[2, 2], strides=[2, 2]),),
        tuple(
            {
                "x": np.array([[[[1, 2], [3, 4]]]], "f4"),
                "at": np.array([[[[5, 7], [13, 15]]]]),
                "shape": np.array(shape),
            }
            for shape in ([1, 1, 4, 4], [1, 1, 5, 6])
        ),
        expected=tuple(
            np.pad(
                np.array([[0, 0, 0, 0], [0, 1, 0, 2], [0, 0, 0, 0], [0, 3, 0, 4]], "f4"),
                ((0, more), (0, 2 * more)),
            )[None, None]
            for more in (0, 1)
        ),
    ),
    "an absent optional": Model(
        (
            node("OptionalHasElement", "x", "has"),
            node(
                "If",
                "has",
                then_branch=branch(node("OptionalGetElement", "x", "a"), TENSOR),
                else_branch=branch(node("Neg", "other", "b"), TENSOR),
            ),
        ),
        ({"x": normal(4), "other": normal(3)}, {"x": None, "other": normal(2)}),
        types={"x": OPTIONAL, "other": TENSOR},
        output=TENSOR,
    ),
    "sequences of no element": Model(
        (node("SequenceLength", "x"),),
        ({"x": [normal(2), normal(2)]}, {"x": []}),
        types={"x": SEQUENCE},
    ),
    "what is put into a sequence of no element": Model(
        (node("SequenceInsert", "x other"),),
        ({"x": [], "other": normal(3)}, {"x": [normal(3)], "other": normal(3)}),
        types={"x": SEQUENCE, "other": TENSOR},
        output=SEQUENCE,
    ),
    "ImageScaler": early(
        "ImageScaler",
        X,
        X * np.float32(0.5) + np.array([1, 2, 3], "f4")[:, None, None],
        scale=0.5,
        bias=[1.0, 2.0, 3.0],
    ),
    "Crop": early("Crop", X, X[:, :, 2:4, 1:4], border=[1, 2, 2, 1]),
    "Crop to a size": early("Crop", X, X[:, :, 2:4, 1:4], border=[1, 2, 0, 0], scale=[2, 3]),
    "Affine": early("Affine", X, X * np.float32(2) + np.float32(0.5), alpha=2.0, beta=0.5),
    "ScaledTanh": early("ScaledTanh", X, np.tanh(X * np.float32(0.5)) * 2, alpha=2.0, beta=0.5),
    "ParametricSoftplus": early(
        "ParametricSoftplus", X, 2 * np.log1p(np.exp(X / 2)), alpha=2.0, beta=0.5
    ),
    "Scale": early("Scale", X, X * np.float32(3), scale=3.0),
    "ThresholdedRelu": early("ThresholdedRelu", X, np.where(X > 0.5, X, 0), alpha=0.5),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_nothing_said_but_the_file(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    path, library = model.save(tmp_path / "m.onnx"), tmp_path / "m.so"
    rutc.compile(path, library, verify=False)
    expected = model.expected
    if expected is None:
        reference = onnxruntime.InferenceSession(path)
        expected = tuple(reference.run(None, feed)[0] for feed in model.feeds)
    with rutc.load(library) as session:
        for feed, want in zip(model.feeds, expected, strict=True):
            (got,) = session.run(None, feed)
            parts = zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]
            for ours, theirs in parts:
                assert ours.shape == theirs.shape
                assert_close(ours, theirs, reduction=1024)
