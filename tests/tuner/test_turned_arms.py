"""Arms of a choice that lie across the results' memory are turned in squares."""

from random import Random

import pytest

from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Overlap
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces
from tests.machines import V3, V4, on_machines, runnable
from tests.tuner.subjects import of_text

PHASES = """
graph "phases"
dims c = {c}, y = 6, x = {x}, p = 3, q = {q}
%a : f32{{c,p,q}} = input "a" [p, q, c]
%b : f32{{c,p,q}} = input "b" [p, q, c]
%d : f32{{c,p,q}} = input "d" [p, q, c]
%bias : f32{{c}} = input "bias" [c]
%r : f32{{c,x,y}} = {value} + %bias[c]
output "r" [c, y, x] = %r
"""
VALUE = (
    "select(index(x % 2) == 0, %a[p=y // 2, q=x // 2, c], "
    "select(index(y % 2) == 0, %b[p=y // 2, q=x // 2, c], %d[p=y // 2, q=x // 2, c]))"
)
"""What a transposed convolution in steps of two puts together: channels side by side, then rows."""


@on_machines
@pytest.mark.parametrize(
    ("c", "x", "turned"), [(32, 64, True), (40, 56, True), (17, 34, True), (32, 33, False)]
)
def test_arms_across_memory_are_turned_in_squares(
    machine: Machine, c: int, x: int, *, turned: bool
) -> None:
    text = PHASES.format(c=c, x=x, q=-(-x // 2), value=VALUE)
    found = of_text(text, frozenset(), Random(0))
    (space,) = spaces(found.kernel, machine, found.free)
    assert space.default is not None
    assert (space.default.point.order[-1] == "x") == turned
    choice = choose(found.kernel, machine, found.free)
    uneven = c % machine.width or (x // 2) % machine.width
    assert any(isinstance(s, Overlap) for s in choice.schedule) == bool(turned and uneven)
    found.run(choice, machine, 1 if runnable(machine) else None)


def test_arms_of_several_elements_have_lanes_as_these_lie() -> None:
    """Of a filter's outputs each is a sum of many: all would be turned for one store."""
    sums = "(%a[p=y // 2, q=x // 2, c] + %b[p=y // 2, q=x // 2, c])"
    value = f"select(index(x % 2) == 0, {sums}, {sums} * %d[p=y // 2, q=x // 2, c])"
    text = PHASES.format(c=32, x=64, q=32, value=value)
    found = of_text(text, frozenset(), Random(0))
    for machine in (V3, V4):
        (space,) = spaces(found.kernel, machine, found.free)
        assert space.default is not None
        assert space.default.point.order[-1] == "c"
