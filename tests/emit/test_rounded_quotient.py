"""Numbers rounded to 8 bits: quotients by products, and what instructions keep within bounds."""

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.in_process import Elementwise
from rutc.emit.cast import emit_clamped_round, emit_saturated_round
from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.emit.rounded_quotient import Reciprocal, rounded_by
from rutc.tensor_ir.dtype import DType, integer_range
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from tests.machines import V3, V4, needs, on_machines
from tests.tensor_ir.test_steps import kernel_of

RANGES = [(-128, 127), (0, 255), (-137, 118), (-7, 8), (3, 3), (-255, -1)]
QUANTISING = """
graph "quantising"
dims m = 24, n = 64
%x : f32{{m,n}} = input "x" [m, n]
%y : {dtype}{{m,n}} = {body}
output "y" [m, n] = %y
"""
DIVISORS = [0.03, 1.0 / 3.0, 0.007843138, 2.0**-20, 3.0**30, 1.1e-17, 0.99999994, 1.0000001, 41.0]


def rounded(divisor: float, low: int, high: int, shift: int, machine: Machine) -> Elementwise:
    """`min(max(round(x / divisor) + shift, low), high)` in whole numbers, 0 of NaN."""

    def body(builder, args):  # type: ignore[no-untyped-def]
        bounds = float(low), float(high)
        found = emit_clamped_round(builder, args[0], float(shift), bounds, DType.I32, divisor)
        assert found is not None
        return found

    return Elementwise(body, [DType.F32], DType.I32, machine.width, machine)


def dividends(divisor: float, low: int, high: int) -> np.ndarray:
    """The floats around each change, others near and far, infinities and NaN."""
    rng = np.random.default_rng(abs(high))
    middles = ((np.arange(low - 2, high + 3) + 0.5) * divisor).astype(np.float32)
    steps = np.arange(-9, 10, dtype=np.int32)
    near = (middles.view(np.int32)[:, None] + steps).view(np.float32).ravel()
    spread = rng.uniform(low - 5, high + 5, 50_000) * divisor
    patterns = rng.integers(0, 1 << 32, 50_000, dtype=np.uint32).view(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38], np.float32)
    return np.concatenate([near, spread.astype(np.float32), patterns, edges])


@pytest.mark.parametrize("shift", [0, 9, -128])
@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("divisor", [float(np.float32(d)) for d in DIVISORS])
@on_machines
def test_products_are_rounded_as_quotients(
    machine: Machine, divisor: float, low: int, high: int, shift: int
) -> None:
    x = dividends(divisor, low, high)
    got = rounded(divisor, low + shift, high + shift, shift, machine)(x)
    with np.errstate(all="ignore"):
        quotients = np.rint(x / np.float32(divisor)) + np.float32(shift)
        want = np.clip(quotients, low + shift, high + shift)
    np.testing.assert_array_equal(got, np.nan_to_num(want, nan=0.0).astype(np.int32))


def test_two_products_are_checked() -> None:
    """A reciprocal of one float is rounded otherwise next to some halves."""
    divisor = float(np.float32(0.03))
    found = rounded_by(divisor, -128, 127)
    assert isinstance(found, Reciprocal)
    x = dividends(divisor, -128, 127)
    x = x[np.abs(x) < 1]
    own = np.rint(x / np.float32(divisor))
    assert (np.rint(x * np.float32(found.high)) != own).any()


@pytest.mark.parametrize(
    ("divisor", "low", "high"),
    [(0.03, 0, 256), (0.03, 1, 0), (-0.03, 0, 255), (0.0, 0, 255), (1e-30, 0, 255), (1e30, 0, 1)],
)
def test_what_stays_a_quotient(divisor: float, low: int, high: int) -> None:
    assert rounded_by(divisor, low, high) is None


