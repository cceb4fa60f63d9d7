"""What lies near has memory for one index of a dim: code for it reads nothing of the others."""

import numpy as np
import pytest

from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_near
from tests.kernels import Case
from tests.machines import on_machines

SIZES = {"n": 2, "y": 9, "ky": 3, "c": 16, "o": 32}
SUMS = {
    "one element for all lanes": "sum{c,ky} %x[n, c, y=y+4*ky-4 else 0.0] * %w[c, ky, o]",
    "a vector of neighbours": "sum{ky} %x[n, c=o//2, y=y+4*ky-4 else 0.0] * %w[c=0, ky, o]",
}


@on_machines
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("element", SUMS.values(), ids=SUMS)
def test_an_image_alone_is_read(machine: Machine, element: str, rows_last: bool) -> None:
    graph = parse(f"""
        graph "images"
        dims {", ".join(f"{d} = {n}" for d, n in SIZES.items())}
        %x : f32{{c,n,y}} = input "x" [n, y, c]
        %w : f32{{c,ky,o}} = input "w" [ky, c, o]
        %r : f32{{n,o,y}} = {element}
        output "r" [n, y, o] = %r
        """)
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    layouts = {
        "x": dense(["n", "c", "y"] if rows_last else ["n", "y", "c"], SIZES),
        "w": dense(["ky", "c", "o"], SIZES),
        "r": dense(["n", "y", "o"], SIZES),
    }
    case = Case(graph, Group("g", nests, ("n", "y", "o"), ("r",)), layouts, True, 0)
    steps = "mark(n, parallel); split(o, 16); tile([o.i], [vector])"
    kernel = apply_schedule(case.kernel(), parse_schedule(steps))
    arrays = case.arrays()
    memory = case.memory(arrays, kernel)
    run_near(kernel, machine, memory, "x", SIZES["n"])
    last = np.transpose(arrays["r"], [0, 2, 1])[-1].ravel()
    np.testing.assert_array_equal(memory["r"][-last.size :], last)
