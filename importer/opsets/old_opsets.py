"""What the conversion to the newest opset leaves undone, or cannot do, for models of old ones."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from rutc.importer.opsets.first_opsets import (
    SEVENTH,
    as_seventh,
    keep_early_operators,
    replace_nodes,
)
from rutc.importer.reading.proto import subgraphs


def before_conversion(model: ModelProto, version: int) -> None:
    """Changes a model of opset `version` into one that the conversion converts right."""
    keep_early_operators(model, version)
    if version < SEVENTH:
        as_seventh(model, version)
    if version < 13:
        for graph in _inner_first(model):
            if version < 9:
                _unbatch_scans(graph)
            if version < 11:
                _bound_clips(graph)
            _flatten_hardmax(graph)
            _copy_captured(graph)


def after_conversion(model: ModelProto, version: int) -> None:
    """Gives a converted model what it meant at opset `version`."""
    if version < 13:
        for graph in _inner_first(model):
            if version < 9:
                _shorten_scans(graph)
            if version < 11:
                _anchor_resizes(graph)
                _type_numbers(graph)
            _keep_empty_rows(graph)


def _inner_first(model: ModelProto) -> list[GraphProto]:
    """All graphs, those before that others hold: a graph that gets new nodes copies what it has."""
    return subgraphs(model.graph)[::-1]


def _copy_captured(graph: GraphProto) -> None:
    """Lets subgraphs read copies of what the conversion makes by another node than was there.

    It gives the new node's result to all readers, and fails where one is in a subgraph.

        y = Softmax(x)   ->   y_own = Softmax(x);  y = Identity(y_own)
    """
    inner = subgraphs(graph)[1:]
    captured = {name for g in inner for node in g.node for name in node.input}
    captured |= {y.name for g in inner for y in g.output}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type in _REPLACED and not node.domain:
            y = node.output[0]
            if y in captured:
                node.output[0] = f"{y}_own"
                nodes.append(helper.make_node("Identity", [f"{y}_own"], [y]))
    replace_nodes(graph, nodes)


_REPLACED = frozenset({"Softmax", "LogSoftmax", "Upsample", "Scatter"})
"""Operators whose nodes the conversion may replace."""


def _flatten_hardmax(graph: GraphProto) -> None:
    """Gives every Hardmax before opset 13 the matrix that it works on: all axes from `axis` on."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "Hardmax" or node.domain:
            nodes.append(node)
            continue
        (x,), (y,) = node.input, node.output
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        nodes += [
            helper.make_node("Shape", [x], [f"{y}_shape"]),
            helper.make_node("Flatten", [x], [f"{y}_rows"], axis=axis),
            helper.make_node("Hardmax", [f"{y}_rows"], [f"{y}_hot"], name=node.name, axis=1),
            helper.make_node("Reshape", [f"{y}_hot", f"{y}_shape"], [y]),
        ]
    replace_nodes(graph, nodes)


def _bound_clips(graph: GraphProto) -> None:
    """States the bounds that a Clip before opset 11 leaves out: the largest finite floats."""
    largest = float(np.finfo(np.float32).max)
    for node in graph.node:
        if node.op_type == "Clip" and not node.domain:
            given = {a.name for a in node.attribute}
            for name, bound in (("min", -largest), ("max", largest)):
                if name not in given:
                    node.attribute.append(helper.make_attribute(name, bound))


