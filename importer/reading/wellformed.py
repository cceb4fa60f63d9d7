"""What every model must be before any of it is read: names that are text and say one thing each.

Each check names the place, as a user finds it: the node, the attribute, the graph around it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)
from onnx.defs import SchemaError, get_schema

from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.opsets.convert import OPSET
from rutc.importer.opsets.order import title
from rutc.importer.opsets.scopes import name_outputs
from rutc.importer.reading.proto import (
    MAX_ELEMENTS,
    MAX_RANK,
    STANDARD,
    graphs_of,
    shape_of,
    type_name,
)
from rutc.importer.reading.wire import INSIDE, PLACED

_NEWEST = (1 << 31) - 1
"""The largest version of a domain that is not ONNX's own."""
_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
"""The field of an attribute that holds its value, by its type."""
_VALUES = frozenset(_FIELDS.values())


def check_model(model: ModelProto) -> None:
    """Raises UserError where a model breaks a rule that all models keep.

    Of the main graph's initializers of one name, type and shape only the last one stays, which
    ONNX Runtime takes. Outputs that are listed again get names of their own.
    """
    try:
        functions = {(f.domain, f.name, f.overload) for f in model.functions}
        used = {domain for domain, _, _ in _called(model.graph.node) - functions}
        versions = _versions(model.opset_import, "the model", used)
        _check_functions(model)
        _keep_last_initializers(model.graph)
        _Check(versions).graph(model.graph, "the graph")
        if not model.graph.output:
            raise UserError("the graph has no outputs, so that nothing is to be computed")
        name_outputs(model.graph)
    except TypeError as e:
        # What is no UTF-8 is read as bytes, which no text can be joined with.
        found = next(_bad_texts(model, "model"), None)
        if found is None:
            raise
        place, text = found
        raise UserError(
            f"{place} is no UTF-8 text ({text[:40]!r}); export the model again with other names"
        ) from e


def _keep_last_initializers(graph: GraphProto) -> None:
    last = {t.name: t for t in graph.initializer}
    if len(last) == len(graph.initializer):
        return
    for t in graph.initializer:
        for what, one, other in (
            ("types", type_name(t.data_type), type_name(last[t.name].data_type)),
            ("shapes", [*t.dims], [*last[t.name].dims]),
        ):
            if one != other:
                raise UserError(
                    f"{t.name!r} is an initializer of the graph twice, of the {what} {one} and "
                    f"{other}; each needs a name of its own"
                )
    kept = [*last.values()]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _versions(
    imports: Iterable[OperatorSetIdProto], where: str, used: Container[str] | None = None
) -> dict[str, int]:
    """The versions of the operators that a model or function uses, by their domain.

    Versions below 1 are taken of domains that are not in `used`, if that is given, as ONNX Runtime
    does.
    """
    versions: dict[str, int] = {}
    for o in imports:
        domain = "" + o.domain
        name = domain or STANDARD
        if versions.setdefault(domain, o.version) != o.version:
            raise UserError(
                f"{where} says two versions of the operators of {name!r}, {versions[domain]} and "
                f"{o.version}; export the model again, or remove one of them"
            )
        first = 1 if not domain or used is None or o.domain in used else -_NEWEST
        if not first <= o.version <= (_NEWEST if domain else OPSET):
            advice = f"there are versions 1 to {_NEWEST}: export the model again"
            if not domain:
                advice = f"rutc knows opsets 1 to {OPSET}: export the model for another opset"
            raise UserError(
                f"{where} uses version {o.version} of the operators of {name!r}; {advice}"
            )
    return versions


def _check_functions(model: ModelProto) -> None:
    bodies: dict[tuple[str, str, str], Sequence[NodeProto]] = {}
    for f in model.functions:
        key = f.domain, f.name, f.overload
        if key in bodies:
            raise UserError(f"the model has two functions {f.name!r} of domain {f.domain!r}")
        bodies[key] = f.node
        where = f"the function {f.name!r}"
        _check_unique(f.input, f"an input of {where}")
        _check_unique(f.output, f"an output of {where}")
        versions = _versions(f.opset_import, where)
        check = _Check(versions, in_function=True)
        for a in f.attribute_proto:
            check.attribute(a, where)
        check.nodes(f.node, where)
    calls = {key: _called(nodes) & bodies.keys() for key, nodes in bodies.items()}
    done: set[tuple[str, str, str]] = set()
    while len(done) < len(calls):
        ready = {key for key, called in calls.items() if key not in done and called <= done}
        if not ready:
            names = sorted(name for _, name, _ in calls.keys() - done)
            raise UserError(
                f"the model's functions call each other without end: {', '.join(names)}; "
                "ONNX has no recursion"
            )
        done |= ready


def _called(nodes: Iterable[NodeProto]) -> set[tuple[str, str, str]]:
    """The operators of nodes and of the graphs in them."""
    found: set[tuple[str, str, str]] = set()
    for node in nodes:
        found.add((node.domain, node.op_type, node.overload))
        for a in node.attribute:
            for graph in graphs_of(a):
                found |= _called(graph.node)
    return found


