"""Inputs and outputs that are sequences, optionals or maps: the tensors that stand for them.

The elements of a sequence input `x` are inputs `x[0]`, `x[1]`, .. How many there are is the size
`x` of the model, or follows from the shapes given for them; whether an optional `x` has an element
is the size `x?` (1 by default, or 0). The values of a map are one tensor, in the order of the keys
that its reader names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import GraphProto, NodeProto, TypeProto, ValueInfoProto, helper

from rutc.errors import UserError
from rutc.importer.tensor import Absent, Item, Tensor, TensorList, TensorMap
from rutc.tensor_ir.interface import Bundle, tensor

TensorInput = Callable[[ValueInfoProto], Tensor]
"""Makes a tensor input of the graph."""
Size = Callable[[str, int | None], int | None]
"""The given size of a name, or the default."""


def bundled_input(
    name: str,
    declared: TypeProto,
    read: TensorInput,
    size: Size,
    shapes: Mapping[str, object],
    keys: tuple[int | str, ...] | None,
) -> tuple[Item, Bundle]:
    """An input of any type: its item, made of tensor inputs, and how they make it up."""
    match declared.WhichOneof("value"):
        case "tensor_type":
            return read(ValueInfoProto(name=name, type=declared)), tensor(name)
        case "sequence_type":
            return _sequence(name, declared.sequence_type.elem_type, read, size, shapes)
        case "optional_type":
            if not size(f"{name}?", 1):
                return Absent(), Bundle("optional")
            inner = declared.optional_type.elem_type
            item, part = bundled_input(name, inner, read, size, shapes, keys)
            return item, Bundle("optional", parts=(part,))
        case "map_type":
            return _map(name, declared.map_type, read, size, keys)
        case kind:
            raise UserError(f"input {name!r} is a {kind or 'value of unknown type'}")


def _sequence(
    name: str, element: TypeProto, read: TensorInput, size: Size, shapes: Mapping[str, object]
) -> tuple[Item, Bundle]:
    given = 0
    while f"{name}[{given}]" in shapes:
        given += 1
    count = size(name, given or None)
    if count is None:
        raise UserError(
            f"input {name!r} is a sequence: say how many elements it has, as the size {name!r}, or "
            f"give their shapes as {name + '[0]'!r}, {name + '[1]'!r}, .."
        )
    shared = _shared_sizes(element, [shapes.get(f"{name}[{i}]") for i in range(count)], size)
    items: list[Tensor] = []
    parts: list[Bundle] = []
    for i in range(count):
        each = _own_sizes(element, f"{name}_{i}", shared)
        item, part = bundled_input(f"{name}[{i}]", each, read, size, shapes, None)
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
    if count is None:
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
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "DictVectorizer":
        words = [w.decode() for w in attributes.get("string_vocabulary", ())]
        return (*words, *attributes.get("int64_vocabulary", ()))
    if node.op_type == "CastMap" and attributes.get("map_form") == b"SPARSE":
        return tuple(range(int(attributes.get("max_map", 1))))
    return None


def bundled_output(name: str, item: Item) -> tuple[Bundle, list[tuple[str, Tensor]]]:
    """How an output is made up, and the tensors that it is made of by their names."""
    match item:
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
