"""Nodes in an order in which each comes after those whose results it reads.

The standard asks for such an order, but models without one exist, and ONNX Runtime sorts them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from rutc.errors import UserError
from rutc.importer.reading.proto import graphs_of

TRAINING = "ai.onnx.preview.training"


def sort_nodes(model: ModelProto) -> None:
    """Sorts the nodes of all graphs and functions of a model; those that are in order stay so.

    Raises:
        UserError: Some nodes read each other's results in a circle.
    """
    for function in model.functions:
        _sort(function, set(function.input))
    _sort(model.graph, _given(model.graph))


def names_read(node: NodeProto) -> Iterator[str]:
    """Yields the values that a node reads, with those that its bodies take from around them.

    A Gradient reads what it differentiates, which an attribute names.
    """
    yield from filter(None, node.input)
    if (node.domain, node.op_type) == (TRAINING, "Gradient"):
        yield from (a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "y")
    for graph in (g for a in node.attribute for g in graphs_of(a)):
        own = _given(graph) | {o for inner in graph.node for o in inner.output}
        read = [name for inner in graph.node for name in names_read(inner)]
        yield from (n for n in (*read, *(o.name for o in graph.output)) if n not in own)


def title(node: NodeProto) -> str:
    """What a node is called: its name, else its first output's."""
    return node.name or next((o for o in node.output if o), node.op_type)


def _given(graph: GraphProto) -> set[str]:
    """The values that a graph has before its nodes."""
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    return names | {s.values.name for s in graph.sparse_initializer}


def _sort(part: GraphProto | FunctionProto, given: set[str]) -> None:
    for node in part.node:
        for a in node.attribute:
            for graph in graphs_of(a):
                _sort(graph, _given(graph))
    numbered = [*enumerate(part.node)]
    makers = {o: k for k, node in reversed(numbered) for o in node.output if o and o not in given}
    before = [sorted({makers[n] for n in names_read(node) if n in makers}) for node in part.node]
    if all(made < k for k, needed in enumerate(before) for made in needed):
        return
    places = {k: place for place, k in enumerate(_order(before, part.node))}
    part.node.sort(
        key=lambda node: min((places[makers[o]] for o in node.output if o in makers), default=-1)
    )


def _order(before: Sequence[Sequence[int]], nodes: Sequence[NodeProto]) -> list[int]:
    """The nodes' numbers, each after those in `before`; the least that may come next comes next."""
    after: list[list[int]] = [[] for _ in before]
    for k, needed in enumerate(before):
        for made in needed:
            after[made].append(k)
    left = [len(needed) for needed in before]
    ready = [k for k, count in enumerate(left) if count == 0]
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for reader in after[k]:
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(before):
        circle = _circle(before, set(range(len(before))) - set(order))
        names = " -> ".join(repr(title(nodes[k])) for k in [*circle, circle[0]])
        raise UserError(f"the nodes read each other's results in a circle: {names}")
    return order


def _circle(before: Sequence[Sequence[int]], among: set[int]) -> list[int]:
    """Numbers of nodes, each of which the next one reads, and the first the last one."""
    path = [min(among)]
    while path.count(path[-1]) == 1:
        path.append(next(k for k in before[path[-1]] if k in among))
    return path[:0:-1][: len(path) - 1 - path.index(path[-1])]
