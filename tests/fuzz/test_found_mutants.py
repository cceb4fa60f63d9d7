"""Damaged models that once broke the compiler: by name what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time

import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, parser

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.extract import ModelParts
from tests.fuzz.mutants import LIMIT_S, Outcome, attempt
from tests.fuzz.seeds import seeds

HEADER = '<ir_version: 10, opset_import: ["" : {}, "ai.onnx.ml" : 4, "com.microsoft" : 1]> '


def refused(path: Path, model: ModelProto, words: str) -> None:
    """The import says what is wrong with a model."""
    path = path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=words):
        import_model(path)


def seed(name: str, change: Callable[[ModelProto], object]) -> ModelProto:
    """One of the models that mutants are made of, changed."""
    model = ModelProto.FromString(seeds()[name])
    change(model)
    return model


def text(source: str, opset: int = 21) -> ModelProto:
    """A model in ONNX's text form."""
    return parser.parse_model(HEADER.format(opset) + source)


def test_the_conversion_read_axes_that_are_a_tensor(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        (body,) = (a.g for a in model.graph.node[0].attribute)
        node = next(n for n in body.node if n.op_type == "Unsqueeze")
        del node.attribute[:]
        zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
        node.attribute.append(helper.make_attribute("axes", zero))

    refused(tmp_path, seed("test_loop11", change), "'axes' must be of type INTS, .* TENSOR")


def test_an_attribute_refers_to_no_function(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        attribute = model.graph.node[0].attribute[0]
        attribute.ref_attr_name = "alpha"

    refused(tmp_path, seed("test_einsum_batch_matmul", change), "'alpha', but the node is in none")


def test_an_attribute_says_no_type(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        model.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED

    refused(tmp_path, seed("test_einsum_batch_matmul", change), "'equation' says .* UNDEFINED")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "g (float c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () =>"
            " (float[2] p) { p = Relu (x) }, else_branch = b () => (float[2] q) { q = Neg (x) }> }",
            "the condition must be one bool|'cond' must not be of type f32",
        ),
        (
            "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b"
            " (int64 i, bool go, float[2] s) => (int64 i2, float[2] t)"
            " { t = Relu (s) i2 = Identity (i) }> }",
            "the condition must be one bool, not i64",
        ),
        (
            "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b"
            " (int64 i, bool go, float[2] s) => (bool on) { on = Identity (go) }> }",
            "the body has 1 outputs; 2 are needed",
        ),
        (
            "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b"
            " (int64 i, bool go) => (bool on, float[2] t) { on = Identity (go) t = Relu (x) }> }",
            "has 2 inputs; 3 are given",
        ),
        (
            "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b"
            " (int64 i, bool go, float[2] s) => (bool on, float[2] t) { on = Identity (go) }> }",
            "no node of the nested graph computes its output 't'",
        ),
        (
            "g (float[2, 3] x, float[3] s) => (float[3] y) { y = Scan <num_scan_inputs = 9, body ="
            " b (float[3] a, float[3] e) => (float[3] o) { o = Add (a, e) }> (s, x) }",
            "num_scan_inputs is 9 of 2",
        ),
        (
            "g (float[2, 3] x, float[3] s) => (float[3] y) { y = Scan <num_scan_inputs = 1,"
            " scan_input_axes = [0, 0], body ="
            " b (float[3] a, float[3] e) => (float[3] o) { o = Add (a, e) }> (s, x) }",
            "scan_input_axes has 2 elements for 1",
        ),
        ("g (float[4] x) => (float[4] y) { y = Max (x, , x) }", "malformed|left out"),
        (
            "g (float[4611686018427387904, 4, 0] x) => (float[a, b, c] y)"
            " <int64[1] i = {0}, int64[1] j = {2}, int64[1] k = {1}> { y = Slice (x, i, j, k) }",
            "'x': its extents make 18446744073709551616 elements",
        ),
        (
            "g (string[4, 2] x) => (float[a, b] y)"
            " { y = ai.onnx.ml.Scaler <offset = [0.0], scale = [1.0]> (x) }",
            "'X' must not be of type string",
        ),
        (
            "g (float[n] x) => (int64 y) <int64 one = {0}>"
            " { s = Shape (x) y = Gather <axis = 4611686018427387904> (s, one) }",
            "axis 4611686018427387904 is out of range for rank 1",
        ),
        (
            "g (uint8[1,1,2,2] x, float s, uint8 z, uint8[1,1,1,1] w, float[1] b)"
            " => (uint8[a,b,c,d] y) { y = QLinearConv (x, s, z, w, s, z, s, z, b) }",
            "'B' must not be of type f32",
        ),
        (
            "g (float[1, 4, 8] q) => (float[a, b, c] y) { y = com.microsoft.MultiHeadAttention"
            " (q, q, q) }",
            "'num_heads' is missing",
        ),
        (
            "g (float[1, 4, 8] q) => (float[a, b, c] y) { y = com.microsoft.MultiHeadAttention"
            " <num_heads = 2.5> (q, q, q) }",
            "'num_heads' is of another type",
        ),
        (
            "g (float[1, 1, 4] x, float[1] w) => (float[a, b, c] y) { y = ConvTranspose (x, w) }",
            "ConvTranspose.*(malformed|cannot be compiled)",
        ),
        (
            "g (float[1, 1, 4] x, float[1, 1, 2] w) => (float[a, b, c] y)"
            " { y = ConvTranspose <strides = [1, 2, 3]> (x, w) }",
            "ConvTranspose.*(malformed|cannot be compiled)",
        ),
        (
            "g (float[n] x) => (float[m] y)"
            " <int64 low = {-9223372036854775808}, int64 one = {1}, int64 zero = {0}>"
            " { s = Shape (x) k = Gather (s, zero) p = Range (low, k, one)"
            " y = Cast <to = 1> (p) }",
            r"Range \(node 'p'\).* the extent n \+ 9223372036854775808, which is too large",
        ),
        (
            "g (float[n] x) => (float[a, m] y) <int64 far = {1099511627777}, int64 one = {1},"
            " int64 zero = {0}> { s = Shape (x) k = Gather (s, zero) e = Add (k, far)"
            " p = Range (zero, e, one) y = Cast <to = 1> (p) }",
            r"Range \(node 'p'\).* a result of n \+ 1099511627777 elements is too large",
        ),
        (
            "g (float[4] x) => (float[a] y) { y = Cast <to = 2147483648> (x) }",
            r"Cast \(node 'y'\).*2147483648",
        ),
        (
            "g (float x, float[1] s) => (float y) { y = PRelu (x, s) }",
            r"PRelu \(node 'y'\).* do not broadcast: \[1\] to \[\]",
        ),
    ],
)
def test_nodes_that_are_malformed(tmp_path: Path, source: str, words: str) -> None:
    refused(tmp_path, text(source), words)


