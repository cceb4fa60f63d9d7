"""The end of an import: outputs get all their axes, what is not used goes, names are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rutc.importer.building.builder import Builder
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.checks import checked
from rutc.importer.dims import named
from rutc.importer.fitting import fitted
from rutc.tensor_ir import Bind, Graph, Index, Input, Nest, Node, Output, Scan, Scatter, Value
from rutc.tensor_ir.graph import defined, mentioned, outs, used_deep, walk_nodes
from rutc.tensor_ir.indices.affine import ZERO, Range


def assembled(
    name: str,
    b: Builder,
    inputs: Sequence[Input],
    outputs: Sequence[tuple[str, Tensor]],
    symbols: Sequence[tuple[str, Range]],
) -> Graph:
    """The named graph of what the builder collected."""
    shared = Counter(t.name for _, t in outputs)
    read = {v for n in b.nodes for v in used_deep(n)}
    places = {n.out.name: i for i, n in enumerate(b.nodes) if isinstance(n, Nest)}
    kept = {t.name for _, t in outputs if shared[t.name] > 1} | read
    made = [
        _with_units(b, n, t, None if t.name in kept else places.get(t.name)) for n, t in outputs
    ]
    nodes = _used_nodes([*inputs, *b.consts, *b.nodes], made, b)
    given = fitted(nodes, b.extents, {s: r for s, r in symbols if s not in b.bound})
    nodes, checks = checked(nodes, b, given)
    symbols = [*symbols, *((s, b.bound[s]) for s in checks)]
    used = _used_dims(nodes, made)
    table = tuple((d, e) for d, e in b.extents.items() if d in used)
    there = {n.symbol for n in walk_nodes(tuple(nodes)) if isinstance(n, Bind)}
    sizes = tuple((s, given.get(s, r)) for s, r in symbols if s in there or s not in b.bound)
    return named(Graph(name, table, tuple(nodes), tuple(made), sizes), b.roles, b.hints)


def _with_units(b: Builder, name: str, t: Tensor, place: int | None) -> Output:
    """The output `name`: the value of `t` with a dim for every axis.

    A value that nothing else uses, of the nest at `place`, gets the missing dims of extent 1; any
    other is copied.
    """
    b.origin = (name,)
    if place is not None:
        nest = b.nodes[place]
        assert isinstance(nest, Nest)
        if len(nest.outs) == 1:
            axes = [a.dim if a.dim is not None else b.dim(1) for a in t.axes]
            fresh = [d for d, a in zip(axes, t.axes, strict=True) if a.dim is None]
            out = replace(nest.out, dims=tuple(sorted((*nest.out.dims, *fresh))))
            b.nodes[place] = replace(nest, outs=(out,))
            b.hints[t.name] = name
            return Output(name, t.name, tuple(axes))
    space = [b.dim(e) for e in t.shape]
    own = tuple(Axis(d, e) for d, e in zip(space, t.shape, strict=True))
    coords = [a.index if s.dim is not None else ZERO for a, s in zip(own, t.axes, strict=True)]
    body = b.read(t, coords)
    value = Value(b.fresh(name), t.dtype, tuple(sorted(space)))
    b.nodes.append(Nest((value,), (), None, (body,), b.origin))
    return Output(name, value.name, tuple(space))


def _used_nodes(nodes: Sequence[Node], outputs: Sequence[Output], b: Builder) -> list[Node]:
    """The nodes that the outputs need; inputs stay, they are the interface."""
    wanted = {o.value for o in outputs}
    sizes = {s for o in outputs for d in o.axes for s in b.extents[d].names()}
    sizes.update(b.checks)
    return needed_nodes(nodes, wanted, sizes, b.extents)


def needed_nodes(
    nodes: Sequence[Node], wanted: set[str], sizes: set[str], extents: Mapping[str, Index]
) -> list[Node]:
    """The nodes that define the `wanted` values and `sizes`, and all inputs."""
    kept: list[Node] = []
    for n in reversed(nodes):
        needed = isinstance(n, Input) or (isinstance(n, Bind) and n.symbol in sizes)
        if needed or not wanted.isdisjoint(v.name for v in outs(n)):
            kept.append(n)
            wanted.update(used_deep(n))
            for inner in walk_nodes((n,)):
                for d in mentioned(inner):
                    extent = extents.get(d)
                    if extent is None:
                        sizes.add(d)
                    elif not extent.is_const:
                        sizes.update(extent.names())
    return kept[::-1]


def _used_dims(nodes: Sequence[Node], outputs: Sequence[Output]) -> set[str]:
    found: set[str] = {d for o in outputs for d in o.axes}
    for n in walk_nodes(tuple(nodes)):
        for v in defined(n):
            found.update(v.dims)
        match n:
            case Nest():
                found.update(n.bound)
            case Scan():
                found.add(n.dim)
            case Scatter():
                found.update(n.dims)
            case Input():
                found.update(n.axes)
            case _:
                pass
    return found
