"""Checks of sizes, so that no read leaves its value.

Where an operand is read at the coordinates of another one, and the run alone can tell that it is as
long, the run ends at its beginning, or where the program learns the sizes, unless it is:

    %z{i} = %x[i] + %y[j=i]       extent(i) = n, extent(j) = m
    ->  if n <= m or n = 0: 1, else the end of the run;   bind fits = 1

What `fitting` has told the range of a size is not checked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce

from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.building.builder import Builder
from rutc.importer.fitting import room_of
from rutc.importer.free_sizes.overflow import exact
from rutc.tensor_ir import (
    Coord,
    DType,
    Index,
    IndexValue,
    Input,
    Lit,
    Nest,
    Node,
    Scan,
    Scatter,
    apply,
)
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.graph import Origin, bound_symbols, with_bodies
from rutc.tensor_ir.indices.affine import Min, Range
from rutc.tensor_ir.indices.division import extreme_operands


@record
class Demand:
    """`room` must not be negative where none of the extents `around` is 0."""

    room: Index
    around: tuple[Index, ...]


def checked(
    nodes: Sequence[Node], b: Builder, symbols: Mapping[str, Range]
) -> tuple[list[Node], list[str]]:
    """The nodes with the checks that they need, and the symbols that these bind.

    Args:
        nodes: What the graph holds, inputs first.
        b: The builder of the nodes.
        symbols: The ranges of the inputs' sizes.

    Raises:
        UserError: A read leaves its value in every run.
    """
    work = _Work(b, symbols)
    return work.block(nodes, frozenset(), ()), work.bound


class _Work:
    def __init__(self, b: Builder, symbols: Mapping[str, Range]) -> None:
        self.b = b
        self.ranges = {**b.ranges, **symbols}
        self.bound: list[str] = []

    def block(
        self, nodes: Sequence[Node], done: frozenset[Demand], around: tuple[Index, ...]
    ) -> list[Node]:
        """One list of nodes; `done` is checked before, and the extents `around` are not 0."""
        places = {s: k + 1 for k, n in enumerate(nodes) for s in bound_symbols((n,))}
        first = sum(isinstance(n, Input) for n in nodes)
        found: dict[Demand, tuple[int, str, Origin]] = {}
        for n in nodes:
            for demand, told in self.demands(n, around):
                if demand not in done and demand not in found:
                    names = {s for e in (demand.room, *demand.around) for s in e.names()}
                    place = max([first, *(places.get(s, 0) for s in names)])
                    found[demand] = place, told, n.origin
        known = done | found.keys()
        made = [self.with_bodies(n, known, around) for n in nodes]
        for demand, (place, told, origin) in sorted(found.items(), key=lambda x: -x[1][0]):
            made[place:place] = self.check(demand, told, origin)
        return made

    def with_bodies(self, n: Node, done: frozenset[Demand], around: tuple[Index, ...]) -> Node:
        """The node with the checks that its bodies need."""
        inner = self.extents((n.dim,), around) if isinstance(n, Scan) else around
        return with_bodies(n, lambda nodes: tuple(self.block(nodes, done, inner)))

    def demands(self, n: Node, around: tuple[Index, ...]) -> Iterator[tuple[Demand, str]]:
        """What the reads of a node ask for that is not known, and the words for it.

        A scan's are those of its body that hold no size that the body computes.
        """
        match n:
            case Nest():
                found = [r for e in n.body for r in reads(e)]
                dims: tuple[str, ...] = (*n.out.dims, *n.bound)
            case Scatter():
                places = [c for _, c in n.coords if not isinstance(c, Index)]
                found = [r for e in (n.body, *places) for r in reads(e)]
                dims = n.dims
            case Scan():
                own = bound_symbols(n.body)
                inner = self.extents((n.dim,), around)
                for x in n.body:
                    for demand, told in self.demands(x, inner):
                        if own.isdisjoint(s for e in (demand.room, *inner) for s in e.names()):
                            yield demand, told
                return
            case _:
                return
        for r in found:
            for d, c in r.coords if r.fill is None else ():
                room = self.short(d, c)
                if room is not None:
                    extent = self.b.extents[d]
                    name = self.b.hints.get(r.value, r.value)
                    told = f"{extent - room} elements are read along an axis of {name} of {extent}"
                    yield Demand(room, self.extents(dims, around)), told

    def short(self, d: str, c: Coord) -> Index | None:
        """How many places are left at the end of a value, where that may be less than none.

        None also where the operator that wrote the read knows it: the coordinate is a formula of
        dims, and the program computes their sizes.
        """
        b, extent = self.b, self.b.extents[d]
        if not isinstance(c, Index) or b.inside(c, extent):
            return None
        room = room_of(c, extent, b.extents)
        if room is None:
            return None
        along = c.as_var
        if along is None and c.names() and not b.bound.keys().isdisjoint(room.names()):
            return None
        if along is not None and self.at_most(b.extents[along], extent):
            return None
        bounds = room.bounds(self.ranges)
        return room if bounds is None or bounds[0] < 0 else None

    def at_most(self, x: Index, extent: Index) -> bool:
        """Whether an extent is another one, is checked to be, or is at most that by its making."""
        return (
            x == extent
            or extent in extreme_operands(x, Min)
            or any(self.at_most(y, extent) for y in self.b.alike.get(x.as_var or "", ()))
            or self.b.longest_of.get(x.as_var or "") == extent
        )

    def extents(self, dims: Sequence[str], around: tuple[Index, ...]) -> tuple[Index, ...]:
        """The extents that may be 0, with those around."""
        found = {*around}
        for d in dims:
            bounds = self.b.extents[d].bounds(self.ranges)
            if bounds is None or bounds[0] < 1:
                found.add(self.b.extents[d])
        return tuple(sorted(found, key=str))

    def check(self, demand: Demand, told: str, origin: Origin) -> list[Node]:
        """The end of the run where a demand is not met."""
        if demand.room.is_const and not demand.around:
            names = ", ".join(map(repr, origin))
            raise UserError(f"node {names} does not fit what it reads: {told}")
        zero = Lit(0, DType.I64)
        fits = [apply("ge", IndexValue(demand.room), zero)]
        small = exact(demand.room, self.ranges)
        if small is not None:
            fits = [apply("and", fits[0], small)]
        fits += [apply("eq", IndexValue(e), zero) for e in demand.around]
        b = self.b
        b.origin = origin
        with b.body([]) as made:
            one = b.unless_failed(Lit(1, DType.I64), reduce(partial(apply, "or"), fits), told)
            self.bound += b.size(one, "fits", 1, 1).names()
        return made
