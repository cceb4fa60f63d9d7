"""Gradient (ai.onnx.preview.training), against differences of the interpreted model in f64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests.close import assert_close

DOMAIN = "ai.onnx.preview.training"


def step(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **attributes)


def derived(nodes, inputs, names, values=None, y="y"):
    """The nodes followed by a Gradient of `y` by `names` (at `values` where given)."""
    outputs = [f"d_{n}" for n in names]
    rest = [n for n in inputs if n not in names and n not in (values or {}).values()]
    given = [(values or {}).get(n, n) for n in (*names, *rest)]
    attributes = {"xs": list(names), "y": y} | ({"zs": rest} if rest else {})
    last = step("Gradient", given, outputs, domain=DOMAIN, **attributes)
    return [*nodes, last], outputs


def imported(nodes, inputs, outputs, tmp_path):
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    graph = helper.make_graph(nodes, "test", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    imports = [helper.make_opsetid("", 22), helper.make_opsetid(DOMAIN, 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    made = import_model(path)
    verify(made)
    return made


def evaluated(graph, inputs):
    return interpret(graph, {i.name: inputs[i.name] for i in graph.inputs})


def run(nodes, inputs, outputs, tmp_path):
    return evaluated(imported(nodes, inputs, outputs, tmp_path), inputs)


def check(nodes, inputs, names, tmp_path):
    """Compares the gradients with central differences of the sum of y."""
    steps, outputs = derived(nodes, inputs, names)
    got = run(steps, inputs, outputs, tmp_path)
    graph = imported(nodes, inputs, ["y"], tmp_path)
    h = 1e-5
    for name in names:
        expected = np.zeros_like(inputs[name])
        for at in np.ndindex(expected.shape):
            values = []
            for sign in (1, -1):
                moved = inputs[name].copy()
                moved[at] += sign * h
                values.append(evaluated(graph, {**inputs, name: moved})["y"].sum())
            expected[at] = (values[0] - values[1]) / (2 * h)
        assert_close(got[f"d_{name}"], expected, reduction=1024, dtype=np.float32, err_msg=name)


UNARY = ["Abs", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh"]
UNARY += ["Erf", "Neg", "Reciprocal", "Sigmoid", "Relu", "Softplus", "Gelu", "Floor"]


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_element(op, tmp_path, rng):
    check([step(op, ["x"], ["y"])], {"x": rng.uniform(0.2, 1.4, (2, 3))}, ["x"], tmp_path)


@pytest.mark.parametrize("op", ["Asin", "Acos", "Atanh"])
def test_functions_on_the_unit_interval(op, tmp_path, rng):
    check([step(op, ["x"], ["y"])], {"x": rng.uniform(-0.8, 0.8, 4)}, ["x"], tmp_path)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
def test_pairs_that_broadcast(op, tmp_path, rng):
    inputs = {"a": rng.uniform(0.5, 2, (2, 3)), "b": rng.uniform(0.5, 2, (3,))}
    check([step(op, ["a", "b"], ["y"])], inputs, ["a", "b"], tmp_path)


def layers():
    return {
        "product": [step("MatMul", ["a", "b"], ["y"])],
        "transposed": [step("Transpose", ["a"], ["t"]), step("Mul", ["t", "t"], ["y"])],
        "reshaped": [step("Flatten", ["a"], ["f"], axis=0), step("Exp", ["f"], ["y"])],
        "softmax": [step("Softmax", ["a"], ["p"], axis=1), step("Mul", ["p", "a"], ["y"])],
        "extreme": [step("ReduceMax", ["a"], ["m"], keepdims=0), step("Exp", ["m"], ["y"])],
        "mean": [step("ReduceMean", ["a"], ["m"]), step("Mul", ["m", "a"], ["y"])],
        "joined": [step("Concat", ["a", "c"], ["j"], axis=0), step("Exp", ["j"], ["y"])],
        "gathered": [step("Gather", ["a", "i"], ["g"]), step("Mul", ["g", "g"], ["y"])],
    }


@pytest.mark.parametrize("name", layers())
def test_layers(name, tmp_path, rng):
    nodes = layers()[name]
    inputs = {"a": rng.standard_normal((3, 4))}
    used = {i for n in nodes for i in n.input}
    if "b" in used:
        inputs["b"] = rng.standard_normal((4, 2))
    if "c" in used:
        inputs["c"] = rng.standard_normal((2, 4))
    if "i" in used:
        inputs["i"] = np.array([2, 0, 2])
    check(nodes, inputs, ["a"], tmp_path)


def test_convolution(tmp_path, rng):
    inputs = {"x": rng.standard_normal((1, 2, 4, 4)), "w": rng.standard_normal((3, 2, 3, 3))}
    nodes = [
        step("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        step("Mul", ["c", "c"], ["y"]),
    ]
    check(nodes, inputs, ["x", "w"], tmp_path)


def test_other_values_than_those_of_the_names(tmp_path, rng):
    nodes = [step("Mul", ["a", "b"], ["m"]), step("Exp", ["m"], ["y"])]
    inputs = {n: rng.standard_normal(3) for n in ("a", "b", "other")}
    last = step("Gradient", ["other", "b"], ["d"], domain=DOMAIN, xs=["a"], zs=["b"], y="y")
    got = run([*nodes, last], inputs, ["d"], tmp_path)["d"]
    expected = inputs["b"] * np.exp(inputs["other"] * inputs["b"])
    assert_close(got, expected, reduction=1024, dtype=np.float64)


def test_second_derivative(tmp_path, rng):
    x = rng.standard_normal(4)
    nodes = [
        step("Sin", ["x"], ["s"]),
        step("Gradient", ["x"], ["d"], domain=DOMAIN, xs=["x"], y="s"),
        step("Gradient", ["x"], ["dd"], domain=DOMAIN, xs=["x"], y="d"),
    ]
    got = run(nodes, {"x": x}, ["dd"], tmp_path)["dd"]
    assert_close(got, -np.sin(x), reduction=1024, dtype=np.float64)


def test_a_tensor_that_the_result_does_not_need(tmp_path, rng):
    inputs = {"a": rng.standard_normal(3), "b": rng.standard_normal((2, 1))}
    steps, outputs = derived([step("Exp", ["a"], ["y"])], inputs, ["a", "b"])
    got = run(steps, inputs, outputs, tmp_path)
    np.testing.assert_array_equal(got["d_b"], np.zeros((2, 1)))


def test_no_derivative_is_an_error(tmp_path, rng):
    body = helper.make_graph(
        [step("Add", ["t", "p"], ["n"])],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, (3,)) for n in "tp"],
        [helper.make_tensor_value_info("n", TensorProto.DOUBLE, (3,))],
    )
    nodes = [step("Scan", ["s", "x"], ["y"], body=body, num_scan_inputs=1)]
    inputs = {"s": np.zeros(3), "x": rng.standard_normal((4, 3))}
    steps, outputs = derived(nodes, inputs, ["x"])
    with pytest.raises(UserError, match=r"no derivative through Scan_y \(a scan\)"):
        run(steps, inputs, outputs, tmp_path)
