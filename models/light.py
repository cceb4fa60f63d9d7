"""The `light_*` networks of the `onnx` package, their placeholder weights replaced by random ones.

The package stores these well-known convolutional networks (AlexNet, DenseNet, ResNet, ...) with
constant weights, which make every output equal and hide errors. Here each weight is drawn
for the role it plays, so that activations keep their size through the network [He et al. 2015].
"""

import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SEED = 1
IR_VERSION = 8
"""The first versions of the file format list every weight as an input; this one need not."""


@dataclass(frozen=True)
class _Use:
    """How a weight is used: input `position` of operator `op`, whose output `reader` reads."""

    op: str
    position: int
    reader: str = ""
    transposed: bool = False


def _uses(graph: onnx.GraphProto) -> dict[str, _Use]:
    """Returns each tensor's first use, looking through Unsqueeze and Reshape."""
    uses: dict[str, _Use] = {}
    for node in reversed(graph.node):
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        reader = uses.get(node.output[0], _Use("", 0))
        for position, name in enumerate(node.input):
            uses[name] = _Use(node.op_type, position, reader.op, transposed)
        if node.op_type in {"Unsqueeze", "Reshape"} and node.output[0] in uses:
            uses[node.input[0]] = uses[node.output[0]]
    return uses


def _weight(name: str, shape: tuple[int, ...], use: _Use) -> NDArray[np.float32]:
    """Returns seeded random values for the weight `name`, distributed as its use wants.

    Smaller values where a residual branch ends keep a sum of many branches from growing (so do
    those of depthwise convolutions, which no Relu follows); smaller ones before a Softmax keep it
    from choosing a single class.
    """
    draw = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    match use.op, use.position:
        case "Conv", 1:
            depthwise = shape[1] == 1
            gain = 1.0 if depthwise else 2.0
            values = draw.standard_normal(shape) * np.sqrt(gain / np.prod(shape[1:]))
        case "Gemm", 1:
            fan_in = shape[-1] if use.transposed else shape[0]
            gain = 0.3 if use.reader == "Softmax" else 1.0
            values = draw.standard_normal(shape) * gain * np.sqrt(2.0 / fan_in)
        case "BatchNormalization", 1 if use.reader == "Sum":
            values = draw.uniform(0.2, 0.5, shape)
        case ("BatchNormalization", 1) | ("Mul", _):
            values = draw.uniform(0.7, 1.3, shape)
        case "BatchNormalization", 4:
            values = draw.uniform(0.5, 1.5, shape)
        case _:
            values = draw.standard_normal(shape) * 0.1
    return np.asarray(values, np.float32)


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of `model` whose float weights are seeded random initializers.

    ConstantOfShape(shape) -> weight      becomes      initializer weight
    """
    graph = model.graph
    uses = _uses(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights: list[TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    shapes_of_weights: set[str] = set()
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shapes_of_weights.add(node.input[0])
        name = node.output[0]
        shape = tuple(int(extent) for extent in numpy_helper.to_array(stored[node.input[0]]))
        weights.append(numpy_helper.from_array(_weight(name, shape, uses[name]), name))
    for tensor in graph.initializer:
        if tensor.name in shapes_of_weights or tensor.name not in uses:
            continue
        if tensor.data_type == TensorProto.FLOAT:
            values = _weight(tensor.name, tuple(tensor.dims), uses[tensor.name])
            weights.append(numpy_helper.from_array(values, tensor.name))
        else:
            weights.append(tensor)
    inputs = [value for value in graph.input if value.name not in stored]
    filled = helper.make_graph(nodes, graph.name, inputs, list(graph.output), weights)
    opsets = list(model.opset_import)
    result = helper.make_model(filled, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(result)
    return result


def write_light_network(network: str, path: Path) -> None:
    """Writes the package's `light_NETWORK.onnx`, with random weights, to `path`."""
    folder = resources.files("onnx.backend.test") / "data" / "light"
    original = onnx.load_from_string((folder / f"light_{network}.onnx").read_bytes())
    path.write_bytes(with_random_weights(original).SerializeToString(deterministic=True))
