"""The nodes of graphs, and what they define, use and hold; `graph` says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import assert_never

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.data import Data
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr, Read, indices, operations, read_values, reads
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.reducer import Reducer

Origin = tuple[str, ...]


@record
class Value:
    """A named value with its element type and its dims, sorted by name."""

    name: str
    dtype: DType
    dims: tuple[str, ...]

    def __post_init__(self) -> None:
        if tuple(sorted(set(self.dims))) != self.dims:
            raise ValueError(f"dims of %{self.name} are not sorted and distinct: {self.dims}")


@record
class Input:
    """A model input: `name` and axis order are the interface; `fixed` what alone it may hold."""

    out: Value
    name: str
    axes: tuple[str, ...]
    origin: Origin = ()
    fixed: Data | None = None


@record
class Const:
    """A constant; `axes` names the axes of `data` in order."""

    out: Value
    axes: tuple[str, ...]
    data: Data
    origin: Origin = ()


@record
class Nest:
    """For all dims of the outputs, reduce `body` over `bound`. All outputs share their dims."""

    outs: tuple[Value, ...]
    bound: tuple[str, ...]
    reducer: Reducer | None
    body: tuple[Expr, ...]
    origin: Origin = ()

    @cached_property
    def operations(self) -> int:
        """The operations and casts of the body."""
        return sum(map(operations, self.body))

    @property
    def out(self) -> Value:
        """The first output."""
        return self.outs[0]

    @property
    def dims(self) -> tuple[str, ...]:
        """The iteration space: free dims, then bound dims."""
        return (*self.out.dims, *self.bound)

    @property
    def is_sum(self) -> bool:
        """Whether what is reduced is added up."""
        return self.reducer is not None and self.reducer.name == "sum"

    @property
    def is_view(self) -> bool:
        """Whether the body only reads: no arithmetic, no gather, no fill."""
        return (
            self.reducer is None
            and isinstance(self.body[0], Read)
            and self.body[0].fill is None
            and all(isinstance(c, Index) for _, c in self.body[0].coords)
        )


@record
class Carry:
    """One carried value: `param` is `init` in the first trip, later the last trip's `next`."""

    param: Value
    init: str
    next: str


@record
class Scan:
    """Trips over `dim` in order. `outs` are the carried values' last states, then the collected.

    A body value in `collected` of dims D becomes an output of dims D + {dim}.
    """

    outs: tuple[Value, ...]
    dim: str
    carries: tuple[Carry, ...]
    collected: tuple[str, ...]
    body: tuple[Node, ...]
    origin: Origin = ()


@record
class Body:
    """A branch: nodes and the values that it yields."""

    nodes: tuple[Node, ...]
    results: tuple[str, ...]


@record
class If:
    """`outs` are the results of one branch, chosen by the bool scalar `cond`."""

    outs: tuple[Value, ...]
    cond: str
    then: Body
    orelse: Body
    origin: Origin = ()


@record
class While:
    """Trips while the bool scalar `cond` (a carried parameter) holds; outputs the last states."""

    outs: tuple[Value, ...]
    cond: str
    carries: tuple[Carry, ...]
    body: tuple[Node, ...]
    origin: Origin = ()


@record
class Scatter:
    """`base` with `body`, for every point of `dims`, combined into the element at `coords`."""

    out: Value
    base: str
    dims: tuple[str, ...]
    coords: tuple[tuple[str, Coord], ...]
    reducer: Reducer | None
    body: Expr
    origin: Origin = ()


Attribute = int | float | str | tuple[int, ...]


@record
class Call:
    """A routine of the host runtime, for what is no loop nest (sorting, strings, ...).

    `arg_axes` and `out_axes` are the orders in which the routine sees the axes of its operands and
    results; by default operands have none, and results' are in the order of their sorted dims.
    """

    outs: tuple[Value, ...]
    routine: str
    args: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    origin: Origin = ()
    arg_axes: tuple[tuple[str, ...], ...] = ()
    out_axes: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.arg_axes:
            object.__setattr__(self, "arg_axes", ((),) * len(self.args))
        if not self.out_axes:
            object.__setattr__(self, "out_axes", tuple(v.dims for v in self.outs))


@record
class Bind:
    """The size `symbol` is the i64 scalar `value`, which `out` equals."""

    out: Value
    symbol: str
    value: str
    origin: Origin = ()


