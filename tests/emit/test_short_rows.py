"""Elements of short rows that data choose: code and meaning, and where rows are permuted."""

import re
from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, needs, on_machines
from tests.tensor_ir.test_steps import kernel_of

ROWS = """
graph "rows"
dims n = 3, k = 37, d = {d}
%x : {t}{{n,d}} = input "x" [n, d]
%at : i64{{k,n}} = input "at" [n, k]
%y : {t}{{k,n}} = %x[n, d=%at[k, n]]
output "y" [n, k] = %y
"""
SCHEDULE = "split(k, {lanes}); peel(k.o); tile([k.i], [vector])"


BYTES = replace(V4, features=V4.features | {"avx512vbmi"})
"""Its instructions pick bytes, too."""


def rows(
    kind: str, d: int, machine: Machine, lanes: int | None = None
) -> tuple[Kernel, dict[str, np.ndarray]]:
    """The scheduled kernel and its arguments; places beyond the row mean its ends."""
    schedule = parse_schedule(SCHEDULE.format(lanes=lanes or machine.width))
    kernel = apply_schedule(kernel_of(ROWS.format(t=kind, d=d)), schedule)
    rng = np.random.default_rng(d)
    memory = {b.name: np.zeros(b.layout.elements, b.dtype.numpy) for b in kernel.args}
    memory["x"][:] = rng.integers(-99, 99, memory["x"].size)
    memory["at"][:] = rng.integers(0, d, memory["at"].size)
    return kernel, memory


@on_machines
@pytest.mark.parametrize("d", [1, 7, 8, 9, 15, 16, 20, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("kind", ["f32", "i32", "f64"])
def test_code_chooses_what_the_interpreter_does(kind: str, d: int, machine: Machine) -> None:
    kernel, memory = rows(kind, d, machine)
    interpret_kernel(kernel, memory)
    for side in ("begin", "end"):
        _, again = rows(kind, d, machine)
        run_kernel(kernel, machine, again, fence=side)
        assert again["y"].tobytes() == memory["y"].tobytes()


@needs(BYTES)
@pytest.mark.parametrize("d", [1, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257])
@pytest.mark.parametrize(("kind", "lanes"), [("u8", 16), ("i8", 16), ("u8", 32), ("i8", 64)])
def test_code_chooses_bytes(kind: str, d: int, lanes: int) -> None:
    """Of up to four registers, for parts of one and whole ones, in the last iteration for fewer."""
    kernel, memory = rows(kind, d, BYTES, lanes)
    interpret_kernel(kernel, memory)
    for side in ("begin", "end"):
        _, again = rows(kind, d, BYTES, lanes)
        run_kernel(kernel, BYTES, again, fence=side)
        assert again["y"].tobytes() == memory["y"].tobytes()


@pytest.mark.parametrize(
    ("kind", "d", "machine", "permuted"),
    [
        ("f32", 16, V4, True),
        ("f32", 20, V4, True),
        ("i32", 64, V4, True),
        ("f32", 65, V4, False),
        ("f64", 16, V4, False),
        ("f32", 5, V3, True),
        ("i32", 32, V3, True),
        ("f32", 33, V3, False),
        ("f64", 8, V3, False),
        ("u8", 256, BYTES, True),
        ("i8", 100, BYTES, True),
        ("u8", 257, BYTES, False),
        ("f32", 65, BYTES, False),
    ],
)
def test_where_rows_are_permuted(kind: str, d: int, machine: Machine, permuted: bool) -> None:
    assembly = compile_assembly(emit_kernel(rows(kind, d, machine)[0], machine).text, machine)
    assert bool(re.search(r"\bvperm(?:[it]2)?(?:b|d|ps)\b", assembly)) == permuted


@on_machines
@pytest.mark.parametrize("d", [1, 15, 16, 17, 31, 100, 127, 128, 129, 144, 240, 255, 256, 257])
@pytest.mark.parametrize(("kind", "lanes"), [("u8", 32), ("i8", 64), ("i8", 24), ("u8", 8)])
def test_code_chooses_bytes_in_parts_of_registers(
    kind: str, d: int, lanes: int, machine: Machine
) -> None:
    """Of all that a byte numbers, and of rows that end within 16."""
    kernel, memory = rows(kind, d, machine, lanes)
    interpret_kernel(kernel, memory)
    for side in ("begin", "end"):
        _, again = rows(kind, d, machine, lanes)
        run_kernel(kernel, machine, again, fence=side)
        assert again["y"].tobytes() == memory["y"].tobytes()


@pytest.mark.parametrize(
    ("d", "lanes", "machine", "shuffles"),
    [
        (256, 32, V3, 16),
        (128, 32, V3, 8),
        (17, 32, V3, 2),
        (257, 32, V3, 0),
        (256, 8, V3, 0),
        (16, 8, V3, 1),
        (256, 64, V4, 16),
        (257, 64, V4, 0),
    ],
)
def test_where_bytes_are_picked_in_parts(
    d: int, lanes: int, machine: Machine, shuffles: int
) -> None:
    """Where that takes no more than to extract, load and insert each lane's."""
    kernel, _ = rows("u8", d, machine, lanes)
    text = emit_kernel(kernel, machine).text
    calls = len(re.findall(r"call .*pshuf\.b", text))
    assert calls > 0 if shuffles else calls == 0
    assert calls % max(shuffles, 1) == 0


def test_rows_of_a_length_that_a_run_tells_are_not_permuted() -> None:
    text = ROWS.format(t="f32", d="4*s")
    text = text.replace("dims", "symbols s = 1..4\ndims", 1)
    kernel = apply_schedule(kernel_of(text), parse_schedule(SCHEDULE.format(lanes=16)))
    assembly = compile_assembly(emit_kernel(kernel, V4).text, V4)
    assert not re.search(r"\bvperm(?:[it]2)?ps\b", assembly)
