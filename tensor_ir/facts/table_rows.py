"""Inputs that say where in a table something is, as ids of tokens do, and how long tables are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import COMPARE, Apply, Cast, Coord, Expr, Lit, Read, children
from rutc.tensor_ir.graph import Graph, bound_symbols
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.nodes import Call, Nest, Node, Scatter, outs, used, walk_nodes

CHECK = "check_position"


def table_rows(graph: Graph) -> Mapping[str, tuple[Index, ...]]:
    """Returns the extents of the axes along which the elements of inputs are places, by their name.

    %w[d=%ids[i], k]            extent(d) = 30522     ->  ids: 30522
    %w[d=i32(%ids[i]), k]
    %w[d=%ids[i] + 2, k]                              ->  ids: 30520
    %w[d=%p[i] < 0 ? %p[i] + 30522 : %p[i], k]        ->  p: 30522
        with %p = %ids[i] - 2                         ->  ids: 30524
        with %p = min(max(%ids[i], 0), 9)             ->  ids: 30522
        with %p = %pad[i] ? 1 : %ids[i]               ->  ids: 30522

    They are constant, or formulas of the inputs' sizes. An input of which anything else is asked
    has none: what is computed or a bool may be true of small numbers only. But it may be compared,
    as ids that pad are, and that places are in range may be checked, with `check_position`.
    """
    if not any(n.out.dtype.is_int for n in graph.inputs):
        return {}
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
        places: The extents of the axes along which a value's elements are places, how much is
            added to these, and whether they count from the end where they are negative.
        moved: The values that hold the elements of another, and how much is added to these.
    """

    def __init__(self, graph: Graph) -> None:
        self.extents = graph.extents
        nodes = tuple(walk_nodes(graph.nodes))
        checks = [n for n in nodes if isinstance(n, Call) and n.routine == CHECK]
        self.lengths = {v.name for n in checks for v in outs(n)}
        self.others = {o.value for o in graph.outputs}
        self.compared: set[str] = set()
        self.places: dict[str, list[tuple[Index, int, bool]]] = {}
        self.moved: dict[str, list[tuple[str, int]]] = {}
        for n in nodes:
            if not isinstance(n, Nest | Scatter) and n not in checks:
                self.others.update(used(n))
        # Those that read what a node gives come before it.
        for n in reversed(nodes):
            self.add(n)

    def of(self, name: str, added: int = 0) -> list[Index] | None:
        """The extents of the axes for a value to which so much is added.

        None if that is more than a place, or none for numbers from 0 on.
        """
        if name in self.others:
            return None
        found: list[Index] = []
        for extent, more, wraps in self.places.get(name, ()):
            total = added + more
            if extent.is_const and total and extent.const <= abs(total):
                return None
            if total < 0 and not (wraps and extent.is_const):
                return None
            found.append(extent - total)
        for out, more in self.moved.get(name, ()):
            inner = self.of(out, added + more)
            if inner is None:
                return None
            found += inner
        return found

    def add(self, n: Node) -> None:
        """Takes in a node, without what its bodies hold."""
        match n:
            case Nest():
                asked = [v.name for v in n.outs if self.is_asked(v.name)]
                whole = _moved(n.body[0]) if n.reducer is None else None
                if whole is not None and asked:
                    for read, added in self.reads(whole):
                        self.moved.setdefault(read.value, []).extend((v, added) for v in asked)
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
                self.compared.update(read.value for read, _ in self.reads(moved))

    def coordinates(self, coords: tuple[tuple[str, Coord], ...]) -> None:
        """Takes in what tells where something is."""
        for dim, c in coords:
            if isinstance(c, Index):
                continue
            place, wraps = self.place(c)
            if place is None:
                self.within(c)
                continue
            for read, added in self.reads(place):
                along = self.extents[dim], added, wraps
                self.places.setdefault(read.value, []).append(along)

    def reads(self, moved: _Moved) -> tuple[tuple[Read, int], ...]:
        """The reads of an expression and what is added to each, all else in it taken in."""
        for read, _ in moved.reads:
            self.coordinates(read.coords)
        for e in moved.conditions:
            self.within(e)
        return moved.reads

    def place(self, c: Expr) -> tuple[_Moved | None, bool]:
        """What a coordinate is where that is in range, and whether negative ones wrap around."""
        match c:
            case Apply("min", (x, Read(most))) if most in self.lengths:
                return _moved(x), False
            case Apply("select", (Apply("lt", (x, Lit(0))), _, other)):
                found, _ = self.place(other)
                if found is not None and found == _moved(x):
                    return found, True
            case _:
                pass
        return _moved(c), False


@record
class _Moved:
    """An expression that is an element of one of some reads, or a constant.

    `reads` has what is added to each, a constant, and `conditions` tell which one it is.
    """

    reads: tuple[tuple[Read, int], ...]
    conditions: tuple[Expr, ...] = ()


def _moved(e: Expr, added: int = 0) -> _Moved | None:
    """What an expression moves, in a type that holds any place; None if it computes more."""
    match e:
        case Lit():
            return _Moved(())
        case Read() if e.dtype.is_int:
            return _Moved(((e, added),))
        case Cast(arg=x) | Apply("min" | "max", (x, Lit()) | (Lit(), x)) if _holds_places(e):
            return _moved(x, added)
        case Apply("add", (x, Lit(int(more))) | (Lit(int(more)), x)) if _holds_places(e):
            return _moved(x, added + more)
        case Apply("sub", (x, Lit(int(less)))) if _holds_places(e):
            return _moved(x, added - less)
        case Apply("select", (condition, x, y)):
            found = _moved(x, added), _moved(y, added)
            if found[0] is None or found[1] is None:
                return None
            reads = tuple(dict.fromkeys((*found[0].reads, *found[1].reads)))
            if len({r for r, _ in reads}) < len(reads):
                return None
            return _Moved(reads, (condition, *found[0].conditions, *found[1].conditions))
        case _:
            return None


def _holds_places(e: Expr) -> bool:
    return e.dtype.is_int and e.dtype.bits >= DType.I32.bits
