"""Operators of com.microsoft: fused activations, products, normalisations, convolutions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.operators.products import length
from tests.fuzz.operators.windows import window
from tests.fuzz.rules import CONTRIB

FLOATS = ("float", "float16", "double", "bfloat16")
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")
put = partial(Build.node, domain=CONTRIB)


@maker("Gelu QuickGelu", CONTRIB)
def gelu(b: Build, op: str) -> None:
    given = {"alpha": b.one([1.702, 1.0, -0.5])} if op == "QuickGelu" and b.chance(50) else {}
    put(b, op, [b.pick(FLOATS)], **given)


@maker("BiasGelu FastGelu", CONTRIB)
def bias_gelu(b: Build, op: str) -> None:
    x = b.pick(FLOATS, lambda v: v.rank > 0, lambda: b.shape(1))
    alone = op == "FastGelu" and b.chance(40)
    put(b, op, [x] if alone else [x, b.like(x, x.shape[-1:])])


@maker("BiasAdd BiasSplitGelu", CONTRIB)
def biased(b: Build, op: str) -> None:
    width = b.one([2, 8, 34])
    x = b.leaf(b.dtype(["float", "float16"]), [b.one([1, 2, 0]), b.one([3, 1, 5]), width])
    put(b, op, [x, b.like(x, [width]), *([b.like(x)] if op == "BiasAdd" else [])])


@maker("FusedMatMul TransposeMatMul FusedMatMulActivation", CONTRIB)
def fused_matmul(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    given: dict[str, Any] = {n: 1 for n in ("transA", "transB") if b.chance(40)}
    batch = [b.one([2, 1, 3]) for _ in range(b.number(0, 2))]
    left = [*batch, *((inner, rows) if "transA" in given else (rows, inner))]
    batch = batch[b.number(0, len(batch)) :]
    right = [*batch, *((columns, inner) if "transB" in given else (inner, columns))]
    if b.chance(30):
        given["alpha"] = b.one([0.5, 2.0])
    if op == "FusedMatMulActivation":
        given |= activation(b, listed=False)
    if op != "TransposeMatMul" and len(left) == len(right) > 2 and b.chance(20):
        given |= {"transBatchA": 1, "transBatchB": 1}
        left, right = ([*s[1:-1], s[0], s[-1]] for s in (left, right))
    x = b.leaf(b.dtype(FLOATS), left)
    put(b, op, [x, b.like(x, right)], **given)


@maker("CDist", CONTRIB)
def distances(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    x = b.leaf(b.dtype(["float", "double"]), [rows, inner])
    given = {"metric": b.one(["euclidean", "sqeuclidean"])} if b.chance(70) else {}
    put(b, op, [x, b.like(x, [columns, inner])], **given)


def activation(b: Build, *, listed: bool) -> dict[str, Any]:
    """The attributes of an activation; its parameters in a list or by name."""
    name = b.one(ACTIVATIONS)
    numbers = {"LeakyRelu": [0.1], "HardSigmoid": [0.25, 0.5]}.get(name, [])
    if not numbers:
        return {"activation": name}
    if listed:
        return {"activation": name, "activation_params": numbers}
    named = zip(("activation_alpha", "activation_beta"), numbers, strict=False)
    return {"activation": name, **dict(named)}


@maker("FusedGemm", CONTRIB)
def fused_gemm(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    left, right = b.number(0, 1), b.number(0, 1)
    x = b.leaf(np.dtype(np.float32), [inner, rows] if left else [rows, inner])
    w = b.leaf(x.dtype, [columns, inner] if right else [inner, columns])
    bias = [b.leaf(x.dtype, b.one([[columns], [rows, columns], []]))] if b.chance(60) else []
    given = {n: b.one([0.5, 2.0]) for n in ("alpha", "beta") if b.chance(30)}
    given |= activation(b, listed=False)
    put(b, op, [x, w, *bias], transA=left, transB=right, **given)


@maker("GemmFastGelu", CONTRIB)
def gemm_fast_gelu(b: Build, op: str) -> None:
    inner, columns = length(b), length(b)
    x = b.leaf(b.dtype(["float", "float16"]), [*b.shape(1, 2), inner])
    w = b.leaf(x.dtype, [inner, columns])
    put(b, op, [x, w, b.leaf(x.dtype, [columns])] if b.chance(60) else [x, w])


@maker("FusedConv NhwcFusedConv NhwcConv", CONTRIB)
def fused_conv(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    groups = b.one([1, 1, 2])
    ins, outs = b.one([1, 2, 3]) * groups, b.one([1, 2, 8]) * groups
    last = op.startswith("Nhwc")
    batch = b.one([1, 2])
    shape = [batch, *extents, ins] if last else [batch, ins, *extents]
    x = b.leaf(np.dtype(np.float16 if op == "NhwcFusedConv" else np.float32), shape)
    w = b.leaf(x.dtype, [outs, ins // groups, *attrs["kernel_shape"]])
    operands = [x, w, b.leaf(x.dtype, [outs])] if b.chance(60) else [x, w]
    given = {} if op == "NhwcConv" else activation(b, listed=True)
    put(b, op, operands, group=groups, **attrs, **given)


@maker("NhwcMaxPool", CONTRIB)
def nhwc_max_pool(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    kind = np.dtype(b.one([np.uint8, np.int8]))
    x = b.leaf(kind, [b.one([1, 2]), *extents, b.one([1, 3, 17])])
    put(b, op, [x], **attrs)


@maker("Inverse", CONTRIB)
def inverse(b: Build, op: str) -> None:
    side = b.number(1, 5)
    shape = [*b.shape(0, 1), side, side]
    kind = b.dtype(["float", "double"])
    random = np.random.default_rng(b.number(0, 1 << 16))
    regular = random.uniform(-1, 1, shape) + 2 * side * np.eye(side)
    put(b, op, [b.given(random.permuted(regular, axis=-1).astype(kind))])


@maker("SkipLayerNormalization SkipSimplifiedLayerNormalization", CONTRIB)
def skip_normalization(b: Build, op: str) -> None:
    width = b.one([4, 1, 8, 17])
    x = b.leaf(b.dtype(["float", "float16"]), [b.one([1, 2]), b.one([3, 1]), width])
    plain = op == "SkipLayerNormalization"
    shift = [b.like(x, [width]) if b.chance(50) else None] if plain else []
    bias = b.like(x, [width]) if b.chance(40) else None
    operands = [x, b.like(x), b.like(x, [width]), *shift, bias]
    while operands[-1] is None:
        operands.pop()
    # ONNX Runtime leaves the mean and the deviation unset.
    put(b, op, operands, [True, False, False, True], epsilon=b.one([1e-3, 1e-12]))


@maker("LayerNormalization SimplifiedLayerNormalization", CONTRIB)
def normalization(b: Build, op: str) -> None:
    x = b.leaf(b.dtype(["float", "float16"]), [*b.shape(0, 2), b.one([4, 1, 8, 17])])
    axis = b.number(-x.rank, -1)
    shift = op == "LayerNormalization" and b.chance(60)
    operands = [b.like(x, x.shape[axis:]) for _ in range(1 + shift)]
    outputs = b.number(1, 3 if op == "LayerNormalization" else 2)
    put(b, op, [x, *operands], outputs, axis=axis, epsilon=b.one([1e-3, 1e-12]))


@maker("GroupNorm", CONTRIB)
def group_norm(b: Build, op: str) -> None:
    groups = b.one([1, 2, 4])
    channels, extents = groups * b.one([1, 3]), [b.one([1, 3, 4]) for _ in range(2)]
    last = b.number(0, 1)
    batch = b.one([1, 2])
    shape = [batch, *extents, channels] if last else [batch, channels, *extents]
    x = b.leaf(b.dtype(["float", "float16"]), shape)
    rows = [b.leaf(np.dtype(np.float32), [channels]) for _ in range(2)]
    put(b, op, [x, *rows], groups=groups, channels_last=last, activation=b.number(0, 1))


def tokens(b: Build, shape: list[int], most: int) -> Val:
    """Numbers of the rows of a table."""
    return b.leaf(np.dtype(np.int32), shape, low=0, high=most - 1)


@maker("EmbedLayerNormalization", CONTRIB)
def embed(b: Build, op: str) -> None:
    batch, steps, width = b.one([1, 2]), b.one([3, 1, 5]), b.one([4, 8, 17])
    ids = tokens(b, [batch, steps], 7)
    segments = tokens(b, [batch, steps], 2) if b.chance(60) else None
    kind = np.dtype(np.float32)
    words, positions = (b.leaf(kind, [n, width]) for n in (7, 6))
    table = b.leaf(kind, [2, width]) if segments else None
    scale, shift = b.leaf(kind, [width]), b.leaf(kind, [width])
    operands: list[Val | None] = [ids, segments, words, positions, table, scale, shift]
    if b.chance(40):
        operands.append(tokens(b, [batch, steps], 2))
    put(b, op, operands, b.number(2, 3), epsilon=b.one([1e-3, 1e-12]))


@maker("ExpandDims", CONTRIB)
def expand_dims(b: Build, op: str) -> None:
    x = b.pick(["float", "int64", "bool"])
    at = b.given(np.array(b.number(-x.rank - 1, x.rank), np.int32), fixed=True)
    put(b, op, [x, at])


@maker("NGramRepeatBlock", CONTRIB)
def ngram_repeat(b: Build, op: str) -> None:
    rows, steps, words = b.one([1, 2]), b.one([4, 1, 7]), 5
    ids = b.leaf(np.dtype(np.int64), [rows, steps], low=0, high=words - 1)
    put(b, op, [ids, b.leaf(np.dtype(np.float32), [rows, words])], ngram_size=b.number(1, 3))


@maker("GatherND Range Trilu Pad GridSample", CONTRIB)
def as_standard(b: Build, op: str) -> None:
    """Operators that the standard took over."""
    if op == "GatherND":
        x = b.leaf(b.dtype(["float", "int64"]), [3, b.one([2, 4])])
        at = b.leaf(np.dtype(np.int64), [b.one([1, 3]), b.number(1, 2)], low=-2, high=1)
        put(b, op, [x, at])
    elif op == "Range":
        kind = b.dtype(["float", "int64", "int32", "double", "int16"])
        step = b.one([1, 2, -1])
        numbers = [b.number(-5, 5), b.number(-20, 20), step][: b.number(2, 3)]
        put(b, op, [b.given(np.array(n, kind), fixed=not b.chance(12)) for n in numbers])
    elif op == "Trilu":
        x = b.pick(["float", "int64", "double", "bool"], lambda v: v.rank > 1, lambda: b.shape(2))
        at = [b.scalar(b.number(-3, 3))] if b.chance(50) else []
        put(b, op, [x, *at], upper=b.number(0, 1))
    elif op == "Pad":
        x = b.pick(["float", "double"], lambda v: v.rank > 0 and 0 not in v.shape, lambda: [3, 4])
        pads = b.integers([b.number(0, 1) for _ in range(2 * x.rank)])
        put(b, op, [x, pads], mode=b.one(["constant", "edge"]))
    else:
        x = b.leaf(np.dtype(np.float32), [1, b.one([1, 3]), b.one([3, 4]), b.one([2, 5])])
        grid = b.leaf(x.dtype, [1, b.one([2, 3]), b.one([1, 4]), 2], low=-1.2, high=1.2)
        padding = b.one(["zeros", "border", "reflection"])
        mode = b.one(["bilinear", "nearest"])
        put(b, op, [x, grid], mode=mode, padding_mode=padding, align_corners=b.number(0, 1))


def batched(b: Build) -> tuple[int, int, int, int]:
    """Extents of attention: batch, steps, heads, and the size of a head."""
    sizes = [b.one([1, 2]), b.one([3, 1, 5]), b.one([1, 2, 4]), b.one([4, 8, 16])]
    return sizes[0], sizes[1], sizes[2], sizes[3]


@maker("Attention", CONTRIB)
def attention(b: Build, op: str) -> None:
    batch, steps, heads, size = batched(b)
    kind, width = np.dtype(np.float32), b.one([4, 8])
    x = b.leaf(kind, [batch, steps, width])
    w, bias = b.leaf(kind, [width, 3 * heads * size]), b.leaf(kind, [3 * heads * size])
    operands: list[Val | None] = [x, w, bias, None, None, None]
    held = b.one([2, 1]) if b.chance(25) else 0
    if held:
        operands[4] = b.leaf(kind, [2, batch, heads, held, size])
    if b.chance(40):
        operands[3] = _mask(b, batch, steps, steps + held)
    if b.chance(25):
        operands[5] = b.leaf(kind, [batch, heads, steps, steps + held])
    while operands[-1] is None:
        operands.pop()
    put(b, op, operands, 2 if held else 1, num_heads=heads, unidirectional=b.one([None, 1]))


def _mask(b: Build, batch: int, steps: int, whole: int) -> Val:
    """Which keys count, as lengths or as one number for each key of all or of each query."""
    kind = np.dtype(np.int32)
    how = b.number(0, 2)
    if how == 0:
        return b.leaf(kind, [batch], low=1, high=whole)
    shape = [batch, whole] if how == 1 else [batch, steps, whole]
    return b.leaf(kind, shape, low=0, high=1)


@maker("MultiHeadAttention", CONTRIB)
def multi_head_attention(b: Build, op: str) -> None:
    batch, steps, heads, size = batched(b)
    kind, keys = np.dtype(np.float32), b.one([3, 1, 4])
    width = heads * size
    operands: list[Val | None] = [b.leaf(kind, [batch, steps, width])]
    operands += [b.leaf(kind, [batch, keys, width]) for _ in "kv"]
    operands += [b.leaf(kind, [3 * width]) if b.chance(40) else None]
    held = b.one([2, 1]) if b.chance(25) else 0
    operands += [_mask(b, batch, steps, keys + held) if b.chance(30) else None]
    bias = b.one([[1, heads], [batch, heads], [1, 1]])
    operands += [b.leaf(kind, [*bias, steps, keys + held]) if b.chance(30) else None]
    if held:
        operands += [b.leaf(kind, [batch, heads, held, size]) for _ in "kv"]
    while operands[-1] is None:
        operands.pop()
    given: dict[str, Any] = {"scale": 0.5} if b.chance(30) else {}
    # ONNX Runtime masks nothing for the last of fewer queries.
    causal = b.one([None, 1]) if keys == steps else None
    put(b, op, operands, 3 if held else 1, num_heads=heads, unidirectional=causal, **given)


@maker("GroupQueryAttention", CONTRIB)
def group_query_attention(b: Build, op: str) -> None:
    batch, steps, shared, size = batched(b)
    heads, size = shared * b.one([1, 2]), b.one([16, 8])
    kind = b.dtype(["float", "float16"])
    held = b.one([0, 3]) if b.chance(60) else 0
    if held and batch > 1:
        steps = 1
    q = b.leaf(kind, [batch, steps, heads * size])
    k, v = (b.leaf(kind, [batch, steps, shared * size]) for _ in "kv")
    past = [b.leaf(kind, [batch, shared, held, size]) if held else None for _ in "kv"]
    last = b.given(np.full(batch, held + steps - 1, np.int32))
    total = b.given(np.array(held + steps, np.int32), fixed=b.chance(80))
    given: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    tables: list[Val | None] = []
    if size == 16 and b.chance(40):
        tables = [b.leaf(kind, [held + steps + 2, size // 2], low=-1, high=1) for _ in "cs"]
        given |= {"do_rotary": 1, "rotary_interleaved": b.number(0, 1)}
    if b.chance(30):
        given["local_window_size"] = b.number(1, 4)
    if b.chance(20):
        given["softcap"] = 2.0
    put(b, op, [q, k, v, *past, last, total, *tables], 3, **given)


@maker("RotaryEmbedding", CONTRIB)
def rotary(b: Build, op: str) -> None:
    batch, steps, heads, size = batched(b)
    x = b.leaf(b.dtype(["float", "float16"]), [batch, steps, heads * size])
    caches = [b.leaf(x.dtype, [9, size // 2], low=-1, high=1) for _ in "cs"]
    one = b.chance(30)
    shape, most = ([1], 9 - steps) if one else ([batch, steps], 8)
    at = b.leaf(np.dtype(np.int64), shape, low=0, high=most)
    put(b, op, [x, at, *caches], interleaved=b.number(0, 1))


@maker("LinearAttention CausalConvWithState", CONTRIB)
def with_state(b: Build, op: str) -> None:
    batch, steps, heads, size = batched(b)
    kind = np.dtype(np.float32)
    if op == "CausalConvWithState":
        channels, taps = b.one([1, 2, 5]), b.number(2, 4)
        x, w = b.leaf(kind, [batch, channels, steps]), b.leaf(kind, [channels, 1, taps])
        bias = b.leaf(kind, [channels]) if b.chance(50) else None
        past = b.leaf(kind, [batch, channels, taps - 1]) if b.chance(50) else None
        put(b, op, [x, w, bias, past], 2, activation=b.one(["none", "silu", "swish"]))
        return
    width = heads * size
    q, k, v = (b.leaf(kind, [batch, steps, width]) for _ in "qkv")
    rule = b.one(["linear", "gated", "delta", "gated_delta"])
    past = b.leaf(kind, [batch, heads, size, size]) if b.chance(50) else None
    decay = b.leaf(kind, [batch, steps, heads], low=-2, high=0) if "gated" in rule else None
    rate = b.leaf(kind, [batch, steps, heads], low=0, high=1) if "delta" in rule else None
    given = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule}
    if not size:
        raise Refused
    put(b, op, [q, k, v, past, decay, rate], 2, **given)
