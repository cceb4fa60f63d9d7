"""Products of whole numbers that 16 bits hold: what the interpreter gives, by one instruction."""

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.short_product import PAIRS
from rutc.tensor_ir import Cast, DType, Lit, Read, apply
from rutc.tensor_ir.facts.products import limits_of
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, on_machines
from tests.tensor_ir.test_steps import kernel_of

TAPS = """
graph "taps"
dims c = 32, k = 4
%x : u8{{c,k}} = input "x" [k, c]
%w : {kind}{{c,k}} = input "w" [k, c]
%y : i32{{c}} = sum{{k}} (i32(%x[c, k]) - {zero}) * (i32(%w[c, k]) - {other})
output "y" [c] = %y
"""
SCHEDULE = "split(c, {lanes}); tile([c.i], [vector])"


def taps(
    machine: Machine, kind: str = "u8", zero: int = 22, other: int = 103, lanes: int = 0
) -> tuple[Kernel, dict[str, np.ndarray]]:
    """The scheduled kernel and its arguments, which have all pairs of the ends of their types."""
    graph = TAPS.format(kind=kind, zero=zero, other=other)
    schedule = parse_schedule(SCHEDULE.format(lanes=lanes or machine.width))
    kernel = apply_schedule(kernel_of(graph), schedule)
    memory = {b.name: np.zeros(b.layout.elements, b.dtype.numpy) for b in kernel.args}
    rng = np.random.default_rng(0)
    for name, numbers in memory.items():
        if name != "y":
            ends = np.iinfo(numbers.dtype)
            numbers[:] = rng.choice([ends.min, ends.min + 1, ends.max // 2, ends.max], numbers.size)
    return kernel, memory


@on_machines
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(
    ("kind", "zero", "other"),
    [("u8", 22, 103), ("u8", 255, 255), ("i8", 1, -128), ("i8", 128, 127), ("i16", 1, 0)],
)
def test_code_gives_what_the_interpreter_does(
    kind: str, zero: int, other: int, lanes: int, machine: Machine
) -> None:
    kernel, memory = taps(machine, kind, zero, other, min(lanes, machine.width))
    interpret_kernel(kernel, memory)
    _, again = taps(machine, kind, zero, other)
    run_kernel(kernel, machine, again)
    assert again["y"].tobytes() == memory["y"].tobytes()


@pytest.mark.parametrize("machine", [V3, V4])
def test_an_instruction_for_pairs_multiplies_short_numbers(machine: Machine) -> None:
    assert PAIRS[machine.width] in emit_kernel(taps(machine)[0], machine).text


@pytest.mark.parametrize(("kind", "zero"), [("u8", 0), ("i16", 1)])
def test_others_are_multiplied_in_32_bits(kind: str, zero: int) -> None:
    """Factors without a sign, which LLVM sees, and those that 16 bits may not hold."""
    kernel, _ = taps(V4, kind, zero, other=zero)
    assert PAIRS[V4.width] not in emit_kernel(kernel, V4).text


def test_bounds_are_those_of_narrow_parts() -> None:
    q = Cast(Read("q", (), DType.U8), DType.I32)
    assert limits_of(q) == (0, 255)
    assert limits_of(apply("sub", q, Lit(103, DType.I32))) == (-103, 152)
    assert limits_of(apply("add", q, apply("sub", q, q))) == (-255, 510)
    assert limits_of(Read("p", (), DType.I32)) is None
