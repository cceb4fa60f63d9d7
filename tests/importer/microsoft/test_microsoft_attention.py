"""Attention and normalisation of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest

BATCH, HEADS, SIZE, QUERIES, KEYS = 2, 2, 4, 3, 5
HIDDEN = HEADS * SIZE


def paddings(queries, keys):
    """Every form of a padding mask."""
    whole = np.ones((BATCH, keys), np.int32)
    whole[1, -2:] = 0
    return {
        "none": None,
        "lengths": np.array([keys, 2], np.int32),
        "ends and starts": np.array([keys, keys - 1, 1, 0], np.int32),
        "keys": whole,
        "scores": np.broadcast_to(whole[:, None], (BATCH, queries, keys)).copy(),
    }


@pytest.mark.parametrize("padding", paddings(1, 5))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_projection(padding, unidirectional, check, node, normal):
    mask = paddings(QUERIES, QUERIES)[padding]
    inputs = {"x": normal(BATCH, QUERIES, 6)}
    names = ["x", "w", "b"]
    if mask is not None:
        inputs["m"] = mask
        names.append("m")
    step = node("Attention", names, num_heads=HEADS, unidirectional=unidirectional)
    check(step, inputs, {"w": normal(6, 3 * HIDDEN), "b": normal(3 * HIDDEN)})


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("padding", ["none", "keys", "scores"])
def test_attention_with_a_cache(padding, unidirectional, check, node, normal):
    past = 2
    mask = paddings(QUERIES, QUERIES + past)[padding]
    inputs = {"x": normal(BATCH, QUERIES, 6), "past": normal(2, BATCH, HEADS, past, SIZE)}
    names = ["x", "w", "b", "m" if mask is not None else "", "past"]
    if mask is not None:
        inputs["m"] = mask
    step = node(
        "Attention", names, ["y", "present"], num_heads=HEADS, unidirectional=unidirectional
    )
    constants = {"w": normal(6, 3 * HIDDEN), "b": normal(3 * HIDDEN)}
    check(step, inputs, constants, outputs=("y", "present"))


def test_attention_with_a_bias(check, node, normal):
    inputs = {"x": normal(BATCH, QUERIES, 6), "a": normal(1, HEADS, QUERIES, QUERIES)}
    step = node("Attention", ["x", "w", "b", "", "", "a"], num_heads=HEADS)
    check(step, inputs, {"w": normal(6, 3 * HIDDEN), "b": normal(3 * HIDDEN)})


def test_attention_with_narrower_values_and_a_scale(check, node, normal):
    step = node(
        "Attention", ["x", "w", "b"], num_heads=HEADS, qkv_hidden_sizes=[8, 8, 6], scale=0.3
    )
    check(step, {"x": normal(BATCH, QUERIES, 6)}, {"w": normal(6, 22), "b": normal(22)})


@pytest.mark.parametrize("padding", ["none", "lengths", "keys"])
@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("extras", [False, True])
def test_multi_head_attention(padding, past, unidirectional, extras, check, node, normal):
    keys = QUERIES if unidirectional else KEYS
    inputs = {
        "q": normal(BATCH, QUERIES, HIDDEN),
        "k": normal(BATCH, keys, HIDDEN),
        "v": normal(BATCH, keys, HIDDEN),
    }
    names = ["q", "k", "v", "", "", "", "", ""]
    mask = paddings(QUERIES, keys + past)[padding]
    if mask is not None and not (past and padding == "lengths"):
        inputs["m"] = mask
        names[4] = "m"
    if extras:
        inputs["b"], inputs["a"] = normal(3 * HIDDEN), normal(BATCH, 1, QUERIES, keys + past)
        names[3], names[5] = "b", "a"
    outputs = ["y"]
    if past:
        inputs["pk"], inputs["pv"] = (normal(BATCH, HEADS, past, SIZE) for _ in range(2))
        names[6:] = ["pk", "pv"]
        outputs += ["key", "value"]
    step = node(
        "MultiHeadAttention", names, outputs, num_heads=HEADS, unidirectional=unidirectional
    )
    check(step, inputs, outputs=outputs)


def test_multi_head_attention_of_separated_heads(check, node, normal):
    inputs = {"q": normal(BATCH, QUERIES, HIDDEN)}
    inputs |= {n: normal(BATCH, HEADS, KEYS, SIZE) for n in "kv"}
    check(node("MultiHeadAttention", list("qkv"), num_heads=HEADS), inputs)


def test_multi_head_attention_of_packed_operands(check, node, normal, make_model):
    q, k, v = (normal(BATCH, QUERIES, HEADS, SIZE) for _ in range(3))
    weights = np.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(SIZE**0.5)
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(BATCH, QUERIES, HIDDEN)
    step = node("MultiHeadAttention", ["q"], num_heads=HEADS)
    check(step, {"q": np.stack([q, k, v], 3)}, expected=[y])
    step = node("MultiHeadAttention", ["q", "k"], num_heads=HEADS)
    inputs = {"q": q.reshape(BATCH, QUERIES, HIDDEN), "k": np.stack([k, v], 3)}
    check(step, inputs, expected=[y])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_quantised_attention(per_column, unidirectional, check, node, normal, rng):
    size = (3 * HIDDEN,) if per_column else ()
    inputs = {"x": rng.integers(0, 255, (BATCH, QUERIES, 6)).astype("u1")}
    constants = {
        "w": rng.integers(-100, 100, (6, 3 * HIDDEN)).astype("i1"),
        "b": normal(3 * HIDDEN),
        "xs": np.float32(0.02).reshape(()),
        "ws": rng.uniform(0.01, 0.03, size).astype("f4"),
        "xz": np.uint8(120).reshape(()),
        "wz": np.zeros(size, "i1"),
    }
    names = ["x", "w", "b", "xs", "ws", "", "xz", "wz"]
    step = node("QAttention", names, num_heads=HEADS, unidirectional=unidirectional)
    check(step, inputs, constants)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", ["offset", "each"])
@pytest.mark.parametrize("partial", [False, True])
def test_rotary_embedding(interleaved, rank, positions, partial, check, node, normal, rng):
    size = 8
    shape = (BATCH, QUERIES, HEADS * size) if rank == 3 else (BATCH, HEADS, QUERIES, size)
    rotated = size // 2 if partial else size
    angles = rng.uniform(0, 6, (10, rotated // 2))
    inputs = {
        "x": normal(*shape),
        "p": np.array([4]) if positions == "offset" else rng.integers(0, 10, (BATCH, QUERIES)),
    }
    constants = {"c": np.cos(angles).astype("f4"), "s": np.sin(angles).astype("f4")}
    options = {"num_heads": HEADS, "rotary_embedding_dim": rotated} if partial else {}
    step = node("RotaryEmbedding", ["x", "p", "c", "s"], interleaved=interleaved, **options)
    check(step, inputs, constants)


def grouped(rng, queries, past, buffer, *, packed=False):
    """Operands of GroupQueryAttention with 4 query heads on 2 of keys and values."""

    def normal(*shape):
        return rng.standard_normal(shape).astype("f4")

    size = 16
    arrays = {}
    if packed:
        arrays["q"] = normal(BATCH, queries, 8 * size)
    else:
        arrays["q"] = normal(BATCH, queries, 4 * size)
        arrays["k"], arrays["v"] = (normal(BATCH, queries, 2 * size) for _ in range(2))
    arrays["pk"], arrays["pv"] = (normal(BATCH, 2, buffer, size) for _ in range(2))
    arrays["last"] = np.full(BATCH, past + queries - 1, np.int32)
    names = ["q", "" if packed else "k", "" if packed else "v", "pk", "pv", "last", "total"]
    constants = {"total": np.array(past + queries, np.int32)}
    angles = rng.uniform(0, 6, (32, size // 2))
    constants |= {"c": np.cos(angles).astype("f4"), "s": np.sin(angles).astype("f4")}
    return names, arrays, constants


@pytest.mark.parametrize(("queries", "past"), [(3, 0), (1, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3, "softcap": 2.0},
        {"local_window_size": 2},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"smooth_softmax": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(queries, past, options, packed, check, node, rng):
    names, inputs, constants = grouped(rng, queries, past, past, packed=packed)
    outputs = ["y", "key", "value"]
    if "do_rotary" in options:
        names += ["c", "s"]
    used = {n: a for n, a in constants.items() if n in names}
    step = node("GroupQueryAttention", names, outputs, num_heads=4, kv_num_heads=2, **options)
    check(step, inputs, used, outputs=outputs)


def test_group_query_attention_with_a_sink_and_a_bias(check, node, normal, rng):
    names, inputs, constants = grouped(rng, 3, 0, 0)
    names += ["", "", "", "bias", "sink"]
    inputs |= {"bias": normal(1, 4, 3, 3), "sink": normal(4)}
    step = node("GroupQueryAttention", names, num_heads=4, kv_num_heads=2)
    check(step, inputs, {"total": constants["total"]})


def test_group_query_attention_of_sequences_of_different_lengths(check, node, rng):
    names, inputs, constants = grouped(rng, 1, 4, 5)
    inputs["last"] = np.array([4, 2], np.int32)
    outputs = ["y", "key", "value"]
    step = node(
        "GroupQueryAttention", [*names, "c", "s"], outputs, num_heads=4, kv_num_heads=2, do_rotary=1
    )
    check(step, inputs, constants, outputs=("y",))


@pytest.mark.parametrize("skip", ["whole", "row", "flat"])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(skip, bias, check, node, normal):
    shape = {"whole": (2, 3, 8), "row": (1, 3, 8), "flat": (3, 8)}[skip]
    inputs = {"x": normal(2, 3, 8), "s": normal(*shape)}
    constants = {"g": normal(8), "t": normal(8)}
    if bias:
        constants["b"] = normal(8)
    names = ["x", "s", "g", "t"] + (["b"] if bias else [])
    step = node("SkipLayerNormalization", names, ["y", "", "", "z"], epsilon=1e-5)
    check(step, inputs, constants, outputs=("y", "z"))


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(bias, check, node, normal):
    inputs = {"x": normal(2, 3, 8), "s": normal(2, 3, 8)}
    constants = {"g": normal(8)} | ({"b": normal(8)} if bias else {})
    step = node(
        "SkipSimplifiedLayerNormalization", ["x", "s", *constants], ["y", "", "", "z"], epsilon=1e-5
    )
    check(step, inputs, constants, outputs=("y", "z"))


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("op", ["SimplifiedLayerNormalization", "LayerNormalization"])
def test_normalization_in_the_standards_domain(op, opset, check, make_node, normal):
    names = ["x", "g"] if op.startswith("S") else ["x", "g", "t"]
    step = make_node(op, names, epsilon=1e-5, axis=-1)
    check(step, {"x": normal(2, 3, 8)}, {n: normal(8) for n in names[1:]}, opset=opset)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("segments", [False, True])
def test_embed_layer_normalization(mask, segments, check, node, normal, rng):
    inputs = {"i": rng.integers(0, 9, (2, 4)).astype(np.int32)}
    constants = {"w": normal(9, 8), "p": normal(6, 8), "g": normal(8), "t": normal(8)}
    names = ["i", "", "w", "p", "", "g", "t"]
    if segments:
        inputs["si"] = rng.integers(0, 2, (2, 4)).astype(np.int32)
        constants["sw"] = normal(2, 8)
        names[1], names[4] = "si", "sw"
    if mask:
        inputs["m"] = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
        names.append("m")
    outputs = ["y", "n"]
    check(node("EmbedLayerNormalization", names, outputs), inputs, constants, outputs=outputs)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last, activation, check, node, normal):
    x, g, t = normal(2, 3, 5, 6), normal(6), normal(6)
    parts = x.reshape(2, 15, 3, 2)
    mean, deviation = parts.mean((1, 3), keepdims=True), parts.std((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(deviation**2 + 1e-5)).reshape(x.shape) * g + t
    if activation:
        y = y / (1 + np.exp(-y))
    options = {"groups": 3, "activation": activation, "channels_last": last}
    turn = (0, 1, 2, 3) if last else (0, 3, 1, 2)
    step = node("GroupNorm", ["x", "g", "t"], **options)
    inputs = {"x": np.ascontiguousarray(x.transpose(turn))}
    check(step, inputs, {"g": g, "t": t}, expected=[y.transpose(turn).astype("f4")])
