"""Inputs by whose elements integers are divided."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.tensor_ir.facts.divisors import divisors

MODELS = [
    ("g (int64[n] x, int64[n] d) => (int64[n] y) { y = Div (x, d) }", {"d"}),
    ("g (int64[n] x, int64[n] d) => (int64[n] y) { y = Mod (x, d) }", {"d"}),
    ("g (int32[n] x, int32[n] d) => (int32[n] y) { y = Mod <fmod = 1> (x, d) }", {"d"}),
    ("g (float[n] x, float[n] d) => (float[n] y) { y = Div (x, d) }", set()),
    (
        "g (int64[2, n] x, int32[n, 1] d, int64[n] m) => (int64[2, n] y)"
        " { t = Transpose (d) c = Cast <to = 7> (t) e = Neg (c) p = Mul (e, m) y = Div (x, p) }",
        {"d", "m"},
    ),
    (
        "g (int32[n] x, float[n] d, float16[n] e) => (int32[n] y)"
        " { c = Cast <to = 6> (d) k = Cast <to = 6> (e) q = Div (x, c) y = Mod (q, k) }",
        {"d", "e"},
    ),
    # Neither is zero where the input is.
    (
        "g (int64[n] x, int64[n] d) => (int64[n] y) <int64 one = {1}>"
        " { s = Add (d, one) y = Div (x, s) }",
        set(),
    ),
    (
        "g (int64[n] x, int64[n] d) => (int64[n] y) <int64 one = {1}, int64 nil = {0}>"
        " { z = Equal (d, nil) s = Where (z, one, d) y = Div (x, s) }",
        set(),
    ),
    # Known by what a branch yields, and by what a loop carries.
    (
        "g (bool c, int64[3] x, int64[3] d, int64[3] e) => (int64[3] y) {"
        " s = If (c) <then_branch = a () => (int64[3] u) { u = Neg (d) },"
        " else_branch = b () => (int64[3] v) { v = Abs (e) }>"
        " y = Div (x, s) }",
        {"d", "e"},
    ),
    (
        "g (int64[3] x, int64[3] d) => (int64[3] y) <int64 many = {4}, bool on = {1}>"
        " { t, y = Loop (many, on, d, x) <body = b (int64 i, bool g, int64[3] s, int64[3] z)"
        " => (bool h, int64[3] u, int64[3] w)"
        " { h = Identity (g) w = Div (z, s) u = Neg (s) }> }",
        {"d"},
    ),
]


@pytest.mark.parametrize(("text", "wanted"), MODELS)
def test_divisors(text: str, wanted: set[str], tmp_path: Path) -> None:
    header = '<ir_version: 10, opset_import: ["" : 17]> '
    onnx.save(parser.parse_model(header + text), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert divisors(graph) == wanted
    assert divisors(optimize(graph)) == wanted
