"""Models of opsets 1 to 6, and operators that ONNX dropped.

ONNX Runtime is the oracle where it has the operator at the opset; otherwise the expected values are
what the definition of that opset says, by numpy, or by ONNX Runtime at a newer opset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.opsets.conversion_errors import refusal
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close
from tests.importer.conftest import build, node

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype("f4")
M = RNG.standard_normal((3, 4)).astype("f4")
C = RNG.standard_normal(3).astype("f4")
ROWS = RNG.standard_normal((3, 4)).astype("f4")
TALL = RNG.standard_normal((4, 2)).astype("f4")
SERIES = RNG.standard_normal((4, 2, 3)).astype("f4")
STEPS = [RNG.standard_normal(s).astype("f4") for s in ((1, 5, 3), (1, 5, 5), (1, 10))]
ELEMENTS = [np.abs(RNG.standard_normal((3, 4, 5))).astype("f4") for _ in range(4)]
CHANNELS = [np.abs(RNG.standard_normal(3)).astype("f4") for _ in range(4)]
USED = {"consumed_inputs": [0, 0]}
COLUMN = C[:, None, None]


@dataclass(frozen=True)
class Case:
    """A node of an early opset: inputs, attributes and what it gives; None: ask ONNX Runtime."""

    op: str
    opset: int
    inputs: tuple[np.ndarray, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    expected: np.ndarray | tuple[np.ndarray, ...] | None = None
    constants: tuple[np.ndarray, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}" + "".join(f"-{name}" for name in self.attributes)


def now(op: str, inputs: tuple[np.ndarray, ...], outputs: int = 1, **attributes: Any) -> Any:
    """What ONNX Runtime gives for an operator of opset 21, or of its own domains."""
    names = [f"i{k}" for k in range(len(inputs))]
    results = [f"o{k}" for k in range(outputs)]
    made = build(
        [node(op, names, results, **attributes)], dict(zip(names, inputs, strict=True)), results, {}
    )
    session = onnxruntime.InferenceSession(made.SerializeToString())
    found = session.run(None, dict(zip(names, inputs, strict=True)))
    return found[0] if outputs == 1 else tuple(found)


def normalized(p: list[np.ndarray]) -> np.ndarray:
    scale, shift, mean, variance = p
    return (X - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + shift


def unary() -> list[Case]:
    """Operators whose signature lost only `consumed_inputs` at opset 6."""
    found = {
        "Abs": np.abs(X),
        "Ceil": np.ceil(X),
        "Exp": np.exp(X),
        "Floor": np.floor(X),
        "Neg": -X,
        "Relu": np.maximum(X, 0),
        "Tanh": np.tanh(X),
        "Sigmoid": 1 / (1 + np.exp(-X)),
        "Reciprocal": 1 / X,
        "Elu": np.where(X > 0, X, np.exp(X) - 1),
        "LeakyRelu": np.where(X > 0, X, np.float32(0.01) * X),
        "HardSigmoid": np.clip(X * np.float32(0.2) + np.float32(0.5), 0, 1),
        "Selu": np.float32(1.0507) * np.where(X > 0, X, np.float32(1.6732) * (np.exp(X) - 1)),
        "Clip": X,
    }
    cases = [Case(op, 1, (X,), {"consumed_inputs": [0]}, e) for op, e in found.items()]
    positive = np.abs(X)
    for op, e in (("Log", np.log(positive)), ("Sqrt", np.sqrt(positive))):
        cases.append(Case(op, 5, (positive,), {"consumed_inputs": [0]}, e))
    for op, f in (("Max", np.maximum), ("Min", np.minimum), ("Sum", np.add)):
        cases.append(Case(op, 1, (X, -2 * X), USED, f(X, -2 * X)))
    return [*cases, Case("Mean", 1, (X, 2 * X), USED, X * np.float32(1.5))]


def binary() -> list[Case]:
    """The attributes `broadcast` and `axis`."""
    bits = X > 0
    flags = np.array([True, False, True])
    by_channel = {"broadcast": 1, "axis": 1}
    cases = [Case(op, 6, (X, X + 1), {}, f(X, X + 1)) for op, f in (("Add", np.add),)]
    arithmetic = (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide))
    for op, f in arithmetic:
        cases.append(Case(op, 1, (X, C), {**USED, **by_channel}, f(X, COLUMN)))
        cases.append(Case(op, 6, (X, ELEMENTS[0][0]), {"broadcast": 1}, f(X, ELEMENTS[0][0])))
        cases.append(Case(op, 6, (X, M), by_channel, f(X, M[..., None])))
    for op, g in (("Equal", np.equal), ("Greater", np.greater), ("Less", np.less)):
        whole = (X * 2).astype("i4" if op == "Equal" else "f4")
        few = np.arange(3).astype(whole.dtype)
        cases.append(Case(op, 1, (whole, few), by_channel, g(whole, few[:, None, None])))
    for op, h in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        cases.append(Case(op, 1, (bits, flags), by_channel, h(bits, flags[:, None, None])))
    squares = np.abs(X) ** np.abs(COLUMN)
    cases.append(Case("Pow", 1, (np.abs(X), np.abs(C)), by_channel, squares))
    one = np.float32([2])
    cases.append(Case("Mul", 6, (X, one), {"broadcast": 1, "axis": 1}, X * 2))
    cases.append(Case("Mul", 6, (X, np.float32(2)), {"broadcast": 1}, X * 2))
    return cases


def recurrent() -> list[Case]:
    attributes = {"hidden_size": 5, "output_sequence": 1}
    gates = {"RNN": (1, 1), "LSTM": (1, 4), "GRU": (3, 3)}
    cases = []
    for op, (opset, count) in gates.items():
        w, r, bias = (np.repeat(t, count, axis=1) for t in STEPS)
        given = (SERIES, w * np.float32(0.3), r * np.float32(0.3), bias)
        outputs = 3 if op == "LSTM" else 2
        cases.append(Case(op, opset, given, attributes, now(op, given, outputs, hidden_size=5)))
    return cases


CASES = [
    *unary(),
    *binary(),
    *recurrent(),
    Case("Clip", 1, (X,), {"min": -0.5, "max": 0.25}, np.clip(X, -0.5, 0.25)),
    Case("Clip", 5, (X,), {"min": 0.0}, np.maximum(X, 0)),
    Case("Selu", 6, (X,), {}, now("Selu", (X,))),
    Case("Cast", 1, (X * 9,), {"to": "INT32"}, (X * 9).astype("i4")),
    Case("Cast", 5, (X,), {"to": "double"}, X.astype("f8")),
    Case("Concat", 1, (X, X), {}, np.concatenate([X, X], 1)),
    Case("Concat", 3, (X, X), {"axis": 0}, np.concatenate([X, X], 0)),
    Case("Dropout", 1, (X,), {"consumed_inputs": [0], "is_test": 1, "ratio": 0.5}, X),
    Case("Dropout", 6, (X,), {"is_test": 1}, X),
    Case("Gemm", 1, (M, TALL, C[:, None]), {"broadcast": 1}, M @ TALL + C[:, None]),
    Case("Gemm", 6, (M, TALL.T, C[:2]), {"broadcast": 1, "transB": 1}, M @ TALL + C[:2]),
    Case("GlobalLpPool", 1, (X,), {"p": 2.0}, np.sqrt((X**2).sum((2, 3), keepdims=True))),
    Case("GlobalLpPool", 1, (X,), {"p": 1.0}, np.abs(X).sum((2, 3), keepdims=True)),
    Case(
        "LpPool",
        1,
        (X,),
        {"p": 2.0, "kernel_shape": [2, 2]},
        now("LpPool", (X,), kernel_shape=[2, 2]),
    ),
    Case("InstanceNormalization", 1, (X, C, C), USED, now("InstanceNormalization", (X, C, C))),
    Case(
        "Pad",
        1,
        (M,),
        {"paddings": [1, 0, 2, 3], "value": 1.5},
        np.pad(M, ((1, 2), (0, 3)), constant_values=1.5),
    ),
    Case("Pad", 2, (M,), {"pads": [1, 0, 2, 3], "mode": "edge"}),
    Case("PRelu", 1, (X, C), {"consumed_inputs": [0, 0]}, np.where(X < 0, COLUMN * X, X)),
    Case("PRelu", 6, (X[:, :, :3, :3], C), {}, np.where(X < 0, COLUMN * X, X)[:, :, :3, :3]),
    Case("PRelu", 6, (X, C[:1]), {}, np.where(X < 0, C[0] * X, X)),
    Case("Reshape", 1, (X,), {"shape": [0, -1], "consumed_inputs": [0]}, X.reshape(2, -1)),
    Case("Reshape", 5, (X, np.array([6, 20])), {}, X.reshape(6, 20)),
    Case("Slice", 1, (X,), {"axes": [1, 3], "starts": [1, -4], "ends": [4, 100]}),
    Case("Split", 1, (X,), {"axis": 3, "split": [2, 3]}, (X[..., :2], X[..., 2:])),
    Case("Split", 1, (X,), {"axis": 3}, (X[..., :2], X[..., 2:]), (np.float32([2, 3]),)),
    Case("Split", 2, (X,), {"axis": 2}, (X[:, :, :2], X[:, :, 2:])),
    Case("Tile", 1, (X,), {}, np.tile(X, (1, 1, 3, 1)), (np.array([3]), np.array([2]))),
    Case("Tile", 6, (M,), {}, np.tile(M, (2, 3)), (np.array([2, 3]),)),
    Case("TopK", 1, (M,), {"k": 2, "axis": 1}, now("TopK", (M, np.array([2])), 2)),
    Case(
        "Upsample",
        1,
        (X,),
        {"height_scale": 2.0, "width_scale": 3.0},
        X.repeat(2, 2).repeat(3, 3),
    ),
    Case(
        "BatchNormalization",
        1,
        (X, *CHANNELS),
        {"consumed_inputs": [0, 0, 0, 1, 1], "is_test": 1},
        normalized([p[:, None, None] for p in CHANNELS]),
    ),
    Case(
        "BatchNormalization",
        6,
        (X, *CHANNELS),
        {"is_test": 1, "momentum": 0.5},
        normalized([p[:, None, None] for p in CHANNELS]),
    ),
    Case(
        "BatchNormalization", 6, (X, *ELEMENTS), {"is_test": 1, "spatial": 0}, normalized(ELEMENTS)
    ),
    Case("BatchNormalization", 8, (X, *ELEMENTS), {"spatial": 0}),
    # Which ONNX dropped, and ONNX Runtime did not.
    Case("Affine", 6, (X,), {"alpha": 0.5, "beta": 3.0}),
    Case("Affine", 9, (X,)),
    Case("Crop", 8, (X,), {"border": [1, 2, 1, 1]}),
    Case("Crop", 1, (X,), {"border": [1, 2, 0, 0], "scale": [2, 3]}),
    Case("DynamicSlice", 9, (X, np.array([1, 0]), np.array([2, -1]), np.array([2, 3]))),
    Case("DynamicSlice", 9, (X, np.array([1, 0]), np.array([9, 2]))),
    Case("ImageScaler", 8, (X,), {"scale": 0.5, "bias": [1.0, 2.0, 3.0]}),
    Case("MeanVarianceNormalization", 8, (X,)),
    Case("MeanVarianceNormalization", 1, (X,), {"across_channels": 1}),
    Case("MeanVarianceNormalization", 8, (X,), {"normalize_variance": 0}),
    Case("ParametricSoftplus", 7, (X * 9,), {"alpha": 0.5, "beta": 3.0}),
    Case("Scale", 9, (X,), {"scale": 0.3}),
    Case("ScaledTanh", 7, (X,), {"alpha": 0.5, "beta": 3.0}),
    Case("ThresholdedRelu", 1, (X,), {"alpha": 0.5}),
    Case("ThresholdedRelu", 9, (X,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_node_of_an_early_opset(case: Case, check: Any) -> None:
    names = [f"i{k}" for k in range(len(case.inputs) + len(case.constants))]
    inputs = dict(zip(names, case.inputs, strict=False))
    constants = dict(zip(names[len(inputs) :], case.constants, strict=True))
    count = len(case.expected) if isinstance(case.expected, tuple) else 1
    outputs = ["y", "z", "w"][:count]
    made = node(case.op, names, outputs, **case.attributes)
    expected = case.expected
    if expected is not None and not isinstance(expected, tuple):
        expected = (expected,)
    check(made, inputs, constants, outputs, case.opset, expected)


@pytest.mark.parametrize("sizes", [["n", 3, "h", "w"], [None] * 4])
def test_sizes_may_be_symbolic(sizes: list[Any], tmp_path: Any) -> None:
    """The conversion of the onnx package wants numbers where an operator had `broadcast`."""
    nodes = [
        node("Add", ["x", "c"], ["a"], broadcast=1, axis=1),
        node("Gemm", ["m", "w", "bias"], ["g"], broadcast=1),
        node("Mul", ["a", "k"], ["y"], broadcast=1),
    ]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes),
        helper.make_tensor_value_info("m", TensorProto.FLOAT, [*sizes[:1], 4]),
    ]
    data = {"c": C, "k": np.float32(2), "w": TALL, "bias": C[:2]}
    outputs = [onnx.ValueInfoProto(name=n) for n in ("y", "g")]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in data.items()]
    graph = helper.make_graph(nodes, "g", infos, outputs, tensors)
    opsets = [helper.make_opsetid("", 6)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=3), tmp_path / "m.onnx")
    made = import_model(tmp_path / "m.onnx")
    got = interpret(made, {"x": X, "m": M[:2]})
    assert_close(got["y"], (X + COLUMN) * 2, reduction=16)
    assert_close(got["g"], M[:2] @ TALL + C[:2], reduction=1024)


def refused(tmp_path: Any, nodes: list[onnx.NodeProto], opset: int) -> str:
    onnx.save(build(nodes, {"x": X}, ["y"], {}, opset), tmp_path / "m.onnx")
    with pytest.raises(UserError) as error:
        import_model(tmp_path / "m.onnx")
    return str(error.value)


def test_operators_that_the_opset_does_not_have(tmp_path: Any) -> None:
    nodes = [node("Gelu", ["x"], ["a"]), node("GRUUnit", ["a"], ["b"]), node("Gelu", ["b"], ["y"])]
    assert refused(tmp_path, nodes, 8) == (
        "opset 8, the model's, has no operator\n"
        "  GRUUnit (1): 'GRUUnit_b'\n"
        "  Gelu (2, of opset 20 and newer): 'Gelu_a', 'Gelu_y'"
    )
    nodes = [node("Affine", ["x"], ["y"])]
    assert refused(tmp_path, nodes, 10).endswith("has no operator\n  Affine (1): 'Affine_y'")


def test_operators_that_cannot_be_converted() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Upsample", ["a"], ["y"], mode="cubic")]
    model = build(nodes, {"x": X}, ["y"], {}, 7)
    message = str(refusal(model, 7, 28, ["Upsample"], ValueError("a reason")))
    assert message.startswith(
        "the model's opset 7 cannot be brought to opset 28 for\n  Upsample (1)"
    )
    assert "Assertion" not in message
    assert "/" not in message


def test_a_node_without_what_its_operator_needs(tmp_path: Any) -> None:
    message = refused(tmp_path, [node("Upsample", ["x"], ["y"], mode="cubic")], 7)
    assert message == "Upsample (node 'Upsample_y') lacks the attribute 'scales', which it needs"


@pytest.mark.parametrize(
    ("made", "word", "wanted"),
    [
        ("Reshape <shape = [3, 2]> (x)", "shape", [[1, -2], [3, -4], [5, -6]]),
        ("Add <broadcast = 1, axis = 0> (x, c)", "aligned", [[2, -1, 4], [-2, 7, -4]]),
        ("PRelu (x, s)", "slopes", [[1, -4, 3], [-8, 5, -12]]),
    ],
)
def test_values_that_are_called_like_what_a_rewrite_makes(
    made: str, word: str, wanted: list[list[float]], tmp_path: Any
) -> None:
    source = f"""<ir_version: 3, opset_import: ["" : 4]>
        g (float[2, 3] x, float[2] y_{word}) => (float[a, b] y, float[2] y__{word})
        <float[2] c = {{1, 2}}, float[1] s = {{2}}>
        {{ y = {made} y__{word} = Neg (y_{word}) }}"""
    onnx.save(onnx.parser.parse_model(source), tmp_path / "m.onnx")
    x = np.array([[1, -2, 3], [-4, 5, -6]], "f4")
    feeds = {"x": x, f"y_{word}": np.array([7, 8], "f4")}
    found = interpret(import_model(tmp_path / "m.onnx"), feeds)
    np.testing.assert_array_equal(found["y"], wanted)
    np.testing.assert_array_equal(found[f"y__{word}"], [-7, -8])
