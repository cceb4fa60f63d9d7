"""A decoder of random weights that reads a token: as ONNX models, and as a file of llama.cpp.

It is a Llama: norms by the root mean square, rotary positions, heads of queries that share those of
keys and values, gated layers. `onnx_model` writes it as exporters of generative models do: with
attention as one operator (`GroupQueryAttention`), which is told by a mask how long the caches are,
or spelled out for a single token. `write_gguf` writes the same weights for llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

BLOCK = 32
"""Weights that share a scale, along the dim that a product sums over, as in Q8_0 and Q4_0."""
EPSILON = 1e-5
BASE = 10000.0
"""The wavelengths of rotary positions go from 2 pi to almost so many times that."""
MICROSOFT = "com.microsoft"
BITS = {"int8": 8, "int4": 4}
"""Formats of weights in few bits, which `MatMulNBits` multiplies."""
Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder; `groups` counts the heads of keys and values."""

    words: int = 32000
    width: int = 768
    layers: int = 12
    heads: int = 12
    groups: int = 4
    hidden: int = 2048
    longest: int = 2048
    """Positions that it knows: tokens of a prompt and of its answer."""

    @property
    def head(self) -> int:
        """The size of a head."""
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Returns {outputs, inputs} of each matrix by llama.cpp's name, in order."""
        shared = self.groups * self.head
        layer = {
            "attn_q": (self.width, self.width),
            "attn_k": (shared, self.width),
            "attn_v": (shared, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.hidden, self.width),
            "ffn_up": (self.hidden, self.width),
            "ffn_down": (self.width, self.hidden),
        }
        return {
            "token_embd": (self.words, self.width),
            **{f"blk.{k}.{name}": s for k in range(self.layers) for name, s in layer.items()},
            "output": (self.words, self.width),
        }

    def read_bytes(self, weights: str) -> int:
        """Returns the bytes of a format's weights that a token reads: all but the table of words.

        Scales of blocks are float32, as in `MatMulNBits`.
        """
        count = sum(n * k for name, (n, k) in self.matrices().items() if name != "token_embd")
        if weights in BITS:
            return count * BITS[weights] // 8 + 4 * count // BLOCK
        return count * (2 if weights in ("f16", "bf16") else 4)

    def cache_bytes(self, past: int, item_bytes: int) -> int:
        """Returns the bytes of all keys and values of so many tokens."""
        return 2 * self.layers * self.groups * self.head * past * item_bytes