def _type_numbers(graph: GraphProto) -> None:
    """Gives what were attributes, so floats, the type of what a Clip bounds or a Pad fills."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        places = {"Clip": (1, 2), "Pad": (2,)}.get(node.op_type)
        if places is not None and not node.domain:
            for place, number in enumerate(node.input):
                if place in places and number:
                    typed = f"{node.output[0]}_number{place}"
                    nodes.append(helper.make_node("CastLike", [number, node.input[0]], [typed]))
                    node.input[place] = typed
        nodes.append(node)
    replace_nodes(graph, nodes)


def _keep_empty_rows(graph: GraphProto) -> None:
    """Lets extents be 0 that rows, flattened for a softmax of before opset 13, get back."""
    for node in graph.node:
        rows = (f"{node.output[0]}_intermediate", f"{node.output[0]}_hot") if node.output else ()
        if node.op_type == "Reshape" and node.input[0] in rows:
            node.attribute.append(helper.make_attribute("allowzero", 1))


def _anchor_resizes(graph: GraphProto) -> None:
    """Gives every Resize of a model before opset 11 the coordinates that it had then."""
    for node in graph.node:
        if node.op_type == "Resize" and not node.domain:
            kept = [a for a in node.attribute if a.name == "mode"]
            kept += [
                helper.make_attribute("coordinate_transformation_mode", "asymmetric"),
                helper.make_attribute("nearest_mode", "floor"),
            ]
            copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
            node.ClearField("attribute")
            node.attribute.extend(copies)


def _unbatch_scans(graph: GraphProto) -> None:
    """Makes a Scan over the batch, with Scan inside, of every Scan of opset 8.

    The operator of opset 8 runs its body for every element of a batch, the first axis of all its
    operands; later ones have no batch. With lengths, the inner Scan has the length of its element
    for `_shorten_scans`.
    """
    for node in graph.node:
        if node.op_type != "Scan" or node.domain:
            continue
        lengths = node.input[0]
        inner = NodeProto.FromString(node.SerializeToString())
        count = len(node.input) - 1
        inputs = [f"{node.output[0]}_batch_in{i}" for i in range(count)]
        outputs = [f"{node.output[0]}_batch_out{i}" for i in range(len(node.output))]
        inner.input[1:] = inputs
        inner.output[:] = outputs
        inner.input[0] = ""
        if lengths:
            length = f"{node.output[0]}{_LENGTH}"
            node.input.append(lengths)
            inputs.append(length)
            count += 1
            inner.name = length
        body = helper.make_graph(
            [inner],
            "batch",
            [ValueInfoProto(name=n) for n in inputs],
            [ValueInfoProto(name=n) for n in outputs],
        )
        node.input[0] = ""
        node.ClearField("attribute")
        node.attribute.append(helper.make_attribute("body", body))
        node.attribute.append(helper.make_attribute("num_scan_inputs", count))


_LENGTH = "_batch_length"
"""What the name of a Scan ends in whose operands are to be cut to the length of this name."""


def _shorten_scans(graph: GraphProto) -> None:
    """Cuts the operands of the Scans that have a length, and fills up their results with zeros.

    y = Scan(s, x)       ->       y = Pad(Scan(s, x[:length]), n - length)
    """
    nodes: list[NodeProto] = []
    for node in graph.node:
        length = node.name
        if node.op_type != "Scan" or not length.endswith(_LENGTH):
            nodes.append(node)
            continue
        scanned = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        states = len(node.input) - scanned
        whole = list(node.input[states:])
        zero, one = f"{length}_zero", f"{length}_one"
        for name, value in ((zero, 0), (one, 1)):
            nodes.append(helper.make_node("Constant", [], [name], value_ints=[value]))
        nodes.append(helper.make_node("Reshape", [length, one], [f"{length}_end"]))
        for x in whole:
            cut = [x, zero, f"{length}_end", zero]
            nodes.append(helper.make_node("Slice", cut, [f"{x}_cut"]))
        node.input[states:] = [f"{x}_cut" for x in whole]
        results = list(node.output[states:])
        node.output[states:] = [f"{y}_cut" for y in results]
        node.name = ""
        nodes += [
            node,
            helper.make_node("Shape", whole[:1], [f"{length}_n"], start=0, end=1),
            helper.make_node("Sub", [f"{length}_n", f"{length}_end"], [f"{length}_rest"]),
            helper.make_node("Concat", [zero, f"{length}_rest"], [f"{length}_pads"], axis=0),
        ]
        for y in results:
            pad = [f"{y}_cut", f"{length}_pads", "", zero]
            nodes.append(helper.make_node("Pad", pad, [y]))
    replace_nodes(graph, nodes)
