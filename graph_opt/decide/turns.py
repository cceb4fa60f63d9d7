"""Kernels that take turns over the indices of a dim: over the images of a batch, mostly.

    run a over all images             for each image t:  run a over image t
    run b over all images      ->                        run b over image t
                               or     run a over image 0, 1, ..;  run b over image 0, 1, ..

What an image is made of has one size, so that kernels for one image are those of a model with no
other; what passes between them stays near. A run has the choice: many images are shared out to
threads, each of which takes one after the other through all of the kernels, and a few are worked
on by all threads, kernel after kernel.

A section of such kernels pays where more bytes stay near at some indices than are read again for
each: weights, mostly, of which arithmetic hides what enough rows use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace

from rutc.base.record import record
from rutc.graph_opt.assignment import Slicing, Turning
from rutc.graph_opt.decide.chains import Arranged, kernels_at, leader
from rutc.graph_opt.decide.memory import Lifetimes, place_fixed, place_symbolic
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.decide.turn_weight import (
    SectionPart,
    TurnWeight,
    index_bytes,
    moves,
    section_parts,
)
from rutc.graph_opt.plan import (
    FillHalo,
    Illegal,
    InTurn,
    Near,
    Place,
    PlanStep,
    Repeat,
    Run,
    groups_of,
)
from rutc.tensor_ir.expr import IndexValue, walk
from rutc.tensor_ir.indices.affine import Index, Size, plain, typical
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.lower import Group, Slice
from rutc.tensor_ir.textual.text import value_name

Ahead = dict[Size, list[SectionPart | None]]
"""Trips -> what each step may be of a section; None for one that may not."""
REST = ".rest"
"""What names of kernels for what slices leave over end in."""
WEIGHED = 8
"""Indices for which turns are weighed, at most."""


@record
class Section:
    """Steps whose kernels take turns over the dims, one of each, of `trips` indices."""

    steps: tuple[PlanStep, ...]
    trips: Size
    dims: Mapping[str, str]
    """Group -> the dim."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The steps that are kernels."""
        return tuple(s for s in self.steps if isinstance(s, Run))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The kernels' groups."""
        return tuple(s.group for s in self.runs)


@record
class Longest:
    """How far a section pays: it saves `gain` bytes up to the step `end`.

    Kernels up to the step `alike` make that no less, those up to the step `last` may be of it. Up
    to the step `idle` no other begins either.
    """

    gain: float
    trips: Size
    dims: Mapping[str, str]
    end: int
    alike: int
    last: int
    idle: int


