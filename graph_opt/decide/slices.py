"""Kernels that run in turn over slices of a dim, so that what passes between them stays near.

    run a: %u = ..              repeat t:  run a over its t-th slice of the dim: %u[y % 2] = ..
    run b: %v = .. %u[y] ..  ->            run b over its t-th slice: %v = .. %u[y % 2] ..

A value that only such a chain reads is stored for one slice at a time. Chains pay where these
values do not fit the second cache as a whole, and where little is read anew for every slice.

Where one index of a dim is still too much, slices are blocks of another dim for one index of it:

    repeat h:  repeat t:  run a, run b over the t-th block of their part of index h
    repeat h:             run a, run b over what the blocks leave over

Of a dim of symbolic size, blocks are of one size that the run computes, and the last one does some
indices again. Slices are as long as the largest sizes allow, which is what scratch must have room
for; chains must pay at common sizes, too.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod

from rutc.base.record import record
from rutc.graph_opt.decide.chains import Chain, Member, Sliced, has_period, loop_of, moves
from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from rutc.graph_opt.plan import FillHalo, PlanStep, Repeat, Run
from rutc.graph_opt.row_runs import matrix_factors, rows_of_sum
from rutc.tensor_ir.affine import (
    ONE,
    Index,
    Range,
    Size,
    maximum,
    minimum,
    plain,
    typical,
)
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group, Slice
from rutc.tensor_ir.machine import Machine

RING = 0.625
"""What the values between the kernels of a chain may take while one slice is worked on, in second
caches."""
MOST_RING = 1.375
"""What they may take where slices cannot be shorter: little of it is lost."""
BLOCK = 64
"""Indices of a block: so many use what register tiles load of the other operand."""
UNHIDDEN = 0.25
"""Share of what blocks read again that their arithmetic does not hide."""
REREAD = 1.5
"""What a byte that is read again costs, in bytes that stay near."""
MOST_DIMS = 3
"""Slices are of so many dims at most."""
FEWEST_KEPT = 0.75
"""Share of the rows of registers for matrices that slices leave."""
NEAR = 1.0
"""Values up to this size, in second caches, stay near as they are."""
AGAIN = 0.75
"""What every slice reads again stays near up to this size, in second caches."""
MOST_MEMBERS = 16
"""Kernels of a chain: their code is one function, and each more is another chain to weigh."""
MOST_CHAINED = 4 * MOST_OPERATIONS
"""Operations of a chain's bodies: its code is made by one process."""
FEWEST_SLICES = 4
"""Threads share the slices: with fewer, threads would have nothing to do."""


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
    symbols: Mapping[str, Range]
    machine: Machine

    def near(self, share: float) -> int:
        """Bytes of so many second caches."""
        return int(share * self.machine.l2)

    def slice(self, steps: tuple[PlanStep, ...]) -> Sliced:
        """The steps with every chain that pays."""
        result: list[PlanStep] = []
        layouts = dict(self.layouts)
        best = functools.cache(lambda start: self._best(steps, start))
        at = 0
        while at < len(steps):
            chain = best(at)
            later = [best(m.step) for m in chain.members[1:]] if chain is not None else []
            if chain is None or any(map(chain.gives_way_to, later)):
                result.append(steps[at])
                at += 1
                continue
            last = chain.members[-1].step
            result += [s for s in steps[at : last + 1] if isinstance(s, FillHalo)]
            result += self._repeats(chain)
            for v in self._between(chain.members):
                layouts[v] = self._ring(v, chain)
            at = last + 1
        return Sliced(tuple(result), layouts)

    def _best(self, steps: Sequence[PlanStep], start: int) -> Chain | None:
        """The chain from this step on that saves most; None if none pays."""
        first = steps[start]
        found: list[Chain] = []
        if not isinstance(first, Run):
            return None
        for d in self._cut(first.group):
            found += self._over(steps, start, (d,))
        return max(found, key=lambda chain: chain.gain, default=None)

    def _cut(self, group: Group) -> list[str]:
        """The dims of which there may be several slices."""
        return [d for d in group.shared if self.extents[d] != 1]

    def _over(self, steps: Sequence[PlanStep], start: int, dims: tuple[str, ...]) -> list[Chain]:
        """The chains that pay over slices of these dims, and of more where one index is too much.

        Of chains that save as much, those with blocks come first.
        """
        first = steps[start]
        assert isinstance(first, Run)
        grown = self._grown(steps, start, dims)
        room = self.near(RING) * prod(map(self.extent, dims))
        found: list[Chain] = []
        if len(dims) < MOST_DIMS and any(self._bytes_between(m) > room for m in grown):
            for e in self._cut(first.group):
                if e not in dims:
                    found += self._over(steps, start, (*dims, e))
        return [*found, *self._paying(grown)]

    def _grown(
        self, steps: Sequence[PlanStep], start: int, dims: tuple[str, ...]
    ) -> list[tuple[Member, ...]]:
        """All chains over slices of these dims of the first step, each a kernel longer."""
        first = steps[start]
        assert isinstance(first, Run)
        members: tuple[Member, ...] = (Member(start, first.group, dims, (1,) * len(dims)),)
        found: list[tuple[Member, ...]] = []
        code = first.group.operations
        if not self._alike(members[0]):
            return found
        for number in range(start + 1, len(steps)):
            step = steps[number]
            if isinstance(step, FillHalo):
                continue
            following = self._follows(members, number, step)
            if following is None or len(members) == MOST_MEMBERS:
                break
            code += following.group.operations
            if code > MOST_CHAINED:
                break
            members = (*members, following)
            found.append(members)
        return found

    def _paying(self, grown: Sequence[tuple[Member, ...]]) -> list[Chain]:
        """The chains that save more than they cost."""
        found: list[Chain] = []
        for members in grown:
            size = self._size(members)
            if size is None or (gain := self._gain(members, size)) <= 0:
                continue
            if any(self._lose_rows(m, size) for m in members):
                continue
            blocks = self._in_blocks(members)
            room = self.near(RING) * self.extent(members[0].dims[-1])
            crowded = not blocks and self._bytes_between(members) * size > room
            found.append(Chain(members, size, gain, blocks, crowded))
        return found

    def _follows(self, members: tuple[Member, ...], number: int, step: PlanStep) -> Member | None:
        """The step as a member of the chain, if each slice of it reads that slice of the others."""
        if not isinstance(step, Run):
            return None
        found: set[tuple[tuple[str, int], ...]] = set()
        for r in step.group.reads_outside:
            own = next((m for m in members if r.value in m.group.stored), None)
            if own is None:
                continue
            coords = dict(r.coords)
            loops = [loop_of(coords.get(d)) for d in own.dims]
            if r.fill is not None:
                return None
            found.add(tuple((x[0], k * x[1]) for x, k in zip(loops, own.ratios, strict=True) if x))
        if len(found) != 1:
            return None
        (parts,) = found
        dims, ratios = tuple(d for d, _ in parts), tuple(k for _, k in parts)
        first = members[0].dims
        if len(set(dims)) != len(first) or not set(dims) <= set(step.group.shared):
            return None
        wanted = [plain(Index.of(self.extents[d]) * k) for d, k in zip(first, ratios, strict=True)]
        if [self.extents[d] for d in dims] != wanted:
            return None
        following = Member(number, step.group, dims, ratios)
        return following if self._alike(following) else None

    def _alike(self, member: Member) -> bool:
        """Whether slices of a multiple of so many indices of its dims all do the same.

        Constants are packed in the order in which loops from 0 on read them, and vectors run along
        the innermost dim.
        """
        group = member.group
        innermost = {self.layouts[v].axes[-1].dim for v in group.stored if self.layouts[v].axes}
        if not innermost.isdisjoint(member.dims[:-1]):
            return False
        for d, size in zip(member.dims, member.ratios, strict=True):
            if any(r.value in self.constants and moves(r, d) for r in group.reads_outside):
                return False
            if not all(has_period(i, d, size) for i in group.indices if d in i.names()):
                return False
        return True

    def _lose_rows(self, member: Member, size: int) -> bool:
        """Whether registers for matrices hold far fewer rows in a slice than of the whole."""
        sizes = dict(zip(member.dims, member.ratios, strict=True))
        sizes[member.dims[-1]] *= size
        for s in member.group.stages:
            for r in matrix_factors(s, self.constants):
                order = [a.dim for a in self.layouts[r.value].axes]
                extents = {d: self.extent(d) for d in (*s.dims, *order)}
                before = rows_of_sum(s, r, order, extents)
                after = rows_of_sum(s, r, order, {**extents, **sizes})
                if after < FEWEST_KEPT * before:
                    return True
        return False

    def _between(self, members: tuple[Member, ...]) -> list[str]:
        """The values that only the chain reads."""
        inside = [m.group.computed for m in members]

        def only(users: frozenset[str]) -> bool:
            return bool(users) and all(any(u in own for own in inside) for u in users)

        return [
            v
            for m in members[:-1]
            for v in m.group.stored
            if v in self.free and only(self.users[v])
        ]

    @functools.cached_property
    def bytes(self) -> Callable[[str], int]:
        """The size of a value, at most."""
        return functools.cache(
            lambda v: self._most(self.layouts[v].size) * self.values[v].dtype.bytes
        )

    @functools.cached_property
    def _common_bytes(self) -> Callable[[str], int]:
        """The size of a value where symbols are common."""
        return functools.cache(
            lambda v: typical(self.layouts[v].size * self.values[v].dtype.bytes, self.symbols)
        )

    @functools.cached_property
    def extent(self) -> Callable[[str], int]:
        """The indices of a dim, at most."""
        return functools.cache(lambda d: self._most(self.extents[d]))

    def _most(self, size: Size) -> int:
        """The largest that a size may be."""
        bounds = Index.of(size).bounds(self.symbols)
        assert bounds is not None, "every symbol has a range"
        return bounds[1]

    def _bytes_between(self, members: tuple[Member, ...]) -> int:
        return sum(self.bytes(v) for v in self._between(members))

    def _size(self, members: tuple[Member, ...]) -> int | None:
        """The length of slices whose values fit; None where nothing is to be won.

        The longest that leaves nothing over; about equal ones where that would be far shorter.
        """
        between = self._between(members)
        total = sum(map(self.bytes, between))
        if sum(map(self._common_bytes, between)) <= self.near(NEAR):
            return None
        *outer, last = members[0].dims
        extent, around = self.extent(last), prod(map(self.extent, outer))
        if total <= (self.near(RING) * around if outer else self.near(NEAR)):
            return None
        line, blocks = self._line(members), self._in_blocks(members)
        most = extent * around // FEWEST_SLICES
        if blocks and min(extent - 1, most) < BLOCK:
            return None
        most = min(most, BLOCK) if blocks else most
        room = self.near(MOST_RING) if blocks else self.near(RING)
        longest = min(most, room * extent * around // total) // line * line
        if not self._is_fixed(members):
            possible = line == 1 and longest > 0
            return longest if possible and self._fewest(members, longest) >= FEWEST_SLICES else None
        if longest == 0:
            fits = line <= most and total * line <= self.near(MOST_RING) * extent * around
            return line if fits else None
        whole = max((r for r in range(line, longest + 1, line) if extent % r == 0), default=0)
        even = -(-extent // -(-extent // longest))
        return whole if 2 * whole >= longest else -(-even // line) * line

    def _is_fixed(self, members: tuple[Member, ...]) -> bool:
        """Whether the dims that are cut have known sizes."""
        return all(isinstance(self.extents[d], int) for m in members for d in m.dims)

    def _fewest(self, members: tuple[Member, ...], size: int) -> int:
        """The number of slices where symbols are least; where one is 0 there is nothing to do."""
        *outer, last = members[0].dims
        trips = [*(Index.of(self.extents[d]) for d in outer), self._slices(last, size)[0]]
        some = {s: (min(max(low, 1), high), high) for s, (low, high) in self.symbols.items()}
        bounds = [x.bounds(some) for x in trips]
        return prod(0 if b is None else b[0] for b in bounds)

    def _slices(self, d: str, most: int) -> tuple[Index, Index]:
        """(number, size) of equal slices of a dim."""
        extent = Index.of(self.extents[d])
        count = (extent + (most - 1)) // most
        parts = maximum(count, ONE, self.symbols)
        each = (extent + parts - 1) // parts
        # The minimum holds by itself, but not by the bounds of its terms.
        return count, minimum(Index.of(most), each, self.symbols).simplify(self.symbols)

    def _in_blocks(self, members: tuple[Member, ...]) -> bool:
        """Whether slices are blocks: parts of an index, or of lines."""
        return len(members[0].dims) > 1 or self._line(members) > 1

    def _line(self, members: tuple[Member, ...]) -> int:
        """Slices are multiples of so many indices of the first kernel's last dim: of whole lines.

        Equal slices of a dim of any size are not: values of their own may begin within a line.
        """
        lines = [1]
        own = () if self._is_fixed(members) else self._between(members)
        for m in members:
            for v in m.group.stored:
                axes = self.layouts[v].axes
                if axes and axes[-1].dim == m.dims[-1] and v not in own:
                    whole = self.machine.line_bytes // self.values[v].dtype.bytes
                    lines.append(lcm(whole, m.ratios[-1]) // m.ratios[-1])
        return lcm(*lines)

    def _gain(self, members: tuple[Member, ...], size: int) -> float:
        """Bytes that need not be moved from farther caches, less what the slices cost."""
        extents = [self.extent(d) for d in members[0].dims]
        trips = [*extents[:-1], -(-extents[-1] // size)]
        blocks = self._in_blocks(members)
        readers = Counter(v for m in members for v in m.group.external_reads())
        saved = sum(self.bytes(v) * (1 + readers[v]) for v in self._between(members))
        reread = 0.0
        for level, count in enumerate(trips):
            again = self._read_again(members, level)
            if again > self.near(AGAIN):
                share = UNHIDDEN if blocks and level == len(trips) - 1 else 1.0
                reread += share * prod(trips[:level]) * (count - 1) * again
        return saved - REREAD * reread

    def _read_again(self, members: tuple[Member, ...], level: int) -> float:
        """Bytes that all slices of a dim read, within one index of the dims around it."""
        again = 0.0
        for m in members:
            for v in m.group.external_reads():
                if m.dims[level] not in m.moved[v]:
                    around = (self.extent(d) for d in m.dims[:level] if d in m.moved[v])
                    again += self.bytes(v) / prod(around)
        return again

    def _repeats(self, chain: Chain) -> list[Repeat]:
        """The repeat of all whole slices, and that of what they leave over."""
        if not self._is_fixed(chain.members):
            return [self._repeat(chain, f"{chain.members[0].group.name}.slice", None)]
        whole, rest = divmod(self.extent(chain.members[0].dims[-1]), chain.size)
        name = chain.members[0].group.name
        found = [self._repeat(chain, f"{name}.slice", (whole, chain.size, 0))]
        if rest:
            found.append(self._repeat(chain, f"{name}.rest", (1, rest, whole * chain.size)))
        return found

    def _repeat(self, chain: Chain, symbol: str, part: tuple[int, int, int] | None) -> Repeat:
        """The repeat of (count, size, first): so many slices, from that index on; or of all."""
        *outer, last = chain.members[0].dims
        count: Size
        size: Size
        if part is None:
            count, size = map(plain, self._slices(last, chain.size))
            first = 0
        else:
            count, size, first = part
        counters = [(f"{symbol}.{d}", self.extents[d]) for d in outer] + [(symbol, count)]
        groups: list[Group] = []
        for m in chain.members:
            slices = [
                Slice(d, counter, k)
                for d, (counter, _), k in zip(m.dims, counters, m.ratios, strict=True)
            ]
            k = m.ratios[-1]
            end = self.extents[m.dims[-1]] if part is None else None
            slices[-1] = replace(slices[-1], size=size * k, first=k * first, end=end)
            suffix = ".rest" if first else ""
            groups.append(replace(m.group, name=m.group.name + suffix, slices=tuple(slices)))
        between = set(self._between(chain.members))
        parts = tuple(v for g in groups for v in g.stored if v not in between)
        origin = tuple(dict.fromkeys(o for g in groups for s in g.stages for o in s.origin))
        steps: tuple[PlanStep, ...] = tuple(map(Run, groups))
        for counter, trips in reversed(counters):
            steps = (Repeat(counter, trips, (), (), steps, (), origin, parts),)
        (repeat,) = steps
        assert isinstance(repeat, Repeat)
        return repeat

    def _ring(self, v: str, chain: Chain) -> Layout:
        """The value's layout with room for one slice."""
        own = next(m for m in chain.members if v in m.group.stored)
        sizes: dict[str, Size] = dict(zip(own.dims, own.ratios, strict=True))
        length: Size = chain.size
        if not self._is_fixed(chain.members):
            length = plain(self._slices(chain.members[0].dims[-1], chain.size)[1])
        sizes[own.dims[-1]] *= length
        layout = self.layouts[v]
        narrow = dense([a.dim for a in layout.axes], {**self.extents, **sizes})
        axes = tuple(replace(a, whole=False) if a.dim in sizes else a for a in narrow.axes)
        return replace(layout, axes=axes)


def stays_near(between: float, again: float, count: int, cache: int) -> bool:
    """Whether `between` bytes pass from kernel to kernel in so many slices of a dim, and stay near.

    `again` bytes are read again for each slice; `cache` are those of a second cache.
    """
    if count < FEWEST_SLICES or between > count * MOST_RING * cache:
        return False
    return again <= AGAIN * cache or 2 * between > REREAD * (count - 1) * again
