"""Conversion to the newest opset, so that only one definition of every operator is implemented."""

from __future__ import annotations

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    checker,
    helper,
    inliner,
    shape_inference,
    version_converter,
)
from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.errors import UserError
from rutc.importer.external import ModelFolder
from rutc.importer.proto import array_of, dense_of, subgraphs

OPSET = 28
"""The opset whose definitions the operators implement."""

_KEPT_ELEMENTS = 512
"""Initializers up to this many elements stay in the protobuf while it is converted."""

_FAILURES = (
    RuntimeError,
    ValueError,
    IndexError,
    version_converter.ConvertError,
    shape_inference.InferenceError,
)
"""What the conversion raises for a model that it cannot convert."""

Weights = dict[str, np.ndarray]


def prepare(model: ModelProto, folder: ModelFolder) -> tuple[GraphProto, Weights]:
    """The main graph at the newest opset without model-local functions, and its initializers."""
    weights = _take_initializers(model, folder)
    if model.functions:
        model = _inlined(model)
    graph = _converted(model).graph
    for t in graph.initializer:
        weights[t.name] = array_of(t, folder)
    graph.ClearField("initializer")
    return graph, weights


def _inlined(model: ModelProto) -> ModelProto:
    """The model with its own functions put in where they are called."""
    called = {(f.domain, f.name, f.overload): f for f in model.functions}
    bodies = [GraphProto(node=f.node) for f in model.functions]
    for graph in (model.graph, *bodies):
        for inner in subgraphs(graph):
            for node in inner.node:
                function = called.get((node.domain, node.op_type, node.overload))
                if function is not None:
                    _fill_in(node, function)
    for function, body in zip(model.functions, bodies, strict=True):
        function.ClearField("node")
        function.node.extend(body.node)
    try:
        return inliner.inline_local_functions(model, True)
    except (*_FAILURES, checker.ValidationError) as e:
        raise UserError(
            f"the model's own functions cannot be put in where they are called: {_first_line(e)}"
        ) from e


def _fill_in(node: NodeProto, function: FunctionProto) -> None:
    """Gives a call the defaults of the attributes that it leaves out (the inliner drops them)."""
    given = {a.name for a in node.attribute}
    node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def _take_initializers(model: ModelProto, folder: ModelFolder) -> Weights:
    """Takes the big and the sparse initializers out; the model gets inputs in their place."""
    graph = model.graph
    inputs = {i.name for i in graph.input}
    big = [t for t in graph.initializer if _is_big(t)]
    weights = {t.name: array_of(t, folder) for t in big}
    types = {t.name: (t.data_type, t.dims) for t in big}
    for s in graph.sparse_initializer:
        weights[s.values.name] = dense_of(s, folder)
        types[s.values.name] = (s.values.data_type, s.dims)
    if not weights:
        return weights
    small = [t for t in graph.initializer if not _is_big(t)]
    for name, (kind, dims) in types.items():
        if name not in inputs:
            graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    graph.ClearField("sparse_initializer")
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    return weights


def _is_big(t: TensorProto) -> bool:
    return t.data_location == TensorProto.EXTERNAL or int(np.prod(t.dims)) > _KEPT_ELEMENTS


def _converted(model: ModelProto) -> ModelProto:
    version = opset_of(model)
    for graph in subgraphs(model.graph):
        _name_domains(graph, version)
    if version == OPSET:
        return model
    if version > OPSET:
        raise UserError(f"the model uses opset {version}; rutc knows opsets up to {OPSET}")
    if model.ir_version < 4:
        inputs = {i.name for i in model.graph.input}
        for t in model.graph.initializer:
            if t.name not in inputs:
                value = helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                model.graph.input.append(value)
        model.ir_version = 4
    # The converter takes the batch axis off the types of a Scan's operands, the inputs' too.
    declared = [ValueInfoProto.FromString(i.SerializeToString()) for i in model.graph.input]
    if version < 9:
        for graph in reversed(subgraphs(model.graph)):
            _unbatch_scans(graph)
    if version < 13:
        for graph in subgraphs(model.graph):
            _flatten_hardmax(graph)
    if 6 <= version < 11:
        for graph in subgraphs(model.graph):
            _bound_clips(graph)
    if version < 7:
        _number_sizes(model)
    try:
        converted = version_converter.convert_version(model, OPSET)
    except _FAILURES as e:
        changed = _changed_operators(model, version)
        if changed:
            raise UserError(
                f"the model's opset {version} cannot be converted to {OPSET} ({_first_line(e)}), "
                f"and these operators changed since: {', '.join(changed)}; "
                "export the model with a newer opset"
            ) from e
        return model
    types = {i.name: i for i in declared}
    for info in converted.graph.input:
        if info.name in types:
            info.CopyFrom(types[info.name])
    if version < 11:
        for graph in subgraphs(converted.graph):
            _anchor_resizes(graph)
            _type_numbers(graph)
    if version < 13:
        for graph in subgraphs(converted.graph):
            _keep_empty_rows(graph)
    if version < 7:
        for graph in subgraphs(converted.graph):
            _mark_slopes(graph)
    if version < 9:
        for graph in reversed(subgraphs(converted.graph)):
            _shorten_scans(graph)
    return converted


def _number_sizes(model: ModelProto) -> None:
    """Gives every symbolic size of the inputs a large number of its own while opset 6 is left.

    The conversion of operators that had an attribute `broadcast` wants numbers; what it writes
    depends on which of them are equal and on none of their values.
    """
    numbers: dict[str, int] = {}
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                name = dim.dim_param or f"{info.name}_{axis}"
                dim.dim_value = numbers.setdefault(name, _FIRST_NUMBER + len(numbers))
    model.graph.ClearField("value_info")