def test_a_node_has_a_name_that_is_no_text(tmp_path: Path) -> None:
    model = text("g (float[2] x, float[3] z) => (float[2] y) { y = Add (x, z) }")
    model.graph.node[0].name = "named"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"named", b"\xff\xfe\xfd\xfc\xfb"))
    with pytest.raises(UserError, match=r"graph.node\[0\].name is no UTF-8 text"):
        import_model(path)


def test_a_graph_has_a_name_that_is_no_text(tmp_path: Path) -> None:
    model = text("named (float[2] x) => (float[2] y) { z = Relu (x) y = Relu (z) }")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"named", b"name\xff"))
    import_model(path)
    ModelParts(path).write_with_outputs(path, ["z"])
    assert [node.output[0] for node in onnx.load(path).graph.node] == ["z"]


def test_the_place_of_elements_is_no_file_name(tmp_path: Path) -> None:
    model = text("g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Add (x, w) }")
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="x" * 5000)
    refused(tmp_path, model, "is refused: File name too long")


def test_a_function_uses_an_opset_that_is_none(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        model.functions[0].opset_import[0].version = 1 << 40

    refused(tmp_path, seed("functions", change), "the function 'scaled' uses version 1099511627776")


def test_an_input_is_a_sequence_of_no_known_type(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        kind = model.graph.input[0].type.optional_type.elem_type.sequence_type
        kind.elem_type.tensor_type.elem_type = 64

    refused(tmp_path, seed("test_optional_get_element_sequence", change), "input '.*64")


def test_the_tiles_of_a_long_edge_were_looked_at_one_by_one(tmp_path: Path) -> None:
    def change(model: ModelProto) -> None:
        (pads,) = (a for a in model.graph.node[0].attribute if a.name == "pads")
        pads.ints[3] = 1 << 32

    model = seed("test_conv_with_strides_padding", change)
    begin = process_time()
    assert attempt(model.SerializeToString(), tmp_path, None, complete=False) == Outcome("compiled")
    assert process_time() - begin < LIMIT_S
