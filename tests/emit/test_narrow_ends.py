"""The last register of a vector loop has as few lanes as are left for it, and no mask then."""

import re
from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import Nest
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.facts.narrow_ends import end_lanes, has_narrow_ends
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule
from rutc.tensor_ir.textual.parse import parse
from tests.close import assert_close
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, on_machines

PRODUCT = """
graph "product"
dims i = 3, j = {columns}, k = 4
%x : f32{{i,k}} = input "x" [i, k]
%w : f32{{j,k}} = input "w" [k, j]
%y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
SCALED = """
graph "scaled"
dims i = 3, j = {columns}
%x : f32{{i,j}} = input "x" [i, j]
%y : f32{{i,j}} = %x[i, j] * 2.0
output "y" [i, j] = %y
"""
CHOSEN = """
graph "chosen"
dims i = 3, j = {columns}, n = 100
%x : i64{{i,j}} = input "x" [i, j]
%w : f32{{n}} = input "w" [n]
%y : f32{{i,j}} = %w[n=%x[i, j]]
output "y" [i, j] = %y
"""
TILED = "tile([i, j], [unroll, vector]); mark(k, unroll)"
ROWS = "mark(j, vector)"


def scheduled(source: str, columns: int, schedule: str) -> Kernel:
    """The kernel of a graph's only nest for so many columns."""
    graph = parse(source.format(columns=columns))
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    orders = re.findall(r"^(?:%(\w+) : .*input .*|output .y.) \[(.*)\]", str(graph), re.MULTILINE)
    layouts = {name or "y": dense(tuple(o.split(", ")), graph.extents) for name, o in orders}
    group = Group("g", (nest,), ("i", "j"), ("y",))
    kernel = lower(group, graph.values, layouts, graph.extents, dict(graph.symbols))
    return apply_schedule(kernel, parse_schedule(schedule))


def widths(kernel: Kernel, machine: Machine) -> set[int]:
    """The lanes of the vectors that a kernel's code stores; 0 for some with a mask."""
    text = emit_kernel(kernel, machine).text
    found = {int(n) for n in re.findall(r"store <(\d+) x float>", text)}
    return found | ({0} if "masked.store" in text else set())


def test_lanes_that_are_left_fill_a_narrower_register() -> None:
    assert widths(scheduled(PRODUCT, 24, TILED), V4) == {16, 8}
    assert widths(scheduled(PRODUCT, 20, TILED), V4) == {16, 4}
    assert widths(scheduled(SCALED, 12, ROWS), V3) == {8, 4}
    assert widths(scheduled(SCALED, 18, ROWS), V4) == {16, 0}
    # More than half of a register, which two would take as long for.
    assert widths(scheduled(PRODUCT, 28, TILED), V4) == {16, 0}


def test_sums_keep_whole_registers_where_masks_are_none() -> None:
    assert not has_narrow_ends(scheduled(PRODUCT, 12, TILED), V3)
    assert has_narrow_ends(scheduled(PRODUCT, 12, TILED), V4)
    assert has_narrow_ends(scheduled(SCALED, 12, ROWS), V3)


def test_what_data_choose_is_picked_in_whole_registers() -> None:
    assert not has_narrow_ends(scheduled(CHOSEN, 24, ROWS), V4)
    assert has_narrow_ends(scheduled(SCALED, 24, ROWS), V4)


def test_no_end_is_narrower_than_the_narrowest_vectors() -> None:
    assert [end_lanes(V4, n, 16) for n in (16, 17, 20, 21, 24, 25, 31, 32)] == [
        *(16, 4, 4, 8, 8, 16, 16, 16)
    ]
    assert end_lanes(V3, 9, 8) == 4


@on_machines
@pytest.mark.parametrize("columns", [*range(1, 21), 23, 24, 25, 31, 36, 40, 56])
def test_any_number_of_columns(machine: Machine, columns: int) -> None:
    rng = np.random.default_rng(columns)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, columns)))
    x[1, 2], w[0, -1], w[3, columns // 2] = np.nan, np.inf, -np.inf
    y = np.full(3 * columns + 64, 100, np.float32)
    memory = {"x": x.reshape(-1), "w": w.reshape(-1), "y": y}
    run_kernel(scheduled(PRODUCT, columns, TILED), machine, memory, {}, 1)
    with np.errstate(invalid="ignore"):
        wanted = x @ w
    assert_close(y[: 3 * columns].reshape(3, columns), wanted, reduction=4)
    assert (y[3 * columns :] == 100).all()
    x = np.append(rng.standard_normal(3 * columns - 1).astype(np.float32), np.float32(np.inf))
    y = np.full(3 * columns + 64, 100, np.float32)
    run_kernel(scheduled(SCALED, columns, ROWS), machine, {"x": x, "y": y}, {}, 1)
    np.testing.assert_array_equal(y[: 3 * columns], x * np.float32(2))
    assert (y[3 * columns :] == 100).all()


@pytest.mark.parametrize(("rate", "share"), [(1.0, 0.75), (2.0, 1.0)])
def test_half_a_register_counts_as_half_where_units_are_as_wide(rate: float, share: float) -> None:
    machine = replace(V4, fma_per_cycle=rate)

    def multiply_adds(columns: int) -> float:
        summary = summarise(scheduled(PRODUCT, columns, TILED), machine)
        return sum(r.work.get("multiply_adds", 0.0) for r in summary.regions)

    assert multiply_adds(24) == share * multiply_adds(32)
