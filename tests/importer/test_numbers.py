"""Element types, roundings and formulas that ONNX Runtime does not have, or has otherwise."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.importer.conftest import Arrays, Check

Make = Callable[..., NodeProto]
NEWEST = 28


def reference(node: NodeProto, inputs: Arrays) -> list[np.ndarray]:
    """What the standard's own reference makes of one node."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    opset = helper.make_opsetid("", NEWEST)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(
            helper.make_model(graph, opset_imports=[opset], ir_version=13)
        ).run(None, dict(inputs))


def powers(codes: list[int]) -> np.ndarray:
    return np.array(codes, np.uint8).view(ml_dtypes.float8_e8m0fnu)


EXTREMES = np.float32(
    [0, np.inf, np.nan, 3e38, 2.0**127, 2.0**-127, 2.0**-128, 1.1 * 2.0**-127, 1.6 * 2.0**-127]
)


@pytest.mark.parametrize(
    ("saturate", "round_mode", "codes"),
    [
        (1, "up", [0, 254, 255, 254, 254, 0, 0, 1, 1]),
        (1, "down", [0, 254, 255, 254, 254, 0, 0, 0, 0]),
        (1, "nearest", [0, 254, 255, 254, 254, 0, 0, 0, 1]),
        (0, "up", [255, 255, 255, 255, 254, 0, 255, 1, 1]),
        (0, "nearest", [255, 255, 255, 255, 254, 0, 255, 0, 1]),
    ],
)
def test_powers_of_two_at_their_limits(
    check: Check, make_node: Make, saturate: int, round_mode: str, codes: list[int]
) -> None:
    node = make_node(
        "Cast", ["x"], to=TensorProto.FLOAT8E8M0, saturate=saturate, round_mode=round_mode
    )
    check(node, {"x": EXTREMES}, opset=NEWEST, expected=[powers(codes)])


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_powers_of_two(
    check: Check, make_node: Make, rng: np.random.Generator, dtype: type, round_mode: str
) -> None:
    x = np.exp(rng.standard_normal(200)).astype(dtype)
    node = make_node("Cast", ["x"], to=TensorProto.FLOAT8E8M0, round_mode=round_mode)
    check(node, {"x": x}, opset=NEWEST, expected=reference(node, {"x": x}))


@pytest.mark.parametrize("name", ["FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1", "FLOAT8E5M2"])
def test_casts_of_small_floats(
    check: Check, make_node: Make, rng: np.random.Generator, name: str
) -> None:
    kind = getattr(TensorProto, name)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for wide in (np.float16, np.float32, np.float64, np.int8):
        x = (rng.standard_normal((3, 5)) * 8).astype(wide)
        node = make_node("Cast", ["x"], to=kind)
        check(node, {"x": x}, opset=NEWEST, expected=reference(node, {"x": x}))
        back = make_node("Cast", ["x"], to=helper.np_dtype_to_tensor_dtype(np.dtype(wide)))
        small = x.astype(dtype)
        check(back, {"x": small}, opset=NEWEST, expected=reference(back, {"x": small}))


EIGHT_BITS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]


@pytest.mark.parametrize("name", EIGHT_BITS)
@pytest.mark.parametrize("source", ["INT8", "INT32", "UINT64", "BOOL", "FLOAT", *EIGHT_BITS])
def test_large_numbers_saturate(check: Check, make_node: Make, source: str, name: str) -> None:
    wide = np.array([0, 1, -2, 100, 250, 300, 448, 500, 57344, 10**6])
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, source))
    if dtype.kind in "iu":
        wide = wide[(wide >= np.iinfo(dtype).min) & (wide <= np.iinfo(dtype).max)]
    x = wide.astype(np.float32).astype(dtype)
    target = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    if x.dtype == target:
        return
    limit = float(ml_dtypes.finfo(target).max)
    wanted = np.clip(x.astype(np.float32), -limit, limit).astype(target)
    node = make_node("Cast", ["x"], to=getattr(TensorProto, name))
    check(node, {"x": x}, opset=NEWEST, expected=[wanted])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (np.float32, "INT32"),
        (np.int64, "DOUBLE"),
        (np.float16, "BFLOAT16"),
        (np.uint8, "FLOAT8E4M3FN"),
        (ml_dtypes.uint4, "INT4"),
        (ml_dtypes.int2, "UINT2"),
    ],
)
def test_bits_as_another_type(check: Check, make_node: Make, source: type, target: str) -> None:
    kind = getattr(TensorProto, target)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    x = np.arange(4).reshape(2, 2).astype(source)
    x[0, 1] = -x[0, 1] if np.dtype(source).kind in "fi" else x[0, 1]
    node = make_node("BitCast", ["x"], to=kind)
    check(node, {"x": x}, opset=NEWEST, expected=[x.view(dtype)])


