"""What kernels save that take turns over the indices of a dim, and what more of them may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from rutc.base.record import record
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.plan import FillHalo, PlanStep, Run
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.lower import Group


@record
class Again:
    """Bytes that a kernel reads of the same for all indices, and those that it waits for."""

    bytes: int
    unhidden: float


class TurnWeight:
    """What a section saves, while it grows by one kernel after the other."""

    def __init__(
        self, slicer: Slicer, free: frozenset[str], many: int, known: dict[tuple[str, str], Again]
    ) -> None:
        """Weigh for so many indices; `known` has what was found of (group, dim) before."""
        self.slicer = slicer
        self.weights = slicer.coefficients
        self.free = free
        self.many = many
        self.known = known
        self.inside: set[str] = set()
        self.bytes: dict[str, int] = {}
        """Bytes of an index of the values that pass from kernel to kernel."""
        self.read = 0
        self.again = 0
        self.unhidden = 0.0
        self.near: set[str] = set()
        self.near_bytes = 0

    def add(self, group: Group, d: str) -> None:
        """Add a kernel over a dim, after those that it reads a part of."""
        self.inside |= {s.out.name for s in group.stages}
        external = group.external_reads()
        for v in external:
            self.read += self.bytes.get(v, 0)
        again = self._again(group, d)
        self.again += again.bytes
        self.unhidden += again.unhidden
        self.bytes |= self._passed(group)
        for v in (*external, *group.stored):
            if v in self.bytes and v not in self.near and self._is_inside(v):
                self.near.add(v)
                self.near_bytes += self.bytes[v]

    def most_ahead(self, steps: Sequence[PlanStep], dims: Sequence[str | None]) -> list[float]:
        """What the kernels from each step on may add at most to what a section before them saves.

        As bytes, for steps whose kernels go along these dims; a section ends where one has none.
        """
        passed: dict[str, int] = {}
        last: dict[str, int] = {}
        for at, (s, d) in enumerate(zip(steps, dims, strict=True)):
            if isinstance(s, Run) and d is not None:
                passed |= self._passed(s.group)
                last |= dict.fromkeys(s.group.external_reads(), at)
        found = [0.0] * (len(steps) + 1)
        for at in reversed(range(len(steps))):
            s, d = steps[at], dims[at]
            if isinstance(s, FillHalo):
                found[at] = found[at + 1]
            elif isinstance(s, Run) and d is not None:
                external = s.group.external_reads()
                more = sum(passed.get(v, 0) * (2 if last[v] == at else 1) for v in external)
                more += sum(passed.get(v, 0) for v in s.group.stored if v not in last)
                lost = self.weights.reread * (self.many - 1) * self._again(s.group, d).unhidden
                found[at] = max(0.0, found[at + 1] + more * self.many - lost)
        return found

    def _passed(self, group: Group) -> dict[str, int]:
        """The bytes of an index of those values of a kernel that may stay near."""
        found: dict[str, int] = {}
        for v in group.stored:
            size = index_bytes(self.slicer, v)
            if size is not None and size <= self.slicer.near(self.weights.most_ring):
                found[v] = size
        return found

    def _is_inside(self, v: str) -> bool:
        users = self.slicer.users[v]
        return v in self.free and bool(users) and users <= self.inside

    def _again(self, group: Group, d: str) -> Again:
        """What a kernel reads of the same for all indices.

        What a kernel before it stores is not among it: of that a section's kernels read the index
        whose turn it is.
        """
        known = self.known.get((group.name, d))
        if known is None:
            bytes_, unhidden = 0, 0.0
            external = group.external_reads()
            for stage in group.stages:
                for r in dict.fromkeys(x for e in stage.body for x in reads(e)):
                    places = [c for _, c in r.coords]
                    if r.value not in external or moves(places, d) or not self._is_fixed(r.value):
                        continue
                    size = self.slicer.bytes(r.value)
                    free = (x for x in stage.out.dims if x != d and not moves(places, x))
                    rows = prod(map(self.slicer.extent, free))
                    bytes_ += size
                    unhidden += size * (self.weights.unhidden if rows >= self.weights.block else 1)
            known = self.known[group.name, d] = Again(bytes_, unhidden)
        return known

    def _is_fixed(self, v: str) -> bool:
        return isinstance(self.slicer.layouts[v].size, int)

    @property
    def moved(self) -> int:
        """Bytes that kernels pass to each other."""
        return (self.read + self.near_bytes) * self.many

    @property
    def moves_little(self) -> bool:
        """Whether what is passed stays near anyway."""
        return self.moved <= 2 * self.slicer.near(self.weights.near)

    @property
    def is_settled(self) -> bool:
        """Whether every kernel more saves what it passes less what it reads again, and no more."""
        return self._reads_much and not self.moves_little

    @property
    def _reads_much(self) -> bool:
        return self.again > self.slicer.near(self.weights.again)

    @property
    def gain(self) -> float:
        """Bytes that need not be moved from farther caches, less what is read again."""
        if self.moves_little:
            return 0.0
        again = self.unhidden if self._reads_much else 0.0
        return self.moved - self.weights.reread * (self.many - 1) * again


def index_bytes(slicer: Slicer, v: str) -> int | None:
    """The bytes of one index of a value's outermost dim; None where the run tells how many."""
    stride = slicer.layouts[v].axes[0].stride
    return stride * slicer.values[v].dtype.bytes if isinstance(stride, int) else None


def moves(coords: Iterable[object], d: str) -> bool:
    """Whether a place depends on the loop over `d`."""
    return any(not isinstance(c, Index) or d in c.names() for c in coords)
