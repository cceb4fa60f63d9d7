"""Kernels in machine code against the graph's interpretation, for every machine of this family."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.emit.kernel import emit_kernel, parallel_loops
from rutc.tensor_ir import DType, Index, Lit
from rutc.tensor_ir.expr import IndexValue, Read, apply
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Access, Assign, Buffer, Kernel, Kind, Loop
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import halo_kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import Schedule, apply_schedule, parse_schedule
from rutc.tuner import choose
from tests.close import assert_close
from tests.emit.run_kernel import run_kernel
from tests.examples import examples
from tests.kernels import LONG, Case, cases, scheduled
from tests.machines import V3, V4, on_machines
from tests.tensor_ir.test_steps import kernel_of

pytestmark = pytest.mark.sampled(8)


def tuned(
    case: Case, machine: Machine, free: frozenset[str]
) -> tuple[Kernel, Schedule, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(kernel, schedule, its memory, all values) as `choose` wants it; `free` are its constants."""
    kernel = case.kernel()
    choice = choose(kernel, machine, free)
    scheduled = apply_schedule(kernel, choice.schedule)
    arrays = case.arrays()
    memory = case.memory(arrays, scheduled)
    return scheduled, choice.schedule, memory, arrays


@on_machines
@examples(150)
@given(case=cases(), data=st.data())
def test_default_schedules(machine: Machine, case: Case, data: st.DataObject) -> None:
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = data.draw(st.sets(st.sampled_from(reads))) if reads else set()
    parts = data.draw(st.integers(1, 3))
    kernel, _, memory, arrays = tuned(case, machine, frozenset(free))
    run_kernel(kernel, machine, memory, parts=parts)
    case.check(memory, arrays)


@on_machines
@examples(60)
@given(case=cases(lengths=LONG, points=400_000), data=st.data())
def test_default_schedules_of_long_loops(machine: Machine, case: Case, data: st.DataObject) -> None:
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = data.draw(st.sets(st.sampled_from(reads))) if reads else set()
    small = replace(machine, l1=4 << 10, l2=64 << 10, cores=2)
    kernel, _, memory, arrays = tuned(case, small, frozenset(free))
    run_kernel(kernel, small, memory, parts=3)
    case.check(memory, arrays)


@on_machines
@examples(200)
@given(case=cases(), data=st.data())
def test_random_schedules(machine: Machine, case: Case, data: st.DataObject) -> None:
    kernel, _ = data.draw(scheduled(case.kernel(), 6))
    parts = data.draw(st.integers(1, 3))
    arrays = case.arrays()
    memory = case.memory(arrays, kernel)
    run_kernel(kernel, machine, memory, parts=parts)
    case.check(memory, arrays)


