"""Fusion groups: which nests share one kernel's loops, and so which values are never stored.

Three kinds of group grow along the definition order:

- *point*: elementwise nests over the same dims;
- *tile*: a reduction vectorised along a free dim, with the elementwise nests after it (epilogue);
- *row*: reductions over the innermost dim together with everything over the same rows: softmax
  and normalisations read their row from memory once.

A nest joins a group only if the groups stay free of cycles; of several that it can join it joins
the one of which it reads most, and the others become one with it, where kernels over their rows
can do both. What does not join says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod

from rutc.graph_opt.assignment import Grouping
from rutc.graph_opt.decide.groups import Draft, Groups, Operands, reads_at_its_own_place
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.nest_cost import NestCost
from rutc.graph_opt.plan import Refusal
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.graph import Nest, Node, used_deep
from rutc.tensor_ir.machine import Machine

MOST_OPERATIONS = 256
"""Of a kernel that elementwise nests join. Code of twice as many takes more than twice as long to
make (1,000 mixed ones: 22 s of processor time in one kernel, 8 in kernels of 256, 7 of 128, on
Zen 4), and beside so many a value that passes through memory costs little. 128 would part sums over
unrolled windows, of up to 182, from what follows them."""


@dataclass
class GroupFacts:
    """What fusion knows of a group."""

    kind: str
    operations: int = 0
    dims: set[str] = field(default_factory=set)
    """The dims of its values."""
    rows: tuple[frozenset[str], int, int] = (frozenset(), 0, 0)
    """The bytes of a row, for these shared dims, of so many of the stages."""


class Fuser(Groups):
    """Fuses the nodes of one scope."""

    def __init__(
        self, prepared: Prepared, inner: Mapping[str, str | None], machine: Machine
    ) -> None:
        """Decide with these innermost dims of all values."""
        super().__init__(prepared)
        self.inner = inner
        self.machine = machine
        self.row_bytes = int(machine.coefficients.fusion.row * machine.l2)
        self.refusals: list[Refusal] = []
        self.facts: dict[int, GroupFacts] = {}

    def fuse(self, nodes: Sequence[Node]) -> tuple[Grouping, ...]:
        """The groups of several nests of a scope; the `refusals` say why nests did not join."""
        self.grow(nodes)
        return tuple(
            Grouping(tuple(sorted(d.shared)), tuple(s.out.name for s in d.stages))
            for d in self.drafts
            if len(d.stages) > 1
        )

    def joins(self, n: Nest, operands: Operands) -> tuple[int, ...]:
        """The groups of operands that a nest can join, the one first of which it reads most.

        Of several of which it reads as much, the last one comes first.
        """
        able: list[int] = []
        for g in sorted(operands.sources, key=lambda g: (-self.drafts[g].position, g)):
            reason = self._refuses(n, g, operands.needs)
            if reason is None:
                able.append(g)
            else:
                self._refuse(n, g, reason)
        return tuple(sorted(able, key=lambda g: -self._bytes_read(n, g)))

    def _refuse(self, n: Nest, g: int, reason: str) -> None:
        """Note why a nest does not join a group of which it reads a result."""
        value = next(v for v in used_deep(n) if self.home.get(v) == g)
        self.refusals.append(Refusal(n.out.name, value, reason))

    def _bytes_read(self, n: Nest, g: int) -> int:
        """The bytes of a group's results of which a nest reads something."""
        values, sizes = self.prepared.graph.values, self.prepared.extents
        read = (values[v] for v in used_deep(n) if self.home.get(v) == g)
        return sum(prod(sizes[d] for d in v.dims) * v.dtype.bytes for v in read)

    def joined(self, n: Nest, number: int, others: Sequence[int]) -> None:
        """Count what the nest adds to its group, and unite it with others that it could join."""
        self._count(n, number)
        for g in others:
            reason = self._keeps_apart(number, g)
            if reason is not None:
                self._refuse(n, g, reason)
                continue
            own, other = self.facts[number], self.facts.pop(g)
            kind = "row" if "row" in (own.kind, other.kind) else "point"
            self.unite(number, g)
            operations = own.operations + other.operations
            self.facts[number] = GroupFacts(kind, operations, own.dims | other.dims)

    def _count(self, n: Nest, number: int) -> None:
        draft, own = self.drafts[number], self.facts.get(number)
        if own is None:
            kind = "point"
            if n.reducer is not None:
                cost = self._cost(n)
                _, vector = cost.best(self.inner)
                rows = cost.running is None and (vector is None or vector in n.bound)
                kind = "row" if rows else "tile"
            own = self.facts[number] = GroupFacts(kind)
        elif n.reducer is not None and own.kind == "point":
            own.kind = "row"
            draft.shared = self.dims(n)
        own.operations += n.operations
        own.dims.update(n.out.dims)

    def _keeps_apart(self, g: int, h: int) -> str | None:
        """Why two groups cannot be one, of which a nest could join either; None if they can.

        Neither needs the other: a nest that needs both joins none that another one is made of.
        """
        drafts, grown = (self.drafts[g], self.drafts[h]), (self.facts[g], self.facts[h])
        kinds = {x.kind for x in grown}
        if "tile" in kinds:
            return "it joined the kernel of another operand"
        operations = sum(x.operations for x in grown)
        if operations > MOST_OPERATIONS:
            return f"the two kernels have {operations} operations"
        shared = min((d.shared for d in drafts), key=len)
        for draft, own in zip(drafts, grown, strict=True):
            if draft.shared != shared and (own.kind == "row" or kinds == {"point"}):
                return "it runs over other rows than the group"
            for s in draft.stages:
                mine = [r for e in s.body for r in reads(e) if self.home.get(r.value) in (g, h)]
                if not all(reads_at_its_own_place(r, shared) for r in mine):
                    return "it reads other rows than its own"
                private = self.dims(s) - shared
                if private and own.kind == "point" and self.inner.get(s.out.name) not in private:
                    return "its rows are not contiguous in memory"
        if "row" in kinds:
            rows = sum(self._row(s, shared) for draft in drafts for s in draft.stages)
            if rows > self.row_bytes:
                return "the rows are too large to keep"
        return None

    # -- what does not join ---------------------------------------------------------------------
    def _cost(self, n: Nest) -> NestCost:
        known = self.prepared
        return NestCost(n, known.extents, known.constants, self.machine, known.steps, known.varying)

    def _refuses(self, n: Nest, g: int, needs: AbstractSet[int]) -> str | None:
        """Why the nest cannot join group g; None if it can."""
        draft = self.drafts[g]
        if draft.node is not None:
            return "its operand is computed by the host program"
        if any(h != g and self.leads_to(h, g) for h in needs):
            return "another operand is computed from this group's result in between"
        mine = [r for e in n.body for r in reads(e) if self.home.get(r.value) == g]
        own = self.facts[g]
        if n.reducer is not None:
            return self._refuses_reduction(n, draft, own, mine)
        reason = self._refuses_elementwise(n, draft, own, mine)
        if reason is None and own.operations + n.operations > MOST_OPERATIONS:
            return f"the kernel has {own.operations} operations already"
        return reason

    def _refuses_elementwise(
        self, n: Nest, draft: Draft, own: GroupFacts, mine: list[Read]
    ) -> str | None:
        dims = self.dims(n)
        if own.kind in ("point", "tile"):
            if dims != draft.shared:
                return "it runs over other dims than the group"
            if not all(reads_at_its_own_place(r, dims) for r in mine):
                return "it reads the group's values at other places than it writes"
            return None
        if not draft.shared <= dims:
            return "it does not run over the group's rows"
        if not all(reads_at_its_own_place(r, draft.shared) for r in mine):
            return "it reads other rows than its own"
        private = dims - draft.shared
        if private and self.inner.get(n.out.name) not in private:
            return "its rows are not contiguous in memory"
        if self._row_bytes(draft, own, n) > self.row_bytes:
            return "the rows are too large to keep"
        return None

    def _refuses_reduction(
        self, n: Nest, draft: Draft, own: GroupFacts, mine: list[Read]
    ) -> str | None:
        dims = self.dims(n)
        if own.kind == "tile":
            return "a reduction cannot follow in a register tile"
        if not dims <= own.dims:
            again = ", ".join(sorted(dims - own.dims))
            return f"the group's values would be computed again for every {again}"
        if not set(n.bound) & own.dims:
            return "it does not reduce over a dim of the group"
        if own.kind == "row" and dims != draft.shared:
            return "it runs over other rows than the group"
        if not all(reads_at_its_own_place(r, dims) for r in mine):
            return "it reads other rows than its own"
        if own.kind == "point":
            for s in draft.stages:
                if self.inner.get(s.out.name) in dims:
                    return "the reduced dim is not innermost"
        cost = self._cost(n)
        if cost.running is not None:
            return "it goes on from one row to the next"
        _, vector = cost.best(self.inner)
        if vector in n.out.dims:
            return "it is faster vectorised along its rows"
        if self._row_bytes(draft, own, n, dims) > self.row_bytes:
            return "the rows are too large to keep"
        return None

    def _row_bytes(
        self, draft: Draft, own: GroupFacts, n: Nest, shared: frozenset[str] | None = None
    ) -> int:
        """The bytes of the rows of a group with the nest in it."""
        shared = draft.shared if shared is None else shared
        known, count, total = own.rows
        if known != shared:
            count, total = 0, 0
        total += sum(self._row(s, shared) for s in draft.stages[count:])
        own.rows = shared, len(draft.stages), total
        return total + self._row(n, shared)

    def _row(self, n: Nest, shared: frozenset[str]) -> int:
        row = prod(self.prepared.limits[d] for d in n.out.dims if d not in shared)
        return row * sum(v.dtype.bytes for v in n.outs) if row > 1 else 0
