"""Checks of sizes that only the run tells: no read leaves its value."""

import numpy as np
import onnx
import pytest
from onnx import parser

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Learn, Run
from rutc.importer import import_model
from rutc.tensor_ir import If, Scan
from rutc.tensor_ir.indices.ranges import without_common
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.machines import NATIVE

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


ROWS = """
    g (float[n, m] x, float[k, 3] z) => (float[] y) {
        s = Shape <end = 1> (z)   open = Constant <value_ints = [-1]> ()
        shape = Concat <axis = 0> (open, s)
        y = Reshape (x, shape)
    }
"""


def test_what_is_left_of_sizes_for_an_open_extent_the_run_tells(tmp_path):
    """n * m elements in rows of k: as many as there are, if nothing is left over."""
    g = imported(tmp_path, ROWS)
    for n, m, k in ((4, 6, 8), (4, 6, 24), (1, 1, 1), (0, 5, 2), (5, 7, 7)):
        x = np.arange(n * m, dtype="f4").reshape(n, m)
        y = interpret(g, {"x": x, "z": np.zeros((k, 3), "f4")})["y"]
        np.testing.assert_array_equal(y, x.reshape(n * m // k, k))
    for n, m, k in ((4, 6, 5), (2, 3, 12), (1, 1, 2)):
        with pytest.raises(UserError, match="cannot be reshaped to"):
            interpret(g, {"x": np.zeros((n, m), "f4"), "z": np.zeros((k, 3), "f4")})


WINDOWS = """
    g (float[h, w] x) => (float[] y, float[] back)
        <int64[1] seven = {7}, int64[2] none = {0, 0}, int64[1] open = {-1}, int64[1] three = {3}>
    {
        shape = Shape (x)
        less = Neg (shape)   more = Mod (less, seven)
        pads = Concat <axis = 0> (none, more)
        padded = Pad (x, pads)
        whole = Shape (padded)
        tall = Shape <end = 1> (padded)   wide = Shape <start = 1> (padded)
        rows = Div (tall, seven)   columns = Div (wide, seven)
        windows = Concat <axis = 0> (open, rows, seven, columns, seven)
        y = Reshape (padded, windows)
        all = Mul (tall, wide)   each = Mul (rows, columns)   squares = Mul (seven, seven)
        parts = Mul (each, squares)   times = Div (all, parts)
        shifted = Mod (three, tall)   zero = Sub (three, three)
        top = Slice (padded, zero, shifted, zero)   rest = Slice (padded, shifted, tall, zero)
        rolled = Concat <axis = 0> (rest, top)
        shown = Mul (times, seven)   ones = Div (shown, seven)
        again = Concat <axis = 0> (ones, tall, wide)
        back = Reshape (rolled, again)
    }
"""


def test_windows_of_sizes_that_are_padded_to_whole_ones(tmp_path):
    """As shifted windows of pictures have them: nothing of their sizes is left to the run."""
    g = imported(tmp_path, WINDOWS)
    assert {s.rstrip("0123456789") for s, _ in g.symbols} == {"h", "w", "fits"}
    assert [str(g.extents[d]) for d in g.outputs[1].axes] == [
        "1",
        "-7*((-h) // 7)",
        "-7*((-w) // 7)",
    ]
    for h, w in ((7, 14), (1, 1), (13, 17), (2, 30)):
        x = np.arange(h * w, dtype="f4").reshape(h, w)
        padded = np.pad(x, ((0, -h % 7), (0, -w % 7)))
        got = interpret(g, {"x": x})
        wanted = padded.reshape(1, len(padded) // 7, 7, -1, 7)
        np.testing.assert_array_equal(got["y"], wanted)
        np.testing.assert_array_equal(got["back"], np.roll(padded, -3, 0)[None])


DEFORMED = """
    g (float[n, 2, 5, 4] x, float[m, 8, 4, 3] at, float[k, 4, 4, 3] by) => (float[] y)
        <float[1, 2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = DeformConv (x, w, at, , by) }
"""


@pytest.mark.parametrize("odd", ["at", "by"])
def test_offsets_and_masks_are_of_as_many_images(tmp_path, odd):
    text = HEADER.replace("21", "22") + DEFORMED
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    g = import_model(tmp_path / "m.onnx")
    given = {"x": [2, 5, 4], "at": [8, 4, 3], "by": [4, 4, 3]}
    feed = {name: np.ones((2, *shape), "f4") for name, shape in given.items()}
    assert interpret(g, feed)["y"].shape == (2, 1, 4, 3)
    for images in (1, 3):
        with pytest.raises(UserError):
            interpret(g, {**feed, odd: np.ones((images, *given[odd]), "f4")})


def test_sizes_are_checked_though_nothing_is_made_of_them(tmp_path):
    """The rows of a sum are asked for, and its columns must be equal all the same."""
    added = """g (float[5, a] x, float[5, b] y) => (int64[1] r) {
        s = Add (x, y)  r = Shape <end = 1> (s)
    }"""
    g = optimize(imported(tmp_path, added, {"a": (2, 9), "b": (3, 9)}))
    x = np.zeros((5, 4), "f4")
    assert interpret(g, {"x": x, "y": x})["r"].tolist() == [5]
    with pytest.raises(UserError, match="the sizes a and b differ"):
        interpret(g, {"x": x, "y": x[:, 1:]})


def test_what_follows_a_check_runs_after_it(tmp_path):
    """Also where it joins a kernel that began before: the sizes are checked first."""
    text = """g (float[a, 8] x, float[b, 8] y) => (float[a, 8] t, float[a, 8] z, int64[1] r) {
        t = Exp (x)  s = Add (x, y)  r = Shape <start = 1> (s)  z = Sqrt (t)
    }"""
    g = optimize(imported(tmp_path, text, {"a": (2, 9), "b": (3, 9)}))
    steps = decide(g, NATIVE).steps
    (kernel,) = (k for k, s in enumerate(steps) if isinstance(s, Run) and len(s.group.stages) > 1)
    assert any(isinstance(s, Learn) and s.bind.symbol == "same" for s in steps[:kernel])
