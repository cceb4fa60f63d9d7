"""The arena: a byte offset for every stored value, values that never live together sharing bytes.

Offsets are chosen largest value first, each at the lowest place free during its life (the
greedy-by-size strategy of [Pisarchyk & Lee 2020]), and again with the value that ends highest
before all others, as long as that may help. Values of symbolic size lie in slots after those of
fixed size: a slot's size is the maximum of formulas, and its offset a sum of sizes. Values whose
size the program computes lie in blocks of their own, which grow when the size is known.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import assert_never

from rutc.graph_opt.decide.living import (
    FewTogether,
    Life,
    ManyTogether,
    Slots,
    meetings_of,
    met_by,
)
from rutc.graph_opt.decide.own_lines import ALIGNMENT, MOST_TOGETHER, OwnLines
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    Place,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.tensor_ir.graph import Graph, Value, bound_symbols, used
from rutc.tensor_ir.indices.affine import Index, Range, Size, maximum, plain, typical
from rutc.tensor_ir.indices.division import at_least
from rutc.tensor_ir.layout import Layout

ROUNDS = 64
"""Orders that values are placed in, at most."""


class Lifetimes:
    """Times of definition and last use of all stored values over a step list.

    Values that share memory have one life, under the name of `homes`.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        """Start at time 0."""
        self.homes = homes
        self.time = 0
        self.lives: dict[str, Life] = {}

    def visit(self, steps: tuple[PlanStep, ...]) -> None:
        """Count the steps through."""
        for s in steps:
            self.time += 1
            match s:
                case Run(group):
                    self._use(*group.external_reads())
                    self._define(*group.stored)
                case Write(node) | Joined(node):
                    self._use(*used(node))
                    self._define(node.out.name)
                case FillHalo(value):
                    self._define(value)
                case Learn(bind):
                    self._use(bind.value)
                    self._define(bind.out.name)
                case Invoke(call):
                    self._use(*call.args)
                    self._define(*(v.name for v in call.outs))
                case Repeat():
                    self._visit_loop(s, s.collect, s.parts)
                case RepeatWhile():
                    self._visit_loop(s)
                case InTurn():
                    self._visit_turns(s)
                case Choose():
                    self._visit_branches(s)
                case Fail():
                    pass
                case _:
                    assert_never(s)

    def _visit_loop(
        self,
        s: Repeat | RepeatWhile,
        collect: Sequence[tuple[str, str]] = (),
        parts: Sequence[str] = (),
    ) -> None:
        """Count the steps of a loop through, and what is copied before, after and between trips."""
        for c in s.carries:
            self._use(c.init)
            self._define(c.param.name)
        self._define(*(out for _, out in collect), *parts)
        self._visit_again_and_again(s.steps)
        for c in s.carries:
            self._use(c.next, c.param.name)
        for source, out in collect:
            self._use(source, out)
        self._define(*s.results)

    def _visit_branches(self, s: Choose) -> None:
        """Count the steps of both branches through, one after the other."""
        self._use(s.cond)
        self._define(*s.results)
        for branch, values in ((s.then, s.then_values), (s.orelse, s.orelse_values)):
            self.visit(branch)
            self.time += 1
            self._use(*values)

    def _visit_turns(self, s: InTurn) -> None:
        """Count the steps of turns through, of which a run may do the last before another's first.

        A thread has memory of its own for what is near then; the rest lives as long as all steps.
        """
        near = {x.value for x in s.near}
        self._define(*(v for v in s.parts if v not in near))
        self._visit_again_and_again(s.steps)

    def _visit_again_and_again(self, steps: tuple[PlanStep, ...]) -> None:
        """Count steps through that a run does several times: what they use lives until the end."""
        start, outside = self.time, set(self.lives)
        self.visit(steps)
        self.time += 1
        for name, life in self.lives.items():
            if name in outside and life.last >= start:
                life.last = self.time

    def _define(self, *names: str) -> None:
        for name in names:
            home = self.homes.get(name, name)
            life = self.lives.setdefault(home, Life(self.time, self.time))
            life.last = max(life.last, self.time)

    def _use(self, *names: str) -> None:
        for name in names:
            life = self.lives.get(self.homes.get(name, name))
            if life is not None:
                life.last = max(life.last, self.time)


