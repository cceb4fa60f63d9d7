"""Windows that pass along sizes of the run, in tiles of rows of a fixed size."""

from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from tests.compiled import build, run
from tests.machines import on_native_and_v3

HIGH, CHANNELS = 13, 45
SOURCE = f"""
graph "windows of any width"
symbols n = 1..3, m = 0..40
dims b = n, h = {HIGH}, w = m, c = {CHANNELS}, i = SIDE, j = SIDE
%x : f32{{b,c,h,w}} = input "x" [b, h, w, c]
%k : f32{{c,i,j}} = input "k" [i, j, c]
%u : f32{{b,c,h,w}} = %x[b, c, h, w] * 2.0
%y : f32{{b,c,h,w}} = sum{{i,j}} %u[b, c, h=h+i-REACH, w=w+j-REACH else 0.0] * %k[c, i, j]
output "y" [b, h, w, c] = %y
"""


@on_native_and_v3
@pytest.mark.parametrize("side", [3, 5])
def test_every_window_is_summed_whatever_the_width(
    side: int, machine: Machine, tmp_path: Path
) -> None:
    source = SOURCE.replace("SIDE", str(side)).replace("REACH", str(side // 2))
    library = build(decide(optimize(parse(source)), machine), machine, tmp_path)
    rng = np.random.default_rng(0)
    k = rng.integers(-4, 5, (side, side, CHANNELS)).astype(np.float32)
    for n, m in ((1, 0), (1, 1), (2, 2), (1, 4), (3, 5), (1, 17), (2, 40)):
        x = rng.integers(-4, 5, (n, HIGH, m, CHANNELS)).astype(np.float32)
        padded = np.pad(2 * x, ((0, 0), *[(side // 2, side // 2)] * 2, (0, 0)))
        expected = np.zeros_like(x)
        for i, j in np.ndindex(side, side):
            expected += padded[:, i : i + HIGH, j : j + m] * k[i, j]
        for threads in (1, 2):
            got = run(library, {"x": x, "k": k}, threads)["y"]
            np.testing.assert_array_equal(got, expected)
