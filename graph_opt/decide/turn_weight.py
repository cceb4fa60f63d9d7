"""What kernels save that take turns over the indices of a dim, and what more of them may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from rutc.base.record import record
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.plan import FillHalo, PlanStep, Run
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.indices.affine import Index, Size, typical
from rutc.tensor_ir.indices.ranges import midway
from rutc.tensor_ir.lower import Group

Passed = tuple[tuple[int, int], ...]
"""Values that pass from kernel to kernel: the step that stores one, and bytes of an index of it."""


@record
class SectionPart:
    """What a step's kernel is of a section in which it takes turns."""

    dim: str
    """The dim along which it goes."""
    clash: int
    """The last step before it that a section with it may not have; -1 for none."""
    read: Passed
    """What it reads."""
    near: Passed
    """What nobody else reads after it."""
    again: int
    """Bytes that it reads of the same for all indices."""
    unhidden: float
    """Those of them that it waits for."""
    ahead: float
    """Bytes that the kernels after it may add at most to what a section up to it saves."""


class TurnWeight:
    """What a section saves, while it grows by one kernel after the other."""

    def __init__(self, slicer: Slicer, many: int, start: int) -> None:
        """Weigh for so many indices a section that begins with a step."""
        weights = slicer.coefficients
        self.many = many
        self.start = start
        # Asked of every kernel for every step that a section may begin with.
        self._little = 2 * slicer.machine.l2
        self._much = slicer.near(weights.again)
        self._lost = weights.reread * (many - 1)
        self.kernels = 0
        self.passed = 0
        self.again = 0
        self.unhidden = 0.0

    def add(self, part: SectionPart) -> None:
        """Add the next kernel."""
        self.kernels += 1
        for step, size in part.read:
            if step >= self.start:
                self.passed += size
        for step, size in part.near:
            if step >= self.start:
                self.passed += size
        self.again += part.again
        self.unhidden += part.unhidden

    @property
    def moved(self) -> int:
        """Bytes that kernels pass to each other: those read, and those that need not be written."""
        return self.passed * self.many

    @property
    def moves_little(self) -> bool:
        """Whether what is passed stays near anyway."""
        return self.moved <= self._little

    @property
    def is_settled(self) -> bool:
        """Whether every kernel more saves what it passes less what it reads again, and no more."""
        return self._reads_much and not self.moves_little

    @property
    def _reads_much(self) -> bool:
        return self.again > self._much

    @property
    def gain(self) -> float:
        """Bytes that need not be moved from farther caches, less what is read again."""
        if self.moves_little:
            return 0.0
        again = self.unhidden if self._reads_much else 0.0
        return self.moved - self._lost * again


def section_parts(
    steps: Sequence[PlanStep],
    dims: Sequence[str | None],
    slicer: Slicer,
    free: frozenset[str],
    many: int,
) -> list[SectionPart | None]:
    """What each step is of sections over so many indices; None where these end.

    Of indices whose size only a run tells, what smaller ones than the common save and lose is
    counted: kernels that take turns share no rows of short ones, as texts of a few words are.

    Args:
        steps: Kernels, halos and others.
        dims: The dim along which each kernel may go; None for one that may not.
        slicer: What is known of values.
        free: The values whose memory is the plan's own.
        many: The indices for which sections are weighed.
    """
    few = midway(slicer.symbols)
    computed: dict[str, int] = {}
    """Nest -> the step that computes it."""
    stored: dict[str, int] = {}
    """Value -> the step that stores it."""
    sizes: dict[str, int] = {}
    """Value -> the bytes of an index that pass to other kernels."""
    clashes: dict[int, int] = {}
    for at, (s, d) in enumerate(zip(steps, dims, strict=True)):
        if not isinstance(s, Run):
            continue
        computed |= dict.fromkeys((x.out.name for x in s.group.stages), at)
        if d is None:
            continue
        clashes[at] = _clash(s.group, d, dims, stored)
        stored |= dict.fromkeys(s.group.stored, at)
        sizes |= _passed(s.group, slicer, many, few)
    near: dict[int, list[tuple[int, int]]] = {}
    for v, size in sizes.items():
        users = slicer.users[v]
        if v in free and users and users <= computed.keys():
            near.setdefault(max(computed[u] for u in users), []).append((stored[v], size))
    found: list[SectionPart | None] = [None] * len(steps)
    ahead = 0.0
    for at in reversed(range(len(steps))):
        s, d = steps[at], dims[at]
        if isinstance(s, Run) and d is not None:
            external = [v for v in s.group.external_reads() if v in sizes]
            read = tuple((stored[v], sizes[v]) for v in external)
            again, unhidden = _again(s.group, d, slicer, few)
            passed = tuple(near.get(at, ()))
            found[at] = SectionPart(d, clashes[at], read, passed, again, unhidden, ahead)
            more = many * sum(size for _, size in (*read, *passed))
            lost = slicer.coefficients.reread * (many - 1) * unhidden
            ahead = max(0.0, ahead + more - lost)
        elif not isinstance(s, FillHalo):
            ahead = 0.0
    return found


