"""Conversion to the newest opset, so that only one definition of every operator is implemented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
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
from rutc.importer.opsets.conversion_errors import check_defined, reason_of, refusal
from rutc.importer.opsets.isolated import EndedError, isolated
from rutc.importer.opsets.old_opsets import after_conversion, before_conversion
from rutc.importer.opsets.order import sort_nodes, title
from rutc.importer.opsets.scopes import name_values, number_values
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.proto import array_of, dense_of, graphs_of, leave_elements, subgraphs

OPSET = 28
"""The opset whose definitions the operators implement."""

_SETTLED = 13
"""From this opset on an operator with the same inputs and attributes means the same."""

_HIDDEN = "hidden."
"""What domains begin with of whose operators the conversion is to know nothing."""

_KEPT_ELEMENTS = 512
"""Tensors of up to this many elements stay in the protobuf while it is converted."""

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
    sort_nodes(model)
    _leave_elements(model, folder)
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
                own = called.get((node.domain, node.op_type, node.overload))
                if own is not None:
                    _fill_in(node, own)
    for function, body in zip(model.functions, bodies, strict=True):
        function.ClearField("node")
        function.node.extend(body.node)
    try:
        # What means the same at the model's opsets needs no conversion, which types stop that
        # nested graphs find outside of themselves.
        lifted = [_lift(function, model) for function in model.functions]
        if not all(lifted) and _raised(model):
            lifted = [_lift(function, model) for function in model.functions]
        if not all(lifted):
            model = _typed(model)
        return isolated(inliner.inline_local_functions, model, True)
    except (*_FAILURES, checker.ValidationError) as e:
        raise UserError(
            f"the model's own functions cannot be put in where they are called: {reason_of(e)}"
        ) from e


def _lift(function: FunctionProto, model: ModelProto) -> bool:
    """Takes a function to the model's opsets where all of its operators mean the same there.

    Returns:
        Whether that is so for all of its opsets.
    """
    opsets = {o.domain: o.version for o in model.opset_import}
    nodes = [n for g in subgraphs(GraphProto(node=function.node)) for n in g.node]
    for own in function.opset_import:
        version = opsets.get(own.domain, own.version)
        names = {n.op_type for n in nodes if n.domain == own.domain}
        if all(_same(name, own.domain, own.version, version) for name in names):
            own.version = version
    return all(own.version == opsets.get(own.domain, own.version) for own in function.opset_import)


def _raised(model: ModelProto) -> bool:
    """Takes the model to the newest opset of its functions: not all have a way back.

    Returns:
        Whether it is another one.

    Raises:
        UserError: an operator of the model is defined otherwise there.
    """
    newer = False
    for own in (o for o in model.opset_import if not o.domain):
        theirs = ((o, f.name) for f in model.functions for o in f.opset_import)
        versions = [(o.version, name) for o, name in theirs if o.domain == own.domain]
        newest, name = max(versions, default=(own.version, ""))
        if newest <= own.version:
            continue
        nodes = (n for g in subgraphs(model.graph) for n in g.node if n.domain == own.domain)
        operators = sorted({n.op_type for n in nodes})
        changed = [op for op in operators if _is_changed(op, own.version, newest)]
        if changed:
            raise UserError(
                f"the model's own function {name} is of opset {newest}, the model of opset "
                f"{own.version}, where {', '.join(changed)} is defined otherwise; export both of "
                "one opset"
            )
        own.version, newer = newest, True
    return newer


def _typed(model: ModelProto) -> ModelProto:
    """The model with types for its values, by which the inliner converts functions' bodies."""
    for t in model.graph.initializer:
        model.graph.value_info.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return isolated(shape_inference.infer_shapes, model)


def _same(op: str, domain: str, one: int, other: int) -> bool:
    """Whether an operator is defined by the same version of it at two opsets."""
    try:
        found = {get_schema(op, v, domain).since_version for v in (one, other)}
    except SchemaError:
        # One of the model's own, or of a domain that ONNX does not know.
        return one == other
    return len(found) == 1


def _fill_in(node: NodeProto, function: FunctionProto) -> None:
    """Gives a call the defaults of the attributes that it leaves out (the inliner drops them)."""
    given = {a.name for a in node.attribute}
    node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def _leave_elements(model: ModelProto, folder: ModelFolder) -> None:
    """Leaves the elements of large tensors in nodes and their graphs to the folder.

    What is left of them is copied whenever a model is changed or converted.
    """
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node, t in _inner_tensors(nodes):
            if t.data_location != TensorProto.EXTERNAL and _is_big(t):
                t.name = t.name or title(node)
                leave_elements(t, folder)


def _inner_tensors(nodes: Iterable[NodeProto]) -> Iterator[tuple[NodeProto, TensorProto]]:
    """Yields the tensors in attributes of nodes and in the graphs there, each with its node."""
    for node in nodes:
        for a in node.attribute:
            for t in (*((a.t,) if a.HasField("t") else ()), *a.tensors):
                yield node, t
            for graph in graphs_of(a):
                for t in graph.initializer:
                    yield node, t
                yield from _inner_tensors(graph.node)


def _take_initializers(model: ModelProto, folder: ModelFolder) -> Weights:
    """Takes the big and the sparse initializers out; the model gets inputs in their place."""
    graph = model.graph
    inputs = {i.name for i in graph.input}
    big: list[TensorProto] = []
    small: list[TensorProto] = []
    for t in graph.initializer:
        (big if _is_big(t) else small).append(t)
    weights = {t.name: array_of(t, folder) for t in big}
    types = {t.name: (t.data_type, t.dims) for t in big}
    for s in graph.sparse_initializer:
        weights[s.values.name] = dense_of(s, folder)
        types[s.values.name] = (s.values.data_type, s.dims)
    if not weights:
        return weights
    for name, (kind, dims) in types.items():
        if name not in inputs:
            graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    graph.ClearField("sparse_initializer")
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    return weights