def weights_of(sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns random matrices {outputs, inputs} by llama.cpp's names, for sums near 1."""
    draw = np.random.default_rng(0)
    return {
        name: draw.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        for name, shape in sizes.matrices().items()
    }


def onnx_model(
    sizes: Sizes, weights: Weights, kind: str, *, grouped: bool = True
) -> onnx.ModelProto:
    """Returns the model with its weights as `f32`, `f16`, `int8` or `int4`.

    Inputs: `input_ids` {1, seq}, with grouped attention `attention_mask` {1, total}, otherwise
    `position_ids` {1, 1}, and `past.K.key`, `past.K.value` {1, groups, past, head} of each layer.
    Outputs: `logits` {1, seq, words} and `present.K.key`, `present.K.value`.
    """
    return _Writer(sizes, kind, grouped=grouped).model(weights)


class _Writer:
    """Writes the nodes of a model in order; each value has the name of what computes it."""

    def __init__(self, sizes: Sizes, kind: str, *, grouped: bool) -> None:
        self.sizes, self.kind, self.grouped = sizes, kind, grouped
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        half = kind == "f16"
        self.dtype = np.float16 if half else np.float32
        self.type = TensorProto.FLOAT16 if half else TensorProto.FLOAT

    def model(self, weights: Weights) -> onnx.ModelProto:
        s = self.sizes
        seq: str | int = "seq" if self.grouped else 1
        total: str | int = "total"
        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, seq])]
        outputs = [helper.make_tensor_value_info("logits", self.type, [1, seq, s.words])]
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, total])
        position = helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, 1])
        inputs.append(mask if self.grouped else position)
        angles = np.arange(s.longest)[:, None] * BASE ** (-np.arange(s.head // 2) * 2 / s.head)
        self.constant("cos", np.cos(angles).astype(self.dtype))
        self.constant("sin", np.sin(angles).astype(self.dtype))
        self.constant("gain", np.ones(s.width, self.dtype))
        self.lengths() if self.grouped else self.shapes()
        self.constant("words", weights["token_embd"].astype(self.dtype))
        x = self.add("Gather", "embedded", "words", "input_ids")
        for k in range(s.layers):
            at = f"blk.{k}"
            past, present = (
                [f"{when}.{k}.{n}" for n in ("key", "value")] for when in ("past", "present")
            )
            for names, infos, tokens in ((past, inputs, "past"), (present, outputs, total)):
                shape: list[str | int] = [1, s.groups, tokens, s.head]
                infos += [helper.make_tensor_value_info(n, self.type, shape) for n in names]
            normed = self.norm(f"{at}.attn_norm", x)
            packed = [weights[f"{at}.attn_{n}"] for n in "qkv"]
            attend = self.attend if self.grouped else self.spelled_out
            mixed = attend(at, self.product(f"{at}.qkv", normed, np.concatenate(packed)), past, k)
            x = self.residual(f"{at}.attn_output", x, mixed, weights)
            normed = self.norm(f"{at}.ffn_norm", x)
            gate, up = (
                self.product(f"{at}.{n}", normed, weights[f"{at}.{n}"])
                for n in ("ffn_gate", "ffn_up")
            )
            sigmoid = self.add("Sigmoid", f"{at}.sigmoid", gate)
            gated = self.add("Mul", f"{at}.gated", self.add("Mul", f"{at}.silu", gate, sigmoid), up)
            x = self.residual(f"{at}.ffn_down", x, gated, weights)
        self.product("logits", self.norm("output_norm", x), weights["output"])
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.constants)
        domains = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)

    def add(self, operator: str, name: str, *inputs: str, domain: str = "", **told: Any) -> str:
        """Adds a node of one output; returns that."""
        self.nodes.append(
            helper.make_node(operator, inputs, [name], name=name, domain=domain, **told)
        )
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def norm(self, name: str, x: str) -> str:
        return self.add("SimplifiedLayerNormalization", name, x, "gain", epsilon=EPSILON, axis=-1)

    def residual(self, name: str, x: str, y: str, weights: Weights) -> str:
        return self.add("Add", f"{name}.sum", x, self.product(name, y, weights[name]))

    def product(self, name: str, x: str, w: np.ndarray) -> str:
        """x times the transpose of w{n, k}."""
        if self.kind not in BITS:
            self.constant(f"{name}.w", np.ascontiguousarray(w.T).astype(self.dtype))
            return self.add("MatMul", name, x, f"{name}.w")
        bits, (n, k) = BITS[self.kind], w.shape
        packed, scales = quantised(w, bits)
        self.constant(f"{name}.w", packed)
        self.constant(f"{name}.s", scales)
        return self.add(
            "MatMulNBits",
            name,
            x,
            f"{name}.w",
            f"{name}.s",
            domain=MICROSOFT,
            K=k,
            N=n,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def lengths(self) -> None:
        """The length of all tokens, and of each sequence less one, from the mask."""
        mask = "attention_mask"
        self.constant("one", np.array([1], np.int64))
        self.add("ReduceSum", "counted", mask, "one", keepdims=0)
        self.add("Cast", "last", self.add("Sub", "last_64", "counted", "one"), to=TensorProto.INT32)
        self.constant("axis", np.array(1, np.int64))
        self.add("Gather", "total_64", self.add("Shape", "mask_shape", mask), "axis")
        self.add("Cast", "total_length", "total_64", to=TensorProto.INT32)

    def attend(self, at: str, packed: str, past: list[str], k: int) -> str:
        """Grouped attention of any number of tokens, which rotates and appends."""
        present = [f"present.{k}.{n}" for n in ("key", "value")]
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [packed, "", "", *past, "last", "total_length", "cos", "sin"],
                [f"{at}.mixed", *present],
                name=f"{at}.attention",
                domain=MICROSOFT,
                num_heads=self.sizes.heads,
                kv_num_heads=self.sizes.groups,
                do_rotary=1,
            )
        )
        return f"{at}.mixed"

    def shapes(self) -> None:
        s = self.sizes
        for name, heads in (("q_heads", s.heads), ("kv_heads", s.groups)):
            self.constant(name, np.array([1, 1, heads, s.head], np.int64))
        self.constant("in_groups", np.array([1, s.groups, s.heads // s.groups, s.head], np.int64))
        self.constant("in_a_row", np.array([1, 1, s.width], np.int64))
        shared = s.groups * s.head
        self.constant("parts", np.array([s.width, shared, shared], np.int64))
        self.constant("scale", np.array(s.head**-0.5, self.dtype))

    def spelled_out(self, at: str, packed: str, past: list[str], k: int) -> str:
        """Attention of one token to all, of which heads that share keys are rows."""
        parts = [f"{at}.{n}" for n in "qkv"]
        self.nodes.append(helper.make_node("Split", [packed, "parts"], parts, axis=2))
        heads = []
        for name, count in zip(parts, ("q_heads", "kv_heads", "kv_heads"), strict=True):
            split = self.add("Reshape", f"{name}.split", name, count)
            heads.append(self.add("Transpose", f"{name}.heads", split, perm=[0, 2, 1, 3]))
        turned = [
            self.add(
                "RotaryEmbedding",
                f"{x}.turned",
                x,
                "position_ids",
                "cos",
                "sin",
                domain=MICROSOFT,
            )
            for x in heads[:2]
        ]
        keys = self.add("Concat", f"present.{k}.key", past[0], turned[1], axis=2)
        values = self.add("Concat", f"present.{k}.value", past[1], heads[2], axis=2)
        rows = self.add("Reshape", f"{at}.rows", turned[0], "in_groups")
        rows = self.add("Mul", f"{at}.scaled", rows, "scale")
        across = self.add("Transpose", f"{at}.across", keys, perm=[0, 1, 3, 2])
        scores = self.add("MatMul", f"{at}.scores", rows, across)
        shares = self.add("Softmax", f"{at}.shares", scores, axis=-1)
        mixed = self.add("MatMul", f"{at}.mixed", shares, values)
        return self.add("Reshape", f"{at}.row", mixed, "in_a_row")


def quantised(w: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns w{n, k} in 4 or 8 bits as `MatMulNBits` takes it, and a scale of each block.

    The numbers are those of Q4_0 and Q8_0, the scales rounded to 16 bits as theirs.
    """
    blocks = w.reshape(w.shape[0], -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    middle = 1 << (bits - 1)
    scales = largest / -middle if bits == 4 else np.abs(largest) / (middle - 1)
    steps = blocks / np.where(scales == 0, 1, scales)
    codes = np.clip(np.rint(steps) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[..., ::2] | codes[..., 1::2] << 4
    return codes, scales[..., 0].astype(np.float16).astype(np.float32)


def write_gguf(path: Path, sizes: Sizes, weights: Weights, kind: str) -> None:
    """Writes the weights as llama.cpp reads them, as F32, F16, BF16, Q8_0 or Q4_0.

    It turns pairs of neighbours where ONNX turns both halves: rows of queries and keys are put in
    that order. The table of words, of which a token reads a row, stays float32.
    """
    import gguf

    types = gguf.GGMLQuantizationType
    stored = {
        "f32": types.F32,
        "f16": types.F16,
        "bf16": types.BF16,
        "int8": types.Q8_0,
        "int4": types.Q4_0,
    }[kind]
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(sizes.longest)
    out.add_embedding_length(sizes.width)
    out.add_block_count(sizes.layers)
    out.add_feed_forward_length(sizes.hidden)
    out.add_head_count(sizes.heads)
    out.add_head_count_kv(sizes.groups)
    out.add_rope_dimension_count(sizes.head)
    out.add_rope_freq_base(BASE)
    out.add_layer_norm_rms_eps(EPSILON)
    out.add_tokenizer_model("no_vocab")
    out.add_vocab_size(sizes.words)
    for name, w in weights.items():
        heads = {"attn_q": sizes.heads, "attn_k": sizes.groups}.get(name.rpartition(".")[2])
        rows = w
        if heads is not None:
            halves = w.reshape(heads, 2, sizes.head // 2, sizes.width)
            rows = halves.swapaxes(1, 2).reshape(w.shape)
        type_ = types.F32 if name == "token_embd" else stored
        out.add_tensor(f"{name}.weight", gguf.quants.quantize(rows, type_), raw_dtype=type_)
    layers = [f"blk.{k}.{n}" for k in range(sizes.layers) for n in ("attn_norm", "ffn_norm")]
    for name in (*layers, "output_norm"):
        out.add_tensor(f"{name}.weight", np.ones(sizes.width, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