@pytest.mark.parametrize("name", ["FLOAT6E2M3", "FLOAT4E2M1"])
def test_quantizing_to_small_floats(
    check: Check, make_node: Make, rng: np.random.Generator, name: str
) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    inputs = {
        "x": rng.standard_normal((3, 4)).astype(np.float32) * 4,
        "s": np.float32([0.5, 1, 2, 4]),
        "z": np.array([0, 1, 2, 0]).astype(dtype),
    }
    node = make_node("QuantizeLinear", ["x", "s", "z"])
    check(node, inputs, opset=NEWEST, expected=reference(node, inputs))


def test_blocks_of_a_vector_share_a_scale(check: Check, make_node: Make) -> None:
    x = np.arange(7, dtype=np.float32)
    scale = np.float32([1, 2, 4])
    node = make_node("QuantizeLinear", ["x", "s"], axis=0, block_size=3)
    wanted = np.uint8(np.rint(x / np.repeat(scale, 3)[:7]))
    check(node, {"x": x, "s": scale}, opset=NEWEST, expected=[wanted])
    back = make_node("DequantizeLinear", ["x", "s"], axis=0, block_size=3)
    real = wanted * np.repeat(scale, 3)[:7]
    check(back, {"x": wanted, "s": scale}, opset=NEWEST, expected=[real])


def test_the_scale_says_how_exactly_to_divide(check: Check, make_node: Make) -> None:
    x, scale = np.float16([5.004, 7.5]), np.float16(2.002)
    for attributes in ({}, {"precision": TensorProto.FLOAT}):
        node = make_node("QuantizeLinear", ["x", "s"], **attributes)
        inputs = {"x": x, "s": np.asarray(scale)}
        check(node, inputs, opset=NEWEST, expected=reference(node, inputs))


# -- formulas -----------------------------------------------------------------------------------
def test_batch_normalization_in_training(
    check: Check, make_node: Make, rng: np.random.Generator
) -> None:
    inputs = {
        "x": rng.standard_normal((3, 2, 5)).astype(np.float32),
        "s": np.float32([1, 2]),
        "t": np.float32([0.5, -1]),
        "m": np.float32([3, 4]),
        "v": np.float32([1, 5]),
    }
    outputs = ("y", "running_mean", "running_var")
    node = make_node("BatchNormalization", list(inputs), outputs, training_mode=1, momentum=0.75)
    check(node, inputs, opset=15, outputs=outputs, expected=reference(node, inputs))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 3), (7, 7), (2, 2, 4, 4)])