Node = Input | Const | Nest | Scan | If | While | Scatter | Call | Bind


def outs(n: Node) -> tuple[Value, ...]:
    """The values that a node gives to the nodes after it."""
    if isinstance(n, Nest):
        return n.outs
    match n:
        case Input() | Const() | Scatter() | Bind():
            return (n.out,)
        case Scan() | If() | While() | Call():
            return n.outs
        case _:
            assert_never(n)


def bodies(n: Node) -> tuple[tuple[Node, ...], ...]:
    """The node lists nested in a node."""
    if isinstance(n, Nest):
        return ()
    match n:
        case Scan() | While():
            return (n.body,)
        case If():
            return (n.then.nodes, n.orelse.nodes)
        case Input() | Const() | Scatter() | Call() | Bind():
            return ()
        case _:
            assert_never(n)


def with_bodies(n: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """The node with each of its bodies changed; itself if it has none."""
    match n:
        case Scan() | While():
            return replace(n, body=change(n.body))
        case If():
            then, orelse = (replace(b, nodes=change(b.nodes)) for b in (n.then, n.orelse))
            return replace(n, then=then, orelse=orelse)
        case _:
            return n


def defined(n: Node) -> tuple[Value, ...]:
    """The values that a node defines itself: its outputs and its carried parameters."""
    if isinstance(n, Nest):
        return n.outs
    params = tuple(c.param for c in n.carries) if isinstance(n, Scan | While) else ()
    return (*outs(n), *params)


def walk_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """All nodes, each before those of its bodies."""
    for n in nodes:
        yield n
        if not isinstance(n, Nest):
            for body in bodies(n):
                yield from walk_nodes(body)


def used(n: Node) -> Iterator[str]:
    """The values that a node itself reads, those read by its bodies left out.

    One that several reads are of may occur several times.
    """
    if isinstance(n, Nest):
        # Every step asks this of all nests, most of which have one expression.
        return iter(read_values(n.body[0])) if len(n.body) == 1 else _each_read(n)
    return _used_besides(n)


def _each_read(n: Nest) -> Iterator[str]:
    return chain.from_iterable(map(read_values, n.body))


def _used_besides(n: Input | Const | Scan | If | While | Scatter | Call | Bind) -> Iterator[str]:
    """The values that a node itself reads that is no nest."""
    match n:
        case Input() | Const():
            return
        case Scan():
            for c in n.carries:
                yield from (c.init, c.next)
            yield from n.collected
        case While():
            yield n.cond
            for c in n.carries:
                yield from (c.init, c.next)
        case If():
            yield n.cond
            yield from (*n.then.results, *n.orelse.results)
        case Scatter():
            yield n.base
            yield from (r.value for r in reads(n.body))
            for _, coord in n.coords:
                if not isinstance(coord, Index):
                    yield from (r.value for r in reads(coord))
        case Call():
            yield from n.args
        case Bind():
            yield n.value
        case _:
            assert_never(n)


def mentioned(n: Node) -> Iterator[str]:
    """The dims and symbols that a node itself mentions, those of values that it reads left out."""
    for v in defined(n):
        yield from v.dims
    exprs: tuple[Expr, ...] = ()
    coords: tuple[Coord, ...] = ()
    match n:
        case Nest():
            exprs = n.body
            yield from n.bound
        case Scan():
            yield n.dim
        case Scatter():
            exprs, coords = (n.body,), tuple(c for _, c in n.coords)
            yield from n.dims
        case _:
            pass
    for c in coords:
        if isinstance(c, Index):
            yield from c.names()
        else:
            exprs = (*exprs, c)
    for e in exprs:
        for i in indices(e):
            yield from i.names()


def bound_symbols(nodes: Iterable[Node]) -> frozenset[str]:
    """The sizes that the nodes compute, those in bodies included."""
    return frozenset(n.symbol for n in walk_nodes(tuple(nodes)) if isinstance(n, Bind))


def used_deep(n: Node) -> Iterator[str]:
    """The values that a node and its bodies read."""
    return used(n) if isinstance(n, Nest) else _used_inside(n)


def _used_inside(n: Node) -> Iterator[str]:
    yield from used(n)
    for body in bodies(n):
        for inner in body:
            yield from used_deep(inner)
