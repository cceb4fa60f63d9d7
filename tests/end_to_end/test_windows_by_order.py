"""The largest and smallest floats of 16 bits in windows, of all that there are."""

from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.pipeline import pipeline_for
from rutc.tensor_ir import DType
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from tests.compiled import build, run
from tests.machines import on_machines


@on_machines
@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
@pytest.mark.parametrize(("how", "fill"), [("max", "-inf"), ("min", "inf"), ("max", "-1.5")])
def test_all_numbers_are_ordered(
    tmp_path: Path, machine: Machine, kind: DType, how: str, fill: str
) -> None:
    graph = parse(f"""
graph "windows"
dims h = 256, w = 256, y = 256, x = 127, i = 3, j = 3
%v : {kind}{{h,w}} = input "v" [h, w]
%o : {kind}{{y,x}} = {how}{{i,j}} %v[h=y + i - 1, w=2*x + j - 1 else {fill}]
output "o" [y, x] = %o
""")
    bits = np.random.default_rng(0).permutation(1 << 16).astype(np.uint16).reshape(256, 256)
    v = bits.view(kind.numpy)
    want = interpret(graph, {"v": v})["o"].astype(np.float32)
    optimized = optimize(graph, pipeline=pipeline_for(machine))
    assert "bits_u16" in str(optimized)
    library = build(decide(optimized, machine), machine, tmp_path)
    got = run(library, {"v": v}, threads=2)["o"].astype(np.float32)
    np.testing.assert_array_equal(got, want)
