"""How long slices are of a dim whose size a run tells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt.decide.decide import decide
from rutc.graph_opt.decide.slice_sizes import FEWEST_SLICES, TILE_VECTORS, least_size
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from tests.graph_opt.test_decide_slices import HEADS, check, in_part
from tests.machines import V3, V4

MERGED = f"""
graph "attention whose heads lie side by side in the end"
symbols batch = 0..1000@1, rows = 0..2147483648
dims b = batch, h = 4, k = 16, n = 16, s = rows, t = rows, d = 64
{HEADS}
%y : f32{{b,d,s}} = %u[b, h=d // 16, n=d % 16, s]
output "y" [b, s, d] = %y
"""


@pytest.mark.parametrize("machine", [V3, V4], ids=["AVX2", "AVX-512"])
def test_slices_fill_register_tiles_whose_lanes_lie_along_them(machine: Machine) -> None:
    """Four slices of four queries would each leave most lanes idle, and take as long as one."""
    plan = decide(parse(MERGED), replace(machine, l2=192 << 10))
    assert plan.assignment is not None
    (slicing,) = plan.assignment.slices
    assert slicing.dims == ("b", "s")
    assert slicing.within is not None
    (size,) = {s.size for g in plan.groups() for s in g.slices if s.dim == "s"}
    tile = TILE_VECTORS * machine.width
    for rows in (1, 4, 5, tile, tile + 1, 2 * tile):
        sizes = {"batch": 1, "rows": rows}
        assert Index.of(size).evaluate(sizes) == -(-rows // -(-rows // tile))
    # There is some for every thread where that costs no lanes.
    assert Index.of(size).evaluate({"batch": 1, "rows": FEWEST_SLICES * tile}) == tile


@pytest.mark.parametrize("rows", [1, 7, 33, 67])
def test_slices_of_whole_tiles_compute_the_same(rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shape = (2, rows, 4, 16)
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name in "qrv"}
    inputs["q"][0, 0, 0, 0] = np.nan
    inputs["v"][1, 0, 1, 0] = np.inf
    plan = check(MERGED, tmp_path, machine=replace(V4, l2=128 << 10), inputs=inputs)
    assert in_part(plan, "e")


def test_short_slices_cost_lanes_where_most_work_is_done_along_them() -> None:
    """Four slices take two threads 2*a + b/2, and one slice a thread a + b."""
    tile = TILE_VECTORS * V4.width
    assert least_size([(1000, 1, True), (2000, 1, False)], V4) == tile
    assert least_size([(1000, 1, True), (2001, 1, False)], V4) == 0
    assert least_size([(1000, 2, True), (1000, 3, True)], V4) == tile // 2
    assert least_size([(1000, 1, False)], V4) == 0
