"""Short rows that a kernel keeps for itself: whole vectors are stored and overwrite nothing."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from tests.emit.run_kernel import run_as_interpreted
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

ROWS = """
graph "rows"
dims n = 7, c = {c}
%x : f32{{n,c}} = input "x" [n, c]
%m : f32{{n}} = max{{c}} %x[n, c]
%e : f32{{n,c}} = %m[n] - %x[n, c]
%s : f32{{n}} = sum{{c}} %e[n, c]
%y : f32{{n,c}} = %e[n, c] * %s[n]
output "y" [n, c] = %y
"""
"""Of whole numbers, so that code and interpreter compute the same."""
OF_TWO = """
graph "pairs"
dims n = 7, d = 2, c = {c}
%x : f32{{n,d,c}} = input "x" [n, d, c]
%m : f32{{n}} = max{{d,c}} %x[n, d, c]
%e : f32{{n,d,c}} = %m[n] - %x[n, d, c]
%s : f32{{n}} = sum{{d,c}} %e[n, d, c]
%y : f32{{n,d,c}} = %e[n, d, c] * %s[n]
output "y" [n, d, c] = %y
"""


def scheduled(text: str, machine: Machine) -> Kernel:
    """The kernel of a graph's nests with its default schedule."""
    kernel = kernel_of(text)
    return apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)


@on_machines
@pytest.mark.parametrize("text", [ROWS, OF_TWO], ids=["one", "two"])
@pytest.mark.parametrize("c", [2, 3, 5, 7, 12, 15, 17, 20, 35])
def test_code_computes_what_the_interpreter_does(text: str, c: int, machine: Machine) -> None:
    kernel = scheduled(text.format(c=c), machine)
    memory = {b.name: np.zeros(b.layout.elements, np.float32) for b in kernel.args}
    memory["x"][:] = np.random.default_rng(c).integers(-9, 9, memory["x"].size)
    run_as_interpreted(kernel, machine, memory)


@on_machines
@pytest.mark.parametrize("c", [3, 5, 7])
def test_what_is_read_again_is_stored_in_whole_vectors(c: int, machine: Machine) -> None:
    text = emit_kernel(scheduled(ROWS.format(c=c), machine), machine).text
    (row,) = re.findall(r"(%\w+) = alloca \[\d+ x float\]", text)
    stores = re.findall(rf"(?:store|masked\.store).*ptr {row}\b.*", text)
    assert len(stores) == 1
    assert re.match(r"store <(4|8) x float> ", stores[0])
