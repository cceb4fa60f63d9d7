"""The search for plans by estimates: how near it comes to the best, and what it leaves alone."""

from dataclasses import replace
from pathlib import Path

import pytest

import rutc
from rutc.driver.plans import plan_by_estimate
from rutc.driver.plans import refine as refined_plans
from rutc.driver.plans.plan_by_estimate import (
    Estimated,
    EstimateSearch,
    Prices,
    difference,
    unordered,
)
from rutc.driver.plans.planning import searched
from rutc.driver.plans.refine import refined
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from tests.graph_opt.networks import Net, graph_of
from tests.machines import V3, weighing
from tests.optimum import CLOSE, chosen, gaps, mixed_graph, small_graph

FAR = (66, 44, 126)
"""Seeds of graphs whose choices one after the other take long by the estimates."""


@pytest.mark.parametrize("seed", FAR)
def test_the_search_finds_the_best_of_all_plans(seed: int) -> None:
    found = gaps(small_graph(seed, 5), V3)
    assert found is not None
    assert found.searched <= CLOSE < found.chosen


@pytest.mark.parametrize("seed", [4, 23, 40])
def test_the_usual_plan_has_orders_that_are_clearly_better(seed: int) -> None:
    first = chosen(mixed_graph(seed, 5), V3)
    better, prices = refined(first, V3), Prices(first, V3)
    assert better.assignment.groups == first.assignment.groups
    least = V3.coefficients.plans.least_gain
    assert prices.legal(better).cycles < (1 - least) * prices.legal(first).cycles


def test_a_softmax_stays_one_kernel() -> None:
    """Estimates err by less than what they promise of three kernels."""
    text = """
    graph "softmax"
    dims s = 64, d = 512
    %x : f32{d,s} = input "x" [s, d]
    %m : f32{s} = max{d} %x[d, s]
    %e : f32{d,s} = exp(%x[d, s] - %m[s])
    %z : f32{s} = sum{d} %e[d, s]
    %y : f32{d,s} = %e[d, s] / %z[s]
    output "y" [s, d] = %y
    """
    first = chosen(parse(text), V3)
    assert len(list(first.plan.groups())) == 1
    assert refined(first, V3).assignment == first.assignment


LITTLE = """
graph "what takes no longer than to call it"
dims m = 8, n = 8
%x : f32{m,n} = input "x" [m, n]
%c : f32{m} = sum{n} %x[m, n]
%y : f32{m,n} = %x[m, n] * %c[m]
output "y" [n, m] = %y
"""


def test_no_plan_is_searched_unasked_of_many_nests_of_little_or_of_any_size() -> None:
    little = chosen(parse(LITTLE), V3)
    assert refined(little, V3) is little
    many = chosen(optimize(graph_of("encoder")), V3)
    assert refined(many, V3) is many
    text = """
    graph "rows"
    symbols rows = 1..64@1
    dims n = rows, a = 64000, b = 64
    %x : f32{a,b,n} = input "x" [n, b, a]
    %y : f32{a,n} = sum{b} %x[a, b, n]
    output "y" [a, n] = %y
    """
    any_size = chosen(parse(text), V3)
    assert refined(any_size, V3) is any_size


def test_orders_are_searched_of_any_size_where_there_is_much_to_compute() -> None:
    first = chosen(mixed_graph(361, 5), V3)
    assert first.graph.symbols
    better, prices = refined(first, V3), Prices(first, V3)
    assert better.assignment.groups == first.assignment.groups
    assert prices.legal(better).cycles < prices.legal(first).cycles
    slow_to_call = replace(V3, launch_cycles=10**9)
    assert refined(first, slow_to_call).assignment == first.assignment


def gaining(share: float) -> Machine:
    """A machine for which changes stay that gain so much."""
    return weighing(V3, "plans", least_gain=share)


def test_what_gains_little_stays_as_it_is() -> None:
    first = chosen(small_graph(FAR[0], 5), V3)
    for share, better in ((0.1, True), (0.9, False)):
        found = EstimateSearch(first, gaining(share)).run()
        assert (found.found.assignment != first.assignment) == better
        assert (found.estimate.cycles < (1 - share) * found.first_cycles) == better


def test_in_no_time_a_number_of_changes_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_by_estimate, "MOVES", 20)
    first = chosen(optimize(graph_of("encoder")), V3)
    found = [EstimateSearch(first, V3, least_gain=0.0).run() for _ in range(2)]
    assert found[0].tried == found[1].tried == 20
    assert found[0].found.assignment == found[1].found.assignment
    short = EstimateSearch(first, V3, least_gain=0.0).run(1e-6)
    assert short.tried == 0
    assert short.found is first


def test_launches_that_two_plans_have_are_no_difference() -> None:
    first = chosen(small_graph(FAR[0], 5), V3)
    prices = Prices(first, V3)
    own = prices.legal(first)
    assert difference(own, own).before == 0
    others = (legal(first, n) for n in neighbours(first, types=False))
    other = prices.legal(next(x for x in others if x is not None))
    apart = difference(own, other)
    assert own.cycles - apart.before == pytest.approx(other.cycles - apart.after)


def test_plans_of_any_size_are_not_searched() -> None:
    text = """
    graph "rows"
    symbols rows = 1..64
    dims n = rows, a = 64
    %x : f32{n,a} = input "x" [n, a]
    %y : f32{a} = sum{n} %x[n, a]
    output "y" [a] = %y
    """
    first = chosen(parse(text), V3)
    assert searched(V3, 0.0)(first) is first


@pytest.mark.parametrize(("plan", "searches"), [("greedy", []), ("search", [0.0])])
def test_a_model_is_compiled_as_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str, searches: list[float]
) -> None:
    net = Net()
    file = net.save(tmp_path / "net.onnx", net("Softmax", net.input(64, 96), axis=0))
    seen: list[float] = []
    run = EstimateSearch.run

    def noted(search: EstimateSearch, seconds: float = 0.0) -> Estimated:
        seen.append(seconds)
        return run(search, seconds)

    # An artifact that was kept would be taken without a search.
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(EstimateSearch, "run", noted)
    monkeypatch.setattr(plan_by_estimate, "LEAST_ROOM", 0.0)
    # Graphs of few nests are searched whatever is asked.
    monkeypatch.setattr(refined_plans, "FEW", 0)
    time = 0.0 if searches else None
    made = rutc.compile(file, tmp_path / "net.so", plan=plan, plan_time=time, db="none")
    assert made.verification is not None
    assert made.verification.passed
    assert seen == searches


def test_types_and_a_search_follow_each_other() -> None:
    graph = small_graph(FAR[0], 5)
    first = chosen(graph, V3)
    seen: list[Realisation] = []

    def before(found: Realisation) -> Realisation:
        seen.append(found)
        return first

    plan = decide(graph, V3, change=before, improve=searched(gaining(0.1), 0.0))
    assert len(seen) == 1
    assert plan.assignment is not None
    assert unordered(plan.assignment) != unordered(first.assignment)
