"""The models that mutants are made of: small ones that hold what ONNX files can hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser

from tests.conformance.suite import Case, graph_inputs, load_cases

SUITE = (
    "test_ai_onnx_ml_label_encoder_string_int",
    "test_ai_onnx_ml_tree_ensemble_single_tree",
    "test_attention_4d_attn_mask",
    "test_batchnorm_epsilon",
    "test_center_crop_pad_crop_and_pad",
    "test_conv_with_strides_padding",
    "test_convtranspose_pads",
    "test_dequantizelinear_axis",
    "test_einsum_batch_matmul",
    "test_if_seq",
    "test_loop11",
    "test_loop13_seq",
    "test_lstm_with_peepholes",
    "test_nonmaxsuppression_suppress_by_IOU",
    "test_optional_get_element_sequence",
    "test_qlinearconv",
    "test_regex_full_match_basic",
    "test_resize_downsample_scales_cubic",
    "test_scan9_sum",
    "test_scatternd_add",
    "test_sequence_map_add_2_sequences_expanded",
    "test_top_k",
)
"""Tests of ONNX's backend suite, most of whose operands become initializers."""

TEXTS = {
    "functions": """
<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
main (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) {
    a = own.outer <alpha = 0.5> (x)
    y = own.scaled <factor = 2.0> (a)
    z = own.scaled (x)
}
<domain: "own", opset_import: ["" : 21]>
scaled <factor: float = 3.0> (v) => (r) {
    f = Constant <value_float: float = @factor> ()
    r = Mul (v, f)
}
<domain: "own", opset_import: ["" : 21, "own" : 1]>
outer <alpha> (v) => (r) {
    s = own.scaled (v)
    r = LeakyRelu <alpha: float = @alpha> (s)
}""",
    "shapes": """
<ir_version: 10, opset_import: ["" : 21]>
main (float[batch, seq, 12] x) => (float[N, M] y, float[P, Q] z)
<int64[1] zero = {0}, int64[1] last = {-1}, int64[2] split = {3, 4}, int64 one = {1},
 int64 none = {0}, int64[1] twice = {2}>
{
    s = Shape (x)
    n = Gather <axis = 0> (s, one)
    n1 = Unsqueeze (n, zero)
    whole = Concat <axis = 0> (n1, split)
    batches = ConstantOfShape <value = int64[1] {2}> (n1)
    shape = Concat <axis = 0> (last, whole)
    r = Reshape (x, shape)
    t = Transpose <perm = [1, 0, 2, 3]> (r)
    shape4 = Concat <axis = 0> (twice, twice, twice, twice)
    wide = Tile (t, shape4)
    flat = Flatten <axis = 2> (wide)
    positions = Range (none, n, one)
    place = Cast <to = 1> (positions)
    column = Unsqueeze (place, last)
    z = Expand (column, n1)
    cut = Slice (flat, zero, twice, zero)
    y = Identity (cut)
}""",
    "nested": """
<ir_version: 10, opset_import: ["" : 21]>
main (float[2, 3] x, bool c, int64 n) => (float[2, 3] y, float[k, 2, 3] z)
<bool yes = {1}, int64 three = {3}>
{
    y = If (c) <
        then_branch = yes_graph () => (float[2, 3] p) {
            p = If (c) <
                then_branch = inner () => (float[2, 3] q) { q = Relu (x) },
                else_branch = other () => (float[2, 3] w) { w = Neg (x) }
            >
        },
        else_branch = no_graph () => (float[2, 3] e) { e = Add (x, x) }
    >
    last, z = Loop (n, yes, x) <
        body = step (int64 i, bool go, float[2, 3] state) => (bool on, float[2, 3] after,
                                                             float[2, 3] kept) {
            f = Cast <to = 1> (i)
            after = Add (state, f)
            on = Identity (go)
            kept = Mul (after, x)
        }
    >
}""",
    "quantised": """
<ir_version: 10, opset_import: ["" : 21]>
main (float[2, 8] x) => (float[2, 4] y, uint8[2, 8] q)
<float scale = {0.1}, uint8 zero = {128}, float[4] scales = {0.1, 0.2, 0.3, 0.4},
 int8[8, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8,
                 1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, -5, -6, -7, -8},
 int4[2, 2] p = {1, -2, 3, -4}, float half = {0.5}>
{
    q = QuantizeLinear (x, scale, zero)
    d = DequantizeLinear (q, scale, zero)
    v = DequantizeLinear <axis = 1> (w, scales)
    m = MatMul (d, v)
    f = DequantizeLinear (p, half)
    a = Constant <value_ints = [0]> ()
    b = Constant <value_ints = [2]> ()
    c = Constant <value_ints = [1]> ()
    g = Slice (m, a, b, c)
    h = MatMul (g, f)
    y = Concat <axis = 1> (h, h)
}""",
    "text": """
<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>
main (string[3] s, float[3, 4] x) => (string[m] t, float[3, 2] scores, int64[3] labels,
                                      float[3, 4] u)
{
    t = StringNormalizer <case_change_action = "LOWER", stopwords = ["a", "the"]> (s)
    labels, scores = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1],
        coefficients = [0.5, 0.25, -1.0, 1.0, 0.5, 2.0, -2.0, 0.125], intercepts = [0.5, -0.5],
        post_transform = "SOFTMAX"> (x)
    u = ai.onnx.ml.Scaler <offset = [0.5, 0.0, 1.0, 2.0], scale = [1.0, 2.0, 0.5, 0.25]> (x)
}""",
    "block": """
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
main (float[2, 6, 8] x, int64[2, 6] ids) => (float[2, 6, 8] y)
<float[8] g = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] b = {0, 0, 0, 0, 0, 0, 0, 0},
 float[2, 8] table = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1},
 int64[4] heads = {2, 6, 2, 4}, int64[3] joined = {2, 6, 8}>
{
    e = Gather <axis = 0> (table, ids)
    a = Add (x, e)
    n = LayerNormalization <axis = -1, epsilon = 0.00001> (a, g, b)
    r = Reshape (n, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (r)
    k = Transpose <perm = [0, 2, 3, 1]> (r)
    s = MatMul (q, k)
    p = Softmax <axis = -1> (s)
    o = MatMul (p, q)
    t = Transpose <perm = [0, 2, 1, 3]> (o)
    j = Reshape (t, joined)
    h = com.microsoft.BiasGelu (j, b)
    y = Add (h, a)
}""",
}
DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.onnx"


