"""Loops of symbolic extent in tiles of rows: the last ones even or overlapping, or all equal."""

import numpy as np
import pytest

from rutc.tensor_ir import Nest
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import (
    Balance,
    Even,
    Mark,
    NotApplicable,
    Overlap,
    Reorder,
    Split,
    Tile,
    apply_schedule,
    parse_schedule,
)
from rutc.tensor_ir.steps.tile import MOST_EXACT, numbers_of_rows, rows_apart
from rutc.tensor_ir.textual.parse import parse

pytestmark = pytest.mark.sampled(6)

MOST = 30


def kernel(least: int = 0, most: int = MOST, depth: int = 2, times: int = 1) -> Kernel:
    """%c{i,j} = sum{k} %a[i, k] * %b[k, j], with `least` to `most` times so many rows i."""
    graph = parse(
        f"""
        graph "product"
        symbols n = {least}..{most}
        dims i = {times}*n, j = 3, k = {depth}
        %a : f32{{i,k}} = input "a" [i, k]
        %b : f32{{j,k}} = input "b" [k, j]
        %c : f32{{i,j}} = sum{{k}} %a[i, k] * %b[j, k]
        output "c" [i, j] = %c
        """
    )
    extents = {d: plain(e) for d, e in graph.dims}
    axes = {"a": ("i", "k"), "b": ("k", "j"), "c": ("i", "j")}
    layouts = {v: dense(order, extents) for v, order in axes.items()}
    stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("product", stages, ("i", "j"), ("c",))
    return lower(group, graph.values, layouts, extents, dict(graph.symbols))


@pytest.mark.parametrize("factor", [2, 3, 5, 8, 9, 13, 20])
@pytest.mark.parametrize("end", ["even", "overlap"])
def test_every_row_is_computed_whatever_their_number(factor: int, end: str) -> None:
    check(0, MOST, factor, end)


