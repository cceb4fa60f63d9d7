"""Quotients that are rounded to 8 bits by products: the same numbers as the quotients' own."""

import numpy as np
import pytest

from rutc.emit.cast import emit_clamped_round
from rutc.emit.jit import Elementwise
from rutc.emit.rounded_quotient import Reciprocal, rounded_by
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine
from tests.machines import on_machines

RANGES = [(-128, 127), (0, 255), (-137, 118), (-7, 8), (3, 3), (-255, -1)]
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
