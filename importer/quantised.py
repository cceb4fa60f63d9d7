"""Whether a model rounds values to a few bits on the way, or multiplies numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from onnx import AttributeProto, ModelProto, NodeProto

from rutc.importer.reading.proto import load, subgraphs

_ROUNDING = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "QGemm",
        "QuantizeLinear",
    }
)
_BY_ROW = frozenset({"DynamicQuantizeLSTM"})
_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QAttention"})
_LEAVE = "accuracy_level"
_BITS = 8
"""Weights of experts of so many bits, in blocks that fill their rows evenly, ONNX Runtime
multiplies by rows in 8 bits."""
_LAYERS = {"fc1_": 2, "fc2_": 5, "fc3_": 8}
"""The layers of QMoE, as its attributes name them, and which input holds the weights of each."""
_TO_BYTES = 4
"""The level that lets an operand be rounded to 8 bits."""


def is_quantised(path: Path) -> bool:
    """Whether a model quantises: two correct runtimes then differ by more than roundings of floats.

    Raises:
        UserError: The file is no model.
    """
    return _has(path, _ROUNDING)


def multiplies_bytes(path: Path) -> bool:
    """Whether a model may have products of 8-bit numbers.

    Raises:
        UserError: The file is no model.
    """
    return _has(path, _ROUNDING | _PRODUCTS)


def rounds_each_row(path: Path) -> frozenset[str]:
    """Nodes that round all rows of a product with one step, where rutc has a step for each.

    Named as the graph does: by their names, or by an output.

    Raises:
        UserError: The file is no model.
    """
    model = load(path)
    nodes = [n for g in subgraphs(model.graph) for n in g.node if n.op_type in _BY_ROW]
    return frozenset(n.name or next(filter(None, n.output), "") for n in nodes)


def rounds_to_bytes(level: int, bits: int, k: int, block: int) -> bool:
    """Whether MatMulNBits rounds rows of `k` numbers, in blocks, to 8 bits where it may."""
    return level == _TO_BYTES and bits in (4, 8) and block > 0 and k % block == 0


def leave(model: ModelProto) -> list[tuple[NodeProto, AttributeProto]]:
    """Attributes that give leave to round what rutc then does not, with their nodes.

    An `accuracy_level` lets products of operands be less accurate than their types are. What ONNX
    Runtime makes of one that asks for no rounding to 8 bits depends on the machine.
    """
    columns = _columns(model)
    kept = (n for n in nodes_of(model) if not _rounds(n, columns))
    return [(n, a) for n in kept for a in n.attribute if a.name == _LEAVE]


def _columns(model: ModelProto) -> dict[str, frozenset[int]]:
    """The extents of the last axes of constants, by name, which several graphs may give."""
    found: dict[str, frozenset[int]] = {}
    for t in (t for g in subgraphs(model.graph) for t in g.initializer if t.dims):
        found[t.name] = found.get(t.name, frozenset()) | {t.dims[-1]}
    return found


def _rounds(n: NodeProto, columns: Mapping[str, frozenset[int]]) -> bool:
    """Whether products round an operand as the attributes say, here or in ONNX Runtime."""
    given = {a.name: a.i for a in n.attribute}
    if n.op_type == "QMoE":
        return any(_rounds_rows(n, given, layer, columns) for layer in _LAYERS)
    level, k, block = (given.get(name, 0) for name in (_LEAVE, "K", "block_size"))
    return n.op_type == "MatMulNBits" and rounds_to_bytes(level, given.get("bits", 4), k, block)


def _rounds_rows(
    n: NodeProto, given: Mapping[str, int], layer: str, columns: Mapping[str, frozenset[int]]
) -> bool:
    """Whether ONNX Runtime may round the rows that a layer of QMoE multiplies."""
    place, block = _LAYERS[layer], given.get("block_size", 0)
    name = n.input[place] if place < len(n.input) else ""
    if layer == "fc3_" and not name:
        return False
    bits = given.get(f"{layer}expert_weight_bits", given.get("expert_weight_bits", 0))
    # Where nothing tells the columns, blocks may fill them.
    return bits == _BITS and block > 0 and any(c % block == 0 for c in columns.get(name, {0}))


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """Yields the nodes of all graphs and functions."""
    for g in subgraphs(model.graph):
        yield from g.node
    for f in model.functions:
        yield from f.node


def _has(path: Path, operators: frozenset[str]) -> bool:
    """Whether a node is one of the operators, or rounds to 8 bits by its name or attributes."""
    model = load(path)
    columns = _columns(model)
    return any(
        n.op_type in operators or n.op_type.startswith("QLinear") or _rounds(n, columns)
        for n in nodes_of(model)
    )
