"""Default schedules that estimates prefer to those that templates like: they compute the same."""

from dataclasses import replace
from random import Random

import pytest

from rutc.tensor_ir.machine import Machine
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces, usual
from rutc.tuner.templates.pointwise import Form, Pointwise
from tests.machines import V3, V4, on_machines, runnable
from tests.tuner.subjects import Subject, of_text

BOXES = """
graph "boxes"
dims c = 3, p = 61, q = 61, y = 28, x = 28, ky = 7, kx = 7
%v : u8{c,p,q} = input "v" [c, p, q]
%o : i32{y,x} = sum{c,ky,kx} i32(%v[c, p=2*y+ky, q=2*x+kx])
output "o" [y, x] = %o
"""
"""Sums of short rows, seven bytes of which are read: lanes along them are idle for the most part."""
PLACES = """
graph "places"
dims i = 37, j = 53, c = 2
%v : f32{j,i,c} = input "v" [j, i, c]
%o : f32{i,j} = (%v[j, i, c=1] + 1.0) * 0.5
output "o" [i, j] = %o
"""
"""Every other number along memory, stored across it."""
BYTES = """
graph "bytes"
dims c = {c}, p = {p}
%v : u8{{c,p}} = input "v" [c, p]
%o : u8{{c,p}} = %v[c, p]
output "o" [p, c] = %o
"""


def subject(text: str) -> Subject:
    return of_text(text, frozenset(), Random(0))


def run(found: Subject, machine: Machine) -> None:
    choice = choose(found.kernel, machine, found.free)
    found.run(choice, machine, 1 if runnable(machine) else None)


def test_sums_of_short_rows_have_lanes_beside_each_other() -> None:
    found = subject(BOXES)
    own = spaces(found.kernel, V3, found.free)
    tiled, rows = own[-2:]
    assert tiled.default is not None
    assert rows.default is not None
    assert (tiled.default.liked, tiled.default.weighed) == (False, True)
    space, point = usual(own) or (None, None)
    assert (space, point) == (tiled, tiled.default.point)
    assert tiled.cycles(point) < rows.cycles(rows.default.point)
    # Where a schedule has to gain all that the other takes, none is preferred.
    plans = replace(V3.coefficients.plans, least_gain=1.0)
    strict = replace(V3, coefficients=replace(V3.coefficients, plans=plans))
    space, _ = usual(spaces(found.kernel, strict, found.free)) or (None, None)
    assert space is not None
    assert space.template.name == "rows"


@on_machines
def test_sums_of_short_rows(machine: Machine) -> None:
    run(subject(BOXES), machine)


@on_machines
def test_loads_in_steps_are_turned_in_squares(machine: Machine) -> None:
    found = subject(PLACES)
    space, point = usual(spaces(found.kernel, machine, found.free)) or (None, None)
    assert space is not None
    assert space.default is not None
    assert space.default.point.form is Form.VECTORS
    assert isinstance(point, Pointwise)
    assert (point.form, point.order) == (Form.SQUARES, ("j", "i"))
    run(found, machine)


@on_machines
@pytest.mark.parametrize(("c", "p"), [(1024, 196), (128, 196), (512, 50), (61, 37), (5, 1)])
def test_squares_follow_one_another_as_estimates_tell(machine: Machine, c: int, p: int) -> None:
    found = subject(BYTES.format(c=c, p=p))
    (space,) = spaces(found.kernel, machine, found.free)
    assert space.default is not None
    chosen = usual((space,))
    assert chosen is not None
    first = space.cycles(space.default.point)
    least = (1 - machine.coefficients.plans.least_gain) * first
    clear = [r for r in space.default.rivals if space.cycles(r) < least]
    assert chosen[1] == (clear[0] if clear else space.default.point)
    if space.default.point.form is Form.SQUARES:
        (rival,) = space.default.rivals
        assert rival.order[::-1] == space.default.point.order
    run(found, machine)
