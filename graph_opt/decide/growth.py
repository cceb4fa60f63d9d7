"""States that grow where they lie: all that a run writes of them is what it appends.

Where an output joins an input with what follows it, both lie in one memory if its strides are by
the room that the state has, whatever its extent. What follows is then a value of its own, stored
from there on where the input ends, and the output itself is no work:

    %p : f32{h,k,t} = input "past" [h, t, k]                       t = past, u = past + new
    %y : f32{h,k,u} = select(index(u - past) < 0, %p[t=u else 0], %f[s=u-past else 0])
    output "present" [h, u, k] = %y
    state "past" = "present"
    ->
    %y.new : f32{h,k,s} = %f                            in %p's memory, from row `past` on
    %y : f32{h,k,u} = select(index(u - past) < 0, %p[t=u else 0], %y.new[s=u-past else 0])    joined
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from rutc.base.record import record
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.exprs import below_zero, side_by_side
from rutc.tensor_ir.expr import (
    Apply,
    Expr,
    Lit,
    Read,
    map_index,
    map_reads,
    substitute,
)
from rutc.tensor_ir.graph import Graph, Input, Nest, Node, State, Value, used_deep
from rutc.tensor_ir.indices.affine import Index, Size, plain
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.states import Growth, ends, growth
from rutc.tensor_ir.verifier import verify


@record
class InPlace:
    """The values of states that grow where they lie.

    `homes` names the value in whose memory one lies, `starts` the elements before it there,
    `capacity` the dims along which memory has room for more, and `joined` are the values that are
    no work.
    """

    homes: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, Size] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    joined: frozenset[str] = frozenset()


@record
class Grown:
    """A graph, its values that grow in place, and the orders in which their parts lie."""

    graph: Graph
    in_place: InPlace
    orders: Mapping[str, tuple[str, ...]]


@record
class _Joining:
    """A nest that joins a state's input with what follows it.

    `dims` are the output's for those of the nest, `along` the nest's dim that both parts have.
    """

    nest: Nest
    dims: Mapping[str, str]
    along: str
    appended: Expr


def grown_in_place(graph: Graph) -> Grown:
    """The graph in which states grow in place where they can."""
    found = Grown(graph, InPlace(), {})
    for state in graph.states:
        how = growth(found.graph, state)
        if how is not None:
            found = _grown(found, state, how)
    if found.graph is not graph:
        verify(found.graph, since=graph)
    return found


def _grown(before: Grown, state: State, how: Growth) -> Grown:
    """The graph in which this state grows in place as well, if it can."""
    graph, known = before.graph, before.in_place
    taken, given = ends(graph, state)
    joining = _joining(graph, taken, given.value, given.axes, how)
    if joining is None or _is_bound(graph, joining.nest.out.name, given.value):
        return before
    axes, names = given.axes, set(graph.values)
    whole = graph.values[given.value]
    along = joining.dims[joining.along]
    step = fresh(f"{along}.new", {d for d, _ in graph.dims} | {s for s, _ in graph.symbols})
    dims = (*graph.dims, (step, how.added))
    sizes = {d: plain(e) for d, e in dims}
    env = {d: Index.of(x) for d, x in joining.dims.items()}
    shifted = substitute(joining.appended, {**env, joining.along: how.before + Index.of(step)})
    ranges = replace(graph, dims=dims).ranges
    body = map_index(shifted, lambda i: i.simplify(ranges))
    own = tuple(step if d == along else d for d in axes)
    appended = Value(fresh(f"{whole.name}.new", names), whole.dtype, tuple(sorted(own)))
    rows = Nest((appended,), (), None, (without_fills(body, sizes),), joining.nest.origin)
    zero = Lit(0, whole.dtype)
    first = Read(taken.out.name, _coords(taken.axes, axes), whole.dtype, zero)
    at = Index.of(along) - how.before
    place = tuple(sorted((step, at) if d == along else (d, Index.of(d)) for d in axes))
    rest = Read(appended.name, place, whole.dtype, zero)
    join = Nest((whole,), (), None, (side_by_side(at, first, rest),), joining.nest.origin)
    moved = _moved(graph, joining, whole, (rows, join))
    capacity = {along: how.capacity, step: how.capacity}
    stride = dense(axes, sizes, capacity=capacity).stride(along)
    assert stride is not None, "no dim of a layout of an interface is blocked"
    return Grown(
        replace(graph, dims=dims, nodes=tuple(moved)),
        InPlace(
            {**known.homes, whole.name: taken.out.name, appended.name: taken.out.name},
            {**known.starts, appended.name: plain(how.before * stride)},
            {
                **known.capacity,
                taken.out.name: {taken.axes[how.axis]: how.capacity},
                whole.name: {along: how.capacity},
                appended.name: {step: how.capacity},
            },
            known.joined | {whole.name},
        ),
        {**before.orders, appended.name: own},
    )


def _is_bound(graph: Graph, joined: str, output: str) -> bool:
    """Whether something but nests needs one of the two values, and not only the state's output."""
    others = [o.value for o in graph.outputs if o.value in (joined, output)]
    deep = (v for n in graph.nodes if not isinstance(n, Nest) for v in used_deep(n))
    return len(others) > 1 or (joined != output and joined in {*deep})


