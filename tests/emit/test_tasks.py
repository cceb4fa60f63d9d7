"""Tasks of which only the run knows how many there are: any part of them, without remainders."""

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule
from rutc.tensor_ir.textual.parse import parse
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, on_machines

SOURCE = """
graph "sums of boxes"
symbols b = 0..9, h = 0..9, w = 0..9
dims i = b, j = h, k = w, c = 3
%x : f32{c,i,j,k} = input "x" [i, j, k, c]
%y : f32{i,j,k} = sum{c} %x[c, i, j, k]
output "y" [i, j, k] = %y
"""


def summed() -> Kernel:
    graph = parse(SOURCE)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    layouts = {v: dense(order, graph.extents) for v, order in (("x", "ijkc"), ("y", "ijk"))}
    group = Group("g", (nest,), ("i", "j", "k"), ("y",))
    kernel = lower(group, graph.values, layouts, graph.extents, dict(graph.symbols))
    shared = "mark(i, parallel); mark(j, parallel); mark(k, parallel)"
    return apply_schedule(kernel, parse_schedule(shared))


@on_machines
@pytest.mark.parametrize("parts", [1, 2, 5, 7])
def test_any_part_of_the_tasks_is_done(machine: Machine, parts: int) -> None:
    kernel = summed()
    for b, h, w in ((1, 1, 1), (2, 3, 5), (1, 7, 1), (3, 1, 2), (4, 9, 1), (0, 2, 3), (2, 0, 3)):
        x = np.random.default_rng(0).integers(-9, 9, (b, h, w, 3)).astype(np.float32)
        y = np.full(b * h * w, 100, np.float32)
        run_kernel(kernel, machine, {"x": x.reshape(-1), "y": y}, {"b": b, "h": h, "w": w}, parts)
        np.testing.assert_array_equal(y.reshape(b, h, w), x.sum(axis=3))


def test_which_iterations_a_task_is_takes_no_remainder() -> None:
    """Loops count them: only where a part of the tasks begins and ends is divided out."""
    assert "rem i64" not in emit_kernel(summed(), V3).text
