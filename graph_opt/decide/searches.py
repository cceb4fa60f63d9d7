"""Searches of strings among the model's own as tables, once strings are numbers.

    %at{n} = max{k} select(%x[n] == %keys[k], k, -1)    with constant strings %keys
 -> %at{n} = %at.table[min(%x.text[n], own)]            own: the number of the model's strings

A reduction that sees a string only by comparing it with strings of the model has one result for
each of these and one for all others. The model's strings have the lowest numbers, so that the
results are a table with a place for each number and one for those beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rutc.graph_opt.decide.names import fresh
from rutc.tensor_ir import (
    Apply,
    Const,
    Data,
    DType,
    Expr,
    Graph,
    Index,
    Lit,
    Local,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.expr import children, index_names, reads, transform, walk
from rutc.tensor_ir.interpreter.interpret import interpret_values

MOST_POINTS = 1 << 26
"""Of the table's reduction, which is computed while compiling."""
_PLACE = Local("number", DType.I64)


def searched(n: Nest, constants: Mapping[str, Const]) -> Read | None:
    """The string that a reduction compares with constants, where it depends on nothing else."""
    found = dict.fromkeys(
        r
        for e in n.body
        for r in reads(e)
        if r.dtype is DType.STRING and r.value not in constants and r.fill is None
    )
    if (
        n.reducer is None
        or not n.bound
        or len(found) != 1
        or any(v.dtype.is_opaque for v in n.outs)
    ):
        return None
    (text,) = found
    if set(n.bound) & index_names(text):
        return None
    for e in n.body:
        for x in walk(e):
            compares = isinstance(x, Apply) and x.op in ("eq", "ne")
            if text in children(x) and not compares:
                return None
        rest = _without(e, text)
        if index_names(rest) - set(n.bound) or any(r.value not in constants for r in reads(rest)):
            return None
    return text


def _without(e: Expr, text: Read) -> Expr:
    return transform(e, lambda x: _PLACE if x == text else x)


class Searches:
    """Replaces reductions of a graph of numbers that `searched` has found.

    `own` is the number of the model's strings, which come first.
    """

    def __init__(self, graph: Graph, own: int) -> None:
        self.graph = graph
        self.own = own
        self.extents = dict(graph.extents)
        self.symbols = {name for name, _ in graph.symbols}
        self.taken = {*graph.values, *self.extents, *self.symbols}
        self.constants = {n.out.name: n for n in graph.nodes if isinstance(n, Const)}

    def replaced(self, found: Mapping[str, Read]) -> Graph:
        """The graph with tables for the nests whose first outputs and strings are given."""
        nodes: list[Node] = []
        for n in self.graph.nodes:
            text = found.get(n.out.name) if isinstance(n, Nest) else None
            nodes += [n] if text is None or not isinstance(n, Nest) else self.looked_up(n, text)
        return replace(self.graph, nodes=tuple(nodes), dims=tuple(self.extents.items()))

    def looked_up(self, n: Nest, text: Read) -> list[Node]:
        """Tables of the nest's results by number, and nests that read them; or the nest itself."""
        points = self.own + 1
        for d in n.bound:
            extent = self.extents[d]
            if not extent.is_const:
                return [n]
            points *= extent.const
        rests = [_without(e, text) for e in n.body]
        sources = {r.value: self.constants.get(r.value) for e in rests for r in reads(e)}
        consts = [c for c in sources.values() if c is not None]
        if points > MOST_POINTS or len(consts) < len(sources):
            return [n]
        dim = fresh("number", self.taken)
        self.extents[dim] = Index.of(self.own + 1)
        number = Value(fresh("numbers", self.taken), DType.I64, (dim,))
        every = Const(number, (dim,), Data(np.arange(self.own + 1)))
        at = Read(number.name, ((dim, Index.of(dim)),), DType.I64)
        body = tuple(transform(e, lambda x: at if x == _PLACE else x) for e in rests)
        outs = tuple(
            Value(fresh(f"{v.name}.table", self.taken), v.dtype, number.dims) for v in n.outs
        )
        dims = dict.fromkeys((dim, *n.bound, *(d for c in consts for d in c.axes)))
        values = interpret_values(
            Graph(
                name="table",
                dims=tuple((d, self.extents[d]) for d in dims),
                nodes=(every, *consts, Nest(outs, n.bound, n.reducer, body)),
                outputs=(),
            ),
            {},
        )
        made: list[Node] = []
        place = apply("min", text, Lit(self.own, DType.I64))
        for table, out in zip(outs, n.outs, strict=True):
            made.append(Const(table, (dim,), Data(values[table.name]), n.origin))
            made.append(
                Nest((out,), (), None, (Read(table.name, ((dim, place),), out.dtype),), n.origin)
            )
        return made
