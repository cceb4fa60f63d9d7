"""Divisions by symbols: outside of loops, and seen through where no tile of rows is computed."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import V4, on_machines
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
graph "rows of any number"
symbols rows = 1..512
dims c = 192, i = 64, m = rows
%w : f32{c,i} = input "w" [i, c]
%x : f32{i,m} = input "x" [m, i]
%y : f32{c,m} = sum{i} %w[c, i] * %x[i, m]
%z : f32{m} = sum{i} exp(%x[i, m])
output "y" [m, c] = %y
output "z" [m] = %z
"""


def emitted(out: str, limits: tuple[int, int]) -> str:
    """The code of one of the nests, for numbers of rows within these limits."""
    graph = parse(SOURCE.replace("1..512", f"{limits[0]}..{limits[1]}"))
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest) and n.out.name == out)
    orders = {"w": "ic", "x": "mi", "y": "mc", "z": "m"}
    layouts = {v: dense(tuple(order), graph.extents) for v, order in orders.items()}
    group = Group("g", (nest,), tuple(d for d in "mc" if d in nest.dims), frozenset({out}))
    kernel = lower(group, graph.values, layouts, graph.extents, {"rows": limits})
    scheduled = apply_schedule(kernel, choose(kernel, V4, frozenset({"w"})).schedule)
    return emit_kernel(scheduled, V4).text


@pytest.mark.parametrize(("out", "hidden"), [("y", True), ("z", False)])
def test_quotients_are_hidden_in_tiles_of_rows(out: str, hidden: bool) -> None:
    assert (" asm " in emitted(out, (1, 512))) == hidden


@pytest.mark.parametrize("limits", [(1, 512), (0, 1 << 31)])
def test_what_reductions_ask_for_takes_no_division_in_their_loops(limits: tuple[int, int]) -> None:
    """Also where there may be no rows, and a quotient by their number is not always one."""
    blocks = re.split(r"\n(?=[\w.]+:)", emitted("y", limits))
    asking = [block for block in blocks if "prefetch" in block and "fma" in block]
    assert asking
    assert not any("udiv" in block for block in asking)


@on_machines
@pytest.mark.parametrize(
    ("columns", "divided"), [(160, False), (48, False), (16, False), (2, True), (37, False)]
)
def test_vectors_that_lie_in_two_rows_at_most_divide_for_no_lane(
    columns: int, divided: bool, machine: Machine
) -> None:
    """Each of the vectors of a block, of which the rows are no multiples."""
    kernel = kernel_of(
        f"""
        graph "triangle"
        dims a = 5, b = {columns}
        %x : f32{{a,b}} = input "x" [a, b]
        %y : f32{{a,b}} = select(index(b - a) > 0, %x[a, b], -1.0)
        output "y" [a, b] = %y
        """
    )
    steps = "fuse(a, b, ab); split(ab, 64); peel(ab.o); mark(ab.i, vector)"
    kernel = apply_schedule(kernel, parse_schedule(steps))
    assert bool(re.search(r"[us](div|rem) <", emit_kernel(kernel, machine).text)) == divided
    x = np.random.default_rng(1).standard_normal(5 * columns).astype(np.float32)
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros_like(x)})
