"""Scatters write into the memory of their base: who else needs the base gets a copy made first.

A scatter changes a few elements of a large value, so its output shares memory with its base. That
needs a base that nothing reads afterwards, made by a kernel of the same node list, and one order of
dims for both; otherwise the scatter gets a copy of its base, which is such a value.

What has to lie in memory (an output, an operand of a call) and only views the result of a scatter
or of a call lies in that one's memory, if nothing reads the result afterwards: it is no work.

    %v : f32{i} = scatter ..; %y : f32{n,c} = %v[i=8*n + c]; output "y" [n, c] = %y
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.exprs import is_plain, node_reads
from rutc.tensor_ir.expr import Read, point
from rutc.tensor_ir.graph import (
    Body,
    Call,
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
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index

Orders = Mapping[str, tuple[str, ...]]


@record
class Shared:
    """The graph with copies of bases; whose memory values lie in; the fixed orders of all.

    `views` are the values that are no work, for their elements lie there already.
    """

    graph: Graph
    homes: Mapping[str, str]
    fixed: dict[str, tuple[str, ...]]
    views: frozenset[str] = frozenset()


def share_bases(graph: Graph, fixed: Orders) -> Shared:
    """The graph in which every scatter may write into its base.

    %z = ..; %v = scatter %z ..; %y = %z .. %v   ->   %z = ..; %v.base = %z; %v = scatter %v.base ..
    """
    sharing = _Sharing(graph, dict(fixed))
    nodes = sharing.nodes(graph.nodes, {o.value for o in graph.outputs})
    for name, home in sharing.homes.items():
        if home in sharing.orders and name not in sharing.views:
            sharing.orders[name] = sharing.orders[home]
    views = frozenset(sharing.views)
    return Shared(replace(graph, nodes=nodes), sharing.homes, sharing.orders, views)


class _Sharing:
    def __init__(self, graph: Graph, orders: dict[str, tuple[str, ...]]) -> None:
        self.orders = orders
        self.taken = set(graph.values)
        self.extents = graph.extents
        self.ranges = graph.ranges
        self.homes: dict[str, str] = {}
        self.views: set[str] = set()

    def nodes(self, nodes: tuple[Node, ...], needed: set[str]) -> tuple[Node, ...]:
        """The list with copies; `needed` are values that something reads after its end."""
        last = dict.fromkeys(needed, len(nodes))
        for position, n in reversed(list(enumerate(nodes))):
            for v in used_deep(n):
                last.setdefault(v, position)
        made: set[str] = set()
        whole: dict[str, Value] = {}
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
                case Nest(reducer=None, outs=(out,), body=(Read() as r,)):
                    if r.value in whole and last[r.value] <= position:
                        self.view(out, r, whole[r.value])
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
            if isinstance(n, Call | Scatter):
                whole |= {v.name: v for v in outs(n)}
        return tuple(result)

    def branch(self, b: Body) -> Body:
        return replace(b, nodes=self.nodes(b.nodes, set(b.results)))

    def agree(self, n: Scatter) -> bool:
        """Whether the base's memory and the output may lie in one order of the same dims."""
        if n.base in self.views:
            return False
        home = self.homes.get(n.base, n.base)
        mine, base = self.orders.get(n.out.name), self.orders.get(home)
        return mine is None or base is None or mine == base

    def share(self, n: Scatter) -> None:
        home = self.homes.get(n.base, n.base)
        self.homes[n.out.name] = home
        if n.out.name in self.orders:
            self.orders.setdefault(home, self.orders[n.out.name])

    def view(self, out: Value, r: Read, source: Value) -> None:
        """Let a value that only views another one lie in its memory, if it lies so anyway."""
        home = self.homes.get(source.name, source.name)
        order = self.orders.get(home, source.dims if len(source.dims) == 1 else None)
        mine = self.orders.get(out.name)
        if order is None or mine is None or out.dtype is not source.dtype or not is_plain(r):
            return
        coords = {d: Index.of(c) for d, c in r.coords if isinstance(c, Index)}
        place, elements = self.place(order, coords)
        own, as_many = self.place(mine, {d: Index.of(d) for d in mine})
        differ = (place - own, elements - as_many)
        if any(x.simplify(self.ranges) != ZERO for x in differ):
            return
        self.homes[out.name] = home
        self.views.add(out.name)
        # No row is made longer than it is.
        self.orders[home] = order

    def place(self, order: tuple[str, ...], coords: Mapping[str, Index]) -> tuple[Index, Index]:
        """(which element of a value in this order lies at the coordinates, how many it has)."""
        place, stride = ZERO, ONE
        for d in reversed(order):
            if self.extents[d] != ONE:
                place, stride = place + coords[d] * stride, stride * self.extents[d]
        return place, stride

    def copy(self, n: Scatter) -> Nest:
        base = Read(n.base, point(n.out.dims), n.out.dtype)
        out = Value(fresh(f"{n.out.name}.base", self.taken), n.out.dtype, n.out.dims)
        return Nest((out,), (), None, (base,), n.origin)


def _reads_base(n: Scatter) -> bool:
    """Whether the scattered values or their places depend on elements of the base."""
    return any(r.value == n.base for r in node_reads(n))