def _clash(group: Group, d: str, dims: Sequence[str | None], stored: Mapping[str, int]) -> int:
    """The last step whose results a kernel along `d` reads at other indices than its own; or -1."""
    last = -1
    for r in group.reads:
        own = dims[stored[r.value]] if r.value in stored else None
        place = dict(r.coords).get(own) if own is not None else None
        if own is not None and not (isinstance(place, Index) and place.as_var == d):
            last = max(last, stored[r.value])
    return last


def _passed(group: Group, slicer: Slicer, many: int, few: Mapping[str, int]) -> dict[str, int]:
    """The bytes of an index of those values of a kernel that commonly come nearer by turns.

    They stay near, or in a thread's share of the last cache, which has no room for what a kernel
    reads and writes of so many indices.
    """
    machine = slicer.machine
    near = slicer.near(slicer.coefficients.most_ring)
    share = machine.l3 // (2 * machine.cores)
    found: dict[str, int] = {}
    for v in group.stored:
        size = Index.of(index_bytes(slicer, v))
        common = typical(size, slicer.symbols)
        if common <= near or common <= share < many * common:
            found[v] = int(size.evaluate(few))
    return found


def _again(group: Group, d: str, slicer: Slicer, few: Mapping[str, int]) -> tuple[int, float]:
    """Bytes that a kernel reads of the same for all indices, and those that it waits for.

    What kernels before it store is not among them: of that it reads the index whose turn it is.
    """
    again, unhidden = 0, 0.0
    block, stream = slicer.coefficients.block, slicer.machine.coefficients.tiles.stream
    external = group.external_reads()
    for stage in group.stages:
        for r in dict.fromkeys(x for e in stage.body for x in reads(e)):
            places = [c for _, c in r.coords]
            fixed = r.value in external and isinstance(slicer.layouts[r.value].size, int)
            if not fixed or moves(places, d):
                continue
            size = slicer.bytes(r.value)
            others = [x for x in stage.out.dims if x != d and not moves(places, x)]
            rows = prod(int(Index.of(slicer.extents[x]).evaluate(few)) for x in others)
            common = prod(typical(slicer.extents[x], slicer.symbols) for x in others)
            # Where a block is common, fewer rows hide weights as long as these take to arrive.
            idle = 1.0 - rows / slicer.machine.rows_that_hide if common >= block else 1.0
            again += size
            unhidden += size * max(stream, idle)
    return again, unhidden


def index_bytes(slicer: Slicer, v: str) -> Size:
    """The bytes of one index of a value's outermost dim."""
    return slicer.layouts[v].axes[0].stride * slicer.values[v].dtype.bytes


def moves(coords: Iterable[object], d: str) -> bool:
    """Whether a place depends on the loop over `d`."""
    return any(not isinstance(c, Index) or d in c.names() for c in coords)
