"""Chains of kernels over slices of a dim: which there can be, and what they become.

    run a: %u = ..              repeat t:  run a over its t-th slice of the dim: %u[y % 2] = ..
    run b: %v = .. %u[y] ..  ->            run b over its t-th slice: %v = .. %u[y % 2] ..

A value that only such a chain reads is stored for one slice at a time. Where slices go over blocks
of a dim for one index of another one:

    repeat h:  repeat t:  run a, run b over the t-th block of their part of index h
    repeat h:             run a, run b over what the blocks leave over

Of a dim of symbolic size, slices are of one size that the run computes, and the last one does some
indices again. Where what an index of it takes is symbolic, too, so is how many fit:

    repeat t:  run a, run b over n rows of w pixels    n = 655360 // (64*w)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import lcm, prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.assignment import Slicing
from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from rutc.graph_opt.decide.slice_sizes import SHARED_TURNS, even_slices, least_size
from rutc.graph_opt.plan import FillHalo, Illegal, PlanStep, Repeat, Run
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.indices.affine import (
    ZERO,
    FloorDiv,
    Index,
    Mod,
    Range,
    Size,
    maximum,
    minimum,
    plain,
    product,
    typical,
)
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group, Slice
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.text import value_name

MOST_MEMBERS = 16
"""Kernels of a chain: their code is one function, and each more is another chain to weigh."""
MOST_CHAINED = 4 * MOST_OPERATIONS
"""Operations of a chain's bodies: its code is made by one process."""
Place = tuple[str, Mapping[str, tuple[str, int]], bool]
"""A value that is read, what `loop_of` tells of its coordinates, and whether there is a fill."""


@record
class Member:
    """A kernel of a chain: its slice holds `ratios` indices of `dims` for each of the first one's.

    Only the last dim is cut into slices of several indices.
    """

    step: int
    group: Group
    dims: tuple[str, ...]
    ratios: tuple[int, ...]

    @cached_property
    def moved(self) -> Mapping[str, frozenset[str]]:
        """Of each value that is read, the dims that what is read of it depends on."""
        own = frozenset(self.dims)
        loops = self.group.moved
        return {v: own if found is None else own & found for v, found in loops.items()}


@record
class Chain:
    """Kernels over slices of `size` indices of the first one's last dim, `within` so many bytes.

    A slice of one index has `least` bytes to keep where sizes are common: what others read, too,
    and what passes between its kernels. Slices may be `blocks`: parts of an index of another dim,
    or of lines. Others may be `crowded`: they cannot be so short that what passes between the
    kernels takes no more than it may.
    """

    members: tuple[Member, ...]
    size: int
    within: int | None
    gain: float
    least: float
    blocks: bool
    crowded: bool

    def gives_way_to(self, later: Chain | None) -> bool:
        """Whether a chain that begins with a later kernel of this one is the better one."""
        if later is None:
            return False
        instead = self.crowded and later.blocks
        return later.gain > self.gain or (
            instead and later.members[-1].step >= self.members[-1].step
        )


@record
class Arranged:
    """The steps with chains in repeats, and the layouts with the values stored in part."""

    steps: tuple[PlanStep, ...]
    layouts: dict[str, Layout]


def has_period(i: Index, d: str, size: int) -> bool:
    """Whether an index is a loop's remainder that slices of so many iterations begin anew."""
    match i.terms:
        case (((Mod(p, q),), _),) if p.as_var == d and q.is_const:
            return size % q.value == 0
        case _:
            return False


def loop_of(c: object) -> tuple[str, int] | None:
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


def leader(group: Group) -> str:
    """The name by which assignments know a kernel: that of its first nest."""
    return group.stages[0].out.name


def kernels_at(
    steps: tuple[PlanStep, ...], start: int, kernels: tuple[str, ...]
) -> list[tuple[int, Group]] | None:
    """(step, group) of kernels that follow each other from some step on; None if they do not.

    Fills of halos may be between them.
    """
    found: list[tuple[int, Group]] = []
    for number in range(start, len(steps)):
        step = steps[number]
        if isinstance(step, FillHalo):
            continue
        if isinstance(step, Run) and leader(step.group) == kernels[len(found)]:
            found.append((number, step.group))
            if len(found) == len(kernels):
                return found
        elif found:
            return None
    return None


