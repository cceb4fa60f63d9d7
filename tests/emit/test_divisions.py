"""Divisions by symbols: LLVM sees through them where no tile of rows is computed."""

import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from tests.machines import V4

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


@pytest.mark.parametrize(("out", "hidden"), [("y", True), ("z", False)])
def test_quotients_are_hidden_in_tiles_of_rows(out: str, hidden: bool) -> None:
    graph = parse(SOURCE)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest) and n.out.name == out)
    orders = {"w": "ic", "x": "mi", "y": "mc", "z": "m"}
    layouts = {v: dense(tuple(order), graph.extents) for v, order in orders.items()}
    group = Group("g", (nest,), tuple(d for d in "mc" if d in nest.dims), frozenset({out}))
    kernel = lower(group, graph.values, layouts, graph.extents, {"rows": (1, 512)})
    scheduled = apply_schedule(kernel, choose(kernel, V4, frozenset({"w"})).schedule)
    text = emit_kernel(scheduled, V4).text
    assert (" asm " in text) == hidden
