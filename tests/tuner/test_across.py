"""Copies that change which dim is contiguous: in which order squares are turned."""

from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Branch, Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops, walk_stmts
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from rutc.tuner.analysis import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces
from tests.tuner.test_schedules import lowered

COPY = """
graph "channels to the end"
dims p = 49, c = 1024
%x : f32{c,p} = input "x" [c, p]
%y : f32{c,p} = %x[c, p]
output "y" [p, c] = %y
"""


def default_of(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> Choice:
    """The schedule that the template prefers, whatever estimates do."""
    (space,) = spaces(kernel, machine, constants)
    assert space.default is not None
    return space.choice(space.default.point)


@pytest.mark.parametrize(
    ("pixels", "dtype", "stored", "reads"),
    [
        (49, "f32", "f32", True),
        (3136, "f32", "f32", False),
        (49, "f16", "f16", False),
        (3136, "f32", "f16", True),
    ],
)
def test_squares_follow_what_is_read_where_the_lines_that_they_fill_stay_near(
    pixels: int, dtype: str, stored: str, *, reads: bool
) -> None:
    """Of lines of 16 channels a square fills a half: 49 of them wait for the other in 3 KiB."""
    text = COPY.replace("p = 49", f"p = {pixels}").replace("%x : f32", f"%x : {dtype}")
    text = text.replace("%y : f32{c,p} = %x[c, p]", f"%y : {stored}{{c,p}} = {stored}(%x[c, p])")
    kernel, constants = lowered(text)
    done = apply_schedule(kernel, default_of(kernel, x86.avx2(), constants).schedule)
    loops = [s.var for s in walk_loops(done.body)]
    outside = [v for v in dict.fromkeys(loops) if v.endswith(".o")]
    assert (outside[-1] == "p.o") == reads


def test_squares_that_follow_what_is_read_leave_nothing_out() -> None:
    kernel, constants = lowered(COPY.replace("c = 1024", "c = 21"))
    done = apply_schedule(kernel, choose(kernel, x86.avx2(), constants).schedule)
    x = np.arange(21 * 49, dtype=np.float32)
    y = np.zeros(21 * 49, np.float32)
    interpret_kernel(done, {"x": x, "y": y})
    np.testing.assert_array_equal(y.reshape(49, 21), x.reshape(21, 49).T)


def test_what_is_gathered_along_the_store_is_read_along_its_memory() -> None:
    """Channels in another order: vectors of pixels, and no element by itself."""
    text = """
    graph "channels in another order"
    dims p = 49, c = 40, k = 24
    %x : u8{c,p} = input "x" [c, p]
    %at : i64{k} = input "at" [k]
    %y : u8{k,p} = %x[c=%at[k], p]
    output "y" [p, k] = %y
    """
    kernel, constants = lowered(text)
    done = apply_schedule(kernel, choose(kernel, x86.avx2(), constants).schedule)
    vectors = [s.var for s in walk_loops(done.body)]
    assert any(v.startswith("p") for v in vectors[-1:])
    x = np.random.default_rng(0).integers(0, 256, 40 * 49).astype(np.uint8)
    at = np.random.default_rng(1).integers(0, 40, 24)
    y = np.zeros(24 * 49, np.uint8)
    interpret_kernel(done, {"x": x, "at": at, "y": y})
    np.testing.assert_array_equal(y.reshape(49, 24), x.reshape(40, 49)[at].T)


@pytest.mark.parametrize(("many", "vector"), [(1, "c"), (64, "n")])
def test_lanes_along_a_loop_that_is_commonly_short_would_be_idle(many: int, vector: str) -> None:
    """What is the same for all of a run's copies is loaded once for them only if there are many."""
    kernel, constants = lowered(f"""
    graph "copies"
    symbols copies = 1..4096@{many}
    dims b = 64, p = 64, c = 256, n = copies
    %x : f32{{b,c,p}} = input "x" [c, p, b]
    %z : f32{{b,c,p}} = input "z" [b, c, p]
    %y : f32{{b,c,n,p}} = %x[b, c, p] + %z[b, c, p]
    output "y" [b, n, p, c] = %y
    """)
    done = apply_schedule(kernel, choose(kernel, x86.avx512(), constants).schedule)
    loops = [s for s in walk_loops(done.body) if s.kind is Kind.VECTOR]
    assert {s.var.partition(".")[0] for s in loops} == {vector}


PARTS = """
graph "parts"
dims a = {a}, b = {b}, c = {c}, d = {d}
%x : f32{{a,c}} = input "x" [c, a]
%y : f32{{b,c}} = input "y" [c, b]
%z : f32{{c,d}} = select(index(d - {a}) < 0, %x[a=d, c else 0.0], %y[b=d - {a}, c else 0.0])
output "z" [d, c] = %z
"""


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()])
@pytest.mark.parametrize(("a", "b", "c"), [(16, 32, 24), (32, 16, 61), (48, 19, 16), (31, 32, 40)])
def test_parts_that_lie_across_are_transposed_each_by_itself(
    machine: Machine, a: int, b: int, c: int
) -> None:
    """Where squares end at the edge between two parts; elsewhere vectors of each part are stored
    element by element."""
    kernel, constants = lowered(PARTS.format(a=a, b=b, c=c, d=a + b))
    done = apply_schedule(kernel, choose(kernel, machine, constants).schedule)
    kinds = {s.kind for s in walk_loops(done.body)}
    assert (Kind.UNROLL in kinds) == (a % machine.width == 0)
    assert any(isinstance(s, Branch) for s in walk_stmts(done.body)) or Kind.UNROLL not in kinds
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((c, n)).astype(np.float32) for n in (a, b))
    z = np.zeros((a + b) * c, np.float32)
    interpret_kernel(done, {"x": x.ravel(), "y": y.ravel(), "z": z})
    np.testing.assert_array_equal(z.reshape(a + b, c), np.concatenate([x, y], axis=1).T)


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()])
@pytest.mark.parametrize("size", [16, 61, 100])
def test_tiles_of_two_operands_are_read_before_two_stores(machine: Machine, size: int) -> None:
    kernel, constants = lowered(f"""
    graph "two and two"
    dims a = {size}, c = 256
    %x : f32{{a,c}} = input "x" [c, a]
    %y : f32{{a,c}} = input "y" [c, a]
    %s : f32{{a,c}} = %x[a, c] + %y[a, c]
    %p : f32{{a,c}} = %s[a, c] * 2.0
    %q : f32{{a,c}} = %s[a, c] + 1.0
    output "p" [a, c] = %p
    output "q" [a, c] = %q
    """)
    done = apply_schedule(kernel, default_of(kernel, machine, constants).schedule)
    assert {b.name for b in done.locals} >= {"x.tile", "y.tile"}
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((256, size)).astype(np.float32) for _ in "xy")
    made = {name: np.zeros(256 * size, np.float32) for name in "pq"}
    interpret_kernel(done, {"x": x.ravel(), "y": y.ravel(), **made})
    np.testing.assert_array_equal(made["p"].reshape(size, 256), (x + y).T * np.float32(2))
    np.testing.assert_array_equal(made["q"].reshape(size, 256), (x + y).T + np.float32(1))