def _is_big(t: TensorProto) -> bool:
    return t.data_location == TensorProto.EXTERNAL or prod(t.dims) > _KEPT_ELEMENTS


def _converted(model: ModelProto) -> ModelProto:
    version = opset_of(model)
    for graph in subgraphs(model.graph):
        _name_domains(graph, version)
        _open_extents(graph)
    if version < OPSET:
        check_defined(model, version)
    if version == OPSET:
        return model
    if version >= _SETTLED and not _changed_operators(model, version):
        return model
    if model.ir_version < 4:
        inputs = {i.name for i in model.graph.input}
        for t in model.graph.initializer:
            if t.name not in inputs:
                value = helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                model.graph.input.append(value)
        model.ir_version = 4
    had = number_values(model)
    # The converter takes the batch axis off the types of a Scan's operands, the inputs' too.
    declared = [ValueInfoProto.FromString(i.SerializeToString()) for i in model.graph.input]
    before_conversion(model, version)
    try:
        converted = _of_newest_opset(model)
    except _FAILURES as e:
        found = _as_far_as_needed(model)
        if found is None:
            name_values(model, had)
            changed = _changed_operators(model, opset_of(model))
            if changed:
                raise refusal(model, version, OPSET, changed, e) from e
            return model
        converted = found
    types = {i.name: i for i in declared}
    for info in converted.graph.input:
        if info.name in types:
            info.CopyFrom(types[info.name])
    after_conversion(converted, version)
    name_values(converted, had)
    return converted


def _of_newest_opset(model: ModelProto) -> ModelProto:
    """The model as ONNX converts it, which infers the types of its values.

    At some operators of other domains, as a LabelEncoder, that ends the process where nobody can
    tell an operand's type. Then they are what ONNX does not know.
    """
    try:
        return isolated(version_converter.convert_version, model, OPSET)
    except EndedError:
        if not any(n.domain for g in subgraphs(model.graph) for n in g.node):
            raise
        hidden = ModelProto.FromString(model.SerializeToString())
        for named in _named_by_domains(hidden):
            named.domain = f"{_HIDDEN}{named.domain}" if named.domain else ""
        converted = isolated(version_converter.convert_version, hidden, OPSET)
        for named in _named_by_domains(converted):
            named.domain = named.domain.removeprefix(_HIDDEN)
        return converted


def _as_far_as_needed(model: ModelProto) -> ModelProto | None:
    """The model at the first opset at which it means what it does at the newest; None without one.

    Some operators lost types later, as a ReduceLogSum integers.
    """
    opset = max(opset_of(model), _SETTLED)
    while opset < OPSET and _changed_operators(model, opset):
        opset += 1
    if opset == OPSET:
        return None
    try:
        converted = isolated(version_converter.convert_version, model, opset)
    except _FAILURES:
        return None
    return None if _changed_operators(converted, opset) else converted


def _named_by_domains(model: ModelProto) -> Iterator[NodeProto | OperatorSetIdProto]:
    """Yields the opsets of a model without functions, and the nodes of all its graphs."""
    yield from model.opset_import
    for graph in subgraphs(model.graph):
        yield from graph.node


def _name_domains(graph: GraphProto, version: int) -> None:
    """Names the domain of what ONNX Runtime's optimiser writes as if it were ONNX's own.

    It has these operators in the standard's domain at every opset.
    """
    for node in graph.node:
        if not node.domain and version < _FIRST.get(node.op_type, 0):
            node.domain = "com.microsoft"


def _open_extents(graph: GraphProto) -> None:
    """Leaves negative extents open: some exporters write -1 for those that a run decides."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        for d in info.type.tensor_type.shape.dim:
            if d.dim_value < 0:
                d.ClearField("dim_value")


_FIRST = {"SimplifiedLayerNormalization": OPSET + 1, "LayerNormalization": 17}
"""The first opset whose operator of a name is the standard's."""


def opset_of(model: ModelProto) -> int:
    """The version of ONNX's own operators that the model uses."""
    versions = [o.version for o in model.opset_import if not o.domain]
    return max(versions, default=OPSET)


def _changed_operators(model: ModelProto, version: int) -> list[str]:
    """The operators whose inputs or attributes differ between `version` and the newest opset."""
    nodes = (node for graph in subgraphs(model.graph) for node in graph.node)
    operators = {node.op_type for node in nodes if not node.domain}
    return sorted(name for name in operators if _is_changed(name, version))


def _is_changed(operator: str, version: int, newest: int = OPSET) -> bool:
    try:
        old, new = get_schema(operator, version), get_schema(operator, newest)
    except SchemaError:
        return True
    if old.since_version == new.since_version:
        return False
    redefined = new.deprecated or operator in _REDEFINED
    return redefined or _signature(old) != _signature(new)


_REDEFINED = frozenset({"Softmax", "LogSoftmax", "Hardmax", "BatchNormalization"})
"""Operators whose meaning changed while their signature did not."""


def _signature(schema: OpSchema) -> tuple[object, ...]:
    inputs = tuple((i.name, str(i.option)) for i in (*schema.inputs, *schema.outputs))
    attributes = tuple(
        (a.name, str(a.type), helper.printable_attribute(a.default_value))
        for _, a in sorted(schema.attributes.items())
    )
    return inputs, attributes
