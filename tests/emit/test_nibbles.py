"""Constants of 4 bits, two to a byte: how they lie, what kernels read of them, code and meaning."""

import re
from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.errors import InternalError
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Access, Assign, Buffer, Kernel
from rutc.tensor_ir.layout import dense, from_nibbles, in_nibbles, nibble_pairs, pack
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.machines import V4, on_machines
from tests.tensor_ir.test_steps import kernel_of

TYPES = (DType.I4, DType.U4)


def numbers(dtype: DType, *shape: int) -> np.ndarray:
    """Random numbers of 4 bits, the least and the greatest first."""
    low = -8 if dtype is DType.I4 else 0
    found = np.random.default_rng(0).integers(low, low + 16, shape)
    found.reshape(-1)[:2] = low, low + 15
    return found.astype(dtype.numpy)


# -- memory -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_pairs_hold_the_first_number_in_the_lower_half(dtype: DType, count: int) -> None:
    flat = numbers(dtype, max(count, 2))[:count]
    pairs = nibble_pairs(flat)
    assert pairs.dtype == np.uint8
    assert pairs.size == (count + 1) // 2
    assert pairs[0] & 15 == int(flat[0]) % 16
    assert (from_nibbles(pairs, dtype)[:count] == flat).all()


@pytest.mark.parametrize(
    ("order", "blocks", "text", "size"),
    [
        ("kn", {}, "[k, n] nibbles", 5 * 4),
        ("nk", {}, "[n, k] nibbles", 3 * 6),
        ("kn", {"k": 2}, "[k/2, n, k%2] nibbles", 3 * 3 * 2),
        ("nk", {"n": 2, "k": 2}, "[n/2, k/2, n%2, k%2] nibbles", 2 * 3 * 4),
    ],
)
def test_rows_are_whole_bytes(order: str, blocks: dict[str, int], text: str, size: int) -> None:
    layout = in_nibbles(dense(order, {"k": 5, "n": 3}, blocks=blocks))
    assert str(layout) == text
    assert layout.size == size
    assert Buffer("w", DType.I4, layout).bytes == size // 2
    array = numbers(DType.I4, 5, 3)
    stored = from_nibbles(pack(array, "kn", layout), DType.I4)
    for k, n in np.ndindex(5, 3):
        assert stored[layout.position({"k": k, "n": n})] == array[k, n]


def test_what_is_in_nibbles_is_never_written() -> None:
    layout = in_nibbles(dense("k", {"k": 4}))
    args = (Buffer("w", DType.U4, layout), Buffer("y", DType.U4, layout))
    coords = (("k", Index.of(1)),)
    kernel = Kernel("write", args, (), (Assign(Access("y", coords), Read("w", coords, DType.U4)),))
    memory = {"w": np.zeros(2, np.uint8), "y": np.zeros(2, np.uint8)}
    with pytest.raises(InternalError, match="nibbles, is written"):
        interpret_kernel(kernel, memory)


# -- reads --------------------------------------------------------------------------------------
PRODUCT = """
graph "product"
dims k = {k}, n = {n}
%w : {t}{{k,n}} = input "w" [k, n]
%x : f32{{k}} = input "x" [k]
%y : f32{{n}} = sum{{k}} %x[k] * (f32(%w[k, n]) - 8.0)
output "y" [n] = %y
"""
COPIED = """
graph "copied"
dims k = {k}, n = {n}
%w : {t}{{k,n}} = input "w" [k, n]
%y : {t}{{k,n}} = %w[k, n]
output "y" [k, n] = %y
"""
OUTSIDE = """
graph "outside"
dims k = {k}, n = {n}
%w : {t}{{k,n}} = input "w" [k, n]
%y : i32{{k,n}} = i32(%w[k=k + 1, n=n - 1 else 3])
output "y" [k, n] = %y
"""
TURNED = """
graph "turned"
dims k = {k}, n = {n}
%w : {t}{{k,n}} = input "w" [k, n]
%y : f32{{k,n}} = f32(%w[k, n={last} - n])
output "y" [k, n] = %y
"""
APART = """
graph "apart"
dims k = {k}, n = {n}, h = {half}
%w : {t}{{k,n}} = input "w" [k, n]
%y : f32{{k,h}} = f32(%w[k, n=2*h + 1]) + f32(%w[k, n=h])
output "y" [k, h] = %y
"""
CHOSEN = """
graph "chosen"
dims k = {k}, n = {n}, m = 11
%w : {t}{{k,n}} = input "w" [k, n]
%i : i64{{m}} = input "i" [m]
%y : f32{{m,n}} = f32(%w[k=%i[m], n])
output "y" [m, n] = %y
"""
SCHEDULES = {
    PRODUCT: (
        "",
        "split(n, 8); peel(n.o); tile([n.i], [vector])",
        "split(n, 16); tile([n.i], [vector]); split(k, 4); peel(k.o); mark(k.i, unroll)",
        "split(n, 3); tile([n.i], [unroll])",
        "lanes(k, 8, k)",
    ),
    COPIED: (
        "",
        "split(n, 8); mark(n.i, vector)",
        "split(n, 16); mark(n.i, vector)",
        "split(k, 8); mark(k.i, vector)",
    ),
    OUTSIDE: ("", "split(n, 8); mark(n.i, vector)", "mark(k, unroll); mark(n, vector)"),
    TURNED: ("", "split(n, 8); mark(n.i, vector)", "split(n, 16); peel(n.o); mark(n.i, vector)"),
    APART: ("", "split(h, 8); mark(h.i, vector)", "split(h, 16); mark(h.i, vector)"),
    CHOSEN: ("", "split(n, 16); peel(n.o); mark(n.i, vector)", "split(m, 8); mark(m.i, vector)"),
}
LAYOUTS = (
    ("kn", {}),
    ("nk", {}),
    ("kn", {"k": 2}),
    ("nk", {"n": 8, "k": 2}),
    ("nk", {"k": 4, "n": 16}),
)


