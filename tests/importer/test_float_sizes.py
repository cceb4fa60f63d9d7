"""Sizes that a model computes in floating point and rounds."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.tensor_ir.indices.ranges import without_common

OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
ROUND = {"Ceil": np.ceil, "Floor": np.floor}


def rows(path, steps, to=TensorProto.INT64, kind=TensorProto.FLOAT):
    """Zeros, as many as a formula of x's length says, which `steps` compute in floating point."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Squeeze", ["shape"], ["n"]),
        helper.make_node("Cast", ["n"], ["v0"], to=kind),
    ]
    data = []
    for k, (op, number) in enumerate(steps):
        given = [f"v{k}"]
        if number is not None:
            given.append(f"c{k}")
            array = np.array(number, helper.tensor_dtype_to_np_dtype(kind))
            data.append(numpy_helper.from_array(array, given[1]))
        nodes.append(helper.make_node(op, given, [f"v{k + 1}"]))
    last = f"v{len(steps)}"
    nodes += [
        helper.make_node("Cast", [last], ["rows"], to=to),
        helper.make_node("Cast", ["rows"], ["long"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["long", "one"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
    ]
    data.append(numpy_helper.from_array(np.array([1]), "one"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], data)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def computed(n, steps, kind):
    """The same by numpy, in the same precision."""
    v = n.astype(kind)
    for op, number in steps:
        v = ROUND[op](v) if number is None else OPERATORS[op](v, kind(number))
    return v.astype(np.int64)


CASES = {
    "a stride of one": ([("Div", 1), ("Add", 1), ("Ceil", None)], (1 << 24) - 1),
    "a stride of two": ([("Sub", 3), ("Div", 2), ("Add", 1), ("Ceil", None)], (1 << 24) + 1),
    "a stride of three": ([("Add", 4), ("Div", 3), ("Add", 1), ("Ceil", None)], (1 << 24) // 6 - 7),
    "thirds alone": ([("Div", 3), ("Floor", None), ("Add", 1)], (1 << 24) // 2),
    "twice and a half": ([("Mul", 2.5), ("Floor", None)], (1 << 24) // 5),
    "less than half": ([("Mul", 0.5), ("Sub", 0.25), ("Floor", None)], 1 << 22),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rounded_size_is_a_formula(name, tmp_path):
    """Exactly what f32 computes, up to the length from which on it might round otherwise."""
    steps, most = CASES[name]
    g = import_model(rows(tmp_path / "m.onnx", steps))
    ranges = without_common(dict(g.symbols))
    assert list(ranges) == ["n"]
    least, largest = ranges["n"]
    assert abs(largest - most) <= 2
    (dim,) = g.nodes[-1].out.dims
    extent = dict(g.dims)[dim]
    lengths = np.concatenate([np.arange(max(least, 4), 2000), np.arange(most - 2000, largest + 1)])
    found = [extent.evaluate({"n": int(n)}) for n in lengths]
    np.testing.assert_array_equal(found, computed(lengths, steps, np.float32))


def test_in_double_precision_sizes_are_as_long_as_any(tmp_path):
    steps = CASES["a stride of two"][0]
    g = import_model(rows(tmp_path / "m.onnx", steps, kind=TensorProto.DOUBLE))
    assert without_common(dict(g.symbols))["n"][1] == 1 << 31


@pytest.mark.parametrize(
    "steps",
    [
        [("Div", 3), ("Mul", 3), ("Ceil", None)],
        [("Div", 3), ("Add", 0.5), ("Floor", None)],
        [("Mul", 0.1), ("Floor", None)],
        [("Div", 2)],
    ],
)
def test_what_floating_point_may_round_otherwise_is_left_to_the_run(steps, tmp_path):
    g = import_model(rows(tmp_path / "m.onnx", steps))
    ranges = without_common(dict(g.symbols))
    assert len(ranges) > 1
    assert ranges["n"] == (0, 1 << 31)


def test_a_stated_range_is_not_made_smaller(tmp_path):
    path = rows(tmp_path / "m.onnx", CASES["a stride of two"][0])
    g = import_model(path, dims={"n": (1, 1 << 30)})
    ranges = without_common(dict(g.symbols))
    assert ranges["n"] == (1, 1 << 30)
    assert len(ranges) > 1
    small = import_model(path, dims={"n": (1, 1 << 20)})
    assert list(dict(small.symbols)) == ["n"]