def place_values(
    graph: Graph,
    steps: tuple[PlanStep, ...],
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    homes: Mapping[str, str],
    starts: Mapping[str, Size],
    threads: int,
) -> tuple[dict[str, Place], Size]:
    """(places, arena bytes) of all values that the steps store.

    `homes` names, for a value that lies in another one's memory, that one; `starts` the elements
    before it there, where there are any. So many `threads` are commonly at work.
    """
    times = Lifetimes(homes)
    times.visit(steps)
    places: dict[str, Place] = {}
    for number, node in enumerate(graph.inputs):
        size = plain(layouts[node.out.name].size * node.out.dtype.bytes)
        places[node.out.name] = Place("input", number, 0, size)
    for number, output in enumerate(graph.outputs):
        size = plain(layouts[output.value].size * values[output.value].dtype.bytes)
        places[homes.get(output.value, output.value)] = Place("output", number, 0, size)
    for output in graph.outputs:
        # Nothing takes over the memory of an output.
        home = homes.get(output.value, output.value)
        if home in times.lives:
            times.lives[home].last = times.time + 1
    bound = bound_symbols(graph.nodes)
    fixed: list[tuple[int, str]] = []
    symbolic: list[tuple[Index, str]] = []
    computed: list[tuple[Size, str]] = []
    near = {x.value: x for s in steps if isinstance(s, InTurn) for x in s.near}
    for v in times.lives:
        if v in near:
            whole = plain(layouts[v].size * values[v].dtype.bytes)
            places[v] = Place("near", 0, near[v].offset, whole)
            continue
        size = plain(layouts[v].size * values[v].dtype.bytes)
        # By the extents: a value without elements may still have a shape that is computed.
        if any(not bound.isdisjoint(graph.extents[d].names()) for d in values[v].dims):
            computed.append((size, v))
            continue
        if v in places:
            continue
        if isinstance(size, int):
            fixed.append((size, v))
        else:
            symbolic.append((size, v))
    arena = place_fixed(fixed, times.lives, places, threads)
    total = place_symbolic(symbolic, times.lives, places, arena, dict(graph.symbols))
    _place_computed(computed, times.lives, places)
    for name, home in homes.items():
        place = places[home]
        before = starts.get(name, 0) * values[name].dtype.bytes
        places[name] = replace(place, offset=plain(place.offset + before))
    return places, total


def _place_computed(
    todo: list[tuple[Size, str]], lives: Mapping[str, Life], places: dict[str, Place]
) -> None:
    """A block for each value, the first whose values it does not meet."""
    blocks = Slots([lives[name] for _, name in todo])
    for size, name in sorted(todo, key=lambda x: (lives[x[1]].first, x[1])):
        taken = blocks.taken(lives[name])
        number = _lowest_of(~taken)
        blocks.take(number, lives[name])
        places[name] = Place("block", number, 0, size)


def _lowest_of(numbers: int) -> int:
    """The least of numbers that are given as a sum of powers of two."""
    return (numbers & -numbers).bit_length() - 1


