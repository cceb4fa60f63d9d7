"""The verifier: what every graph must fulfil, checked at construction and after every pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NoReturn, assert_never

import numpy as np

from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr, Local, Read, indices, walk
from rutc.tensor_ir.graph import (
    Bind,
    Body,
    Call,
    Carry,
    Const,
    Data,
    Graph,
    If,
    Input,
    Nest,
    Node,
    Scan,
    Scatter,
    Value,
    While,
    bodies,
    mentioned,
    outs,
    used,
    walk_nodes,
)
from rutc.tensor_ir.indices.affine import Index, Range
from rutc.tensor_ir.textual.text import node_lines, value_name
from rutc.tensor_ir.typecheck import reducer_fault, type_fault

WINDOW = 4
"""Lines shown before and after a fault."""
POINTS = 1 << 22
"""A coordinate whose bounds are not tight is tried at every point if there are no more."""

Scope = Mapping[str, Value]


class VerifyError(InternalError):
    """A graph that breaks a rule of the language; shows the lines around the fault."""


def verify(graph: Graph, since: Graph | None = None) -> None:
    """Check every rule of the graph language.

    Args:
        graph: The graph to check.
        since: A graph that was checked before: its nodes, where they read the same values, have
            only to stand after these.

    Raises:
        VerifyError: Naming the rule that is broken, with a window of the graph's text.
    """
    _Verifier(graph, since).graph_rules()


class _Verifier:
    """One check of one graph: the names seen and the scan counters of the bodies around."""

    def __init__(self, graph: Graph, since: Graph | None) -> None:
        self.graph = graph
        self.before = since.values if since is not None else {}
        self.resized = _resized(since, graph) if since is not None else frozenset()
        self.checked = _lasting(since, graph, self.resized) if since is not None else frozenset()
        self.symbols = dict(graph.symbols)
        self.ranges = dict(graph.ranges)
        self.inputs = {id(n) for n in graph.nodes if isinstance(n, Input)}
        self.seen: set[str] = set()
        self.counters: tuple[str, ...] = ()
        self.node: Node | None = None
        binds = [n.symbol for n in walk_nodes(graph.nodes) if isinstance(n, Bind)]
        self.distinct("binds", binds)
        self.unbound = set(binds)

    def fail(self, message: str) -> NoReturn:
        """Raise the error `message` about the node at hand."""
        origin = ", ".join(self.node.origin) if self.node is not None else ""
        source = f" (from {origin})" if origin else ""
        raise VerifyError(f"{message}{source}\n{_window(self.graph, self.node)}")

    def graph_rules(self) -> None:
        g = self.graph
        self.distinct("symbols", [s for s, _ in g.symbols])
        self.distinct("dims", [d for d, _ in g.dims])
        self.distinct("dims and symbols", [*self.symbols, *g.extents])
        for s, (low, high) in g.symbols:
            if low > high:
                self.fail(f"the range {low}..{high} of symbol {s} is empty")
        for d, extent in g.dims:
            unknown = extent.names() - self.symbols.keys()
            if unknown:
                self.fail(f"the extent {extent} of dim {d} uses unknown {sorted(unknown)}")
            bounds = extent.bounds(self.symbols)
            if bounds is not None and bounds[1] < 0:
                self.fail(f"the extent {extent} of dim {d} is negative")
        scope = self.nodes(g.nodes, {})
        self.node = None
        self.distinct("inputs", [n.name for n in g.inputs])
        self.distinct("outputs", [o.name for o in g.outputs])
        for o in g.outputs:
            if o.value not in scope:
                self.fail(f"output {o.name!r} is %{o.value}, which is not defined")
            self.axes(f"output {o.name!r}", o.axes, scope[o.value])

    def nodes(self, nodes: Iterable[Node], scope: Scope) -> Scope:
        """Check a list of nodes; the values known after it."""
        known = dict(scope)
        bound: list[str] = []
        for n in nodes:
            self.node = n
            self.sizes(n)
            if self.is_checked(n, known):
                for v in outs(n):
                    self.new(v)
            else:
                for v in outs(n):
                    self.value(v)
                self.node_rules(n, known)
            self.node = n
            for v in outs(n):
                known[v.name] = v
            if isinstance(n, Bind):
                bound.append(n.symbol)
                self.unbound.discard(n.symbol)
        self.unbound.update(bound)
        return known

    def is_checked(self, n: Node, known: Scope) -> bool:
        """Whether the node was found to follow the rules, reading the same values."""
        return id(n) in self.checked and all(
            v in known and known[v] == self.before[v] and self.resized.isdisjoint(known[v].dims)
            for v in used(n)
        )

    def sizes(self, n: Node) -> None:
        """Check that the node mentions no size that a later node binds."""
        if not self.unbound:
            return
        extents = self.graph.extents
        names = {s for d in mentioned(n) for s in (extents[d].names() if d in extents else (d,))}
        early = sorted(names & self.unbound)
        if early:
            self.fail(f"the size {early[0]} is used where nothing has bound it")

    def node_rules(self, n: Node, scope: Scope) -> None:
        match n:
            case Input():
                if id(n) not in self.inputs:
                    self.fail("an input stands in a body")
                self.axes(f"input {n.name!r}", n.axes, n.out)
                if n.fixed is not None:
                    self.data(f"the fixed input {n.name!r}", n.fixed, n.axes, n.out)
            case Const():
                self.axes("the constant", n.axes, n.out)
                self.data("the constant", n.data, n.axes, n.out)
            case Nest():
                self.nest(n, scope)
            case Scan():
                self.scan(n, scope)
            case While():
                inner = self.enter(n.carries, scope)
                if n.cond not in [c.param.name for c in n.carries]:
                    self.fail(f"the condition %{n.cond} is no carried parameter")
                self.condition(n.cond, inner)
                self.leave(n, n.carries, self.nodes(n.body, inner))
                self.same(n.outs, [c.param for c in n.carries])
            case If():
                self.condition(n.cond, scope)
                for branch in (n.then, n.orelse):
                    self.branch(n, branch, scope)
            case Scatter():
                self.scatter(n, scope)
            case Bind():
                if n.symbol not in self.symbols:
                    self.fail(f"the symbol {n.symbol} is unknown")
                scalar = Value(n.out.name, DType.I64, ())
                self.same((n.out, self.known(n.value, scope)), (scalar, scalar))
            case Call():
                if len(n.arg_axes) != len(n.args) or len(n.out_axes) != len(n.outs):
                    self.fail("a call names the axes of each of its operands and results")
                for name, axes in zip(n.args, n.arg_axes, strict=True):
                    self.axes("the operand", axes, self.known(name, scope))
                for v, axes in zip(n.outs, n.out_axes, strict=True):
                    self.axes("the result", axes, v)
            case _:
                assert_never(n)

    # -- nodes ----------------------------------------------------------------------------------
    def data(self, what: str, data: Data, axes: tuple[str, ...], out: Value) -> None:
        symbolic = [d for d in axes if not self.graph.extents[d].is_const]
        if symbolic:
            self.fail(f"{what} has the symbolic dims {symbolic}")
        shape = tuple(self.graph.extent(d) for d in axes)
        if data.dtype != out.dtype.numpy or data.shape != shape:
            self.fail(f"the data are {data.dtype}{list(data.shape)}, not {out.dtype}{list(shape)}")

    def nest(self, n: Nest, scope: Scope) -> None:
        if not n.outs or any(v.dims != n.out.dims for v in n.outs):
            self.fail("the outputs of a nest must have the same dims")
        self.space(n.dims)
        for e in n.body:
            self.expr(e, n.dims, scope)
        types = tuple(e.dtype for e in n.body)
        given = tuple(v.dtype for v in n.outs)
        if n.reducer is None:
            if n.bound or types != given or len(types) != 1:
                self.fail(
                    f"a nest without a reducer has no bound dims and one body of its output's "
                    f"type; here {_types(types)} for {_types(given)} over {list(n.bound)}"
                )
            return
        fault = reducer_fault(n.reducer)
        if fault is not None:
            self.fail(fault)
        if types != n.reducer.elements or given != n.reducer.outputs:
            self.fail(
                f"{n.reducer.name} makes {_types(n.reducer.outputs)} of "
                f"{_types(n.reducer.elements)}, not {_types(given)} of {_types(types)}"
            )

    def scan(self, n: Scan, scope: Scope) -> None:
        self.space((n.dim,))
        inner = self.enter(n.carries, scope)
        outer = self.counters
        self.counters = (*outer, n.dim)
        inner = self.nodes(n.body, inner)
        self.counters = outer
        self.leave(n, n.carries, inner)
        wanted = [c.param for c in n.carries]
        for name in n.collected:
            v = self.known(name, inner)
            if n.dim in v.dims:
                self.fail(f"the collected %{name} has the scanned dim {n.dim} already")
            wanted.append(Value(name, v.dtype, tuple(sorted((*v.dims, n.dim)))))
        self.same(n.outs, wanted)
        if any(n.dim in c.param.dims for c in n.carries):
            self.fail(f"a carried value has the scanned dim {n.dim}")

    def branch(self, n: If, branch: Body, scope: Scope) -> None:
        inner = self.nodes(branch.nodes, scope)
        self.node = n
        self.same(n.outs, [self.known(r, inner) for r in branch.results])

    def scatter(self, n: Scatter, scope: Scope) -> None:
        base = self.known(n.base, scope)
        self.same((n.out,), [base])
        self.space(n.dims)
        self.coord_dims(n.base, n.coords, base)
        for _, c in n.coords:
            self.coord(c, n.dims, scope)
        self.expr(n.body, n.dims, scope)
        kind = (base.dtype,)
        if n.body.dtype is not base.dtype:
            self.fail(f"{n.body.dtype} is scattered into {base.dtype}")
        if n.reducer is not None:
            fault = reducer_fault(n.reducer)
            if fault is not None or n.reducer.elements != kind or n.reducer.outputs != kind:
                self.fail(fault or f"{n.reducer.name} does not make {base.dtype} of itself")

    # -- carried values -------------------------------------------------------------------------
    def enter(self, carries: Sequence[Carry], scope: Scope) -> Scope:
        inner = dict(scope)
        for c in carries:
            self.value(c.param)
            self.same((c.param,), [self.known(c.init, scope)])
            inner[c.param.name] = c.param
        return inner

    def leave(self, n: Node, carries: Sequence[Carry], inner: Scope) -> None:
        self.node = n
        for c in carries:
            self.same((c.param,), [self.known(c.next, inner)])

    def condition(self, name: str, scope: Scope) -> None:
        v = self.known(name, scope)
        if v.dtype is not DType.BOOL or v.dims:
            self.fail(f"the condition {_shown(v)} is no bool scalar")

    def same(self, given: Sequence[Value], wanted: Sequence[Value]) -> None:
        """Check that values agree in number, types and dims."""
        if [(v.dtype, v.dims) for v in given] != [(v.dtype, v.dims) for v in wanted]:
            self.fail(
                f"{', '.join(map(_shown, given))} must agree with {', '.join(map(_shown, wanted))}"
            )

    # -- names ----------------------------------------------------------------------------------
    def distinct(self, what: str, names: Sequence[str]) -> None:
        double = sorted({x for x in names if names.count(x) > 1}) if _repeats(names) else []
        if double:
            self.fail(f"{what} occur twice: {', '.join(double)}")

    def new(self, v: Value) -> None:
        if v.name in self.seen:
            self.fail(f"%{v.name} is defined a second time")
        self.seen.add(v.name)

    def value(self, v: Value) -> None:
        self.new(v)
        for d in v.dims:
            if d not in self.graph.extents:
                self.fail(f"%{v.name} has the unknown dim {d}")
            if d in self.counters:
                self.fail(f"%{v.name} has the dim {d}, which is a scan's counter here")
        sizes = [self.graph.extents[d].bounds(self.symbols) for d in v.dims]
        least = prod(max(0, b[0]) if b is not None else 1 for b in sizes)
        if least * v.dtype.bytes >= 1 << 63:
            self.fail(f"{_shown(v)} takes 2**63 bytes or more")

    def known(self, name: str, scope: Scope) -> Value:
        if name not in scope:
            self.fail(f"%{name} is used but not defined before")
        return scope[name]

    def axes(self, what: str, axes: Sequence[str], v: Value) -> None:
        if tuple(sorted(axes)) != v.dims:
            self.fail(f"the axes {list(axes)} of {what} are not the dims of {_shown(v)}")

    def space(self, dims: Sequence[str]) -> None:
        """Check the dims of an iteration space."""
        self.distinct("dims of one space", dims)
        for d in dims:
            if d not in self.graph.extents:
                self.fail(f"dim {d} is unknown")
            if d in self.counters:
                self.fail(f"dim {d} is a scan's counter here")

    # -- expressions ----------------------------------------------------------------------------
    def expr(self, e: Expr, dims: Sequence[str], scope: Scope) -> None:
        fault = type_fault(e)
        if fault is not None:
            self.fail(fault)
        for i in indices(e):
            self.index(i, dims)
        for x in walk(e):
            if isinstance(x, Local):
                self.fail(f"the local ${x.name} stands outside of a reducer")
            elif isinstance(x, Read):
                self.read(x, dims, scope)

    def index(self, i: Index, dims: Sequence[str]) -> None:
        free = i.names() - self.symbols.keys() - set(dims) - set(self.counters)
        if free:
            self.fail(
                f"{i} uses {sorted(free)}, neither dims of the space {list(dims)} nor symbols"
            )

    def coord(self, c: Coord, dims: Sequence[str], scope: Scope) -> None:
        if isinstance(c, Index):
            self.index(c, dims)
            return
        if c.dtype is not DType.I64:
            self.fail(f"a data-dependent coordinate is {c.dtype}, not i64")
        self.expr(c, dims, scope)

    def coord_dims(self, name: str, coords: Sequence[tuple[str, Coord]], v: Value) -> None:
        given = tuple(d for d, _ in coords)
        if given != v.dims:
            self.fail(f"%{name} is read at {list(given)} but its dims are {list(v.dims)}")

    def read(self, r: Read, dims: Sequence[str], scope: Scope) -> None:
        v = self.known(r.value, scope)
        self.coord_dims(r.value, r.coords, v)
        if r.dtype is not v.dtype:
            self.fail(f"a read of %{r.value} is {r.dtype} but the value is {v.dtype}")
        if r.fill is not None and r.fill.dtype is not v.dtype:
            self.fail(f"the fill of a read of %{r.value} is {r.fill.dtype}, not {v.dtype}")
        for d, c in r.coords:
            if not isinstance(c, Index):
                if c.dtype is not DType.I64:
                    self.fail(f"the coordinate {d} of %{r.value} is {c.dtype}, not i64")
                continue
            if r.fill is None and c.as_var != d:
                self.inside(r, d, c, dims)

    def inside(self, r: Read, d: str, c: Index, dims: Sequence[str]) -> None:
        """Check that a coordinate without a fill stays in the extent of `d`."""
        extent = self.graph.extents[d]
        bounds = c.bounds(self.ranges)
        limit = extent.bounds(self.symbols)
        if bounds is None or limit is None:
            return
        if bounds[0] >= 0 and bounds[1] < limit[0]:
            return
        space = [self.graph.extents[x] for x in (*dims, *self.counters)]
        if any(x.is_const and x.const <= 0 for x in space):
            return
        exact = extent.is_const and all(
            x in self.graph.extents and self.graph.extents[x].is_const for x in c.names()
        )
        if exact:
            bounds = _tight_bounds(c, self.ranges) or bounds
        certain = bounds[1] < 0 or bounds[0] >= limit[1] > 0
        if certain or (exact and (bounds[0] < 0 or bounds[1] >= limit[1])):
            self.fail(
                f"the coordinate {d}={c} of %{r.value} ranges over {bounds[0]}..{bounds[1]}, "
                f"outside of the extent {extent}, and has no fill"
            )


def _resized(before: Graph, graph: Graph) -> frozenset[str]:
    """The dims of a graph that another one has not, or of another extent."""
    now = graph.extents
    return frozenset(d for d, extent in before.dims if d not in now or now[d] != extent)


def _lasting(before: Graph, graph: Graph, resized: frozenset[str]) -> frozenset[int]:
    """The nodes of a checked graph, by identity, that follow the rules in another graph as well.

    As long as they read the same values. They stand outside of all bodies in both.
    """
    if before.symbols != graph.symbols:
        return frozenset()
    outside = {id(n) for n in graph.nodes}
    return frozenset(
        id(n)
        for n in before.nodes
        if id(n) in outside
        and not bodies(n)
        and not (resized and any(d in resized for d in mentioned(n)))
    )


def _tight_bounds(c: Index, ranges: Mapping[str, Range]) -> Range | None:
    """The exact bounds, from the simplified form or from all points if they are few."""
    c = c.simplify(ranges)
    names = sorted(c.names())
    counts = [ranges[x][1] - ranges[x][0] + 1 for x in names]
    if prod(counts) > POINTS:
        return c.bounds(ranges)
    env = {
        x: np.arange(ranges[x][0], ranges[x][1] + 1).reshape(
            [-1 if k == i else 1 for k in range(len(names))]
        )
        for i, x in enumerate(names)
    }
    found = np.asarray(c.evaluate(env))
    return int(found.min()), int(found.max())


def _repeats(names: Sequence[str]) -> bool:
    return len(set(names)) != len(names)


def _types(types: Iterable[DType]) -> str:
    return f"({', '.join(map(str, types))})"


def _shown(v: Value) -> str:
    return f"{value_name(v.name)} : {v.dtype}{{{','.join(v.dims)}}}"


def _window(g: Graph, n: Node | None) -> str:
    """The lines of the graph's text around a node, the node's marked."""
    lines = str(g).splitlines()
    if n is None:
        heads = [i for i, line in enumerate(lines) if not line.startswith((" ", "%", "}"))]
        return "\n".join(f"  {lines[i]}" for i in heads)
    first = next(node_lines(n))
    at = next(i for i, line in enumerate(lines) if line.strip() == first)
    return "\n".join(_marked(lines, at))


def _marked(lines: Sequence[str], at: int) -> Iterator[str]:
    for i in range(max(0, at - WINDOW), min(len(lines), at + WINDOW + 1)):
        yield f"{'>' if i == at else ' '} {lines[i]}"