def _coords(axes: tuple[str, ...], own: tuple[str, ...]) -> tuple[tuple[str, Index], ...]:
    """The place of an element that lies where that of a value with the dims `own` does."""
    return tuple(sorted((d, Index.of(x)) for d, x in zip(axes, own, strict=True)))


def _joining(
    graph: Graph, taken: Input, value: str, axes: tuple[str, ...], how: Growth
) -> _Joining | None:
    """The nest that joins the input with what follows it, directly or by way of copies."""
    made = {n.out.name: n for n in graph.nodes if isinstance(n, Nest) and len(n.outs) == 1}
    dims: Mapping[str, str] = {d: d for d in axes}
    while value in made:
        n = made[value]
        if n.reducer is not None:
            return None
        (body,) = n.body
        if not isinstance(body, Read):
            return _joined(graph, n, dims, taken, axes, how)
        inner: dict[str, str] = {}
        for d, c in body.coords:
            own = c.as_var if isinstance(c, Index) else None
            if own is not None and own in dims:
                inner[d] = dims[own]
            elif c != Index.of(0) or graph.extents[d] != Index.of(1):
                return None
        if body.fill is not None or not _is_all(graph, inner, body.value, dims):
            return None
        value, dims = body.value, inner
    return None


def _is_all(graph: Graph, inner: Mapping[str, str], value: str, dims: Mapping[str, str]) -> bool:
    """Whether a copy has every element of a value once, and dims of extent 1 besides."""
    left = set(dims.values()) - set(inner.values())
    return (
        len(set(inner.values())) == len(inner)
        and inner.keys() == set(graph.values[value].dims)
        and all(graph.extents[d] == Index.of(1) for d in left)
        and all(graph.extents[d] == graph.extents[x] for d, x in inner.items())
    )


def _joined(
    graph: Graph,
    n: Nest,
    dims: Mapping[str, str],
    taken: Input,
    axes: tuple[str, ...],
    how: Growth,
) -> _Joining | None:
    """What a nest joins to the input, if it does that, element by element at its place."""
    (body,) = n.body
    along = next((d for d, x in dims.items() if x == axes[how.axis]), None)
    if along is None or not (isinstance(body, Apply) and body.op == "select"):
        return None
    test, first, rest = body.args
    if below_zero(test) != Index.of(along) - how.before:
        return None
    if not isinstance(first, Read) or first.value != taken.out.name:
        return None
    coords = dict(first.coords)
    for d, x in zip(taken.axes, axes, strict=True):
        c = coords[d]
        own = c.as_var if isinstance(c, Index) else None
        same = own is not None and dims.get(own) == x
        if not same and (c != Index.of(0) or graph.extents[x] != Index.of(1)):
            return None
    return _Joining(n, dims, along, rest)


def without_fills(e: Expr, sizes: Mapping[str, Size]) -> Expr:
    """An expression without the fills of what it reads inside of extents."""

    def whole(size: Size) -> int:
        return size if isinstance(size, int) else 0

    def read(r: Read) -> Expr:
        inside = all(
            isinstance(c, Index)
            and (
                (c.as_var is not None and sizes.get(c.as_var) == sizes[d])
                or (c.is_const and c.value in range(whole(sizes[d])))
            )
            for d, c in r.coords
        )
        return replace(r, fill=None) if inside else r

    return map_reads(e, lambda i: i, read)


def _moved(graph: Graph, joining: _Joining, whole: Value, new: tuple[Nest, Nest]) -> Iterator[Node]:
    """The nodes with these for the nest that joins, and what reads its value reads the output."""
    old = joining.nest.out
    single = tuple(d for d in whole.dims if d not in joining.dims.values())

    def read(r: Read) -> Expr:
        if r.value != old.name:
            return r
        coords = [(joining.dims[d], c) for d, c in r.coords]
        coords += [(d, Index.of(0)) for d in single]
        return replace(r, value=whole.name, coords=tuple(sorted(coords, key=lambda c: c[0])))

    for n in graph.nodes:
        if n is joining.nest:
            yield from new
        elif isinstance(n, Nest) and n.out.name == whole.name:
            continue
        elif isinstance(n, Nest) and old.name != whole.name:
            body = tuple(map_reads(e, lambda i: i, read) for e in n.body)
            yield replace(n, body=body) if body != n.body else n
        else:
            yield n
