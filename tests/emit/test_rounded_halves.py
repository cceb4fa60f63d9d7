"""Numbers of 16 bits that are rounded to whole ones: as vectors of 32 bits."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import V3, V4, runnable
from tests.tensor_ir.test_steps import kernel_of

SOURCE = """
graph "halves"
dims i = 65536
%x : f16{{i}} = input "x" [i]
%y : f16{{i}} = {op}(%x[i])
output "y" [i] = %y
"""


@pytest.mark.parametrize("machine", [V3, V4], ids=lambda m: m.name)
@pytest.mark.parametrize("op", ["floor", "ceil", "round"])
def test_all_halves_are_rounded_in_vectors(machine: Machine, op: str) -> None:
    kernel = kernel_of(SOURCE.format(op=op))
    scheduled = apply_schedule(kernel, parse_schedule("split(i, 32); mark(i.i, vector)"))
    code = compile_assembly(emit_kernel(scheduled, machine).text, machine)
    assert re.search(r"v(round|rndscale)ps", code)
    assert not re.search(r"v(round|rndscale)ss", code)
    if runnable(machine):
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        run_as_interpreted(scheduled, machine, {"x": x, "y": np.zeros_like(x)})
