"""Naming: one name for all dims that reads equate, and the ONNX names for values.

While importing, every axis of every value has a dim of its own. Two dims are one where some nest
reads along one of them with the plain index of the other and their extents are equal, unless that
would put the same dim twice into one value or one nest: then the two names stay, and the read says
`x[c=c2]`. The dim that a scan counts is never unified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rutc.tensor_ir import (
    Bind,
    Graph,
    If,
    Index,
    IndexValue,
    Nest,
    Node,
    Output,
    Read,
    Scan,
    Scatter,
    Value,
    While,
)
from rutc.tensor_ir.expr import Expr, reads, transform
from rutc.tensor_ir.graph import defined, walk_nodes
from rutc.tensor_ir.rebuilder import Rebuilder

RESERVED = frozenset(
    {"bind", "else", "if", "while", "scan", "call", "yield", "input", "output", "const"}
)


def named(g: Graph, roles: Mapping[str, str], hints: Mapping[str, str]) -> Graph:
    """The graph with dims unified and named by their roles, and values named by their hints.

    Sizes of which only one is possible are numbers, and no symbols where they are the inputs'.
    """
    classes = _Classes(g)
    for n in walk_nodes(g.nodes):
        _equate(n, g, classes)
    dims = _dim_names(g, classes, roles)
    values = _value_names(g, hints)
    only = {s: Index.of(low) for s, (low, high) in g.symbols if low == high}
    bound = {n.symbol for n in walk_nodes(g.nodes) if isinstance(n, Bind)}
    kept = tuple((s, r) for s, r in g.symbols if s not in only or s in bound)
    return replace(Renaming(dims, values, only).graph(g), symbols=kept)


class _Classes:
    """A union-find over dims; a class knows in which spaces (values, nests) it occurs."""

    def __init__(self, g: Graph) -> None:
        self.parent: dict[str, str] = {d: d for d, _ in g.dims}
        self.spaces: dict[str, set[int]] = {d: set() for d, _ in g.dims}
        self.fixed: set[str] = set()
        for k, space in enumerate(_spaces(g.nodes)):
            for d in space:
                self.spaces[d].add(k)
        for n in walk_nodes(g.nodes):
            if isinstance(n, Scan):
                self.fixed.add(n.dim)

    def find(self, d: str) -> str:
        while self.parent[d] != d:
            self.parent[d] = self.parent[self.parent[d]]
            d = self.parent[d]
        return d

    def unite(self, a: str, b: str) -> None:
        """Makes the classes of two dims one, unless some space has a dim of each."""
        a, b = self.find(a), self.find(b)
        if a == b or {a, b} & self.fixed:
            return
        if not self.spaces[a].isdisjoint(self.spaces[b]):
            return
        if len(self.spaces[a]) < len(self.spaces[b]):
            a, b = b, a
        self.parent[b] = a
        self.spaces[a] |= self.spaces.pop(b)


def _spaces(nodes: Iterable[Node], outer: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """The sets of dims that must keep different names."""
    for n in nodes:
        for v in defined(n):
            yield (*v.dims, *outer)
        match n:
            case Nest():
                yield (*n.dims, *outer)
            case Scatter():
                yield (*n.dims, *outer)
                yield (*n.dims, *n.out.dims, *outer)
            case Scan():
                yield from _spaces(n.body, (*outer, n.dim))
            case While():
                yield from _spaces(n.body, outer)
            case If():
                yield from _spaces(n.then.nodes, outer)
                yield from _spaces(n.orelse.nodes, outer)
            case _:
                pass


def _equate(n: Node, g: Graph, classes: _Classes) -> None:
    """Unites the dims that the node's reads equate by a plain index."""
    bodies: tuple[Expr, ...] = ()
    if isinstance(n, Nest):
        bodies = n.body
    elif isinstance(n, Scatter):
        bodies = (n.body,)
    for e in bodies:
        for r in reads(e):
            for d, c in r.coords:
                var = c.as_var if isinstance(c, Index) else None
                if var in classes.parent and g.extents[var] == g.extents[d]:
                    classes.unite(d, var)