def test_registers_hold_what_depends_on_loops() -> None:
    """Places that a register tells differ along the loops of what was put there."""
    kernel, constants = lowered("""
    graph "by way of a register"
    dims n = 64, t = 100, f = 20
    %x : f32{f,n} = input "x" [n, f]
    %k : i64{t} = input "k" [t]
    %a : i64{n,t} = i64(%x[f=%k[t], n])
    %y : f32{n,t} = %x[f=%a[n, t], n]
    output "y" [n, t] = %y
    """)
    last = [t for t in analyse(kernel, constants).touches if t.buffer == "x"][-1]
    assert last.strides["t"] is None
    assert last.strides["n"] is None
    assert set(last.chosen) == {"t"}
    assert last.picks("t", 16, x86.avx512()) == 1
    assert last.picks("t", 8, x86.avx512()) == last.picks("t", 32, x86.avx512()) == 0
    assert last.picks("n", 16, x86.avx512()) == last.picks("n", 8, x86.avx2()) == 0
    # Of three registers, each with a permutation, and two choices by a comparison.
    assert last.picks("t", 8, x86.avx2()) == 7
    assert last.picks("t", 16, x86.avx2()) == 0


def test_bytes_are_picked_where_the_processor_does() -> None:
    """Of two registers at once, for whole registers and parts of them."""
    able = replace(x86.avx512(), features=x86.avx512().features | {"avx512vbmi"})
    assert able.picks(1, 64, 16) == able.picks(1, 128, 64) == 1
    # Two permutations, and a choice by a comparison.
    assert able.picks(1, 129, 16) == able.picks(1, 256, 32) == 4
    assert able.picks(1, 257, 16) == able.picks(2, 16, 16) == able.picks(1, 64, 8) == 0
    # Without that, three operations for each 16 of them, where lanes by themselves take no fewer.
    assert x86.avx512().picks(1, 16, 16) == x86.avx2().picks(1, 16, 8) == 1
    assert x86.avx2().picks(1, 256, 32) == 46
    assert x86.avx2().picks(1, 256, 8) == x86.avx2().picks(1, 257, 32) == 0


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()])
@pytest.mark.parametrize("dtype", ["i64", "f64"])
@pytest.mark.parametrize(("c", "p"), [(61, 37), (16, 8), (16, 3), (5, 1)])
def test_long_elements_are_turned_in_smaller_squares(
    machine: Machine, dtype: str, c: int, p: int
) -> None:
    """A register holds half as many of them, and takes turns over less than four."""
    text = COPY.replace("p = 49, c = 1024", f"p = {p}, c = {c}").replace("f32", dtype)
    kernel, constants = lowered(text)
    done = apply_schedule(kernel, choose(kernel, machine, constants).schedule)
    unrolled = [s for s in walk_loops(done.body) if s.kind is Kind.UNROLL]
    assert bool(unrolled) == (p > 1)
    assert all((s.hi - s.lo).value <= machine.width // 2 for s in unrolled)
    x = np.arange(c * p).astype({"i64": np.int64, "f64": np.float64}[dtype])
    y = np.zeros(c * p, x.dtype)
    interpret_kernel(done, {"x": x, "y": y})
    np.testing.assert_array_equal(y.reshape(p, c), x.reshape(c, p).T)


@pytest.mark.parametrize(("before", "after"), [("c, p", "p, c"), ("p, c", "c, p")])
@pytest.mark.parametrize(
    ("pixels", "channels", "last"), [(3136, 64, "p.o"), (64, 3136, "c.o"), (3136, 192, "p.o")]
)
def test_squares_of_whole_lines_follow_one_another_along_rows_that_lie_farther_apart(
    pixels: int, channels: int, last: str, before: str, after: str
) -> None:
    """Of the operand that they read, or of the one that they fill: few rows at a time."""
    text = COPY.replace("p = 49, c = 1024", f"p = {pixels}, c = {channels}")
    text = text.replace('"x" [c, p]', f'"x" [{before}]').replace('"y" [p, c]', f'"y" [{after}]')
    assert outside(text, x86.avx512())[-1] == last


def test_squares_whose_rows_end_within_lines_follow_one_another_as_they_are_stored() -> None:
    """The rest of a line would wait for the squares of other rows."""
    for channels, machine in ((61, x86.avx512()), (64, x86.avx2())):
        text = COPY.replace("p = 49, c = 1024", f"p = 3136, c = {channels}")
        assert outside(text, machine)[-1] == "c.o"


def test_rows_whose_lines_wait_in_few_sets_are_not_stored_side_by_side() -> None:
    """Of 256 channels, 1 KiB apart, the first cache has sets for 32 lines; reads do not wait."""
    text = COPY.replace("p = 49, c = 1024", "p = 1920, c = 256")
    assert outside(text, x86.avx512())[-1] == "c.o"
    text = text.replace('"x" [c, p]', '"x" [p, c]').replace('"y" [p, c]', '"y" [c, p]')
    assert outside(text, x86.avx512())[-1] == "p.o"


def outside(text: str, machine: Machine) -> list[str]:
    """The loops around the squares of a copy, the outermost first, whatever estimates do."""
    kernel, constants = lowered(text)
    done = apply_schedule(kernel, default_of(kernel, machine, constants).schedule)
    loops = [s.var for s in walk_loops(done.body)]
    return [v for v in dict.fromkeys(loops) if v.endswith(".o")]


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()])
@pytest.mark.parametrize("dtype", ["f32", "u8", "i64"])
@pytest.mark.parametrize(("rows", "many", "chosen"), [(5, 200, 131), (3, 300, 64), (1, 200, 131)])
def test_places_that_a_column_has_for_all_rows_are_found_once(
    machine: Machine, dtype: str, rows: int, many: int, chosen: int
) -> None:
    """Rows of 70 bytes are short enough for registers, in which AVX2 picks from each by itself."""
    kernel, constants = lowered(f"""
    graph "columns in another order"
    dims r = {rows}, c = {many}, k = {chosen}
    %x : {dtype}{{r,c}} = input "x" [r, c]
    %at : i64{{k}} = input "at" [k]
    %y : {dtype}{{k,r}} = %x[r, c=select(%at[k] < 0, %at[k] + {many}, %at[k])]
    output "y" [r, k] = %y
    """)
    done = apply_schedule(kernel, choose(kernel, machine, constants).schedule)
    loops = [s.var for s in walk_loops(done.body)]
    apart = loops.index("k.o") < loops.index("r") if {"k.o", "r"} <= set(loops) else False
    assert apart == (rows > 1 and chosen > 4 * machine.width)
    rng = np.random.default_rng(0)
    at = rng.integers(-many, many, chosen)
    x = rng.integers(0, 100, (rows, many)).astype(kernel.buffer("x").dtype.numpy)
    y = np.zeros(rows * chosen, x.dtype)
    interpret_kernel(done, {"x": x.ravel(), "at": at, "y": y})
    np.testing.assert_array_equal(y.reshape(rows, chosen), x[:, at])


def test_a_loop_whose_few_iterations_only_its_simplified_size_tells_has_no_squares() -> None:
    """Every third of the last four columns of n are two at most, which have no whole block."""
    kernel, constants = lowered("""
        graph "last columns"
        symbols n = 0..2147483648
        dims d = 8, m = n, k = max((n - min(max(0, n - 4), n) + 2) // 3, 0)
        %x : f64{d,m} = input "x" [d, m]
        %y : f64{d,k} = %x[d, m=3*k + min(max(0, n - 4), n)]
        output "y" [d, k] = %y
    """)
    for machine in (x86.avx2(), x86.avx512()):
        done = apply_schedule(kernel, choose(kernel, machine, constants).schedule)
        x = np.arange(8 * 9, dtype=np.float64)
        y = np.zeros(8 * 2)
        interpret_kernel(done, {"x": x, "y": y}, {"n": 9})
        np.testing.assert_array_equal(y.reshape(8, 2), x.reshape(8, 9)[:, 5::3])
