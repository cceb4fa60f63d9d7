"""Products of any number of rows, which are taken in chunks of tiles, the last ones made even."""

from pathlib import Path

import numpy as np
import pytest

from rutc.driver.parts.build import Builder
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import BlockReduction, Even, Peel, Split, Tile
from rutc.tensor_ir.textual.parse import parse
from tests.compiled import build, run
from tests.conformance.guarded import guarded_copy
from tests.machines import V3, V4, needs, on_native_and_v3

LONG, WIDE = 1536, 100
SOURCE = f"""
graph "product of any number of rows"
symbols n = 1..8, m = 0..200
dims b = n, i = m, j = {WIDE}, k = {LONG}
%x : f32{{b,i,k}} = input "x" [b, i, k]
%w : f32{{j,k}} = input "w" [k, j]
%y : f32{{b,i,j}} = sum{{k}} %x[b, i, k] * %w[j, k]
output "y" [b, i, j] = %y
"""


@on_native_and_v3
def test_every_row_is_computed_whatever_their_number(machine: Machine, tmp_path: Path) -> None:
    library = build(decide(optimize(parse(SOURCE)), machine), machine, tmp_path)
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, (LONG, WIDE)).astype(np.float32)
    for n, m in ((1, 0), (1, 1), (1, 7), (3, 3), (1, 17), (5, 5), (1, 167), (8, 21), (1, 169)):
        x = rng.integers(-4, 5, (n, m, LONG)).astype(np.float32)
        for threads in (1, 2):
            np.testing.assert_array_equal(run(library, {"x": x, "w": w}, threads)["y"], x @ w)


def few(most: int, wide: int) -> str:
    """A product of at most so many rows."""
    return f"""
    graph "product of few rows"
    symbols n = 1..{most}@{most}
    dims i = n, j = {wide}, k = 1031
    %x : f32{{i,k}} = input "x" [i, k]
    %w : f32{{j,k}} = input "w" [k, j]
    %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
    output "y" [i, j] = %y
    """


@pytest.mark.parametrize(
    ("machine", "most", "wide"),
    [
        pytest.param(V3, 6, 258, marks=needs(V3), id="x86-64-v3"),
        pytest.param(V4, 8, 600, marks=needs(V4), id="x86-64-v4"),
    ],
)
def test_rows_that_a_tile_holds_however_many_there_are_go_into_one(
    machine: Machine, most: int, wide: int, tmp_path: Path
) -> None:
    """No row is done twice, and no sum is kept for the next tile, as there is none."""
    plan = decide(optimize(parse(few(most, wide))), machine)
    schedules = []
    builder = Builder(plan, machine, "m", 1, code=False)
    builder.on_draft = lambda _, made, draft: schedules.append(draft.schedule)
    builder.build()
    (schedule,) = schedules
    (tile,) = (s for s in schedule if isinstance(s, Tile))
    split = {s.var for s in schedule if isinstance(s, Split)}
    assert tile.kinds[0] is Kind.UNROLL
    assert tile.loops[0] not in {f"{v}.i" for v in split}
    assert not any(isinstance(s, Even | BlockReduction) for s in schedule)
    library = build(plan, machine, tmp_path)
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, (1031, wide)).astype(np.float32)
    for rows in range(1, most + 1):
        x = rng.integers(-4, 5, (rows, 1031)).astype(np.float32)
        np.testing.assert_array_equal(run(library, {"x": x, "w": w}, 2)["y"], x @ w)


ALONG_LANES = """
graph "product whose lanes lie along rows of any number"
symbols n = 1..1000@256
dims i = n, j = 256, k = 256
%x : f32{i,k} = input "x" [k, i]
%w : f32{j,k} = input "w" [j, k]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [j, i] = %y
"""


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(V3, marks=needs(V3), id="x86-64-v3"),
        pytest.param(V4, marks=needs(V4), id="x86-64-v4"),
    ],
)
def test_no_register_of_the_last_tile_is_computed_that_a_run_leaves_idle(
    machine: Machine, tmp_path: Path
) -> None:
    plan = decide(optimize(parse(ALONG_LANES)), machine)
    schedules = []
    builder = Builder(plan, machine, "m", 1, code=False)
    builder.on_draft = lambda _, made, draft: schedules.append(draft.schedule)
    builder.build()
    (schedule,) = schedules
    (tile,) = (s for s in schedule if isinstance(s, Tile))
    lanes = tile.loops[tile.kinds.index(Kind.VECTOR)].removesuffix(".i")
    (split,) = (s for s in schedule if isinstance(s, Split) and s.var == lanes)
    assert split.factor > machine.width
    rests = tuple(range(machine.width, split.factor, machine.width))
    assert Peel(f"{lanes}.o", rests) in schedule
    library = build(plan, machine, tmp_path)
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, (256, 256)).astype(np.float32)
    for n in range(1, 3 * split.factor + 2):
        x = rng.integers(-4, 5, (256, n)).astype(np.float32)
        x[rng.integers(256), rng.integers(n)] = np.nan
        got = run(library, {"x": guarded_copy(x), "w": w}, 1 + n % 2)["y"]
        np.testing.assert_array_equal(got, w @ x)