# -- every type and every kind of schedule ------------------------------------------------------
PRODUCT = """
    graph "product"
    dims i = 7, j = 19, k = 11
    %a : {t}{{i,k}} = input "a" [i, k]
    %b : {t}{{j,k}} = input "b" [k, j]
    %s : {t}{{i,j}} = {reducer}{{k}} {body}
    %c : {t}{{i,j}} = {last}
    output "c" [i, j] = %c
"""
SCHEDULES = [
    "",
    "mark(k, unroll)",
    "mark(i, parallel); mark(j, vector)",
    "fuse(i, j, ij); mark(ij, vector)",
    "split(j, 8); peel(j.o); mark(j.i, vector)",
    "split(j, 16); mark(j.i, vector); mark(i, parallel); mark(j.o, parallel)",
    "cut(j, [3, 16]); mark(j, vector); mark(j.1, vector)",
    "part(j, [3, 16]); part(i, [0, 2]); mark(i, parallel)",
    "split(i, 2); cut(i.o, [1]); prefetch_block(a, i.i, 0, 16, 2)",
    "lanes(k, 4, k)",
    "lanes(k, 20, k); tile([i], [unroll])",
    "lanes(k, 3, k); mark(k.o, unroll)",
    "block_reduction(k, 4, i, c)",
    "block_reduction(k, 4, i, c); tile([j], [vector])",
    "block_reduction(k, 3, i, c); split(j, 8); tile([j.o, j.i], [unroll, vector])",
    "split(i, 3); split(j, 8); reorder([j.o, i.o, i.i, j.i]); block_reduction(k, 5, i.o, c); "
    "mark(j.o, parallel); peel(i.o); peel(j.o); tile([i.i, j.i], [unroll, vector]); "
    "prefetch_block(b, j.o, 0, 16, 2)",
    "block_reduction(k, 4, i, parts)",
    "split(i, 3); split(j, 8); reorder([j.o, i.o, i.i, j.i]); block_reduction(k, 5, i.o, parts); "
    "mark(j.o, parallel); peel(i.o); peel(j.o); tile([i.i, j.i], [unroll, vector])",
    "partial_sums(k, 4)",
    "lanes(k, 3, k); partial_sums(k.o, 2)",
    "split(i, 3); split(j, 8); reorder([i.o, j.o, i.i, j.i]); peel(j.o); peel(i.o); "
    "tile([i.i, j.i], [unroll, vector]); partial_sums(k, 3)",
    "split(i, 3); split(j, 8); reorder([i.o, j.o, i.i, j.i]); peel(j.o); peel(i.o); "
    "tile([i.i, j.i], [unroll, vector]); split(k, 11); mark(k.i, unroll); "
    "apart(k.o, k.i, 20, 100)",
    "prefetch_later(a, i, 1, 16, 2, [j])",
    "split(i, 3); split(j, 8); reorder([j.o, i.o, i.i, j.i]); peel(i.o); peel(j.o); "
    "tile([i.i, j.i], [unroll, vector]); prefetch_later(b, j.o, 1, 16, 2, [i.o]); "
    "prefetch_later(b, k, 2, 4, 1, []); prefetch_later(a, k, 1, 16, 1, [], [i.o])",
    "split(i, 3); split(j, 16); reorder([i.o, j.o, i.i, j.i]); peel(j.o); peel(i.o); "
    "tile([i.i, j.i], [unroll, vector]); split(k, 4); peel(k.o); mark(k.i, unroll)",
    "split(i, 3); split(j, 8); reorder([i.o, j.o, i.i, j.i]); peel(i.o); peel(j.o); "
    "tile([i.i, j.i], [unroll, vector]); prefetch_result(c, 4)",
]
NUMBERS = [
    d for d in DType if (d.is_int or d.is_float) and d.bits >= 8 and not d.value.startswith("f8")
]


def filled(kernel: Kernel) -> dict[str, np.ndarray]:
    """Arguments of small whole numbers, the same each time."""
    rng = np.random.default_rng(1)
    found = {}
    for b in kernel.args:
        low = -2 if b.dtype.is_signed else 0
        found[b.name] = rng.integers(low, 3, b.layout.elements).astype(b.dtype.numpy)
    return found


def check_schedules(source: str, machine: Machine, schedules: list[str]) -> None:
    kernel = kernel_of(source)
    expected = filled(kernel)
    interpret_kernel(kernel, expected)
    for schedule in schedules:
        scheduled = apply_schedule(kernel, parse_schedule(schedule))
        got = filled(kernel)
        run_kernel(scheduled, machine, got, parts=2)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array, err_msg=f"%{name} after {schedule}")


@on_machines
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_types(machine: Machine, dtype: DType) -> None:
    product = {"body": "%a[i, k] * %b[j, k]", "last": "max(%s[i, j], %a[i, k=j % 11])"}
    check_schedules(PRODUCT.format(t=dtype, reducer="sum", **product), machine, SCHEDULES)


@on_machines
def test_two_reads_of_which_one_lies_in_blocks(machine: Machine) -> None:
    source = """
        graph "neighbours"
        dims i = 17, j = 3
        %a : f32{i,j} = input "a" [i, j]
        %s : f32{j} = sum{i} %a[i=(i + 1) % 17, j] * %a[i, j]
        output "s" [j] = %s
    """
    check_schedules(source, machine, ["prefetch_block(a, i, 256, 16, 1)"])


@on_machines
def test_bools(machine: Machine) -> None:
    body = {"body": "%a[i, k] and %b[j, k]", "last": "%s[i, j] != %a[i, k=j % 11]"}
    check_schedules(PRODUCT.format(t=DType.BOOL, reducer="any", **body), machine, SCHEDULES)