@cache
def seeds() -> dict[str, bytes]:
    """The models by name, always in the same order."""
    return dict(_seeds())


def _seeds() -> Iterator[tuple[str, bytes]]:
    yield "digits", DIGITS.read_bytes()
    for name, text in TEXTS.items():
        yield name, parser.parse_model(text).SerializeToString()
    yield "sparse", _sparse().SerializeToString()
    tests = {case.name: case for case in load_cases()}
    for name in SUITE:
        yield name, _with_constants(tests[name]).SerializeToString()


def _sparse() -> ModelProto:
    """A product with a sparse weight, and the sum with a sparse constant."""
    model = parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
main (float[2, 4] x) => (float[2, 4] y) {
    c = Constant ()
    p = MatMul (x, w)
    y = Add (p, c)
}""")
    places = numpy_helper.from_array(np.array([[0, 1], [2, 3], [3, 0]], np.int64), "places")
    values = numpy_helper.from_array(np.array([1.5, -2.0, 3.0], np.float32), "w")
    weight = helper.make_sparse_tensor(values, places, [4, 4])
    model.graph.sparse_initializer.append(weight)
    line = numpy_helper.from_array(np.array([1], np.int64), "line")
    one = numpy_helper.from_array(np.array([2.0], np.float32), "one")
    constant = helper.make_sparse_tensor(one, line, [4])
    model.graph.node[0].attribute.append(helper.make_attribute("sparse_value", constant))
    return model


def _with_constants(case: Case) -> ModelProto:
    """The test's model, all its inputs but the first being initializers where they are tensors."""
    model = case.proto()
    inputs = graph_inputs(model)
    for info, value in list(zip(inputs, case.data_sets[0].inputs, strict=True))[1:]:
        if isinstance(value, np.ndarray | np.generic):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
            model.graph.input.remove(info)
    return model
