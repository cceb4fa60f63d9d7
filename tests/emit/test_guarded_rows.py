"""Rows that may lie outside of what is read: their place is chosen before the loop along them."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted, run_kernel
from tests.emit.test_transpose import uses_gathers
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
    graph "rows"
    dims i = 6, p = 6, k = 3, c = {length}, o = 16
    %x : {type}{{i,c}} = input "x" [i, c]
    %w : {type}{{k,c,o}} = input "w" [k, c, o]
    %y : {type}{{p,o}} = sum{{k,c}} %x[i=p+3*k-3, c else {fill}] * %w[k, c, o]
    output "y" [p, o] = %y
"""
TILES = "split(p, 3); reorder([p.o, p.i, o]); tile([p.i, o], [unroll, vector]); "
ALONG = TILES + "reorder([k, c]); split(c, 2); mark(c.i, unroll)"
ACROSS = TILES + "reorder([c, k])"


def rows(length: int, steps: str, fill: str = "0.0", dtype: str = "f32") -> Kernel:
    source = SOURCE.format(length=length, fill=fill, type=dtype)
    return apply_schedule(kernel_of(source), parse_schedule(steps))


def choices(kernel: Kernel, machine: Machine) -> set[str]:
    """The types of what is chosen by tests."""
    return set(re.findall(r"select i1 \S+, (\S+) ", emit_kernel(kernel, machine).text))


@on_machines
@pytest.mark.parametrize(("fill", "dtype"), [("0.0", "f32"), ("1.5", "f32"), ("-2", "i32")])
def test_the_place_of_a_row_is_chosen_once(machine: Machine, fill: str, dtype: str) -> None:
    kernel = rows(8, ALONG, fill, dtype)
    assert choices(kernel, machine) == {"ptr"}
    rng = np.random.default_rng(1)
    numpy = kernel.args[0].dtype.numpy
    sizes = {"x": 6 * 8, "w": 3 * 8 * 16, "y": 6 * 16}
    given = {name: rng.integers(-3, 4, size).astype(numpy) for name, size in sizes.items()}
    run_as_interpreted(kernel, machine, given)


@on_machines
def test_fills_take_a_line_of_each_set_at_most(machine: Machine) -> None:
    most = machine.l1_way_bytes // 4
    assert choices(rows(most, ALONG), machine) == {"ptr"}
    assert "ptr" not in choices(rows(most + 2, ALONG), machine)


@on_machines
def test_rows_that_the_innermost_loop_tests_have_no_place(machine: Machine) -> None:
    assert "ptr" not in choices(rows(8, ACROSS), machine)


PICTURES = """
    graph "windows of pictures, as many as a run has"
    symbols pictures = 0..99
    dims n = pictures, c = 3, u = 34, x = 17, k = 3
    %x : f32{n,c,u} = input "x" [n, c, u]
    %y : f32{n,c,x} = max{k} %x[n, c, u=2*x+k-1 else 0.0]
    output "y" [n, c, x] = %y
"""


@on_machines
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_fused_number_of_pictures_is_not_tested(machine: Machine, count: int) -> None:
    """The picture is `n_c // 3`, of an n_c that ends at 3*pictures."""
    steps = "reorder([n, c, x]); fuse(n, c, n_c); mark(n_c, parallel); "
    steps += "tile([x], [vector]); mark(k, unroll)"
    kernel = apply_schedule(kernel_of(PICTURES), parse_schedule(steps))
    assert not uses_gathers(kernel, machine)
    x = np.random.default_rng(0).random(count * 3 * 34, np.float32) - 0.5
    buffers = {"x": x, "y": np.zeros(count * 3 * 17, np.float32)}
    run_kernel(kernel, machine, buffers, {"pictures": count})
    rows = np.pad(x.reshape(-1, 34), [(0, 0), (1, 0)])
    want = np.max([rows[:, k::2][:, :17] for k in range(3)], axis=0)
    np.testing.assert_array_equal(buffers["y"].reshape(-1, 17), want)


PADDED = """
    graph "rows with their edges"
    dims i = 3, x = 53, o = 67
    %x : {type}{{i,x}} = input "x" [i, x]
    %y : {type}{{i,o}} = %x[i, x=o-5 else {fill}]
    output "y" [i, o] = %y
"""


@on_machines
@pytest.mark.parametrize(
    ("dtype", "fill"), [("u8", "7"), ("i16", "0"), ("f16", "0.0"), ("f32", "1.5")]
)
@pytest.mark.parametrize("lanes", [8, 32, 64, 160])
def test_lanes_beyond_a_row_are_left_out(
    machine: Machine, dtype: str, fill: str, lanes: int
) -> None:
    """Vectors reach beyond both ends of rows, those of the first and last row beyond the buffer."""
    steps = f"split(o, {lanes}); mark(o.i, vector)" if lanes < 67 else "mark(o, vector)"
    source = PADDED.format(type=dtype, fill=fill)
    kernel = apply_schedule(kernel_of(source), parse_schedule(steps))
    numpy = kernel.args[0].dtype.numpy
    x = np.random.default_rng(2).integers(0, 100, 3 * 53).astype(numpy)
    run_as_interpreted(kernel, machine, {"x": x, "y": np.zeros(3 * 67, numpy)})


@on_machines
def test_lanes_are_told_by_numbers_as_long_as_elements(machine: Machine) -> None:
    """A loop tells where a vector begins: its lanes' numbers are compared, no places of 64 bits."""
    for dtype, bits in ("u8", 8), ("i16", 16), ("f32", 32):
        fill = "0.0" if dtype == "f32" else "0"
        source = PADDED.format(type=dtype, fill=fill).replace("67", "64")
        kernel = apply_schedule(
            kernel_of(source), parse_schedule("split(o, 16); mark(o.i, vector)")
        )
        compared = re.findall(r"icmp \S+ <\d+ x i(\d+)>", emit_kernel(kernel, machine).text)
        assert set(compared) == {str(bits)}
