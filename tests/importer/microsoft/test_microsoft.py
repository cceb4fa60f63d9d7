"""Operators of com.microsoft: fused activations, products, convolutions, quantised weights."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rutc.importer.registry import OPERATORS

DOMAIN = "com.microsoft"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "microsoft.md"


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelus(op, check, node, normal):
    check(node(op, ["x"]), {"x": normal(3, 5)})


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelus_of_a_sum(op, check, node, normal):
    check(node(op, ["x", "b"]), {"x": normal(2, 3, 5)}, {"b": normal(5)})


def test_quick_gelu_with_alpha(check, node, normal):
    check(node("QuickGelu", ["x"], alpha=-0.7), {"x": normal(3, 5)})


@pytest.mark.parametrize("batches", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("last", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(batches, last, check, node, normal):
    batch_a, batch_b = batches
    a = normal(2, 3, 4, 5)
    b = normal(2, 3, 5, 6)
    if last[0]:
        a = a.swapaxes(-1, -2)
    if last[1]:
        b = b.swapaxes(-1, -2)
    if batch_a:
        a = a.transpose(2, 0, 1, 3)
    if batch_b:
        b = b.transpose(2, 0, 1, 3)
    step = node(
        "FusedMatMul",
        ["a", "b"],
        alpha=0.3,
        transA=last[0],
        transB=last[1],
        transBatchA=batch_a,
        transBatchB=batch_b,
    )
    inputs = {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}
    check(step, inputs)


@pytest.mark.parametrize("metric", [None, "sqeuclidean", "euclidean"])
def test_distances(metric, check, node, normal):
    given = {} if metric is None else {"metric": metric}
    check(node("CDist", ["a", "b"], **given), {"a": normal(4, 3), "b": normal(5, 3)})


ACTIVATIONS = {
    "Relu": [],
    "Sigmoid": [],
    "Tanh": [],
    "LeakyRelu": [0.2],
    "Clip": [-0.5, 0.8],
    "HardSigmoid": [0.3, 0.4],
}


@pytest.mark.parametrize(
    ("name", "summand"), [*((name, False) for name in ACTIVATIONS), ("Relu", True)]
)
def test_fused_conv(name, summand, check, node, normal):
    parameters = ACTIVATIONS[name]
    step = node(
        "FusedConv",
        ["x", "w", "b"] + (["z"] if summand else []),
        activation=name,
        activation_params=parameters or None,
        pads=[1, 1, 1, 1],
        strides=[2, 2],
    )
    inputs = {"x": normal(2, 3, 6, 6)}
    if summand:
        inputs["z"] = normal(2, 4, 3, 3)
    check(step, inputs, {"w": normal(4, 3, 3, 3), "b": normal(4)})


@pytest.mark.parametrize("name", ["Relu", "Tanh", "LeakyRelu", "HardSigmoid"])
def test_fused_gemm(name, check, node, normal):
    parameters = ACTIVATIONS[name]
    given = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
    step = node("FusedGemm", ["a", "b", "c"], activation=name, transB=1, alpha=0.5, **given)
    check(step, {"a": normal(3, 4)}, {"b": normal(5, 4), "c": normal(5)})


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [*((bits, zeros) for bits in (2, 4, 8) for zeros in ("none", "packed")), (4, "real")],
)
@pytest.mark.parametrize("size", [(32, 32), (72, 16), (48, 32)])
def test_matmul_n_bits(bits, zeros, size, check, node, normal, rng):
    inner, block = size
    columns, blocks = 5, -(-inner // block)
    constants = {
        "w": rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype("u1"),
        "s": rng.uniform(0.1, 1, (columns, blocks)).astype("f4"),
    }
    names = ["x", "w", "s"]
    if zeros == "packed":
        names.append("z")
        constants["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("u1")
    if zeros == "real":
        names.append("z")
        constants["z"] = rng.uniform(0, 3, (columns, blocks)).astype("f4")
    step = node("MatMulNBits", names, K=inner, N=columns, bits=bits, block_size=block)
    check(step, {"x": normal(2, 3, inner)}, constants)


@pytest.mark.parametrize("weights", ["u1", "i1"])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_quantised_products(weights, per_column, bias, check, node, normal, rng):
    size = (4,) if per_column else ()
    constants = {
        "w": rng.integers(0, 100, (6, 4)).astype(weights),
        "ws": rng.uniform(0.01, 0.1, size).astype("f4"),
        "wz": rng.integers(0, 50, size).astype(weights),
    }
    if bias:
        constants["b"] = normal(4)
    last = ["b"] if bias else []
    dynamic = node("DynamicQuantizeMatMul", ["x", "w", "ws", "wz", *last])
    check(dynamic, {"x": normal(3, 6)}, constants)
    stored = {"x": rng.integers(0, 255, (3, 6)).astype("u1"), "xz": np.uint8(7).reshape(())}
    stored["xs"] = np.float32(0.02).reshape(())
    names = ["x", "w", "xs", "ws", "xz", "wz", *last]
    check(node("MatMulIntegerToFloat", names), stored, constants)


def test_dynamic_quantize_linear(check, make_node, normal):
    step = make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    check(step, {"x": normal(3, 4)}, outputs=("y", "s", "z"))
    check(step, {"x": np.abs(normal(3, 4)) + 1}, outputs=("y", "s", "z"))
    check(step, {"x": np.zeros((3, 4), "f4")}, outputs=("y", "s", "z"))


def test_the_page_lists_the_operators():
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("|")]
    listed = sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))
    assert listed == sorted(op for domain, op in OPERATORS if domain == DOMAIN)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("skip", ["whole", "rows", "columns"])
def test_groups_of_a_sum(skip, last, bias, check, node, normal):
    n, c, h, w = 2, 6, 3, 5
    x, per_channel = normal(n, c, h, w), normal(3, c)
    added = {"whole": normal(n, c, h, w), "rows": normal(n, c), "columns": normal(n, c, 1, 1)}[skip]
    s = x + (added if added.ndim == 4 else added[..., None, None])
    s += per_channel[2][:, None, None] if bias else 0
    grouped = s.reshape(n, 3, -1).astype("f8")
    centred = grouped - grouped.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    y = unit.reshape(s.shape) * per_channel[0][:, None, None] + per_channel[1][:, None, None]
    y = (y / (1 + np.exp(-y))).astype("f4")

    def laid(a):
        return a.transpose(0, 2, 3, 1) if last and a.ndim == 4 else a

    names = ["x", "scale", "shift", "skip"] + (["bias"] if bias else [])
    step = node(
        "SkipGroupNorm", names, ["y", "s"], activation=1, groups=3, channels_last=last, epsilon=1e-5
    )
    constants = dict(zip(("scale", "shift", "bias"), per_channel, strict=True))
    inputs = {"x": laid(x), "skip": laid(added)}
    check(step, inputs, constants, outputs=("y", "s"), expected=[laid(y), laid(s)])
