"""Whether a model rounds values to a few bits on the way, or multiplies numbers of 8 bits."""

from __future__ import annotations

from pathlib import Path

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


def _has(path: Path, operators: frozenset[str]) -> bool:
    """Whether a node is one of the operators, or of those that are quantised by name."""
    model = load(path)
    nodes = [n for g in subgraphs(model.graph) for n in g.node]
    nodes += [n for f in model.functions for n in f.node]
    return any(n.op_type in operators or n.op_type.startswith("QLinear") for n in nodes)
