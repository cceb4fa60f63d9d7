"""Conversion to the newest opset, so that only one definition of every operator is implemented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    TensorProto,
    helper,
    inliner,
    shape_inference,
    version_converter,
)
from onnx.defs import OpSchema, SchemaError, get_schema

from rutc.errors import UserError
from rutc.importer.proto import array_of, subgraphs

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


def prepare(model: ModelProto, directory: Path) -> tuple[GraphProto, Weights]:
    """The main graph at the newest opset without model-local functions, and its initializers."""
    weights = _take_initializers(model, directory)
    if model.functions:
        model = inliner.inline_local_functions(model, True)
    graph = _converted(model).graph
    for t in graph.initializer:
        weights[t.name] = array_of(t, directory)
    if graph.sparse_initializer:
        raise UserError(
            f"sparse initializers are not supported ({graph.sparse_initializer[0].values.name!r})"
        )
    graph.ClearField("initializer")
    return graph, weights


def _take_initializers(model: ModelProto, directory: Path) -> Weights:
    """Takes the big initializers out of the model, which gets inputs in their place."""
    graph = model.graph
    inputs = {i.name for i in graph.input}
    big = [t for t in graph.initializer if _is_big(t)]
    weights = {t.name: array_of(t, directory) for t in big}
    if not big:
        return weights
    small = [t for t in graph.initializer if not _is_big(t)]
    for t in big:
        if t.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    return weights


def _is_big(t: TensorProto) -> bool:
    return t.data_location == TensorProto.EXTERNAL or int(np.prod(t.dims)) > _KEPT_ELEMENTS


def _converted(model: ModelProto) -> ModelProto:
    version = opset_of(model)
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
    if version < 9 and any(n.op_type == "Scan" for g in subgraphs(model.graph) for n in g.node):
        raise UserError(
            f"Scan as opset {version} defines it is not supported; export with a newer opset"
        )
    try:
        return version_converter.convert_version(model, OPSET)
    except _FAILURES as e:
        changed = _changed_operators(model, version)
        if changed:
            raise UserError(
                f"the model's opset {version} cannot be converted to {OPSET} ({_first_line(e)}), "
                f"and these operators changed since: {', '.join(changed)}; "
                "export the model with a newer opset"
            ) from e
        return model


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
