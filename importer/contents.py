"""What is in a model file, as it was exported: for people, before anything is rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path

from rutc.base.record import record
from rutc.importer.external import ModelFolder
from rutc.importer.proto import STANDARD, dtype_of, load, subgraphs
from rutc.tensor_ir import DType


@record
class Contents:
    """The opset of each domain, the nodes of each operator, and the constants, graphs inside too.

    Operators of another domain than ONNX's stand behind its name. `weight_bytes` are those of all
    constants but text.
    """

    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    weights: int
    weight_bytes: int


def contents(path: Path) -> Contents:
    """What is in a model file.

    Raises:
        UserError: it cannot be read, or is no model.
    """
    model = load(path, ModelFolder(path.parent))
    graphs = subgraphs(model.graph)
    nodes = [node for graph in graphs for node in graph.node]
    weights = [tensor for graph in graphs for tensor in graph.initializer]
    weights += [a.t for node in nodes for a in node.attribute if a.HasField("t")]
    bits = 0
    for tensor in weights:
        dtype = dtype_of(tensor.data_type, tensor.name)
        bits += prod(tensor.dims) * (0 if dtype is DType.STRING else dtype.bits)
    return Contents(
        {o.domain or STANDARD: o.version for o in model.opset_import},
        Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in nodes),
        len(weights),
        bits // 8,
    )
