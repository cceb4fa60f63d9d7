"""Elementwise operators and activations, broadcasts and special values included."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from rutc.tensor_ir.interpreter.interpret import interpret

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 1e30, -1e30, np.inf, -np.inf, np.nan], "f4")
UNARY = (
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Ceil",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Shrink",
    "Celu",
    "Asinh",
    "Acosh",
    "Atanh",
)


@pytest.mark.parametrize("op", UNARY)
def test_unary(op, check, make_node, rng):
    values = np.concatenate([rng.uniform(-3, 3, 50), [0.0, 0.5, 1.0, -1.0]]).astype("f4")
    check(make_node(op, ["x"]), {"x": values.reshape(2, 27)})


@pytest.mark.parametrize(
    "op", ["Abs", "Ceil", "Neg", "Relu", "Sign", "IsNaN", "IsInf", "Exp", "Floor", "Sqrt", "Round"]
)
def test_unary_of_special_values(op, check, make_node):
    check(make_node(op, ["x"]), {"x": SPECIAL})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3), (2, 3)), ((2, 3), ()), ((3,), (2, 1)), ((1, 3), (5, 1, 1)), ((0, 3), (3,))],
)
def test_binary_broadcasts(op, left, right, check, make_node, rng):
    inputs = {
        "a": rng.uniform(0.5, 2, left).astype("f4"),
        "b": rng.uniform(0.5, 2, right).astype("f4"),
    }
    check(make_node(op, ["a", "b"]), inputs)


@pytest.mark.parametrize("op", ["Max", "Min", "Add", "Mul"])
def test_binary_of_special_values(op, check, make_node):
    check(make_node(op, ["a", "b"]), {"a": SPECIAL, "b": SPECIAL.reshape(-1, 1)})


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op, check, make_node):
    check(make_node(op, ["a", "b"]), {"a": SPECIAL, "b": SPECIAL.reshape(-1, 1)})


@pytest.mark.parametrize("kind", ["i4", "i8"])
def test_integer_division_truncates(kind, check, make_node):
    a = np.array([7, -7, 7, -7], kind)
    check(make_node("Div", ["a", "b"]), {"a": a, "b": np.array([2, 2, -2, -2], kind)})
    check(make_node("Mod", ["a", "b"]), {"a": a, "b": np.array([2, 3, -3, -2], kind)})


def test_logic(check, make_node):
    a, c = np.array([True, True, False, False]), np.array([True, False, True, False])
    for op in ("And", "Or", "Xor"):
        check(make_node(op, ["a", "b"]), {"a": a, "b": c})
    check(make_node("Not", ["a"]), {"a": a})


@pytest.mark.parametrize("kind", ["f4", "f8", "f2"])
def test_float_types(kind, check, make_node, rng):
    a = rng.standard_normal((3, 5)).astype(kind)
    check(make_node("Add", ["a", "b"]), {"a": a, "b": a[:1]})


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("f4", TensorProto.INT64),
        ("f4", TensorProto.BOOL),
        ("i8", TensorProto.FLOAT),
        ("f4", TensorProto.FLOAT16),
        ("?", TensorProto.FLOAT),
        ("i8", TensorProto.INT32),
    ],
)
def test_cast(source, to, check, make_node):
    values = np.array([0, 1, -1, 2.75, -2.75, 100]).astype(source)
    check(make_node("Cast", ["x"], to=to), {"x": values})


def test_where_clip_prelu(check, make_node, rng):
    x = rng.standard_normal((2, 3, 5)).astype("f4")
    y = rng.standard_normal((3, 1)).astype("f4")
    check(make_node("Where", ["c", "x", "z"]), {"c": x > 0, "x": x, "z": y})
    limits = {"low": np.float32(-0.5).reshape(()), "high": np.float32(0.25).reshape(())}
    check(make_node("Clip", ["x", "low", "high"]), {"x": x}, limits)
    check(make_node("Clip", ["x", "", "high"]), {"x": x}, limits)
    check(make_node("PRelu", ["x", "slope"]), {"x": x, "slope": y})
    scalars = {"x": np.array(-2.0, np.float32), "slope": np.array(0.25, np.float32)}
    check(make_node("PRelu", ["x", "slope"]), scalars)


def test_variadic(check, make_node, rng):
    shapes = [("a", (3,)), ("b", (2, 1)), ("c", ())]
    arrays = {n: rng.standard_normal(s).astype("f4") for n, s in shapes}
    for op in ("Sum", "Mean", "Max", "Min"):
        check(make_node(op, list(arrays)), arrays)
        check(make_node(op, ["a"]), {"a": arrays["a"]})


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_operands_beyond_number_are_combined_in_order(op, check, make_node, rng):
    """As ONNX Runtime adds them, to the last bit; a few in each nest."""
    arrays = {f"x{k}": rng.standard_normal(3).astype("f4") for k in range(1500)}
    total = arrays["x0"]
    how = {"Max": np.maximum, "Min": np.minimum}.get(op, np.add)
    for array in list(arrays.values())[1:]:
        total = how(total, array)
    total = total / np.float32(1500) if op == "Mean" else total
    graph = check(make_node(op, list(arrays)), arrays, expected=[total])
    got = interpret(graph, arrays)["y"]
    np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 1])
def test_trilu(upper, k, check, make_node, rng):
    x = {"x": rng.standard_normal((2, 4, 5)).astype("f4")}
    check(make_node("Trilu", ["x", "k"], upper=upper), x, {"k": np.array(k)})


def test_bit_operators(check, make_node):
    a = np.array([1, 2, 255, 128], "u1")
    c = np.array([1, 3, 4, 7], "u1")
    for direction in ("LEFT", "RIGHT"):
        check(make_node("BitShift", ["a", "b"], direction=direction), {"a": a, "b": c})
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(make_node(op, ["a", "b"]), {"a": a, "b": c})


@pytest.mark.parametrize("dtype", ["u1", "u4", "u8", "i1", "i4"])
def test_shrinking_integers_wraps(dtype, check, make_node):
    x = np.array([0, 1, 2, 3, 100, 120]).astype(dtype)
    check(make_node("Shrink", ["x"], bias=2.0), {"x": x})
