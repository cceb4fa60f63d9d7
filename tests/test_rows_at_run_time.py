"""Products of any number of rows, which are taken in chunks of tiles, the last ones made even."""

from pathlib import Path

import numpy as np

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from tests.compiled import build, run
from tests.machines import on_native_and_v3

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
