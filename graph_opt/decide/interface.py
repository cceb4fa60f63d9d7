"""Copies where memory is not the plan's to arrange: the caller's outputs, and what the host copies.

Scans, whiles and ifs move whole values by copying bytes, so both sides of a copy must have one
order: that of the sorted dims, or one that loops are faster in (`loop_orders`). Carried values move
one after the other, so none may be the next state of another one. A call's operands and results lie
in the orders that the call gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.graph_opt.decide.layout import NONE, after
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.exprs import at_point
from rutc.tensor_ir import (
    Body,
    Call,
    Carry,
    Const,
    Graph,
    If,
    Input,
    Nest,
    Node,
    Output,
    Scan,
    Scatter,
    Value,
    While,
)
from rutc.tensor_ir.graph import Origin, defined, outs, walk_nodes


def with_interface_copies(graph: Graph, copied: Mapping[str, tuple[str, ...]] = NONE) -> Graph:
    """The graph with a copy of every value that cannot lie where it has to.

    `copied` are the orders of what loops carry and collect, where those are no sorted dims.

    output a = %x, output b = %x            ->  %x.out = %x; output a = %x, output b = %x.out
    output a = %input                       ->  %input.out = %input; output a = %input.out
    scan carry(%p = %i -> %q, %q = ..)      ->  scan carry(%p = %i -> %q.next, ..) { %q.next = %q }
    input %i [h, b]; scan carry(%p = %i ..) ->  %i.init = %i; scan carry(%p = %i.init ..)
    input %i [h, b]; call f(%i[b, h])       ->  %i.arg = %i; call f(%i.arg[b, h])
    """
    return _Interface(graph, copied).run()


class _Interface:
    def __init__(self, graph: Graph, copied: Mapping[str, tuple[str, ...]]) -> None:
        self.graph = graph
        self.copied = copied
        self.values = graph.values
        self.constants = graph.constants
        self.taken = set(graph.values)
        # The orders in which values have to lie, as far as something has said so.
        self.orders: dict[str, tuple[str, ...]] = {}

    def run(self) -> Graph:
        own: dict[str, tuple[str, ...] | None] = {}
        for n in walk_nodes(self.graph.nodes):
            if isinstance(n, Input):
                self.orders[n.out.name] = n.axes
            elif isinstance(n, Scan | While | If):
                for v in defined(n):
                    self.orders[v.name] = self.copied.get(v.name, v.dims)
            elif isinstance(n, Call):
                for v, axes in zip(n.outs, n.out_axes, strict=True):
                    self.orders[v.name] = axes
            if isinstance(n, Scan):
                for v in n.outs[len(n.carries) :]:
                    self.orders[v.name] = self.copied.get(v.name, after(v.dims, n.dim))
        for n in self.graph.nodes:
            for v in () if isinstance(n, Input | Const) else outs(n):
                own[v.name] = (
                    None if isinstance(n, Nest | Scatter) else self.orders.get(v.name, v.dims)
                )
        copies: list[Node] = []
        outputs: list[Output] = []
        for o in self.graph.outputs:
            if o.value in own and own[o.value] in (None, o.axes):
                del own[o.value]
                self.orders[o.value] = o.axes
                outputs.append(o)
                continue
            copy = self.copy(o.value, "out", (o.name,))
            copies.append(copy)
            outputs.append(replace(o, value=copy.out.name))
        nodes = (*self.nodes(self.graph.nodes), *copies)
        return replace(self.graph, nodes=nodes, outputs=tuple(outputs))

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        result: list[Node] = []
        for n in nodes:
            if isinstance(n, Scan | While):
                result += self.loop(n)
            elif isinstance(n, Call):
                result += self.call(n)
            elif isinstance(n, If):
                then, orelse = self.branch(n.then, n.origin), self.branch(n.orelse, n.origin)
                result.append(replace(n, then=then, orelse=orelse))
            else:
                result.append(n)
        return tuple(result)

    def call(self, n: Call) -> list[Node]:
        before: list[Node] = []
        args = [
            name if name in self.constants else self.lying(name, axes, "arg", before, n.origin)
            for name, axes in zip(n.args, n.arg_axes, strict=True)
        ]
        return [*before, replace(n, args=tuple(args))]

    def loop(self, n: Scan | While) -> list[Node]:
        before: list[Node] = []
        body = list(self.nodes(n.body))
        params = {c.param.name for c in n.carries}
        carries: list[Carry] = []
        for c in n.carries:
            axes = self.orders[c.param.name]
            init = self.lying(c.init, axes, "init", before, n.origin)
            always = c.next in params
            following = self.lying(c.next, axes, "next", body, n.origin, always=always)
            carries.append(replace(c, init=init, next=following))
        return [*before, replace(n, carries=tuple(carries), body=tuple(body))]

    def branch(self, b: Body, origin: Origin) -> Body:
        nodes = list(self.nodes(b.nodes))
        # Results lie in the order of their sorted dims.
        results = tuple(
            self.lying(r, self.values[r].dims, "result", nodes, origin) for r in b.results
        )
        return Body(tuple(nodes), results)

    def lying(
        self,
        name: str,
        axes: tuple[str, ...],
        kind: str,
        into: list[Node],
        origin: Origin,
        *,
        always: bool = False,
    ) -> str:
        """The value, or a copy of it put at the end of `into`, in the order `axes`."""
        if not always and self.orders.setdefault(name, axes) == axes:
            return name
        copy = self.copy(name, kind, origin)
        self.orders[copy.out.name] = axes
        self.values = {**self.values, copy.out.name: copy.out}
        into.append(copy)
        return copy.out.name

    def copy(self, name: str, kind: str, origin: Origin) -> Nest:
        v = self.values[name]
        out = Value(fresh(f"{name}.{kind}", self.taken), v.dtype, v.dims)
        return Nest((out,), (), None, (at_point(v),), origin)
