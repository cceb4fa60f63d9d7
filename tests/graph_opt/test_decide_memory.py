"""Memory: values that live together never share bytes, and chains use no more than they must.

Lifetimes are counted here from the steps alone, by walking every trip and branch, not by the
intervals that the planner uses.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.memory import ALIGNMENT
from rutc.graph_opt.plan import Choose, Fail, FillHalo, Plan, PlanStep, Repeat, Run, Write
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import used
from tests.graph_opt.plans import plan_of, planned, some_plans
from tests.machines import V4
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
