"""What a summary counts, exactly for small kernels, and what an estimate never does for any."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import cost_page, fit
from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.targets import aarch64
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import realise
from rutc.tensor_ir.cost import Costs, Estimate, Summary, estimate, summarise
from rutc.tensor_ir.cost.fitted import FREE, load
from rutc.tensor_ir.cost.operations import DIVIDED, EXTREMES
from rutc.tensor_ir.cost.work import KINDS, Region
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import ELEMENTARY
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.lower import lower
from rutc.tensor_ir.machine import PAIR, QUAD, Machine
from rutc.tensor_ir.steps import Pack, parse_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from tests.examples import examples
from tests.kernels import LONG, Case, cases
from tests.machines import V3, V4
from tests.tensor_ir.test_steps import kernel_of
from tests.tuner.subjects import of_text
from tests.tuner.test_schedules import lowered

AMX = replace(V4, name="amx", features=V4.features | {"amx-tile", "amx-int8", "amx-bf16"})
MACHINES = {m.name: m for m in (V3, V4, aarch64.neon(), AMX)}
PRODUCT = """
graph "product"
dims i = {i}, j = {j}, k = {k}
%x : f32{{i,k}} = input "x" [i, k]
%w : f32{{j,k}} = input "w" [k, j]
%y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
TILE = (
    "split(i, 4); split(j, 32); reorder([j.o, i.o, i.i, j.i]); tile([i.i, j.i], [unroll, vector])"
)


def product(i: int, j: int, k: int, schedule: str = TILE) -> Kernel:
    kernel, _ = lowered(PRODUCT.format(i=i, j=j, k=k))
    packed = Pack("w", ("j", "k"), (("j", 32),))
    return with_schedule(kernel, Choice((packed, *parse_schedule(schedule)))).kernel


def after(text: str, schedule: str = "") -> Kernel:
    kernel, _ = lowered(text)
    return with_schedule(kernel, Choice(parse_schedule(schedule) if schedule else ())).kernel


def estimated(kernel: Kernel, machine: Machine = V4) -> Estimate:
    return estimate(summarise(kernel, machine), machine)


def test_a_register_tile_of_a_product() -> None:
    """4 x 2 vectors: each step loads 2 vectors and 4 elements, and has 8 multiply-adds."""
    s = summarise(product(64, 96, 128), V4)
    tiles, steps = 16 * 3, 16 * 3 * 128
    (inner,) = [r for r in s.regions if "multiply_adds" in r.work]
    assert (inner.times, inner.entries) == (steps, tiles)
    assert inner.work == {"broadcasts": 4 * steps, "loads": 2 * steps, "multiply_adds": 8 * steps}
    # 8 sums, 2 vectors of one operand, and an element of the other.
    assert inner.registers == 11
    # Each sum waits for the one of the step before.
    assert inner.chain == V4.fma_latency * steps
    (outer,) = [r for r in s.regions if "stores" in r.work]
    assert (outer.times, outer.work["stores"]) == (tiles, 8 * tiles)
    assert s.arguments == {"w": 4 * 96 * 128, "x": 4 * 64 * 128, "y": 4 * 64 * 96}
    assert set(s.stored) == {"y"}


@pytest.mark.parametrize("rows", [4, 12])
def test_of_what_a_tile_stores_at_once_as_much_is_hidden_as_the_machine_says(rows: int) -> None:
    """The sums of a tile are written out: 2 vectors for each row are stored after all of them."""
    tiles, sums = 3, 2 * rows
    written_out = f"{TILE.replace('split(i, 4)', f'split(i, {rows})')}; mark(k, unroll)"
    s = summarise(product(tiles * rows, 32, 6, written_out), V4)
    (own,) = [r for r in s.regions if "multiply_adds" in r.work]
    assert own.work["multiply_adds"] == 6 * sums * tiles
    assert own.work["stores"] == pytest.approx(min(sums, V4.hidden_stores) * tiles)
    end = [r for r in s.regions if r.name.endswith("/end")]
    shown = max(sums - V4.hidden_stores, 0) * tiles
    assert sum(r.work["stores"] for r in end) == pytest.approx(shown)
    assert all(not r.entries for r in end)


def test_footprints_of_a_product() -> None:
    """A panel of 32 columns and 4 rows fit the first cache; all rows do not."""
    s = summarise(product(64, 96, 128), V4)
    panel, rows, block = 4 * 32 * 128, 4 * 4 * 128, 4 * 4 * 32
    assert {x.name: x.bytes for x in s.levels} == {
        "j.o": 4 * 64 * 128 + panel + 4 * 64 * 32,
        "i.o": panel + rows + block,
        "k": 64 * 2 + 4 * 64,
    }
    (inner,) = [r for r in s.regions if "multiply_adds" in r.work]
    read, written = inner.moved[0]
    # The panel comes once for each of three; the rows come three times: they do not fit beside it.
    # Where only half of the cache is there, the panel comes for each of the rows' tiles.
    whole = 3 * (panel + 4 * 64 * 128)
    assert written == 0
    assert whole <= read <= 3 * 16 * (panel + rows)
    # Everything stays in the second cache.
    assert inner.moved[1:] == ((0, 0), (0, 0))


