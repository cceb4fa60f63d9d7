"""Kernels that run in turn over slices of a dim, so that what passes between them stays near.

    run a: %u = ..              repeat t:  run a over its t-th slice of the dim: %u[y % 2] = ..
    run b: %v = .. %u[y] ..  ->            run b over its t-th slice: %v = .. %u[y % 2] ..

A value that only such a chain reads is stored for one slice at a time. Chains pay where these
values do not fit the second cache as a whole, and where little is read anew for every slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rutc.graph_opt.plan import FillHalo, PlanStep, Repeat, Run
from rutc.record import record
from rutc.tensor_ir.affine import FloorDiv, Index, Mod, Size
from rutc.tensor_ir.expr import IndexValue, Read, reads, walk
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group, Slice

RING_BYTES = 640 << 10
"""What the values between the kernels of a chain may take while one slice is worked on."""
MOST_RING_BYTES = 1400 << 10
"""What they may take where slices cannot be shorter: it is still less than the second cache."""
NEAR_BYTES = 1 << 20
"""Values up to this size stay in the second cache as they are."""
AGAIN_BYTES = 768 << 10
"""What every slice reads again stays in the second cache up to this size."""
FEWEST_SLICES = 4
"""Threads share the slices: with fewer, threads would have nothing to do."""


@record
class Member:
    """A kernel of a chain: its slice holds `ratio` indices of `dim` for each of the first one's."""

    step: int
    group: Group
    dim: str
    ratio: int


@record
class Sliced:
    """The steps with chains in repeats, and the layouts with the values stored in part."""

    steps: tuple[PlanStep, ...]
    layouts: dict[str, Layout]


