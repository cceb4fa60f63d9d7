"""Estimates of whole plans: every launch, as often as it runs, operands from where they are."""

from rutc.driver.plans.estimates import PlanEstimate, estimate_plan
from rutc.tensor_ir.machine import Machine
from tests.graph_opt.plans import plan_of
from tests.machines import V4

LAYERS = """
graph "layers"
dims i = 32, a = 256, b = 512
%x : f32{i,a} = input "x" [i, a]
%v : f32{a,b} = input "v" [a, b]
%w : f32{a,b} = input "w" [b, a]
%h : f32{i,b} = sum{a} %x[i, a] * %v[a, b]
%y : f32{i,a} = sum{b} %h[i, b] * %w[a, b]
output "y" [i, a] = %y
"""


def estimated(text: str, machine: Machine = V4) -> PlanEstimate:
    return estimate_plan(plan_of(text), machine)


def test_all_launches_are_there() -> None:
    found = estimated(LAYERS)
    assert len(found.launches) == 2
    assert all(x.runs == 1 for x in found.launches)
    peak = 2 * 32 * 256 * 512 / V4.width / V4.fma_per_cycle
    assert peak < found.cycles < 3 * peak
    assert all(x.name in str(found) for x in found.launches)


def test_launches_that_touch_some_values_are_estimated_alone() -> None:
    plan = plan_of(LAYERS)
    whole = estimate_plan(plan, V4)
    for name, reading in (("v", {"v"}), ("w", {"w"})):
        some = estimate_plan(plan, V4, reading=frozenset(reading))
        assert some.launches == tuple(x for x in whole.launches if name in x.values)
        assert len(some.launches) == 1
    assert estimate_plan(plan, V4, reading=frozenset({"h"})) == whole
    assert not estimate_plan(plan, V4, reading=frozenset()).launches


def test_weights_come_from_where_they_fit() -> None:
    """What a run touches is larger than the second cache, and smaller than the last one."""
    large = LAYERS.replace("a = 256, b = 512", "a = 1024, b = 2048")
    from_last = estimated(large, V4)
    assert all(x.estimate.bytes["last cache"] >= 8 << 20 for x in from_last.launches)
    assert all(x.estimate.bytes["memory"] == 0 for x in from_last.launches)
