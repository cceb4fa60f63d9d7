"""Which concatenations are no work: those where fewer cache lines are moved than by copying parts.

A part that lies in the whole needs no copy, whose lines are loaded and stored. In return its
producer and all that read it alone move more lines where its rows, which lie apart there, are no
whole ones. That is so of values that the second cache holds; of larger ones a copy costs less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, gcd, prod

from rutc.base.record import record
from rutc.graph_opt.assignment import Arrangement, Assignment, Join
from rutc.graph_opt.decide.joins import Concatenation, Joinable, Piece, concatenation, views
from rutc.graph_opt.decide.own_lines import ALIGNMENT
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Illegal, InTurn, Plan, groups_of
from rutc.tensor_ir.graph import used_deep
from rutc.tensor_ir.indices.affine import typical
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Group


def joined(found: Realisation) -> Realisation:
    """What is chosen, with concatenations that are no work where that pays; slices anew."""
    chosen = [*_Choice(found).joins()]
    if not chosen:
        return found
    other = _with(found, chosen)
    if other is None:
        other = found
        for one in chosen:
            other = _with(other, [one]) or other
    return other.in_turn()


def further(found: Realisation) -> Iterator[tuple[Join, Assignment]]:
    """Yields concatenations that may be no work, and the assignment in which one is none."""
    for one in _Choice(found).joins(every=True):
        other = _with(found, [one])
        if other is not None:
            yield one, other.assignment


def without(found: Realisation, j: Join) -> Assignment:
    """The assignment in which a concatenation copies its parts again, which lie as they did."""
    given = found.assignment
    arrangements = {**given.arrangements, **{v: _own(found.layouts[v]) for v in j.parts}}
    joins = tuple(x for x in given.joins if x != j)
    return replace(given, joins=joins, arrangements=arrangements)


def _own(layout: Layout) -> Arrangement:
    """How something lies in memory of its own as it does in another's."""
    order = tuple(a.dim for a in layout.axes if a.whole)
    blocks = tuple((a.dim, a.div) for a in layout.axes if a.div > 1)
    return Arrangement(order, layout.halo, layout.fill, blocks)


def _with(found: Realisation, chosen: Sequence[Join]) -> Realisation | None:
    """What has these concatenations joined as well; None if there is no such plan."""
    given = found.assignment
    gone = {j.value for j in chosen}
    parts = {v for j in chosen for v in j.parts}
    arrangements = {v: a for v, a in given.arrangements.items() if v not in parts}
    groups = (replace(g, nests=tuple(n for n in g.nests if n not in gone)) for g in given.groups)
    other = found.but(
        replace(
            given,
            arrangements=arrangements,
            groups=tuple(g for g in groups if len(g.nests) > 1),
            joins=(*given.joins, *chosen),
            slices=(),
            turns=(),
        )
    )
    try:
        other.steps, other.starts  # noqa: B018
    except Illegal:
        return None
    return other


@record
class _Choice:
    """What a plan without joins tells of its concatenations."""

    found: Realisation

    def joins(self, *, every: bool = False) -> Iterator[Join]:
        """Yields concatenations that pay, or `every` one, those that are parts of others first."""
        found, plan = self.found, self.found.plan
        graph, known = found.graph, found.known
        kept = _kept(plan, found)
        makers = {v: g for g in plan.groups() for v in g.stored}
        readers: dict[str, int] = {}
        for n in graph.nodes:
            for v in set(used_deep(n)):
                readers[v] = readers.get(v, 0) + 1
        may, ranges = Joinable(known, graph), views(graph)
        arrangements = found.assignment.arrangements
        taken: set[str] = set()
        for n in graph.nodes:
            what = concatenation(graph, n, ranges)
            if what is None or (name := what.nest.out.name) not in makers or name in kept:
                continue
            if not may.join(what) or not (every or self._is_near(name)):
                continue
            own = arrangements.get(name) or Arrangement(known.fixed[name])
            parts: dict[str, None] = {}
            for p in what.pieces:
                if p.value is None or any(p.value in x for x in (taken, parts, kept)):
                    continue
                if not may.part(what, p) or not self._fits(what, p):
                    continue
                if not self._lies(own, arrangements[p.value], what, p):
                    continue
                if every or self._saved(what, p, makers[name], readers) > 0:
                    parts[p.value] = None
            if parts:
                taken.update(parts)
                yield Join(name, tuple(parts))

    def _is_near(self, name: str) -> bool:
        """Whether the second cache commonly holds a value.

        What it does not hold comes from farther away, which a copy hides better than work does
        that reads rows which lie apart.
        """
        size = typical(self.found.layouts[name].size, self.found.known.symbols)
        return size * self.found.graph.values[name].dtype.bytes <= self.found.machine.l2

    def _lies(self, whole: Arrangement, part: Arrangement, what: Concatenation, p: Piece) -> bool:
        """Whether the part may lie in the whole, as both do."""
        sizes = self.found.known.sizes
        order = tuple(p.dims[d] for d in part.order if d in p.dims and sizes[d] != 1)
        if order != tuple(d for d in whole.order if d in {*order} or sizes[d] != 1):
            return False
        if tuple((p.dims[d], n) for d, n in part.blocks) != whole.blocks:
            return False
        halo = {d: (lo, hi) for d, lo, hi in whole.halo}
        if what.along in halo or part.fill not in (None, whole.fill):
            return False
        # What reads the whole goes through rows that lie side by side: it gets no larger halo.
        return all(
            lo <= halo.get(p.dims[d], (0, 0))[0] and hi <= halo.get(p.dims[d], (0, 0))[1]
            for d, lo, hi in part.halo
        )

    def _fits(self, what: Concatenation, p: Piece) -> bool:
        """Whether a piece commonly begins at a cache line."""
        axes = self.found.layouts[what.nest.out.name].axes
        axis = next(a for a in axes if a.dim == what.along)
        symbols, bytes_ = self.found.known.symbols, what.nest.out.dtype.bytes
        before = typical(p.start, symbols) // axis.div * typical(axis.stride, symbols)
        return before * bytes_ % ALIGNMENT == 0

    def _saved(
        self, what: Concatenation, p: Piece, maker: Group, readers: Mapping[str, int]
    ) -> float:
        """The cache lines that are moved less if a piece lies in the whole."""
        known, layout = self.found.known, self.found.layouts[what.nest.out.name]
        line, bytes_ = self.found.machine.line_bytes, what.nest.out.dtype.bytes
        symbols = known.symbols
        place = next(i for i, a in enumerate(layout.axes) if a.dim == what.along)
        outer = layout.axes[:place]
        step = typical(layout.axes[place].stride, symbols) * bytes_
        row = typical(p.size, symbols) // layout.axes[place].div * step
        rows = prod(typical(a.extent, symbols) for a in outer)
        even = gcd(line, *(typical(a.stride, symbols) * bytes_ for a in outer))
        within = rows * (ceil(row / even) * even + line - even) / line
        alone = rows * row / line
        copied = within + (alone if len(maker.stages) == 1 else 0.0)
        assert p.value is not None, "what is no value has been left out"
        return copied - readers[p.value] * (within - alone)


def _kept(plan: Plan, found: Realisation) -> frozenset[str]:
    """The values that a plan never has as a whole, and those of kernels that take turns."""
    turned = (g for s in plan.steps if isinstance(s, InTurn) for g in groups_of((s,)))
    stored = (v for g in turned for v in g.stored)
    parts = (v for v, x in plan.layouts.items() if x != found.layouts[v])
    return frozenset((*stored, *parts))
