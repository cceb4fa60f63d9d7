"""Scatters write into the memory of their base: who else needs the base gets a copy made first.

A scatter changes a few elements of a large value, so its output shares memory with its base. That
needs a base that nothing reads afterwards, made by a kernel of the same node list, and one order of
dims for both; otherwise the scatter gets a copy of its base, which is such a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.exprs import node_reads
from rutc.tensor_ir.expr import Read, point
from rutc.tensor_ir.graph import (
    Body,
    Graph,
    If,
    Nest,
    Node,
    Scan,
    Scatter,
    Value,
    While,
    outs,
    used_deep,
)

Orders = Mapping[str, tuple[str, ...]]


@record
class Shared:
    """The graph with copies of bases; whose memory values lie in; the fixed orders of all."""

    graph: Graph
    homes: Mapping[str, str]
    fixed: dict[str, tuple[str, ...]]


def share_bases(graph: Graph, fixed: Orders) -> Shared:
    """The graph in which every scatter may write into its base.

    %z = ..; %v = scatter %z ..; %y = %z .. %v   ->   %z = ..; %v.base = %z; %v = scatter %v.base ..
    """
    sharing = _Sharing(graph, dict(fixed))
    nodes = sharing.nodes(graph.nodes, {o.value for o in graph.outputs})
    for name, home in sharing.homes.items():
        if home in sharing.orders:
            sharing.orders[name] = sharing.orders[home]
    return Shared(replace(graph, nodes=nodes), sharing.homes, sharing.orders)


class _Sharing:
    def __init__(self, graph: Graph, orders: dict[str, tuple[str, ...]]) -> None:
        self.orders = orders
        self.taken = set(graph.values)
        self.homes: dict[str, str] = {}

    def nodes(self, nodes: tuple[Node, ...], needed: set[str]) -> tuple[Node, ...]:
        """The list with copies; `needed` are values that something reads after its end."""
        last = dict.fromkeys(needed, len(nodes))
        for position, n in reversed(list(enumerate(nodes))):
            for v in used_deep(n):
                last.setdefault(v, position)
        made: set[str] = set()
        result: list[Node] = []
        for position, n in enumerate(nodes):
            match n:
                case Scatter():
                    free = n.base in made and last[n.base] <= position and not _reads_base(n)
                    if not free or not self.agree(n):
                        copy = self.copy(n)
                        result.append(copy)
                        n = replace(n, base=copy.out.name)
                    self.share(n)
                case Scan():
                    kept = {c.next for c in n.carries} | set(n.collected)
                    n = replace(n, body=self.nodes(n.body, kept))
                case While():
                    kept = {c.next for c in n.carries} | {n.cond}
                    n = replace(n, body=self.nodes(n.body, kept))
                case If():
                    n = replace(n, then=self.branch(n.then), orelse=self.branch(n.orelse))
            result.append(n)
            if isinstance(n, Nest | Scatter):
                made |= {v.name for v in outs(n)}
        return tuple(result)

    def branch(self, b: Body) -> Body:
        return replace(b, nodes=self.nodes(b.nodes, set(b.results)))

    def agree(self, n: Scatter) -> bool:
        """Whether the base's memory and the output may lie in one order."""
        home = self.homes.get(n.base, n.base)
        mine, base = self.orders.get(n.out.name), self.orders.get(home)
        return mine is None or base is None or mine == base

    def share(self, n: Scatter) -> None:
        home = self.homes.get(n.base, n.base)
        self.homes[n.out.name] = home
        if n.out.name in self.orders:
            self.orders.setdefault(home, self.orders[n.out.name])

    def copy(self, n: Scatter) -> Nest:
        base = Read(n.base, point(n.out.dims), n.out.dtype)
        out = Value(fresh(f"{n.out.name}.base", self.taken), n.out.dtype, n.out.dims)
        return Nest((out,), (), None, (base,), n.origin)


def _reads_base(n: Scatter) -> bool:
    """Whether the scattered values or their places depend on elements of the base."""
    return any(r.value == n.base for r in node_reads(n))