STATES = """
    graph "states"
    dims i = 3, j = 5, k = 13
    %a : {t}{{i,j,k}} = input "a" [i, j, k]
    %v : {t}{{i,j}}, %p : {index}{{i,j}} = {reducer}{{k}} %a[i, j, k], {position}
    output "v" [i, j] = %v
    output "p" [i, j] = %p
"""


@on_machines
@pytest.mark.parametrize("reducer", ["argmax", "argmin", "argmax_last", "argmin_last"])
def test_extremes_and_their_places(machine: Machine, reducer: str) -> None:
    schedules = [
        "lanes(k, 4, k)",
        "lanes(k, 16, k); mark(i, parallel)",
        "tile([j], [vector])",
        "tile([i, j], [unroll, vector]); mark(k, unroll)",
    ]
    for dtype in (DType.F32, DType.F64, DType.I64, DType.U8):
        for index, position in (("i64", "index(k)"), ("i32", "i32(index(k))")):
            source = STATES.format(t=dtype, index=index, position=position, reducer=reducer)
            check_schedules(source, machine, schedules)


@on_machines
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "f16", "bool"])
@pytest.mark.parametrize("apart", [2, 3, 4, 5])
def test_every_so_many_th_element(machine: Machine, dtype: str, apart: int) -> None:
    for extent in (2, 3, 8, 13, 16, 17, 33):
        source = f"""
            graph "apart"
            dims i = {extent}, j = {apart * (extent - 1) + 1}, k = 3
            %a : {dtype}{{j,k}} = input "a" [k, j]
            %c : {dtype}{{i,k}} = %a[j={apart}*i, k]
            %d : {dtype}{{i,k}} = %a[j=-{apart}*i + {apart * (extent - 1)}, k]
            output "c" [k, i] = %c
            output "d" [k, i] = %d
        """
        check_schedules(source, machine, ["mark(i, vector)", "split(i, 8); mark(i.i, vector)"])


@on_machines
@pytest.mark.parametrize("extent", [2, 7, 16, 21, 40])
@pytest.mark.parametrize(
    "place",
    [
        "i={n} - 1 - i",
        "i=min({n} - 1, max(0, i - 3))",
        "i=min((i + 2*{n} - 5) % (2*{n} - 2), 2*{n} - 2 - (i + 2*{n} - 5) % (2*{n} - 2))",
        "i=(i + 2) % {n}",
    ],
)
def test_reads_that_turn(machine: Machine, extent: int, place: str) -> None:
    n = max(extent - 6, 1) if "3" in place or "5" in place else extent
    if n == 1 and "2*" in place:
        n = 2
    source = f"""
        graph "turns"
        dims i = {extent}, k = {n}, j = 3
        %a : f32{{j,k}} = input "a" [j, k]
        %c : f32{{i,j}} = %a[j, {place.replace("i=", "k=", 1).format(n=n)}]
        output "c" [j, i] = %c
    """
    kernel = kernel_of(source)
    chosen = choose(kernel, machine, frozenset()).schedule
    schedules = ["mark(i, vector)", "; ".join(map(str, chosen))]
    check_schedules(source, machine, schedules)


@on_machines
def test_idle_lanes_divide_by_nothing(machine: Machine) -> None:
    source = """
        graph "divide"
        dims i = 5
        %a : i32{i} = input "a" [i]
        %b : i32{i} = input "b" [i]
        %c : i32{i} = (%a[i] // %b[i]) + mod(%a[i], %b[i])
        output "c" [i] = %c
    """.replace("//", "/")
    check_schedules(source, machine, ["mark(i, vector)", "split(i, 4); mark(i.i, vector)"])


def dividends(seed: int) -> np.ndarray:
    """Common numbers, any bits and zeros in turn, but none whose residues underflow."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint32)
    a = np.where(np.arange(4096) % 2, bits.view(np.float32), rng.standard_normal(4096))
    a = a.astype(np.float32)
    a[np.abs(a) < 1e-30] = 1.0
    a[::9] = np.copysign(np.float32(0.0), a[::9])
    return a


def assert_same_numbers(found: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that arrays are equal, the signs of zeros included."""
    np.testing.assert_array_equal(found, expected)
    seen = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[seen]), np.signbit(expected[seen]))


