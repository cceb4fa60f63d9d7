"""Inputs that say where in a table something is, as ids of tokens do, and how long tables are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import COMPARE, Apply, Cast, Coord, Expr, Lit, Read, children
from rutc.tensor_ir.graph import Graph, bound_symbols
from rutc.tensor_ir.nodes import Call, Nest, Node, Scatter, outs, used, walk_nodes

CHECK = "check_position"


def table_rows(graph: Graph) -> Mapping[str, tuple[Index, ...]]:
    """Returns the extents of the axes along which the elements of inputs are places, by their name.

    %w[d=%ids[i], k]            extent(d) = 30522     ->  ids: 30522
    %w[d=i32(%ids[i]), k]
    %w[d=%ids[i] + 2, k]                              ->  ids: 30520

    They are constant, or formulas of the inputs' sizes. An input of which anything else is asked
    has none: what is computed or a bool may be true of small numbers only. But it may be compared,
    as ids that pad are, and that places are in range may be checked, with `check_position`.
    """
    found = _Places(graph)
    known = {s for n in graph.inputs for axis in n.axes for s in graph.extents[axis].names()}
    known -= bound_symbols(graph.nodes)
    rows: dict[str, tuple[Index, ...]] = {}
    for n in graph.inputs:
        extents = found.of(n.out.name) if n.out.dtype.is_int else None
        if extents and all(known.issuperset(e.names()) for e in extents):
            rows[n.name] = tuple(dict.fromkeys(extents))
    return rows


class _Places:
    """What the values of a graph are read for.

    Attributes:
        lengths: The values that checks of places give.
        others: The values of which anything is asked but a place, where it is, and how it compares.
        compared: The values that are compared.
        places: The extents of the axes along which a value's elements are places.
        moved: The values that hold the elements of another, and how much is added to these.
    """

    def __init__(self, graph: Graph) -> None:
        self.extents = graph.extents
        nodes = tuple(walk_nodes(graph.nodes))
        checks = [n for n in nodes if isinstance(n, Call) and n.routine == CHECK]
        self.lengths = {v.name for n in checks for v in outs(n)}
        self.others = {o.value for o in graph.outputs}
        self.compared: set[str] = set()
        self.places: dict[str, list[Index]] = {}
        self.moved: dict[str, list[tuple[str, int]]] = {}
        for n in nodes:
            if not isinstance(n, Nest | Scatter) and n not in checks:
                self.others.update(used(n))
        # Those that read what a node gives come before it.
        for n in reversed(nodes):
            self.add(n)

    def of(self, name: str) -> list[Index] | None:
        """The extents of a value's axes; None if it is more than a place."""
        if name in self.others:
            return None
        found = list(self.places.get(name, ()))
        for out, added in self.moved.get(name, ()):
            inner = self.of(out)
            if inner is None:
                return None
            found += [extent - added for extent in inner]
        return found

    def add(self, n: Node) -> None:
        """Takes in a node, without what its bodies hold."""
        match n:
            case Nest():
                asked = [v.name for v in n.outs if self.is_asked(v.name)]
                whole = _moved(n.body[0]) if n.reducer is None else None
                if whole is not None and asked:
                    read, added = whole
                    self.moved.setdefault(read.value, []).extend((name, added) for name in asked)
                    self.coordinates(read.coords)
                elif asked:
                    for e in n.body:
                        self.within(e)
            case Scatter():
                self.others.add(n.base)
                self.within(n.body)
                self.coordinates(n.coords)
            case _:
                pass

    def is_asked(self, name: str) -> bool:
        """Whether anything but a check reads a value."""
        known = (self.others, self.compared, self.places, self.moved)
        return any(name in values for values in known)

    def within(self, e: Expr) -> None:
        """Takes in an expression with whose parts something is computed."""
        left, seen = [e], set[int]()
        while left:
            x = left.pop()
            if isinstance(x, Read):
                self.others.add(x.value)
                self.coordinates(x.coords)
            elif id(x) not in seen:
                seen.add(id(x))
                left += self.compare(x)

    def compare(self, e: Expr) -> Iterator[Expr]:
        """Yields the operands of an operation that are more than compared."""
        for x in children(e):
            moved = _moved(x) if isinstance(e, Apply) and e.op in COMPARE else None
            if moved is None:
                yield x
            else:
                read, _ = moved
                self.compared.add(read.value)
                self.coordinates(read.coords)

    def coordinates(self, coords: tuple[tuple[str, Coord], ...]) -> None:
        """Takes in what tells where something is."""
        for dim, c in coords:
            if isinstance(c, Index):
                continue
            place = self.place(c)
            if place is None:
                self.within(c)
                continue
            read, added = place
            self.places.setdefault(read.value, []).append(self.extents[dim] - added)
            self.coordinates(read.coords)

    def place(self, c: Expr) -> tuple[Read, int] | None:
        """The read that a coordinate is where that is in range, and what is added to it."""
        match c:
            case Read() | Cast() | Apply("add"):
                return _moved(c)
            case Apply("min", (x, Read(most))) if most in self.lengths:
                return _moved(x)
            case Apply("select", (Apply("lt", (x, Lit(0))), _, other)):
                found = self.place(other)
                return found if found == _moved(x) else None
            case _:
                return None


def _moved(e: Expr) -> tuple[Read, int] | None:
    """The read whose element an expression is, in a type that holds any place, and what is added.

    That is a constant, and not negative.
    """
    added = 0
    while True:
        match e:
            case Cast(dtype=dtype) if dtype.is_int and dtype.bits >= DType.I32.bits:
                e = e.arg
            case Apply("add", (x, Lit(more))) | Apply("add", (Lit(more), x)) if (
                isinstance(more, int) and more >= 0 and x.dtype.bits >= DType.I32.bits
            ):
                e, added = x, added + more
            case Read() if e.dtype.is_int:
                return e, added
            case _:
                return None