@record
class Chains:
    """What chains there can be in one step list, and what they become.

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
    turns: Size = 1
    """The indices whose turn it is one by one, each of which has these chains."""

    def arranged(self, steps: tuple[PlanStep, ...], slicings: Iterable[Slicing]) -> Arranged:
        """The steps with these chains.

        Raises:
            Illegal: One is none; the message says why.
        """
        result: list[PlanStep] = []
        layouts = dict(self.layouts)
        at = 0
        for slicing in slicings:
            members = self._members(steps, at, slicing)
            first, last = members[0].step, members[-1].step
            result += steps[at:first]
            result += [s for s in steps[first : last + 1] if isinstance(s, FillHalo)]
            result += self._repeats(members, slicing.size, slicing.within)
            length = self._length(members, slicing.size, slicing.within)
            for v in self.between(members):
                layouts[v] = self._ring(v, members, length)
            at = last + 1
        return Arranged((*result, *steps[at:]), layouts)

    def _members(
        self, steps: tuple[PlanStep, ...], start: int, slicing: Slicing
    ) -> tuple[Member, ...]:
        """The kernels of a chain that begins at that step or later. Raises Illegal."""
        if len(slicing.kernels) < 2 or not slicing.dims:
            raise Illegal(f"`{slicing}`: a chain is of several kernels and of slices of a dim")
        found = kernels_at(steps, start, slicing.kernels)
        if found is None:
            raise Illegal(f"`{slicing}`: these kernels do not follow each other")
        (first, group), *others = found
        loops = {d for d in group.shared if self.extents[d] != 1}
        if not set(slicing.dims) <= loops or len(set(slicing.dims)) < len(slicing.dims):
            raise Illegal(f"`{slicing}`: the first kernel has no loops over these dims")
        ones = (1,) * len(slicing.dims)
        members: tuple[Member, ...] = (Member(first, group, slicing.dims, ones),)
        if not self.alike(members[0]):
            raise Illegal(f"`{slicing}`: not all slices do the same")
        for number, _ in others:
            following = self.follows(members, number, steps[number])
            if following is None:
                what = value_name(slicing.kernels[len(members)])
                raise Illegal(f"`{slicing}`: the kernel of {what} reads other slices than its own")
            members = (*members, following)
        if reason := self._unfit(members, slicing.size, slicing.within):
            raise Illegal(f"`{slicing}`: {reason}")
        return members

    def _unfit(self, members: tuple[Member, ...], size: int, within: int | None) -> str | None:
        """Why there are no such slices; None if there are."""
        if not self.between(members):
            return "nothing is passed between these kernels alone"
        if len(members) > MOST_MEMBERS or self.code(members) > MOST_CHAINED:
            return "it is too much code for one kernel"
        if not 1 <= size <= self.extent(members[0].dims[-1]):
            return f"{members[0].dims[-1]} has no slices of {size}"
        if within is not None and self.is_fixed(members):
            return "a run does not tell the length of slices of known dims"
        line = self.line(members)
        if size % line or (line > 1 and not self.is_fixed(members)):
            return "a slice ends within a line of memory"
        return None

    @staticmethod
    def code(members: tuple[Member, ...]) -> int:
        """The operations of a chain's bodies."""
        return sum(m.group.operations for m in members)

    def follows(self, members: tuple[Member, ...], number: int, step: PlanStep) -> Member | None:
        """The step as a member of the chain, if each slice of it reads that slice of the others."""
        if not isinstance(step, Run):
            return None
        found: set[tuple[tuple[str, int], ...]] = set()
        owners = {v: m for m in members for v in m.group.stored}
        for value, loops, filled in self._places(step.group):
            own = owners.get(value)
            if own is None:
                continue
            if filled:
                return None
            pairs = zip(own.dims, own.ratios, strict=True)
            found.add(tuple((loops[d][0], k * loops[d][1]) for d, k in pairs if d in loops))
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
        return following if self.alike(following) else None

    def _places(self, group: Group) -> tuple[Place, ...]:
        """Where a kernel reads what others give; a window's reads are often of one place."""
        known = self._known_places.get(group.name)
        if known is None:
            found: dict[object, Place] = {}
            for r in group.reads_outside:
                loops = {d: x for d, c in r.coords if (x := loop_of(c)) is not None}
                place = r.value, loops, r.fill is not None
                found.setdefault((r.value, tuple(loops.items()), place[2]), place)
            known = self._known_places[group.name] = tuple(found.values())
        return known

    @cached_property
    def _known_places(self) -> dict[str, tuple[Place, ...]]:
        """Kernels -> where they read: each may follow many chains."""
        return {}

    def alike(self, member: Member) -> bool:
        """Whether slices of a multiple of so many indices of its dims all do the same.

        Constants are packed in the order in which loops from 0 on read them, and vectors run along
        the innermost dim.
        """
        if self.cuts_vectors(member):
            return False
        group = member.group
        if any(member.moved[v] for v in group.external_reads() if v in self.constants):
            return False
        for d, size in zip(member.dims, member.ratios, strict=True):
            if not all(has_period(i, d, size) for i in group.indices if d in i.names()):
                return False
        return True

    def cuts_vectors(self, member: Member) -> bool:
        """Whether slices are of one index of a dim that runs along memory."""
        stored = (self.layouts[v].axes for v in member.group.stored)
        return any(axes[-1].dim in member.dims[:-1] for axes in stored if axes)

    def between(self, members: tuple[Member, ...]) -> list[str]:
        """The values that only the chain reads."""
        key = tuple((m.group.computed, m.group.stored) for m in members)
        if key not in self._known:
            self._known[key] = self._between(members)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[object, list[str]]:
        """What kernels compute and store -> the values between: chains are over many dims."""
        return {}

    def _between(self, members: tuple[Member, ...]) -> list[str]:
        inside = frozenset().union(*[m.group.computed for m in members])
        stored = [v for m in members[:-1] for v in m.group.stored if v in self.free]
        return [v for v in stored if self.users[v] and self.users[v] <= inside]

    @cached_property
    def bytes(self) -> Callable[[str], int]:
        """The size of a value, at most."""
        return functools.cache(
            lambda v: self.most(self.layouts[v].size) * self.values[v].dtype.bytes
        )

    @cached_property
    def extent(self) -> Callable[[str], int]:
        """The indices of a dim, at most."""
        return functools.cache(lambda d: self.most(self.extents[d]))

    def most(self, size: Size) -> int:
        """The largest that a size may be."""
        bounds = Index.of(size).bounds(self.symbols)
        assert bounds is not None, "every symbol has a range"
        return bounds[1]

    def is_fixed(self, members: tuple[Member, ...]) -> bool:
        """Whether the dims that are cut have known sizes."""
        return all(isinstance(self.extents[d], int) for m in members for d in m.dims)

    def equal_slices(
        self, members: tuple[Member, ...], size: int, within: int | None
    ) -> tuple[Index, Index]:
        """(number, size) of equal slices of a dim that has no known size.

        They are of `size` indices at most, and of the bytes that they are to be `within`, if one
        index takes no more. Threads get as many of those as they want, if there are indices.
        """
        *outer, extent = (Index.of(self.extents[d]) for d in members[0].dims)

        def smaller(a: Index, b: Index | int) -> Index:
            return minimum(a, b, self.symbols)

        def larger(a: Index, b: Index | int) -> Index:
            return maximum(a, b, self.symbols)

        fits = None if within is None else within // larger(self.index_bytes(members), 1)
        most, least = Index.of(size), Index.of(self.least(members))
        around = product((*outer, smaller(Index.of(self.turns), SHARED_TURNS)))
        count, each = even_slices(extent, around, most, fits, least, smaller, larger)
        # The minimum holds by itself, but not by the bounds of its terms.
        return count, each.simplify(self.symbols)

    def least(self, members: tuple[Member, ...]) -> int:
        """The indices below which a slice takes about as long; 0 where shorter ones take less."""
        work = [(self._points(m), m.ratios[-1], self._lies_along(m)) for m in members]
        return least_size(work, self.machine)

    def _points(self, m: Member) -> int:
        """The iterations of a kernel's nests where symbols are common."""
        nests = ([typical(self.extents[d], self.symbols) for d in n.dims] for n in m.group.stages)
        return sum(map(prod, nests))

    def _lies_along(self, m: Member) -> bool:
        """Whether neighbours of all that a kernel stores are indices of the dim that is cut."""
        stored = (self.layouts[v].axes for v in m.group.stored)
        return all(axes and axes[-1].dim == m.dims[-1] for axes in stored)

    def index_bytes(self, members: tuple[Member, ...]) -> Index:
        """What passes between the kernels for one index of the first one's dims."""
        found = self.owned_between(members)
        return sum((self.index_bytes_of(v, m.dims, m.ratios) for v, m in found), ZERO)

    def owned_between(self, members: tuple[Member, ...]) -> list[tuple[str, Member]]:
        """The values that only the chain reads, each with the kernel that stores it."""
        owners = {v: m for m in members[:-1] for v in m.group.stored}
        return [(v, owners[v]) for v in self.between(members)]

    @cached_property
    def index_bytes_of(self) -> Callable[[str, tuple[str, ...], tuple[int, ...]], Index]:
        """What a value takes for so many indices of dims: many chains pass it on."""

        def found(v: str, dims: tuple[str, ...], ratios: tuple[int, ...]) -> Index:
            return Index.of(self._part(v, dict(zip(dims, ratios, strict=True))).size) * (
                self.values[v].dtype.bytes
            )

        return functools.cache(found)

    def _length(self, members: tuple[Member, ...], size: int, within: int | None) -> Size:
        """The indices of a slice; where some are left over in the end, those of all others."""
        if self.is_fixed(members):
            return size
        return plain(self.equal_slices(members, size, within)[1])

    def line(self, members: tuple[Member, ...]) -> int:
        """Slices are multiples of so many indices of the first kernel's last dim: of whole lines.

        Equal slices of a dim of any size are not: values of their own may begin within a line.
        """
        lines = [1]
        own = () if self.is_fixed(members) else self.between(members)
        for m in members:
            for v in m.group.stored:
                axes = self.layouts[v].axes
                if axes and axes[-1].dim == m.dims[-1] and v not in own:
                    whole = self.machine.line_bytes // self.values[v].dtype.bytes
                    lines.append(lcm(whole, m.ratios[-1]) // m.ratios[-1])
        return lcm(*lines)

    def _repeats(self, members: tuple[Member, ...], most: int, within: int | None) -> list[Repeat]:
        """The repeat of all whole slices, and that of what they leave over."""
        name = members[0].group.name
        if not self.is_fixed(members):
            count, size = map(plain, self.equal_slices(members, most, within))
            return [self._repeat(members, f"{name}.slice", (count, size, 0))]
        whole, rest = divmod(self.extent(members[0].dims[-1]), most)
        found = [self._repeat(members, f"{name}.slice", (whole, most, 0))]
        if rest:
            found.append(self._repeat(members, f"{name}.rest", (1, rest, whole * most)))
        return found

    def _repeat(
        self,
        members: tuple[Member, ...],
        symbol: str,
        part: tuple[Size, Size, int],
    ) -> Repeat:
        """The repeat of (count, size, first): so many slices, from that index on."""
        outer = members[0].dims[:-1]
        count, size, first = part
        counters = [(f"{symbol}.{d}", self.extents[d]) for d in outer] + [(symbol, count)]
        groups: list[Group] = []
        for m in members:
            slices = [
                Slice(d, counter, k)
                for d, (counter, _), k in zip(m.dims, counters, m.ratios, strict=True)
            ]
            k = m.ratios[-1]
            end = None if self.is_fixed(members) else self.extents[m.dims[-1]]
            slices[-1] = replace(slices[-1], size=size * k, first=k * first, end=end)
            suffix = ".rest" if first else ""
            groups.append(replace(m.group, name=m.group.name + suffix, slices=tuple(slices)))
        between = set(self.between(members))
        parts = tuple(v for g in groups for v in g.stored if v not in between)
        origin = tuple(dict.fromkeys(o for g in groups for s in g.stages for o in s.origin))
        steps: tuple[PlanStep, ...] = tuple(map(Run, groups))
        for counter, trips in reversed(counters):
            steps = (Repeat(counter, trips, (), (), steps, (), origin, parts),)
        (repeat,) = steps
        assert isinstance(repeat, Repeat)
        return repeat

    def _ring(self, v: str, members: tuple[Member, ...], length: Size) -> Layout:
        """The value's layout with room for one slice of so many indices.

        All of it where slices end within its blocks.
        """
        own = next(m for m in members if v in m.group.stored)
        sizes: dict[str, Size] = dict(zip(own.dims, own.ratios, strict=True))
        sizes[own.dims[-1]] *= length
        return self._part(v, sizes)

    def _part(self, v: str, sizes: Mapping[str, Size]) -> Layout:
        """The value's layout with room for so many indices of dims."""
        layout = self.layouts[v]
        blocks = {a.dim: Index.of(a.extent).value for a in layout.axes if not a.whole}
        if any(Index.of(n) % blocks[d] != ZERO for d, n in sizes.items() if d in blocks):
            return layout
        order = [a.dim for a in layout.axes if a.whole]
        narrow = dense(order, {**self.extents, **sizes}, blocks=blocks)
        axes = tuple(replace(a, whole=False) if a.dim in sizes else a for a in narrow.axes)
        return replace(layout, axes=axes)