@on_machines
@pytest.mark.parametrize("cycles", [0.0, 100.0])
@pytest.mark.parametrize("divisor", [0.03, 0.1, 3.0, 7.0, 0.0078125, 49.0, 1.1, -255.0])
def test_quotients_by_literals_are_the_nearest(
    machine: Machine, divisor: float, cycles: float
) -> None:
    source = f"""
        graph "divide"
        dims i = 4096
        %a : f32{{i}} = input "a" [i]
        %c : f32{{i}} = %a[i] / {np.float32(divisor)}
        output "c" [i] = %c
    """
    a = dividends(5)
    buffers = {"a": a, "c": np.zeros_like(a)}
    schedule = parse_schedule("split(i, 16); mark(i.i, vector)")
    kernel = apply_schedule(kernel_of(source), schedule)
    rated = replace(machine, divide_cycles=cycles)
    assert ("fdiv" in emit_kernel(kernel, rated).text) == (cycles == 0.0)
    run_kernel(kernel, rated, buffers)
    with np.errstate(all="ignore"):
        assert_same_numbers(buffers["c"], a / np.float32(divisor))


@on_machines
@pytest.mark.parametrize("cycles", [1.0, 100.0])
def test_elements_are_loaded_one_by_one_where_gathers_take_longer(
    machine: Machine, cycles: float
) -> None:
    source = """
        graph "gather"
        dims i = 70, k = 99
        %x : f32{k} = input "x" [k]
        %p : i64{i} = input "p" [i]
        %c : f32{i} = %x[k=%p[i]]
        output "c" [i] = %c
    """
    rng = np.random.default_rng(5)
    x = rng.standard_normal(99).astype(np.float32)
    p = rng.integers(0, 99, 70).astype(np.int64)
    buffers = {"x": x, "p": p, "c": np.zeros(70, np.float32)}
    schedule = parse_schedule("split(i, 16); mark(i.i, vector); peel(i.o)")
    kernel = apply_schedule(kernel_of(source), schedule)
    rated = replace(machine, gather_cycles=cycles)
    whole = apply_schedule(kernel_of(source.replace("70", "64")), schedule[:2])
    assert ("masked.gather" in emit_kernel(whole, rated).text) == (cycles == 1.0)
    run_kernel(kernel, rated, buffers)
    np.testing.assert_array_equal(buffers["c"], x[p])


@on_machines
def test_products_that_unrolled_loops_choose_are_added_in_one_operation(machine: Machine) -> None:
    source = """
        graph "real and imaginary"
        dims i = 16, k = 8, j = 2
        %x : f32{k} = input "x" [k]
        %a : f32{i,k} = input "a" [k, i]
        %b : f32{i,k} = input "b" [k, i]
        %c : f32{i,j} = sum{k} select(index(j) == 0, %x[k] * %a[i, k], %x[k] * %b[i, k])
        output "c" [j, i] = %c
    """
    rng = np.random.default_rng(5)
    x, a, b = (rng.standard_normal(n).astype(np.float32) for n in ((8,), (8, 16), (8, 16)))
    buffers = {"x": x, "a": a.ravel(), "b": b.ravel(), "c": np.zeros(32, np.float32)}
    schedule = parse_schedule("reorder([j, i]); tile([j, i], [unroll, vector])")
    kernel = apply_schedule(kernel_of(source), schedule)
    text = emit_kernel(kernel, machine).text
    assert "llvm.fma" in text
    assert "fadd" not in text
    run_kernel(kernel, machine, buffers)
    assert_close(buffers["c"], np.concatenate([x @ a, x @ b]), reduction=8)


