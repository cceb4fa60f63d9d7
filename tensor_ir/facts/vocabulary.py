"""Texts of which a graph knows something: the strings that it compares those of its inputs with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit, walk
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.nodes import (
    Call,
    Const,
    Input,
    Nest,
    Node,
    Scatter,
    outs,
    used_deep,
    walk_nodes,
)

MOST_TEXTS = 64
"""For an input, spread evenly over what it is compared with."""
LONGEST_RUN = 4
"""The words of a text, at most."""
_BLANK = " "


def known_texts(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Returns texts that say something to the graph, by the names of its inputs of strings.

    %s == %keys[k]              ->  s: strings of %keys
    call string_split(%s)       ->  s: runs of such strings with the delimiter between them

    Strings that are made of an input's are compared in its place. Runs are of strings that follow
    each other in a constant, as the words of an n-gram do.
    """
    if all(n.out.dtype is not DType.STRING for n in graph.inputs):
        return {}
    flow = _Flow()
    for n in graph.nodes:
        flow.add(n)
    found: dict[str, tuple[str, ...]] = {}
    for n in graph.inputs:
        words = tuple(flow.words.get(n.out.name, ()))
        if words:
            texts = _spread(words, flow.delimiters.get(n.out.name))
            found[n.name] = tuple(dict.fromkeys(texts))
    return found


class _Flow:
    """What is known of strings behind the nodes so far.

    Attributes:
        sources: The inputs that the strings of a value are made of, by the names of both.
        constants: The strings of a value that is made of no input.
        words: What the strings of an input meet, each once and in order.
        delimiters: Between the pieces that an input's strings are split into.
    """

    def __init__(self) -> None:
        self.sources: dict[str, frozenset[str]] = {}
        self.constants: dict[str, tuple[str, ...]] = {}
        self.words: dict[str, dict[str, None]] = {}
        self.delimiters: dict[str, str] = {}

    def add(self, n: Node) -> None:
        """Takes in a node, with all that its bodies hold."""
        read = list(dict.fromkeys(used_deep(n)))
        sources = frozenset[str]().union(*(self.sources.get(name, ()) for name in read))
        if isinstance(n, Input) and n.out.dtype is DType.STRING:
            sources = frozenset([n.out.name])
        own = dict.fromkeys(s for name in read for s in self.constants.get(name, ()))
        for inner in walk_nodes((n,)):
            own.update(dict.fromkeys(_texts_in(inner)))
            if isinstance(inner, Call) and inner.routine == "string_split":
                delimiter = str(dict(inner.attributes).get("delimiter", "")) or _BLANK
                self.delimiters.update(dict.fromkeys(sources, delimiter))
        for source in sources:
            self.words.setdefault(source, {}).update(own)
        for v in outs(n):
            if v.dtype.is_opaque and sources:
                self.sources[v.name] = sources
            elif v.dtype.is_opaque:
                self.constants[v.name] = tuple(own)


def _texts_in(n: Node) -> Iterator[str]:
    """The strings that stand in a node itself, without empty ones."""
    if isinstance(n, Const) and n.out.dtype is DType.STRING:
        yield from filter(None, map(str, n.data.array.reshape(-1).tolist()))
    body = n.body if isinstance(n, Nest) else (n.body,) if isinstance(n, Scatter) else ()
    for e in body:
        for x in walk(e):
            if isinstance(x, Lit) and x.dtype is DType.STRING and x.value:
                yield str(x.value)


def _spread(words: tuple[str, ...], delimiter: str | None) -> Iterator[str]:
    """Some of the words; with a delimiter runs of one to `LONGEST_RUN`, as in a ring."""
    if delimiter is None:
        count = min(len(words), MOST_TEXTS)
        yield from (words[k * len(words) // count] for k in range(count))
        return
    for k in range(MOST_TEXTS):
        first = k * len(words) // MOST_TEXTS
        places = range(first, first + 1 + k % LONGEST_RUN)
        yield delimiter.join(words[place % len(words)] for place in places)