def test_what_does_not_depend_on_a_loop_is_loaded_before_it() -> None:
    text = """
    graph "scaled"
    dims i = 10, j = 64
    %x : f32{i,j} = input "x" [i, j]
    %s : f32{i} = input "s" [i]
    %y : f32{i,j} = %x[i, j] * %s[i]
    output "y" [i, j] = %y
    """
    s = summarise(after(text, "split(j, 16); mark(j.i, vector)"), V4)
    work = {r.name: dict(r.work) for r in s.regions}
    assert work["i"] == {"broadcasts": 10}
    assert work["i/j.o"] == {"arithmetic": 40, "loads": 40, "stores": 40}


def test_kinds_of_accesses() -> None:
    text = """
    graph "kinds"
    dims i = 64, j = 64, h = 192
    %x : f32{j,i} = input "x" [j, i]
    %z : f32{h} = input "z" [h]
    %y : f32{i,j} = %x[i, j] + %z[h=3*j + 1]
    output "y" [i, j] = %y
    """
    s = summarise(after(text, "split(j, 16); mark(j.i, vector)"), V4)
    assert s.work["gathered"] == 64 * 64
    # Three vectors, and two moves of lanes, make one of every third element. They depend on j only,
    # but are loaded in every i: its loop is the outer one.
    assert s.work["loads"] == 64 * 4 * 3
    assert s.work["shuffles"] == 64 * 4 * 2


def test_vectors_across_memory_are_transposed_in_squares() -> None:
    text = """
    graph "transposed"
    dims i = 64, j = 64
    %x : f32{i,j} = input "x" [j, i]
    %y : f32{i,j} = %x[i, j]
    output "y" [i, j] = %y
    """
    schedule = "split(i, 16); split(j, 16); reorder([i.o, j.o, i.i, j.i]); mark(i.i, unroll); "
    s = summarise(after(text, schedule + "mark(j.i, vector)"), V4)
    squares = 4 * 4
    assert s.work == {
        "loads": 16 * squares,
        "shuffles": 4 * 16 * squares,
        "stores": 16 * squares,
    }


CENTRED = """
graph "centred"
dims i = 37, k = 64
%x : f32{i,k} = input "x" [i, k]
%m : f32{i} = sum{k} %x[i, k]
%e : f32{i,k} = %x[i, k] - %m[i]
%s : f32{i} = sum{k} %e[i, k]
%y : f32{i,k} = %e[i, k] / %s[i]
output "y" [i, k] = %y
"""


def test_rows_wait_for_what_is_merged_where_a_loop_behind_reads_it() -> None:
    """Of a row of which nothing else is made, it is merged while the next one is begun."""
    alone = """
    graph "sums"
    dims i = 37, k = 64
    %x : f32{i,k} = input "x" [i, k]
    %y : f32{i} = sum{k} %x[i, k]
    output "y" [i] = %y
    """
    chains = {r.name: r.chain for r in summarise(after(alone, "lanes(k, 16, k)"), V4).regions}
    assert chains["i"] == 0
    assert chains["i/k.o"] == 37 * 4 * V4.fma_latency
    chains = {r.name: r.chain for r in summarise(after(CENTRED, "lanes(k, 16, k)"), V4).regions}
    assert chains["i"] > 0


def test_what_a_loop_writes_is_not_loaded_before_it() -> None:
    """Each row's numbers pass over the stack: of 37 rows, 4 vectors are read twice."""
    vectors = "split({0}, 16); mark({0}.i, vector); mark({0}.o, unroll)"
    steps = ["lanes(k.2, 16, k.2)", "mark(k.2.o, unroll)", *map(vectors.format, ("k.1", "k.3"))]
    (row,) = (r for r in summarise(after(CENTRED, "; ".join(steps)), V4).regions if r.name == "i")
    # And x, which is near.
    assert row.work["loads"] == 37 * 4 * 3


def test_the_larger_of_two_numbers_is_one_operation() -> None:
    """Where it need not be NaN if one of them is; else comparisons tell that first."""
    text = """
    graph "largest"
    dims i = 37, k = 64
    %x : f32{{i,k}} = input "x" [i, k]
    %y : f32{{i}} = {}{{k}} %x[i, k]
    output "y" [i] = %y
    """
    lanes = "lanes(k, 16, k); mark(k.o, unroll)"
    for reducer, each in (("maxnum", 1.0), ("max", EXTREMES)):
        work = summarise(after(text.format(reducer), lanes), V4).work
        # Four vectors are added to one, whose lanes are put together in five steps.
        assert work["arithmetic"] == 37 * (4 + 5) * each


