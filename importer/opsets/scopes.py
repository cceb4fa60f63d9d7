"""Names of values that occur once in a model, nested graphs included, and the model's own again.

ONNX allows a nested graph to call its values like those of another one. The conversion of opsets
makes values, of names that it takes from others' or that are numbers, and looks no further than at
the graph that it is in.

    y = If(c, {x = Exp(a)}, {x = Abs(a)})  ->  y%2 = If(c%1, {x%3 = Exp(a%0)}, {x%4 = Abs(a%0)})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count

from onnx import GraphProto, ModelProto, TensorProto, helper

from rutc.importer.opsets.order import title
from rutc.importer.reading.proto import graphs_of, subgraphs


def number_values(model: ModelProto) -> dict[str, str]:
    """Gives every value of a model's graphs a name of its own, and every node its title as name.

    Returns:
        The names that the values had, by those that they have now: these and a number.
    """
    had: dict[str, str] = {}
    _number(model.graph, {"": ""}, had, count())
    return had


def name_values(model: ModelProto, had: Mapping[str, str]) -> None:
    """Gives the values of `number_values` their names again, and others names that none has.

    The others keep the name that they have but for the numbers in it, and get underscores where
    need be.
    """
    taken = set(had.values())
    names = {"": "", **had}

    def name_of(name: str) -> str:
        if name not in names:
            new = re.sub(r"%\d+", "", name)
            while new in taken:
                new += "_"
            taken.add(new)
            names[name] = new
        return names[name]

    for graph in subgraphs(model.graph):
        _rename(graph, name_of)


def name_outputs(graph: GraphProto) -> bool:
    """Gives outputs that a graph, or one in it, lists again names of their own.

        (y, y) {y = Relu(x)}  ->  (y, y_2) {y = Relu(x), y_2 = Identity(y)}

    ONNX Runtime takes such models, but leaves such outputs of branches unwritten.

    Returns:
        Whether there are any.
    """
    graphs = list(subgraphs(graph))
    if all(len({o.name for o in g.output}) == len(g.output) for g in graphs):
        return False
    taken = {name for g in graphs for name in _names(g)}
    for g in graphs:
        seen: set[str] = set()
        for o in g.output:
            name = o.name
            if name in seen:
                o.name = next(n for n in (f"{name}_{k}" for k in count(2)) if n not in taken)
                taken.add(o.name)
                g.node.append(helper.make_node("Identity", [name], [o.name]))
            seen.add(name)
    return True


def _names(graph: GraphProto) -> Iterator[str]:
    """Yields the names of a graph's values, nested graphs left out."""
    yield from (info.name for info in (*graph.input, *graph.output))
    yield from (t.name for t in _tensors(graph))
    for node in graph.node:
        yield from node.output


def _number(
    graph: GraphProto, around: Mapping[str, str], had: dict[str, str], numbers: Iterator[int]
) -> None:
    """Numbers the values of a graph, and those of graphs in it.

    `around` has the numbered names of the values that it sees.
    """
    own = [i.name for i in graph.input] + [t.name for t in _tensors(graph)]
    own += [o for node in graph.node for o in node.output if o]
    # What is read and nothing computes is told of later; no made value may take its place.
    read = [o.name for o in graph.output] + [n for node in graph.node for n in node.input]
    new = {name: f"{name}%{next(numbers)}" for name in dict.fromkeys(own)}
    lost = dict.fromkeys(name for name in read if name not in new and name not in around)
    new |= {name: f"{name}%{next(numbers)}" for name in lost}
    had.update((made, name) for name, made in new.items())
    inside = {**around, **new}
    told = [info for info in graph.value_info if info.name in inside]
    del graph.value_info[:]
    graph.value_info.extend(told)
    for node in graph.node:
        node.name = title(node)
    _rename(graph, inside.__getitem__)
    for node in graph.node:
        for a in node.attribute:
            for inner in graphs_of(a):
                _number(inner, inside, had, numbers)


def _tensors(graph: GraphProto) -> list[TensorProto]:
    """The initializers of a graph, sparse ones as their values, which have their names."""
    return [*graph.initializer, *(s.values for s in graph.sparse_initializer)]


def _rename(graph: GraphProto, new: Callable[[str], str]) -> None:
    """Renames the values that a graph names, its nested graphs left out."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = new(info.name)
    for t in _tensors(graph):
        t.name = new(t.name)
    for node in graph.node:
        node.input[:] = [new(i) for i in node.input]
        node.output[:] = [new(o) for o in node.output]