@dataclass(frozen=True)
class _Check:
    """The checks of nodes and graphs, in a model or in one of its functions.

    `versions` are those of the operators by their domain.
    """

    versions: Mapping[str, int]
    in_function: bool = False

    def graph(self, graph: GraphProto, where: str) -> None:
        """A graph: each name is that of one value."""
        _check_unique((i.name for i in graph.input), f"an input of {where}")
        _check_named((o.name for o in graph.output), f"an output of {where}")
        weights = [t.name for t in graph.initializer]
        weights += [t.values.name for t in graph.sparse_initializer]
        _check_unique(weights, f"an initializer of {where}")
        sparse = (t for s in graph.sparse_initializer for t in (s.values, s.indices))
        for t in (*graph.initializer, *sparse):
            _check_tensor(t, f"tensor {t.name!r}")
        for info in (*graph.input, *graph.output):
            _check_type(info)
        self.nodes(graph.node, where)
        given = {*weights, *(i.name for i in graph.input)}
        for node in graph.node:
            for o in node.output:
                if o in given:
                    raise UserError(
                        f"node {title(node)!r} computes {o!r}, which is an input or an "
                        f"initializer of {where}; each value needs a name of its own"
                    )

    def nodes(self, nodes: Iterable[NodeProto], where: str) -> None:
        """Nodes: their operands, and attributes that hold what they say."""
        for node in nodes:
            _ = "".join((node.name, node.op_type, node.domain, node.overload))
            _ = "".join((*node.input, *node.output))
            place = f"{node.op_type} (node {title(node)!r})"
            if not node.op_type:
                raise UserError(f"node {title(node)!r} of {where} says no operator (op_type)")
            seen: set[str] = set()
            for a in node.attribute:
                if not "" + a.name:
                    raise UserError(f"{place} has an attribute without a name")
                if a.name in seen:
                    raise UserError(f"{place} has the attribute {a.name!r} twice; remove one")
                seen.add(a.name)
                self.attribute(a, place)
                for g in graphs_of(a):
                    self.graph(g, f"the graph {a.name!r} of node {title(node)!r}")
            version = self.versions.get(node.domain)
            if version is not None:
                _check_demands(node, place, version)

    def attribute(self, a: AttributeProto, place: str) -> None:
        """An attribute: it holds a value of the type that it says, and no other."""
        if a.ref_attr_name:
            if not self.in_function:
                raise UserError(
                    f"{place}: the attribute {a.name!r} is that of a function, "
                    f"{a.ref_attr_name!r}, but the node is in none; give it a value"
                )
            return
        sparse = (*((a.sparse_tensor,) if a.HasField("sparse_tensor") else ()), *a.sparse_tensors)
        inner = (t for s in sparse for t in (s.values, s.indices))
        for t in (*((a.t,) if a.HasField("t") else ()), *a.tensors, *inner):
            _check_tensor(t, f"{place}: the tensor {a.name!r}")
        held = [field.name for field, _ in a.ListFields() if field.name in _VALUES]
        if a.type not in _FIELDS or any(name != _FIELDS[a.type] for name in held):
            kind = AttributeProto.AttributeType.Name(a.type)
            raise UserError(
                f"{place}: the attribute {a.name!r} says that it is of type {kind}, and holds "
                f"{' and '.join(held) or 'nothing'}; export the model again"
            )


def _check_named(names: Iterable[str], what: str) -> None:
    for name in names:
        if not "" + name:
            raise UserError(f"{what} has no name; export the model again, with names")


def _check_unique(names: Iterable[str], what: str) -> None:
    names = list(names)
    _check_named(names, what)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{name!r} is {what} twice; each needs a name of its own")
        seen.add(name)


def _check_tensor(t: TensorProto, what: str) -> None:
    shape_of(t.dims, what, MAX_ELEMENTS)
    fields = {e.key: e.value for e in t.external_data}
    if fields.get("location") == INSIDE and fields.keys() != PLACED:
        raise UserError(
            f"{what} says that its elements are in a file whose name is a NUL; export the model "
            "again"
        )


def _check_type(info: ValueInfoProto) -> None:
    kind = info.type
    while (outer := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, outer).elem_type
    dims = kind.tensor_type.shape.dim
    if len(dims) > MAX_RANK:
        raise UserError(
            f"{info.name!r} is declared with {len(dims)} axes; rutc takes at most {MAX_RANK}"
        )
    _ = "".join(d.dim_param for d in dims)


@record
class Demands:
    """What nodes of an operator have: least and most operands and results, and attributes.

    `attributes` has the type of each by its name.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, str]
    required: tuple[str, ...]


def _check_demands(node: NodeProto, place: str, version: int) -> None:
    """A node of a known operator has as many operands and such attributes as the operator has.

    The conversion to newer opsets reads them without a look at what they are.
    """
    demands = _demands(node.op_type, version, node.domain)
    if demands is None:
        return
    for what, count, (least, most) in (
        ("inputs", len(node.input), demands.inputs),
        ("outputs", len(node.output), demands.outputs),
    ):
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise UserError(f"{place} has {count} {what}; the operator has {wanted}")
    given = {a.name: a.type for a in node.attribute}
    for name in demands.required:
        if name not in given:
            raise UserError(f"{place} lacks the attribute {name!r}, which it needs")
    for name, number in given.items():
        kind = AttributeProto.AttributeType.Name(number)
        wanted = demands.attributes.get(name, kind)
        if kind != wanted:
            raise UserError(
                f"{place}: the attribute {name!r} must be of type {wanted}, and is of type {kind}"
            )


@lru_cache
def _demands(op: str, version: int, domain: str) -> Demands | None:
    try:
        schema = get_schema(op, version, domain)
    except SchemaError:
        return None
    known = schema.attributes
    return Demands(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: str(a.type).removeprefix("AttrType.") for name, a in known.items()},
        tuple(name for name, a in known.items() if a.required),
    )


def _bad_texts(message: Message, place: str) -> Iterator[tuple[str, bytes]]:
    """The names of a message, and of all in it, that are no text."""
    for field, value in message.ListFields():
        items = list(value) if field.is_repeated else [value]
        for k, item in enumerate(items):
            at = f"{place}.{field.name}" + (f"[{k}]" if field.is_repeated else "")
            if field.message_type is not None:
                yield from _bad_texts(item, at)
            elif field.type == field.TYPE_STRING and isinstance(item, bytes):
                yield at, item
