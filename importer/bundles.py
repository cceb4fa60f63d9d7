"""Inputs and outputs that are sequences, optionals or maps: the tensors that stand for them.

A sequence input `x` is one tensor of boxes, whose extent is the size `x` of the model. If that is
given as a number, or the shapes of the elements are given, these are inputs `x[0]`, `x[1]`, ..
Whether an optional `x` has an element is the size `x?`: 0, 1, or 0..1, which the run decides, as it
does by default unless a shape is given for the element. The values of a map are one tensor, in the
order of the keys that its reader names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from rutc.errors import UserError
from rutc.importer.boxes import element_of, joined
from rutc.importer.building.builder import Builder
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import (
    Absent,
    Axis,
    Boxed,
    Item,
    ListType,
    OptionalType,
    Tensor,
    TensorList,
    TensorMap,
    TensorType,
    TupleType,
    Type,
)
from rutc.importer.reading.proto import dtype_of, onnx_type, type_name
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.affine import Range
from rutc.tensor_ir.interface import Bundle, tensor

TensorInput = Callable[[ValueInfoProto], Tensor]
"""Makes a tensor input of the graph."""
BoxesInput = Callable[[str, str, Range], Tensor]
"""Makes an input {n} of boxes of the graph: its name, that of the size n, and the size's range."""
Size = Callable[[str, int | Range | None], int | Range | None]
"""The given size of a name, or the default."""


def bundled_input(
    name: str,
    declared: TypeProto,
    read: TensorInput,
    read_boxes: BoxesInput,
    size: Size,
    shapes: Mapping[str, object],
    keys: tuple[int | str, ...] | None,
) -> tuple[Item, Bundle]:
    """An input of any type: its item, made of tensor inputs, and how they make it up."""
    match declared.WhichOneof("value"):
        case "tensor_type":
            return read(ValueInfoProto(name=name, type=declared)), tensor(name)
        case "sequence_type":
            return _sequence(name, declared, read, read_boxes, size, shapes)
        case "optional_type":
            there = size(f"{name}?", 1 if _is_shaped(name, shapes) else (0, 1))
            if isinstance(there, tuple):
                boxes = read_boxes(name, f"{name}?", (max(there[0], 0), min(there[1], 1)))
                return _boxed(declared, name, boxes)
            if not there:
                return Absent(), Bundle("optional")
            inner = declared.optional_type.elem_type
            item, part = bundled_input(name, inner, read, read_boxes, size, shapes, keys)
            return item, Bundle("optional", parts=(part,))
        case "map_type":
            return _map(name, declared.map_type, read, size, keys)
        case kind:
            raise UserError(
                f"input {name!r} is a {kind or 'value of no declared type'}; rutc takes tensors, "
                "sequences, optionals and maps: export the model again"
            )


def _is_shaped(name: str, shapes: Mapping[str, object]) -> bool:
    """Whether a shape is given for an optional's element, or for one of a sequence in it."""
    return name in shapes or f"{name}[0]" in shapes


def _sequence(
    name: str,
    declared: TypeProto,
    read: TensorInput,
    read_boxes: BoxesInput,
    size: Size,
    shapes: Mapping[str, object],
) -> tuple[Item, Bundle]:
    element = declared.sequence_type.elem_type
    given = 0
    while f"{name}[{given}]" in shapes:
        given += 1
    count = size(name, given or None)
    if not isinstance(count, int):
        boxes = read_boxes(name, name, count or (0, MOST))
        return _boxed(declared, name, boxes)
    shared = _shared_sizes(element, [shapes.get(f"{name}[{i}]") for i in range(count)], size)
    items: list[Tensor] = []
    parts: list[Bundle] = []
    for i in range(count):
        each = _own_sizes(element, f"{name}_{i}", shared)
        item, part = bundled_input(f"{name}[{i}]", each, read, read_boxes, size, shapes, None)
        if not isinstance(item, Tensor):
            raise UserError(f"input {name!r} is a sequence of what are no tensors")
        items.append(item)
        parts.append(part)
    return TensorList(tuple(items)), Bundle("sequence", parts=tuple(parts))


def _shared_sizes(element: TypeProto, given: Sequence[object], size: Size) -> frozenset[str]:
    """The symbolic sizes that are one number in all elements' shapes, and in the model."""
    shared: set[str] = set()
    for axis, dim in enumerate(element.tensor_type.shape.dim):
        found = {s[axis] for s in given if isinstance(s, tuple) and axis < len(s)}
        if dim.dim_param and len(found) == 1 and size(dim.dim_param, min(found)) in found:
            shared.add(dim.dim_param)
    return frozenset(shared)


def _own_sizes(element: TypeProto, prefix: str, shared: frozenset[str]) -> TypeProto:
    """The type of one element, whose symbolic sizes may differ from the others'."""
    own = TypeProto()
    own.CopyFrom(element)
    for dim in own.tensor_type.shape.dim:
        if dim.dim_param and dim.dim_param not in shared:
            dim.dim_param = f"{prefix}_{dim.dim_param}"
    return own