def kernel_and_memory(
    text: str, dtype: DType, sizes: tuple[int, int], order: str, blocks: dict[str, int]
) -> tuple[Kernel, dict[str, np.ndarray]]:
    """The kernel of a graph whose %w is in nibbles, and its arguments."""
    k, n = sizes
    text = text.format(t=dtype, k=k, n=n, last=n - 1, half=n // 2)
    kernel = kernel_of(text)
    layout = in_nibbles(dense(order, {"k": k, "n": n}, blocks=blocks))
    args = tuple(replace(b, layout=layout) if b.name == "w" else b for b in kernel.args)
    rng = np.random.default_rng(1)
    memory = {b.name: np.zeros(b.layout.elements, b.dtype.numpy) for b in args}
    memory["w"] = pack(numbers(dtype, k, n), "kn", layout)
    if "x" in memory:
        memory["x"][:] = rng.integers(-4, 5, k)
    if "i" in memory:
        memory["i"][:] = rng.integers(0, k, 11)
    return replace(kernel, args=args), memory


@on_machines
@pytest.mark.parametrize("sizes", [(6, 32), (7, 19), (2, 5)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("text", SCHEDULES, ids=lambda t: re.findall('"(.*?)"', t)[0])
def test_code_reads_what_the_interpreter_does(
    text: str, dtype: DType, sizes: tuple[int, int], machine: Machine
) -> None:
    plain, own = kernel_and_memory(text, dtype, sizes, "kn", {})
    bytes_ = replace(
        plain, args=tuple(replace(b, layout=replace(b.layout, nibbles=False)) for b in plain.args)
    )
    unpacked = {**own, "w": from_nibbles(own["w"], dtype)[: bytes_.buffer("w").layout.elements]}
    interpret_kernel(bytes_, unpacked)
    for order, blocks in LAYOUTS:
        kernel, memory = kernel_and_memory(text, dtype, sizes, order, blocks)
        interpret_kernel(kernel, memory)
        assert (memory["y"] == unpacked["y"]).all()
        for schedule in SCHEDULES[text]:
            scheduled = apply_schedule(kernel, parse_schedule(schedule))
            for side in ("begin", "end"):
                _, again = kernel_and_memory(text, dtype, sizes, order, blocks)
                run_kernel(scheduled, machine, again, fence=side)
                assert (again["y"] == unpacked["y"]).all(), f"{schedule}\n{scheduled}"


@pytest.mark.parametrize("dtype", TYPES)
def test_an_instruction_looks_real_numbers_up(dtype: DType) -> None:
    kernel, _ = kernel_and_memory(PRODUCT, dtype, (6, 32), "kn", {"k": 2})
    schedule = "split(n, 16); tile([n.i], [vector]); split(k, 2); mark(k.i, unroll)"
    scheduled = apply_schedule(kernel, parse_schedule(schedule))
    assembly = compile_assembly(emit_kernel(scheduled, V4).text, V4)
    assert len(re.findall(r"\bvperm(?:d|ps)\b", assembly)) >= 2
    assert "vcvtdq2ps" not in assembly
