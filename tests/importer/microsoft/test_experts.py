"""Mixtures of experts, whose rows go through the networks that a router scores best."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rutc
from rutc.errors import UserError
from rutc.runtime.errors import ModelError
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


@pytest.mark.parametrize("scores", [[np.nan, 1, 2, 3, 4], [np.inf, 1, 2, 3, 4], [-np.inf] * 5])
@pytest.mark.parametrize("normalised", [0, 1])
def test_rows_whose_scores_have_no_softmax(normalised, scores, check, node, normal, layers):
    x, r = normal(3, COLUMNS), normal(3, EXPERTS)
    r[1] = scores
    made = layers()
    exact = {n: a.astype("f8") for n, a in made.items()}

    def network(row, e):
        hidden = np.maximum(exact["w1"][e] @ row + exact["b1"][e], 0)
        return exact["w2"][e] @ hidden + exact["b2"][e]

    expected = mixture(x, np.nan_to_num(r), network, 2, normalised=bool(normalised))
    expected[1] = np.nan
    step = node("MoE", list("xr") + list(made), k=2, normalize_routing_weights=normalised)
    check(step, {"x": x, "r": r}, made, expected=[expected])


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


def quantised(rng, bits, block, columns, hidden, *, zeros=False):
    """Packed operands of two layers, by name, and the weights that they stand for.

    Blocks have so many columns, the last of a row perhaps fewer; with `block` 0 a row is one.
    """
    made, dense = {}, {}
    for i, (rows, inner) in enumerate([(hidden, columns), (columns, hidden)], 1):
        each = block or inner
        blocks = -(-inner // each)
        numbers = rng.integers(0, 1 << bits, (EXPERTS, rows, inner))
        scales = rng.uniform(0.5, 1.0, (EXPERTS, rows, blocks)).astype("f4") / (1 << bits)
        middles = np.full((EXPERTS, rows, blocks), 1 << (bits - 1))
        made |= {f"w{i}": packed(numbers, bits), f"s{i}": scales if block else scales[..., 0]}
        if zeros:
            middles = rng.integers(0, 1 << bits, middles.shape)
            made[f"z{i}"] = packed(middles if block else middles[..., 0], bits)
        wide = [t.astype("f8").repeat(each, -1)[..., :inner] for t in (middles, scales)]
        dense[i] = (numbers - wide[0]) * wide[1]
    return made, dense


def of_layers(dense, activation="silu"):
    """What an expert makes of a row."""
    return lambda row, e: dense[2][e] @ ACTIVATIONS[activation](dense[1][e] @ row)


PACKED = ["x", "r", "w1", "s1", "", "w2", "s2"]
WITH_ZEROS = [*PACKED, *[""] * 4, "z1", "z2"]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("block", "columns", "hidden"),
    [(0, 16, 32), (16, 16, 32), (16, 40, 24), (32, 48, 32), (64, 16, 32), (16, 8, 136)],
)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantised_experts(bits, block, columns, hidden, zeros, check, node, normal, rng):
    x, scores = normal(5, columns), normal(5, EXPERTS)
    made, dense = quantised(rng, bits, block, columns, hidden, zeros=zeros)
    options = {"block_size": block} if block else {}
    options |= {"activation_type": "silu", "expert_weight_bits": bits, "k": 2}
    step = node("QMoE", WITH_ZEROS if zeros else PACKED, **options)
    # ONNX Runtime rounds rows to 8 bits if blocks of 8 bits fill those of a layer.
    rounded = bits == 8 and block and not (columns % block and hidden % block)
    expected = [mixture(x, scores, of_layers(dense), 2, normalised=True)] if rounded else None
    check(step, {"x": x, "r": scores}, made, expected=expected)


@pytest.mark.parametrize("block", [0, 16])
def test_scales_that_are_computed(block, check, node, normal, rng):
    made, _ = quantised(rng, 4, block, 40, HIDDEN)
    inputs = {"x": normal(3, 40), "r": normal(3, EXPERTS)}
    inputs |= {n: made.pop(n) for n in ("s1", "s2")}
    options = {"block_size": block} if block else {}
    check(node("QMoE", PACKED, k=2, **options), inputs, made)


@pytest.mark.parametrize("normalised", [None, 0, 1])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("k", [1, 2, EXPERTS])
def test_what_quantised_experts_count(k, given, normalised, check, node, normal, rng):
    inputs = {"x": normal(7, COLUMNS), "r": normal(7, EXPERTS)}
    if given:
        inputs["p"] = rng.uniform(0.1, 1.0, (7, EXPERTS)).astype("f4")
    names = [*PACKED, *[""] * 7, "p"] if given else PACKED
    options = {} if normalised is None else {"normalize_routing_weights": normalised}
    made, _ = quantised(rng, 4, 0, COLUMNS, HIDDEN)
    check(node("QMoE", names, expert_weight_bits=4, k=k, **options), inputs, made)


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


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"r": (3, EXPERTS + 1)}, r"scores the experts for each row: .* \[3, 5\]"),
        ({"r": (3, EXPERTS - 1)}, r"scores the experts for each row: .* \[3, 5\]"),
        ({"r": (2, EXPERTS)}, r"scores the experts for each row: .* \[3, 5\]"),
        ({"r": (EXPERTS,)}, "scores for rows and experts, are expected"),
        ({"x": (COLUMNS,)}, "scores for rows and experts, are expected"),
        ({"x": (3, COLUMNS + 1)}, "goes through layers of 16 columns"),
        ({"w1": (EXPERTS, HIDDEN)}, "weights for experts, rows and columns are expected"),
        ({"w2": (EXPERTS, COLUMNS)}, "weights for experts, rows and columns are expected"),
        ({"w2": (EXPERTS + 1, COLUMNS, HIDDEN)}, "holds the weights of a layer"),
        ({"w2": (EXPERTS, COLUMNS, HIDDEN - 1)}, "holds the weights of a layer"),
        ({"b1": (EXPERTS - 1, HIDDEN)}, r"holds the biases of a layer: .* \[5, 32\]"),
        ({"b1": (EXPERTS, 1)}, r"holds the biases of a layer: .* \[5, 32\]"),
        ({"b2": (EXPERTS - 1, COLUMNS)}, r"holds the biases of a layer: .* \[5, 16\]"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message, check, node, normal, layers):
    inputs = {"x": normal(3, COLUMNS), "r": normal(3, EXPERTS)}
    constants = layers()
    for name, shape in shapes.items():
        (inputs if name in inputs else constants)[name] = normal(*shape)
    with pytest.raises(UserError, match=message):
        check(node("MoE", ["x", "r", "w1", "b1", "w2", "b2"]), inputs, constants)


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("s1", lambda a: a[1:], "holds the scales of a layer"),
        ("s2", lambda a: a[..., :-1], "holds the scales of a layer"),
        ("s1", lambda a: a.reshape(-1), "holds the scales of a layer"),
        ("s1", lambda a: a[None, None], "holds the scales of a layer"),
        ("w1", lambda a: a[1:], "holds the|scores the experts"),
        ("w1", lambda a: a[0], "weights for experts, rows and columns are expected"),
        ("w2", lambda a: a[:, :, 1:], "holds the"),
        ("w1", lambda a: a.astype("f4"), "packed in u8, not in float32"),
        ("z1", lambda a: a[1:], "holds the zero points of a layer"),
        ("z2", lambda a: a[..., :-1], "holds the zero points of a layer"),
        ("z1", lambda a: a.reshape(-1), "holds the zero points of a layer"),
        ("z1", lambda a: a.astype("f4"), "packed in u8, not in float32"),
    ],
)
def test_quantised_shapes_that_do_not_fit(name, change, message, block, check, node, normal, rng):
    made, _ = quantised(rng, 4, block, 40, 32, zeros=True)
    made[name] = change(made[name])
    inputs = {"x": normal(3, 40), "r": normal(3, EXPERTS)}
    step = node("QMoE", WITH_ZEROS, block_size=block)
    with pytest.raises(UserError, match=message):
        check(step, inputs, made)


@pytest.mark.parametrize("experts", [EXPERTS - 1, EXPERTS + 1])
def test_shares_for_other_experts(experts, check, node, normal, rng):
    made, _ = quantised(rng, 4, 0, COLUMNS, HIDDEN)
    inputs = {"x": normal(3, COLUMNS), "r": normal(3, EXPERTS), "p": normal(3, experts)}
    with pytest.raises(UserError, match="says what the experts of each row count"):
        check(node("QMoE", [*PACKED, *[""] * 7, "p"]), inputs, made)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (PACKED, {"block_size": -1}, "blocks of -1 columns"),
        ([*PACKED, "", "w1", "s1"], {}, "a third layer goes with 'swiglu' only, not with 'relu'"),
        ([*PACKED, "", "w1"], {}, r"weights u8\[5, 32, 8\] have no scales"),
        ([n if n != "w1" else "v" for n in PACKED], {}, "the weights are computed at run time"),
        ([*PACKED, *[""] * 4, "v"], {}, "the zero points are computed at run time"),
    ],
)
def test_what_quantised_experts_refuse(names, options, message, check, node, normal, rng):
    made, _ = quantised(rng, 4, 0, COLUMNS, HIDDEN)
    inputs = {"x": normal(3, COLUMNS), "r": normal(3, EXPERTS)}
    shape = (EXPERTS, HIDDEN // 2) if names[-1] == "v" else made["w1"].shape
    inputs |= {"v": np.zeros(shape, "u1")} if "v" in names else {}
    with pytest.raises(UserError, match=message):
        check(node("QMoE", names, **options), inputs, made)


@pytest.mark.parametrize("names", [("rows", None), ("one", "rows", None)])
def test_a_run_with_other_scores_than_rows_ends(names, tmp_path, make_model, node, normal, layers):
    x, scores = normal(3, COLUMNS).reshape(*(1,) * (len(names) - 2), 3, COLUMNS), normal(3, EXPERTS)
    step = node("MoE", ["x", "r", "w1", "b1", "w2", "b2"], k=2)
    model = make_model([step], {"x": x, "r": scores}, ["y"], layers())
    x_info, r_info = (i.type.tensor_type.shape for i in model.graph.input)
    for i, name in enumerate(names[:-1]):
        x_info.dim[i].dim_param = name
    r_info.dim[0].dim_param = "scored"
    path = tmp_path / "experts.onnx"
    onnx.save(model, path)
    rutc.compile(path, tmp_path / "experts.so", verify=False)
    with rutc.load(tmp_path / "experts.so", threads=1) as session:
        assert session.run(None, {"x": x, "r": scores})[0].shape == x.shape
        for given in ({"r": scores[:2]}, {"x": x[..., :2, :]}):
            with pytest.raises(ModelError, match='input "r"'):
                session.run(None, {"x": x, "r": scores} | given)


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


@on_machines
@pytest.mark.parametrize(
    ("bits", "block", "columns", "hidden"),
    [(4, 16, 40, 24), (8, 32, 37, 17), (2, 16, 52, 8), (8, 0, 1, 3)],
)
def test_compiled_blocks(
    bits, block, columns, hidden, machine, tmp_path, make_model, node, normal, rng
):
    made, dense = quantised(rng, bits, block, columns, hidden, zeros=True)
    x, scores = normal(7, columns), normal(7, EXPERTS)
    options = {"block_size": block} if block else {}
    options |= {"activation_type": "silu", "expert_weight_bits": bits, "k": 2}
    path = tmp_path / "experts.onnx"
    onnx.save(
        make_model([node("QMoE", WITH_ZEROS, **options)], {"x": x, "r": scores}, ["y"], made), path
    )
    # No layer's rows are rounded to 8 bits, so ONNX Runtime is to agree as with real weights.
    rutc.compile(path, tmp_path / "experts.so", target=machine.name)
    wanted = mixture(x, scores, of_layers(dense), 2, normalised=True)
    x[3, 0], scores[5, 1] = np.inf, np.nan
    with rutc.load(tmp_path / "experts.so", threads=1) as session:
        (got,) = session.run(None, {"x": x, "r": scores})
    finite = [0, 1, 2, 4, 6]
    assert_close(got[finite], wanted[finite], reduction=hidden * columns)
    assert np.isnan(got[5]).all()
    assert not np.isfinite(got[3]).any()