@record
class Turns:
    """Finds the sections of a step list, and chains in them and between them."""

    slicer: Slicer
    free: frozenset[str]
    """The values whose memory is the plan's own, those with halos included."""
    homes: frozenset[str]
    """The values that share memory with others."""
    bound: frozenset[str]
    """The symbols that the program computes."""
    batches: frozenset[int]
    """The sizes of outermost dims of the model's inputs, of more than one index."""
    known: dict[tuple[str, Size], str | None] = field(default_factory=dict)
    """(group, trips) -> the dim that the group may go along alone."""

    def chosen(
        self, steps: tuple[PlanStep, ...]
    ) -> tuple[tuple[Turning, ...], tuple[Slicing, ...]]:
        """Every section and chain that pays."""
        turns: list[Turning] = []
        slices: list[Slicing] = []
        between: tuple[PlanStep, ...] = ()
        for part in self._sections(steps):
            if not isinstance(part, Section):
                between += part
            elif self._is_chained(part):
                # Chains may go on beyond it.
                between += part.steps
            else:
                slices += self.slicer.chosen(between)
                between = ()
                groups = part.groups
                dims = tuple(part.dims[g.name] for g in groups)
                turns.append(Turning(tuple(map(leader, groups)), dims))
                slices += self._single(part).chosen(part.runs)
        return tuple(turns), (*slices, *self.slicer.chosen(between))

    def arranged(
        self,
        steps: tuple[PlanStep, ...],
        turns: Iterable[Turning],
        slices: Iterable[Slicing],
    ) -> Arranged:
        """The steps with these sections and chains.

        Raises:
            Illegal: One is none; the message says why.
        """
        result: list[PlanStep] = []
        layouts = dict(self.slicer.layouts)
        left = list(slices)

        def taken(part: tuple[PlanStep, ...]) -> list[Slicing]:
            names = {leader(s.group) for s in part if isinstance(s, Run)}
            own = [s for s in left if s.kernels and s.kernels[0] in names]
            left[:] = [s for s in left if s not in own]
            return own

        def add(found: Arranged) -> None:
            result.extend(found.steps)
            before = self.slicer.layouts
            layouts.update({v: x for v, x in found.layouts.items() if x is not before[v]})

        at = 0
        for turning in turns:
            begin, section = self._section(steps, at, turning)
            before = steps[at:begin]
            add(self.slicer.arranged(before, taken(before)))
            add(self._in_turn(section, taken(section.steps)))
            at = begin + len(section.steps)
        add(self.slicer.arranged(steps[at:], taken(steps[at:])))
        if left:
            raise Illegal(f"`{left[0]}`: these kernels do not follow each other")
        return Arranged(tuple(result), layouts)

    def _section(
        self, steps: tuple[PlanStep, ...], start: int, turning: Turning
    ) -> tuple[int, Section]:
        """The section of a list from that step on, and where it begins. Raises Illegal."""
        if not turning.kernels or len(turning.dims) != len(turning.kernels):
            raise Illegal(f"`{turning}`: each kernel goes along one dim")
        found = kernels_at(steps, start, turning.kernels)
        if found is None:
            raise Illegal(f"`{turning}`: these kernels do not follow each other")
        if turning.size != 1:
            raise Illegal(f"`{turning}`: only a loop's kernels take turns over several indices")
        trips = self.slicer.extents.get(turning.dims[0])
        if trips is None or trips == 1:
            raise Illegal(f"`{turning}`: there is no dim {turning.dims[0]} of several indices")
        if isinstance(trips, Index) and not self.bound.isdisjoint(trips.names()):
            raise Illegal(f"`{turning}`: the program computes how many turns there are")
        own: dict[str, str] = {}
        for (_, group), d in zip(found, turning.dims, strict=True):
            if self.dim(group, trips, own) != d:
                raise Illegal(
                    f"`{turning}`: the kernel of {value_name(leader(group))} is not the same for "
                    f"every index of {d}"
                )
            own |= dict.fromkeys(group.stored, d)
        begin, end = found[0][0], found[-1][0] + 1
        while begin > start and isinstance(steps[begin - 1], FillHalo):
            begin -= 1
        names = {group.name: d for (_, group), d in zip(found, turning.dims, strict=True)}
        return begin, Section(steps[begin:end], trips, names)

    def _is_chained(self, section: Section) -> bool:
        """Whether chains hold all of a section already, as more tasks than images."""
        if not isinstance(section.trips, int):
            return False
        found = self.slicer.chosen(section.steps)
        return sum(len(s.kernels) for s in found) == len(section.runs)

    def _sections(self, steps: tuple[PlanStep, ...]) -> Iterator[Section | tuple[PlanStep, ...]]:
        """The sections, and what is between them."""
        at = begin = 0
        ahead: Ahead = {}
        while at < len(steps):
            section, at = self._best(steps, at, ahead)
            if section is None:
                continue
            first = at - len(section.steps)
            if begin < first:
                yield steps[begin:first]
            yield section
            begin = at
        if begin < len(steps):
            yield steps[begin:]

    def _best(
        self, steps: tuple[PlanStep, ...], start: int, ahead: Ahead
    ) -> tuple[Section | None, int]:
        """The section from this step on that saves most, None if none pays; and where to go on."""
        following = (steps[at] for at in range(start, len(steps)))
        first = next((s for s in following if not isinstance(s, FillHalo)), None)
        if not isinstance(first, Run):
            return None, start + 1
        extents = dict.fromkeys(self.slicer.extents[d] for d in first.group.shared)
        found = [self._longest(steps, start, e, ahead) for e in extents if self._may_turn(e)]
        best = max(found, key=lambda x: x.gain, default=None)
        if best is None or best.end == start:
            # What moves too little as a whole does so in parts.
            return None, min((x.idle for x in found), default=start + 1)
        end = self._whole_chains(steps, start, best)
        section = Section(steps[start:end], best.trips, best.dims)
        return (section, end) if len(section.runs) > 1 else (None, start + 1)

    def _whole_chains(self, steps: tuple[PlanStep, ...], start: int, best: Longest) -> int:
        """Where a section ends that ends within no chain over slices of one index.

        What is too much of an index to stay near does so slice by slice: the section goes on to the
        end of the chain if it saves no less then, else it ends where the chain begins.
        """
        longer = Section(steps[start : best.last], best.trips, best.dims)
        numbers = {leader(s.group): at for at, s in enumerate(steps) if isinstance(s, Run)}
        for slicing in self._single(longer).chosen(longer.runs):
            first, last = numbers[slicing.kernels[0]], numbers[slicing.kernels[-1]]
            if first < best.end <= last:
                return last + 1 if last < best.alike else max(first, start)
        return best.end

    def _may_turn(self, trips: Size) -> bool:
        """Whether kernels may take turns over a dim of so many indices.

        It is one whose size only the run knows, or that of a model's inputs that is outermost.
        """
        if isinstance(trips, int):
            return trips in self.batches
        return trips.as_var is not None and self.bound.isdisjoint(trips.names())

    def _longest(
        self, steps: tuple[PlanStep, ...], start: int, trips: Size, ahead: Ahead
    ) -> Longest:
        """The section over so many indices that saves most, of no steps if none does."""
        if trips not in ahead:
            dims = [self.dim(s.group, trips, {}) if isinstance(s, Run) else None for s in steps]
            ahead[trips] = section_parts(steps, dims, self.slicer, self.free, self._many(trips))
        parts = ahead[trips]
        weight = TurnWeight(self.slicer, self._many(trips), start)
        best, end, alike, last = 0.0, start, start, start + 1
        for at in range(start, len(steps)):
            if isinstance(steps[at], FillHalo):
                continue
            part = parts[at]
            if part is None or part.clash >= start:
                break
            weight.add(part)
            last = at + 1
            if weight.moves_little:
                continue
            gain = weight.gain
            if weight.kernels > 1 and gain > best:
                best, end = gain, at + 1
            if 0 < best <= gain:
                alike = at + 1
            if weight.is_settled and gain + part.ahead <= best:
                break
        own = ((s, parts[at]) for at, s in enumerate(steps[start:last], start=start))
        dims_of = {s.group.name: p.dim for s, p in own if isinstance(s, Run) and p is not None}
        idle = last if weight.moves_little else start + 1
        return Longest(best, trips, dims_of, end, alike, last, idle)

    def _many(self, trips: Size) -> int:
        """The indices for which a section is weighed."""
        bounds = Index.of(trips).bounds(self.slicer.symbols)
        return min(WEIGHED, bounds[1]) if bounds is not None else WEIGHED

    def dim(self, group: Group, trips: Size, own: Mapping[str, str]) -> str | None:
        """The dim of so many indices that a kernel may go along; None where it may not.

        `own` are the values that kernels before it store a part of, each with its dim.
        """
        key = group.name, trips
        if key not in self.known:
            self.known[key] = self._dim_alone(group, trips)
        d = self.known[key]
        if d is None:
            return None
        for r in group.reads:
            place = dict(r.coords).get(own[r.value]) if r.value in own else None
            if r.value in own and not (isinstance(place, Index) and place.as_var == d):
                return None
        return d

    def _dim_alone(self, group: Group, trips: Size) -> str | None:
        """The dim that a kernel may go along whatever is before it: what it stores has it first."""
        extents = self.slicer.extents
        stored = [self.slicer.layouts[v].axes for v in group.stored if v not in self.homes]
        found = {axes[0].dim if axes else None for axes in stored}
        if len(found) != 1 or len(stored) < len(group.stored):
            return None
        (d,) = found
        if d is None or extents[d] != trips or d not in group.shared:
            return None
        others = {x for s in group.stages for x in (*s.dims, *s.bound)} - found
        if not all(self.bound.isdisjoint(Index.of(extents[x]).names()) for x in others):
            return None
        if any(a.dim == d for axes in stored for a in axes[1:]):
            return None
        for r in group.reads:
            if r.value in self.slicer.constants and moves(dict(r.coords).values(), d):
                return None
        elements = (x for s in group.stages for e in s.body for x in walk(e))
        numbered = any(isinstance(x, IndexValue) and d in x.index.names() for x in elements)
        return None if numbered else d

    # -- steps ----------------------------------------------------------------------------------
    def _in_turn(self, section: Section, slices: Iterable[Slicing]) -> Arranged:
        """The section's steps, and the layouts of values of which a kernel keeps a part only."""
        runs = section.runs
        turned = _turned(runs, section.dims)
        single = self._single(section)
        sliced = single.arranged(runs, slices)
        symbol = f"{runs[0].group.name}.turn"
        halos = {s.value for s in section.steps if isinstance(s, FillHalo)}
        assert halos <= {v for r in runs for v in r.group.stored}, "halos are filled just before"
        steps: list[Repeat] = []

        def repeat(inside: PlanStep, origin: tuple[str, ...], parts: tuple[str, ...]) -> None:
            steps.append(Repeat(symbol, section.trips, (), (), (inside,), (), origin, parts))

        for s in sliced.steps:
            assert isinstance(s, Run | Repeat)
            for group in groups_of((s,)):
                for v in group.stored:
                    if v in halos:
                        d = section.dims[group.name.removesuffix(REST)]
                        repeat(FillHalo(v, (d, symbol)), _origin(group), (v,))
            parts = s.parts if isinstance(s, Repeat) else s.group.stored
            origin = s.origin if isinstance(s, Repeat) else _origin(s.group)
            repeat(_within(s, symbol, section.dims), origin, parts)
        rings = {v: x for v, x in sliced.layouts.items() if x is not single.layouts[v]}
        narrow = {v: _narrow(x, turned) for v, x in rings.items()}
        stored = {v for r in runs for v in r.group.stored} - rings.keys()
        near, room = self._near(tuple(steps), runs, stored)
        return Arranged((InTurn(symbol, section.trips, tuple(steps), near, room),), narrow)

    def _single(self, section: Section) -> Slicer:
        """The slicer of a model with one index of the dims along which kernels take turns."""
        slicer, turned = self.slicer, _turned(section.runs, section.dims)
        extents = {d: 1 if d in turned else e for d, e in slicer.extents.items()}

        def single(layout: Layout) -> Layout:
            if not any(a.dim in turned and a.extent != 1 for a in layout.axes):
                return layout
            axes = tuple(
                [
                    Axis(a.dim, 1, a.stride, a.div, a.whole) if a.dim in turned else a
                    for a in layout.axes
                ]
            )
            return Layout(axes, layout.halo, layout.fill, layout.extents)

        layouts = {v: single(x) for v, x in slicer.layouts.items()}
        return replace(slicer, extents=extents, layouts=layouts, turns=section.trips)

    def _near(
        self, steps: tuple[PlanStep, ...], runs: Sequence[Run], stored: AbstractSet[str]
    ) -> tuple[tuple[Near, ...], Size]:
        """The values of which a thread keeps one index only, and the bytes that these take.

        They are those that only the section reads, as many as there is room for.
        """
        inside = frozenset(s.out.name for r in runs for s in r.group.stages)
        symbols = self.slicer.symbols
        sizes: dict[str, Size] = {}
        for v in (v for r in runs for v in r.group.stored):
            users = self.slicer.users[v]
            if v in stored and v in self.free and users and users <= inside:
                sizes[v] = plain(index_bytes(self.slicer, v))
        times = Lifetimes({})
        times.visit(steps)
        lives = {v: times.lives[v] for v in sizes}
        common = {v: typical(size, symbols) for v, size in sizes.items()}
        while True:
            places: dict[str, Place] = {}
            known = [(size, v) for v, size in sizes.items() if isinstance(size, int)]
            told = [(size, v) for v, size in sizes.items() if isinstance(size, Index)]
            begin = place_fixed(known, lives, places)
            room = place_symbolic(told, lives, places, begin, dict(symbols))
            if typical(room, symbols) <= self.slicer.machine.l3:
                break
            del sizes[max(sizes, key=lambda v: common[v] * (lives[v].last - lives[v].first))]
        return tuple(Near(v, places[v].offset, size) for v, size in sizes.items()), room


def _turned(runs: Sequence[Run], dims: Mapping[str, str]) -> frozenset[str]:
    """The dims, of kernels and of values that they read, along which kernels take turns."""
    found = set(dims.values())
    for group in (r.group for r in runs):
        own = dims[group.name]
        found |= {e for e, loop in group.along if loop == own}
    return frozenset(found)


def _narrow(layout: Layout, turned: AbstractSet[str]) -> Layout:
    """A layout with room for a part of one index, as the whole value's indices see it."""
    axes = (replace(a, whole=False) if a.dim in turned else a for a in layout.axes)
    return replace(layout, axes=tuple(axes))


def _within(s: Run | Repeat, symbol: str, dims: Mapping[str, str]) -> Run | Repeat:
    """The step for the index of that number."""
    if isinstance(s, Repeat):
        inside: list[PlanStep] = []
        for x in s.steps:
            assert isinstance(x, Run | Repeat)
            inside.append(_within(x, symbol, dims))
        return replace(s, steps=tuple(inside))
    g = s.group
    own = Slice(dims[g.name.removesuffix(REST)], symbol, 1, loop=False)
    return Run(replace(g, slices=(own, *g.slices)))


def _origin(group: Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(o for s in group.stages for o in s.origin))
