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
