"""An assignment with other types of stored values, and with what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rutc.graph_opt.assignment import Arrangement, Assignment, Grouping, Stored
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.stored_types import WIDE, made_apart
from rutc.tensor_ir import Lit
from rutc.tensor_ir.graph import Nest, walk_nodes


def retyped(found: Realisation, types: Iterable[Stored]) -> Assignment:
    """The assignment with these types, legal or not, and groups as they then are.

    A nest that makes a value of what a reduction gives is in the reduction's kernel, in whose place
    that then is.
    """
    given, graph = found.assignment, found.copied
    new = {s.value: s for s in types}
    was, now = (made_apart(graph, t) for t in ({s.value: s for s in given.types}, new))
    arrangements = dict(given.arrangements)
    for name, a in arrangements.items():
        if a.fill is not None and name in graph.values:
            dtype = new[name].dtype if name in new else graph.values[name].dtype
            arrangements[name] = replace(a, fill=Lit(a.fill.value, dtype))
    result = replace(given, types=tuple(new.values()), arrangements=arrangements)
    for name in sorted(was - now):
        result = _joined(result, name)
    for name in sorted(now - was):
        result = _apart(result, found, name)
    return result


def _apart(given: Assignment, found: Realisation, name: str) -> Assignment:
    """The assignment in which another nest makes the value of that name."""
    wide = name + WIDE
    order = tuple(dict.fromkeys(a.dim for a in found.layouts[name].axes))
    groups = given.groups
    if not any(name in g.nests for g in groups):
        sizes = found.prepared.sizes
        loops = next(
            n.out.dims
            for n in walk_nodes(found.graph.nodes)
            if isinstance(n, Nest) and n.out.name == name
        )
        groups = (*groups, Grouping(tuple(d for d in loops if sizes[d] != 1), (name,)))
    both = {name: (wide, name)}
    groups = tuple(
        replace(g, nests=tuple(x for n in g.nests for x in both.get(n, (n,)))) for g in groups
    )
    arrangements = {**given.arrangements, wide: Arrangement(order)}
    return _led(replace(given, arrangements=arrangements, groups=groups), name, wide)


def _joined(given: Assignment, name: str) -> Assignment:
    """The assignment in which a reduction gives the value of that name itself."""
    wide = name + WIDE
    arrangements = {v: a for v, a in given.arrangements.items() if v != wide}
    groups = (replace(g, nests=tuple(n for n in g.nests if n != wide)) for g in given.groups)
    kept = tuple(g for g in groups if len(g.nests) > 1)
    return _led(replace(given, arrangements=arrangements, groups=kept), wide, name)


def _led(given: Assignment, old: str, new: str) -> Assignment:
    """The assignment with the kernel that a nest led under the name of another one, led by it."""
    name = {old: new}
    slices = tuple(
        replace(s, kernels=tuple(name.get(k, k) for k in s.kernels)) for s in given.slices
    )
    turns = tuple(replace(t, kernels=tuple(name.get(k, k) for k in t.kernels)) for t in given.turns)
    return replace(given, slices=slices, turns=turns)
