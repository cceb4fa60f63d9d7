"""Equal nodes are computed once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, key_of, merge_origins, rename_uses
from rutc.graph_opt.exprs import indices, node_reads
from rutc.tensor_ir import (
    Bind,
    Call,
    Const,
    Expr,
    If,
    Index,
    Input,
    Nest,
    Node,
    Read,
    Scan,
    Scatter,
    While,
)
from rutc.tensor_ir.expr import substitute, transform
from rutc.tensor_ir.graph import Body, bodies, outs, walk_nodes
from rutc.tensor_ir.indices.affine import FloorDiv, Max, Min, Mod, Var


@record
class MergeEqual:
    """Nodes that are equal up to the names of their values and dims become the first one.

    %a{i} = sum{j} %x[i=i, j=j]
    %b{i} = sum{k} %x[i=i, j=k]        ->   %a in the place of %b
    %c{h} = sum{j} %x[i=h, j=j]        ->   %a[i=..] where a nest reads %c[h=..]

    Inputs and binds stay, and calls, which may have state. A node in a body becomes one outside of
    it. Two outputs of the graph stay two values.
    """

    name: str = "merge equal nodes"

    def __str__(self) -> str:
        return self.name

    def run(self, editor: Editor) -> None:
        """Merges repeated nodes."""
        alike: dict[Hashable, list[str]] = {}
        seen: dict[Hashable, list[str]] = {}
        for key in list(editor.names()):
            n = editor.nodes.get(key)
            if n is None or not _may_merge(n):
                continue
            same = alike.setdefault(_fingerprint(n, editor), [])
            if not isinstance(n, Const):
                # Many may be alike that differ by a literal, or in what their bodies do.
                if len(same) == 1:
                    seen[canonical(editor.nodes[same[0]], editor)] = same[:]
                if same:
                    same.append(key)
                    same = seen.setdefault(canonical(n, editor), [])
            found = next((k for k in same if _merges(editor.nodes[k], n, editor)), None)
            if found is None:
                if not any(_stands_for(editor.nodes[k], n, editor) for k in same):
                    same.append(key)
                continue
            first = editor.nodes[found]
            editor.set_origin(first, merge_origins(first, n))
            if _same_dims(first, n):
                editor.become(n, [v.name for v in outs(first)])
            else:
                assert isinstance(first, Nest)
                assert isinstance(n, Nest)
                _read_instead(first, n, editor)


def _may_merge(n: Node) -> bool:
    if isinstance(n, Input | Call | Bind):
        return False
    return not any(isinstance(inner, Call | Bind) for b in bodies(n) for inner in walk_nodes(b))


def _merges(first: Node, n: Node, editor: Editor) -> bool:
    block = editor.block(n)
    while block != editor.block(first):
        if not block[0]:
            return False
        block = editor.block(editor.nodes[block[0]])
    taken = _gives_output(n, editor)
    if taken and _gives_output(first, editor):
        return False
    if isinstance(n, Const) and isinstance(first, Const):
        return n.data == first.data
    if not _same_dims(first, n) and (taken or not _in_nests(n, editor)):
        return False
    return canonical(first, editor) == canonical(n, editor)


def _gives_output(n: Node, editor: Editor) -> bool:
    return any(editor.is_output(v.name) for v in outs(n))


def _stands_for(first: Node, n: Node, editor: Editor) -> bool:
    """Whether whatever may become `n` may become the first one: equal outputs in one block."""
    return (
        isinstance(n, Nest)
        and editor.block(n) == editor.block(first)
        and _gives_output(n, editor)
        and _gives_output(first, editor)
        and _same_dims(first, n)
        and canonical(first, editor) == canonical(n, editor)
    )


def _same_dims(first: Node, n: Node) -> bool:
    """Whether the values of equal nodes have dims of the same names."""
    return [v.dims for v in outs(first)] == [v.dims for v in outs(n)]


def _in_nests(n: Node, editor: Editor) -> bool:
    """Whether only nests read the values of a node: others know their dims by name."""
    return all(isinstance(r, Nest) for v in outs(n) for r in editor.readers(v.name))


def _read_instead(first: Nest, n: Nest, editor: Editor) -> None:
    """Let the nests that read `n` read what `first` has at the same places."""
    dims = dict(zip(_free_order(n), _free_order(first), strict=True))
    names = {v.name: by.name for v, by in zip(n.outs, first.outs, strict=True)}

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.value not in names:
            return e
        coords = sorted((dims[d], c) for d, c in e.coords)
        return replace(e, value=names[e.value], coords=tuple(coords))

    readers = {key_of(r): r for v in n.outs for r in editor.readers(v.name)}
    for reader in readers.values():
        assert isinstance(reader, Nest)
        body = tuple(transform(e, visit) for e in reader.body)
        editor.replace(reader, (replace(reader, body=body),))


def _fingerprint(n: Node, editor: Editor) -> Hashable:
    """A cheap value that equal nodes share."""
    if isinstance(n, Nest):
        sizes = tuple(sorted([str(editor.extents[d]) for d in n.out.dims]))
        kinds = tuple([(v.dtype, sizes) for v in n.outs])
    else:
        kinds = tuple([(v.dtype, v.dims) for v in outs(n)])
    match n:
        case Const():
            return kinds, n.axes, n.data.few
        case Nest():
            extents = tuple(sorted(str(editor.extents[d]) for d in n.bound))
            reduced = None if n.reducer is None else n.reducer.name
            return kinds, reduced, extents, tuple(r.value for r in node_reads(n))
        case Scatter():
            return kinds, n.base, tuple(r.value for r in node_reads(n))
        case _:
            return kinds, type(n)


def canonical(n: Node, editor: Editor) -> Hashable:
    """A node without its own names: equal for nodes that compute the same."""
    names: dict[str, str] = {}
    extents: list[Index] = []
    if isinstance(n, Nest):
        order = _free_order(n)
        extents += [editor.extents[d] for d in order]
        n = _with_dims(n, {d: f"@{i}" for i, d in enumerate(order)})
    return _canonical(_current(n, editor), names, extents, editor), tuple(extents)


def _with_dims(n: Nest, names: Mapping[str, str]) -> Nest:
    """A nest whose free dims have other names, its values' dims in their order."""
    results = tuple(replace(v, dims=tuple(sorted(names[d] for d in v.dims))) for v in n.outs)
    env = {d: Index.of(name) for d, name in names.items()}
    return replace(n, outs=results, body=tuple(substitute(e, env) for e in n.body))


