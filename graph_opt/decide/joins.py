"""Concatenations that are no work: their parts lie in their memory, where producers write them.

    %y : f32{c,n} = select(index(c - 4) < 0, %a[i=c, n else 0.0], %b[j=c - 4, n else 0.0])
    join %y of %a
    ->
    %y.part : f32{c.part,n} = %b[j=c.part, n]           in %y's memory, from c = 4 on
    %y : f32{c,n} = select(index(c - 4) < 0, %a[..], %y.part[..])               joined

A part has the strides of the whole, whose memory may itself be a part of another value's. What has
to lie elsewhere, or is computed while it is joined, is a value of its own that is written there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from rutc.base.record import record
from rutc.graph_opt.assignment import Join
from rutc.graph_opt.decide.growth import without_fills
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.exprs import below_zero, index_coords, is_gathered, side_by_side
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.expr import Apply, Expr, Lit, Read, map_index, substitute
from rutc.tensor_ir.graph import Graph, Nest, Node, Value, bound_symbols, used, walk_nodes
from rutc.tensor_ir.indices.affine import ZERO, Index, Size, plain
from rutc.tensor_ir.indices.dim_ranges import dim_range
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.textual.text import value_name
from rutc.tensor_ir.verifier import verify

ONE = Index.of(1)
NEIGHBOURS = 4
"""Rows of bytes are made so many times as long, so that all neighbours can be loaded together."""


@record
class Piece:
    """What a concatenation has from the index `start` on: `size` indices of an expression.

    If that is all of another value, `value` is the one, and `dims` are the whole's for its own.
    """

    start: Index
    size: Index
    body: Expr
    value: str | None
    dims: Mapping[str, str]


@record
class Concatenation:
    """A nest that puts pieces side by side along a dim."""

    nest: Nest
    along: str
    pieces: tuple[Piece, ...]


@record
class Part:
    """Where a value lies in the memory of `whole`: from an index of `along` on.

    `dims` are the whole's for its own.
    """

    whole: str
    along: str
    start: Index
    dims: Mapping[str, str]

    def layout(self, whole: Layout, dims: Iterable[str], sizes: Mapping[str, Size]) -> Layout:
        """The layout of the part, whose dims these are.

        Raises:
            Illegal: The part is no range of the whole's memory.
        """
        own = {x: d for d, x in self.dims.items()}
        if self.along in whole.before or self.along in whole.after:
            raise Illegal(f"{value_name(self.whole)} has a halo along {self.along}, and parts")
        axes: list[Axis] = []
        for a in whole.axes:
            d = own.get(a.dim)
            if d is None:
                continue
            if a.dim == self.along and a.whole:
                self._check_blocks(a, sizes[d])
                axes.append(replace(a, dim=d, extent=plain(-(-Index.of(sizes[d]) // a.div))))
            else:
                axes.append(replace(a, dim=d))
        # Dims of one element that the whole has not.
        single = [d for d in dims if d not in self.dims]
        axes = [*(Axis(d, 1, whole.size) for d in single), *axes]
        halo = ((own[d], lo, hi) for d, lo, hi in whole.halo if d in own)
        extents = ((d, sizes[d]) for d in dims)
        return Layout(tuple(axes), tuple(sorted(halo)), whole.fill, tuple(sorted(extents)))

    def offset(self, whole: Layout) -> Size:
        """Elements of the whole's memory before the part's."""
        (axis,) = (a for a in whole.axes if a.dim == self.along and a.whole)
        return plain(self.start // axis.div * axis.stride)

    def _check_blocks(self, a: Axis, size: Size) -> None:
        if not (self.start.is_multiple(a.div) and Index.of(size).is_multiple(a.div)):
            raise Illegal(f"a part of {value_name(self.whole)} is no whole blocks of {self.along}")


@record
class Joins:
    """A graph with values that are joined, and the values that lie in others."""

    graph: Graph
    parts: Mapping[str, Part] = field(default_factory=dict)
    joined: frozenset[str] = frozenset()

    def home(self, value: str) -> str:
        """The value in whose memory one lies."""
        while value in self.parts:
            value = self.parts[value].whole
        return value

    def prepared(self, before: Prepared) -> Prepared:
        """What is known of the graph before, and of this one."""
        if not self.joined:
            return before
        homes = {**before.homes, **{v: self.home(v) for v in self.parts}}
        kept = replace(before.kept, joined=before.kept.joined | self.joined)
        return replace(before, graph=self.graph, homes=homes, kept=kept)


def with_joins(before: Prepared, graph: Graph, joins: Iterable[Join]) -> Joins:
    """The graph in which concatenations are no work.

    Raises:
        Illegal: A value is none, or has other parts.
    """
    wanted = {j.value: j for j in joins}
    if not wanted:
        return Joins(graph)
    maker = _Joiner(before, graph)
    nodes: list[Node] = []
    for n in graph.nodes:
        if isinstance(n, Nest) and n.out.name in wanted:
            nodes += maker.joined(n, wanted.pop(n.out.name))
        else:
            nodes.append(n)
    if wanted:
        raise Illegal(f"no nest computes {value_name(min(wanted))}, which is joined")
    found = replace(graph, dims=(*graph.dims, *maker.added), nodes=tuple(nodes))
    verify(found, since=graph)
    return Joins(found, maker.parts, frozenset(maker.joins))


class _Joiner:
    """Makes nests of the parts that lie elsewhere, and of what is joined."""

    def __init__(self, before: Prepared, graph: Graph) -> None:
        """Join nothing yet."""
        self.before, self.graph = before, graph
        self.may = Joinable(before, graph)
        self.views = views(graph)
        self.names = set(graph.values)
        self.dims = {d for d, _ in graph.dims} | {s for s, _ in graph.symbols}
        self.symbols = dict(graph.symbols)
        self.ranges = dict(graph.ranges)
        self.sizes = {d: plain(e) for d, e in graph.dims}
        self.added: list[tuple[str, Index]] = []
        self.parts: dict[str, Part] = {}
        self.joins: list[str] = []

    def joined(self, n: Nest, j: Join) -> Iterator[Nest]:
        """Yields the nests of a concatenation, which is the last one.

        Raises:
            Illegal: It is none, or has other parts.
        """
        what = concatenation(self.graph, n, self.views)
        if what is None or not self.may.join(what):
            raise Illegal(f"`{j}`: {value_name(j.value)} is no concatenation that can be joined")
        left = Counter(j.parts)
        reads: list[Expr] = []
        for p in what.pieces:
            if p.value is not None and left[p.value]:
                left[p.value] -= 1
                if p.value in self.parts or not self.may.part(what, p):
                    raise Illegal(f"`{j}`: {value_name(p.value)} cannot lie in another value")
                self.parts[p.value] = Part(j.value, what.along, p.start, p.dims)
                reads.append(p.body)
            else:
                made, r = self._apart(what, p)
                reads.append(r)
                yield made
        for v in left.elements():
            raise Illegal(f"`{j}`: {value_name(v)} is no part of {value_name(j.value)}")
        e: Expr = reads[-1]
        for p, first in zip(what.pieces[:0:-1], reads[-2::-1], strict=True):
            e = side_by_side(Index.of(what.along) - p.start, first, e)
        self.joins.append(j.value)
        yield replace(n, body=(e,))

    def _apart(self, what: Concatenation, p: Piece) -> tuple[Nest, Read]:
        """A nest that computes a piece, and what reads it in its place."""
        whole, along = what.nest.out, what.along
        name = fresh(f"{whole.name}.part", self.names)
        d = fresh(f"{along}.part", self.dims)
        self._add(d, p.size)
        moved = substitute(p.body, {along: p.start + Index.of(d)})
        body = without_fills(map_index(moved, lambda i: i.simplify(self.ranges)), self.sizes)
        same = {d if x == along else x: x for x in whole.dims}
        self.parts[name] = Part(whole.name, along, p.start, same)
        made = Value(name, whole.dtype, tuple(sorted(same)))
        at = {**{x: Index.of(x) for x in same}, d: Index.of(along) - p.start}
        read = Read(name, tuple(sorted(at.items())), whole.dtype, Lit(0, whole.dtype))
        return Nest((made,), (), None, (body,), what.nest.origin), read

    def _add(self, dim: str, size: Index) -> None:
        """Note a dim that the graph did not have."""
        self.added.append((dim, size))
        self.sizes[dim] = plain(size)
        limits = dim_range(size, self.symbols)
        if limits is not None:
            self.ranges[dim] = limits


class Joinable:
    """Tells which values may be joined, and which may lie in others."""

    def __init__(self, before: Prepared, graph: Graph) -> None:
        """Of a graph of which so much is known."""
        nodes = [n for n in walk_nodes(graph.nodes) if not isinstance(n, Nest)]
        self._graph = graph
        self._computed = bound_symbols(graph.nodes)
        homes = *before.homes, *before.homes.values(), *before.kept.joined
        self._bound = {*homes, *before.boxes, *(v for n in nodes for v in used(n))}
        outputs = (o.value for o in graph.outputs)
        self._elsewhere = {*self._bound, *before.fixed, *outputs}
        self._made = {v.name for n in graph.nodes if isinstance(n, Nest) for v in n.outs}

    def join(self, what: Concatenation) -> bool:
        """Whether parts may lie in a concatenation, whose size is known before any of them."""
        n, sizes = what.nest, self._graph.extents
        known = all(self._computed.isdisjoint(sizes[d].names()) for d in n.out.dims)
        return known and n.out.name not in self._bound

    def part(self, what: Concatenation, p: Piece) -> bool:
        """Whether the value of a piece may lie in the memory of the concatenation.

        Rows of bytes have whole groups of neighbours.
        """
        if p.value is None or p.value in self._elsewhere or p.value not in self._made:
            return False
        dtype = self._graph.values[p.value].dtype
        return dtype is what.nest.out.dtype and (dtype.bytes > 1 or p.size.is_multiple(NEIGHBOURS))


def concatenation(graph: Graph, n: Node, known: Mapping[str, Read]) -> Concatenation | None:
    """What a nest puts side by side; None if it does something else.

    `known` are the `views` of the graph.
    """
    if not isinstance(n, Nest) or n.reducer is not None or len(n.outs) != 1:
        return None
    (e,) = n.body
    along: str | None = None
    found: list[tuple[Index, Index, Expr]] = []
    start = ZERO
    while (cut := _cut(e, n.out.dims)) is not None:
        d, end, first, e = cut
        if along not in (None, d) or not _ascend(graph, start, end):
            return None
        along = d
        found.append((start, end, first))
        start = end
    if along is None or not _ascend(graph, start, graph.extents[along]):
        return None
    found.append((start, graph.extents[along], e))
    pieces = (_piece(graph, n.out, along, *f) for f in _merged(graph, found, known))
    return Concatenation(n, along, tuple(pieces))


def views(graph: Graph) -> dict[str, Read]:
    """The values that are ranges of others, or these under other dims: what they read."""
    found: dict[str, Read] = {}
    for n in graph.nodes:
        if isinstance(n, Nest) and n.reducer is None and len(n.outs) == 1:
            (e,) = n.body
            if isinstance(e, Read) and not is_gathered(e):
                found[n.out.name] = e
    return found


def _merged(
    graph: Graph, found: list[tuple[Index, Index, Expr]], known: Mapping[str, Read]
) -> list[tuple[Index, Index, Expr]]:
    """(start, end, expression) of pieces; what lies side by side in one value is one.

    %a[i=c], %b[j=c - 4], where %a{i} = %x[k=i] and %b{j} = %x[k=j + 4]     ->     %x[k=c]
    """
    result: list[tuple[Index, Index, Expr]] = []
    sources: list[Read | None] = []
    for start, end, e in found:
        source = e if isinstance(e, Read) else None
        while source is not None and source.value in known:
            at = dict(index_coords(source))
            inner = known[source.value]
            coords = (
                (d, c.subs(at).simplify(graph.ranges))
                for d, c in inner.coords
                if isinstance(c, Index)
            )
            source = Read(inner.value, tuple(coords), inner.dtype, source.fill)
        last = sources[-1] if sources else None
        if last is not None and source is not None and _is_same(last, source):
            result[-1] = result[-1][0], end, replace(source, fill=Lit(0, source.dtype))
        else:
            result.append((start, end, e))
        sources.append(source)
    return result


def _is_same(a: Read, b: Read) -> bool:
    return a.value == b.value and a.coords == b.coords


def _ascend(graph: Graph, start: Index, end: Index) -> bool:
    bounds = (end - start).simplify(graph.ranges).bounds(dict(graph.symbols))
    return bounds is not None and bounds[0] >= 0


def _cut(e: Expr, dims: tuple[str, ...]) -> tuple[str, Index, Expr, Expr] | None:
    """(dim, end, what is before that index of the dim, what is not): of select(dim < end, ..)."""
    if not (isinstance(e, Apply) and e.op == "select"):
        return None
    test, first, rest = e.args
    index = below_zero(test)
    own = [d for d in dims if index is not None and d in index.names()]
    if index is None or len(own) != 1:
        return None
    end = Index.of(own[0]) - index
    return None if own[0] in end.names() else (own[0], end, first, rest)


def _piece(graph: Graph, whole: Value, along: str, start: Index, end: Index, body: Expr) -> Piece:
    size = (end - start).simplify(graph.ranges)
    dims = _dims(graph, whole, along, start, size, body)
    value = body.value if dims is not None and isinstance(body, Read) else None
    return Piece(start, size, body, value, dims or {})


def _dims(
    graph: Graph, whole: Value, along: str, start: Index, size: Index, body: Expr
) -> Mapping[str, str] | None:
    """The whole's dims for those of a value that is the piece; None if no value is."""
    if not isinstance(body, Read):
        return None
    found: dict[str, str] = {}
    sizes = {**graph.extents, along: size}
    for d, c in body.coords:
        if not isinstance(c, Index):
            return None
        own = (c + start).as_var if along in c.names() else c.as_var
        if own in whole.dims and graph.extents[d] == sizes[own]:
            found[d] = own
        elif c != ZERO or graph.extents[d] != ONE:
            return None
    left = set(whole.dims) - set(found.values())
    once = len(set(found.values())) == len(found)
    return found if once and all(sizes[d] == ONE for d in left) else None
