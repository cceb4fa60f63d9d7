"""ONNX files that tests write, a few nodes over float32, and what such nodes read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int | str] | None
"""Extents, named where they are open; None: what the nodes give."""
NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


def write_model(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Mapping[str, np.ndarray] = NOTHING,
    opset: int = 21,
) -> Path:
    """Writes a model of these nodes; returns where."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def i64(*values: object) -> np.ndarray:
    """An array of int64, as sizes, axes and positions are."""
    return np.array(values, np.int64)