def place_fixed(
    todo: list[tuple[int, str]],
    lives: Mapping[str, Life],
    places: dict[str, Place],
    threads: int = 1,
) -> int:
    """The bytes in which the values are placed: the fewest of several orders, the largest first.

    The value that ends highest is placed first next time, until no order takes fewer bytes: what
    lives at one time together, or as many as `ROUNDS` have been tried. In these bytes values
    move to where several threads write to lines that they had before.
    """
    order = sorted(todo, key=lambda x: (-x[0], lives[x[1]].first, x[1]))
    spans = [lives[name] for _, name in order]
    sizes = [_aligned(size) for size, _ in order]
    met = met_by(spans)
    few = None
    if sum(met) <= MOST_TOGETHER * len(order):
        few = FewTogether(sizes, meetings_of(spans))
    packing = few or ManyTogether(sizes, spans)
    turns = list(range(len(order)))
    fewest = live_bytes(sizes, spans)
    offsets, arena = packing.offsets(turns)
    best = arena, offsets, list(turns)
    # Where many live together no other order took fewer bytes.
    for _ in range(ROUNDS if few is not None else 0):
        if best[0] <= fewest:
            break
        highest = next(i for i in turns if offsets[i] + sizes[i] == arena)
        if turns[0] == highest:
            break
        turns.remove(highest)
        turns.insert(0, highest)
        offsets, arena = packing.offsets(turns)
        if arena < best[0]:
            best = arena, offsets, list(turns)
    arena, offsets, turns = best
    if few is not None and threads > 1 and max(met, default=0) <= MOST_TOGETHER:
        own = OwnLines(sizes, [(x.first, x.last) for x in spans], few.meetings, threads)
        offsets = own.placed(offsets, turns, arena)
    for (size, name), offset in zip(order, offsets, strict=True):
        places[name] = Place("arena", 0, offset, size)
    return arena


def _aligned(size: int) -> int:
    """The bytes that a value takes: a whole number of `ALIGNMENT`, for it is never empty."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def live_bytes(sizes: Sequence[int], lives: Sequence[Life]) -> int:
    """The bytes of the values that live together, where they are most: no arena has fewer."""
    changes: dict[int, int] = {}
    for size, life in zip(sizes, lives, strict=True):
        changes[life.first] = changes.get(life.first, 0) + _aligned(size)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - _aligned(size)
    return max(accumulate((changes[t] for t in sorted(changes)), initial=0))


def place_symbolic(
    todo: list[tuple[Index, str]],
    lives: Mapping[str, Life],
    places: dict[str, Place],
    start: int,
    symbols: Mapping[str, Range],
) -> Size:
    """The end of the slots from `start` on in which the values are placed.

    Each value, the commonly largest first, takes the free slot that it commonly makes least use
    of, where the slot need not grow; or else the free slot that is commonly nearest to its size.
    """
    # Many values are of one size, and so are many slots: it has the sum of two to their numbers.
    slots = Slots([lives[name] for _, name in todo])
    wholes: list[Index] = []
    alike: dict[Index, int] = {}
    chosen: list[tuple[int, str]] = []
    commonly = functools.cache(lambda size: typical(size, symbols))
    holds = functools.cache(lambda whole, size: at_least(whole, size, symbols))
    common = {name: commonly(size) for size, name in todo}
    for size, name in sorted(todo, key=lambda x: (-common[x[1]], lives[x[1]].first, x[1])):
        taken = slots.taken(lives[name])
        free = {b: _lowest_of(x) for b, of_size in alike.items() if (x := of_size & ~taken)}
        enough = {b: number for b, number in free.items() if holds(b, size)}
        if free:
            old = min(enough or free, key=lambda b: (commonly(b), free[b]))
            number, whole = free[old], old if enough else maximum(old, size, symbols)
            alike[old] &= ~(1 << number)
            wholes[number] = whole
        else:
            number, whole = len(wholes), size
            wholes.append(whole)
        alike[whole] = alike.get(whole, 0) | 1 << number
        slots.take(number, lives[name])
        chosen.append((number, name))
    sizes = {name: size for size, name in todo}
    offsets: list[Size] = [start]
    for whole in wholes:
        # A slot is never empty: what has no elements has an address all the same.
        rounded = (whole + (2 * ALIGNMENT - 1)).simplify(symbols) // ALIGNMENT
        offsets.append(plain(offsets[-1] + rounded * ALIGNMENT))
    for number, name in sorted(chosen, key=itemgetter(0)):
        places[name] = Place("arena", 0, offsets[number], sizes[name])
    return offsets[-1]
