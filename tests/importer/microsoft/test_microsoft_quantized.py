"""Quantised operators of com.microsoft, within one unit of ONNX Runtime's (its own roundings)."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from rutc.errors import UserError
from rutc.importer.quantised import is_quantised
from tests.fuzz.decomposed import expanded

DOMAIN = "com.microsoft"
BITS_OF_LAYERS = ("fc1_expert_weight_bits", "fc2_expert_weight_bits")
BLOCKS = {"K": 64, "N": 3, "bits": 4, "block_size": 32}


@pytest.fixture
def stored(rng):
    """`stored(kind, *shape)`: numbers of a quantised type."""

    def make(kind, *shape):
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max + 1, shape).astype(kind)

    return make


KINDS = pytest.mark.parametrize("kind", ["u1", "i1"])


def parameters(kind, *names):
    """Scales and zero points: `as` and `az` of the operand `a`."""
    made = {}
    for i, name in enumerate(names):
        made[f"{name}s"] = np.float32(0.02 + 0.013 * i)
        made[f"{name}z"] = np.array(3 + 7 * i, kind)
    return made


@KINDS
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shape", [(3, 4), (4,), (1,)])
def test_pairs(op, shape, kind, check, node, stored):
    inputs = {"a": stored(kind, 3, 4), "b": stored(kind, *shape)}
    names = ["a", "as", "az", "b", "bs", "bz", "cs", "cz"]
    check(node(op, names), inputs, parameters(kind, "a", "b", "c"), steps=1)


@KINDS
@pytest.mark.parametrize(
    ("op", "options"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})]
)
def test_functions(op, options, kind, check, node, stored):
    constants = parameters(kind, "a", "c")
    check(
        node(op, ["a", "as", "az", "cs", "cz"], **options),
        {"a": stored(kind, 5, 7)},
        constants,
        steps=1,
    )


@KINDS
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (12, 1), (11, 2)])
def test_softmax(opset, axis, kind, check, node, stored):
    constants = {**parameters(kind, "a"), "cs": np.float32(1 / 256)}
    constants["cz"] = np.array(0 if kind == "u1" else -128, kind)
    step = node("QLinearSoftmax", ["a", "as", "az", "cs", "cz"], opset=opset, axis=axis)
    check(step, {"a": stored(kind, 2, 3, 5)}, constants, steps=1)


@KINDS
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    "options", [{}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 1, 1], "count_include_pad": 1}], ids=str
)
def test_average_pool(options, last, kind, check, node, stored):
    step = node(
        "QLinearAveragePool",
        ["a", "as", "az", "cs", "cz"],
        kernel_shape=[3, 2],
        strides=[2, 1],
        channels_last=last,
        **options,
    )
    check(step, {"a": stored(kind, 2, 6, 6, 6)}, parameters(kind, "a", "c"), steps=1)


@KINDS
@pytest.mark.parametrize("last", [0, 1])
def test_global_average_pool(last, kind, check, node, stored):
    step = node("QLinearGlobalAveragePool", ["a", "as", "az", "cs", "cz"], channels_last=last)
    check(step, {"a": stored(kind, 2, 3, 4, 5)}, parameters(kind, "a", "c"), steps=1)


@KINDS
def test_max_pool_with_channels_last(kind, check, node, stored):
    step = node("NhwcMaxPool", ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    check(step, {"a": stored(kind, 2, 6, 5, 3)})


@KINDS
@pytest.mark.parametrize("axis", [0, 1])
def test_concat(axis, kind, check, node, stored):
    names = ["cs", "cz", "a", "as", "az", "b", "bs", "bz"]
    inputs = {"a": stored(kind, 3, 3), "b": stored(kind, 3, 3)}
    check(node("QLinearConcat", names, axis=axis), inputs, parameters(kind, "a", "b", "c"), steps=1)


@KINDS
def test_where(kind, check, node, stored):
    inputs = {"m": np.array([[True], [False]]), "a": stored(kind, 2, 3), "b": stored(kind, 1, 3)}
    names = ["m", "a", "as", "az", "b", "bs", "bz", "cs", "cz"]
    check(node("QLinearWhere", names), inputs, parameters(kind, "a", "b", "c"), steps=1)


@KINDS
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution(last, per_channel, kind, check, node, stored, rng):
    size = (4,) if per_channel else ()
    constants = {
        **parameters(kind, "a", "c"),
        # Of larger weights ONNX Runtime's sums of two products saturate where a CPU lacks VNNI.
        "w": rng.integers(-64, 64, (4, 3, 3, 3)).astype("i1"),
        "ws": rng.uniform(0.001, 0.01, size).astype("f4"),
        "wz": np.zeros(size, "i1"),
        "b": rng.integers(-999, 999, 4).astype("i4"),
    }
    names = ["a", "as", "az", "w", "ws", "wz", "cs", "cz", "b"]
    step = node("QLinearConv", names, channels_last=last, pads=[1, 1, 1, 1])
    shape = (2, 5, 5, 3) if last else (2, 3, 5, 5)
    check(step, {"a": stored(kind, *shape)}, constants, steps=1)


@KINDS
@pytest.mark.parametrize("turned", [(0, 0), (1, 1)])
@pytest.mark.parametrize("real", [False, True])
def test_gemm(real, turned, kind, check, node, stored, rng):
    left, right = turned
    constants = {**parameters(kind, "a", "b", "c"), "b": stored(kind, 5, 4)}
    constants["b"] = constants["b"].T.copy() if right else constants["b"]
    constants["k"] = rng.integers(-999, 999, 4).astype("i4")
    x = stored(kind, 3, 5)
    names = ["a", "as", "az", "b", "bs", "bz", "k", *(() if real else ("cs", "cz"))]
    used = {n: a for n, a in constants.items() if n in names}
    step = node("QGemm", names, transA=left, transB=right, alpha=1.0)
    check(step, {"a": x.T.copy() if left else x}, used, steps=1 - real)


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("axis", [None, 0])
def test_quantize_and_dequantize(axis, kind, check, node, stored, rng):
    size = () if axis is None else (3,)
    constants = {"s": rng.uniform(0.01, 0.1, size).astype("f4"), "z": np.full(size, 5, kind)}
    options = {} if axis is None else {"axis": axis}
    x = rng.standard_normal((3, 4)).astype("f4")
    check(node("QuantizeLinear", ["x", "s", "z"], **options), {"x": x}, constants)
    values = {"x": stored(kind, 3, 4)}
    check(node("DequantizeLinear", ["x", "s", "z"], **options), values, constants)


@pytest.mark.parametrize(
    ("op", "domain", "given", "quantised"),
    [
        ("QuantizeLinear", "", {}, True),
        ("QLinearAdd", DOMAIN, {}, True),
        ("DynamicQuantizeMatMul", DOMAIN, {}, True),
        ("MatMulNBits", DOMAIN, BLOCKS, False),
        ("MatMulNBits", DOMAIN, {**BLOCKS, "accuracy_level": 1}, False),
        ("MatMulNBits", DOMAIN, {**BLOCKS, "accuracy_level": 4}, True),
        ("MatMulNBits", DOMAIN, {**BLOCKS, "accuracy_level": 4, "bits": 2}, False),
        ("MatMulNBits", DOMAIN, {**BLOCKS, "accuracy_level": 4, "K": 65}, False),
        ("QMoE", DOMAIN, {"block_size": 32}, False),
        ("QMoE", DOMAIN, {"expert_weight_bits": 8}, False),
        ("QMoE", DOMAIN, {"block_size": 32, "expert_weight_bits": 8}, True),
        ("QMoE", DOMAIN, {"block_size": 32, "fc2_expert_weight_bits": 8}, True),
        ("MatMul", "", {}, False),
    ],
)
def test_which_models_quantise(op, domain, given, quantised, tmp_path, make_node, make_model):
    step = make_node(op, ["x"], domain=domain, **given)
    path = tmp_path / "model.onnx"
    onnx.save(make_model([step], {"x": np.zeros(3, "f4")}, ["y"], {}), path)
    assert is_quantised(path) == quantised


@pytest.mark.parametrize(
    ("given", "columns", "quantised"),
    [
        ({"expert_weight_bits": 8}, (64, 64), True),
        ({"expert_weight_bits": 8}, (48, 64), True),
        ({"expert_weight_bits": 8}, (48, 33), False),
        ({"expert_weight_bits": 8}, (48, 33, 96), True),
        ({"expert_weight_bits": 8}, (48, 33, 97), False),
        ({"fc3_expert_weight_bits": 8}, (64, 64), False),
        ({"fc3_expert_weight_bits": 8}, (64, 64, 64), True),
        ({"fc1_expert_weight_bits": 8}, (48, 64), False),
        ({"expert_weight_bits": 8, "fc1_expert_weight_bits": 4}, (64, 48), False),
        (dict.fromkeys(BITS_OF_LAYERS, 4) | {"expert_weight_bits": 8}, (64, 64), False),
        (dict.fromkeys(BITS_OF_LAYERS, 4) | {"expert_weight_bits": 8}, (64, 64, 64), True),
    ],
)
def test_layers_of_which_experts_quantise(
    given, columns, quantised, tmp_path, make_node, make_model
):
    names = ["x", "r", "w1", "s", "", "w2", "s", "", "w3", "s"][: 7 if len(columns) == 2 else 10]
    constants = {f"w{i}": np.zeros((2, 3, c), "u1") for i, c in enumerate(columns, 1)}
    step = make_node("QMoE", names, domain=DOMAIN, block_size=32, **given)
    path = tmp_path / "model.onnx"
    onnx.save(make_model([step], {"x": np.zeros(3, "f4")}, ["y"], constants), path)
    assert is_quantised(path) == quantised


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_gather_of_blocks(bits, zeros, shape, check, node, rng):
    rows, width, block = 6, 64, 16
    constants = {
        "t": rng.integers(0, 256, (rows, width * bits // 8)).astype("u1"),
        "s": rng.uniform(0.1, 1, (rows, width // block)).astype("f4"),
    }
    if zeros:
        constants["z"] = rng.integers(0, 256, (rows, width // block * bits // 8)).astype("u1")
    names = ["t", "i", "s"] + (["z"] if zeros else [])
    step = node("GatherBlockQuantized", names, bits=bits, block_size=block)
    check(step, {"i": rng.integers(-rows, rows, shape)}, constants)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_lstm(direction, per_channel, check, node, make_node, make_model, rng):
    ways, hidden, features = (2 if direction == "bidirectional" else 1), 5, 3
    size = (ways, 4 * hidden) if per_channel else (ways,)
    inputs = {"x": rng.standard_normal((4, 2, features)).astype("f4")}
    constants = {
        "w": rng.integers(-128, 128, (ways, features, 4 * hidden)).astype("i1"),
        "r": rng.integers(-128, 128, (ways, hidden, 4 * hidden)).astype("i1"),
        "b": rng.standard_normal((ways, 8 * hidden)).astype("f4"),
    }
    for name in "wr":
        constants[f"{name}s"] = rng.uniform(0.002, 0.01, size).astype("f4")
        constants[f"{name}z"] = np.zeros(size, "i1")
    options = {"hidden_size": hidden, "direction": direction}
    outputs = ["y", "h", "c"]
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    step = node("DynamicQuantizeLSTM", names, outputs, **options)
    expected = _by_rows(step, outputs, inputs, constants, make_model)
    check(step, inputs, constants, outputs=outputs, expected=expected)


def _by_rows(step, outputs, given, constants, make_model):
    """ONNX Runtime's results of a quantised LSTM in operators of the standard."""
    model = make_model(expanded(step), given, outputs, constants)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(outputs, given)


