"""Rows whose number a run tells: vectors across those that are left over are transposed, too."""

from collections.abc import Mapping

import numpy as np
import pytest

from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.expr import Read, point
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.indices.affine import Range, Size
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.reducer import reducer
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.emit.test_transpose import uses_gathers
from tests.machines import V3, V4, on_machines

pytestmark = pytest.mark.sampled(8)

COLUMNS = 38
"""So many elements of a row are read, as one whole square, a second one and some of a third."""


def largest(dtype: DType, symbols: Mapping[str, Range], steps: str) -> Kernel:
    """Returns %y[i] = max{k} %x[i, k] for n rows that a run counts, scheduled."""
    extents: dict[str, Size] = {"i": Index.of("n"), "k": COLUMNS}
    x, y = Value("x", dtype, ("i", "k")), Value("y", dtype, ("i",))
    body = Read("x", point(x.dims), dtype)
    nest = Nest((y,), ("k",), reducer("max", dtype), (body,))
    layouts = {v.name: dense(v.dims, extents) for v in (x, y)}
    group = Group("largest", (nest,), y.dims, ("y",))
    kernel = lower(group, {"x": x, "y": y}, layouts, extents, symbols)
    return apply_schedule(kernel, parse_schedule(steps))


def in_blocks(dtype: DType, lanes: int) -> Kernel:
    """Returns the kernel with so many rows side by side, and those that are left over."""
    steps = f"split(i, {lanes}); peel(i.o); tile([i.i], [vector]); mark(k, unroll)"
    return largest(dtype, {"n": (0, 100)}, steps)


@on_machines
@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("fence", ["begin", "end"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.I8, DType.F64], ids=str)
def test_rows_that_are_left_over_are_read_and_no_others(
    machine: Machine, dtype: DType, fence: str, vectors: int
) -> None:
    kernel = in_blocks(dtype, machine.width * vectors)
    for rows in (0, 1, 2, 7, 8, 15, 16, 17, 31, 33):
        draw = np.random.default_rng(rows)
        given = draw.integers(-100, 100, (rows, COLUMNS)).astype(dtype.numpy)
        if dtype is DType.F32 and rows:
            given[-1, -1], given[0, 3] = np.nan, np.inf
        out = np.zeros(rows, dtype.numpy)
        buffers = {"x": given.reshape(-1), "y": out}
        run_kernel(kernel, machine, buffers, {"n": rows}, fence=fence)
        np.testing.assert_array_equal(out, given.max(axis=1))


@on_machines
def test_rows_that_are_left_over_need_no_gathers(machine: Machine) -> None:
    assert not uses_gathers(in_blocks(DType.F32, machine.width), machine)


@pytest.mark.parametrize(("machine", "gathers"), [(V3, True), (V4, False)])
def test_bytes_are_loaded_by_rows_if_there_is_one_or_masks_tell(
    machine: Machine, gathers: bool
) -> None:
    for least, found in ((0, gathers), (1, False)):
        kernel = largest(DType.I8, {"n": (least, 32)}, "mark(i, vector); mark(k, unroll)")
        assert uses_gathers(kernel, machine) == found
