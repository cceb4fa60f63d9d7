"""Loops of which a thread does all trips for some rows: when, and that they compute the same."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rutc.driver.plans.estimates import estimate_plan
from rutc.emit.targets import target_named
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Illegal, InTurn, Joined, Plan
from rutc.runtime import InferenceSession
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from tests.compiled import build
from tests.graph_opt.plan_runner import run_plan
from tests.graph_opt.plans import assigned, plan_of
from tests.kernels import assert_agree
from tests.machines import V4, eager

RECURRENCE = """
graph "a product and what follows it, of each row what it was the trip before"
dims n = 8, h = 9, k = 9, t = 5
%x : f32{h,n,t} = input "x" [t, n, h]
%w : f32{h,k} = input "w" [k, h]
%s : f32{k,n} = input "s" [n, k]
%l : f32{k,n}, %ys : f32{k,n,t} = scan t carry(%p : f32{k,n} = %s -> %q) collect(%q) {
  %a : f32{h,n} = sum{k} %p[k, n] * %w[h, k]
  %b : f32{h,n} = max(%a[h, n] + %x[h, n, t], -3.0)
  %q : f32{k,n} = min(%b[h=k, n], 3.0)
}
output "l" [n, k] = %l
output "ys" [t, n, k] = %ys
"""
EAGER = eager(V4)


def given() -> dict[str, np.ndarray]:
    """Small integers, of which all sums are exact."""
    rng = np.random.default_rng(0)
    shapes = {"x": (5, 8, 9), "w": (9, 9), "s": (8, 9)}
    return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


def loops(plan: Plan) -> list[InTurn]:
    return [s for s in plan.steps if isinstance(s, InTurn) and s.loop is not None]


def test_rows_are_blocks_of_a_loop() -> None:
    plan = plan_of(RECURRENCE, EAGER)
    (section,) = loops(plan)
    assert section.trips == 2
    assert {"a", "q"} & set(section.parts)
    assert plan.assignment is not None
    assert "turns {n, n} by 4: " in str(plan.assignment)
    assert parse_assignment(str(plan.assignment)) == plan.assignment


def test_rows_compute_what_the_graph_means() -> None:
    plan = plan_of(RECURRENCE, EAGER)
    wanted = interpret(plan.graph, given())
    for name, got in run_plan(plan, given()).items():
        assert_agree(name, got, wanted[name], exact=True)


def test_rows_share_no_memory_while_others_do_another_trip() -> None:
    plan = plan_of(RECURRENCE, EAGER)
    (section,) = loops(plan)
    places = sorted((plan.places[v].offset, plan.places[v].bytes) for v in section.parts)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("line", ["", "turns {n, n} by 1: %a, %q", "turns {n, n} by 2: %a, %q"])
def test_threads_do_all_trips_of_some_rows(tmp_path: Path, line: str, threads: int) -> None:
    machine = eager(target_named("native").machine)
    plan = assigned(RECURRENCE, line) if line else plan_of(RECURRENCE, machine)
    assert loops(plan)
    wanted = interpret(parse(RECURRENCE), given())
    with InferenceSession(build(plan, machine, tmp_path), threads=threads) as session:
        names = [o.name for o in session.get_outputs()]
        for _ in range(3):
            for name, got in zip(names, session.run(None, given()), strict=True):
                assert_agree(name, got, wanted[name], exact=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_a_loop_have_times_of_their_own(tmp_path: Path, threads: int) -> None:
    machine = eager(target_named("native").machine)
    library = build(plan_of(RECURRENCE, machine), machine, tmp_path)
    with InferenceSession(library, threads=threads, profile=True) as session:
        session.run(None, given())
        calls = [e.calls for e in session.profile()]
    assert {5, 10} & {*calls}
    assert {*calls} <= {1, 5, 10}, "of each trip once, or once for each part"


def test_estimates_count_each_trip_once() -> None:
    found = estimate_plan(plan_of(RECURRENCE, EAGER), V4)
    assert {x.runs for x in found.launches} == {5}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%p[k, n] * %w", "%p[k, n=7-n] * %w"),
        ("%b[h=k, n], 3", "%b[h=k, n=7-n], 3"),
        ("n = 8, ", "n = 6, "),
    ],
)
def test_other_loops_are_done_trip_by_trip(old: str, new: str) -> None:
    """Of rows that read each other, or are too few for two blocks."""
    assert not loops(plan_of(RECURRENCE.replace(old, new), EAGER))


def test_a_loop_is_in_turn_also_where_concatenations_are_no_work() -> None:
    parts = """
%i : f32{n,u} = input "i" [n, u]
%c : f32{n,u} = max(%i[n, u], 0.0)
%d : f32{n} = sum{u} %c[n, u]
%e : f32{n,u} = %i[n, u] * %d[n]
%y : f32{n,v} = select(index(v - 16) < 0, %c[n, u=v else 0.0], %e[n, u=v - 16 else 0.0])
%f : f32{v} = sum{n} %y[n, v] * %y[n, v]
%z : f32{n,v} = %y[n, v] * %f[v]
output "z" [n, v] = %z
"""
    text = RECURRENCE.replace("t = 5", "t = 5, u = 16, v = 32")
    text = text.replace('output "l"', f'{parts.strip()}\noutput "l"')
    plan = plan_of(text, EAGER)
    assert any(isinstance(s, Joined) for s in plan.steps)
    assert loops(plan)
    inputs = {**given(), "i": np.ones((8, 16), np.float32)}
    wanted = interpret(plan.graph, inputs)
    for name, got in run_plan(plan, inputs).items():
        assert_agree(name, got, wanted[name], exact=True)


def test_blocks_keep_their_rows_where_a_value_is_computed_anew() -> None:
    text = RECURRENCE.replace("%q : f32{k,n} = min(", "%c : f32{k,n} = min(").replace(
        "%b[h=k, n], 3.0)", "%b[h=k, n], 3.0)\n  %q : f32{k,n} = max(%c[k, n], -2.0)"
    )
    found = greedy(prepare(parse(text)), EAGER).realisation
    (before,) = found.assignment.turns
    anew = [n for n in neighbours(found, types=False) if n.kind == "computing"]
    assert anew
    for n in anew:
        assert [t.size for t in n.assignment.turns] == [before.size]


def test_short_loops_and_those_of_many_constants_are_done_trip_by_trip() -> None:
    assert not loops(plan_of(RECURRENCE, V4))
    constant = RECURRENCE.replace(
        'input "w" [k, h]', f"const [k, h] [{', '.join(f'{i}.0' for i in range(81))}]"
    )
    assert loops(plan_of(constant, EAGER))
    assert not loops(plan_of(constant, replace(EAGER, l2=128)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("turns {n} by 4: %a", "a loop's kernels take turns together"),
        ("turns {n, n} by 3: %a, %q", "8 rows are not several blocks"),
        ("turns {n, n} by 8: %a, %q", "8 rows are not several blocks"),
        ("turns {n, n} by 4: %a, %q\nturns {n, n} by 2: %a, %q", "do not follow each other"),
    ],
)
def test_what_no_loop_has_is_refused(line: str, said: str) -> None:
    with pytest.raises(Illegal, match=said):
        assigned(RECURRENCE, line)
