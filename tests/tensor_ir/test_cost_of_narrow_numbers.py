"""What summaries count of numbers of 8 bits: as many instructions as the code has."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.emit.targets import aarch64
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import parse_schedule
from rutc.tuner.choice import Choice
from tests.machines import V3, V4
from tests.tuner.test_schedules import lowered

VNNI = replace(V4, features=V4.features | {"avx512vnni"})
"""A machine that adds up products of narrow numbers."""
ROWS, TAPS = 10, 9
WINDOW = """
graph "window"
dims i = {i}, j = {j}, p = 3, q = 3, y = {y}, x = {x}
%a : {a}{{i,j}} = input "a" [i, j]
%w : {w}{{p,q}} = input "w" [p, q]
%b : i32{{x,y}} = sum{{p, q}} i32(%a[i=y + p, j=x + q]) * i32(%w[p, q])
output "b" [y, x] = %b
"""
SHIFTED = """
graph "shifted"
dims i = 64
%x : f32{i} = input "x" [i]
%z : f32{} = input "z" []
%y : u8{i} = u8(i32(min(max(round(%x[i]) + %z, 0.0), 255.0)))
output "y" [i] = %y
"""
QUANTISED = """
graph "quantised"
dims i = 64
%x : f32{{i}} = input "x" [i]
%y : {dtype}{{i}} = {dtype}(i32(min(max(round(%x[i]){shift}, {low}), {high})))
output "y" [i] = %y
"""


def window(machine: Machine, a: str = "u8", w: str = "i8") -> Kernel:
    """All rows of a window as straight-line code, a vector of outputs each."""
    lanes = machine.width
    text = WINDOW.format(i=ROWS + 2, j=lanes + 2, y=ROWS, x=lanes, a=a, w=w)
    schedule = "reorder([y, x]); tile([y, x], [unroll, vector]); mark(p, unroll); mark(q, unroll)"
    return after(text, schedule)


def after(text: str, schedule: str) -> Kernel:
    kernel, _ = lowered(text)
    return with_schedule(kernel, Choice(parse_schedule(schedule))).kernel


def instructions(kernel: Kernel, machine: Machine, names: str) -> int:
    """How many instructions of these names its code has."""
    assembly = compile_assembly(emit_kernel(kernel, machine).text, machine)
    return len(re.findall(rf"^\t(?:{names})\t", assembly, re.MULTILINE))


@pytest.mark.parametrize("machine", [V3, V4, VNNI], ids=["v3", "v4", "vnni"])
def test_what_several_copies_load_is_widened_once(machine: Machine) -> None:
    """Each of three vectors of a row is a factor of the outputs of three rows."""
    kernel = window(machine)
    work = summarise(kernel, machine).work
    assert work["conversions"] == 3 * (ROWS + 2)
    assert instructions(kernel, machine, "vpmovzxbd") == work["conversions"]


def test_products_of_narrow_numbers_are_added_by_one_instruction_where_there_is_one() -> None:
    products = ROWS * TAPS
    kernel = window(VNNI)
    work = summarise(kernel, VNNI).work
    assert work["multiply_adds"] == products
    # Nothing is added to the first product of a sum.
    assert instructions(kernel, VNNI, "vpdpwssd|vpmaddwd") == products
    assert not work.get("arithmetic")
    apart = summarise(kernel, V4).work
    assert apart["arithmetic"] == 2 * products
    assert not apart.get("multiply_adds")
    assert instructions(kernel, V4, "vpmaddwd") == products
    assert instructions(kernel, V4, "vpaddd") == products - ROWS


@pytest.mark.parametrize(("a", "w"), [("i8", "i8"), ("i16", "i16"), ("u16", "i8"), ("i32", "i8")])
def test_other_integers_are_multiplied_first(a: str, w: str) -> None:
    """No product of neighbours has the factors with a sign alone, nor those of more bits."""
    kernel = window(VNNI, a, w)
    work = summarise(kernel, VNNI).work
    assert work["arithmetic"] == 2 * ROWS * TAPS
    assert instructions(kernel, VNNI, "vpmulld|vpmaddwd") == ROWS * TAPS
    assert instructions(kernel, VNNI, "vpdpwssd") == 0


def test_neon_multiplies_and_adds_all_integers() -> None:
    neon = aarch64.neon()
    for types in (("u8", "i8"), ("i8", "i8"), ("i32", "i32")):
        kernel = window(neon, *types)
        assert summarise(kernel, neon).work["multiply_adds"] == ROWS * TAPS


@pytest.mark.parametrize(
    ("machine", "dtype", "shift", "bounds"),
    [
        (V4, "u8", " + 130.0", "vmaxps|vpaddd"),
        (V4, "u8", "", "vmaxps"),
        (V4, "i8", "", "vminps|vcmp[a-z]*ps"),
        (V3, "i8", "", "vmaxps|vminps|vcmp[a-z]*ps|vpblendvb"),
        (V3, "u8", " + 130.0", "vminps|vpaddd"),
        (V3, "u8", "", "vminps"),
    ],
)
def test_conversions_to_bytes_have_a_bound_and_round(
    machine: Machine, dtype: str, shift: str, bounds: str
) -> None:
    low, high = (0, 255) if dtype == "u8" else (-128, 127)
    text = QUANTISED.format(dtype=dtype, shift=shift, low=float(low), high=float(high))
    kernel = after(text, f"split(i, {machine.width}); mark(i.i, vector); mark(i.o, unroll)")
    work = summarise(kernel, machine).work
    vectors = 64 // machine.width
    assert work["conversions"] == 2 * vectors
    assert instructions(kernel, machine, "vcvtps2dq") == vectors
    assert work["arithmetic"] == instructions(kernel, machine, bounds)


def test_what_is_shifted_by_a_number_of_a_run_is_rounded_and_has_both_bounds() -> None:
    kernel = after(SHIFTED, f"split(i, {V4.width}); mark(i.i, vector); mark(i.o, unroll)")
    work, vectors = summarise(kernel, V4).work, 64 // V4.width
    assert work["arithmetic"] == 4 * vectors
    bounds = "vmaxps|vminps|vcmp[a-z]*ps"
    assert instructions(kernel, V4, f"vrndscaleps|vaddps|{bounds}") >= work["arithmetic"]
    assert instructions(kernel, V4, "vcvttps2dq") == vectors
