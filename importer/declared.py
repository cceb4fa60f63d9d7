"""Whether nodes are as ONNX declares their operators, and which of a model's nodes are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import (
    IR_VERSION,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    checker,
    defs,
    numpy_helper,
    shape_inference,
)

from rutc.errors import UserError
from rutc.importer.building.tensor import SMALL, Item, Tensor
from rutc.importer.functions import tensor_type
from rutc.importer.opsets.conversion_errors import reason_of
from rutc.importer.opsets.convert import OPSET
from rutc.importer.opsets.isolated import EndedError, isolated
from rutc.importer.opsets.order import names_read, title
from rutc.importer.reading.proto import (
    graphs_of,
    onnx_type,
    type_name,
)


def given_text(node: NodeProto, inputs: Sequence[Item | None]) -> str:
    """The operands by name, with their types and shapes."""
    return ", ".join(f"{i or '-'}: {t}" for i, t in zip(node.input, inputs, strict=True))


def check_declared(output: ValueInfoProto, item: Item) -> None:
    """Raises UserError where an output has another element type than the model says it has."""
    declared = output.type.tensor_type.elem_type
    if not isinstance(item, Tensor) or not declared:
        return
    computed = onnx_type(item.dtype)
    if computed != declared:
        raise UserError(
            f"output {output.name!r} is declared as {type_name(declared).lower()}, and what "
            f"computes it gives {type_name(computed).lower()}: its types contradict each other"
        )


def has_more_axes(output: ValueInfoProto, item: Item) -> bool:
    """Whether an output has a higher rank than the model says it has."""
    kind = output.type.tensor_type
    return isinstance(item, Tensor) and kind.HasField("shape") and item.rank > len(kind.shape.dim)


def check_node(node: NodeProto, inputs: Sequence[Item | None]) -> None:
    """Raises UserError where a node breaks the standard's rules for its operator.

    These are those for attributes and arity, and what its inference of types and shapes demands.
    """
    operands = dict(zip(node.input, inputs, strict=True))
    tensors = {n: t for n, t in operands.items() if isinstance(t, Tensor)}
    types = {n: tensor_type(t) for n, t in tensors.items()}
    known = {
        n: numpy_helper.from_array(t.array, n)
        for n, t in tensors.items()
        if t.array is not None and t.array.size <= SMALL
    }
    try:
        isolated(_check_rules, node, types, known, len(tensors) == len(operands))
    except (checker.ValidationError, shape_inference.InferenceError, EndedError) as e:
        raise UserError(
            f"{node.op_type} (node {title(node)!r}) is malformed: {reason_of(e)} "
            f"[{given_text(node, inputs)}]"
        ) from e


def _check_rules(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: Mapping[str, TensorProto],
    plain: bool,
) -> None:
    """The standard's check of one node, and, where it has plain operands, its inference.

    The latter is left out for nodes that have graphs in them.
    """
    context = checker.C.CheckerContext()
    context.ir_version = IR_VERSION
    context.opset_imports = {"": OPSET, node.domain: OPSET}
    checker.check_node(node, context)
    nested = any(map(graphs_of, node.attribute))
    if plain and not nested and defs.has(node.op_type, node.domain):
        schema = defs.get_schema(node.op_type, node.domain)
        shape_inference.infer_node_outputs(schema, node, dict(types), dict(known))


def needed(graph: GraphProto, wanted: Iterable[str]) -> list[NodeProto]:
    """The nodes that the wanted values need, in order."""
    live = _live(graph, set(wanted))
    return [n for n, needed in zip(graph.node, live, strict=True) if needed]


def _live(graph: GraphProto, wanted: set[str]) -> list[bool]:
    """Which nodes the wanted values need."""
    live = [False] * len(graph.node)
    for k in range(len(graph.node) - 1, -1, -1):
        node = graph.node[k]
        if wanted.isdisjoint(node.output):
            continue
        live[k] = True
        wanted.update(names_read(node))
    return live