@record
class Slicer:
    """Finds the chains of one step list.

    `users` names the nodes that use a value, `free` the values whose memory is the plan's own.
    """

    values: Mapping[str, Value]
    layouts: Mapping[str, Layout]
    extents: Mapping[str, Size]
    users: Mapping[str, frozenset[str]]
    free: frozenset[str]
    constants: frozenset[str]

    def slice(self, steps: tuple[PlanStep, ...]) -> Sliced:
        """The steps with every chain that pays."""
        result: list[PlanStep] = []
        layouts = dict(self.layouts)
        at = 0
        while at < len(steps):
            chain = self._best(steps, at)
            if chain is None:
                result.append(steps[at])
                at += 1
                continue
            members, size = chain
            last = members[-1].step
            result += [s for s in steps[at : last + 1] if isinstance(s, FillHalo)]
            result.append(self._repeat(members, size))
            for v in self._between(members):
                own = next(m for m in members if v in m.group.stored)
                layouts[v] = self._ring(v, own.dim, size * own.ratio)
            at = last + 1
        return Sliced(tuple(result), layouts)

    def _best(self, steps: Sequence[PlanStep], start: int) -> tuple[tuple[Member, ...], int] | None:
        """The chain from this step on that saves most, and its slices' size; None if none pays."""
        first = steps[start]
        best: tuple[float, tuple[Member, ...], int] | None = None
        for d in first.group.shared if isinstance(first, Run) else ():
            assert isinstance(first, Run)
            if not isinstance(self.extents[d], int) or not self._alike(first.group, d, 1):
                continue
            members: tuple[Member, ...] = (Member(start, first.group, d, 1),)
            for number in range(start + 1, len(steps)):
                step = steps[number]
                if isinstance(step, FillHalo):
                    continue
                following = self._follows(members, number, step)
                if following is None:
                    break
                members = (*members, following)
                size = self._size(members)
                if size is None:
                    continue
                gain = self._gain(members, size)
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, members, size
        return best and best[1:]

    def _follows(self, members: tuple[Member, ...], number: int, step: PlanStep) -> Member | None:
        """The step as a member of the chain, if each slice of it reads that slice of the others."""
        if not isinstance(step, Run):
            return None
        found: set[tuple[str, int]] = set()
        for r in _reads(step.group):
            own = next((m for m in members if r.value in m.group.stored), None)
            if own is None:
                continue
            loop = _loop(dict(r.coords).get(own.dim))
            if loop is None or r.fill is not None:
                return None
            found.add((loop[0], own.ratio * loop[1]))
        if len(found) != 1:
            return None
        (d, ratio) = found.pop()
        first = members[0].dim
        if d not in step.group.shared or self.extents[d] != ratio * self._extent(first):
            return None
        if not self._alike(step.group, d, ratio):
            return None
        return Member(number, step.group, d, ratio)

    def _alike(self, group: Group, d: str, size: int) -> bool:
        """Whether slices of a multiple of so many indices of `d` all do the same.

        Constants are packed in the order in which loops from 0 on read them, and vectors run along
        the innermost dim.
        """
        if any(r.value in self.constants and _moves(r, d) for r in _reads(group)):
            return False
        if any(
            self.layouts[v].axes[-1:] and self.layouts[v].axes[-1].dim == d for v in group.stored
        ):
            return False
        indices = (
            x.index
            for s in group.stages
            for e in s.body
            for x in walk(e)
            if isinstance(x, IndexValue) and d in x.index.names()
        )
        return all(_has_period(i, d, size) for i in indices)

    def _between(self, members: tuple[Member, ...]) -> list[str]:
        """The values that only the chain reads."""
        inside = {s.out.name for m in members for s in m.group.stages}
        return [
            v
            for m in members[:-1]
            for v in m.group.stored
            if v in self.free
            and self.users[v]
            and self.users[v] <= inside
            and isinstance(self.layouts[v].size, int)
        ]

    def _bytes(self, v: str) -> int:
        """The size of a value; more than any cache where it is symbolic."""
        size = self.layouts[v].size
        return (size if isinstance(size, int) else 1 << 40) * self.values[v].dtype.bytes

    def _extent(self, d: str) -> int:
        return Index.of(self.extents[d]).value

    def _size(self, members: tuple[Member, ...]) -> int | None:
        """The longest slice of the first dim whose values fit; None where nothing is to be won."""
        total = sum(self._bytes(v) for v in self._between(members))
        extent = self._extent(members[0].dim)
        if total <= NEAR_BYTES:
            return None
        sizes = [r for r in range(1, extent // FEWEST_SLICES + 1) if extent % r == 0]
        fitting = [r for r in sizes if total * r <= RING_BYTES * extent]
        if not fitting and total <= MOST_RING_BYTES * extent:
            fitting = sizes[:1]
        return max(fitting, default=None)

    def _gain(self, members: tuple[Member, ...], size: int) -> float:
        """Bytes that need not be moved from farther caches, less what the slices cost."""
        trips = self._extent(members[0].dim) // size
        saved = 2 * sum(self._bytes(v) for v in self._between(members))
        again = 0
        for m in members:
            for v in m.group.external_reads():
                own = [r for r in _reads(m.group) if r.value == v]
                if not any(_moves(r, m.dim) for r in own):
                    again += self._bytes(v)
        reread = (trips - 1) * again if again > AGAIN_BYTES else 0
        return saved - 1.5 * reread

    def _repeat(self, members: tuple[Member, ...], size: int) -> Repeat:
        symbol = f"{members[0].group.name}.slice"
        groups = [replace(m.group, slices=(Slice(m.dim, symbol, size * m.ratio),)) for m in members]
        between = set(self._between(members))
        return Repeat(
            symbol,
            self._extent(members[0].dim) // size,
            (),
            (),
            tuple(Run(g) for g in groups),
            (),
            tuple(dict.fromkeys(o for g in groups for s in g.stages for o in s.origin)),
            tuple(v for g in groups for v in g.stored if v not in between),
        )

    def _ring(self, v: str, d: str, size: int) -> Layout:
        """The value's layout with room for one slice of a dim."""
        layout = self.layouts[v]
        order = [a.dim for a in layout.axes]
        narrow = dense(order, {**self.extents, d: size})
        axes = tuple(replace(a, whole=False) if a.dim == d else a for a in narrow.axes)
        return replace(layout, axes=axes)


def _reads(group: Group) -> list[Read]:
    return [r for s in group.stages for e in s.body for r in reads(e)]


def _has_period(i: Index, d: str, size: int) -> bool:
    match i.terms:
        case (((Mod(p, q),), _),) if p.as_var == d and q.is_const:
            return size % q.value == 0
        case _:
            return False


def _loop(c: object) -> tuple[str, int] | None:
    """(loop, k) of the coordinates `loop` and `loop // k`."""
    if not isinstance(c, Index):
        return None
    if c.as_var is not None:
        return c.as_var, 1
    match c.terms:
        case (((FloorDiv(p, q),), 1),) if p.as_var is not None and q.is_const and c.const == 0:
            return p.as_var, q.value
        case _:
            return None


def _moves(r: Read, d: str) -> bool:
    """Whether the place that is read depends on the loop over `d`."""
    return any(not isinstance(c, Index) or d in c.names() for _, c in r.coords)
