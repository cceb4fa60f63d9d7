"""In which order of dims lies what loops carry and collect.

The host program copies a state's next value to where the trip reads it, so the state, its first
value, the next one and the last one lie in one order. The dim that is innermost in all of them is
chosen with the layouts of what the loop computes (see `layout`), for a common machine: what a graph
is prepared as depends on the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rutc.graph_opt.decide.layout import after, choose_innermost, fixed_orders, last_long
from rutc.tensor_ir.graph import (
    Const,
    Graph,
    Input,
    Nest,
    Scan,
    Scatter,
    Value,
    While,
    outs,
    walk_nodes,
)
from rutc.tensor_ir.machine import COMMON

Axes = tuple[str, ...]


def loop_orders(
    graph: Graph, extents: Mapping[str, int], steps: frozenset[str], varying: frozenset[str]
) -> dict[str, Axes]:
    """The orders of what loops carry and collect: of parameters, of last states, of collections.

    Those are left out whose sorted dims are as good (of collections the loop's dim is first). A
    dim that commonly has one element is not innermost where it may have more. `extents`, `steps`
    and `varying` dims are those of the graph (see `Prepared`).
    """
    loops = [n for n in walk_nodes(graph.nodes) if isinstance(n, Scan | While)]
    if not loops:
        return {}
    homes = _homes(graph, loops)
    orders = fixed_orders(graph.nodes, graph.outputs)
    fixed = {v: axes for v, axes in orders.items() if v not in homes}
    usual = {v.name: after(v.dims, *first) for v, first in _copied(loops)}
    lasts = {homes[v]: last_long(axes, extents) for v, axes in usual.items() if v in homes}
    starts = {v: lasts[home] for v, home in homes.items() if home in lasts}
    inner = choose_innermost(graph.nodes, extents, fixed, homes, COMMON, steps, varying, starts)
    given = {o.value: o.axes for o in graph.outputs}
    found: dict[str, Axes] = {}
    for v, first in _copied(loops):
        axes, last = usual[v.name], inner.get(v.name)
        # What is carried has not the loop's dim, along which it may be collected.
        if last is None or last not in axes or v.name not in homes:
            continue
        if last_long(axes, extents) == last and (axes[-1] == last or axes[-1] not in varying):
            continue
        mates = [m for m, home in homes.items() if home == homes[v.name]]
        known = (given[m] for m in mates if m in given and {*given[m]} == {*axes})
        fits = (a for a in known if last_long(a, extents) == last and a[: len(first)] == first)
        found[v.name] = next(fits, (*(d for d in axes if d != last), last))
    return found


def _copied(loops: Iterable[Scan | While]) -> Iterator[tuple[Value, Axes]]:
    """What loops carry and collect, and the dims that are first in it."""
    for n in loops:
        for c, out in zip(n.carries, n.outs, strict=False):
            yield c.param, ()
            yield out, ()
        if isinstance(n, Scan):
            for out in n.outs[len(n.carries) :]:
                yield out, (n.dim,)


def _homes(graph: Graph, loops: Iterable[Scan | While]) -> dict[str, str]:
    """For what lies in one order with what a loop copies, one that stands for all of them.

    It is one that a nest computes, where there is one. What scatters write into lies as its base
    does. What the caller gives is copied where it lies otherwise, constants lie as they are read.
    """
    parent: dict[str, str] = {}

    def top(name: str) -> str:
        while (up := parent.setdefault(name, name)) != name:
            name = up
        return name

    for n in loops:
        for c, out in zip(n.carries, n.outs, strict=False):
            for name in (c.init, c.next, out.name):
                parent[top(name)] = top(c.param.name)
        if isinstance(n, Scan):
            for out, name in zip(n.outs[len(n.carries) :], n.collected, strict=True):
                parent[top(out.name)] = top(name)
    for s in walk_nodes(graph.nodes):
        if isinstance(s, Scatter):
            parent[top(s.out.name)] = top(s.base)
    given = {n.out.name for n in walk_nodes(graph.nodes) if isinstance(n, Const | Input)}
    nests = {v.name for n in walk_nodes(graph.nodes) if isinstance(n, Nest) for v in outs(n)}
    members: dict[str, list[str]] = {}
    for name in parent:
        if name not in given:
            members.setdefault(top(name), []).append(name)
    found: dict[str, str] = {}
    for names in members.values():
        found |= dict.fromkeys(names, next((name for name in names if name in nests), names[0]))
    return found
