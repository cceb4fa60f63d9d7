"""Whether a model rounds values to a few bits on the way."""

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


def is_quantised(path: Path) -> bool:
    """Whether a model quantises: two correct runtimes then differ by more than roundings of floats.

    Raises:
        UserError: The file is no model.
    """
    model = load(path)
    nodes = [n for g in subgraphs(model.graph) for n in g.node]
    nodes += [n for f in model.functions for n in f.node]
    return any(n.op_type in _ROUNDING or n.op_type.startswith("QLinear") for n in nodes)