def scheduled_product(rows: int, columns: int, steps: str) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel of a product computes with a schedule, and the product."""
    text = f"""
        graph "product"
        dims i = {rows}, j = {columns}, k = 6
        %a : f32{{i,k}} = input "a" [i, k]
        %b : f32{{j,k}} = input "b" [k, j]
        %c : f32{{i,j}} = sum{{k}} %a[i, k] * %b[j, k]
        output "c" [i, j] = %c
        """
    graph = parse(text)
    extents = {d: plain(e) for d, e in graph.dims}
    axes = {"a": ("i", "k"), "b": ("k", "j"), "c": ("i", "j")}
    layouts = {v: dense(order, extents) for v, order in axes.items()}
    stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("product", stages, ("i", "j"), ("c",))
    kernel = lower(group, graph.values, layouts, extents, {})
    made = apply_schedule(kernel, parse_schedule(steps))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((rows, 6), (6, columns)))
    found = {"a": a.ravel(), "b": b.ravel(), "c": np.zeros(rows * columns, np.float32)}
    interpret_kernel(made, found)
    return found["c"].reshape(rows, columns), a @ b


@pytest.mark.parametrize("end", ["even(i.o, 0)", "overlap([i.o])", "overlap([j.o])"])
@pytest.mark.parametrize("rows", [7, 10, 11])
def test_partial_sums_of_a_block_stay_where_they_are(rows: int, end: str) -> None:
    """Blocks that start earlier have them at the same places: 10 rows in threes are 3, 3, 2, 2."""
    steps = (
        "split(i, 3); split(j, 2); reorder([i.o, j.o, i.i, j.i]); "
        f"block_reduction(k, 2, j.o, acc0.0.partial); {end}"
    )
    found, product = scheduled_product(rows, 5, steps)
    np.testing.assert_array_equal(found, product)


@pytest.mark.parametrize("end", ["even(ij.o, 0)", "overlap([ij.o])"])
@pytest.mark.parametrize("rows", [8, 11, 14])
def test_remainders_move_with_the_block(rows: int, end: str) -> None:
    """In blocks of 6, columns i % 2 do not name the block, yet one that starts earlier has others.

    Blocks of 8 rows of 2 columns are 6, 5 and 5: two of them start at another column.
    """
    found, product = scheduled_product(rows, 2, f"fuse(i, j, ij); split(ij, 6); {end}")
    np.testing.assert_array_equal(found, product)


@pytest.mark.parametrize("factor", [2, 3, 5, 8, 9, 13])
@pytest.mark.parametrize("longer", [1, 2, 4])
@pytest.mark.parametrize("least", [0, 1])
def test_every_row_is_computed_by_a_longer_last_block(factor: int, longer: int, least: int) -> None:
    if longer < factor:
        check(least, 45, factor, "even", longer)


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [
        (0, []),
        (1, [1]),
        (8, [8]),
        (9, [9]),
        (10, [4, 6]),
        (16, [8, 8]),
        (17, [8, 9]),
        (18, [6, 6, 6]),
        (25, [8, 8, 9]),
        (26, [8, 6, 6, 6]),
        (33, [8, 8, 8, 9]),
    ],
)
def test_a_longer_last_block_takes_the_one_row_of_another(rows: int, blocks: list[int]) -> None:
    assert blocks_of(rows, 1) == blocks


def test_a_longer_last_block_is_needed_for_odd_numbers_of_rows_only() -> None:
    """Blocks of even numbers of rows, of which all numbers are even, are the same without it."""
    alike = {rows for rows in range(65) if blocks_of(rows, 0) == blocks_of(rows, 1)}
    assert alike >= set(range(0, 65, 2))
    assert not alike & {9, 17, 25, 33, 41, 49, 57}


def blocks_of(rows: int, longer: int) -> list[int]:
    """How many rows the blocks of about eight have."""
    scheduled = apply_schedule(kernel(0, 64), (Split("i", 8), Even("i.o", longer)))
    (outer,) = (s for s in walk_loops(scheduled.body) if s.var == "i.o")
    (inner,) = (s for s in walk_loops(scheduled.body) if s.var == "i.i")
    count = int(outer.hi.evaluate({"n": rows}))
    return [int(inner.hi.evaluate({"n": rows, "i.o": number})) for number in range(count)]


@pytest.mark.parametrize(
    ("factor", "longer", "times", "shortest"),
    # 12 rows are 6 and 6, 36 are 8, 8, 7, 7 and 6.
    [(8, 0, 12, 6), (8, 0, 4, 4), (8, 1, 4, 4), (6, 0, 16, 4), (8, 1, 1, 1)],
)
def test_blocks_of_multiples_have_code_for_no_fewer_rows(
    factor: int, longer: int, times: int, shortest: int
) -> None:
    rows = kernel(0, 40, times=times)
    even = apply_schedule(rows, (Split("i", factor), Even("i.o", longer)))
    (outer,) = (s for s in walk_loops(even.body) if s.var == "i.o")
    (inner,) = (s for s in walk_loops(even.body) if s.var == "i.i")
    lengths = {
        int(inner.hi.evaluate({"n": n, "i.o": number}))
        for n in range(41)
        for number in range(int(outer.hi.evaluate({"n": n})))
    }
    assert min(lengths) == shortest
    tiled = apply_schedule(
        rows,
        (
            Split("i", factor),
            Even("i.o", longer),
            Tile(("i.i", "j"), (Kind.UNROLL, Kind.VECTOR)),
        ),
    )
    made = {s.hi.value for s in walk_loops(tiled.body) if s.var == "i.i"}
    least = min(n for n in numbers_of_rows(factor + longer) if n >= shortest)
    assert min(made) == least
    check_rows(tiled, 0, 6, times)


@pytest.mark.parametrize(
    ("rows", "factor", "blocks"),
    [
        (17, 6, [6, 6, 5]),
        (14, 5, [5, 5, 4]),
        (49, 6, [6, 6, 6, 6, 5, 5, 5, 5, 5]),
        (56, 6, [6] * 6 + [5] * 4),
    ],
)
def test_last_blocks_of_a_constant_number_of_rows_are_shorter_by_one(
    rows: int, factor: int, blocks: list[int]
) -> None:
    even = apply_schedule(kernel(rows, rows), (Split("i", factor), Even("i.o", 0)))
    (outer,) = (s for s in walk_loops(even.body) if s.var == "i.o")
    (branch,) = outer.body
    assert isinstance(branch, Branch)
    lengths: list[int] = []
    for number in range(int(outer.hi.evaluate({}))):
        arm = branch.then if number < branch.right.evaluate({}) else branch.orelse
        (inner,) = (s for s in walk_loops(arm) if s.var == "i.i")
        lengths.append(int(inner.hi.evaluate({})))
    assert lengths == blocks
    check(rows, rows, factor, "even")


def test_parallel_loops_stay_nested_around_blocks_of_a_constant_number_of_rows() -> None:
    marks = (Mark("i.o", Kind.PARALLEL), Mark("j", Kind.PARALLEL))
    steps = (Split("i", 5), Reorder(("i.o", "j", "i.i")), *marks, Even("i.o", 0))
    even = apply_schedule(kernel(14, 14), steps)
    (outer,) = even.body
    assert isinstance(outer, Loop)
    (within,) = outer.body
    assert isinstance(within, Loop)
    assert [type(s) for s in within.body] == [Branch]
    check_rows(even, 14, 14)


@pytest.mark.parametrize(("rows", "factor", "longer"), [(14, 6, 0), (7, 6, 0), (17, 6, 1)])
def test_blocks_of_a_constant_number_of_rows_are_shorter_by_one_at_most(
    rows: int, factor: int, longer: int
) -> None:
    with pytest.raises(NotApplicable, match="iterations and one less make no"):
        apply_schedule(kernel(rows, rows), (Split("i", factor), Even("i.o", longer)))


@pytest.mark.parametrize("end", ["even", "overlap"])
def test_every_row_is_computed_where_the_number_of_blocks_is_known(end: str) -> None:
    check(9, 15, 8, end)


@pytest.mark.parametrize("least", [0, 1, 5])
@pytest.mark.parametrize("most", [5, 13])
def test_every_row_is_computed_where_one_block_holds_them_all(least: int, most: int) -> None:
    """None where there is none: what lies where a first row would is not the kernel's."""
    tile = Tile(("i", "j"), (Kind.UNROLL, Kind.VECTOR))
    check_rows(apply_schedule(kernel(least, most), (tile,)), least, most)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("least", [0, 1])