_FIRST_NUMBER = 1_000_003
"""Larger than any size that a model of opset 6 states."""


def _name_domains(graph: GraphProto, version: int) -> None:
    """Names the domain of what ONNX Runtime's optimiser writes as if it were ONNX's own.

    It has these operators in the standard's domain at every opset.
    """
    for node in graph.node:
        if node.domain in ("", "ai.onnx") and version < _FIRST.get(node.op_type, 0):
            node.domain = "com.microsoft"


_FIRST = {"SimplifiedLayerNormalization": OPSET + 1, "LayerNormalization": 17}
"""The first opset whose operator of a name is the standard's."""


def _flatten_hardmax(graph: GraphProto) -> None:
    """Gives every Hardmax before opset 13 the matrix that it works on: all axes from `axis` on."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type != "Hardmax" or node.domain not in ("", "ai.onnx"):
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
    _replace_nodes(graph, nodes)


def _replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Gives a graph other nodes, which may be its own."""
    kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    graph.ClearField("node")
    graph.node.extend(kept)


def _bound_clips(graph: GraphProto) -> None:
    """States the bounds that a Clip of opset 6 to 10 leaves out: the largest finite floats."""
    largest = float(np.finfo(np.float32).max)
    for node in graph.node:
        if node.op_type == "Clip" and node.domain in ("", "ai.onnx"):
            given = {a.name for a in node.attribute}
            for name, bound in (("min", -largest), ("max", largest)):
                if name not in given:
                    node.attribute.append(helper.make_attribute(name, bound))


def _type_numbers(graph: GraphProto) -> None:
    """Gives what were attributes, so floats, the type of what a Clip bounds or a Pad fills."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        first = {"Clip": 1, "Pad": 2}.get(node.op_type)
        if first is not None and node.domain in ("", "ai.onnx"):
            for place, number in enumerate(node.input):
                if place >= first and number:
                    typed = f"{node.output[0]}_number{place}"
                    nodes.append(helper.make_node("CastLike", [number, node.input[0]], [typed]))
                    node.input[place] = typed
        nodes.append(node)
    _replace_nodes(graph, nodes)


def _keep_empty_rows(graph: GraphProto) -> None:
    """Lets extents be 0 that rows, flattened for a softmax of before opset 13, get back."""
    for node in graph.node:
        rows = (f"{node.output[0]}_intermediate", f"{node.output[0]}_hot") if node.output else ()
        if node.op_type == "Reshape" and node.input[0] in rows:
            node.attribute.append(helper.make_attribute("allowzero", 1))


def _anchor_resizes(graph: GraphProto) -> None:
    """Gives every Resize of a model before opset 11 the coordinates that it had then."""
    for node in graph.node:
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            kept = [a for a in node.attribute if a.name == "mode"]
            kept += [
                helper.make_attribute("coordinate_transformation_mode", "asymmetric"),
                helper.make_attribute("nearest_mode", "floor"),
            ]
            copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
            node.ClearField("attribute")
            node.attribute.extend(copies)


def _mark_slopes(graph: GraphProto) -> None:
    """Tells every PRelu of opset 6 that slopes in a row belong to channels, not to columns."""
    for node in graph.node:
        if node.op_type == "PRelu" and node.domain in ("", "ai.onnx"):
            node.attribute.append(helper.make_attribute("by_channel", 1))


def _unbatch_scans(graph: GraphProto) -> None:
    """Makes a Scan over the batch, with Scan inside, of every Scan of opset 8.

    The operator of opset 8 runs its body for every element of a batch, the first axis of all its
    operands; later ones have no batch. With lengths, the inner Scan has the length of its element
    for `_shorten_scans`.
    """
    for node in graph.node:
        if node.op_type != "Scan" or node.domain not in ("", "ai.onnx"):
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
        nodes += [
            node,
            helper.make_node("Shape", whole[:1], [f"{length}_n"], start=0, end=1),
            helper.make_node("Sub", [f"{length}_n", f"{length}_end"], [f"{length}_rest"]),
            helper.make_node("Concat", [zero, f"{length}_rest"], [f"{length}_pads"], axis=0),
        ]
        for y in results:
            pad = [f"{y}_cut", f"{length}_pads", "", zero]
            nodes.append(helper.make_node("Pad", pad, [y]))
    _replace_nodes(graph, nodes)


def opset_of(model: ModelProto) -> int:
    """The version of ONNX's own operators that the model uses."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return max(versions, default=OPSET)


def _changed_operators(model: ModelProto, version: int) -> list[str]:
    """The operators whose inputs or attributes differ between `version` and the newest opset."""
    changed: set[str] = set()
    for graph in subgraphs(model.graph):
        for node in graph.node:
            if node.domain not in ("", "ai.onnx"):
                continue
            try:
                old = get_schema(node.op_type, version)
                new = get_schema(node.op_type, OPSET)
            except SchemaError:
                changed.add(node.op_type)
                continue
            if _signature(old) != _signature(new) or node.op_type in _REDEFINED:
                changed.add(node.op_type)
    return sorted(changed)


_REDEFINED = frozenset({"Softmax", "LogSoftmax", "Hardmax", "BatchNormalization"})
"""Operators whose meaning changed while their signature did not."""


def _signature(schema: OpSchema) -> tuple[object, ...]:
    inputs = tuple((i.name, str(i.option)) for i in schema.inputs)
    attributes = tuple(
        (a.name, str(a.type), helper.printable_attribute(a.default_value))
        for _, a in sorted(schema.attributes.items())
    )
    return inputs, attributes


def _first_line(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return lines[0][:200] if lines else type(e).__name__