def _current(n: Node, editor: Editor) -> Node:
    match n:
        case Scan() | While():
            return replace(n, body=editor.body(n, 0))
        case If():
            then = Body(editor.body(n, 0), n.then.results)
            return replace(n, then=then, orelse=Body(editor.body(n, 1), n.orelse.results))
        case _:
            return n


def _canonical(n: Node, names: dict[str, str], extents: list[Index], editor: Editor) -> Node:
    if isinstance(n, Scan | While):
        for c in n.carries:
            names[c.param.name] = f"#{len(names)}"
    inner = [tuple(_canonical(b, names, extents, editor) for b in body) for body in bodies(n)]
    n = rename_uses(n, names)
    for v in outs(n):
        names[v.name] = f"#{len(names)}"

    results = tuple(replace(v, name=names[v.name]) for v in outs(n))
    match n:
        case Nest():
            order = {d: f"#{i}" for i, d in enumerate(_bound_order(n))}
            extents += [editor.extents[d] for d in order]
            env = {d: Index.of(name) for d, name in order.items()}
            body = tuple(substitute(e, env) for e in n.body)
            return Nest(results, tuple(order.values()), n.reducer, body)
        case Scatter():
            return replace(n, out=results[0], origin=())
        case Const():
            return replace(n, out=results[0], origin=())
        case Scan() | While():
            carries = tuple(
                replace(c, param=replace(c.param, name=names[c.param.name])) for c in n.carries
            )
            return replace(n, outs=results, carries=carries, body=inner[0], origin=())
        case If():
            then, orelse = Body(inner[0], n.then.results), Body(inner[1], n.orelse.results)
            return replace(n, outs=results, then=then, orelse=orelse, origin=())
        case _:
            return n


def _bound_order(n: Nest) -> list[str]:
    """The bound dims in the order in which the body comes to them, whatever they are called."""
    return _in_order(n, n.bound)


def _free_order(n: Nest) -> list[str]:
    """The dims of a nest's values in the order in which the body comes to them."""
    return _in_order(n, n.out.dims)


def _in_order(n: Nest, dims: tuple[str, ...]) -> list[str]:
    met = dict.fromkeys(name for e in n.body for name in _names_in_order(e))
    found = [d for d in met if d in set(dims)]
    return found + [d for d in dims if d not in met]


def _names_in_order(e: Expr) -> Iterator[str]:
    for index in indices(e):
        yield from _index_names(index)


def _index_names(x: Index) -> Iterator[str]:
    for mono, _ in sorted(x.terms, key=lambda term: -term[1]):
        for a in mono:
            match a:
                case Var(name):
                    yield name
                case FloorDiv(p, q) | Mod(p, q) | Min(p, q) | Max(p, q):
                    yield from _index_names(p)
                    yield from _index_names(q)
