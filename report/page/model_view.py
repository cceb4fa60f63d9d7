"""What is shown of an ONNX model: its nodes as they were exported, and what they read."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.contents import Contents, NodeContents
from rutc.report.page import labels
from rutc.report.page.artifact_view import ports_on_page
from rutc.report.page.charts import model_parts, shares
from rutc.report.page.grouping import parts_graph
from rutc.report.page.values import detail
from rutc.report.page.view import LETTERS, Cell, Fact, Graph, Node, Row, Sheet, Table, View, drawn
from rutc.runtime.ports import NodeArg


def model_view(
    name: str,
    held: Contents,
    inputs: Sequence[NodeArg],
    outputs: Sequence[NodeArg],
    notes: Sequence[str],
) -> View:
    """Returns what is shown of a model with these inputs and outputs."""
    facts = (
        Fact("nodes", f"{sum(held.operators.values())}, bodies of others included"),
        Fact("opsets", ", ".join(f"{domain} {version}" for domain, version in held.opsets.items())),
        Fact("weights", f"{held.weights}, {labels.size(held.weight_bytes)}"),
    )
    ports = ports_on_page(inputs, outputs)
    sheets = (_Nodes(held).sheet(),)
    return View(name, "an ONNX model", facts, tuple(notes), ports, sheets)


class _Nodes:
    """What is shown of the nodes of a model's graph."""

    def __init__(self, held: Contents) -> None:
        self.nodes = held.nodes
        self.held = held
        self.outputs = held.outputs
        self.weights = {t.name: n for n, t in enumerate(held.tensors)}
        made = (o for node in held.nodes for o in node.outputs if o)
        names = dict.fromkeys((*held.inputs, *made))
        self.values = {name: n for n, name in enumerate(names)}

    def sheet(self) -> Sheet:
        """All of it."""
        kinds = shares((node.op, 1.0) for node in self.nodes)
        return Sheet(
            "",
            {part.name: n for n, part in enumerate(kinds)},
            drawn(*self._graph()),
            ("kind",),
            kinds,
            model_parts((node.name or node.op, 1.0) for node in self.nodes),
            (self._table(), self._values(), self._weights()),
            self._details(),
            "nodes",
            self._groups(),
        )

    def _groups(self) -> Graph | None:
        """The graph of the parts of the model."""
        makers = {name: n for n, node in enumerate(self.nodes) for name in node.outputs}
        edges = [
            (makers[name], n)
            for n, node in enumerate(self.nodes)
            for name in node.inputs
            if name in makers
        ]
        boxes = [self._node(n, node) for n, node in enumerate(self.nodes)]
        paths = [node.name or node.op for node in self.nodes]
        return parts_graph(boxes, paths, [1.0] * len(paths), edges)

    def _node(self, number: int, node: NodeContents) -> Node:
        title = labels.title((node.name,) if node.name else (), node.op, LETTERS)
        tip = "\n".join([_title(node), node.op, *node.attributes])
        return Node("steps", number, node.op, title, node.op, tip)

    def _graph(self) -> tuple[list[Node], list[tuple[int, int]]]:
        """The boxes of inputs, nodes and outputs, and who reads what whom made."""
        last: dict[str, int] = {}
        boxes: list[Node] = []
        for name in dict.fromkeys(self.held.inputs):
            last[name] = len(boxes)
            boxes.append(_port(self.values[name], name, "input"))
        edges: list[tuple[int, int]] = []
        for n, node in enumerate(self.nodes):
            edges += [(last[v], len(boxes)) for v in node.inputs if v in last]
            last.update(dict.fromkeys(node.outputs, len(boxes)))
            boxes.append(self._node(n, node))
        for name in self.outputs:
            if name in last:
                edges.append((last[name], len(boxes)))
                boxes.append(_port(self.values.get(name), name, "output"))
        return boxes, edges

    def _table(self) -> Table:
        rows = (
            Row(
                n,
                (
                    Cell(str(n), n),
                    Cell(_title(node)),
                    Cell(node.op),
                    Cell(", ".join(filter(None, node.inputs))),
                    Cell(", ".join(filter(None, node.outputs))),
                ),
            )
            for n, node in enumerate(self.nodes)
        )
        return Table("Nodes", "steps", ("#", "node", "operator", "reads", "makes"), tuple(rows))

    def _values(self) -> Table:
        types = self.held.types
        rows = (
            Row(n, (Cell(str(n), n), Cell(name), Cell(types.get(name, ""))))
            for name, n in self.values.items()
        )
        return Table("Values", "values", ("#", "value", "type"), tuple(rows))

    def _weights(self) -> Table:
        rows = (
            Row(
                n,
                (
                    Cell(str(n), n),
                    Cell(t.name),
                    Cell(f"{t.dtype} {list(t.shape)}"),
                    Cell(labels.size(t.bytes), t.bytes),
                ),
            )
            for n, t in enumerate(self.held.tensors)
        )
        return Table("Weights", "weights", ("#", "weight", "type", "bytes"), tuple(rows))

    def _details(self) -> dict[str, object]:
        """What the panel shows."""
        readers: dict[str, list[int]] = {}
        makers: dict[str, list[int]] = {}
        for n, node in enumerate(self.nodes):
            for found, names in ((readers, node.inputs), (makers, node.outputs)):
                for name in dict.fromkeys(names):
                    found.setdefault(name, []).append(n)
        steps = [
            detail(
                _title(node),
                {"attributes": node.attributes},
                {
                    "reads": ("values", _numbers(self.values, node.inputs)),
                    "weights": ("weights", _numbers(self.weights, node.inputs)),
                    "makes": ("values", _numbers(self.values, node.outputs)),
                },
            )
            for node in self.nodes
        ]
        values = [
            detail(
                name,
                {},
                {
                    "made by": ("steps", makers.get(name, ())),
                    "read by": ("steps", readers.get(name, ())),
                },
            )
            for name in self.values
        ]
        weights = [
            detail(t.name, {}, {"read by": ("steps", readers.get(t.name, ()))})
            for t in self.held.tensors
        ]
        return {"steps": steps, "values": values, "weights": weights}


def _port(number: int | None, name: str, role: str) -> Node:
    return Node("values", number, role, labels.short(name, LETTERS), role, f"{role} {name}")


def _title(node: NodeContents) -> str:
    return node.name or next(filter(None, node.outputs), node.op)


def _numbers(known: dict[str, int], names: Sequence[str]) -> list[int]:
    return [known[name] for name in dict.fromkeys(names) if name in known]
