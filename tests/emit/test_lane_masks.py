"""Masks of vectors whose last lanes are no iterations: equal ones of a block are one."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule
from rutc.tensor_ir.textual.parse import parse
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, needs, on_machines

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


DOUBLE_PUMPED = replace(V4, fma_per_cycle=1.0, half_fma_per_cycle=2.0)
"""A machine whose operations on whole registers take two cycles, those on halves one."""
WHOLE = "reorder([i, j]); tile([i, j], [unroll, vector]); mark(k, unroll)"


def product(dtype: str, columns: int | None = None) -> Kernel:
    """Three rows by vectors of columns, of which a run tells how many there are if not `columns`.

    Where it is known, a tile has all of them.
    """
    source = SOURCE.format(dtype=dtype)
    if columns is not None:
        source = source.replace("symbols columns = 0..40\n", "")
        source = source.replace("j = columns", f"j = {columns}")
    graph = parse(source)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    orders = (("x", "ik"), ("w", "kj"), ("y", "ij"))
    layouts = {v: dense(order, graph.extents) for v, order in orders}
    group = Group("g", (nest,), ("i", "j"), ("y",))
    kernel = lower(group, graph.values, layouts, graph.extents, dict(graph.symbols))
    steps = TILED.strip() if columns is None else WHOLE
    return apply_schedule(kernel, parse_schedule(steps))


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


@needs(V4)
@pytest.mark.parametrize("columns", [1, 7, 9, 16, 17, 23, 24, 25, 31, 33, 40, 41, 49])
@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_the_lanes_of_half_registers_are_the_last_columns(columns: int, dtype: str) -> None:
    rng = np.random.default_rng(columns)
    numpy = {"f32": np.float32, "i16": np.int16}[dtype]
    x, w = (rng.integers(-9, 9, shape).astype(numpy) for shape in ((3, 4), (4, columns)))
    y = np.full(3 * columns + 64, 100, numpy)
    memory = {"x": x.reshape(-1), "w": w.reshape(-1), "y": y}
    run_kernel(product(dtype, columns), DOUBLE_PUMPED, memory, {}, 1)
    np.testing.assert_array_equal(y[: 3 * columns].reshape(3, columns), x @ w)
    assert (y[3 * columns :] == 100).all()


def test_half_a_register_costs_half_of_a_whole_one() -> None:
    """So an estimate finds 24 columns cheaper than 32 where halves are, and elsewhere as dear."""
    work = [
        summarise(product("f32", n), machine).work["multiply_adds"]
        for machine in (DOUBLE_PUMPED, V4)
        for n in (24, 32)
    ]
    assert work[0] == 0.75 * work[1]
    assert work[2] == work[3]
