"""Which operands get copied, and where values have a halo: chosen by what nests cost otherwise.

A contraction may read a copy of an operand in another layout and pays for it. What is read outside
of its extents has a halo of its fill, itself or in a copy, unless masks at the edges cost less.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import prod

from rutc.graph_opt.assignment import Arrangement, Copy
from rutc.graph_opt.decide.copies import packed_dims, reads_of
from rutc.graph_opt.decide.halo import Edges, Halo, masked_at_edges
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.nest_cost import NestCost, ReadUse
from rutc.tensor_ir.expr import Lit, Read
from rutc.tensor_ir.facts.matrix_blocks import COLUMNS
from rutc.tensor_ir.graph import Nest, Node, Scan, bodies
from rutc.tensor_ir.machine import PAIR, Machine


class _Fed:
    """The copies that a nest reads."""

    def __init__(self, nest: Nest) -> None:
        """Of none yet."""
        self.reads = reads_of(nest)
        self.copies: list[Copy] = []
        self._reader = nest.out.name
        self._numbers = {r: number for number, r in enumerate(self.reads)}
        self._latest: dict[str, str] = {}

    def take(self, r: Read, name: str, *, packed: bool = False) -> None:
        """Let a read be of the copy of this name."""
        self.copies.append(Copy(name, r.value, self._reader, self._numbers[r], packed))
        self._latest[r.value] = name

    def is_packed(self, r: Read) -> bool:
        """Whether a read is of a copy that has what is outside of its value."""
        return any(c.packed and c.number == self._numbers[r] for c in self.copies)

    def complete_windows(self, windows: Container[str]) -> None:
        """Let all of a window be read from one place, what lies inside of the value, too."""
        fed = {c.number for c in self.copies}
        for r in self.reads:
            if r.value in windows and r.value in self._latest and self._numbers[r] not in fed:
                self.take(r, self._latest[r.value])


@dataclass
class OperandCopies:
    """The choices for the nests of a graph whose values have these innermost dims.

    `inner` gains the copies.
    """

    prepared: Prepared
    machine: Machine
    inner: dict[str, str | None]
    copies: list[Copy] = field(default_factory=list)
    halo: dict[str, Halo] = field(default_factory=dict)
    """Of values and copies: what lies before and after each dim,"""
    fill: dict[str, Lit] = field(default_factory=dict)
    """and what that is."""
    arranged: dict[str, Arrangement] = field(default_factory=dict)
    """How copies lie that registers for matrices take blocks of."""

    def __post_init__(self) -> None:
        self._taken = set(self.prepared.graph.values)
        self._names: dict[tuple[object, ...], str] = {}
        self._counters: list[str] = []

    def choose(self, nodes: tuple[Node, ...]) -> None:
        """Choose for all nests of a scope. Copies that a body makes are not seen outside of it."""
        for n in nodes:
            if isinstance(n, Nest):
                self._feed(n)
            counters = [n.dim] if isinstance(n, Scan) else []
            self._counters += counters
            for body in bodies(n):
                self._inside(body)
            del self._counters[len(self._counters) - len(counters) :]

    def _inside(self, nodes: tuple[Node, ...]) -> None:
        outside = dict(self._names)
        self.choose(nodes)
        self._names = outside

    def _feed(self, n: Nest) -> None:
        """Choose what one nest reads copies of."""
        fed = _Fed(n)
        if n.reducer is None and all(r.fill is None for r in fed.reads):
            return
        known = self.prepared
        cost = NestCost(n, known.extents, known.constants, self.machine, known.steps, known.varying)
        if n.reducer is None and not cost.windows:
            return
        _, vector = cost.best(self.inner)
        lanes = {
            u.read.value: u.moves[vector]
            for u in cost.uses
            if u.read.value in cost.windows and vector is not None and u.moves.get(vector)
        }
        if vector is not None and vector in n.out.dims:
            self._pack(fed, cost, vector)
            lanes |= self._lay_near(fed, cost, vector)
        for r in fed.reads:
            if r.fill is None or fed.is_packed(r):
                continue
            copied = self._with_halo(cost, r, lanes.get(r.value))
            if copied is not None:
                fed.take(r, copied)
        fed.complete_windows(cost.windows)
        self.copies += fed.copies

    def _pack(self, fed: _Fed, cost: NestCost, vector: str) -> None:
        """Pack operands that vectors along a dim would load scattered."""
        n, known = cost.nest, self.prepared
        columns = self._columns(n, cost, vector) if cost.by_columns else None
        if columns is not None:
            name = self._name(("columns", columns, packed_dims(n, columns)))
            fed.take(columns, name, packed=True)
            self.inner[name] = vector
            known_first = {d: (d not in known.varying, known.extents[d]) for d in n.bound}
            self.arranged[name] = in_columns(n, columns, vector, known_first)
        for u in cost.strided(vector, self.inner):
            if u.read == columns or not wants_packing(u, n, known.extents):
                continue
            if known.varying and self._turned(u, cost, vector):
                continue
            name = self._name(("packed", u.read, packed_dims(n, u.read)))
            fed.take(u.read, name, packed=True)
            self.inner[name] = vector

    def _lay_near(self, fed: _Fed, cost: NestCost, vector: str) -> dict[str, str]:
        """Copy operands whose lanes lie apart, so that they lie side by side.

        Returns the dim of the lanes of each value that has a halo to be laid around it as well.
        """
        lanes: dict[str, str] = {}
        near = list(cost.gathered(vector, self.inner)) if cost.nest.bound else []
        for r, d in cost.apart(vector, self.inner):
            if r.fill is not None:
                lanes[r.value] = d
            else:
                near.append((r, d))
        for r, d in near:
            if self._may_copy(r.value):
                name = self._name((f"near.{d}", r.value))
                fed.take(r, name)
                self.inner[name] = d
        return lanes

    def _columns(self, n: Nest, cost: NestCost, vector: str) -> Read | None:
        """The computed factor along whose columns vectors go, where no factor is a constant."""
        if any(u.is_const for u in cost.uses) or len(cost.uses) != len(reads_of(n)):
            return None
        found = [u.read for u in cost.uses if vector in u.moves]
        if len(found) != 1 or packed_dims(n, found[0]) is None:
            return None
        known = self.prepared
        varying = known.varying.intersection((vector, *n.bound))
        if varying.issuperset(n.bound) or (varying and not self._is_copied(cost, vector)):
            return None
        return found[0] if self._may_copy(found[0].value) else None

    def _is_copied(self, cost: NestCost, vector: str) -> bool:
        """Whether a copy of a factor of any length pays in runs of as few rows as there may be."""
        known, n = self.prepared, cost.nest
        own = next(u for u in cost.uses if vector in u.moves)
        rows = set(n.out.dims) - own.moves.keys() - {vector}
        few = {d: (known.few if d in rows else known.extents)[d] for d in known.extents}
        return wants_packing(own, n, few)

    def _may_copy(self, value: str) -> bool:
        return set(self._counters).isdisjoint(self.prepared.graph.values[value].dims)

    def _turned(self, u: ReadUse, cost: NestCost, vector: str) -> bool:
        """Whether a kernel had better turn what it reads itself than read a copy of it.

        It does so where there are many rows, of which a run may have one: a copy is made for any.
        A loop of known length has to go along memory in whole vectors.
        """
        known, n = self.prepared, cost.nest
        rows = set(n.dims) - u.moves.keys() - {vector}
        few = {d: (known.few if d in rows else known.extents)[d] for d in known.extents}
        inner = self.inner.get(u.read.value)
        along = (d for d in n.bound if d not in known.varying and u.moves.get(d) == inner)
        whole = any(known.extents[d] % cost.lanes == 0 for d in along)
        return whole and inner is not None and not wants_packing(u, n, few)

    def _with_halo(self, cost: NestCost, r: Read, lanes: str | None) -> str | None:
        """The copy with a halo that a read is from; None if it is from the value itself.

        Either has a halo then, unless masks are better. Registers for matrices take whole windows:
        on vectors, products of what they multiply would take far longer than any halo. `lanes` is
        the dim to be innermost in the copy, if that matters.
        """
        assert r.fill is not None
        known, n = self.prepared, cost.nest
        if cost.running is not None:
            # It goes on from what it has, and meets nothing outside.
            return None
        edges = Edges(n, r, known.graph.values[r.value], known.sizes, known.symbols)
        if cost.in_matrices:
            halo = edges.reach
        else:
            inner, coefficients = self.inner.get(r.value), self.machine.coefficients
            halo = edges.needed_halo(inner, known.is_finite, coefficients)
        if not halo or r.value in known.constants:
            return None
        if masked_at_edges(n, r, known.sizes, self.inner):
            return None
        home = known.home(r.value)
        fill = self.fill.get(home)
        strided = lanes is not None and self.inner.get(home) != lanes
        copy = None
        if home in known.fixed or strided or (fill is not None and fill != r.fill):
            if not self._may_copy(home):
                return None
            slug = "".join(c if c.isalnum() else "_" for c in str(r.fill.value))
            copy = self._name((f"halo{slug}" + (f".{lanes}" if strided else ""), r.value))
            self.inner[copy] = lanes or self.inner.get(home)
        name = copy or home
        self.fill[name] = r.fill
        wide = self.halo.setdefault(name, {})
        for d, (lo, hi) in halo.items():
            a, b = wide.get(d, (0, 0))
            wide[d] = (max(a, lo), max(b, hi))
        return copy

    def _name(self, key: tuple[object, ...]) -> str:
        """The name of a copy, which is that of an equal one in a scope around."""
        if key not in self._names:
            kind, what = key[0], key[1]
            value = what.value if isinstance(what, Read) else what
            name = fresh(f"{value}.{kind}", self._taken, between=".")
            self._names[key] = name
        return self._names[key]


def in_columns(
    n: Nest, r: Read, column: str, lengths: Mapping[str, tuple[bool, int]]
) -> Arrangement:
    """How registers for matrices take a factor: columns of pairs of products lie together.

    The pairs are along the longest dim that is summed, of those whose size is known: `lengths`
    says whether it is, and what it commonly is.
    """
    dims = packed_dims(n, r) or ()
    bound = sorted((d for d in dims if d in n.bound), key=lambda d: lengths[d])
    front = (d for d in dims if d not in bound and d != column)
    blocks = ((column, COLUMNS), (bound[-1], PAIR)) if bound else ((column, COLUMNS),)
    return Arrangement((*front, column, *bound), blocks=blocks)


def wants_packing(u: ReadUse, nest: Nest, extents: Mapping[str, int]) -> bool:
    """Whether a copy of the read's elements costs less than scattered loads."""
    dims = packed_dims(nest, u.read)
    if not nest.bound or dims is None:
        return False
    size = prod(extents[d] for d in dims)
    points = prod(extents[d] for d in nest.dims)
    return size * 4 <= points