def _map(
    name: str,
    declared: TypeProto.Map,
    read: TensorInput,
    size: Size,
    keys: tuple[int | str, ...] | None,
) -> tuple[Item, Bundle]:
    count = len(keys) if keys is not None else size(name, None)
    if not isinstance(count, int):
        raise UserError(f"input {name!r} is a map: say how many entries it has, as a size")
    kind = declared.value_type.tensor_type.elem_type
    values = read(helper.make_tensor_value_info(name, kind, [count]))
    return TensorMap(keys, values), Bundle("map", parts=(tensor(name),), keys=keys)


def keys_asked_for(name: str, graph: GraphProto) -> tuple[int | str, ...] | None:
    """The keys of a map input that its reader names; None where it takes all, in their order."""
    for node in graph.node:
        if name in node.input:
            found = _keys_of(node)
            if found is not None:
                return found
    return None


def _keys_of(node: NodeProto) -> tuple[int | str, ...] | None:
    if node.op_type not in ("DictVectorizer", "CastMap"):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "DictVectorizer":
        words = [w.decode() for w in attributes.get("string_vocabulary", ())]
        return (*words, *attributes.get("int64_vocabulary", ()))
    if attributes.get("map_form") == b"SPARSE":
        return tuple(range(int(attributes.get("max_map", 1))))
    return None


def _boxed(declared: TypeProto, name: str, boxes: Tensor) -> tuple[Item, Bundle]:
    """A sequence or optional of a declared type, an input."""
    found = _type(declared, name)
    assert isinstance(found, ListType | OptionalType)
    inner: Type | None = found
    while inner is not None and not isinstance(inner, TensorType):
        inner = element_of(inner)
    extents = inner.shape if inner is not None and inner.shape is not None else ()
    shape = tuple(-1 if e is None else e.const for e in extents)
    return Boxed(found, boxes), Bundle("boxed", name, type=_spelled(declared), shape=shape)


def _type(declared: TypeProto, name: str) -> Type:
    """The type that an input is declared with."""
    match declared.WhichOneof("value"):
        case "sequence_type":
            return ListType(_type(declared.sequence_type.elem_type, name))
        case "optional_type":
            return OptionalType(_type(declared.optional_type.elem_type, name))
        case "tensor_type":
            tensor = declared.tensor_type
            kind = dtype_of(tensor.elem_type, f"input {name!r}")
            if not tensor.HasField("shape"):
                return TensorType(kind, None)
            extents = (
                Index.of(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim
            )
            return TensorType(kind, tuple(extents))
        case other:
            raise UserError(
                f"input {name!r} is a sequence or optional of {other or 'no declared type'}; rutc "
                "takes those of tensors: export the model again"
            )


def _spelled(declared: TypeProto) -> str:
    """A declared type as ONNX Runtime writes it: `seq(tensor(float))`."""
    match declared.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_spelled(declared.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_spelled(declared.optional_type.elem_type)})"
        case _:
            return f"tensor({type_name(declared.tensor_type.elem_type).lower()})"


def _spelling(t: Type | None, declared: str) -> str:
    """A type as ONNX Runtime writes it; `declared` where nothing is known of the elements."""
    match t:
        case TensorType(dtype):
            return f"tensor({TensorProto.DataType.Name(onnx_type(dtype)).lower()})"
        case ListType(element) | OptionalType(element):
            kind = "seq" if isinstance(t, ListType) else "optional"
            inner = declared.removeprefix(f"{kind}(").removesuffix(")") + ")"
            return f"{kind}({_spelling(element, inner)})"
        case TupleType():
            return f"seq({_spelling(joined(t.items), declared)})"
        case None:
            return declared if declared.startswith(("tensor(", "seq(")) else "tensor(float)"


def bundled_output(
    name: str, item: Item, declared: TypeProto, b: Builder
) -> tuple[Bundle, list[tuple[str, Tensor]]]:
    """How an output is made up, and the tensors that it is made of by their names."""
    match item:
        case Boxed():
            boxes = item.boxes
            if isinstance(item.type, TensorType):
                boxes = b.nest((Axis(b.dim(1), Index.of(1)),), b.read(boxes, []))
            kind = declared.WhichOneof("value")
            spelled = _spelling(item.type, _spelled(declared) if kind is not None else "")
            return Bundle("boxed", name, type=spelled), [(name, boxes)]
        case Tensor():
            return tensor(name), [(name, item)]
        case Absent():
            return Bundle("optional"), []
        case TensorList():
            ports = [(f"{name}[{i}]", t) for i, t in enumerate(item.items)]
            return Bundle("sequence", parts=tuple(tensor(n) for n, _ in ports)), ports
        case TensorMap():
            kind = "maps" if item.values.rank == 2 else "map"
            return Bundle(kind, parts=(tensor(name),), keys=item.keys), [(name, item.values)]