@pytest.mark.parametrize("low", [-128, 0])
@pytest.mark.parametrize("zero", [0, -128])
@pytest.mark.parametrize("features", [1, 7, 300])
def test_lstm_of_extreme_weights(low, zero, features, check, make_node, make_model, rng):
    hidden = 5
    choices = np.array([low, 127, low], "i1")
    constants = {
        "w": rng.choice(choices, (1, features, 4 * hidden)),
        "r": rng.choice(choices, (1, hidden, 4 * hidden)),
    }
    for name, size in (("w", features), ("r", hidden)):
        constants[f"{name}s"] = np.array([0.5 / (128 * size)], "f4")
        constants[f"{name}z"] = np.array([zero], "i1")
    given = {"x": rng.choice([-3, 3, 1e-3], (4, 3, features)).astype("f4")}
    given["x"][1, 1] = 0
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    step = make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden
    )
    expected = _by_rows(step, ["y"], given, constants, make_model)
    check(step, given, constants, outputs=["y"], expected=expected)


@pytest.mark.parametrize("count", [2, 13])
@pytest.mark.parametrize(
    ("op", "names", "options"),
    [
        ("QGemm", ["x", "xs", "xz", "w", "ws", "wz"], {}),
        ("QAttention", ["x", "w", "b", "xs", "ws", "", "xz", "wz"], {"num_heads": 1}),
    ],
)
def test_other_scales_than_one_for_each_column_are_refused(
    op, names, options, count, check, node, stored
):
    """12 columns: those beyond the scales would have none."""
    shape = (3, 5) if op == "QGemm" else (1, 3, 5)
    constants = parameters("u1", "x", "w") | {"w": stored("u1", 5, 12), "b": np.zeros(12, "f4")}
    constants["ws"] = np.full(count, 0.1, "f4")
    with pytest.raises(UserError, match=r"scales columns: its shape should be \[12\]"):
        check(node(op, names, **options), {"x": stored("u1", *shape)}, constants)
