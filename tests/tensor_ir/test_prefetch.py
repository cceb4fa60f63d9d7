"""Prefetching in loops of symbolic extent: a whole block is asked for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product

import pytest

from rutc.tensor_ir import Nest
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Prefetch, Stmt
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.statements import walk_loops, walk_stmts
from rutc.tensor_ir.steps import BlockReduction, Part, PrefetchBlock, Split, Step, Tile
from rutc.tensor_ir.steps.text import parse_schedule, print_schedule
from rutc.tensor_ir.textual.parse import parse

SOURCE = """
graph "a product for any number of rows of any batch"
symbols batch = 1..8, rows = 1..512
dims b = 7, c = 128, n = batch, h = HEADS, m = rows, i = 7
%w : f32{b,c,i} = input "w" [b, i, c]
%x : f32{h,i,m,n} = input "x" [n, h, m, i]
%y : f32{b,c,h,m,n} = sum{i} %w[b, c, i] * %x[h, i, m, n]
output "y" [b, n, h, m, c] = %y
"""


def hints(body: Iterable[Stmt], point: Mapping[str, int]) -> list[Prefetch]:
    """The hints that are given at a point of the loops inside."""
    found = []
    for s in body:
        if isinstance(s, Branch):
            taken = s.left.evaluate(point) < s.right.evaluate(point)
            found += hints(s.then if taken else s.orelse, point)
        elif isinstance(s, Loop) and s.var not in point and s.kind is Kind.SERIAL:
            for i in range(int(s.lo.evaluate(point)), int(s.hi.evaluate(point))):
                found += hints(s.body, {**point, s.var: i})
        elif isinstance(s, Loop):
            found += hints(s.body, point)
        elif isinstance(s, Prefetch):
            found.append(replace(s, address=Index.of(int(s.address.evaluate(point)))))
    return found


def scheduled(source: str, orders: Mapping[str, str], steps: Iterable[Step]) -> Kernel:
    """The kernel of a graph's nest, whose values' dims lie in these orders, after some steps.

    The last value is what it stores.
    """
    graph = parse(source)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    extents = graph.extents
    layouts = {value: dense(tuple(order), extents) for value, order in orders.items()}
    stored = list(orders)[-1]
    group = Group("g", (nest,), tuple(orders[stored]), frozenset({stored}))
    kernel = lower(group, graph.values, layouts, extents)
    for step in steps:
        kernel = step.apply(kernel)
    return kernel


def asking(heads: int, columns: int = 128) -> Kernel:
    """The product with as many heads and columns, asking for the block to come."""
    layouts = {"w": "bic", "x": "nhmi", "y": "bnhmc"}
    steps = (Tile(("c",), (Kind.VECTOR,)), PrefetchBlock("w", "b", 0, 16))
    source = SOURCE.replace("HEADS", str(heads)).replace("128", str(columns))
    return scheduled(source, layouts, steps)


@pytest.mark.parametrize(
    ("batch", "heads", "rows", "most"),
    [
        (1, 1, 2, 4),
        (1, 3, 1, 3),
        (3, 1, 2, 2),
        (1, 3, 2, 2),
        (4, 1, 2, 1),
        (5, 3, 9, 1),
    ],
)
def test_iterations_of_all_loops_share_what_is_asked_for(
    batch: int, heads: int, rows: int, most: int
) -> None:
    kernel = asking(heads)
    (rows_loop,) = (s for s in walk_loops(kernel.body) if s.var == "m")
    block, asked, at_once = 7 * 128, [], 0
    for n, h, m, i in product(range(batch), range(heads), range(rows), range(7)):
        point = {"batch": batch, "rows": rows, "b": 2, "n": n, "h": h, "m": m, "i": i}
        given = hints(rows_loop.body, point)
        asked += [int(hint.address.evaluate(point)) for hint in given]
        at_once = max(at_once, len(given))
    assert at_once == most
    lines = {3 * block + 16 * line for line in range(block // 16)}
    assert {place // 16 * 16 for place in asked} >= lines
    assert max(asked) < 4 * block + batch * heads * rows * 7


def test_what_is_read_once_from_one_end_to_the_other_is_not_asked_for() -> None:
    (rows_loop,) = (s for s in walk_loops(asking(1).body) if s.var == "m")
    for i in range(7):
        point = {"batch": 1, "rows": 1, "b": 2, "n": 0, "h": 0, "m": 0, "i": i}
        assert not hints(rows_loop.body, point)


@pytest.mark.parametrize(
    ("length", "part", "asked"), [(64, 16, True), (64, 8, True), (64, 4, True), (16, 8, False)]
)
def test_rows_whose_lines_are_read_in_turn_are_asked_for(
    length: int, part: int, *, asked: bool
) -> None:
    """Lanes lie in rows of their own: first all take some of their first line, and so on."""
    source = SOURCE.replace("HEADS", "1").replace("i = 7", f"i = {length}")
    steps = (Tile(("c",), (Kind.VECTOR,)), Split("i", part), PrefetchBlock("w", "b", 0, 16))
    kernel = scheduled(source, {"w": "bci", "x": "nhmi", "y": "bnhmc"}, steps)
    (rows_loop,) = (s for s in walk_loops(kernel.body) if s.var == "m")
    point = {"batch": 1, "rows": 1, "b": 2, "n": 0, "h": 0, "m": 0}
    assert bool(hints(rows_loop.body, point)) == asked


@pytest.mark.parametrize(("rows", "asked"), [(0, False), (3, False), (2, True), (1, True)])
def test_tiles_of_many_rows_ask_for_what_is_read_once(rows: int, *, asked: bool) -> None:
    """Their arithmetic takes as long as memory does, which the hardware asks too late."""
    layouts = {"w": "bic", "x": "nmhi", "y": "bnmhc"}
    source = SOURCE.replace("HEADS", "2")
    tile = Tile(("h", "c"), (Kind.UNROLL, Kind.VECTOR))
    steps = (tile, PrefetchBlock("w", "b", 0, 16, rows=rows))
    kernel = scheduled(source, layouts, steps)
    (rows_loop,) = (s for s in walk_loops(kernel.body) if s.var == "m")
    found = []
    for i in range(7):
        point = {"batch": 1, "rows": 1, "b": 2, "n": 0, "m": 0, "i": i}
        found += hints(rows_loop.body, point)
    assert bool(found) == asked


def test_schedules_tell_rows_that_ask_only_where_some_do() -> None:
    for step in (PrefetchBlock("w", "b", 0, 16), PrefetchBlock("w", "b", 0, 16, 2, 5)):
        assert parse_schedule(print_schedule((step,))) == (step,)
    assert str(PrefetchBlock("w", "b", 0, 16)) == "prefetch_block(w, b, 0, 16, 2)"


def test_what_is_read_again_is_asked_for() -> None:
    """Loops of known length inside of the rows read all of it three times."""
    layouts = {"w": "bic", "x": "nmhi", "y": "bnmhc"}
    steps = (Tile(("c",), (Kind.VECTOR,)), PrefetchBlock("w", "b", 0, 16))
    kernel = scheduled(SOURCE.replace("HEADS", "3"), layouts, steps)
    (heads_loop,) = (s for s in walk_loops(kernel.body) if s.var == "h")
    point = {"batch": 1, "rows": 1, "b": 2, "n": 0, "h": 0, "m": 0, "i": 0}
    assert hints(heads_loop.body, point)


def test_iterations_that_ask_for_several_lines_each_all_ask() -> None:
    """Memory is never idle for a part of them."""
    kernel = asking(1)
    (rows_loop,) = (s for s in walk_loops(kernel.body) if s.var == "m")
    for i in range(7):
        for m in range(3):
            point = {"batch": 1, "rows": 3, "b": 2, "n": 0, "h": 0, "m": m, "i": i}
            assert len(hints(rows_loop.body, point)) == 3


def test_few_and_many_iterations_share_a_loop() -> None:
    (inner,) = (s for s in walk_loops(asking(1).body) if s.var == "i")
    test, *rest = inner.body
    assert isinstance(test, Branch)
    assert [type(s) for s in test.orelse] == [Prefetch]
    assert [type(s) for s in rest] == [Loop]


def test_a_block_of_many_lines_takes_no_more_code() -> None:
    """Tiles of all numbers of rows have a copy of what asks."""
    counts = {
        sum(1 for _ in walk_stmts(asking(1, columns).body)) for columns in (127, 128, 4096, 65536)
    }
    assert len(counts) == 1


PLANES = """
graph "windows along some rows of planes"
dims c = 5, y = 4, x = 16, k = 2, h = 64, w = 16
%a : f32{c,h,w} = input "a" [c, h, w]
%b : f32{c,x,y} = max{k} %a[c, h=2*y+k, w=x]
output "b" [c, y, x] = %b
"""


@pytest.mark.parametrize("before", [(), (Part("y", (1,)),)])
def test_only_what_is_touched_of_a_block_is_asked_for(before: tuple[Step, ...]) -> None:
    steps = (*before, Tile(("x",), (Kind.VECTOR,)), PrefetchBlock("a", "c", 0, 16))
    kernel = scheduled(PLANES, {"a": "chw", "b": "cyx"}, steps)
    (block,) = (s for s in walk_loops(kernel.body) if s.var == "c")
    asked = {
        int(hint.address.evaluate({"c": 1, "y": y, "k": k}))
        for y, k in product(range(4), range(2))
        for hint in hints(block.body, {"c": 1, "y": y, "k": k})
    }
    # 8 of the plane's 64 rows are read.
    assert asked == {2 * 64 * 16 + 16 * row for row in range(8)}


PRODUCT = """
graph "a product whose sums are made in blocks"
dims k = 64, m = 12, c = 16
%x : f32{k,m} = input "x" [m, k]
%w : f32{c,k} = input "w" [k, c]
%y : f32{c,m} = sum{k} %x[k, m] * %w[c, k]
output "y" [m, c] = %y
"""


def test_a_block_is_asked_for_where_its_sums_are_made_not_where_they_are_added() -> None:
    steps = (
        Split("m", 4),
        BlockReduction("k", 16, "m.o", "y"),
        Tile(("m.i", "c"), (Kind.UNROLL, Kind.VECTOR)),
        PrefetchBlock("w", "k.b", 0, 16),
    )
    kernel = scheduled(PRODUCT, {"x": "mk", "w": "kc", "y": "mc"}, steps)
    loops = {s.var: s for s in walk_loops(kernel.body)}
    assert not hints([s for s in loops["m.o"].body if s is not loops["k"]], {"k.b": 1, "m.o": 0})
    asked = []
    for m, k in product(range(3), range(16)):
        given = hints(loops["k"].body, {"k.b": 1, "m.o": m, "k": k})
        assert len(given) == 1
        asked += [int(hint.address.evaluate({"k.b": 1, "m.o": m, "k": k})) for hint in given]
    assert {place // 16 for place in asked} >= set(range(32, 48))
