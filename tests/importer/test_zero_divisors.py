"""Extents and attributes of 0 by which an operator divides: an error that says so."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from rutc.errors import UserError
from rutc.importer import import_model

TEXTS = [
    "g (float[1,2,5] x, float[2,1,3] w) => (float[a,b,c] y) { y = Conv <group = 0> (x, w) }",
    "g (float[1,4,2,2] x) => (float[a,b,c,d] y) { y = DepthToSpace <blocksize = 0> (x) }",
    "g (float[1,4,8] q) => (float[a,b,c] y)"
    " { y = Attention <q_num_heads = 0, kv_num_heads = 0> (q, q, q) }",
    "g (int64[4] x) => (int64[a] y) <int64 n = {0}, int64 e = {5}> { y = Range (n, e, n) }",
    "g (float[1,4,5] x, float[4] s) => (float[a,b,c] y)"
    " { y = GroupNormalization <num_groups = 0> (x, s, s) }",
]

MESSAGE = r"cannot be compiled: .*(is 0|0 )|malformed: .*(positive|zero| 0)"


@pytest.mark.parametrize("text", TEXTS)
def test_a_divisor_of_0_is_the_users(text: str, tmp_path: Path) -> None:
    header = '<ir_version: 10, opset_import: ["" : 23]> '
    onnx.save(parser.parse_model(header + text), tmp_path / "m.onnx")
    with pytest.raises(
        UserError, match=r"cannot be compiled: .*(is 0|0 )|malformed: .*(positive|zero| 0)"
    ):
        import_model(tmp_path / "m.onnx")
