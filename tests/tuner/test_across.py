"""Copies that change which dim is contiguous: in which order squares are turned."""

import numpy as np
import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kind, Loop, walk_stmts
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from tests.tuner.test_schedules import lowered

COPY = """
graph "channels to the end"
dims p = 49, c = 1024
%x : f32{c,p} = input "x" [c, p]
%y : f32{c,p} = %x[c, p]
output "y" [p, c] = %y
"""


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
    done = apply_schedule(kernel, choose(kernel, x86.avx2(), constants).schedule)
    loops = [s.var for s in walk_stmts(done.body) if isinstance(s, Loop)]
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
    vectors = [s.var for s in walk_stmts(done.body) if isinstance(s, Loop)]
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
    loops = [s for s in walk_stmts(done.body) if isinstance(s, Loop) and s.kind is Kind.VECTOR]
    assert {s.var.partition(".")[0] for s in loops} == {vector}
