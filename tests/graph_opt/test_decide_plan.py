"""Whole plans: they compute what their graph does, own their outputs, print; and what they lack."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from tests.close import assert_close
from tests.graph_opt.plan_runner import PlanFailed, run_plan
from tests.graph_opt.plans import kernels, plan_of, planned, some_plans
from tests.machines import V4
from tests.strategies import graphs, random_inputs


def check_plan(graph: Graph, seed: int) -> None:
    """Compares what the graph and its plan compute. The graph's values must be exact."""
    inputs = random_inputs(graph, seed)
    plan = decide(graph, V4)
    got = run_plan(plan, inputs)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"{name} of\n{graph}\n{plan}")


@some_plans
@given(graphs(exact=True, symbolic=False, most=4), st.integers(0, 9), st.booleans())
def test_plans_compute_what_their_graphs_do(graph: Graph, seed: int, optimized: bool) -> None:
    planned(graph)
    check_plan(optimize(graph) if optimized else graph, seed)


def run_text(text: str, **inputs: object) -> dict[str, list[object]]:
    """The outputs of a text's plan as lists."""
    graph = parse(text)
    arrays = {n.name: np.asarray(inputs[n.name]).astype(n.out.dtype.numpy) for n in graph.inputs}
    got = run_plan(plan_of(text), arrays)
    wanted = interpret(graph, arrays)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)
    return {name: array.tolist() for name, array in got.items()}


def test_outputs_that_are_inputs_constants_or_one_value() -> None:
    text = """
        graph "outputs"
        dims a = 2, b = 3
        %x : f32{a,b} = input "x" [a, b]
        %c : f32{a} = const [a] [5.0, 6.0]
        %y : f32{a,b} = %x[a, b] + %c[a]
        output "same" [a, b] = %x
        output "turned" [b, a] = %x
        output "constant" [a] = %c
        output "y" [a, b] = %y
        output "again" [b, a] = %y
        """
    plan = plan_of(text)
    places = {o.name: plan.places[o.value] for o in plan.graph.outputs}
    assert [(p.space, p.index) for p in places.values()] == [("output", i) for i in range(5)]
    got = run_text(text, x=[[1, 2, 3], [4, 5, 6]])
    assert got["turned"] == [[1, 4], [2, 5], [3, 6]]
    assert got["again"] == [[6, 10], [7, 11], [8, 12]]


def test_carried_values_may_swap() -> None:
    text = """
        graph "swap"
        dims t = 3, a = 2
        %x : f32{a} = input "x" [a]
        %y : f32{a} = input "y" [a]
        %u : f32{a}, %v : f32{a}, %all : f32{a,t} =
          scan t carry(%p : f32{a} = %x -> %q, %q : f32{a} = %y -> %p) collect(%p) {
        }
        output "u" [a] = %u
        output "v" [a] = %v
        output "all" [t, a] = %all
        """.replace("=\n          scan", "= scan")
    got = run_text(text, x=[1, 2], y=[3, 4])
    assert got == {"u": [3, 4], "v": [1, 2], "all": [[1, 2], [3, 4], [1, 2]]}


@pytest.mark.parametrize("condition", [False, True])
def test_a_branch_may_yield_what_lies_in_another_order(condition: bool) -> None:
    text = """
        graph "branch"
        dims a = 2, b = 3
        %c : bool{} = input "c" []
        %x : f32{a,b} = input "x" [b, a]
        %y : f32{a,b} = if %c {
          yield %x
        } else {
          %z : f32{a,b} = -%x[a, b]
          yield %z
        }
        output "y" [b, a] = %y
        """
    run_text(text, c=condition, x=[[1, 2], [3, 4], [5, 6]])


def test_a_copy_that_both_branches_need_is_made_in_each() -> None:
    text = """
        graph "halos"
        dims a = 6, k = 3
        %c : bool{} = input "c" []
        %x : i16{a} = input "x" [a]
        %y : i16{a} = if %c {
          %p : i16{a} = sum{k} %x[a=a+k-1 else 0]
          yield %p
        } else {
          %q : i16{a} = max{k} %x[a=a+k-1 else 0]
          yield %q
        }
        output "y" [a] = %y
        """
    assert sum(name.startswith("x.halo") for name in plan_of(text).values) == 2
    for condition in (False, True):
        run_text(text, c=condition, x=[1, -2, 3, 4, -5, 6])


