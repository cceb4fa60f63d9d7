"""Outlines: what the steps of an artifact touch is there while they touch it, and lies apart."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given

from rutc.driver.parts.build import Builder, Built
from rutc.driver.parts.outline import Outline, PlanOutline, StepOutline, kind_of, read_outline
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.textual.parse import parse
from tests.compiled import plan_or_reject
from tests.examples import examples
from tests.graph_opt.networks import NETWORKS, graph_of
from tests.machines import NATIVE, V3, V4
from tests.strategies import graphs

PRODUCT = """
graph "product"
dims i = 7, j = 40, k = 30
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
%z : f32{i} = max{j} exp(%y[i, j])
output "z" [i] = %z
"""


def built(plan: Plan) -> Built:
    return Builder(plan, NATIVE, "model", 1, code=False).build()


def check(found: Built) -> None:
    """What holds of every outline."""
    outline = found.outline
    assert read_outline(json.loads(json.dumps(outline.facts()))) == outline
    kernels = [s for p in outline.plans for s in p.steps if s.kernel is not None]
    assert [s.kernel for s in kernels] == list(range(len(found.facts)))
    assert [s.name for s in kernels] == [f.name for f in found.facts]
    assert [s.origin for s in kernels] == [f.origin for f in found.facts]
    for plan in outline.plans:
        _check_lives(plan)


def _check_lives(plan: PlanOutline) -> None:
    times = [s.time for s in plan.steps]
    assert times == sorted(times)
    touched = set()
    for s in plan.steps:
        for n in (*s.reads, *s.writes):
            touched.add(n)
            v = plan.values[n]
            if v.first is not None and v.last is not None:
                assert v.first <= s.time <= v.last, f"{v.name} in {s.name}"
        assert all(w < len(plan.weights) for w in s.weights)
        _check_bytes(plan, s)
    assert touched == set(range(len(plan.values)))
    for v in plan.values:
        assert (v.first is None) == (v.last is None)
        if v.space == "arena":
            assert v.first is not None
            assert 0 <= v.offset <= v.offset + v.bytes <= plan.arena_bytes


def _check_bytes(plan: PlanOutline, s: StepOutline) -> None:
    """A kernel touches no more of a value or weight than there is; other steps tell nothing."""
    values = [plan.values[n] for n in (*s.reads, *s.writes)]
    operands = [*values, *(plan.weights[n] for n in s.weights)]
    assert len(s.touched) == (0 if s.kernel is None else len(operands))
    assert all(0 <= x <= o.bytes for x, o in zip(s.touched, operands, strict=False))


def _shares(plan: PlanOutline) -> list[tuple[str, str]]:
    """Values of the arena that have bytes in common while both live."""
    inside = [v for v in plan.values if v.space == "arena" and v.bytes]
    return [
        (a.name, b.name)
        for a, b in combinations(inside, 2)
        if a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
        # Both are there at one time.
        if a.first is not None and b.first is not None and a.last is not None and b.last is not None
        if a.first <= b.last and b.first <= a.last
    ]


@examples(100)
@given(graphs())
def test_what_steps_touch_lives_meanwhile(graph: Graph) -> None:
    found = built(plan_or_reject(graph))
    check(found)
    for plan in found.outline.plans:
        if not any(s.kind in {"join", "scatter"} for s in plan.steps):
            assert _shares(plan) == []


def test_a_kernel_reads_and_writes_its_values() -> None:
    found = built(decide(optimize(parse(PRODUCT)), NATIVE))
    check(found)
    (plan,) = found.outline.plans
    by_name = {v.name: v for v in plan.values}
    assert {"x", "w", "z"} <= by_name.keys()
    assert by_name["x"].extents == {"i": 7, "k": 30}
    assert (by_name["x"].space, by_name["x"].first) == ("input", None)
    assert (by_name["z"].space, by_name["z"].last) == ("output", plan.end)
    assert plan.steps[0].kind == "products"
    assert "sum{k} %x[i, k] * %w[j, k]" in "\n".join(plan.steps[0].nests)
    assert all(f.cycles >= f.computing > 0 and f.bound_by for f in found.facts)
    assert found.outline.machine["vector_bits"] == NATIVE.vector_bits


def test_estimates_are_those_of_the_machine() -> None:
    plan = decide(optimize(parse(PRODUCT)), V4)
    wide, narrow = (Builder(plan, m, "m", 1, code=False).build().facts for m in (V4, V3))
    assert sum(f.cycles for f in wide) < sum(f.cycles for f in narrow)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("sum{k} %x[i, k] * %w[j, k]", "products"),
        ("sum{k} %x[i, k] + %w[j, k]", "reduction"),
        ("sum{k} %x[i, k] * 2.0 + %w[j, k]", "reduction"),
        ("max{k} %x[i, k] * %w[j, k]", "reduction"),
        ("%x[i, k=0] * %w[j, k=1]", "elementwise"),
        ("%w[j, k=3]", "copy"),
        ("%w[j, k=%p[i]]", "gather"),
    ],
)
def test_kinds_of_kernels(expression: str, kind: str) -> None:
    graph = parse(
        f"""
graph "kind"
dims i = 7, j = 11, k = 5
%x : f32{{i,k}} = input "x" [i, k]
%w : f32{{j,k}} = input "w" [j, k]
%p : i64{{i}} = input "p" [i]
%y : f32{{i,j}} = {expression}
output "y" [i, j] = %y
"""
    )
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    assert kind_of((nest,)) == kind


def test_an_outline_of_no_steps() -> None:
    outline = Outline({"cores": 1}, (PlanOutline("", 0, 1, (), (), ()),))
    assert read_outline(outline.facts()) == outline
    assert replace(outline, plans=()).facts() == {"machine": {"cores": 1}, "plans": ()}


@pytest.mark.parametrize("name", NETWORKS)
def test_outlines_of_networks(name: str) -> None:
    found = built(decide(optimize(graph_of(name)), NATIVE))
    check(found)
    for plan in found.outline.plans:
        if not any(s.kind in {"join", "scatter"} for s in plan.steps):
            assert _shares(plan) == []
