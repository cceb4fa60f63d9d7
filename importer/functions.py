"""Operators that the standard itself defines by other operators: their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, helper
from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.importer.building.tensor import Tensor
from rutc.importer.opsets.convert import OPSET
from rutc.importer.reading.proto import graphs_of, onnx_type
from rutc.tensor_ir import DType


class _Schema(Protocol):
    """What the schema of an operator says about its body (left out of onnx's type stubs)."""

    has_function: bool
    has_context_dependent_function: bool
    function_opset_versions: Sequence[int]
    context_dependent_function_opset_versions: Sequence[int]
    attributes: Mapping[str, OpSchema.Attribute]
    inputs: Sequence[OpSchema.FormalParameter]
    type_constraints: Sequence[OpSchema.TypeConstraintParam]

    def get_function_with_opset_version(self, version: int) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, inputs: Sequence[bytes]
    ) -> bytes: ...


def is_function(op: str, domain: str = "") -> bool:
    """Whether the standard defines an operator by a body."""
    schema = _schema(op, domain)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def function_body(node: NodeProto, inputs: Sequence[Tensor | None]) -> FunctionProto | None:
    """The body of a node whose operator is a function, its attributes put in; None without one.

    The body's formal inputs and outputs correspond to the node's by position.
    """
    schema = _schema(node.op_type, node.domain)
    if schema is None or not is_function(node.op_type, node.domain):
        return None
    complete = NodeProto()
    complete.CopyFrom(node)
    given = {a.name for a in node.attribute}
    for name, attribute in sorted(schema.attributes.items()):
        if name not in given and attribute.default_value.name:
            complete.attribute.append(attribute.default_value)
    body = FunctionProto()
    if schema.has_function:
        body.ParseFromString(
            schema.get_function_with_opset_version(max(schema.function_opset_versions))
        )
    else:
        types = [tensor_type(t).SerializeToString() for t in inputs]
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                max(schema.context_dependent_function_opset_versions),
                complete.SerializeToString(),
                types,
            )
        )
    actual = {a.name: a for a in complete.attribute}
    _put_in(body.node, actual)
    _widen(body, schema, inputs)
    return body


def _widen(body: FunctionProto, schema: _Schema, inputs: Sequence[Tensor | None]) -> None:
    """Has operands that may be i32 or i64, and nothing else, converted to i64.

    The body of CenterCropPad adds them to sizes, which are i64, whatever they are.
    """
    kinds = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    casts = []
    for place, t in enumerate(inputs):
        own = schema.inputs[min(place, len(schema.inputs) - 1)]
        if t is None or t.dtype is not DType.I32 or kinds.get(own.type_str) != _INDICES:
            continue
        name = body.input[place]
        narrow = f"{name}.narrow"
        body.input[place] = narrow
        casts.append(helper.make_node("Cast", [narrow], [name], to=TensorProto.INT64))
    nodes = [*casts, *body.node]
    body.ClearField("node")
    body.node.extend(nodes)


_INDICES = {"tensor(int32)", "tensor(int64)"}
"""The types of operands that are indices or sizes."""


def _schema(op: str, domain: str) -> _Schema | None:
    try:
        if domain:
            return cast(_Schema, get_schema(op, domain))
        return cast(_Schema, get_schema(op, OPSET))
    except SchemaError:
        return None


def _put_in(nodes: Iterable[NodeProto], actual: Mapping[str, AttributeProto]) -> None:
    """Replaces references to the function's attributes by their values, in subgraphs too."""
    for node in nodes:
        kept: list[AttributeProto] = []
        for a in node.attribute:
            if a.ref_attr_name:
                if a.ref_attr_name in actual:
                    value = AttributeProto()
                    value.CopyFrom(actual[a.ref_attr_name])
                    value.name = a.name
                    kept.append(value)
                continue
            for graph in graphs_of(a):
                _put_in(graph.node, actual)
            kept.append(a)
        copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
        node.ClearField("attribute")
        node.attribute.extend(copies)


def tensor_type(t: Tensor | None) -> TypeProto:
    """The ONNX type of an operand; extents that depend on sizes are left open."""
    made = TypeProto()
    if t is None:
        return made
    made.tensor_type.elem_type = onnx_type(t.dtype)
    made.tensor_type.shape.SetInParent()
    for e in t.shape:
        d = made.tensor_type.shape.dim.add()
        if e.is_const:
            d.dim_value = e.const
    return made