def _dim_names(g: Graph, classes: _Classes, roles: Mapping[str, str]) -> dict[str, str]:
    """A name for every dim: its class's first role, made unique by a number."""
    wanted: dict[str, tuple[int, str]] = {}
    for d, _ in g.dims:
        root = classes.find(d)
        role = roles.get(d, "")
        rank = 0 if role.startswith("!") else 1 if role else 2
        if root not in wanted or rank < wanted[root][0]:
            wanted[root] = (rank, role.lstrip("!"))
    taken = {s for s, _ in g.symbols} | set(RESERVED)
    names: dict[str, str] = {}
    for d, _ in g.dims:
        root = classes.find(d)
        if root not in names:
            names[root] = unused(wanted[root][1] or "d", taken)
    return {d: names[classes.find(d)] for d, _ in g.dims}


def _value_names(g: Graph, hints: Mapping[str, str]) -> dict[str, str]:
    """A name for every value; of several with one hint the last has the plain name."""
    order = [v.name for n in walk_nodes(g.nodes) for v in defined(n)]
    last = {hints[v]: v for v in order}
    taken: set[str] = set()
    names = {v: unused(_clean(h), taken) for h, v in last.items()}
    for v in order:
        if v not in names:
            names[v] = unused(_clean(hints[v]), taken)
    return names


def _clean(text: str) -> str:
    """Text as a name: letters, digits, dots and underscores, not beginning with a digit."""
    kept = re.sub(r"[^A-Za-z0-9_.]+", ".", text).strip(".")
    return kept if kept and not kept[0].isdigit() else f"v{kept}"


def clean_dim(text: str) -> str:
    """Text as a dim's or symbol's name: letters, digits and underscores."""
    kept = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    return kept if kept and not kept[0].isdigit() else f"d{kept}"


def unused(base: str, taken: set[str]) -> str:
    """A name like `base` that is not yet taken, and is then."""
    name, k = base, 1
    if name in taken:
        stem = base + "_" if base[-1].isdigit() else base
        while name in taken:
            k += 1
            name = f"{stem}{k}"
    taken.add(name)
    return name


class Renaming(Rebuilder):
    """The renaming of dims and values throughout a graph, whose `sizes` become others."""

    def __init__(
        self, dims: Mapping[str, str], values: Mapping[str, str], sizes: Mapping[str, Index]
    ) -> None:
        self.dim_names = dims
        self.value_names = values
        self.sizes = sizes
        self.indices = {**{d: Index.of(n) for d, n in dims.items()}, **sizes}
        self.seen: dict[Index, Index] = {}

    def graph(self, g: Graph) -> Graph:
        """The graph under its new names."""
        extents: dict[str, Index] = {}
        for d, e in g.dims:
            extents.setdefault(self.dim(d), e.subs(self.sizes))
        outputs = tuple(Output(o.name, self.name(o.value), self.dims(o.axes)) for o in g.outputs)
        nodes = self.nodes(g.nodes)
        return Graph(g.name, tuple(extents.items()), nodes, outputs, g.symbols, g.interface)

    def name(self, name: str) -> str:
        """The new name of a value."""
        return self.value_names[name]

    def dim(self, dim: str) -> str:
        """The new name of a dim."""
        return self.dim_names[dim]

    def value(self, v: Value) -> Value:
        """One value under its new names."""
        return Value(self.name(v.name), v.dtype, tuple(sorted(self.dims(v.dims))))

    def index(self, i: Index) -> Index:
        """An index expression over the new dims."""
        if i not in self.seen:
            self.seen[i] = i.subs(self.indices)
        return self.seen[i]

    def expr(self, e: Expr) -> Expr:
        """An expression over the new dims and values."""

        def visit(x: Expr) -> Expr:
            if isinstance(x, IndexValue):
                return IndexValue(self.index(x.index))
            if isinstance(x, Read):
                coords = [
                    (self.dim(d), self.index(c) if isinstance(c, Index) else c) for d, c in x.coords
                ]
                coords.sort(key=lambda dc: dc[0])
                return Read(self.name(x.value), tuple(coords), x.dtype, x.fill)
            return x

        return transform(e, visit)