def test_quotients_are_counted_where_loops_tell_them() -> None:
    """Once an iteration of the loop that tells it; of lanes, as vectors of 64 bits."""
    text = """
    graph "quotients"
    dims i = 9, j = 35, r = 5, c = 7
    %x : f32{r,c} = input "x" [r, c]
    %y : f32{i,j} = %x[r=i // 2, c=j % 7]
    output "y" [i, j] = %y
    """
    each = DIVIDED
    assert summarise(after(text), V4).work["scalar"] == each * (9 + 9 * 35)
    work = summarise(after(text, "split(j, 16); mark(j.i, vector)"), V4).work
    assert work["scalar"] == each * 9
    assert work["arithmetic"] == pytest.approx(each * 2 * work["stores"])


def test_peeled_tiles_count_as_often_as_they_run() -> None:
    schedule = TILE.replace("tile(", "peel(i.o); tile(")
    s = summarise(product(66, 32, 10, schedule), V4)
    counts = [r.work["multiply_adds"] for r in s.regions if "multiply_adds" in r.work]
    # Sixteen tiles of four rows, and one of two.
    assert counts == [16 * 8 * 10, 4 * 10]


def test_states_beyond_the_registers_are_spilled() -> None:
    wide = TILE.replace("split(i, 4)", "split(i, 16)")
    few, many = (summarise(product(64, 64, 64, t), V4) for t in (TILE, wide))
    assert "spills" not in few.work
    assert many.work["spills"] > 0


def test_operands_that_pass_in_another_order_than_the_code_s_take_a_register_more() -> None:
    """Twelve sums leave four of sixteen registers: three vectors and a row's element fit.

    Four vectors do not, and three rows' elements are held only if vectors pass one at a time.
    """
    tile = TILE.replace("split(i, 4)", "split(i, {rows})").replace("32", "{columns}")
    for machine, spilled in ((V3, True), (V4, False)):
        for rows, vectors, more in ((4, 3, False), (3, 4, True)):
            schedule = tile.format(rows=rows, columns=vectors * V3.width)
            kernel, _ = lowered(PRODUCT.format(i=48, j=96, k=64))
            work = summarise(
                with_schedule(kernel, Choice(parse_schedule(schedule))).kernel, machine
            ).work
            assert ("spills" in work) == (spilled and more)