@on_machines
@pytest.mark.parametrize("cycles", [0.0, 100.0])
@pytest.mark.parametrize(
    "divisor",
    [0.03, -7.0, 49.0, 3e38, -2.1e30, 1.3e18, 1.1e-18, 1.2e-38, -4e-25, 0.0, np.inf, np.nan],
)
def test_quotients_by_one_number_are_the_nearest(
    machine: Machine, divisor: float, cycles: float
) -> None:
    source = """
        graph "divide"
        dims i = 4096, j = 1
        %a : f32{i} = input "a" [i]
        %b : f32{j} = input "b" [j]
        %c : f32{i} = %a[i] / %b[j=0]
        output "c" [i] = %c
    """
    a = dividends(6)
    a[:4] = np.inf, -np.inf, np.nan, np.finfo(np.float32).max
    b = np.full(1, divisor, np.float32)
    buffers = {"a": a, "b": b, "c": np.zeros_like(a)}
    kernel = apply_schedule(kernel_of(source), parse_schedule("split(i, 16); mark(i.i, vector)"))
    rated = replace(machine, divide_cycles=cycles)
    assert ("llvm.fma" in emit_kernel(kernel, rated).text) == (cycles > 0.0)
    run_kernel(kernel, rated, buffers)
    with np.errstate(all="ignore"):
        expected = a / b
    # Subnormals are zeros.
    expected[np.abs(expected) < np.finfo(np.float32).tiny] *= 0.0
    found = buffers["c"]
    found[np.abs(found) < np.finfo(np.float32).tiny] *= 0.0
    assert_same_numbers(found, expected)


@on_machines
@pytest.mark.parametrize("divisor", [0.03, 3.0, 2e30, 1.1e-18, 0.7e-18, 1.2e-38, 1e-44])
def test_quotients_of_subnormals_are_off_by_a_unit_at_most(
    machine: Machine, divisor: float
) -> None:
    source = """
        graph "divide"
        dims i = 4096, j = 1
        %a : f32{i} = input "a" [i]
        %b : f32{j} = input "b" [j]
        %c : f32{i} = %a[i] / %b[j=0]
        output "c" [i] = %c
    """
    a = np.random.default_rng(7).integers(1, 1 << 31, 4096, np.uint32).view(np.float32)
    a[::2] = a.view(np.uint32)[::2] % (1 << 25) * np.float32(2.0**-149)
    b = np.full(1, divisor, np.float32)
    buffers = {"a": a, "b": b, "c": np.zeros_like(a)}
    kernel = apply_schedule(kernel_of(source), parse_schedule("split(i, 16); mark(i.i, vector)"))
    run_kernel(kernel, replace(machine, divide_cycles=100.0), buffers)
    with np.errstate(all="ignore"):
        expected = a / b
    seen = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(buffers["c"]), seen)
    off = np.abs(buffers["c"][seen] - expected[seen])
    assert (off <= np.spacing(expected[seen])).all()


@pytest.mark.parametrize(("machine", "lanes"), [(V3, 32), (V4, 64)])
def test_polynomials_of_vectors_side_by_side(machine: Machine, lanes: int) -> None:
    source = """
        graph "side by side"
        dims i = 75
        %a : f32{i} = input "a" [i]
        %c : f32{i} = exp(%a[i]) + 1.0
        output "c" [i] = %c
    """
    kernel = apply_schedule(kernel_of(source), parse_schedule("mark(i, vector)"))
    assert f"fadd <{lanes} x float>" in emit_kernel(kernel, machine).text
    assert f"fadd <{2 * lanes} x float>" not in emit_kernel(kernel, machine).text


@on_machines
@pytest.mark.parametrize("extent", [15, 16, 31, 32, 33, 64, 75, 100])
def test_polynomials_of_any_number_of_elements(machine: Machine, extent: int) -> None:
    source = f"""
        graph "polynomials"
        dims i = {extent}, k = 3
        %a : f32{{i,k}} = input "a" [k, i]
        %c : f32{{i,k}} = tanh(%a[i, k]) * 2.0 + exp(%a[i, k=2 - k])
        output "c" [k, i] = %c
    """
    kernel = kernel_of(source)
    expected = filled(kernel)
    interpret_kernel(kernel, expected)
    for schedule in ("mark(i, vector)", "split(i, 64); mark(i.i, vector)"):
        got = filled(kernel)
        run_kernel(apply_schedule(kernel, parse_schedule(schedule)), machine, got, parts=2)
        assert_close(got["c"], expected["c"], reduction=16, err_msg=schedule)


