"""Local changes to an assignment: what a search may try next.

Each has a text that says what it changes. A change may be illegal, which its realisation tells;
what depends on what is changed is changed with it, as far as it has to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise

from rutc.base.record import record
from rutc.graph_opt.assignment import (
    Arrangement,
    Assignment,
    Copy,
    Grouping,
    Slicing,
    Stored,
    Turning,
)
from rutc.graph_opt.decide.chains import leader
from rutc.graph_opt.decide.copies import packed_dims, reads_of
from rutc.graph_opt.decide.join_choice import further, without
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.recompute import recomputable
from rutc.graph_opt.decide.retype import retyped
from rutc.graph_opt.decide.stored_types import NARROW, fixed_types, step_dims, weights
from rutc.graph_opt.plan import FillHalo, Illegal, PlanStep, Run
from rutc.tensor_ir import DType
from rutc.tensor_ir.graph import Nest, walk_nodes
from rutc.tensor_ir.textual.text import value_name

BLOCKS = (8, 16)
"""Indices of a block of a dim."""
SIZES = (1, 4, 16, 64)
"""Indices of a slice of kernels that run as a whole before."""


@record
class Neighbour:
    """An assignment that differs in one decision: about what, of which value or nest."""

    kind: str
    subject: str
    change: str
    assignment: Assignment

    @property
    def decision(self) -> str:
        """What is decided otherwise."""
        return f"{self.kind} of {value_name(self.subject)}"

    def __str__(self) -> str:
        return f"{self.decision}: {self.change}"


def neighbours(found: Realisation, *, types: bool = True) -> Iterator[Neighbour]:
    """Yields what differs from a legal assignment in one choice: some are not legal themselves.

    Without `types` all of them compute the same numbers.
    """
    yield from _arranged(found)
    yield from computed_anew(found)
    yield from _copied(found)
    if types:
        yield from _typed(found)
    yield from _joined(found)
    yield from _grouped(found)
    yield from _sliced(found)
    yield from _turned(found)


def legal(found: Realisation, neighbour: Neighbour) -> Realisation | None:
    """The realisation of a neighbour; None if it has no plan."""
    other = found.but(neighbour.assignment)
    try:
        other.plan  # noqa: B018
    except Illegal:
        return None
    return other


# -- layouts --------------------------------------------------------------------------------------
def _arranged(found: Realisation) -> Iterator[Neighbour]:
    """Another dim innermost, two dims the other way round, blocks, or no halo."""
    given, known = found.assignment, found.known

    def other(name: str, new: Arrangement) -> Neighbour:
        arrangements = {**given.arrangements, name: new}
        return Neighbour("layout", name, str(new), replace(given, arrangements=arrangements))

    for name, a in given.arrangements.items():
        long = [d for d in a.order if known.sizes[d] != 1]
        orders = {(*(x for x in a.order if x != d), d) for d in long}
        for d, e in pairwise(long):
            swap = {d: e, e: d}
            orders.add(tuple(swap.get(x, x) for x in a.order))
        for order in sorted(orders - {a.order}):
            yield other(name, replace(a, order=order))
        for d in long:
            size = known.sizes[d]
            for block in BLOCKS:
                if isinstance(size, int) and size > block and not a.blocks:
                    yield other(name, replace(a, blocks=((d, block),)))
        if a.blocks:
            yield other(name, replace(a, blocks=()))
        if a.halo:
            yield other(name, replace(a, halo=(), fill=None))


# -- values that are not stored --------------------------------------------------------------------
def computed_anew(found: Realisation, values: Sequence[str] | None = None) -> Iterator[Neighbour]:
    """A value is computed by the nests that read it, or is not any more; one of these values."""
    given, known = found.assignment, found.prepared
    readers: dict[str, set[str]] = {}
    for n in walk_nodes(found.computed.nodes):
        if isinstance(n, Nest):
            for r in reads_of(n):
                readers.setdefault(r.value, set()).add(n.out.name)
    able = {
        n.out.name: n
        for n in walk_nodes(found.computed.nodes)
        if isinstance(n, Nest) and recomputable(known, n) and n.out.name in given.arrangements
    }
    groups = {n: g for g in given.groups for n in g.nests}
    for name in able if values is None else values:
        if name not in able:
            continue
        yield Neighbour("computing", name, "by its readers", _read_anew(given, readers, (name,)))
        chain, left = [name], [able[name]]
        while left:
            for r in reads_of(left.pop()):
                own = r.value in able and name in groups and r.value in groups[name].nests
                if own and r.value not in chain and readers[r.value] <= {*chain}:
                    chain.append(r.value)
                    left.append(able[r.value])
        if len(chain) > 1:
            other = _read_anew(given, readers, chain)
            yield Neighbour("computing", name, f"by its readers, with {_names(chain[1:])}", other)
    for name in given.recomputed if values is None else ():
        kept = tuple(v for v in given.recomputed if v != name)
        dims = known.graph.values[name].dims
        arrangements = {**given.arrangements, name: Arrangement(dims)}
        other = replace(given, recomputed=kept, arrangements=arrangements)
        # Who reads what is only known once it is computed.
        every = {c.reader for c in given.copies}
        yield Neighbour("computing", name, "once", _without_copies(other, every, name))


def _read_anew(
    given: Assignment, readers: Mapping[str, AbstractSet[str]], values: Sequence[str]
) -> Assignment:
    """The assignment with some values more that what reads them computes."""
    for name in values:
        others = {v: a for v, a in given.arrangements.items() if v != name}
        types = tuple(s for s in given.types if s.value != name)
        recomputed = (*given.recomputed, name)
        given = replace(given, arrangements=others, recomputed=recomputed, types=types)
        given = _without(given, name)
        given = _without_copies(given, {name, *readers.get(name, ())}, name)
    return given


def _names(values: Sequence[str]) -> str:
    return ", ".join(map(value_name, values))


def _without_copies(given: Assignment, readers: set[str], value: str) -> Assignment:
    """The assignment without copies for these readers, or of a value."""
    kept = (c for c in given.copies if c.reader not in readers and c.value != value)
    return _with_only(given, tuple(kept))


def _with_only(given: Assignment, copies: tuple[Copy, ...]) -> Assignment:
    """The assignment with some of its copies, and nothing said of the others."""
    gone = {c.name for c in given.copies} - {c.name for c in copies}
    arrangements = {v: a for v, a in given.arrangements.items() if v not in gone}
    types = tuple(s for s in given.types if s.value not in gone)
    result = replace(given, copies=copies, arrangements=arrangements, types=types)
    for name in sorted(gone):
        result = _without(result, name)
    return result


# -- copies ---------------------------------------------------------------------------------------
def _copied(found: Realisation) -> Iterator[Neighbour]:
    """A nest reads a value itself, or a copy that has another dim innermost."""
    given, known = found.assignment, found.prepared
    for c in given.copies:
        without = _with_only(given, tuple(x for x in given.copies if x != c))
        yield Neighbour("operands", c.reader, f"no `{c}`", without)
    taken = found.graph.values.keys() | given.arrangements.keys()
    fed = {(c.reader, c.number) for c in given.copies}
    for n in walk_nodes(found.computed.nodes):
        if not isinstance(n, Nest):
            continue
        for number, r in enumerate(reads_of(n)):
            if (n.out.name, number) in fed or r.value in known.constants:
                continue
            dims = known.graph.values[r.value].dims
            own = packed_dims(n, r)
            kinds = [(False, dims, d) for d in dims if known.sizes[d] != 1]
            if own is not None and own != dims:
                kinds += [(True, own, d) for d in own if known.sizes[d] != 1]
            for packed, all_, last in kinds:
                name = f"{r.value}.{'packed' if packed else 'near'}.{n.out.name}.{number}"
                if name in taken:
                    continue
                c = Copy(name, r.value, n.out.name, number, packed)
                order = (*(d for d in all_ if d != last), last)
                arrangements = {**given.arrangements, name: Arrangement(order)}
                other = replace(given, copies=(*given.copies, c), arrangements=arrangements)
                yield Neighbour("operands", n.out.name, f"`{c}` {Arrangement(order)}", other)


def _without(given: Assignment, nest: str) -> Assignment:
    """The assignment without a nest that is there no more."""
    groups: list[Grouping] = []
    left: tuple[str, ...] = ()
    for g in given.groups:
        rest = tuple(n for n in g.nests if n != nest)
        left = rest if nest in g.nests else left
        if len(rest) > 1:
            groups.append(replace(g, nests=rest))

    def still(kernels: tuple[str, ...]) -> list[str | None]:
        """Kernels by the nests that are first now; None where nothing is left of one."""
        first = left[0] if left else None
        return [first if k == nest else k for k in kernels]

    slices, turns = list[Slicing](), list[Turning]()
    for s in given.slices:
        kept = tuple(k for k in still(s.kernels) if k is not None)
        if len(kept) > 1:
            slices.append(replace(s, kernels=kept))
    for t in given.turns:
        named = [(k, d) for k, d in zip(still(t.kernels), t.dims, strict=True) if k is not None]
        if named:
            kernels, dims = zip(*named, strict=True)
            turns.append(replace(t, kernels=kernels, dims=dims))
    return replace(given, groups=tuple(groups), slices=tuple(slices), turns=tuple(turns))


# -- types ----------------------------------------------------------------------------------------
def _typed(found: Realisation) -> Iterator[Neighbour]:
    """A value is stored in fewer bits, in others, or in the type that it is computed in."""
    given, graph = found.assignment, found.copied
    fixed, types = fixed_types(found.prepared, graph), {s.value: s for s in given.types}
    several = {
        v.name
        for n in walk_nodes(graph.nodes)
        if isinstance(n, Nest) and n.reducer is not None and len(n.outs) > 1
        for v in n.outs
    }
    constants = {n.out.name: n for n in weights(found.prepared)}
    for name in (*given.arrangements, *sorted(constants)):
        if name in fixed or name not in graph.values or name in several:
            continue
        choices: list[Stored | None] = [None, *(Stored(name, t) for t in NARROW)]
        if name in constants:
            choices.append(Stored(name, DType.I8, step_dims(graph, constants[name])))
        for stored in choices:
            if stored != types.get(name):
                kept = [s for s in given.types if s.value != name]
                other = retyped(found, kept if stored is None else [*kept, stored])
                change = "as it is computed" if stored is None else f"`{stored}`"
                yield Neighbour("type", name, change, other)


# -- concatenations ------------------------------------------------------------------------------
def _joined(found: Realisation) -> Iterator[Neighbour]:
    """A concatenation is no work, as its parts lie in it, or is copied again."""
    for j in found.assignment.joins:
        yield Neighbour("joining", j.value, f"no `{j}`", without(found, j))
    for j, other in further(found):
        yield Neighbour("joining", j.value, f"`{j}`", other)


# -- groups ---------------------------------------------------------------------------------------
def _grouped(found: Realisation) -> Iterator[Neighbour]:
    """A group in two, a nest on its own, or a kernel and one that reads its results as one."""
    given = found.assignment
    for g in given.groups:
        others = tuple(x for x in given.groups if x != g)
        for cut in range(1, len(g.nests)):
            parts = g.nests[:cut], g.nests[cut:]
            new = tuple(replace(g, nests=p) for p in parts if len(p) > 1)
            change = f"{value_name(g.nests[cut])} begins a kernel"
            yield Neighbour("kernel", g.nests[0], change, replace(given, groups=(*others, *new)))
    nests = {n.out.name: n for n in walk_nodes(found.graph.nodes) if isinstance(n, Nest)}
    groups = {n: g for g in given.groups for n in g.nests}
    position = {name: number for number, name in enumerate(nests)}

    def alone(name: str) -> Grouping:
        shared = (d for d in nests[name].out.dims if found.known.sizes[d] != 1)
        return Grouping(tuple(shared), (name,))

    tried: set[tuple[Grouping, Grouping]] = set()
    computes = {v.name: name for name, n in nests.items() for v in n.outs}
    for name, n in nests.items():
        reader = groups.get(name) or alone(name)
        for value in dict.fromkeys(r.value for r in reads_of(n)):
            if value not in computes:
                continue
            maker = groups.get(computes[value]) or alone(computes[value])
            if maker == reader or (maker, reader) in tried:
                continue
            tried.add((maker, reader))
            shared = tuple(d for d in maker.shared if d in reader.shared)
            members = sorted((*maker.nests, *reader.nests), key=position.__getitem__)
            others = tuple(g for g in given.groups if g not in (maker, reader))
            joined = Grouping(shared, tuple(members))
            other = replace(given, groups=(*others, joined))
            yield Neighbour("kernel", maker.nests[0], f"`{joined}`", other)


# -- slices and turns -----------------------------------------------------------------------------
def _kernels(steps: tuple[PlanStep, ...]) -> Iterator[tuple[Run, ...]]:
    """Runs of kernels that follow each other."""
    own: list[Run] = []
    for s in steps:
        if isinstance(s, Run):
            own.append(s)
        elif not isinstance(s, FillHalo):
            yield tuple(own)
            own = []
    yield tuple(own)


def _ordered(found: Realisation, slices: tuple[Slicing, ...]) -> tuple[Slicing, ...]:
    """Slices in the order of their kernels."""
    place = {leader(s.group): number for number, s in enumerate(found.steps) if isinstance(s, Run)}
    return tuple(sorted(slices, key=lambda s: place.get(s.kernels[0], 0)))


def _sliced(found: Realisation) -> Iterator[Neighbour]:
    """A chain less or more, a kernel more or less in it, or slices of another size."""
    given = found.assignment
    for s in given.slices:
        others = tuple(x for x in given.slices if x != s)
        yield Neighbour("slices", s.kernels[0], f"no `{s}`", replace(given, slices=others))
        if s.within is None:
            changed = [replace(s, size=n) for n in (s.size // 2, s.size * 2) if n > 0]
        else:
            changed = [replace(s, within=n) for n in (s.within // 2, s.within * 2)]
        changed += [replace(s, kernels=s.kernels[:-1])]
        for new in changed:
            other = replace(given, slices=_ordered(found, (*others, new)))
            yield Neighbour("slices", s.kernels[0], f"`{new}`", other)
    sliced = {k for s in given.slices for k in s.kernels}
    for run in _kernels(found.steps):
        for first, second in pairwise(run):
            kernels = leader(first.group), leader(second.group)
            if not sliced.isdisjoint(kernels):
                continue
            for d in first.group.shared:
                for size in SIZES:
                    new = Slicing(kernels, (d,), size)
                    slices = _ordered(found, (*given.slices, new))
                    other = replace(given, slices=slices)
                    yield Neighbour("slices", kernels[0], f"`{new}`", other)


def _turned(found: Realisation) -> Iterator[Neighbour]:
    """A section less or more, or a shorter one."""
    given, sizes = found.assignment, found.known.sizes
    for t in given.turns:
        others = tuple(x for x in given.turns if x != t)
        yield Neighbour("turns", t.kernels[0], f"no `{t}`", replace(given, turns=others))
        if len(t.kernels) > 1:
            new = replace(t, kernels=t.kernels[:-1], dims=t.dims[:-1])
            turns = tuple(new if x == t else x for x in given.turns)
            other = replace(given, turns=turns)
            yield Neighbour("turns", t.kernels[0], f"`{new}`", other)
    if given.turns:
        return
    for run in _kernels(found.steps):
        for first, second in pairwise(run):
            for d in first.group.shared:
                same = [e for e in second.group.shared if sizes[e] == sizes[d]]
                if sizes[d] == 1 or not same:
                    continue
                e = d if d in same else same[0]
                new = Turning((leader(first.group), leader(second.group)), (d, e))
                other = replace(given, turns=(new,))
                yield Neighbour("turns", new.kernels[0], f"`{new}`", other)