def saturated(
    divisor: float, low: int, high: int, shift: int, dtype: DType, machine: Machine
) -> Elementwise:
    """The same as bytes, by an instruction that keeps them within bounds."""

    def body(builder, args):  # type: ignore[no-untyped-def]
        bounds = float(low), float(high)
        number = float(shift)
        found = emit_saturated_round(builder, args[0], number, bounds, dtype, machine, divisor)
        assert found is not None
        return found

    return Elementwise(body, [DType.F32], dtype, machine.width, machine)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("shift", [0, 9, 100])
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize("low", [None, 5])
@pytest.mark.parametrize("divisor", [1.0, float(np.float32(0.03)), 41.0])
@needs(V4)
def test_instructions_keep_bytes_within_bounds(
    divisor: float, low: int | None, dtype: DType, shift: int, width: int
) -> None:
    """Infinities, NaN and what is beyond all integers give what two comparisons with them give."""
    least, most = integer_range(dtype)
    bounds = (low or least, most) if dtype is DType.U8 else (least, most - (low or 0))
    x = dividends(divisor, bounds[0] - shift, bounds[1] - shift)
    got = saturated(divisor, *bounds, shift, dtype, replace(V4, vector_bits=32 * width))(x)
    with np.errstate(all="ignore"):
        want = np.clip(np.rint(x / np.float32(divisor)) + np.float32(shift), *bounds)
    np.testing.assert_array_equal(got, np.nan_to_num(want, nan=0.0).astype(dtype.numpy))


@pytest.mark.parametrize("shift", [0, 9, 100])
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize("high", [None, 5])
@pytest.mark.parametrize("divisor", [1.0, float(np.float32(0.03)), 41.0])
@needs(V3)
def test_packed_bytes_keep_within_bounds(
    divisor: float, high: int | None, dtype: DType, shift: int
) -> None:
    """Infinities, NaN and what is beyond all integers give what two comparisons with them give."""
    least, most = integer_range(dtype)
    bounds = least, most if high is None else high
    x = dividends(divisor, bounds[0] - shift, bounds[1] - shift)
    got = saturated(divisor, *bounds, shift, dtype, V3)(x)
    with np.errstate(all="ignore"):
        want = np.clip(np.rint(x / np.float32(divisor)) + np.float32(shift), *bounds)
    np.testing.assert_array_equal(got, np.nan_to_num(want, nan=0.0).astype(dtype.numpy))


def instructions(body: str, dtype: str, machine: Machine) -> frozenset[str]:
    """What keeps bytes within bounds, as it stands in assembly."""
    kernel = kernel_of(QUANTISING.format(body=body, dtype=dtype))
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    text = compile_assembly(emit_kernel(scheduled, machine).text, machine)
    return frozenset(re.findall("vminps|vmaxps|vpmovu?s?db", text))


@pytest.mark.parametrize(
    ("dtype", "bounds", "shift", "wanted"),
    [
        ("u8", (0, 255), 3, {"vmaxps", "vpmovusdb"}),
        ("u8", (3, 255), 3, {"vmaxps", "vpmovusdb"}),
        ("i8", (-128, 127), 0, {"vminps", "vpmovsdb"}),
        ("u8", (0, 254), 0, {"vmaxps", "vminps", "vpmovdb"}),
        ("u8", (-1, 255), 0, {"vmaxps", "vminps", "vpmovdb"}),
        ("i8", (-127, 127), 0, {"vmaxps", "vminps", "vpmovdb"}),
        ("i8", (-128, 127), -3, {"vmaxps", "vminps", "vpmovdb"}),
    ],
)
def test_only_bounds_of_the_type_need_no_comparison(
    dtype: str, bounds: tuple[int, int], shift: int, wanted: set[str]
) -> None:
    low, high = bounds
    rounded = f"round(%x[m, n] * 0.3) + {shift}.0"
    body = f"{dtype}(i32(min(max({rounded}, {low}.0), {high}.0)))"
    assert instructions(body, dtype, V4) == wanted
    packed = low == integer_range(DType(dtype))[0] and shift >= 0
    assert instructions(body, dtype, V3) == ({"vminps"} if packed else {"vmaxps", "vminps"})
