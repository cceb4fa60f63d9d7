"""Memory: values that live together never share bytes, and chains use no more than they must.

Lifetimes are counted here from the steps alone, by walking every trip and branch, not by the
intervals that the planner uses.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.errors import UserError
from rutc.graph_opt import optimize, versions
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.living import (
    FewTogether,
    Life,
    ManyTogether,
    Slots,
    meetings_of,
    met_by,
)
from rutc.graph_opt.decide.memory import Lifetimes, live_bytes, place_fixed
from rutc.graph_opt.decide.own_lines import ALIGNMENT, OwnLines
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Choose, Fail, FillHalo, Place, Plan, PlanStep, Repeat, Run, Write
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import used
from tests.graph_opt.plans import plan_of, planned, some_plans
from tests.machines import V3, V4
from tests.strategies import graphs

Event = tuple[str, str]
"""("read" or "write", value)."""


def events(steps: tuple[PlanStep, ...], branches: Iterator[bool]) -> Iterator[Event]:
    """Reads and writes of one run in order; scans go around twice."""
    for s in steps:
        match s:
            case Run(group):
                yield from (("read", v) for v in group.external_reads())
                yield from (("write", v) for v in group.stored)
            case Write(node):
                yield from (("read", v) for v in used(node))
                yield "write", node.out.name
            case FillHalo(value):
                yield "write", value
            case Repeat():
                for c in s.carries:
                    yield "read", c.init
                    yield "write", c.param.name
                for _ in range(2):
                    yield from events(s.steps, branches)
                    for source, out in s.collect:
                        yield "read", source
                        yield "write", out
                    for c in s.carries:
                        yield "read", c.next
                        yield "write", c.param.name
                for v, c in zip(s.results, s.carries, strict=True):
                    yield "read", c.param.name
                    yield "write", v
            case Choose():
                taken = next(branches)
                yield "read", s.cond
                yield from events(s.then if taken else s.orelse, branches)
                values = s.then_values if taken else s.orelse_values
                for v, out in zip(values, s.results, strict=True):
                    yield "read", v
                    yield "write", out
            case Fail():
                return


def clobbered(plan: Plan, branches: Iterator[bool]) -> list[str]:
    """Values that are read after something else was written over them."""
    places = {v: p for v, p in plan.places.items() if p.space == "arena"}
    lost: dict[str, str] = {}
    found = []
    for kind, name in events(plan.steps, branches):
        if name not in places:
            continue
        if kind == "read" and name in lost:
            found.append(f"{name} was overwritten by {lost[name]}")
        if kind == "write":
            lost.pop(name, None)
            begin, end = places[name].offset, places[name].offset + places[name].bytes
            for other, p in places.items():
                if other != name and begin < p.offset + p.bytes and p.offset < end:
                    lost[other] = name
    return found


@some_plans
@given(graphs(symbolic=False), st.booleans(), st.booleans())
def test_no_value_is_overwritten_before_its_last_read(
    graph: Graph, branch: bool, optimized: bool
) -> None:
    planned(graph)
    plan = decide(optimize(graph) if optimized else graph, V4)
    always = iter(lambda: branch, None)
    assert clobbered(plan, always) == [], str(plan)
    for place in plan.places.values():
        if place.space == "arena":
            assert place.offset % ALIGNMENT == 0
            assert place.offset + place.bytes <= plan.arena_bytes


@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_a_chain_keeps_two_values(length: int) -> None:
    # Each nest reads its operand backwards, so that none fuses with the one before.
    names = [f"%v{i}" for i in range(length + 1)]
    chain = "\n".join(
        f"{out} : f32{{a}} = {source}[a=999-a]"
        for source, out in zip(["%x", *names], names, strict=False)
    )
    plan = plan_of(
        f"""graph "chain"
        dims a = 1000
        %x : f32{{a}} = input "x" [a]
        {chain}
        output "y" [a] = {names[-1]}
        """
    )
    size = -(-4000 // ALIGNMENT) * ALIGNMENT
    # The last one lies in the output.
    assert plan.arena_bytes == min(length, 2) * size


def test_the_arena_reaches_the_largest_sum_of_values_alive() -> None:
    # %b and %c live together with %a's successor only.
    plan = plan_of(
        """
        graph "bulge"
        dims a = 64, b = 16
        %x : f32{a} = input "x" [a]
        %p : f32{a} = %x[a=63-a]
        %q : f32{a,b} = %p[a=63-a] * 2.0
        %r : f32{a} = sum{b} %q[a=63-a, b]
        %s : f32{a} = %r[a=63-a] + %p[a]
        output "s" [a] = %s
        """
    )
    assert plan.arena_bytes == 4 * (64 + 64 * 16 + 64)


def test_a_value_that_ends_highest_is_placed_first_where_that_helps() -> None:
    # By size alone %0 and %1 lie at the bottom, %2 above %0, and %3 above %2.
    lives = {str(i): Life(*x) for i, x in enumerate([(1, 1), (3, 3), (1, 2), (2, 3)])}
    sizes = [ALIGNMENT * n for n in (3, 3, 2, 2)]
    places: dict[str, Place] = {}
    arena = place_fixed([(size, str(i)) for i, size in enumerate(sizes)], lives, places)
    assert arena == live_bytes(sizes, list(lives.values())) == 5 * ALIGNMENT


def in_any_turn(values: list[tuple[int, Life]]) -> Any:
    """The values, and turns in which they are placed."""
    return st.tuples(st.just(values), st.permutations(range(len(values))))


LIVES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda x: Life(min(x), max(x)))


@given(st.lists(st.tuples(st.integers(0, 400), LIVES), max_size=10), st.integers(1, 3))
def test_values_that_meet_lie_apart_and_close(values: list[tuple[int, Life]], threads: int) -> None:
    lives = {str(i): life for i, (_, life) in enumerate(values)}
    places: dict[str, Place] = {}
    todo = [(size, str(i)) for i, (size, _) in enumerate(values)]
    arena = place_fixed(todo, lives, places, threads)
    assert arena == place_fixed(todo, lives, {})
    assert all(p.offset % ALIGNMENT == 0 for p in places.values())
    assert all(p.offset + live_bytes([p.bytes], [Life(0, 0)]) <= arena for p in places.values())
    sizes = [size for size, _ in values]
    assert live_bytes(sizes, list(lives.values())) <= arena
    for a, b in combinations(lives, 2):
        if lives[a].first <= lives[b].last and lives[b].first <= lives[a].last:
            x, y = (places[v] for v in (a, b))
            assert x.offset + x.bytes <= y.offset or y.offset + y.bytes <= x.offset
    together = (
        sum(live_bytes([s], [life]) for s, life in values if life.first <= t <= life.last)
        for t in range(10)
    )
    assert live_bytes(sizes, list(lives.values())) == max(together)


@given(st.lists(st.tuples(st.integers(1, 9), LIVES), max_size=14).flatmap(in_any_turn))
def test_few_and_many_together_are_placed_alike(
    case: tuple[list[tuple[int, Life]], list[int]],
) -> None:
    values, turns = case
    sizes, lives = [size for size, _ in values], [life for _, life in values]
    meetings = meetings_of(lives)
    assert met_by(lives) == [len(m) for m in meetings]
    assert ManyTogether(sizes, lives).offsets(turns) == FewTogether(sizes, meetings).offsets(turns)


@given(st.lists(st.tuples(st.integers(0, 70), LIVES), max_size=14), LIVES)
def test_slots_are_taken_while_values_live(values: list[tuple[int, Life]], life: Life) -> None:
    slots = Slots([life, *(x for _, x in values)])
    for number, x in values:
        slots.take(number, x)
    meeting = {n for n, x in values if x.first <= life.last and life.first <= x.last}
    assert slots.taken(life) == sum(1 << n for n in meeting)


def taken(sizes: list[int], lives: list[Life], offsets: list[int], threads: int) -> int:
    """The lines that threads write to in the second of two runs, and others had last."""
    had: dict[int, int] = {}
    found = 0
    for run in (1, 2):
        for i in sorted(range(len(sizes)), key=lambda i: lives[i].first):
            lines = sizes[i] // ALIGNMENT
            for number in range(lines):
                line, thread = offsets[i] // ALIGNMENT + number, number * threads // lines
                found += run == 2 and had.get(line, thread) != thread
                had[line] = thread
    return found


ALIKE = st.integers(0, 9).map(lambda n: Life(n, n + 1))


@given(
    st.lists(st.tuples(st.integers(1, 5), ALIKE), min_size=1, max_size=12),
    st.integers(2, 3),
)
def test_threads_take_no_more_lines_from_each_other(
    values: list[tuple[int, Life]], threads: int
) -> None:
    sizes, lives = [ALIGNMENT * 6 * n for n, _ in values], [life for _, life in values]
    found: dict[int, list[int]] = {}
    for n in (1, threads):
        places: dict[str, Place] = {}
        named = {str(i): life for i, life in enumerate(lives)}
        place_fixed([(size, str(i)) for i, size in enumerate(sizes)], named, places, n)
        found[n] = [int(places[v].offset) for v in named]
    spans = [(x.first, x.last) for x in lives]
    meetings = [
        [j for j, y in enumerate(lives) if j != i and x.first <= y.last and y.first <= x.last]
        for i, x in enumerate(lives)
    ]
    own = OwnLines(sizes, spans, meetings, threads)
    for offsets in found.values():
        assert own.taken(offsets) == taken(sizes, lives, offsets, threads) * ALIGNMENT
    assert own.taken(found[threads]) <= own.taken(found[1])


def test_halves_lie_over_halves_of_other_values() -> None:
    # In turn, two of 8 lines live together and then two of 4: all thirds would fit anywhere.
    lives = [Life(1, 2), Life(2, 3), Life(3, 4), Life(4, 5), Life(5, 6)]
    sizes = [ALIGNMENT * n for n in (8, 8, 4, 4, 2)]
    for threads, moved in ((1, True), (2, False)):
        places: dict[str, Place] = {}
        named = {str(i): life for i, life in enumerate(lives)}
        arena = place_fixed([(s, str(i)) for i, s in enumerate(sizes)], named, places, threads)
        assert arena == 16 * ALIGNMENT
        offsets = [int(places[v].offset) for v in named]
        assert (taken(sizes, lives, offsets, 2) > 0) == moved


@pytest.mark.parametrize(
    "name", ["digits", "ppocr4_rec", "ppocr_cls", "silero_vad_8k", "light_squeezenet"]
)
def test_the_arena_is_what_lives_together(name: str) -> None:
    model = find(name)
    try:
        path = model.obtain()
    except UserError as error:
        pytest.skip(f"the zoo's model cannot be had here: {error}")
    graph = versions(import_model(path, shapes=model.shapes), V3)[-1].graph
    prepared = prepare(graph)
    plan = greedy(prepared, V3).realisation.plan
    times = Lifetimes(prepared.homes)
    times.visit(plan.steps)
    own = [v for v in times.lives if plan.places[v].space == "arena"]
    least = live_bytes([int(plan.places[v].bytes) for v in own], [times.lives[v] for v in own])
    assert 0 < least <= plan.arena_bytes <= 1.05 * least


def test_what_a_trip_reads_survives_all_trips() -> None:
    plan = plan_of(
        """
        graph "scan"
        dims t = 4, a = 300
        %x : f32{a} = input "x" [a]
        %w : f32{a} = %x[a=299-a]
        %s : f32{a} = %x[a] * 2.0
        %l : f32{a} = scan t carry(%p : f32{a} = %s -> %n) collect() {
          %m : f32{a} = %p[a=299-a] + %w[a]
          %n : f32{a} = %m[a=299-a]
        }
        output "l" [a] = %l
        """
    )
    assert clobbered(plan, iter(())) == []
    w, m = plan.places["w"], plan.places["m"]
    assert w.offset + w.bytes <= m.offset or m.offset + m.bytes <= w.offset


def test_empty_values_have_a_place() -> None:
    plan = plan_of(
        """
        graph "empty"
        dims a = 0, b = 4
        %x : f32{a} = input "x" [a]
        %y : f32{a,b} = %x[a] + 1.0
        %z : f32{b} = sum{a} %y[a, b=3-b]
        output "z" [b] = %z
        """
    )
    assert plan.places["y"].bytes == 0
