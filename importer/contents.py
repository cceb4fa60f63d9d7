"""What is in a model file, as it was exported: for people, before anything is rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TypeVar

from onnx import AttributeProto, GraphProto, TensorProto, ValueInfoProto

from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.opsets.order import names_read, sort_nodes
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.proto import STANDARD, dtype_of, load, subgraphs
from rutc.tensor_ir import DType

T = TypeVar("T")
MOST_NUMBERS = 16
"""Of an attribute that are told."""


@record
class NodeContents:
    """A node of the main graph: what it reads, bodies included, makes, and has as attributes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]


@record
class TensorContents:
    """A constant of the main graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@record
class Contents:
    """The opset of each domain, the nodes of each operator, and the constants, graphs inside too.

    Operators of another domain than ONNX's stand behind its name. `weight_bytes` are those of all
    constants but text. `nodes` are those of the main graph, in an order in which each reads what is
    before it, `tensors` its initializers; `types` has what the model declares of its values.
    """

    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    weights: int
    weight_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeContents, ...]
    tensors: tuple[TensorContents, ...]
    types: Mapping[str, str]


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
    operators = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in nodes)
    # The order of the file is that of the counts.
    sort_nodes(model)
    main = model.graph
    tensors = tuple(
        TensorContents(t.name, _name(t.data_type), tuple(t.dims), _bits(t) // 8)
        for t in main.initializer
    )
    held = {t.name for t in tensors} | {t.values.name for t in main.sparse_initializer}
    return Contents(
        {o.domain or STANDARD: o.version for o in model.opset_import},
        operators,
        len(weights),
        sum(map(_bits, weights)) // 8,
        tuple(i.name for i in main.input if i.name not in held),
        tuple(o.name for o in main.output),
        tuple(
            NodeContents(
                n.name,
                f"{n.domain}.{n.op_type}" if n.domain else n.op_type,
                tuple(dict.fromkeys(names_read(n))),
                tuple(n.output),
                tuple(map(_attribute, n.attribute)),
            )
            for n in main.node
        ),
        tensors,
        {v.name: _type(v) for v in (*main.input, *main.value_info, *main.output)},
    )


def _bits(tensor: TensorProto) -> int:
    """What the elements of a tensor take; nothing is known of text."""
    dtype = dtype_of(tensor.data_type, tensor.name)
    return prod(tensor.dims) * (0 if dtype is DType.STRING else dtype.bits)


def _name(data_type: int) -> str:
    """The name of an element type; that it has a number where it is none that is known."""
    try:
        return dtype_of(data_type).stored_name
    except UserError:
        return f"type {data_type}"


def _type(value: ValueInfoProto) -> str:
    """The type of a value as it is declared: `float32 [batch, 3, ?]`."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "").removesuffix("_type")
    tensor = value.type.tensor_type
    name = _name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return name
    extents = (
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim
    )
    return f"{name} [{', '.join(extent or '?' for extent in extents)}]"


def _attribute(a: AttributeProto) -> str:
    """An attribute in a line: numbers and text, or what kind of thing it is."""
    match a.type:
        case AttributeProto.INT:
            return f"{a.name} = {a.i}"
        case AttributeProto.FLOAT:
            return f"{a.name} = {a.f:g}"
        case AttributeProto.STRING:
            return f"{a.name} = {a.s.decode('utf-8', 'replace')!r}"
        case AttributeProto.INTS:
            return f"{a.name} = {_listed(a.ints, str)}"
        case AttributeProto.FLOATS:
            return f"{a.name} = {_listed(a.floats, '{:g}'.format)}"
        case AttributeProto.TENSOR:
            return f"{a.name} = {_name(a.t.data_type)} {list(a.t.dims)}"
        case AttributeProto.GRAPH:
            return f"{a.name} = {_body(a.g)}"
        case _:
            return f"{a.name}: {AttributeProto.AttributeType.Name(a.type).lower()}"


def _listed(numbers: Sequence[T], text: Callable[[T], str]) -> str:
    more = len(numbers) - MOST_NUMBERS
    first = ", ".join(map(text, numbers[:MOST_NUMBERS]))
    return f"[{first}{f', and {more} more' if more > 0 else ''}]"


def _body(graph: GraphProto) -> str:
    return f"a graph of {len(graph.node)} nodes"