def test_determinants(
    check: Check, make_node: Make, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    x = rng.standard_normal(shape)
    check(make_node("Det", ["x"]), {"x": x}, expected=[np.asarray(np.linalg.det(x))])


def test_the_determinant_of_a_singular_matrix(check: Check, make_node: Make) -> None:
    x = np.zeros((2, 3, 3), np.float32)
    x[0, 0] = 1
    check(make_node("Det", ["x"]), {"x": x}, expected=[np.zeros(2, np.float32)])


@pytest.mark.parametrize("edges", [(0.0, 4000.0), (300.0, 7600.0), (20.0, 120.0)])
def test_mel_weights(check: Check, make_node: Make, edges: tuple[float, float]) -> None:
    operands = {
        "bins": np.asarray(np.int64(10)),
        "length": np.asarray(np.int64(64)),
        "rate": np.asarray(np.int64(16000)),
        "low": np.asarray(np.float32(edges[0])),
        "high": np.asarray(np.float32(edges[1])),
    }
    node = make_node("MelWeightMatrix", list(operands))
    check(node, {}, operands, expected=reference(node, operands))
    fixed = {n: operands.pop(n) for n in ("bins", "length")}
    check(node, operands, fixed, expected=reference(node, {**fixed, **operands}))


def test_a_product_of_many_factors(check: Check, make_node: Make, rng: np.random.Generator) -> None:
    shapes = {"a": (3, 4), "b": (4, 5), "c": (5,), "d": (5, 2)}
    inputs = {n: rng.standard_normal(s) for n, s in shapes.items()}
    for equation in ("ij,jk,k,kl->li", "ij,jk,k,kl", "ij,jk,k,kl->k"):
        node = make_node("Einsum", list(inputs), equation=equation)
        check(node, inputs, expected=[np.einsum(equation, *inputs.values())])


def test_sums_of_narrow_floats_do_not_overflow_on_the_way(check: Check, make_node: Make) -> None:
    x = np.float16([300, 400])
    for op, wanted in (("ReduceL2", 500), ("ReduceLogSum", np.log(700))):
        node = make_node(op, ["x"], keepdims=0)
        check(node, {"x": x}, expected=[np.asarray(np.float16(wanted))])
    matrix = make_node("Gemm", ["a", "b"], alpha=0.001)
    a = np.full((1, 2), 300, np.float16)
    check(matrix, {"a": a, "b": a.T.copy()}, expected=[np.float16([[180]])])


def test_the_type_of_the_mean_is_the_stashed_one(
    check: Check, make_node: Make, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((3, 8)).astype(np.float16)
    inputs = {"x": x, "s": np.ones(8, np.float16)}
    node = make_node("LayerNormalization", ["x", "s"], ("y", "mean", "inverse"))
    wide = x.astype(np.float32)
    mean = wide.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + np.float32(1e-5))
    wanted = [((wide - mean) * inverse).astype(np.float16), mean, inverse]
    check(node, inputs, outputs=("y", "mean", "inverse"), expected=wanted)


def test_powers_of_mixed_types(check: Check, make_node: Make) -> None:
    node = make_node("Pow", ["x", "p"])
    odd = np.int64([(1 << 24) + 1])
    check(node, {"x": np.float32([-1]), "p": odd}, expected=[np.float32([-1])])
    check(node, {"x": np.int32([2]), "p": np.int64([33])}, expected=[np.int32([0])])
    half = {"x": np.float16([3]), "p": np.float32([2.3])}
    check(node, half, expected=[np.float16([3**2.3])])


def test_the_diagonal_may_be_moved_at_run_time(check: Check, make_node: Make) -> None:
    x = np.arange(20).reshape(4, 5)
    node = make_node("Trilu", ["x", "k"], upper=1)
    check(node, {"x": x, "k": np.asarray(-2)}, expected=[np.triu(x, -2)])


def test_activations_keep_small_results(check: Check, make_node: Make) -> None:
    x = np.float32([-30, -20, -5, -3.5, 0, 3.5, 30, 100])
    wide = x.astype(np.float64)
    softplus = np.logaddexp(0, wide)
    cubic = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        gelu = wide / (1 + np.exp(-2 * cubic))
    for op, wanted, attributes in (
        ("Softplus", softplus, {}),
        ("Mish", wide * np.tanh(softplus), {}),
        ("Gelu", gelu, {"approximate": "tanh"}),
    ):
        node = make_node(op, ["x"], **attributes)
        check(node, {"x": x}, expected=[wanted.astype(np.float32)], relative=True)


def test_groups_that_share_a_scale(check: Check, make_node: Make, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6, 5)).astype(np.float32)
    scale, shift = np.float32([1, 2, -1]), np.float32([0.5, 0, 3])
    node = make_node("GroupNormalization", ["x", "s", "t"], num_groups=3)
    grouped = x.reshape(2, 3, 10)
    deviation = np.sqrt(grouped.var(-1, keepdims=True) + np.float32(1e-5))
    unit = (grouped - grouped.mean(-1, keepdims=True)) / deviation
    wanted = (unit * scale[:, None] + shift[:, None]).reshape(x.shape)
    check(node, {"x": x, "s": scale, "t": shift}, opset=18, expected=[wanted])