def test_a_branch_that_cannot_be_taken_fails() -> None:
    text = """
        graph "fail"
        dims a = 2
        %c : bool{} = input "c" []
        %x : f32{a} = input "x" [a]
        %y : f32{a} = if %c {
          %p : f32{a} = call fail(message="the shapes differ")
          yield %p
        } else {
          %q : f32{a} = -%x[a]
          yield %q
        }
        output "y" [a] = %y
        """
    plan = plan_of(text)
    assert "fail: the shapes differ" in str(plan)
    inputs = {"c": np.array(True), "x": np.ones(2, np.float32)}
    with pytest.raises(PlanFailed, match="the shapes differ"):
        run_plan(plan, inputs)


def test_a_plan_prints_kernels_layouts_places_and_refusals() -> None:
    plan = plan_of(
        """
        graph "window"
        dims 'a b' = 40, k = 65
        %x : f32{'a b'} = input "x" ['a b']
        %y : f32{'a b'} = max(%x['a b'], 0.0)
        %z : f32{'a b'} = sum{k} %y['a b'='a b'+k-1 else 0.0]
        output "z" ['a b'] = %z
        """
    )
    assert str(plan).splitlines() == [
        "plan window: arena 448 bytes",
        "  fill the halo of %y",
        "  g0 for {'a b'}: %y -> %y [a b(+1+63)] fill 0.0 @arena+0",
        "  g1 for {'a b'}: %z -> %z [a b] @output0+0",
        "not fused:",
        "  %z not with %y: it does not reduce over a dim of the group",
    ]


def test_scans_print_their_bodies_indented() -> None:
    plan = plan_of(
        """
        graph "scan"
        dims t = 4, a = 3
        %x : f32{a} = input "x" [a]
        %l : f32{a} = scan t carry(%p : f32{a} = %x -> %n) collect() {
          %n : f32{a} = %p[a] * 2.0
        }
        output "l" [a] = %l
        """
    )
    lines = str(plan).splitlines()
    assert "  repeat t 4 times" in lines
    assert any(line.startswith("    g") and "%n" in line for line in lines)
    assert kernels(plan) == [{"n"}]


def test_memory_is_a_formula_of_symbolic_sizes() -> None:
    graph = parse(
        """
        graph "symbolic"
        symbols batch = 0..100, seq = 1..9
        dims i = 16, n = batch, s = seq, t = seq
        %x : f32{i,n,s} = input "x" [n, s, i]
        %w : f32{n,s,t} = sum{i} %x[i, n, s] * %x[i, n, s=t]
        %e : f32{n,s,t} = exp(%w[n, s, t])
        %y : f32{i,n,s} = sum{t} %e[n, s, t] * %x[i, n, s=t]
        output "y" [n, s, i] = %y
        """
    )
    plan = decide(graph, V4)
    first, *sizes = str(plan).splitlines()[:3]
    assert re.fullmatch(r"plan symbolic: arena .*batch\*seq\*seq.* bytes", first)
    assert sizes == ["  size batch = 0..100", "  size seq = 1..9"]
    for batch, seq in ((0, 3), (1, 1), (5, 7), (2, 9)):
        x = np.random.default_rng(0).standard_normal((batch, seq, 16)).astype(np.float32)
        expected = interpret(graph, {"x": x})["y"]
        assert_close(run_plan(plan, {"x": x})["y"], expected, reduction=1024)


@some_plans
@given(graphs(exact=True, symbolic=True, most=4), st.data(), st.booleans())
def test_one_plan_serves_all_sizes(graph: Graph, data: st.DataObject, optimized: bool) -> None:
    graph = optimize(graph) if optimized else graph
    plan = decide(graph, V4)
    for seed in data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)):
        inputs = random_inputs(graph, seed)
        got = run_plan(plan, inputs)
        for name, array in interpret(graph, inputs).items():
            np.testing.assert_array_equal(got[name], array, err_msg=f"{name} of\n{graph}\n{plan}")
