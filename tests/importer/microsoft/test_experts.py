"""Mixtures of experts, whose rows go through the networks that a router scores best."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rutc
from rutc.errors import UserError
from tests.close import assert_close
from tests.machines import on_machines

EXPERTS, COLUMNS, HIDDEN = 5, 16, 32


def packed(numbers, bits):
    """Numbers of so many bits in bytes along the last axis, filled up with 0, low bits first."""
    each = 8 // bits
    padded = np.zeros((*numbers.shape[:-1], -(-numbers.shape[-1] // each) * each), "u1")
    padded[..., : numbers.shape[-1]] = numbers
    parts = padded.reshape(*numbers.shape[:-1], -1, each)
    return sum(parts[..., i] << (i * bits) for i in range(each)).astype("u1")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}


def swiglu(gate, value, alpha=1.0, beta=0.0, limit=np.inf):
    gate, value = np.minimum(gate, limit), np.clip(value, -limit, limit)
    return gate * sigmoid(alpha * gate) * (value + beta)


def mixture(x, scores, network, k, shares=None, *, normalised=False):
    """The definition, row by row, in float64: `network(row, expert)`."""
    raised = np.exp(scores - scores.max(1, keepdims=True))
    shares = raised / raised.sum(1, keepdims=True) if shares is None else shares
    rows = []
    for row, score, share in zip(x.astype("f8"), scores, shares.astype("f8"), strict=True):
        best = np.argsort(-score, kind="stable")[:k]
        whole = share[best].sum() if normalised else 1.0
        rows.append(sum(share[e] / whole * network(row, e) for e in best))
    return np.array(rows).astype(x.dtype)


@pytest.fixture
def layers(normal):
    """`layers(pairs)`: weights and biases of two layers, the first of gates and values or not."""

    def make(width=1):
        return {
            "w1": normal(EXPERTS, width * HIDDEN, COLUMNS) / 4,
            "b1": normal(EXPERTS, width * HIDDEN),
            "w2": normal(EXPERTS, COLUMNS, HIDDEN) / 4,
            "b2": normal(EXPERTS, COLUMNS),
        }

    return make


@pytest.mark.parametrize("k", [1, 2, EXPERTS])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("normalised", [0, 1])
def test_experts(activation, k, normalised, check, node, normal, layers):
    inputs = {"x": normal(7, COLUMNS), "r": normal(7, EXPERTS)}
    options = {"activation_type": activation, "normalize_routing_weights": normalised, "k": k}
    check(node("MoE", ["x", "r", "w1", "b1", "w2", "b2"], **options), inputs, layers())


@pytest.mark.parametrize("kind", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(2, 3, COLUMNS), (1, 1, COLUMNS), (0, COLUMNS)])
def test_shapes_and_types(shape, kind, check, node, normal, layers):
    rows = int(np.prod(shape[:-1]))
    inputs = {"x": normal(*shape).astype(kind), "r": normal(rows, EXPERTS).astype(kind)}
    constants = {n: a.astype(kind) for n, a in layers().items()}
    step = node("MoE", ["x", "r", "w1", "", "w2"], k=2, activation_type="silu")
    expected = [np.zeros(shape, kind)] if not rows else None
    check(step, inputs, constants, expected=expected)


def test_gates_in_turns(check, node, normal, layers):
    inputs = {"x": normal(7, COLUMNS), "r": normal(7, EXPERTS)}
    options = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.75}
    options |= {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
    check(node("MoE", ["x", "r", "w1", "b1", "w2", "b2"], **options), inputs, layers(2))


@pytest.mark.parametrize("fusion", [0, 2])
def test_gates_that_onnx_runtime_has_not(fusion, check, node, normal, layers):
    x, scores = normal(3, COLUMNS), normal(3, EXPERTS)
    made = layers(2)
    exact = {n: a.astype("f8") for n, a in made.items()}
    names = ["x", "r", "w1", "b1", "w2", "b2"]
    if fusion == 0:
        made |= {"w3": made["w1"][:, HIDDEN:], "b3": made["b1"][:, HIDDEN:]}
        made |= {"w1": made["w1"][:, :HIDDEN], "b1": made["b1"][:, :HIDDEN]}
        names += ["w3", "b3"]

    def network(row, e):
        sums = exact["w1"][e] @ row + exact["b1"][e]
        return exact["w2"][e] @ swiglu(sums[:HIDDEN], sums[HIDDEN:]) + exact["b2"][e]

    step = node("MoE", names, activation_type="swiglu", swiglu_fusion=fusion, k=2)
    check(step, {"x": x, "r": scores}, made, expected=[mixture(x, scores, network, 2)])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_experts(bits, block, zeros, check, node, normal, rng):
    x, scores = normal(5, COLUMNS), normal(5, EXPERTS)
    made, dense = {}, {}
    for i, (rows, columns) in enumerate([(HIDDEN, COLUMNS), (COLUMNS, HIDDEN)], 1):
        blocks = columns // block if block else 1
        numbers = rng.integers(0, 1 << bits, (EXPERTS, rows, columns))
        scales = rng.uniform(0.5, 1.0, (EXPERTS, rows, blocks)).astype("f4") / (1 << bits)
        middles = np.full((EXPERTS, rows, blocks), 1 << (bits - 1))
        made |= {f"w{i}": packed(numbers, bits), f"s{i}": scales if block else scales[..., 0]}
        if zeros:
            middles = rng.integers(0, 1 << bits, middles.shape)
            made[f"z{i}"] = packed(middles if block else middles[..., 0], bits)
        width = columns // blocks
        lowered = numbers - middles.repeat(width, -1).astype("f8")
        dense[i] = lowered * scales.astype("f8").repeat(width, -1)

    def network(row, e):
        return dense[2][e] @ ACTIVATIONS["silu"](dense[1][e] @ row)

    names = ["x", "r", "w1", "s1", "", "w2", "s2"]
    names += ["", "", "", "", "z1", "z2"] if zeros else []
    options = {"block_size": block} if block else {}
    options |= {"activation_type": "silu", "expert_weight_bits": bits, "k": 2}
    expected = mixture(x, scores, network, 2)
    check(node("QMoE", names, **options), {"x": x, "r": scores}, made, expected=[expected])


def test_shares_of_their_own(check, node, normal, rng):
    x, scores = normal(3, COLUMNS), normal(3, EXPERTS)
    shares = rng.uniform(0.1, 1.0, (3, EXPERTS)).astype("f4")
    numbers = {
        "w1": rng.integers(0, 256, (EXPERTS, HIDDEN, COLUMNS)).astype("u1"),
        "w2": rng.integers(0, 256, (EXPERTS, COLUMNS, HIDDEN)).astype("u1"),
    }
    scales = {"s1": np.full((EXPERTS, HIDDEN), 1 / 256, "f4")}
    scales["s2"] = np.full((EXPERTS, COLUMNS), 1 / 256, "f4")

    def network(row, e):
        first, second = ((numbers[n][e].astype("f8") - 128) / 256 for n in ("w1", "w2"))
        return second @ np.maximum(first @ row, 0)

    names = ["x", "r", "w1", "s1", "", "w2", "s2", *[""] * 7, "p"]
    step = node("QMoE", names, expert_weight_bits=8, k=3, normalize_routing_weights=1)
    expected = mixture(x, scores, network, 3, shares, normalised=True)
    inputs = {"x": x, "r": scores, "p": shares}
    check(step, inputs, numbers | scales, expected=[expected])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": EXPERTS + 1}, "k=6"),
        ({"activation_type": "geglu"}, "'geglu' is not supported"),
        ({"activation_type": "swiglu"}, "swiglu_fusion=0 does not fit"),
        ({"use_sparse_mixer": 1}, "sparse mixer"),
    ],
)
def test_what_is_refused(options, message, check, node, normal, layers):
    inputs = {"x": normal(3, COLUMNS), "r": normal(3, EXPERTS)}
    with pytest.raises(UserError, match=message):
        check(node("MoE", ["x", "r", "w1", "b1", "w2", "b2"], **options), inputs, layers())


@on_machines
def test_compiled(machine, tmp_path, make_model, node, normal, layers):
    made = layers()
    x, scores = normal(7, COLUMNS), normal(7, EXPERTS)
    step = node("MoE", ["x", "r", "w1", "b1", "w2", "b2"], k=2, activation_type="silu")
    model = make_model([step], {"x": x, "r": scores}, ["y"], made)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_param = "rows"
    path = tmp_path / "experts.onnx"
    onnx.save(model, path)
    rutc.compile(path, tmp_path / "experts.so", target=machine.name, verify=False)

    def network(row, e):
        exact = {n: a[e].astype("f8") for n, a in made.items()}
        hidden = ACTIVATIONS["silu"](exact["w1"] @ row + exact["b1"])
        return exact["w2"] @ hidden + exact["b2"]

    with rutc.load(tmp_path / "experts.so", threads=1) as session:
        for rows in (7, 1, 0):
            (got,) = session.run(None, {"x": x[:rows], "r": scores[:rows]})
            want = mixture(x[:rows], scores[:rows], network, 2).reshape(rows, COLUMNS)
            assert_close(got, want, reduction=HIDDEN * COLUMNS)