def test_every_row_is_computed_by_blocks_of_one_size(size: int, number: int, least: int) -> None:
    check_rows(apply_schedule(kernel(least), (Balance("i", size, number),)), least, MOST)


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [(0, (0, 0)), (1, (2, 1)), (17, (2, 9)), (32, (2, 16)), (33, (4, 9)), (100, (8, 13))],
)
def test_blocks_of_one_size_are_no_larger_than_they_must_be(
    rows: int, blocks: tuple[int, int]
) -> None:
    scheduled = apply_schedule(kernel(0, 200), (Balance("i", 16, 2),))
    found = {s.var: s.hi.evaluate({"n": rows}) for s in walk_loops(scheduled.body)}
    assert (found["i.o"], found["i.i"]) == blocks


def test_blocks_of_one_size_of_a_loop_whose_size_is_known() -> None:
    scheduled = apply_schedule(kernel(12, 12), (Balance("i", 5, 1),))
    check_rows(scheduled, 12, 12)


def test_iterations_that_cannot_be_done_twice_are_in_no_blocks_of_one_size() -> None:
    with pytest.raises(NotApplicable, match="k goes on with a reduction"):
        Balance("k", 2, 1).apply(kernel(depth=3))
    with pytest.raises(NotApplicable, match="size of a block 0 is not positive"):
        Balance("i", 0, 1).apply(kernel())


def check(least: int, most: int, factor: int, end: str, longer: int = 0) -> None:
    tile = Tile(("i.i", "j"), (Kind.UNROLL, Kind.VECTOR))
    ends = {"even": (Even("i.o", longer), tile), "overlap": (Overlap(("i.o",)), tile)}
    check_rows(apply_schedule(kernel(least, most), (Split("i", factor), *ends[end])), least, most)


def check_rows(scheduled: Kernel, least: int, most: int, times: int = 1) -> None:
    rng = np.random.default_rng(0)
    for size in range(least, most + 1):
        n = times * size
        a = rng.integers(-4, 5, (n, 2)).astype(np.float32)
        b = rng.integers(-4, 5, (2, 3)).astype(np.float32)
        got = np.full(n * 3, np.nan, np.float32)
        interpret_kernel(scheduled, {"a": a.ravel(), "b": b.ravel(), "c": got}, {"n": size})
        np.testing.assert_array_equal(got.reshape(n, 3), a @ b)


def test_numbers_of_rows() -> None:
    assert numbers_of_rows(1) == (1,)
    assert numbers_of_rows(8) == (8, 7, 6, 5, 4, 2, 1)
    assert numbers_of_rows(9) == (9, 8, 7, 6, 5, 3, 2, 1)
    assert numbers_of_rows(13) == (13, 11, 9, 7, 4, 2, 1)
    for most in range(1, 65):
        numbers = numbers_of_rows(most)
        assert numbers[0] == most
        assert numbers[-1] == 1
        upper = [n for n in numbers if 2 * n >= most]
        assert len(upper) <= MOST_EXACT // 2 + 1
        assert all(n % rows_apart(most) == most % rows_apart(most) for n in upper)
