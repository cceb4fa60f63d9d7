"""Models of opsets 1 to 6 as models of opset 7, and operators that the conversion does not know.

    y = Add(x, c, broadcast=1, axis=1)     ->   y = Add(x, early.Align(x, c, axis=1))
    y = Reshape(x, shape=(2, -1))          ->   y = Reshape(x, Constant((2, -1)))
    y = Relu(x, consumed_inputs=(0,))      ->   y = Relu(x)

What no opset from 7 on can say moves to the domain EARLY, of which the conversion knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from rutc.errors import UserError
from rutc.importer.opsets.order import title
from rutc.importer.reading.proto import subgraphs
from rutc.importer.registry import EARLY

SEVENTH = 7

WITHDRAWN = {
    **dict.fromkeys(("Affine", "Crop", "DynamicSlice", "ImageScaler"), 10),
    **dict.fromkeys(("ParametricSoftplus", "Scale", "ScaledTanh", "ThresholdedRelu"), 10),
    "MeanVarianceNormalization": 9,
}
"""Operators that were never ONNX's own, or not as they were, up to which opset."""


def is_early(operator: str, version: int) -> bool:
    """Whether ONNX Runtime runs an operator at an opset that ONNX does not define there."""
    return version < WITHDRAWN.get(operator, 0)


def keep_early_operators(model: ModelProto, version: int) -> None:
    """Moves to the domain EARLY what the conversion does not know."""
    if version < max(SEVENTH, *WITHDRAWN.values()):
        model.opset_import.append(helper.make_opsetid(EARLY, 1))
    for graph in subgraphs(model.graph):
        for node in _own(graph):
            if is_early(node.op_type, version):
                node.domain = EARLY
            elif version < 9 and node.op_type == "BatchNormalization":
                _by_element(node)


def as_seventh(model: ModelProto, version: int) -> None:
    """Makes a model of opset `version`, below 7, one of opset 7."""
    for graph in subgraphs(model.graph):
        nodes: list[NodeProto] = []
        for node in graph.node:
            before: list[NodeProto] = []
            if not node.domain:
                _take(node, "consumed_inputs", "is_test")
                rewrite = _REWRITES.get(node.op_type)
                before = rewrite(node, version) if rewrite is not None else []
            nodes += [*before, node]
        replace_nodes(graph, nodes)
    for imported in model.opset_import:
        if not imported.domain:
            imported.version = SEVENTH


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Gives a graph other nodes, which may be its own."""
    kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    graph.ClearField("node")
    graph.node.extend(kept)


def _own(graph: GraphProto) -> list[NodeProto]:
    return [n for n in graph.node if not n.domain]


def _by_element(node: NodeProto) -> None:
    """Moves a BatchNormalization that has a mean for each element, not for each channel."""
    spatial = next((a.i for a in node.attribute if a.name == "spatial"), 1)
    if not spatial:
        _take(node, "spatial", "momentum", "is_test", "consumed_inputs")
        node.domain = EARLY


def _take(node: NodeProto, *names: str) -> Mapping[str, object]:
    """Takes attributes off a node; the values of those that it had."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in names}
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)
    return found


def _give(node: NodeProto, **attributes: object) -> list[NodeProto]:
    """Gives a node the attributes that it lacks; no node stands before it."""
    there = {a.name for a in node.attribute}
    node.attribute.extend(
        helper.make_attribute(n, v) for n, v in attributes.items() if n not in there
    )
    return []


def _without(node: NodeProto, *names: str) -> list[NodeProto]:
    """Takes attributes off a node; no node stands before it."""
    _take(node, *names)
    return []


def _broadcast(node: NodeProto, _: int) -> list[NodeProto]:
    """Lines up the axes of a second operand that begin at a named axis of the first."""
    given = _take(node, "broadcast", "axis")
    if not given.get("broadcast") or "axis" not in given:
        return []
    name = f"{node.output[0]}_aligned"
    align = helper.make_node("Align", node.input[:2], [name], domain=EARLY, axis=given["axis"])
    node.input[1] = name
    return [align]


def _cast(node: NodeProto, _: int) -> list[NodeProto]:
    """Gives the type by number, not by name."""
    to = _take(node, "to").get("to", 0)
    if isinstance(to, bytes):
        name = to.decode("utf-8", "replace").upper()
        if name not in TensorProto.DataType.keys():  # noqa: SIM118 (no mapping)
            raise UserError(f"Cast (node {title(node)!r}): the type {name!r} is unknown")
        to = TensorProto.DataType.Value(name)
    return _give(node, to=to)


def _pad(node: NodeProto, _: int) -> list[NodeProto]:
    given = _take(node, "paddings")
    return _give(node, pads=given["paddings"]) if given else []


def _power(node: NodeProto, _: int) -> list[NodeProto]:
    """Gives the power of a norm as an integer, if it is one."""
    given = _take(node, "p")
    p = given.get("p", 2)
    return _give(node, p=int(p) if isinstance(p, float) and p.is_integer() else p)


def _reshape(node: NodeProto, _: int) -> list[NodeProto]:
    """Gives the shape as an input."""
    given = _take(node, "shape").get("shape")
    if not isinstance(given, list):
        return []
    shape = helper.make_tensor("", TensorProto.INT64, [len(given)], given)
    node.input.append(f"{node.output[0]}_shape")
    return [helper.make_node("Constant", [], [node.input[1]], value=shape)]


def _slopes(node: NodeProto, _: int) -> list[NodeProto]:
    """Tells a PRelu that slopes in a row belong to channels, not to columns."""
    name = f"{node.output[0]}_slopes"
    before = helper.make_node("Slopes", node.input[:2], [name], domain=EARLY)
    node.input[1] = name
    return [before]


def _upsample(node: NodeProto, _: int) -> list[NodeProto]:
    given = _take(node, "height_scale", "width_scale")
    scales = [1.0, 1.0, given.get("height_scale", 1.0), given.get("width_scale", 1.0)]
    return _give(node, scales=scales) if given else []


def _as_inputs(node: NodeProto, _: int) -> list[NodeProto]:
    """Moves an operator that had other inputs."""
    if len(node.input) > _INPUTS[node.op_type]:
        node.domain = EARLY
    return []


_INPUTS = {"Split": 1, "Tile": 2}

_REWRITES: dict[str, Callable[[NodeProto, int], list[NodeProto]]] = {
    **dict.fromkeys(("Add", "And", "Div", "Equal", "Greater", "Less"), _broadcast),
    **dict.fromkeys(("Mul", "Or", "Pow", "Sub", "Xor"), _broadcast),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), lambda node, _: _without(node, "output_sequence")),
    "Cast": _cast,
    "Concat": lambda node, _: _give(node, axis=1),
    "Gemm": lambda node, _: _without(node, "broadcast"),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), _power),
    "PRelu": _slopes,
    "Pad": _pad,
    "Reshape": _reshape,
    "Selu": lambda node, version: _give(node, alpha=1.6732, gamma=1.0507) if version < 6 else [],
    **dict.fromkeys(("Split", "Tile"), _as_inputs),
    "Upsample": _upsample,
}
"""What changes a node to mean at opset 7 what it meant before, and gives the nodes before it."""
