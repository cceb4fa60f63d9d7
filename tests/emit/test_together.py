"""Narrow elements fill registers where these are packed as such."""

import re

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_as_interpreted, run_kernel
from tests.machines import on_machines
from tests.tensor_ir.test_steps import kernel_of

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-7]
NUMPY = {"u8": np.uint8, "i8": np.int8, "f16": np.float16, "f32": np.float32, "i64": np.int64}

SOURCE = """
    graph "narrow"
    dims a = 5, b = 197
    %x : {source}{{a,b}} = input "x" [a, b]
    %t : i64{{a}} = input "t" [a]
    %y : {target}{{{dims}}} = {value}
    output "y" [{order}] = %y
"""


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Returns random elements, among floats also such as are no numbers."""
    rng = np.random.default_rng(1)
    if dtype == "u8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    found = rng.standard_normal(shape) * 90
    found.reshape(-1)[: len(SPECIAL)] = SPECIAL
    return found.astype(NUMPY[dtype])


@on_machines
@pytest.mark.parametrize("lanes", [32, 64, 48, 7])
@pytest.mark.parametrize(
    ("source", "target", "value", "order", "narrowest"),
    [
        ("u8", "u8", "%x[a, b] + 3", "a, b", 1),
        ("f32", "i8", "i8(min(max(%x[a, b], -128.0), 127.0))", "a, b", 1),
        ("u8", "f32", "f32(%x[a, b]) * 0.5", "a, b", 1),
        ("f16", "f16", "%x[a, b] + %x[a, b]", "a, b", 2),
        ("f32", "i64", "i64(min(max(%x[a, b], -9.0), 9.0))", "a, b", 4),
        ("u8", "u8", "%x[a=%t[a], b]", "a, b", 1),
        ("u8", "u8", "%x[a, b=196 - b]", "a, b", 4),
        ("u8", "u8", "%x[a, b=b - 3 else 7]", "a, b", 1),
        ("u8", "u8", "%x[a, b]", "b, a", None),
    ],
)
def test_narrow_elements_fill_registers(
    machine: Machine,
    lanes: int,
    source: str,
    target: str,
    value: str,
    order: str,
    narrowest: int | None,
) -> None:
    text = SOURCE.format(source=source, target=target, value=value, order=order, dims="a,b")
    kernel = kernel_of(text)
    kernel = apply_schedule(
        kernel, parse_schedule(f"split(b, {lanes}); peel(b.o); mark(b.i, vector)")
    )
    if narrowest is not None:
        widest = max(int(n) for n in re.findall(r"<(\d+) x", emit_kernel(kernel, machine).text))
        filled = machine.width if machine.saturates else machine.width * 4 // narrowest
        assert widest == filled if filled <= lanes else widest <= machine.width
    given = {
        "x": numbers(source, 5, 197).reshape(-1),
        "t": np.array([4, 0, 2, 2, 1]),
        "y": np.zeros(5 * 197, NUMPY[target]),
    }
    used = {b.name for b in kernel.args}
    run_as_interpreted(kernel, machine, {n: a for n, a in given.items() if n in used})


@on_machines
@pytest.mark.parametrize("extent", [197, 130, 37])
def test_steps_of_functions_begin_one_after_another(machine: Machine, extent: int) -> None:
    """As many vectors are one as the loop is for; at its end a half of them, or a quarter."""
    kernel = kernel_of(f"""
    graph "functions"
    dims a = {extent}
    %x : f32{{a}} = input "x" [a]
    %y : f32{{a}} = exp(%x[a])
    output "y" [a] = %y
    """)
    kernel = apply_schedule(kernel, parse_schedule("mark(a, vector)"))
    text, lanes = emit_kernel(kernel, machine).text, machine.vectors_at_once * machine.width
    found = {int(n) for n in re.findall(r"store <(\d+) x float>", text)}
    assert max(found) == max(n for n in (lanes, lanes // 2, lanes // 4) if n <= extent)
    given = {"x": numbers("f32", extent), "y": np.zeros(extent, np.float32)}
    want = {name: array.copy() for name, array in given.items()}
    run_kernel(kernel, machine, given)
    interpret_kernel(kernel, want)
    np.testing.assert_array_max_ulp(given["y"], want["y"], 2)
