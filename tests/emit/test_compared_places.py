"""Places along lanes that are compared with literals: in 32 bits where none is farther."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
    graph "places"
    dims a = 5, b = 37
    %x : f32{{a,b}} = input "x" [a, b]
    %y : f32{{a,b}} = select(index({place}) {order} {value}, %x[a, b], -1.0)
    output "y" [a, b] = %y
"""


@on_machines
@pytest.mark.parametrize("order", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize(
    ("place", "value", "narrow"),
    [
        ("b - a", "3", True),
        ("7 - 3*b + 100*a", "-11", True),
        ("b*b - a", "3", False),
        ("b // 5 - a", "2", False),
        ("2147483600*a + b", "2147483607", False),
        ("b + 2147483640", "2147483650", False),
        ("1073741824*b - a", "1073741822", False),
    ],
)
def test_places_compared_with_literals(
    machine: Machine, place: str, value: str, order: str, narrow: bool
) -> None:
    kernel = kernel_of(SOURCE.format(place=place, value=value, order=order))
    kernel = apply_schedule(kernel, parse_schedule("split(b, 16); mark(b.i, vector)"))
    text = emit_kernel(kernel, machine).text
    assert bool(re.search(r"icmp \w+ <\d+ x i64>", text)) != narrow
    x = np.random.default_rng(1).standard_normal(5 * 37).astype(np.float32)
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros_like(x)})


@on_machines
def test_lanes_that_are_inside_are_not_tested(machine: Machine) -> None:
    text = """
        graph "rows"
        dims c = 6, c2 = 3, h = 8, w = 56
        %a : f32{c2,h,w} = input "a" [c2, h, w]
        %b : f32{c2,h,w} = input "b" [c2, h, w]
        %j : f32{c,h,w} = select(index(c - 3) < 0, %a[c2=c, h, w else 0], %b[c2=c - 3, h, w else 0])
        output "j" [c, h, w] = %j
    """
    steps = "fuse(h, w, r); split(r, 32); mark(r.i, vector); part(c, [3])"
    kernel = apply_schedule(kernel_of(text), parse_schedule(steps))
    assert "icmp sle <" not in emit_kernel(kernel, machine).text
    assert "icmp sge <" not in emit_kernel(kernel, machine).text
    a = np.arange(3 * 8 * 56, dtype=np.float32)
    run_as_interpreted(kernel, machine, {"a": a, "b": -a, "j": np.zeros(6 * 8 * 56, np.float32)})