def test_what_registers_do_not_keep_for_a_loop_is_loaded_again_there() -> None:
    """Once in each iteration, however often the loop takes it, and not before the loop."""
    wide = (
        "split(i, 2); split(j, 128); reorder([j.o, i.o, i.i, j.i]); "
        "tile([i.i, j.i], [unroll, vector]); mark(k, unroll)"
    )
    regions = summarise(product(64, 512, 8, wide), V4).regions
    loaded = 8 * 128 // V4.width
    (spilled,) = (r.work["spills"] for r in regions if "spills" in r.work)
    assert spilled < loaded * (64 // 2) * (512 // 128)


def test_lines_of_one_set_of_the_cache_are_evicted() -> None:
    """Rows of 4096 bytes begin in one set of the first cache, which holds eight lines."""
    tall = TILE.replace("split(i, 4)", "split(i, 12)")
    assert all(not r.evicted for r in summarise(product(48, 64, 1024), V4).regions)
    assert any(r.evicted for r in summarise(product(48, 64, 1024, tall), V4).regions)
    assert all(not r.evicted for r in summarise(product(48, 64, 1040, tall), V4).regions)


TURNED = """
graph "turned"
dims c = {c}, p = {p}
%v : f32{{c,p}} = input "v" [c, p]
%o : f32{{c,p}} = %v[c, p]
output "o" [p, c] = %o
"""
FULL_LINES = "split(p, 16); split(c, 16); reorder([c.o, p.o, p.i, c.i])"
"""Of each row, a line: in rows that are stored, or in those that are read."""


def turned(c: int, p: int, schedule: str = FULL_LINES) -> Summary:
    return summarise(after(TURNED.format(c=c, p=p), schedule), V4)


def waiting(c: int, p: int, schedule: str = FULL_LINES) -> float:
    return turned(c, p, schedule).work.get("waiting", 0.0)


def evicted(c: int, p: int, schedule: str = FULL_LINES) -> float:
    return sum(r.evicted for r in turned(c, p, schedule).regions)


def passed(s: Summary) -> tuple[float, float]:
    """Bytes that come from the second cache, and go there."""
    return sum(r.moved[0][0] for r in s.regions), sum(r.moved[0][1] for r in s.regions)


@pytest.mark.parametrize(
    ("c", "rows", "sets"), [(1024, 16, 1), (512, 32, 2), (256, 64, 4), (64, 256, 16), (1536, 32, 2)]
)
def test_stored_lines_of_few_sets_wait_where_they_are_more_than_these_hold(
    c: int, rows: int, sets: int
) -> None:
    """A set holds eight lines. Stored rows are c * 4 bytes apart, of 4096 in which sets repeat."""
    assert waiting(c, rows) == rows * c // 16 / sets
    assert waiting(c, rows * 2) == 2 * rows * c // 16 / sets
    assert not waiting(c, rows // 2) or rows // 2 < 16


def test_lines_that_are_stored_half_come_again_where_sets_have_no_room() -> None:
    """A row of 1024 numbers has halves of 64 lines, which each column of 16 rows stores anew."""
    halves = FULL_LINES.replace("split(c, 16)", "split(c, 8)")
    few, many = turned(1024, 8, halves), turned(1024, 16, halves)
    bytes_ = 4 * 1024 * 16
    assert passed(many)[1] == 2 * bytes_
    assert passed(many)[0] - passed(few)[0] >= bytes_
    assert passed(turned(1024, 16))[1] == bytes_


@pytest.mark.parametrize("machine", [V3, V4, aarch64.neon()], ids=lambda m: m.name)
@pytest.mark.parametrize("last", [1, 2])
def test_lines_wait_for_those_of_a_loop_s_other_arms(machine: Machine, last: int) -> None:
    """The rows of a last tile are stored in the set in which those of the first one are.

    It has room for the rows of either, but not of both.
    """
    ways = machine.l1 // machine.l1_way_bytes
    tile, c = ways + 1 - last, machine.l1_way_bytes // 4
    tiles = f"split(p, {tile}); split(c, 16); reorder([c.o, p.o, p.i, c.i]); peel(p.o)"
    few, many = (
        summarise(after(TURNED.format(c=c, p=rows), tiles), machine) for rows in (ways, ways + 1)
    )
    assert not few.work.get("waiting")
    assert all(r.work.get("waiting") for r in many.regions if "stores" in r.work)


def test_lines_of_all_sets_do_not_wait() -> None:
    """Rows that are an odd number of lines apart lie in all sets, as one piece does."""
    for c in (272, 1040):
        assert not waiting(c, 512)
        assert not evicted(c, 512)


def test_loads_wait_less_than_stores() -> None:
    """Stores follow each other, where loads of further sets go on meanwhile.

    The more rows share a set, the fewer sets' are loaded ahead.
    """
    across = "split(p, 16); split(c, 16); reorder([p.o, c.o, c.i, p.i])"
    stored, loaded = waiting(1024, 16), evicted(16, 1024, across)
    assert stored == 1024
    ahead = V4.coefficients.counting.ahead
    assert loaded == stored * 16 / ahead
    assert evicted(32, 1024, across) == 2 * stored * 32 / ahead
    assert evicted(64, 1024, across) == 4 * stored
    # Of half as many as there is room for, all come anew; of fewer, a part.
    any_rows = "split(p, 16); reorder([p.o, c, p.i])"
    assert evicted(12, 1024, any_rows) == pytest.approx(64 * 12 * 12 / ahead)
    assert evicted(10, 1024, any_rows) == pytest.approx(64 * 10 * 10 / ahead / 2)
    assert not evicted(8, 1024, any_rows)


ENDS = """
graph "ends"
dims y = 16, x = 64, k = 3, r = 18
%v : f32{r,x} = input "v" [r, x]
%o : f32{y,x} = max{k} %v[r=y + k, x]
output "o" [y, x] = %o
"""


def test_arms_that_are_taken_at_times_touch_their_share() -> None:
    """Of tiles of 6 in 16 rows, the last has 4: none has 5, though the code could do it."""
    tiles = "split(y, 6); split(x, 16); reorder([y.o, x.o, y.i, x.i]); "
    tiled = after(ENDS, tiles + "tile([y.i, x.i], [unroll, vector]); mark(k, unroll)")
    assert str(tiled).count("if ") == 2
    found = summarise(tiled, replace(V4, l1=2048, l1_way_bytes=256))
    arms = [r for r in found.regions if "stores" in r.work]
    assert [r.work["stores"] / r.times for r in arms] == [4, 6]
    assert sum(r.times for r in arms) == 3 * 4
    # A third of all tiles has the last rows, and as many lines as these are.
    assert passed(found)[1] == pytest.approx(4 * 16 * 64, rel=0.05)


def test_a_step_within_quotients_is_not_one_from_quotient_to_quotient() -> None:
    """Of two streams that take turns, each iteration moves one: lines hold many of its elements."""
    text = """
    graph "streams"
    dims s = 2, h = 64, i = 128, r = 16
    %x : f32{s,h} = input "x" [s, h]
    %y : f32{r,i} = %x[s=i % 2, h=i // 2]
    output "y" [r, i] = %y
    """
    s = summarise(after(text), V4)
    (row,) = [x for x in s.levels if x.name == "r"]
    assert row.bytes == 4 * (128 + 128)


def test_lanes_at_known_places_are_shuffled() -> None:
    """Two loads and a shuffle make a vector of two streams; nothing tells places lane by lane."""
    text = """
    graph "streams"
    dims s = 2, h = 64, i = 128
    %x : f32{s,h} = input "x" [s, h]
    %y : f32{i} = %x[s=i % 2, h=i // 2]
    output "y" [i] = %y
    """
    s = summarise(after(text, "split(i, 16); mark(i.i, vector)"), V4)
    assert s.work == {"loads": 2 * 8, "shuffles": 8, "stores": 8}


def test_lanes_too_far_apart_are_gathered() -> None:
    text = """
    graph "sevenths"
    dims h = 7, s = 16, i = 112
    %x : f32{h,s} = input "x" [h, s]
    %y : f32{i} = %x[h=i % 7, s=i // 7]
    output "y" [i] = %y
    """
    s = summarise(after(text, "split(i, 16); mark(i.i, vector)"), V4)
    assert s.work["gathered"] == 112
    assert "loads" not in s.work


@pytest.mark.parametrize(
    ("dtype", "rows", "parts"),
    [("bf16", 2, 1), ("i8", 4, 1), ("f32", 3, 3), ("f32", 4, 4), ("f32", 5, 0), ("bf16", 9, 0)],
)
def test_lanes_stored_near_each_other_take_whole_registers(
    dtype: str, rows: int, parts: int
) -> None:
    """Stores with masks, and a shuffle for each; without masks, one store for each lane."""
    text = f"""
    graph "columns"
    dims i = 64, r = {rows}
    %x : {dtype}{{i,r}} = input "x" [r, i]
    %y : {dtype}{{i,r}} = %x[i, r]
    output "y" [i, r] = %y
    """
    kernel = after(text, "split(i, 16); mark(i.i, vector)")
    vectors = 4 * rows
    lanes = 0 if parts else 16 * vectors
    work = summarise(kernel, V4).work
    assert work.get("scattered", 0) == lanes
    assert work.get("stores", 0) == work.get("masked", 0) == parts * vectors
    assert summarise(kernel, V3).work["scattered"] == 16 * vectors


def test_powers_that_are_made_of_roots_are_no_functions() -> None:
    text = """
    graph "powers"
    dims i = 64
    %x : f32{{i}} = input "x" [i]
    %y : f32{{i}} = pow(%x[i], {exponent})
    output "y" [i] = %y
    """
    schedule = "split(i, 16); mark(i.i, vector)"
    for exponent, roots in ((0.5, 1), (0.75, 2), (1.5, 1)):
        s = summarise(after(text.format(exponent=exponent), schedule), V4)
        assert s.work["divisions"] == 4 * roots
        assert not any(r.functions for r in s.regions)
    s = summarise(after(text.format(exponent=0.3), schedule), V4)
    assert any(r.functions == {"pow": 4} for r in s.regions)


ROWS = """
graph "rows"
dims m = 32, n = 64, k = 8
%x : f32{{m,n}} = input "x" [{axes}]
%at : i64{{k}} = input "at" [k]
%u : f32{{k,n}} = input "u" [k, n]
%y : f32{{m,n}} = scatter{{k,n}} %x[m=%at[k], n=n] {how}= %u[k, n]
output "y" [{axes}] = %y
"""


def test_rows_that_data_choose_are_stored_whole() -> None:
    """Lanes are neighbours in a row; those of a column are stored one by one."""

    def work(how: str, axes: str) -> Mapping[str, float]:
        kernel = of_text(ROWS.format(how=how, axes=axes), frozenset(), Random(0)).kernel
        steps = parse_schedule("split(n, 16); mark(n.i, vector)")
        return summarise(with_schedule(kernel, Choice(steps)).kernel, V4).work

    vectors = 8 * 64 // 16
    assert work("set", "m, n")["stores"] == vectors
    assert "scattered" not in work("set", "m, n")
    assert work("sum", "m, n")["loads"] == 2 * vectors
    assert work("set", "n, m")["scattered"] == 8 * 64


@pytest.mark.parametrize(
    ("dtype", "divisor", "kind", "each"),
    [
        ("i32", "%d[i]", "divisions", 2.0),
        ("i16", "%d[i]", "divisions", 1.0),
        ("i64", "%d[i]", "divisions", 16.0),
        ("i32", "3", "arithmetic", DIVIDED),
    ],
)
def test_vectors_of_integers_are_divided_as_floats(
    dtype: str, divisor: str, kind: str, each: float
) -> None:
    """Those of 32 bits as two vectors of doubles; of 64 bits, each lane is by itself."""
    text = f"""
    graph "quotients"
    dims i = 64
    %x : {dtype}{{i}} = input "x" [i]
    %d : {dtype}{{i}} = input "d" [i]
    %y : {dtype}{{i}} = %x[i] / {divisor}
    output "y" [i] = %y
    """
    alone = text.replace(f'%d : {dtype}{{i}} = input "d" [i]\n', "") if divisor == "3" else text
    assert summarise(after(alone, "split(i, 16); mark(i.i, vector)"), V4).work[kind] == 4 * each
    if kind == "divisions":
        assert summarise(after(alone), V4).work["divisions"] == 64


def test_an_estimate_of_a_product_is_near_the_peak() -> None:
    found = estimated(product(64, 96, 128, TILE.replace("split(i, 4)", "split(i, 8)")))
    peak = 64 * 96 * 128 / V4.width / V4.fma_per_cycle
    assert peak <= found.cycles <= 2 * peak
    assert found.bound_by == "products"


def test_more_work_takes_no_less_time() -> None:
    times = [estimated(product(64, 96, k)).cycles for k in (16, 64, 256, 1024, 4096)]
    assert times == sorted(times)


def test_rates_only_help() -> None:
    kernel = product(64, 96, 128)
    usual = estimated(kernel).cycles
    for name in ("fma_per_cycle", "loads_per_cycle", "l2_bytes_per_cycle"):
        faster = replace(V4, **{name: 2 * getattr(V4, name)})
        assert estimate(summarise(kernel, V4), faster).cycles <= usual


def test_threads_share_tasks() -> None:
    shared = "mark(j.o, parallel); mark(i.o, parallel); "
    s = summarise(product(1024, 1024, 256, TILE.replace("tile(", shared + "tile(")), V4)
    assert s.tasks == 256 * 32
    one, two = (estimate(s, V4, threads=n).cycles for n in (1, 2))
    assert two == pytest.approx(one / 2 + V4.launch_cycles)


def test_operands_from_farther_away_take_longer() -> None:
    s = summarise(product(64, 96, 128), V4)
    times = [estimate(s, V4, levels={"w": n, "x": n}).cycles for n in range(4)]
    assert times == sorted(times)
    assert times[0] < times[3]


def test_a_summary_prints() -> None:
    text = str(summarise(product(64, 96, 128), V4))
    assert "for k: 128 x 48, 384 bytes each" in text
    assert "multiply_adds 49152" in text


def checked(s: Summary, machine: Machine) -> None:
    found = estimate(s, machine)
    assert isfinite(found.cycles)
    assert found.cycles > 0
    assert found.bound_by in found.parts
    for r in s.regions:
        assert set(r.work) <= set(KINDS)
        assert set(r.functions) <= ELEMENTARY
        numbers = [*r.work.values(), r.times, r.entries, r.chain, *(x for p in r.moved for x in p)]
        assert all(0 <= x < inf for x in numbers)


@pytest.mark.parametrize("name", MACHINES)
@examples(100)
@given(case=cases(lengths=LONG, points=100_000), data=st.data())
def test_estimates_are_positive_and_finite(name: str, case: Case, data: st.DataObject) -> None:
    machine, kernel = MACHINES[name], case.kernel()
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = frozenset(data.draw(st.sets(st.sampled_from(reads))) if reads else ())
    choice = choose(kernel, machine, free)
    checked(summarise(with_schedule(kernel, choice).kernel, machine), machine)
    checked(summarise(kernel, machine), machine)


QUANTISED = """
graph "quantised"
dims i = 64, j = 64, k = 256
%x : u8{i,k} = input "x" [i, k]
%w : i8{j,k} = input "w" [k, j]
%y : i32{i,j} = sum{k} i32(%x[i, k]) * i32(%w[j, k])
output "y" [i, j] = %y
"""


@pytest.mark.parametrize(
    ("machine", "kind"), [(AMX, "matrices"), (V4, "dots"), (V3, "dots")], ids=lambda x: str(x)
)
def test_products_of_narrow_numbers(machine: Machine, kind: str) -> None:
    kernel, _ = lowered(QUANTISED)
    constants = frozenset({"w"})
    done = with_schedule(kernel, choose(kernel, machine, constants)).kernel
    assert summarise(done, machine).work[kind] > 0


def test_neighbours_of_a_factor_that_lie_apart_are_put_together() -> None:
    works: list[Mapping[str, float]] = []
    choice = choose(kernel_of(QUANTISED), V3, frozenset({"w"}))
    for order in ("[i, k]", "[k, i]"):
        kernel = kernel_of(QUANTISED.replace('"x" [i, k]', f'"x" {order}'))
        works.append(summarise(with_schedule(kernel, choice).kernel, V3).work)
    near, apart = works
    assert apart["broadcasts"] == PAIR * near["broadcasts"]
    assert apart["arithmetic"] >= near.get("arithmetic", 0.0) + apart["broadcasts"]


def test_instructions_that_add_products_of_bytes_count_as_multiply_adds() -> None:
    kernel, _ = lowered(QUANTISED)
    one = replace(V4, features=V4.features | {"avx512vnni"})
    done = with_schedule(kernel, choose(kernel, one, frozenset({"w"}))).kernel
    work = summarise(done, one).work
    assert work["multiply_adds"] == 64 * 64 * 256 / (one.width * QUAD)
    assert not work.get("dots")


def test_the_constants_say_where_they_come_from() -> None:
    found = load()
    assert {"machines", "kernels", "median_error"} <= {*found.provenance}
    machines = found.provenance["machines"]
    assert isinstance(machines, list)
    assert machines
    assert all({"cpu", "processor", "commit", "date"} <= {*m} for m in machines)
    assert all(each.keys() == ELEMENTARY for each in found.functions.values())
    assert all(getattr(found.costs, name) > 0 for name in FREE)


def test_the_constants_are_those_of_the_measurements() -> None:
    times = fit.load()
    model = fit.Model(times)
    known = load()
    assert known.functions == fit.functions_by_bits(times)
    again = fit.fit(times, model)
    difference = model.logarithms(again) - model.logarithms(known.costs)
    assert float(np.abs(difference).max()) < 0.05


def test_the_page_says_what_its_command_writes() -> None:
    page = (cost_page.ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert cost_page.INTRODUCTION in page
    assert cost_page.REASONS in page


def test_fits_estimate_as_the_compiler_does() -> None:
    kernel = product(64, 96, 128)
    s = summarise(kernel, V4)
    row = fit.Timed("", "", "0", V4.name, "tiled", 0, "", 1.0, s.regions)
    constants = load()
    called = {V4.name: constants.functions_of(V4.vector_bits)}
    times = fit.Times((row,), {V4.name: fit.Rates.of(V4)}, called, {V4.name: 512}, {})
    (found,) = np.exp(fit.Model(times).logarithms(constants.costs))
    assert found == pytest.approx(estimate(s, V4).cycles, rel=1e-6)
    assert Costs() != constants.costs


def test_fits_take_elementary_functions_as_estimates_do() -> None:
    """Processors with registers of the same bits share what functions take: the mean of theirs."""
    text = """
    graph "exponentials"
    dims i = 4096
    %x : f32{i} = input "x" [i]
    %y : f32{i} = exp(%x[i])
    output "y" [i] = %y
    """
    s = summarise(after(text, "split(i, 16); mark(i.i, vector)"), V4)
    called = {"fast": {"exp": 8.0}, "slow": {"exp": 24.0}}
    rows = [fit.Timed("", "", "0", n, "pointwise", 0, "", 1.0, s.regions) for n in called]
    rates, bits = dict.fromkeys(called, fit.Rates.of(V4)), dict.fromkeys(called, V4.vector_bits)
    times = fit.Times(tuple(rows), rates, called, bits, ())
    known = load()
    constants = replace(known, functions=fit.functions_by_bits(times))
    assert constants.functions == {V4.vector_bits: {"exp": 16.0}}
    found = np.exp(fit.Model(times).logarithms(known.costs))
    assert found == pytest.approx([estimate(s, V4, constants).cycles] * 2, rel=1e-6)


@pytest.mark.parametrize(("columns", "passes"), [(1024, 1), (16384, 2)])
def test_what_a_loop_has_just_touched_is_there_for_the_next_one(columns: int, passes: int) -> None:
    """Rows of 4 KiB stay in the first cache between their sum and what reads them again."""
    text = f"""
    graph "rows"
    dims i = 256, j = {columns}
    %x : f32{{i,j}} = input "x" [i, j]
    %s : f32{{i}} = sum{{j}} %x[i, j]
    %y : f32{{i,j}} = %x[i, j] - %s[i]
    output "y" [i, j] = %y
    """
    kernel, constants = lowered(text)
    s = summarise(with_schedule(kernel, choose(kernel, V4, constants)).kernel, V4)
    read = sum(r.moved[0][0] for r in s.regions)
    whole = 4 * 256 * columns
    assert passes * whole <= read < (passes + 0.1) * whole


@pytest.mark.parametrize(("rows", "chunks"), [(128, 2), (96, 1), (131, 2), (200, 3)])
def test_tiles_of_few_rows_are_those_that_a_short_last_chunk_has(rows: int, chunks: int) -> None:
    """Tiles beyond the last chunk's are none, and those of six rows are none of fewer.

    Products of all tiles together are those of all rows.
    """
    text = f"""
    graph "chunks"
    symbols n = 1..512@{rows}
    dims i = n, j = 16, k = 512
    %x : f32{{i,k}} = input "x" [i, k]
    %w : f32{{j,k}} = input "w" [k, j]
    %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
    output "y" [i, j] = %y
    """
    steps = (
        "split(i, 6); split(j, 16); reorder([j.o, i.o, i.i, j.i]); even(i.o, 0); split(i.o, 16); "
        "reorder([i.o.o, j.o, i.o.i]); tile([i.i, j.i], [unroll, vector])"
    )
    s = summarise(after(text, steps), V3)
    products = sum(r.work.get("multiply_adds", 0.0) for r in s.regions)
    assert products == pytest.approx(rows * 512 * 16 / V3.width, rel=0.03)
    own = [r.entries for r in s.regions if r.name.endswith("/i.o.i")]
    assert own == [chunks]


def test_what_one_arm_touches_is_not_there_for_another() -> None:
    """The last of three panels of weights is narrow, and the last block of pictures short."""
    text = """
    graph "pictures"
    dims g = 6, i = 16, j = 80, k = 2048
    %x : f32{g,i,k} = input "x" [g, i, k]
    %w : f32{j,k} = input "w" [k, j]
    %y : f32{g,i,j} = sum{k} %x[g, i, k] * %w[j, k]
    output "y" [g, i, j] = %y
    """
    blocks = (
        "split(g, 4); split(i, 4); split(j, 32); reorder([j.o, g.o, g.i, i.o, i.i, j.i]); "
        "peel(j.o); peel(g.o); tile([i.i, j.i], [unroll, vector])"
    )
    s = summarise(after(text, blocks), V4)
    arms = [r for r in s.regions if "multiply_adds" in r.work]
    assert len(arms) == 4
    assert all(r.moved[0][0] >= 4 * 16 * 2048 for r in arms)


@pytest.mark.parametrize("ends", ["split(i, 8); peel(i.o)", "split(j, 24); peel(j.o)"])
def test_a_loop_touches_what_all_arms_of_one_in_it_do(ends: str) -> None:
    """A last tile of four rows lies behind the others; one of 16 columns has lines with others."""
    text = """
    graph "copy"
    dims b = 4, i = 28, j = 64
    %x : f32{b,i,j} = input "x" [b, i, j]
    %y : f32{b,i,j} = - %x[b, i, j]
    output "y" [b, i, j] = %y
    """
    outer = summarise(after(text, ends), V4).levels[0]
    assert (outer.name, outer.bytes) == ("b", 2 * 4 * 28 * 64)


SAMPLED = """
graph "sampled"
dims c = 64, h = 56, w = 56, p = 3136
%v : f32{c,h,w} = input "v" [c, h, w]
%y : i64{p} = input "y" [p]
%x : i64{p} = input "x" [p]
%o : f32{c,p} = %v[c, h=%y[p], w=%x[p] else 0.0]
output "o" [c, p] = %o
"""
HELD = """
graph "held"
dims c = 64, p = 4096
%v : f32{c,p} = input "v" [c, p]
%at : i64{p} = input "at" [p]
%t : i64{p} = %at[p] + 1
%o : f32{c,p} = %v[c, p=%t[p] else 0.0]
output "o" [p, c] = %o
"""


def test_data_in_registers_move_accesses_as_data_in_memory_do() -> None:
    """A place that a register holds is another one in each iteration of the loop that writes it."""
    assignment = parse_assignment('assignment "held"\n%t [p]\ngroup {p}: %t, %o\n')
    plan = realise(prepare(parse(HELD)), assignment, V4)
    (group,) = plan.groups()
    extents = {d: e.value for d, e in plan.graph.dims}
    kernel = lower(group, plan.values, plan.layouts, extents)
    assert [b.dtype for b in kernel.locals] == [DType.I64]
    s = summarise(kernel, V4)
    read = sum(r.moved[0][0] for r in s.regions)
    assert read >= 64 * 4096 * 4


def test_data_choose_no_place_outside_of_the_dims_along_which_they_choose() -> None:
    """A channel of 12,544 bytes stays in the first cache, however many of its elements are read."""
    s = summarise(after(SAMPLED), V4)
    places = 2 * 8 * 3136
    read = sum(r.moved[0][0] for r in s.regions)
    assert read <= 64 * (56 * 56 * 4 + places)


def test_products_of_blocks_hide_nothing_else() -> None:
    """Matrix registers are too few to be filled while others are multiplied."""
    beside = Region("", 1.0, 1.0, {"loads": 4000.0}, moved=((64000.0, 0.0), (0.0, 0.0), (0.0, 0.0)))
    blocks = replace(beside, work={**beside.work, "matrices": 100.0})
    least, whole = (estimate(Summary((r,), (), 1.0, {}, {}), AMX) for r in (beside, blocks))
    took = load().costs.matrices * 100
    assert whole.cycles == pytest.approx(least.cycles + took)
    assert whole.multiplying == whole.computing == took
    assert least.multiplying == 0
