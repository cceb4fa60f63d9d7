"""`python -m benchmarks.narrow`: operators on 8-bit and 16-bit numbers, norms, forests.

Each operator is an ONNX model of its own. rutc and ONNX Runtime take turns on one core. Results go
to benchmarks/results/narrow.json and docs/narrow.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

from benchmarks import layout
from benchmarks.protocol import OPERATOR_S, Page, beside, write
from benchmarks.store import Entry, case_of

ONE_SCALE = " of one scale"
"""Says of a case that its weights are `scaled`; those of others are any numbers of 8 bits."""
SEVEN_BITS = " of 7 bits"
"""Says that they are `scaled` to 63, each column, as quantisers do it for processors that add up
two products of bytes in 16 bits."""
DOMAINS = {"": 21, "ai.onnx.ml": 3, "com.microsoft": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One model: its name in the table, how it is built, its input, and its operations."""

    name: str
    build: Callable[[], onnx.ModelProto]
    input: np.ndarray
    operations: int = 0


def random(dtype: DTypeLike, *shape: int) -> np.ndarray:
    """Returns random elements: floats of a normal distribution, integers over their range."""
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind in "iu":
        low = -128 if np.dtype(dtype).kind == "i" else 0
        return rng.integers(low, low + 256, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def scaled(*shape: int, largest: int = 127, summed: tuple[int, ...] | None = None) -> np.ndarray:
    """Returns weights as quantisers make them: of a normal distribution, with one scale for all.

    With `summed`, the axes that a column's sum goes along, each column has one.
    """
    found = random(np.float32, *shape)
    magnitudes = np.abs(found).max(axis=summed, keepdims=True)
    steps: np.ndarray = np.rint(found * (largest / magnitudes))
    return steps.astype(np.int8)


def _model(
    nodes: Sequence[onnx.NodeProto],
    x: np.ndarray,
    constants: Mapping[str, object],
    output: DTypeLike,
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [
            helper.make_tensor_value_info(
                "y", helper.np_dtype_to_tensor_dtype(np.dtype(output)), None
            )
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in DOMAINS.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def single(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    x: np.ndarray,
    constants: Mapping[str, object],
    operations: int = 0,
    output: DTypeLike = np.float32,
) -> Case:
    """Returns a case of few nodes that read one input and constants."""
    return Case(name, lambda: _model(nodes, x, constants, output), x, operations)


def integer_product(
    m: int,
    n: int,
    k: int,
    a: DTypeLike = np.uint8,
    b: DTypeLike = np.int8,
    *,
    one_scale: bool = False,
) -> Case:
    """Returns MatMulInteger of {m, k} by constant {k, n}."""
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    name = f"MatMulInteger {m}x{n}x{k} {np.dtype(a)} by {np.dtype(b)}{ONE_SCALE * one_scale}"
    w = scaled(k, n) if one_scale else random(b, k, n)
    return single(name, [node], random(a, m, k), {"w": w}, 2 * m * n * k, np.int32)


def dynamic_product(m: int, n: int, k: int, *, one_scale: bool = False) -> Case:
    """Returns a float product that quantises its left operand at run time."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "zw"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "sw"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    constants = {
        "w": scaled(k, n) if one_scale else random(np.int8, k, n),
        "zw": np.int8(0),
        "sw": np.float32(0.01),
        "bias": random(np.float32, n),
    }
    x = random(np.float32, m, k)
    name = f"dynamically quantised product {m}x{n}x{k}{ONE_SCALE * one_scale}"
    return single(name, nodes, x, constants, 2 * m * n * k)


def quantised_convolution(size: int, channels: int, outputs: int, kernel: int) -> Case:
    """Returns QLinearConv of {1, channels, size, size}, same padding."""
    node = helper.make_node(
        "QLinearConv",
        ["x", "s", "z", "w", "sw", "zw", "so", "zo"],
        ["y"],
        pads=[kernel // 2] * 4,
    )
    constants = {
        "s": np.float32(0.1),
        "z": np.uint8(7),
        "w": random(np.int8, outputs, channels, kernel, kernel),
        "sw": np.full(outputs, 0.1, np.float32),
        "zw": np.zeros(outputs, np.int8),
        "so": np.float32(8.0),
        "zo": np.uint8(120),
    }
    x = random(np.uint8, 1, channels, size, size)
    operations = 2 * size * size * channels * outputs * kernel * kernel
    name = f"QLinearConv {kernel}x{kernel} {size}x{size} {channels}->{outputs}"
    return single(name, [node], x, constants, operations, np.uint8)


def packed_product(m: int, n: int, k: int) -> Case:
    """Returns MatMulNBits: a product by 4-bit weights with a scale for every block."""
    block = 32
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=block,
    )
    constants = {
        "w": random(np.uint8, n, k // block, block // 2),
        "s": np.abs(random(np.float32, n, k // block)),
    }
    x = random(np.float32, m, k)
    return single(f"MatMulNBits {m}x{n}x{k} 4 bits", [node], x, constants, 2 * m * n * k)


def half_product(m: int, n: int, k: int) -> Case:
    """Returns MatMul of float16 by a constant."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, w = random(np.float16, m, k), random(np.float16, k, n)
    return single(f"MatMul {m}x{n}x{k} float16", [node], x, {"w": w}, 2 * m * n * k, np.float16)


def half_convolution(size: int, channels: int) -> Case:
    """Returns a 3x3 convolution of float16."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    x = random(np.float16, 1, channels, size, size)
    w = random(np.float16, channels, channels, 3, 3)
    operations = 18 * size * size * channels * channels
    return single(
        f"Conv 3x3 {size}x{size} {channels} float16", [node], x, {"w": w}, operations, np.float16
    )


def normalisation(operator: str, shape: tuple[int, ...], **attributes: Any) -> Case:
    """Returns a normalisation with a scale and a shift for every channel."""
    channels = shape[-1] if operator == "LayerNormalization" else shape[1]
    node = helper.make_node(operator, ["x", "s", "b"], ["y"], **attributes)
    constants = {"s": random(np.float32, channels), "b": random(np.float32, channels)}
    name = f"{operator} {'x'.join(map(str, shape))}"
    return single(name, [node], random(np.float32, *shape), constants)


def quantisation(shape: tuple[int, ...]) -> Case:
    """Returns QuantizeLinear to uint8."""
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    constants = {"s": np.array(0.03, np.float32), "z": np.array(120, np.uint8)}
    name = f"QuantizeLinear {'x'.join(map(str, shape))}"
    return single(name, [node], random(np.float32, *shape), constants, 0, np.uint8)


def forest(batch: int, trees: int, depth: int, features: int = 20) -> Case:
    """Returns TreeEnsembleRegressor of complete trees with random splits."""
    rng = np.random.default_rng(0)
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    every = range(nodes)
    attributes: dict[str, Any] = {
        "nodes_treeids": [t for t in range(trees) for _ in every],
        "nodes_nodeids": [i for _ in range(trees) for i in every],
        "nodes_featureids": rng.integers(0, features, trees * nodes).tolist(),
        "nodes_values": rng.standard_normal(trees * nodes).astype(np.float32).tolist(),
        "nodes_modes": ["BRANCH_LEQ" if i < inner else "LEAF" for _ in range(trees) for i in every],
        "nodes_truenodeids": [2 * i + 1 if i < inner else 0 for _ in range(trees) for i in every],
        "nodes_falsenodeids": [2 * i + 2 if i < inner else 0 for _ in range(trees) for i in every],
        "target_treeids": [t for t in range(trees) for _ in range(inner, nodes)],
        "target_nodeids": [i for _ in range(trees) for i in range(inner, nodes)],
        "target_ids": [0] * (trees * (nodes - inner)),
        "target_weights": rng.standard_normal(trees * (nodes - inner)).astype(np.float32).tolist(),
        "n_targets": 1,
    }
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes
    )
    name = f"TreeEnsembleRegressor {trees} trees of depth {depth}, batch {batch}"
    return single(name, [node], random(np.float32, batch, features), {})


CASES = (
    integer_product(384, 768, 768),
    integer_product(384, 3072, 768),
    integer_product(384, 768, 768, np.int8, np.int8),
    integer_product(384, 768, 768, np.uint8, np.uint8),
    integer_product(16, 3072, 768),
    integer_product(1, 4096, 4096),
    integer_product(127, 511, 509),
    dynamic_product(384, 768, 768),
    dynamic_product(1, 4096, 4096),
    quantised_convolution(56, 64, 64, 3),
    quantised_convolution(14, 256, 256, 3),
    quantised_convolution(56, 64, 256, 1),
    packed_product(1, 4096, 4096),
    packed_product(128, 1536, 384),
    half_product(384, 768, 768),
    half_product(384, 3072, 768),
    half_product(1, 4096, 4096),
    half_convolution(28, 128),
    quantisation((384, 3072)),
    normalisation("InstanceNormalization", (1, 64, 128, 128)),
    normalisation("GroupNormalization", (1, 64, 64, 64), num_groups=32),
    normalisation("LayerNormalization", (384, 768)),
    forest(1, 100, 6),
    forest(64, 100, 6),
)


BY_NAME = {case.name: case for case in CASES}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: medians on one core."""
    return measured(BY_NAME[name], 1, seconds, peers)


def measured(case: Case, threads: int, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the medians of one case."""
    found = beside(case.build(), {"x": case.input}, threads, seconds, peers)
    return {"operations": case.operations, **found}


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.narrow`. Single operators on one core, in turns with",
        "ONNX Runtime; times are of whole calls from Python. Below 1 rutc is faster.",
    )
    return layout.page("Narrow numbers, norms, forests", said, entries, table)


def table(entries: Sequence[Entry]) -> list[str]:
    """Returns the lines of a table of cases."""
    titles = "operator | rutc us | ORT us | rutc/ORT | rutc Gop/s | commit: runs"
    return layout.table(titles, entries, lambda e: [*layout.beside(e), _rate(e)])


def _rate(entry: Entry) -> str:
    operations, us = float(str(entry["operations"])), float(str(entry["rutc_us"]))
    return f"{operations / us / 1e3:.0f}" if operations else ""


PAGE = Page(
    "narrow",
    __doc__,
    list(BY_NAME),
    measure,
    case_of,
    lambda entries: write("narrow", page(entries)),
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
