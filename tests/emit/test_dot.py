"""Which instructions sums of products of integers are made of."""

import re
from dataclasses import replace

import pytest

from rutc.emit.codegen import compile_assembly
from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose
from tests.machines import V3, V4
from tests.tensor_ir.test_steps import kernel_of

VNNI = replace(V4, features=V4.features | {"avx512vnni"})
PRODUCTS = """
graph "products"
dims m = 24, n = 64, k = 128
%x : {a}{{k,m}} = input "x" [m, k]
%w : i8{{k,n}} = input "w" [k, n]
%y : i32{{m,n}} = sum{{k}} i32(%x[k, m]) * i32(%w[k, n])
output "y" [m, n] = %y
"""


def emitted(text: str, machine: Machine, *, small: bool) -> str:
    """LLVM's language for a kernel of products."""
    kernel: Kernel = kernel_of(text)
    args = tuple(replace(b, small=small and b.name == "w") for b in kernel.args)
    kernel = replace(kernel, args=args)
    chosen = choose(kernel, machine, frozenset(["w"]))
    return emit_kernel(apply_schedule(kernel, chosen.schedule), machine).text


def products(text: str, machine: Machine, *, small: bool) -> frozenset[str]:
    """The instructions on integers of 8 and 16 bits, as they stand in assembly."""
    assembly = compile_assembly(emitted(text, machine, small=small), machine)
    return frozenset(re.findall("vpmadd[a-z]+|vpdp[a-z]+", assembly))


@pytest.mark.parametrize(
    ("a", "small", "machine", "wanted"),
    [
        ("u8", False, V3, {"vpmaddwd"}),
        ("u8", True, V3, {"vpmaddubsw", "vpmaddwd"}),
        ("u8", True, V4, {"vpmaddubsw", "vpmaddwd"}),
        ("i8", True, V3, {"vpmaddwd"}),
        ("i16", True, V3, {"vpmaddwd"}),
        ("u8", True, VNNI, {"vpdpbusd"}),
        ("i16", False, VNNI, {"vpdpwssd"}),
    ],
)
def test_products_of_neighbours(a: str, small: bool, machine: Machine, wanted: set[str]) -> None:
    assert products(PRODUCTS.format(a=a), machine, small=small) == wanted


def test_products_are_added_before_others_are_loaded_where_registers_are_few() -> None:
    """LLVM keeps loads and assembly with side effects in order, so that few products wait."""
    text = PRODUCTS.format(a="i8")
    assert "asm sideeffect" in emitted(text, V3, small=False)
    for machine in (V4, VNNI):
        assert "asm sideeffect" not in emitted(
            text.replace("i8{k,m}", "u8{k,m}"), machine, small=False
        )
