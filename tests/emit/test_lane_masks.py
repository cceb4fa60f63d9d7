"""Masks of vectors whose last lanes are no iterations: equal ones of a block are one."""

import re
from collections import Counter

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.steps import apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, on_machines

SOURCE = """
graph "product"
symbols columns = 0..40
dims i = 3, j = columns, k = 4
%x : {dtype}{{i,k}} = input "x" [i, k]
%w : {dtype}{{j,k}} = input "w" [k, j]
%y : {dtype}{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
TILED = """
split(j, 32); reorder([j.o, i, j.i]); tile([i, j.i], [unroll, vector]); mark(k, unroll)
"""


def product(dtype: str) -> Kernel:
    """Three rows by vectors of columns, of which a run tells how many there are."""
    graph = parse(SOURCE.format(dtype=dtype))
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    orders = (("x", "ik"), ("w", "kj"), ("y", "ij"))
    layouts = {v: dense(order, graph.extents) for v, order in orders}
    group = Group("g", (nest,), ("i", "j"), ("y",))
    kernel = lower(group, graph.values, layouts, graph.extents, dict(graph.symbols))
    return apply_schedule(kernel, parse_schedule(TILED.strip()))


@pytest.mark.parametrize("machine", [V3, V4], ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_equal_masks_of_a_block_are_made_once(machine: Machine, dtype: str) -> None:
    text = emit_kernel(product(dtype), machine).text
    blocks = re.split(r"^\S+:$", text, flags=re.MULTILINE)
    compared = [re.findall(r"icmp slt (<\d+ x i32> <i32 [^>]*>, \S+)", block) for block in blocks]
    ends = [re.findall(r"trunc (i64 \S+) to i32", block) for block in blocks]
    assert max(map(len, compared)) >= 32 // machine.lanes(32)
    for made in (*compared, *ends):
        assert not [x for x, count in Counter(made).items() if count > 1]


@on_machines
@pytest.mark.parametrize("columns", [0, 1, 7, 16, 17, 31, 32, 33, 40])
@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_lanes_behind_the_end_are_left_alone(machine: Machine, columns: int, dtype: str) -> None:
    rng = np.random.default_rng(columns)
    numpy = {"f32": np.float32, "i16": np.int16}[dtype]
    x, w = (rng.integers(-9, 9, shape).astype(numpy) for shape in ((3, 4), (4, columns)))
    y = np.full(3 * columns + 64, 100, numpy)
    memory = {"x": x.reshape(-1), "w": w.reshape(-1), "y": y}
    run_kernel(product(dtype), machine, memory, {"columns": columns}, 1)
    np.testing.assert_array_equal(y[: 3 * columns].reshape(3, columns), x @ w)
    assert (y[3 * columns :] == 100).all()


def test_whole_registers_are_stored_without_a_mask_where_there_are_none() -> None:
    """A run asks whether the loop ends before a register does, but for masks in registers."""
    text = emit_kernel(product("f32"), V3).text
    masked = len(re.findall(r"call void @llvm\.masked\.store\.v8f32", text))
    whole = re.findall(r"^whole\S*:\n +store <8 x float>.*\n +br ", text, flags=re.MULTILINE)
    assert len(whole) == masked > 0
    text = emit_kernel(product("f32"), V4).text
    assert "call void @llvm.masked.store.v16f32" in text
    assert not re.search(r"^whole\S*:", text, flags=re.MULTILINE)
