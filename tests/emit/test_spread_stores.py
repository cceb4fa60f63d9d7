"""Stores of lanes near each other: whole registers of which the rest is masked out."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.emit.loads.spread_store import runs_of
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted
from tests.emit.test_transpose import uses_gathers
from tests.machines import V3, V4, on_machines
from tests.tensor_ir.test_steps import kernel_of

pytestmark = pytest.mark.sampled(8)

PACKED = {"columns of pairs": {"x": 16, "r": 2}, "columns of fours": {"x": 16, "r": 4}}
"""Blocks of layouts in which rows are read by instructions that add up products of neighbours."""


def stored(rows: int, n: int, dtype: DType, blocks: dict[str, int], lanes: str = "x") -> Kernel:
    """%b [x, r] = %a [r, x], vectors along x or r."""
    extents = {"r": rows, "x": n}
    a, b = (Value(name, dtype, ("r", "x")) for name in "ab")
    read = Read("a", (("r", Index.of("r")), ("x", Index.of("x"))), dtype)
    group = Group("stores", (Nest((b,), (), None, (read,)),), ("r", "x"), ("b",))
    layouts: dict[str, Layout] = {"a": dense(("r", "x"), extents)}
    layouts["b"] = dense(("x", "r"), extents, blocks=blocks)
    kernel = lower(group, {"a": a, "b": b}, layouts, extents)
    around = "r" if lanes == "x" else "x"
    schedule = f"reorder([{around}, {lanes}]); mark({lanes}, vector)"
    return apply_schedule(kernel, parse_schedule(schedule))


def memory(kernel: Kernel, dtype: DType) -> dict[str, np.ndarray]:
    """Buffers of a kernel, other numbers everywhere."""
    rng = np.random.default_rng(0)
    sizes = {b.name: int(Index.of(b.layout.size).const) for b in kernel.args}
    return {v: rng.integers(0, 100, size).astype(dtype.numpy) for v, size in sizes.items()}


@on_machines
@pytest.mark.parametrize("lanes", ["x", "r"])
@pytest.mark.parametrize("rows", [2, 3, 4, 7, 37])
@pytest.mark.parametrize("n", [2, 7, 16, 19, 48, 61])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.U8, DType.BF16, DType.BOOL], ids=str)
@pytest.mark.parametrize("blocks", [{}, *PACKED.values()], ids=["rows", *PACKED])
def test_lanes_apart(
    machine: Machine, rows: int, n: int, dtype: DType, blocks: dict[str, int], lanes: str
) -> None:
    """What lies between them stays as it is, and so does all around."""
    kernel = stored(rows, n, dtype, blocks, lanes)
    run_as_interpreted(kernel, machine, memory(kernel, dtype))


@on_machines
@pytest.mark.parametrize("lanes", [17, 33])
def test_the_last_vector_has_one_lane_that_counts(machine: Machine, lanes: int) -> None:
    """Its index is known to be that lane's alone; what a register holds has all lanes."""
    kernel = kernel_of(f"""
        graph "a part for each of four threads"
        dims i = 2, j = {lanes}, k = 2
        %a : f32{{i,j,k}} = input "a" [i, j, k]
        %b : f32{{i,j,k}} = %a[i, j, k] + 0.5
        %c : bool{{i,j,k}} = isnan(%b[i, j, k])
        output "b" [i, j, k] = %b
        output "c" [i, j, k] = %c
    """)
    steps = f"fuse(j, k, jk); fuse(i, jk, ijk); split(ijk, {lanes}); mark(ijk.i, vector)"
    kernel = apply_schedule(kernel, parse_schedule(steps))
    places = {b.name: int(Index.of(b.layout.size).const) for b in kernel.args}
    a = np.arange(places["a"], dtype=np.float32)
    a[::3] = np.nan
    b, c = np.zeros(places["b"], np.float32), np.zeros(places["c"], np.bool_)
    run_as_interpreted(kernel, machine, {"a": a, "b": b, "c": c})


@pytest.mark.parametrize(
    ("dtype", "blocks"),
    [(DType.BF16, PACKED["columns of pairs"]), (DType.U8, PACKED["columns of fours"])],
    ids=str,
)
def test_one_store_has_all_lanes(dtype: DType, blocks: dict[str, int]) -> None:
    kernel = stored(8, 64, dtype, blocks)
    assert not uses_gathers(kernel, V4)
    text = compile_assembly(emit_kernel(kernel, V4).text, V4)
    assert len(re.findall(r"vmovdqu(?:8|16)\t%zmm\d+, .*\{%k\d\}", text)) in (1, 4)
    assert "vpextr" not in text
    # Without registers for masks each lane has its own, at a place that needs no arithmetic.
    assert not uses_gathers(kernel, V3)


def test_lanes_far_apart_have_their_own() -> None:
    assert uses_gathers(stored(37, 64, DType.F32, {}), V4)
    assert not uses_gathers(stored(4, 64, DType.F32, {}), V4)


@pytest.mark.parametrize("machine", [V3, V4], ids=lambda m: m.name)
def test_neighbours_among_bytes_far_apart_are_stored_together(machine: Machine) -> None:
    """Where %b has pairs of rows side by side, lanes along rows lie two by two."""
    kernel = stored(64, 32, DType.BF16, PACKED["columns of pairs"], "r")
    text = emit_kernel(kernel, machine).text
    assert text.count("store <2 x i16>") == machine.width // 2 * (64 // machine.width)
    assert "masked.scatter" not in text


def test_runs_of_lanes() -> None:
    assert runs_of({0: 0, 1: 1, 2: 64, 3: 65, 4: 66}) == [(0, 2), (2, 2), (4, 1)]
    assert runs_of({1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 7: 6, 8: -1}) == [(1, 4), (5, 1), (7, 1), (8, 1)]
