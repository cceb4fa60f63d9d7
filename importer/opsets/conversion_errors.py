"""What to tell of a model whose opset cannot be brought to the newest: operators, opsets, nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, version_converter
from onnx.defs import SchemaError, get_all_schemas_with_history, get_schema

from rutc.errors import UserError
from rutc.importer.opsets.first_opsets import is_early
from rutc.importer.opsets.isolated import EndedError, isolated
from rutc.importer.opsets.order import title
from rutc.importer.reading.proto import subgraphs

SHOWN = 3


def check_defined(model: ModelProto, version: int) -> None:
    """Raises UserError naming every operator that the model's opset does not define."""
    missing: dict[str, list[NodeProto]] = {}
    for node in _own_nodes(model):
        if not _is_defined(node.op_type, version) and not is_early(node.op_type, version):
            missing.setdefault(node.op_type, []).append(node)
    if missing:
        lines = [
            f"  {op} ({len(nodes)}{_first_opset(op)}): {_titles(nodes)}"
            for op, nodes in sorted(missing.items())
        ]
        raise UserError(f"opset {version}, the model's, has no operator\n" + "\n".join(lines))


def refusal(
    model: ModelProto, version: int, target: int, changed: Sequence[str], error: Exception
) -> UserError:
    """The error for a model that the conversion does not take.

    It names the operators that the conversion does not take alone, with its reasons, or, where it
    takes each of them, all that changed; or the node at which it ends its process.
    """
    if isinstance(error, EndedError):
        node = _ending(model, target)
        return UserError(
            f"the model's opset {version} cannot be brought to opset {target}: "
            f"{node.op_type} (node {title(node)!r}) ends the conversion ({error}), as operands of "
            "negative extents do: check the shapes of what it reads, or export the model with a "
            "newer opset"
        )
    reasons = _reasons(model, target, changed)
    nodes = {op: [n for n in _own_nodes(model) if n.op_type == op] for op in reasons or changed}
    lines = [
        f"  {op} ({len(nodes[op])}): {_titles(nodes[op])}" + (f": {reasons[op]}" if reasons else "")
        for op in sorted(nodes)
    ]
    cause = "for" if reasons else f"({reason_of(error)}); these operators changed since"
    listed = "\n".join(lines)
    return UserError(
        f"the model's opset {version} cannot be brought to opset {target} {cause}\n{listed}\n"
        "export the model with a newer opset"
    )


def _reasons(model: ModelProto, target: int, changed: Sequence[str]) -> Mapping[str, str]:
    """Why nodes of some operators cannot be converted, each alone."""
    infos = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    types = {i.name: i for i in infos}
    found: dict[str, str] = {}
    for node in _own_nodes(model):
        if node.op_type in changed and node.op_type not in found:
            try:
                isolated(version_converter.convert_version, _alone(model, node, types), target)
            except Exception as error:
                found[node.op_type] = reason_of(error)
    return found


def _ending(model: ModelProto, target: int) -> NodeProto:
    """The first node with which the conversion of the nodes up to it ends its process."""
    nodes = model.graph.node
    fine, ended = 0, len(nodes)
    while ended - fine > 1:
        count = (fine + ended) // 2
        part = ModelProto()
        part.CopyFrom(model)
        del part.graph.node[count:], part.graph.output[:]
        try:
            isolated(version_converter.convert_version, part, target)
            fine = count
        except EndedError:
            ended = count
        except Exception:
            fine = count
    return nodes[ended - 1]


def _alone(model: ModelProto, node: NodeProto, types: Mapping[str, ValueInfoProto]) -> ModelProto:
    """A model of one node."""
    inputs = [types.get(i, ValueInfoProto(name=i)) for i in dict.fromkeys(node.input) if i]
    outputs = [ValueInfoProto(name=o) for o in node.output if o]
    graph = GraphProto(name="alone", node=[node], input=inputs, output=outputs)
    graph.initializer.extend(t for t in model.graph.initializer if t.name in node.input)
    return helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4)
    )


def _own_nodes(model: ModelProto) -> list[NodeProto]:
    return [node for graph in subgraphs(model.graph) for node in graph.node if not node.domain]


def _is_defined(operator: str, version: int) -> bool:
    """Whether an opset has an operator, if only as one that is deprecated."""
    try:
        get_schema(operator, version)
    except SchemaError:
        return False
    return True


def _first_opset(operator: str) -> str:
    """Since when there is an operator, if there is."""
    known = [
        s.since_version
        for s in get_all_schemas_with_history()
        if s.domain == "" and s.name == operator
    ]
    return f", of opset {min(known)} and newer" if known else ""


def _titles(nodes: Sequence[NodeProto]) -> str:
    shown = ", ".join(repr(title(n)) for n in nodes[:SHOWN])
    return shown + (", ..." if len(nodes) > SHOWN else "")


def reason_of(error: Exception) -> str:
    """The first line of what the onnx package says, without the place in its sources."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = re.sub(r"^.*Assertion `.*?` failed: ", "", lines[0])
    return re.sub(r"^\[\w+\] ", "", text)[:200]
