"""Whether a model rounds values to a few bits on the way, or multiplies numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import AttributeProto, ModelProto, NodeProto

from rutc.importer.proto import load, subgraphs

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
"""Weights of experts of so many bits, in blocks, ONNX Runtime multiplies by rows in 8 bits."""
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
    kept = (n for n in nodes_of(model) if not _rounds(n))
    return [(n, a) for n in kept for a in n.attribute if a.name == _LEAVE]


def _rounds(n: NodeProto) -> bool:
    """Whether products round an operand as the attributes say, here or in ONNX Runtime."""
    given = {a.name: a.i for a in n.attribute}
    if n.op_type == "QMoE":
        bits = (given.get(f"{layer}expert_weight_bits") for layer in ("", "fc1_", "fc2_", "fc3_"))
        return given.get("block_size", 0) > 0 and _BITS in bits
    level, k, block = (given.get(name, 0) for name in (_LEAVE, "K", "block_size"))
    return n.op_type == "MatMulNBits" and rounds_to_bytes(level, given.get("bits", 4), k, block)


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """Yields the nodes of all graphs and functions."""
    for g in subgraphs(model.graph):
        yield from g.node
    for f in model.functions:
        yield from f.node


def _has(path: Path, operators: frozenset[str]) -> bool:
    """Whether a node is one of the operators, or rounds to 8 bits by its name or attributes."""
    nodes = nodes_of(load(path))
    return any(
        n.op_type in operators or n.op_type.startswith("QLinear") or _rounds(n) for n in nodes
    )