@on_machines
@pytest.mark.parametrize("bounds", ["0.0 255.0", "-128.0 127.0", "-3.0 5.0", "0.0 3000000000.0"])
def test_casts_of_clamped_floats(machine: Machine, bounds: str) -> None:
    low, high = bounds.split()
    for dtype in ("i32", "u8", "i64", "i8", "u32"):
        source = f"""
            graph "clamped"
            dims i = 33
            %a : f32{{i}} = input "a" [i]
            %c : {dtype}{{i}} = {dtype}(i32(min(max(%a[i] * 100.0, {low}), {high})))
            %d : {dtype}{{i}} = {dtype}(min(max(%a[i] * 100.0, {low}), {high}))
            output "c" [i] = %c
            output "d" [i] = %d
        """
        check_schedules(source, machine, ["mark(i, vector)", "split(i, 16); mark(i.i, vector)"])


@on_machines
@pytest.mark.parametrize("bounds", ["0.0 255.0", "-128.0 127.0", "7.0 255.0", "0.5 6.5"])
@pytest.mark.parametrize("shift", ["", " + 7.0", " + -3.0", " + 0.5"])
def test_casts_of_rounded_and_clamped_floats(machine: Machine, bounds: str, shift: str) -> None:
    low, high = bounds.split()
    for dtype in ("u8", "i8", "i32"):
        source = f"""
            graph "rounded"
            dims i = 64
            %a : f32{{i}} = input "a" [i]
            %c : {dtype}{{i}} = {dtype}(i32(min(max(round(%a[i]){shift}, {low}), {high})))
            output "c" [i] = %c
        """
        kernel = kernel_of(source)
        # Halves, of which the even neighbour is taken; what lies far out; and no numbers.
        values = np.arange(64, dtype=np.float32) * 5.5 - 130
        values[:6] = np.nan, np.inf, -np.inf, 3e38, -3e38, -0.5
        expected, got = filled(kernel), filled(kernel)
        expected["a"][...] = got["a"][...] = values
        interpret_kernel(kernel, expected)
        for schedule in ("mark(i, vector)", "split(i, 16); mark(i.i, vector)", ""):
            run_kernel(apply_schedule(kernel, parse_schedule(schedule)), machine, got, parts=2)
            np.testing.assert_array_equal(got["c"], expected["c"], err_msg=schedule)


@on_machines
def test_one_lane_of_a_narrow_store_writes_one_element(machine: Machine) -> None:
    for dtype in (DType.BF16, DType.F16, DType.I16, DType.U8, DType.I8):
        source = f"""
            graph "narrow"
            dims i = 17
            %a : i64{{i}} = input "a" [i]
            %c : {dtype}{{i}} = {dtype}(%a[i])
            output "c" [i] = %c
        """
        check_schedules(source, machine, ["mark(i, vector)", "split(i, 16); mark(i.i, vector)"])


# -- halos, counters, tasks ---------------------------------------------------------------------
@on_machines
@pytest.mark.parametrize("blocks", [{}, {"x": 4}], ids=["dense", "blocked"])
def test_halos_are_filled(machine: Machine, blocks: dict[str, int]) -> None:
    extents = {"x": 5, "y": 3, "z": 2}
    halo = {"x": (1, 2), "y": (0, 1)}
    fill = Lit(-1.0, DType.F32)
    layout = dense(["y", "z", "x"], extents, halo=halo, fill=fill, blocks=blocks)
    kernel = halo_kernel(Value("v", DType.F32, ("x", "y", "z")), layout, extents)
    assert kernel is not None
    expected, got = (np.zeros(layout.elements, np.float32) for _ in range(2))
    interpret_kernel(kernel, {"v": expected})
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    run_kernel(scheduled, machine, {"v": got})
    np.testing.assert_array_equal(got, expected)


@on_machines
def test_a_gather_from_nothing_is_zero_whatever_its_halo_holds(machine: Machine) -> None:
    extents = {"i": 0, "j": 3}
    layout = dense(["i", "j"], extents, halo={"i": (0, 1)}, fill=Lit(7.0, DType.F32))
    at = apply("add", Read("p", (), DType.I64), Lit(1, DType.I64))
    read = Read("x", (("i", at), ("j", Index.of("j"))), DType.F32)
    loop = Loop(
        "j",
        Index.of(0),
        Index.of(3),
        Kind.SERIAL,
        (Assign(Access("y", (("j", Index.of("j")),)), read),),
    )
    args = (
        Buffer("x", DType.F32, layout),
        Buffer("p", DType.I64, dense([], {})),
        Buffer("y", DType.F32, dense(["j"], extents)),
    )
    kernel = Kernel("nothing", args, (), (loop,))
    for run in (interpret_kernel, lambda k, m: run_kernel(k, machine, m)):
        memory: dict[str, np.ndarray] = {"x": np.full(3, 7, np.float32)}
        memory["p"] = np.zeros(1, np.int64)
        memory["y"] = np.ones(3, np.float32)
        run(kernel, memory)
        np.testing.assert_array_equal(memory["y"], np.zeros(3, np.float32))


