"""Arms of a choice ask for what the next ones read, where the second cache does not hold it."""

from dataclasses import replace
from random import Random

import pytest

from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import PrefetchReads, apply_schedule
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces
from rutc.tuner.templates.pointwise import Form, Pointwise
from tests.machines import on_machines, runnable
from tests.tuner.subjects import of_text
from tests.tuner.test_tiles import kernel_of

TRANSFORMED = """
graph "tiles"
dims t = 13, u = 11, p = 4, c = {c}, y = 28, x = {x}
%a : f32{{c,x,y}} = input "a" [y, x, c]
%r : f32{{c,p,t,u}} = select(index(p) == 0, %a[y=2*t, x=2*u, c] - %a[y=2*t, x=2*u + 2, c], \
select(index(p) == 1, %a[y=2*t, x=2*u + 1, c], %a[y=2*t, x=2*u + 2, c] * %a[y=2*t, x=2*u + 3, c]))
output "r" [t, u, p, c] = %r
"""
"""Four elements of a row are read together; two of them by the next tile as well."""


@on_machines
@pytest.mark.parametrize("c", [32, 24, 37])
def test_arms_ask_for_what_the_second_cache_does_not_hold(machine: Machine, c: int) -> None:
    found = of_text(TRANSFORMED.format(c=c, x=24), frozenset(), Random(0))
    bytes_read = 28 * 24 * c * 4
    near, far = replace(machine, l2=2 * bytes_read), replace(machine, l2=bytes_read)
    asked = PrefetchReads("a", "u", machine.line_bytes // 4, 1)
    assert asked not in choose(found.kernel, near, found.free).schedule
    choice = choose(found.kernel, far, found.free)
    assert asked in choice.schedule
    assert "prefetch %a @" in str(apply_schedule(found.kernel, choice.schedule))
    found.run(choice, far, 1 if runnable(machine) else None)


@on_machines
def test_what_would_not_stay_until_it_is_read_is_not_asked_for(machine: Machine) -> None:
    """What one iteration reads of each row is as long as the second cache is."""
    found = of_text(TRANSFORMED.format(c=640, x=24), frozenset(), Random(0))
    small = replace(machine, l2=1 << 14)
    steps = choose(found.kernel, small, found.free).schedule
    assert not any(isinstance(s, PrefetchReads) for s in steps)


@on_machines
@pytest.mark.parametrize(
    ("symbols", "x", "asks"), [("", "24", True), ("width = 24..9999", "width", False)]
)
def test_rows_are_asked_for_where_their_places_are_known(
    machine: Machine, symbols: str, x: str, asks: bool
) -> None:
    """Where a run chooses how far rows are apart, their places take long to find."""
    text = TRANSFORMED.format(c=32, x=x)
    kernel = kernel_of(text.replace("\ndims", f"\nsymbols {symbols}\ndims") if symbols else text)
    steps = choose(kernel, replace(machine, l2=1 << 15), frozenset()).schedule
    assert any(isinstance(s, PrefetchReads) for s in steps) == asks


@on_machines
def test_searches_try_arms_that_ask_for_nothing(machine: Machine) -> None:
    found = of_text(TRANSFORMED.format(c=32, x=24), frozenset(), Random(0))
    far = replace(machine, l2=1 << 15)
    (space,) = spaces(found.kernel, far, found.free)
    assert space.default is not None
    point = space.default.point
    assert isinstance(point, Pointwise)
    assert (point.form, point.prefetch) == (Form.ARMS, True)
    silent = space.choice(replace(point, prefetch=False))
    asking = space.choice(point)
    assert [s for s in asking.schedule if not isinstance(s, PrefetchReads)] == [*silent.schedule]
    assert asking != silent
