"""Prefetching in loops of symbolic extent: the first iterations together ask for a whole block."""

from itertools import product

import pytest

from rutc.tensor_ir import Nest
from rutc.tensor_ir.kernel import Branch, Loop, Prefetch, walk_stmts
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.steps import PrefetchBlock
from rutc.tensor_ir.steps.prefetch import TURNS

SOURCE = """
graph "a product for any number of rows of any batch"
symbols batch = 1..8, rows = 1..512
dims b = 7, c = 48, n = batch, h = 3, m = rows, i = 7
%w : f32{b,c,i} = input "w" [b, i, c]
%x : f32{h,i,m,n} = input "x" [n, h, m, i]
%y : f32{b,c,h,m,n} = sum{i} %w[b, c, i] * %x[h, i, m, n]
output "y" [b, n, h, m, c] = %y
"""


@pytest.mark.parametrize(("batch", "rows"), [(1, 5 * TURNS), (5, TURNS + 1), (TURNS, 1)])
def test_turns_are_counted_over_all_loops(batch: int, rows: int) -> None:
    graph = parse(SOURCE)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    extents = graph.extents
    layouts = {
        v: dense(tuple(d), extents) for v, d in (("w", "bic"), ("x", "nhmi"), ("y", "bnhmc"))
    }
    group = Group("g", (nest,), tuple("bnhmc"), frozenset({"y"}))
    kernel = PrefetchBlock("w", "b", 0, 16).apply(lower(group, graph.values, layouts, extents))
    (early,) = (s for s in walk_stmts(kernel.body) if isinstance(s, Branch))
    hints = [s for s in early.then if isinstance(s, Prefetch)]
    assert [s.var for s in walk_stmts(kernel.body) if isinstance(s, Loop)] == list("bnhmci")
    sizes = {"batch": batch, "rows": rows, "b": 2}
    points = [
        {**sizes, "n": n, "h": h, "m": m, "c": c, "i": i}
        for n, h, m, c, i in product(range(batch), range(3), range(rows), range(48), range(7))
    ]
    asking = [p for p in points if early.left.evaluate(p) < early.right.evaluate(p)]
    assert len(asking) <= 3 * TURNS * 48 * 7
    asked = [int(hint.address.evaluate(p)) for hint in hints for p in asking]
    block = 7 * 48
    assert {a // 16 for a in asked} >= {3 * block // 16 + line for line in range(block // 16)}
    assert 3 * block <= min(asked) <= max(asked) < 5 * block
