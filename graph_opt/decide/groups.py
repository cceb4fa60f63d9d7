"""Groups while they grow along the definition order, and the order in which they run.

What grows them says which group a nest joins: the greedy fusion of `fusion`, or an assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rutc.base.record import record
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.expr import Read
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
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.lower import Group

ONE = Index.of(1)


@dataclass
class Draft:
    """A group under construction; `node` stands alone when it is no nest."""

    stages: list[Nest]
    shared: frozenset[str]
    position: int
    node: Node | None = None
    needs: set[int] = field(default_factory=set)
    """The groups whose results it reads, or that run before it for another reason."""
    users: set[int] = field(default_factory=set)
    rank: int = 0
    """More than that of all it needs: what has no higher rank does not need it."""


@record
class Operands:
    """Of a nest: the groups that compute what it reads, and all that run before it."""

    sources: frozenset[int]
    needs: frozenset[int]


class Groups:
    """The groups of one scope. A subclass says which of them a nest joins."""

    def __init__(self, prepared: Prepared) -> None:
        """Begin with none."""
        self.prepared = prepared
        self.sizes = prepared.graph.extents
        self.drafts: list[Draft] = []
        self.home: dict[str, int] = {}
        """Value -> the group that computes it."""
        self._reading: dict[str, set[int]] = {}
        """Memory -> the groups that read it."""
        self._places: dict[str, int] = {}
        """The first result of a nest -> where it is defined."""

    def joins(self, n: Nest, operands: Operands) -> tuple[int, ...]:
        """The groups that a nest can join, of which it joins the first; none: one of its own."""
        raise NotImplementedError

    def begun(self, n: Nest, number: int) -> frozenset[str]:
        """The shared dims of the group of that number, which a nest begins."""
        del number
        return self.dims(n)

    def joined(self, n: Nest, number: int, others: Sequence[int]) -> None:
        """Called once a nest has been added to the group of that number; it can join `others`."""

    def unite(self, number: int, other: int) -> None:
        """Make one group, of the first number, of two of which neither needs the other."""
        draft, gone = self.drafts[number], self.drafts[other]
        for s in gone.stages:
            for v in s.outs:
                self.home[v.name] = number
            for name in used_deep(s):
                readers = self._reading[self.prepared.home(name)]
                readers.discard(other)
                readers.add(number)
        stages = (*draft.stages, *gone.stages)
        draft.stages = sorted(stages, key=lambda s: self._places[s.out.name])
        draft.position = min(draft.position, gone.position)
        draft.shared &= gone.shared
        draft.needs.discard(other)
        for g in gone.needs:
            self.drafts[g].users.discard(other)
        for g in gone.users:
            self.drafts[g].needs.discard(other)
            if g != number:
                self._depend(g, {number})
        self._depend(number, gone.needs - {number})
        self.drafts[other] = Draft([], frozenset(), gone.position)

    def dims(self, n: Nest) -> frozenset[str]:
        """The dims that the nest has loops for: those of extent 1 need none."""
        return frozenset(d for d in n.out.dims if self.sizes[d] != ONE)

    def grow(self, nodes: Sequence[Node]) -> None:
        """Add the nodes of a scope."""
        binders: dict[str, int] = {}
        reading = self._reading
        passed: set[int] = set()
        for position, n in enumerate(nodes):
            if isinstance(n, Input | Const):
                continue
            used = list(dict.fromkeys(used_deep(n)))
            sources = {self.home[v] for v in used if v in self.home}
            if isinstance(n, Scatter):
                # It changes the memory of its base, so it runs after all that read the base.
                sources |= reading.get(self.prepared.home(n.base), set())
            needs = sources | passed
            if binders:
                needs |= {binders[s] for s in self._sizes_of(n) if s in binders}
            able: tuple[int, ...] = ()
            kernel = isinstance(n, Nest) and n.out.name not in self.prepared.kept.joined
            if isinstance(n, Nest) and kernel:
                able = self.joins(n, Operands(frozenset(sources), frozenset(needs)))
            target = able[0] if able else len(self.drafts)
            if not able:
                if isinstance(n, Nest) and kernel:
                    self.drafts.append(Draft([], self.begun(n, target), position))
                else:
                    self.drafts.append(Draft([], frozenset(), position, node=n))
            self._depend(target, needs)
            if isinstance(n, Nest) and kernel:
                self._places[n.out.name] = position
                self.drafts[target].stages.append(n)
            if isinstance(n, Bind):
                binders[n.symbol] = target
                if n.symbol in self.prepared.checks:
                    passed.add(target)
            for v in outs(n):
                self.home[v.name] = target
            for name in used:
                reading.setdefault(self.prepared.home(name), set()).add(target)
            if isinstance(n, Nest) and kernel:
                self.joined(n, target, able[1:])

    def _sizes_of(self, n: Node) -> set[str]:
        """The symbols that a node and its bodies mention."""
        found: set[str] = set()
        for inner in walk_nodes((n,)):
            for d in mentioned(inner):
                found.update(self.sizes[d].names() if d in self.sizes else (d,))
        return found

    def _depend(self, g: int, sources: Iterable[int]) -> None:
        drafts = self.drafts
        new = set(sources) - drafts[g].needs - {g}
        drafts[g].needs |= new
        for h in new:
            drafts[h].users.add(g)
        raised = [(g, max((drafts[h].rank + 1 for h in new), default=0))]
        while raised:
            h, rank = raised.pop()
            if drafts[h].rank < rank:
                drafts[h].rank = rank
                raised += [(user, rank + 1) for user in drafts[h].users]

    def leads_to(self, h: int, g: int) -> bool:
        """Whether group h needs group g, be it by way of others."""
        least = self.drafts[g].rank
        seen = {h}
        left = [h]
        while left:
            x = left.pop()
            if x == g:
                return True
            for y in self.drafts[x].needs:
                if y not in seen and self.drafts[y].rank >= least:
                    seen.add(y)
                    left.append(y)
        return False

    def finished(
        self, needed: Iterable[str], order: Mapping[str, tuple[str, ...]], prefix: str
    ) -> tuple[Group | Node, ...]:
        """The groups and other nodes in running order.

        Raises:
            Illegal: There is none.

        `needed` are the values that something outside of the scope reads, `order` tells how values
        lie in memory.
        """
        readers: dict[str, set[int]] = {v: {-1} for v in needed}
        for g, d in enumerate(self.drafts):
            nodes: list[Node] = [d.node] if d.node is not None else list(d.stages)
            for n in nodes:
                for v in used_deep(n):
                    readers.setdefault(v, set()).add(g)
        items: list[Group | Node] = []
        running = self._sorted()
        if len(running) < len(self.drafts):
            raise Illegal("kernels need each other's results")
        for g in running:
            d = self.drafts[g]
            if d.node is not None:
                items.append(d.node)
                continue
            made = (v.name for s in d.stages for v in s.outs)
            stored = tuple(v for v in made if readers.get(v, set()) - {g})
            if not stored:
                continue
            lead = max(stored, key=lambda v: len(order[v]))
            shared = tuple(x for x in order[lead] if x in d.shared)
            items.append(Group(f"{prefix}{g}", tuple(d.stages), shared, stored))
        return tuple(items)

    def _sorted(self) -> list[int]:
        """Group numbers so that every group comes after what it needs, early positions first."""
        drafts = self.drafts
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


def reads_at_its_own_place(r: Read, dims: frozenset[str]) -> bool:
    """Whether a read is, along these dims, of the very element that is computed."""
    return r.fill is None and all(c == Index.of(d) for d, c in r.coords if d in dims)
