"""Cuts that begin before the first element for some sizes only, and what their lengths tell."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.free_sizes.pieces import pieces
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.ranges import without_common
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.onnx_files import i64

ROWS = 9
"""A table of positions for texts of up to 9 words has 17 rows: -8 to 8."""
TABLE = np.arange(17 * 2, dtype="f4").reshape(17, 2)


def model(path, nodes, **constants):
    """A model of x{batch, seq, 2}, a table of 17 rows and constants."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 2])
    data = [numpy_helper.from_array(a, n) for n, a in {"table": TABLE, **constants}.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], data)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)
    return path


def cut(first, last):
    """Rows first - seq to last + seq of the table; constants of these names are to be given."""
    return [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Sub", [first, "n"], ["start"]),
        helper.make_node("Add", [last, "n"], ["end"]),
        helper.make_node("Slice", ["table", "start", "end", "zero"], ["rows"]),
    ]


@pytest.fixture
def middle(tmp_path):
    """x plus the first half of the rows of all distances in a text, as in relative positions."""
    nodes = [
        *cut("nine", "eight"),
        helper.make_node("Shape", ["rows"], ["length"], start=0, end=1),
        helper.make_node("Div", ["length", "two"], ["pairs"]),
        helper.make_node("Add", ["pairs", "one"], ["many"]),
        helper.make_node("Slice", ["rows", "zero", "many", "zero"], ["half"]),
        helper.make_node("Add", ["x", "half"], ["y"], name="plus"),
    ]
    constants = {"nine": i64(9), "eight": i64(8), "zero": i64(0), "one": i64(1), "two": i64(2)}
    return model(tmp_path / "m.onnx", nodes, **constants)


def test_a_cut_that_wraps_does_not_fit(middle):
    """Texts are no longer than the table has rows for, and the length of the cut is a formula."""
    g = import_model(middle)
    told = without_common(dict(g.symbols))
    assert told["seq"] == (0, ROWS)
    assert "length" not in told
    x = np.ones((2, 5, 2), "f4")
    np.testing.assert_array_equal(interpret(g, {"x": x})["y"], x + TABLE[4:9])


def test_a_stated_range_stands(middle):
    """A cut of one row, which wraps around, is spread over the text then."""
    g = import_model(middle, dims={"seq": (1, 20)})
    assert dict(g.symbols)["seq"] == (1, 20)
    for n, rows in ((5, TABLE[4:9]), (10, TABLE[16:17])):
        x = np.ones((2, n, 2), "f4")
        np.testing.assert_array_equal(interpret(g, {"x": x})["y"], x + rows)
    with pytest.raises(UserError, match="do not broadcast"):
        interpret(g, {"x": np.ones((2, 12, 2), "f4")})


def test_a_reshape_tells_as_well(tmp_path):
    """Also beside sizes that both sides have in common."""
    nodes = [
        *cut("nine", "eight"),
        helper.make_node("Unsqueeze", ["rows", "zero"], ["one"]),
        helper.make_node("Shape", ["x"], ["b"], start=0, end=1),
        helper.make_node("Concat", ["b", "ones"], ["spread"], axis=0),
        helper.make_node("Expand", ["one", "spread"], ["all"]),
        helper.make_node("Mul", ["n", "four"], ["wide"]),
        helper.make_node("Sub", ["wide", "two"], ["length"]),
        helper.make_node("Concat", ["b", "length"], ["shape"], axis=0),
        helper.make_node("Reshape", ["all", "shape"], ["y"]),
    ]
    constants = {"nine": i64(9), "eight": i64(8), "zero": i64(0), "ones": i64(1, 1)}
    constants |= {"two": i64(2), "four": i64(4)}
    g = import_model(model(tmp_path / "m.onnx", nodes, **constants))
    assert without_common(dict(g.symbols)) == {"batch": (0, 1 << 31), "seq": (1, ROWS)}
    y = interpret(g, {"x": np.ones((3, 2, 2), "f4")})["y"]
    np.testing.assert_array_equal(y, np.tile(TABLE[7:10].reshape(1, -1), (3, 1)))


def test_a_cut_of_one_row_may_wrap(tmp_path):
    """It fits any text, from either end of the table."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Sub", ["nine", "n"], ["start"]),
        helper.make_node("Add", ["start", "one"], ["end"]),
        helper.make_node("Slice", ["table", "start", "end", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"], name="plus"),
    ]
    constants = {"nine": i64(9), "one": i64(1), "zero": i64(0)}
    g = import_model(model(tmp_path / "m.onnx", nodes, **constants))
    for n, row in ((4, 5), (11, 15)):
        x = np.ones((1, n, 2), "f4")
        np.testing.assert_array_equal(interpret(g, {"x": x})["y"], x + TABLE[row])


def test_pieces_are_few():
    def sign(x):
        return lambda ranges: (r := x.bounds(ranges)) is not None and not r[0] < 0 <= r[1]

    n = Index.of("n")
    assert pieces("n", {"n": (0, 30)}, sign(9 - n)) == [(0, 9), (10, 30)]
    assert pieces("n", {"n": (0, 30)}, sign(n % 2 - 1)) is None
