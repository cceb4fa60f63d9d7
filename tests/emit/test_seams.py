"""Lanes that are neighbours but for a seam, where a quotient of their place goes on once."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.facts.lane_runs import divided_along
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from rutc.tensor_ir.textual.parse import parse_index
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

ROWS, COLUMNS = 7, 67
RELATIVE = f"a=({COLUMNS}*a + b + {ROWS}) // {COLUMNS + 1}, "
SOURCE = """
    graph "rows"
    dims a = {rows}, b = {columns}
    %x : {type}{{a,b}} = input "x" [a, b]
    %y : {type}{{a,b}} = %x[{place}]
    output "y" [a, b] = %y
"""
PLACES = {
    "rolled": f"a, b=(b + 9*a + 5) % {COLUMNS}",
    "rolled back": f"a, b=(b - 9*a - 5) % {COLUMNS}",
    "reversed and rolled": f"a, b=(9*a - b) % {COLUMNS}",
    "reversed twice": f"a, b={COLUMNS - 1} - (9*a - b) % {COLUMNS}",
    "relative shift": f"{RELATIVE}b=(b - a + {ROWS}) % {COLUMNS + 1} - 1 else 3.0",
    "rows that may not exist": f"a=2*a - 5, b=(b + 3*a) % {COLUMNS} else 3.0",
    "two quotients": f"a=a - (b + 3) // 40, b=(b + 9*a + 5) % {COLUMNS} else 3.0",
    "short rows": f"a, b=(b + a) % 3 + (b + 2*a) // {COLUMNS}",
}
DTYPES = {"f32": np.float32, "f64": np.float64}
SEAMLESS = {"reversed and rolled", "short rows"}


@on_machines
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(PLACES))
@pytest.mark.parametrize("chunk", [16, 13])
def test_lanes_between_seams_are_neighbours(
    machine: Machine, name: str, dtype: str, chunk: int
) -> None:
    source = SOURCE.format(rows=ROWS, columns=COLUMNS, type=dtype, place=PLACES[name])
    schedule = parse_schedule(f"split(b, {chunk}); mark(b.i, vector); peel(b.o)")
    kernel = apply_schedule(kernel_of(source), schedule)
    text = emit_kernel(kernel, machine).text
    assert bool(re.search(r"^seam.quick", text, re.MULTILINE)) is (name not in SEAMLESS)
    if name != "short rows":
        assert not re.search(r"(?:div|rem) <", text)
    x = np.random.default_rng(1).standard_normal(ROWS * COLUMNS).astype(DTYPES[dtype])
    x[::11] = np.nan
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros_like(x)})


@pytest.mark.parametrize(
    ("place", "divided"),
    [
        ("v + 199*i - (v - i + 100) // 200", [("v - i + 100", 200)]),
        ("n*i + (v + 3) % n", [("v + 3", "n")]),
        ("2*((v + 3) % 200) - v", [("v + 3", 200)]),
        ("(v + 3) % 15", []),
        ("2*((v + 3) % 200)", []),
        ("(v*i) % 200", []),
        ("(3 - v) % 200", []),
        ("v + (3 // (v + 64))", []),
    ],
)
def test_what_lanes_divide(place: str, divided: list[tuple[str, int | str]]) -> None:
    ranges = {"v": (0, 7), "i": (0, 99), "n": (16, 99)}
    found = divided_along(parse_index(place), "v", 8, ranges)
    assert found == [(parse_index(num), Index.of(den)) for num, den in divided]
