"""States that grow in place: what plans of them store, and where."""

import numpy as np
import pytest

from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Joined, Plan
from rutc.tensor_ir import Graph
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.states import NoState, growth
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.close import assert_close
from tests.graph_opt.plan_runner import run_plan
from tests.machines import V4

STEP = """
graph "step"
symbols past = 0..12, new = 1..4
dims h = 2, t = past, s = new, u = past + new, k = 3, one = 1
%p : f32{h,k,t} = input "past" [AXES_T]
%x : f32{h,k,s} = input "x" [h, s, k]
%f : f32{h,k,s} = %x[h, k, s] * 2.0
%y : f32{h,k,u} = select(index(u - past) < 0, %p[h, k, t=u else 0.0], %f[h, k, s=u-past else 0.0])
%z : f32{h,k} = sum{u} %y[h, k, u]
output "z" [h, k] = %z
output "present" [AXES_U] = %y
state "past" = "present"
"""

MOST = 13
"""Rows that the state has room for."""

ORDERS = ("h, t, k", "t, h, k", "h, k, t")


def _step(order: str) -> Graph:
    text = STEP.replace("AXES_T", order).replace("AXES_U", order.replace("t", "u"))
    graph = parse(text)
    verify(graph)
    assert parse(str(graph)) == graph
    return graph


def _plan(graph: Graph) -> Plan:
    return decide(graph, V4)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("past", [0, 1, 12])
def test_a_plan_computes_what_its_graph_does(order: str, past: int) -> None:
    graph = _step(order)
    rng = np.random.default_rng(past)
    sizes = {"h": 2, "t": past, "k": 3}
    shape = [sizes[d] for d in order.split(", ")]
    inputs = {
        "past": rng.standard_normal(shape).astype(np.float32),
        "x": rng.standard_normal((2, min(4, MOST - past), 3)).astype(np.float32),
    }
    expected = interpret(graph, inputs)
    for name, found in run_plan(_plan(graph), inputs).items():
        assert_close(found, expected[name])


@pytest.mark.parametrize("order", ORDERS)
def test_only_what_is_appended_is_stored(order: str) -> None:
    plan = _plan(_step(order))
    stored = {v for g in plan.groups() for v in g.stored}
    assert "y" not in stored
    assert {"y.new"} == {v for v in stored if plan.places[v].space == "output"} - {"z"}
    assert [s.node.out.name for s in plan.steps if isinstance(s, Joined)] == ["y"]
    assert plan.places["p"] == plan.places["y"]
    row = plan.layouts["y"].stride("u")
    assert isinstance(row, int)
    assert plan.places["y.new"].offset == Index.of("past") * (4 * row)


def test_the_text_of_a_plan_says_what_lies_where() -> None:
    text = str(_plan(_step("h, t, k")))
    assert (
        "joined: %y [h, u(of 13), k] @output1+0 of %p @output1+0, %y.new @output1+12*past" in text
    )


def test_what_is_no_prefix_is_written_anew() -> None:
    graph = parse(
        str(_step("h, t, k")).replace("%p[h, k, t=u else 0.0]", "%p[h, k, t=past-u-1 else 0.0]")
    )
    plan = _plan(graph)
    assert not [s for s in plan.steps if isinstance(s, Joined)]
    assert plan.places["p"] != plan.places["y"]
    inputs = {
        "past": np.arange(30, dtype=np.float32).reshape(2, 5, 3),
        "x": np.ones((2, 2, 3), np.float32),
    }
    expected = interpret(graph, inputs)
    for name, found in run_plan(plan, inputs).items():
        assert_close(found, expected[name])


def test_an_output_that_another_one_is_too_is_written_anew() -> None:
    graph = parse(
        str(_step("h, t, k")).replace('output "z"', 'output "w" [k, h, u] = %y\noutput "z"')
    )
    plan = _plan(graph)
    assert not [s for s in plan.steps if isinstance(s, Joined)]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("past = 0..12", "past = 0..4611686018427387904", "nothing bounds past"),
        ("h = 2", "h = new", "only what grows may be left open"),
        ("t = past", "t = 5", "leave what grows open"),
    ],
)
def test_what_can_be_no_state(before: str, after: str, why: str) -> None:
    graph = parse(
        STEP.replace("AXES_T", "h, t, k").replace("AXES_U", "h, u, k").replace(before, after)
    )
    with pytest.raises(NoState, match=why):
        growth(graph, graph.states[0])
