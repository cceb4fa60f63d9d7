"""Which kernels run in turn over slices of a dim, so that what passes between them stays near.

Chains (see `chains`) pay where the values that only they read do not fit the second cache as a
whole, and where little is read anew for every slice. Where one index of a dim is still too much,
slices are blocks of another dim for one index of it. Where a run tells how much an index takes, it
tells how long slices are. Chains of symbolic sizes must pay at common ones.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, replace
from math import prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.assignment import Slicing
from rutc.graph_opt.decide.chains import (
    MOST_CHAINED,
    MOST_MEMBERS,
    Chain,
    Chains,
    Member,
    leader,
)
from rutc.graph_opt.decide.likeness import Found, Likeness
from rutc.graph_opt.decide.slice_sizes import FEWEST_SLICES, SHARED_TURNS, even_slices
from rutc.graph_opt.plan import FillHalo, PlanStep, Run
from rutc.graph_opt.row_runs import matrix_factors, rows_of_sum
from rutc.tensor_ir.coefficients import Slices
from rutc.tensor_ir.facts.matrix_blocks import ROWS
from rutc.tensor_ir.indices.affine import Index, Size, typical
from rutc.tensor_ir.lower import Group

Along = Callable[[str], tuple[Member, ...]]
"""The kernels that follow each other from a step on over slices of one of its dims."""
MOST_DIMS = 3
"""Slices are of so many dims at most."""


@record
class Moved:
    """Bytes of the values between kernels: of all writes and reads, and of all values.

    The first two are those at common sizes, the last one is the most that there may be.
    """

    passed: int
    common: int
    most: int


@record
class Slicer(Chains):
    """Chooses the chains of one step list; what was `found` for another plan holds for this one."""

    found: Found = field(default_factory=Found)

    @property
    def coefficients(self) -> Slices:
        """What slices cost, and from where on they pay."""
        return self.machine.coefficients.slices

    def near(self, share: float) -> int:
        """Bytes of so many second caches."""
        return int(share * self.machine.l2)

    def chosen(self, steps: tuple[PlanStep, ...]) -> tuple[Slicing, ...]:
        """Every chain of the steps that pays."""
        found: list[Slicing] = []
        likeness = Likeness(self.found, self.extents, self._facts)
        best = functools.cache(
            lambda start: likeness.best(steps, start, lambda: self._best(steps, start))
        )
        at = 0
        while at < len(steps):
            chain = best(at)
            later = [best(m.step) for m in chain.members[1:]] if chain is not None else []
            if chain is None or any(map(chain.gives_way_to, later)):
                at += 1
                continue
            kernels = tuple(leader(m.group) for m in chain.members)
            found.append(
                Slicing(kernels, chain.members[0].dims, self._longest(chain), chain.within)
            )
            at = chain.members[-1].step + 1
        return tuple(found)

    def _facts(self, v: str) -> Hashable:
        """All that counts of a value for the chains that it may pass through."""
        value, layout = self.values[v], self.layouts[v]
        sizes = self.turns, *[self.extents[d] for d in value.dims]
        return value.dtype, layout, sizes, self.users[v], v in self.free, v in self.constants

    def _longest(self, chain: Chain) -> int:
        """The indices that a slice of a chain holds at most."""
        if chain.within is None:
            return chain.size
        return self.most(self.equal_slices(chain.members, chain.size, chain.within)[1])

    def _best(self, steps: Sequence[PlanStep], start: int) -> Chain | None:
        """The chain from this step on that saves most; None if none pays.

        Of several that save as much, it is the one whose slices have least to keep, with what they
        read again where symbols are least: where sizes are not the common ones, less is read from
        farther caches.
        """
        first = steps[start]
        found: list[Chain] = []
        if not isinstance(first, Run):
            return None
        along = functools.cache(lambda d: self._along(steps, start, d))
        for d in self._cut(first.group):
            most = max((chain.gain for chain in found), default=0.0)
            found += self._over(first.group, along, (d,), most)
        # Blocks of one index stay near; all of it at a time does not, whatever is read again.
        cut = max((chain.members[-1].step for chain in found if chain.blocks), default=start)
        return max(
            [c for c in found if not c.crowded or c.members[-1].step > cut],
            key=lambda chain: (chain.gain, -self._again_where_least(chain) - chain.least),
            default=None,
        )

    def _cut(self, group: Group) -> list[str]:
        """The dims of which there may be several slices."""
        return [d for d in group.shared if self.extents[d] != 1]

    def _over(
        self, first: Group, along: Along, dims: tuple[str, ...], gained: float
    ) -> list[Chain]:
        """The chains that pay over slices of these dims, and of more where one index is too much.

        They begin with the kernel `first`. Of chains that save as much, those with blocks come
        first. Those that save less than others do, or than the bytes that are `gained` already, may
        be left out.
        """
        grown = self._grown(along, dims)
        room = self.near(self.coefficients.ring) * prod(map(self.extent, dims))
        whole = self._paying(grown, gained)
        found: list[Chain] = []
        if len(dims) < MOST_DIMS and any(self._bytes_between(m) > room for m in grown):
            for e in self._cut(first):
                gained = max([gained, *(chain.gain for chain in (*whole, *found))])
                # Over more dims no more kernels follow each other.
                if e not in dims and self._passed(grown[-1]) >= gained:
                    found += self._over(first, along, (*dims, e), gained)
        return [*found, *whole]

    def _grown(self, along: Along, dims: tuple[str, ...]) -> list[tuple[Member, ...]]:
        """All chains over slices of these dims of the first step, each a kernel longer.

        Kernels that follow each other over several dims do so over each of them.
        """
        members: tuple[Member, ...] = ()
        found: list[tuple[Member, ...]] = []
        for parts in zip(*map(along, dims), strict=False):
            own = tuple([d for m in parts for d in m.dims])
            ratios = tuple([k for m in parts for k in m.ratios])
            following = Member(parts[0].step, parts[0].group, own, ratios)
            if len(set(own)) < len(own) or self.cuts_vectors(following):
                break
            members = (*members, following)
            if len(members) > 1:
                found.append(members)
        return found

    def _along(self, steps: Sequence[PlanStep], start: int, d: str) -> tuple[Member, ...]:
        """The kernels that follow each other from a step on, slice by slice of one of its dims."""
        first = steps[start]
        assert isinstance(first, Run)
        members: tuple[Member, ...] = (Member(start, first.group, (d,), (1,)),)
        if not self.alike(members[0]):
            return ()
        for number in range(start + 1, len(steps)):
            step = steps[number]
            if isinstance(step, FillHalo):
                continue
            following = self.follows(members, number, step)
            if following is None or len(members) == MOST_MEMBERS:
                break
            if self.code((*members, following)) > MOST_CHAINED:
                break
            members = (*members, following)
        return members

    def _paying(self, grown: Sequence[tuple[Member, ...]], gained: float) -> list[Chain]:
        """The chains that save more than they cost.

        Those that save less than a longer one, or than the bytes that are `gained` already, may
        be left out.
        """
        found: list[Chain] = []
        for members in reversed(grown):
            if self._passed(members) < gained:
                continue
            sized = self._size(members)
            if sized is None:
                continue
            size, within = sized
            shortest = common = size
            if not self.is_fixed(members):
                shortest = size if within is None else 1
                common = self._common_slices(members, size, within)[1]
            gain = self._gain(members, common)
            if gain <= 0 or any(self._lose_rows(m, common) for m in members):
                continue
            blocks = self._in_blocks(members)
            room = self.near(self.coefficients.ring) * self.extent(members[0].dims[-1])
            crowded = not blocks and self._bytes_between(members) * shortest > room
            again = max(self._read_again(members, level) for level in range(len(members[0].dims)))
            index_bytes = self._common_index_bytes(members)
            found.append(Chain(members, size, within, gain, again + index_bytes, blocks, crowded))
            gained = max(gained, gain)
        return found[::-1]

    def _lose_rows(self, member: Member, size: int) -> bool:
        """Whether registers for matrices hold fewer rows in a slice, and too few to hide loads.

        A product takes a cycle for each of its r rows. Two of them, side by side, load r rows of
        one factor and ROWS of the other one each: 2 * r * loads_per_cycle >= r + 2 * ROWS hides it.
        """
        hidden = 2 * ROWS / (2 * self.machine.loads_per_cycle - 1)
        sizes = dict(zip(member.dims, member.ratios, strict=True))
        sizes[member.dims[-1]] *= size
        for s in member.group.stages:
            for r in matrix_factors(s, self.constants):
                order = [a.dim for a in self.layouts[r.value].axes]
                extents = {d: self.extent(d) for d in (*s.dims, *order)}
                before = rows_of_sum(s, r, order, extents)
                after = rows_of_sum(s, r, order, {**extents, **sizes})
                if after < min(before, hidden):
                    return True
        return False

    def _common(self, size: Size) -> int:
        """What a size is where symbols are common."""
        return typical(size, self.symbols)

    def _common_index_bytes(self, members: tuple[Member, ...]) -> int:
        """What passes between the kernels for one index where symbols are common."""
        found = self.owned_between(members)
        return sum([self._common_bytes_of(v, m.dims, m.ratios) for v, m in found])

    @cached_property
    def _common_bytes_of(self) -> Callable[[str, tuple[str, ...], tuple[int, ...]], int]:
        """What a value takes for so many indices of dims where symbols are common."""
        return functools.cache(lambda *at: self._common(self.index_bytes_of(*at)))

    def _common_slices(
        self, members: tuple[Member, ...], size: int, within: int | None
    ) -> tuple[int, int]:
        """(number, size) of slices where symbols are common, see `equal_slices`."""
        extent, around = self._common_extent(members[0].dims[-1]), self._common_around(members)
        fits = None
        if within is not None:
            fits = within // max(self._common_index_bytes(members), 1)
        return even_slices(extent, around, size, fits, self.least(members), min, max)

    def _common_around(self, members: tuple[Member, ...]) -> int:
        """The indices around the dim that is cut where symbols are common."""
        turns = min(self._common(self.turns), SHARED_TURNS)
        return prod([*map(self._common_extent, members[0].dims[:-1]), turns])

    @cached_property
    def _common_bytes(self) -> Callable[[str], int]:
        """The size of a value where symbols are common."""
        return functools.cache(
            lambda v: self._common(self.layouts[v].size * self.values[v].dtype.bytes)
        )

    @cached_property
    def _common_extent(self) -> Callable[[str], int]:
        """The indices of a dim where symbols are common."""
        return functools.cache(lambda d: self._common(self.extents[d]))

    def _bytes_between(self, members: tuple[Member, ...]) -> int:
        return self._moved(members).most

    def _size(self, members: tuple[Member, ...]) -> tuple[int, int | None] | None:
        """(size, within): the length of slices whose values fit; None where nothing is to be won.

        The longest that leaves nothing over, of those that threads share evenly if there are any;
        about equal ones where that would be far shorter. Of slices `within` so many bytes, it is a
        bound: what they hold takes long to tell, and most chains do not pay.
        """
        moved, w = self._moved(members), self.coefficients
        total = moved.most
        if moved.common <= self.machine.l2:
            return None
        *outer, last = members[0].dims
        extent, around = self.extent(last), prod(map(self.extent, outer))
        if total <= (self.near(w.ring) * around if outer else self.machine.l2):
            return None
        line, blocks = self.line(members), self._in_blocks(members)
        most = min(extent, extent * around // FEWEST_SLICES)
        few = blocks and min(extent - 1, most) * self._fewest_rows(members) < w.block
        if few and not self._may_be_short(members):
            return None
        most = min(most, w.block) if blocks else most
        room = self.near(w.most_ring if blocks and not few else w.ring)
        longest = min(most, room * extent * around // total) // line * line
        if not self.is_fixed(members):
            if line > 1:
                return None
            if isinstance(self.extents[last], int):
                # As many slices as threads want, also where there is a single index around them.
                longest = min(
                    longest, extent * self._fewest(members[0].dims, extent) // FEWEST_SLICES
                )
            some = longest > 0 and self._fewest(members[0].dims, longest) >= FEWEST_SLICES
            # Of blocks of a known size, a run tells how many there are: shorter ones where few.
            known = self._index_is_known(members) and (some or not outer)
            of_runs = None if known else self._size_in_runs(members, room)
            return (longest, None) if of_runs is None and some else of_runs
        if longest == 0:
            fits = line <= most and total * line <= self.near(w.most_ring) * extent * around
            return (line, None) if fits else None
        whole = [r for r in range(line, longest + 1, line) if extent % r == 0 and 2 * r >= longest]
        shared = [r for r in whole if extent // r * around % self.machine.cores == 0]
        even = -(-extent // -(-extent // longest))
        return max(shared or whole, default=-(-even // line) * line), None

    def _may_be_short(self, members: tuple[Member, ...]) -> bool:
        """Whether parts of an index may have few rows.

        All of the index could be a slice, and what all parts of it read again stays near.
        """
        if len(members[0].dims) == 1 or not self.is_fixed(members):
            return False
        if self._read_again(members, len(members[0].dims) - 1) > self.near(self.coefficients.again):
            return False
        whole = [replace(m, dims=m.dims[:-1], ratios=m.ratios[:-1]) for m in members]
        return self._size(tuple(whole)) is not None

    def _index_is_known(self, members: tuple[Member, ...]) -> bool:
        """Whether what passes between the kernels for one index is so whatever the sizes."""
        found = self.owned_between(members)
        return all(self.index_bytes_of(v, m.dims, m.ratios).is_const for v, m in found)

    def _size_in_runs(
        self, members: tuple[Member, ...], within: int
    ) -> tuple[int, int | None] | None:
        """(size, within) of slices whose length a run tells; None where nothing is to be won.

        Where there are few slices, there must be little to do.
        """
        w, (*outer, last) = self.coefficients, members[0].dims
        if self._common_index_bytes(members) > self.near(w.most_ring):
            return None
        if self._read_again(members, len(outer)) > self.near(w.again):
            return None
        longest = self.extent(last)
        count, _ = self._common_slices(members, longest, within)
        if count * self._common_around(members) < FEWEST_SLICES:
            return None
        return longest, within

    @cached_property
    def _fewest(self) -> Callable[[tuple[str, ...], int], int]:
        """The number of slices of so many indices where symbols are least.

        Where one is 0 there is nothing to do.
        """
        some = {s: (min(max(low, 1), high), high) for s, (low, high) in self.symbols.items()}

        def found(dims: tuple[str, ...], size: int) -> int:
            *outer, last = (Index.of(self.extents[d]) for d in dims)
            bounds = [x.bounds(some) for x in (*outer, (last + size - 1) // size)]
            return prod(0 if b is None else b[0] for b in bounds)

        return functools.cache(found)

    def _in_blocks(self, members: tuple[Member, ...]) -> bool:
        """Whether slices are blocks: parts of an index, or of lines."""
        return len(members[0].dims) > 1 or self.line(members) > 1

    def _gain(self, members: tuple[Member, ...], size: int) -> float:
        """Bytes that need not be moved from farther caches, less what the slices cost."""
        extents = [self._common_extent(d) for d in members[0].dims]
        trips = [*extents[:-1], -(-extents[-1] // size)]
        blocks = self._in_blocks(members)
        reread, w, stream = 0.0, self.coefficients, self.machine.coefficients.tiles.stream
        for level, count in enumerate(trips):
            again = self._read_again(members, level)
            if again > self.near(w.again):
                again *= stream if blocks and level == len(trips) - 1 else 1.0
            else:
                again = self._waited_for(members, level, size)
            reread += prod(trips[:level]) * (count - 1) * again
        return self._passed(members) - w.reread * reread

    def _again_where_least(self, chain: Chain) -> float:
        """Bytes that slices read again where symbols are least; 0 where there are none.

        One token attends to many that came before: what heads share is read by each of them, or by
        one slice that has the rows of all.
        """
        members = chain.members
        if self.is_fixed(members):
            return 0.0
        *outer, last = members[0].dims
        trips = [*(self._fewest((d,), 1) for d in outer), self._fewest((last,), chain.size)]
        return sum(
            prod(trips[:level]) * (count - 1) * self._read_again(members, level, one_row=True)
            for level, count in enumerate(trips)
        )

    def _passed(self, members: tuple[Member, ...]) -> int:
        """Bytes that pass between the kernels, written and read."""
        return self._moved(members).passed

    def _moved(self, members: tuple[Member, ...]) -> Moved:
        """What moves between kernels, whatever the dims that are cut."""
        ends = members[0].group.name, members[-1].group.name
        found = self._known_moved.get(ends)
        if found is None:
            between = self.between(members)
            readers = Counter(v for m in members for v in m.group.external_reads())
            passed = sum(self._common_bytes(v) * (1 + readers[v]) for v in between)
            common = sum(map(self._common_bytes, between))
            most = sum(map(self.bytes, between))
            found = self._known_moved[ends] = Moved(passed, common, most)
        return found

    @cached_property
    def _known_moved(self) -> dict[tuple[str, str], Moved]:
        """First and last kernel -> what moves between these and those that lie between."""
        return {}

    def _waited_for(self, members: tuple[Member, ...], level: int, size: int) -> float:
        """Bytes of weights that slices read again from near, which their few rows do not hide."""
        found = 0.0
        for m in members:
            for v in m.group.rows:
                if v in self.constants and m.dims[level] not in m.moved[v]:
                    share = self._idle(self._rows(m, v, size)) - self._idle(self._all_rows(m, v))
                    found += self._common_bytes(v) * share
        return self.machine.coefficients.tiles.stream * found

    def _idle(self, rows: int) -> float:
        """The share of what register tiles load for so many rows that their arithmetic leaves."""
        return max(0.0, 1.0 - rows / self.coefficients.block)

    def _rows(self, m: Member, v: str, size: int) -> int:
        """The rows of a slice of so many indices, of a kernel's product with a value."""
        shared = m.group.rows[v]
        rows = prod(self._common_extent(d) for d in shared if d not in m.dims)
        return rows * size * m.ratios[-1] if m.dims[-1] in shared else rows

    def _all_rows(self, m: Member, v: str) -> int:
        """Those of all slices."""
        return prod(map(self._common_extent, m.group.rows[v]))

    def _fewest_rows(self, members: tuple[Member, ...]) -> int:
        """The rows of one index that each product has at least.

        Those of products of computed factors, as of queries and keys, are blocks of the index only.
        """
        found = [
            self._rows(m, v, 1) if v in self.constants else 1
            for m in members
            for v in m.group.external_reads()
            if v in m.group.rows and m.dims[-1] not in m.moved[v]
        ]
        return max(1, min(found, default=1))

    def _read_again(self, members: tuple[Member, ...], level: int, one_row: bool = False) -> float:
        """Bytes that all slices of a dim read, within one index of the dims around it.

        Of the dim that is cut they have `one_row`, or all.
        """
        again = 0.0
        for m in members:
            fixed = (*m.dims[:level], m.dims[-1]) if one_row else m.dims[:level]
            for v in m.group.external_reads():
                if m.dims[level] not in m.moved[v]:
                    around = (self._common_extent(d) for d in fixed if d in m.moved[v])
                    again += self._common_bytes(v) / prod(around)
        return again


def stays_near(between: float, again: float, count: int, cache: int, coefficients: Slices) -> bool:
    """Whether `between` bytes pass from kernel to kernel in so many slices of a dim, and stay near.

    `again` bytes are read again for each slice; `cache` are those of a second cache.
    """
    if count < FEWEST_SLICES or between > count * coefficients.most_ring * cache:
        return False
    return (
        again <= coefficients.again * cache
        or 2 * between > coefficients.reread * (count - 1) * again
    )
