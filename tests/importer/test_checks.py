"""Checks of sizes that only the run tells: no read leaves its value."""

import numpy as np
import onnx
import pytest
from onnx import parser

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir import If, Scan
from rutc.tensor_ir.interpret import interpret
from rutc.tensor_ir.ranges import without_common

HEADER = '<ir_version: 10, opset_import: ["" : 21]> '
PICK = "g ({x} x, {at} at) => (float[] y) {{ y = GatherElements <axis = 1> (x, at) }}"
STEPS = """
    g (float[3, n, 2] x, int32[m] length) => (float[] y)
        <float[1, 1, 2] w = {1, 1}, float[1, 1, 1] r = {0}>
        { y, last = RNN <hidden_size = 1, activations = ["Relu"]> (x, w, r, , length) }
"""


def imported(path, text, dims=None):
    onnx.save(parser.parse_model(HEADER + text), path / "m.onnx")
    return import_model(path / "m.onnx", dims=dims or {})


def checks(nodes):
    return sum(isinstance(n, If) for n in nodes)


def test_an_operand_is_as_long_as_it_is_read(tmp_path):
    dims = {"n": (0, 9), "m": (0, 9)}
    g = imported(tmp_path, PICK.format(x="float[n, 3]", at="int64[m, 3]"), dims)
    assert checks(g.nodes) == 1
    x = np.arange(12, dtype="f4").reshape(4, 3)
    for rows in (4, 2, 0):
        at = np.full((rows, 3), 2)
        np.testing.assert_array_equal(interpret(g, {"x": x, "at": at})["y"], x[:rows, [2, 2, 2]])
    with pytest.raises(UserError, match="m elements are read along an axis of x of n"):
        interpret(g, {"x": x, "at": np.zeros((5, 3), np.int64)})
    nothing = interpret(g, {"x": x[:0], "at": np.zeros((0, 3), np.int64)})
    assert nothing["y"].shape == (0, 3)


def test_nothing_is_checked_where_the_sizes_are_one(tmp_path):
    g = imported(tmp_path, PICK.format(x="float[n, 3]", at="int64[n, 3]"), {"n": (1, 9)})
    assert checks(g.nodes) == 0


def test_a_range_says_what_need_not_be_checked(tmp_path):
    g = imported(tmp_path, PICK.format(x="float[4, 3]", at="int64[n, 3]"), {"n": (1, 9)})
    assert checks(g.nodes) == 0
    assert without_common(dict(g.symbols)) == {"n": (1, 4)}


def test_sizes_that_never_fit_are_refused(tmp_path):
    text = PICK.format(x="float[4, 3]", at="int64[5, 3]")
    with pytest.raises(UserError, match="5 elements are read along an axis of x of 4"):
        imported(tmp_path, text)


def test_a_scan_is_checked_before_it_begins(tmp_path):
    g = imported(tmp_path, STEPS, {"n": (1, 9), "m": (1, 9)})
    (scan,) = (n for n in g.nodes if isinstance(n, Scan))
    assert checks(g.nodes) == 1
    assert checks(scan.body) == 0
    x, length = np.ones((3, 2, 2), "f4"), np.array([1, 3], np.int32)
    rows = interpret(g, {"x": x, "length": length})["y"][:, 0, :, 0]
    np.testing.assert_array_equal(rows, [[2, 2], [0, 2], [0, 2]])
    with pytest.raises(UserError, match="n elements are read along an axis of length of m"):
        interpret(g, {"x": x, "length": length[:1]})


def test_what_may_not_run_is_checked_where_it_does(tmp_path):
    text = """
        g (bool c, float[n, 2] x, int64[m, 2] at) => (float[] y) {
            y = If (c) <
                then_branch = a () => (float[] p) { p = GatherElements <axis = 1> (x, at) },
                else_branch = b () => (float[] q) { q = Neg (x) }
            >
        }
    """
    g = imported(tmp_path, text, {"n": (1, 9), "m": (1, 9)})
    (choice,) = (n for n in g.nodes if isinstance(n, If))
    assert checks(choice.then.nodes) == 1
    x, at = np.arange(8, dtype="f4").reshape(4, 2), np.ones((5, 2), np.int64)
    np.testing.assert_array_equal(interpret(g, {"c": np.array(False), "x": x, "at": at})["y"], -x)
    with pytest.raises(UserError, match="m elements are read along an axis of x of n"):
        interpret(g, {"c": np.array(True), "x": x, "at": at})


@pytest.mark.parametrize(
    ("inputs", "node", "message"),
    [
        ("float[2] x, int64[3, 2] at", "y = GatherND (x, at)", "more coordinates"),
        ("float[2] x, int64[3, 2] at, float[3] u", "y = ScatterND (x, at, u)", "more coordinates"),
        ("float[2] x, int64[2] k", "y, i = TopK (x, k)", "k must be one element"),
    ],
)
def test_operands_that_never_fit(tmp_path, inputs, node, message):
    with pytest.raises(UserError, match=message):
        imported(tmp_path, f"g ({inputs}) => (float[] y) {{ {node} }}")
