"""Fusion groups: which nests share one kernel's loops, and so which values are never stored.

Three kinds of group grow along the definition order:

- *point*: elementwise nests over the same dims;
- *tile*: a reduction vectorised along a free dim, with the elementwise nests after it (epilogue);
- *row*: reductions over the innermost dim together with everything over the same rows: softmax
  and normalisations read their row from memory once.

A nest joins a group only if the groups stay free of cycles. What does not join says why.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rutc.base.record import record
from rutc.graph_opt.cost import NestCost
from rutc.graph_opt.plan import Refusal
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.graph import (
    Bind,
    Const,
    Input,
    Nest,
    Node,
    Scatter,
    mentioned,
    outs,
    used_deep,
    walk_nodes,
)
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine

ROW_SHARE = 1 / 8
"""The largest row that a group keeps, in second caches: it has to stay in the nearest ones."""
MOST_OPERATIONS = 256
"""Of a kernel that elementwise nests join. Code of twice as many takes more than twice as long to
make (1,000 mixed ones: 22 s of processor time in one kernel, 8 in kernels of 256, 7 of 128, on
Zen 4), and beside so many a value that passes through memory costs little. 128 would part sums over
unrolled windows, of up to 182, from what follows them."""
ONE = Index.of(1)


@dataclass
class Draft:
    """A group under construction; `node` stands alone when it is no nest."""

    kind: str
    stages: list[Nest]
    shared: frozenset[str]
    position: int
    node: Node | None = None
    operations: int = 0
    needs: set[int] = field(default_factory=set)
    """The groups whose results it reads, or that run before it for another reason."""
    users: set[int] = field(default_factory=set)
    rank: int = 0
    """More than that of all it needs: what has no higher rank does not need it."""
    dims: set[str] = field(default_factory=set)
    """The dims of its values."""
    rows: tuple[frozenset[str], int, int] = (frozenset(), 0, 0)
    """The bytes of a row, for these shared dims, of so many of the stages."""


@record
class Fused:
    """The groups and other nodes of one scope, in running order; and why nests did not join."""

    items: tuple[Group | Node, ...]
    refusals: tuple[Refusal, ...]


class Fuser:
    """Fuses the nodes of one scope."""

    def __init__(
        self,
        extents: Mapping[str, int],
        limits: Mapping[str, int],
        inner: Mapping[str, str | None],
        order: Mapping[str, tuple[str, ...]],
        constants: frozenset[str],
        homes: Mapping[str, str],
        sizes: Mapping[str, Index],
        machine: Machine,
        steps: frozenset[str] = frozenset(),
        checks: frozenset[str] = frozenset(),
    ) -> None:
        """Decide with these layouts; `homes` are the values whose memory others take over.

        `extents` is what the dims commonly are, `limits` the most that they can be, `sizes` what
        they are. What follows the bind of one of the `checks` runs after it.
        """
        self.checks = checks
        self.machine = machine
        self.row_bytes = int(ROW_SHARE * machine.l2)
        self.sizes = sizes
        self.steps = steps
        self.varying = frozenset(d for d, e in sizes.items() if not e.is_const)
        self.homes = homes
        self.extents = extents
        self.limits = limits
        self.inner = inner
        self.order = order
        self.constants = constants

    def fuse(self, nodes: Sequence[Node], needed: Iterable[str], prefix: str) -> Fused:
        """The scope's groups. `needed` are the values that something outside of it reads."""
        drafts: list[Draft] = []
        home: dict[str, int] = {}
        binders: dict[str, int] = {}
        reading: dict[str, set[int]] = {}
        refusals: list[Refusal] = []
        passed: set[int] = set()
        for position, n in enumerate(nodes):
            if isinstance(n, Input | Const):
                continue
            used = list(dict.fromkeys(used_deep(n)))
            sources = {home[v] for v in used if v in home}
            if isinstance(n, Scatter):
                # It changes the memory of its base, so it runs after all that read the base.
                sources |= reading.get(self.homes.get(n.base, n.base), set())
            needs = sources | passed | {binders[s] for s in self._sizes_of(n) if s in binders}
            target: int | None = None
            if isinstance(n, Nest):
                for g in sorted(sources, key=lambda g: (-drafts[g].position, g)):
                    reason: str | None = "it joined the kernel of another operand"
                    if target is None:
                        reason = self._refuses(n, g, needs, drafts, home)
                    if reason is None:
                        target = g
                        continue
                    value = next(v for v in used_deep(n) if home.get(v) == g)
                    refusals.append(Refusal(n.out.name, value, reason))
            if target is None:
                target = len(drafts)
                drafts.append(self._draft(n, position))
            else:
                assert isinstance(n, Nest)
                self._join(n, drafts[target])
            self._depend(target, needs, drafts)
            if isinstance(n, Bind):
                binders[n.symbol] = target
                if n.symbol in self.checks:
                    passed.add(target)
            for v in outs(n):
                home[v.name] = target
            for name in used:
                reading.setdefault(self.homes.get(name, name), set()).add(target)
        return Fused(self._finish(drafts, set(needed), prefix), tuple(refusals))

    def _sizes_of(self, n: Node) -> set[str]:
        """The symbols that a node and its bodies mention."""
        found: set[str] = set()
        for inner in walk_nodes((n,)):
            for d in mentioned(inner):
                found.update(self.sizes[d].names() if d in self.sizes else (d,))
        return found

    # -- growing --------------------------------------------------------------------------------
    def _draft(self, n: Node, position: int) -> Draft:
        if not isinstance(n, Nest):
            return Draft("node", [], frozenset(), position, node=n)
        kind = "point"
        if n.reducer is not None:
            _, vector = self._cost(n).best(self.inner)
            kind = "row" if vector is None or vector in n.bound else "tile"
        dims = {*n.out.dims}
        return Draft(kind, [n], self._dims(n), position, operations=n.operations, dims=dims)

    def _cost(self, n: Nest) -> NestCost:
        return NestCost(n, self.extents, self.constants, self.machine, self.steps, self.varying)

    def _dims(self, n: Nest) -> frozenset[str]:
        """The dims that the nest has loops for: those of extent 1 need none."""
        return frozenset(d for d in n.out.dims if self.sizes[d] != ONE)

    def _refuses(
        self, n: Nest, g: int, sources: set[int], drafts: list[Draft], home: Mapping[str, int]
    ) -> str | None:
        """Why the nest cannot join group g; None if it can."""
        draft = drafts[g]
        if draft.node is not None:
            return "its operand is computed by the host program"
        if any(h != g and _leads_to(h, g, drafts) for h in sources):
            return "another operand is computed from this group's result in between"
        mine = [r for e in n.body for r in reads(e) if home.get(r.value) == g]
        if n.reducer is not None:
            return self._refuses_reduction(n, draft, mine)
        reason = self._refuses_elementwise(n, draft, mine)
        if reason is None and draft.operations + n.operations > MOST_OPERATIONS:
            return f"the kernel has {draft.operations} operations already"
        return reason

    def _refuses_elementwise(self, n: Nest, draft: Draft, mine: list[Read]) -> str | None:
        dims = self._dims(n)
        if draft.kind in ("point", "tile"):
            if dims != draft.shared:
                return "it runs over other dims than the group"
            if not all(_identity(r, dims) for r in mine):
                return "it reads the group's values at other places than it writes"
            return None
        if not draft.shared <= dims:
            return "it does not run over the group's rows"
        if not all(_identity(r, draft.shared) for r in mine):
            return "it reads other rows than its own"
        private = dims - draft.shared
        if private and self.inner.get(n.out.name) not in private:
            return "its rows are not contiguous in memory"
        if self._row_bytes(draft, n) > self.row_bytes:
            return "the rows are too large to keep"
        return None

    def _refuses_reduction(self, n: Nest, draft: Draft, mine: list[Read]) -> str | None:
        dims = self._dims(n)
        if draft.kind == "tile":
            return "a reduction cannot follow in a register tile"
        own_dims = draft.dims
        if not dims <= own_dims:
            again = ", ".join(sorted(dims - own_dims))
            return f"the group's values would be computed again for every {again}"
        if not set(n.bound) & own_dims:
            return "it does not reduce over a dim of the group"
        if draft.kind == "row" and dims != draft.shared:
            return "it runs over other rows than the group"
        if not all(_identity(r, dims) for r in mine):
            return "it reads other rows than its own"
        if draft.kind == "point":
            for s in draft.stages:
                if self.inner.get(s.out.name) in dims:
                    return "the reduced dim is not innermost"
        _, vector = self._cost(n).best(self.inner)
        if vector in n.out.dims:
            return "it is faster vectorised along its rows"
        if self._row_bytes(draft, n, dims) > self.row_bytes:
            return "the rows are too large to keep"
        return None

    def _row_bytes(self, draft: Draft, n: Nest, shared: frozenset[str] | None = None) -> int:
        shared = draft.shared if shared is None else shared
        known, count, total = draft.rows
        if known != shared:
            count, total = 0, 0
        total += sum(self._row(s, shared) for s in draft.stages[count:])
        draft.rows = shared, len(draft.stages), total
        return total + self._row(n, shared)

    def _row(self, n: Nest, shared: frozenset[str]) -> int:
        row = prod(self.limits[d] for d in n.out.dims if d not in shared)
        return row * sum(v.dtype.bytes for v in n.outs) if row > 1 else 0

    def _join(self, n: Nest, draft: Draft) -> None:
        if n.reducer is not None and draft.kind == "point":
            draft.kind = "row"
            draft.shared = self._dims(n)
        draft.stages.append(n)
        draft.operations += n.operations
        draft.dims.update(n.out.dims)

    def _depend(self, g: int, sources: set[int], drafts: list[Draft]) -> None:
        new = sources - drafts[g].needs - {g}
        drafts[g].needs |= new
        for h in new:
            drafts[h].users.add(g)
        raised = [(g, max((drafts[h].rank + 1 for h in new), default=0))]
        while raised:
            h, rank = raised.pop()
            if drafts[h].rank < rank:
                drafts[h].rank = rank
                raised += [(user, rank + 1) for user in drafts[h].users]

    # -- finishing ------------------------------------------------------------------------------
    def _finish(
        self, drafts: list[Draft], needed: set[str], prefix: str
    ) -> tuple[Group | Node, ...]:
        readers: dict[str, set[int]] = {}
        for g, d in enumerate(drafts):
            nodes: list[Node] = [d.node] if d.node is not None else list(d.stages)
            for n in nodes:
                for v in used_deep(n):
                    readers.setdefault(v, set()).add(g)
        items: list[Group | Node] = []
        for g in _sorted(drafts):
            d = drafts[g]
            if d.node is not None:
                items.append(d.node)
                continue
            stored = tuple(
                v.name
                for s in d.stages
                for v in s.outs
                if v.name in needed or readers.get(v.name, set()) - {g}
            )
            if not stored:
                continue
            lead = max(stored, key=lambda v: len(self.order[v]))
            shared = tuple(x for x in self.order[lead] if x in d.shared)
            items.append(Group(f"{prefix}{g}", tuple(d.stages), shared, stored))
        return tuple(items)


def _identity(r: Read, dims: frozenset[str]) -> bool:
    return r.fill is None and all(c == Index.of(d) for d, c in r.coords if d in dims)


def _sorted(drafts: list[Draft]) -> list[int]:
    """Group numbers so that every group comes after what it needs, early positions first."""
    missing = [len(d.needs) for d in drafts]
    ready = [(d.position, g) for g, d in enumerate(drafts) if not missing[g]]
    heapq.heapify(ready)
    result: list[int] = []
    while ready:
        _, g = heapq.heappop(ready)
        result.append(g)
        for w in drafts[g].users:
            missing[w] -= 1
            if not missing[w]:
                heapq.heappush(ready, (drafts[w].position, w))
    return result


def _leads_to(h: int, g: int, drafts: list[Draft]) -> bool:
    """Whether group h needs group g, be it by way of others."""
    least = drafts[g].rank
    seen = {h}
    left = [h]
    while left:
        x = left.pop()
        if x == g:
            return True
        for y in drafts[x].needs:
            if y not in seen and drafts[y].rank >= least:
                seen.add(y)
                left.append(y)
    return False