def counted(kind: Kind) -> Kernel:
    """y[i] = x[(i + t) % 6] + t*100 for a counter t of the host program."""
    t, i = Index.of("t"), Index.of("i")
    x = Buffer("x", DType.I64, dense(["i"], {"i": 6}))
    y = Buffer("y", DType.I64, dense(["i"], {"i": 6}))
    body = apply("add", Read("x", (("i", (i + t) % 6),), DType.I64), IndexValue(t * 100))
    store = Assign(Access("y", (("i", i),)), body)
    loop = Loop("i", Index.of(0), Index.of(6), kind, (store,))
    return Kernel("counted", (x, y), (), (loop,), symbols=(("t", (0, 3)),))


@on_machines
@pytest.mark.parametrize(
    "kind", [k for k in Kind if k not in (Kind.DOT, Kind.MATRIX)], ids=lambda k: k.value
)
def test_counters_of_the_host_program(machine: Machine, kind: Kind) -> None:
    for trip in range(4):
        memory = {"x": np.arange(6), "y": np.zeros(6, np.int64)}
        run_kernel(counted(kind), machine, memory, {"t": trip})
        np.testing.assert_array_equal(memory["y"], (np.arange(6) + trip) % 6 + trip * 100)


def test_tasks_are_the_iterations_of_the_outermost_parallel_loops() -> None:
    source = PRODUCT.format(t="f32", reducer="sum", body="%a[i, k] * %b[j, k]", last="%s[i, j]")
    kernel = kernel_of(source)
    for schedule, tasks in (
        ("", 1),
        ("mark(i, parallel)", 7),
        ("mark(j, parallel)", 1),
        ("mark(i, parallel); mark(j, parallel)", 7 * 19),
        ("split(j, 4); mark(i, parallel); mark(j.o, parallel); mark(j.i, parallel)", 7 * 5),
    ):
        scheduled = apply_schedule(kernel, parse_schedule(schedule))
        assert emit_kernel(scheduled, V3).tasks == tasks
    assert [x.var for x in parallel_loops(scheduled)] == ["i", "j.o"]


@on_machines
def test_equal_kernels_give_equal_text(machine: Machine) -> None:
    kernel = kernel_of(
        PRODUCT.format(t="f32", reducer="sum", body="%a[i, k] * %b[j, k]", last="%s[i, j]")
    )
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset({"b"})).schedule)
    assert emit_kernel(scheduled, machine) == emit_kernel(scheduled, machine)


@on_machines
def test_few_rows_of_any_number_ask_for_lines_in_a_loop(machine: Machine) -> None:
    kernel = kernel_of("""
        graph "rows of any number"
        symbols n = 1..40
        dims i = n, j = 37, k = 7
        %a : f32{i,k} = input "a" [i, k]
        %b : f32{j,k} = input "b" [j, k]
        %c : f32{i,j} = sum{k} %a[i, k] * %b[j, k]
        output "c" [i, j] = %c
    """)
    steps = "split(j, 16); reorder([j.o, i, j.i]); peel(j.o); tile([j.i], [vector])"
    asking = apply_schedule(kernel, parse_schedule(f"{steps}; prefetch_block(b, j.o, 0, 4, 2)"))
    assert any(s.var == "j.o.line" for s in walk_loops(asking.body))
    for n in (1, 2, 3, 5, 37):
        a = np.arange(7 * n, dtype=np.float32).reshape(n, 7) % 5
        b = np.arange(7 * 37, dtype=np.float32).reshape(37, 7) % 3
        memory = {"a": a.ravel(), "b": b.ravel(), "c": np.zeros(37 * n, np.float32)}
        run_kernel(asking, machine, memory, {"n": n})
        np.testing.assert_array_equal(memory["c"].reshape(n, 37), a @ b.T)
