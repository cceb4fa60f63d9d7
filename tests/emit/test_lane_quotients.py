"""Quotients of places along lanes: in 32 bits where no number is larger, but for shifts.

Lanes that go on once at most are not divided (test_seams.py).
"""

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
    dims a = 5, b = {size}
    %x : f32{{a,b}} = input "x" [a, b]
    %y : f32{{a,b}} = %x[a, b={place}]
    output "y" [a, b] = %y
"""


@on_machines
@pytest.mark.parametrize("size", [13, 37])
@pytest.mark.parametrize(
    ("place", "bits"),
    [
        ("(3*b + 5*a) // 7", 32),
        ("(19*b + a) % {size}", 32),
        ("(10000007*b + a) // 10000009", 32),
        ("(2147483649*b + a) // 2147483651", 64),
        ("(b + 3) // 4", None),
    ],
)
def test_quotients_along_lanes(machine: Machine, place: str, bits: int | None, size: int) -> None:
    kernel = kernel_of(SOURCE.format(place=place.format(size=size), size=size))
    kernel = apply_schedule(kernel, parse_schedule("split(b, 16); mark(b.i, vector)"))
    text = emit_kernel(kernel, machine).text
    found = set(map(int, re.findall(r"u(?:div|rem) <\d+ x i(\d+)>", text)))
    assert found == {bits} if bits is not None else 32 not in found
    x = np.random.default_rng(1).standard_normal(5 * size).astype(np.float32)
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros_like(x)})
