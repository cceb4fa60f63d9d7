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
_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QAttention"})


def is_quantised(path: Path) -> bool:
    """Whether a model quantises: two correct runtimes then differ by more than roundings of floats.

    Raises:
        UserError: The file is no model.
    """
    return any(op in _ROUNDING or op.startswith("QLinear") for op in _operators(path))


def multiplies_bytes(path: Path) -> bool:
    """Whether a model may have products of 8-bit numbers.

    Raises:
        UserError: The file is no model.
    """
    exact = _ROUNDING | _PRODUCTS
    return any(op in exact or op.startswith("QLinear") for op in _operators(path))


def _operators(path: Path) -> set[str]:
    model = load(path)
    nodes = [n for g in subgraphs(model.graph) for n in g.node]
    nodes += [n for f in model.functions for n in f.node]
    return {n.op_type for n in nodes}
