"""Which instructions sums of products of integers are made of."""

import re
from dataclasses import replace

import pytest

from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.kernel import Kernel, Small
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Pack, apply_schedule, parse_schedule
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from tests.machines import V3, V4
from tests.tensor_ir.test_steps import kernel_of

VNNI = replace(V4, features=V4.features | {"avx512vnni"})
NONE, ANY = Small(), Small(any_two=True)
FOURS = Small(any_two=True, fours=("k",))
PRODUCTS = """
graph "products"
dims m = 24, n = 64, k = 128
%x : {a}{{k,m}} = input "x" [m, k]
%w : i8{{k,n}} = input "w" [k, n]
%y : i32{{m,n}} = sum{{k}} i32(%x[k, m]) * i32(%w[k, n])
output "y" [m, n] = %y
"""


def with_small(text: str, small: Small) -> Kernel:
    """A kernel of products by %w, factors of which are small."""
    kernel: Kernel = kernel_of(text)
    args = tuple(replace(b, small=small) if b.name == "w" else b for b in kernel.args)
    return replace(kernel, args=args)


def assembled(text: str, schedule: str, machine: Machine, *, small: Small) -> str:
    """Assembly for a kernel of products with a schedule, packed as the default one wants it."""
    kernel = with_small(text, small)
    packs = [s for s in choose(kernel, machine, frozenset("w")).schedule if isinstance(s, Pack)]
    scheduled = with_schedule(kernel, Choice((*packs, *parse_schedule(schedule)))).kernel
    return compile_assembly(emit_kernel(scheduled, machine).text, machine)


def emitted(text: str, machine: Machine, *, small: Small) -> str:
    """LLVM's language for a kernel of products."""
    kernel = with_small(text, small)
    chosen = choose(kernel, machine, frozenset(["w"]))
    return emit_kernel(apply_schedule(kernel, chosen.schedule), machine).text


def products(text: str, machine: Machine, *, small: Small) -> frozenset[str]:
    """The instructions on integers of 8 and 16 bits, as they stand in assembly."""
    assembly = compile_assembly(emitted(text, machine, small=small), machine)
    return frozenset(re.findall("vpmadd[a-z]+|vpdp[a-z]+|vpaddw", assembly))


@pytest.mark.parametrize(
    ("a", "small", "machine", "wanted"),
    [
        ("u8", NONE, V3, {"vpmaddwd"}),
        ("u8", ANY, V3, {"vpmaddubsw", "vpmaddwd"}),
        ("u8", ANY, V4, {"vpmaddubsw", "vpmaddwd"}),
        ("u8", FOURS, V3, {"vpmaddubsw", "vpmaddwd", "vpaddw"}),
        ("u8", FOURS, V4, {"vpmaddubsw", "vpmaddwd", "vpaddw"}),
        ("u8", FOURS, VNNI, {"vpdpbusd"}),
        ("i8", ANY, V3, {"vpmaddwd"}),
        ("i16", ANY, V3, {"vpmaddwd"}),
        ("u8", ANY, VNNI, {"vpdpbusd"}),
        ("i16", NONE, VNNI, {"vpdpwssd"}),
    ],
)
def test_products_of_neighbours(a: str, small: Small, machine: Machine, wanted: set[str]) -> None:
    assert products(PRODUCTS.format(a=a), machine, small=small) == wanted


@pytest.mark.parametrize(
    ("left", "machine", "small", "registers"),
    [
        (8, VNNI, NONE, {"zmm", "ymm"}),
        (4, VNNI, NONE, {"zmm", "xmm"}),
        (8, V4, ANY, {"zmm", "ymm"}),
        (8, V4, NONE, {"zmm", "ymm"}),
        (4, V3, ANY, {"ymm", "xmm"}),
        (4, V3, FOURS, {"ymm", "xmm"}),
        (4, V3, NONE, {"ymm", "xmm"}),
    ],
)
def test_products_of_columns_that_are_left_over(
    left: int, machine: Machine, small: Small, registers: set[str]
) -> None:
    """They are as many as half a vector has lanes, or a quarter: instructions take those, too."""
    columns, group = machine.width + left, machine.products(DType.U8, DType.I8, small=bool(small))
    text = PRODUCTS.format(a="u8").replace("n = 64", f"n = {columns}")
    schedule = (
        f"split(m, 4); split(n, {machine.width}); reorder([m.o, n.o, m.i, n.i]); peel(n.o); "
        f"tile([m.i, n.i], [unroll, vector]); split(k, {group}); mark(k.i, dot)"
    )
    assembly = assembled(text, schedule, machine, small=small)
    found = re.findall(r"(?:vpmaddwd|vpdpbusd)\t.*%(.)mm", assembly)
    assert {f"{x}mm" for x in found} == registers
    assert "vpmulld" not in assembly


@pytest.mark.parametrize("machine", [VNNI, V3])
def test_what_vectors_of_two_lengths_share_is_put_into_lanes_of_either(machine: Machine) -> None:
    """Of a sum as short as a group, code for all columns of some rows has no branches."""
    columns, group = machine.width + machine.width // 2, machine.products(DType.U8, DType.I8)
    text = PRODUCTS.format(a="u8").replace("n = 64", f"n = {columns}")
    text = text.replace("k = 128", f"k = {group}")
    schedule = (
        f"split(m, 4); split(n, {machine.width}); reorder([m.o, n.o, m.i, n.i]); peel(n.o); "
        f"tile([m.i, n.i], [unroll, vector]); split(k, {group}); mark(k.i, dot)"
    )
    assembly = assembled(text, schedule, machine, small=NONE)
    found = re.findall(r"(?:vpmaddwd|vpdpbusd)\t.*%(.)mm", assembly)
    assert len(set(found)) == 2


@pytest.mark.parametrize(
    ("first", "small", "together"),
    [
        (0, Small(pairs=("l",)), True),
        (2, Small(pairs=("l",)), True),
        (1, Small(pairs=("l",)), False),
        (0, Small(pairs=("n",)), False),
        (1, ANY, True),
        (8, Small(pairs=("l",), fours=("l",)), True),
        (4, Small(pairs=("l",), fours=("l",)), True),
    ],
)
def test_pairs_are_those_that_are_known_to_be_small(
    first: int, small: Small, *, together: bool
) -> None:
    text = PRODUCTS.format(a="u8").replace("k = 128", "k = 128, l = 136")
    text = text.replace("w : i8{k,n}", "w : i8{l,n}").replace('"w" [k, n]', '"w" [l, n]')
    found = products(text.replace("%w[k, n]", f"%w[l=k + {first}, n]"), V3, small=small)
    assert ("vpmaddubsw" in found) is together


def test_products_are_added_before_others_are_loaded_where_registers_are_few() -> None:
    """LLVM keeps loads and assembly with side effects in order, so that few products wait."""
    text = PRODUCTS.format(a="i8")
    assert "asm sideeffect" in emitted(text, V3, small=NONE)
    for machine in (V4, VNNI):
        assert "asm sideeffect" not in emitted(
            text.replace("i8{k,m}", "u8{k,m}"), machine, small=NONE
        )


def test_what_all_lanes_share_is_loaded_once_for_the_vectors_of_a_tile() -> None:
    schedule = (
        "split(m, 4); split(n, 16); reorder([n.o, m.o, m.i, n.i]); "
        "tile([m.i, n.i], [unroll, vector]); split(k, 4); mark(k.i, dot)"
    )
    assembly = assembled(PRODUCTS.format(a="u8"), schedule, V3, small=ANY)
    loaded = re.findall(r"vpbroadcastd\t\S*\(%r(?!ip)", assembly)
    assert assembly.count("vpmaddubsw") == 2 * len(loaded) > 0


@pytest.mark.parametrize(("rows", "kept"), [(4, True), (6, False)])
def test_signs_are_kept_for_all_rows_where_registers_have_room(rows: int, *, kept: bool) -> None:
    """Six rows of two vectors leave none: each product reads the signs as it changes them."""
    text = """
        graph "signs"
        dims m = 24, n = 64, k = 128
        %x : i8{k,m} = input "x" [m, k]
        %s : i8{k,n} = input "s" [k, n]
        %w : u8{k,n} = input "w" [k, n]
        %y : i32{m,n} = sum{k} i32(%x[k, m] ^ %s[k, n]) * i32(%w[k, n])
        output "y" [m, n] = %y
        """
    schedule = (
        "pack(s, [n, k], [[n, 16], [k, 4]]); pack(w, [n, k], [[n, 16], [k, 4]]); "
        f"split(m, {rows}); split(n, 16); reorder([n.o, m.o, m.i, n.i]); "
        "tile([m.i, n.i], [unroll, vector]); split(k, 4); mark(k.i, dot)"
    )
    scheduled = apply_schedule(with_small(text, ANY), parse_schedule(schedule))
    assembly = compile_assembly(emit_kernel(scheduled, V3).text, V3)
    changed = re.findall(r"vpxor\t(\S+)\(%r", assembly)
    assert "vpmaddubsw" in assembly
    assert bool(changed) is not kept


def test_what_windows_share_is_not_kept_from_step_to_step() -> None:
    """Every second window begins where the last group of another one does.

    Registers have room for the sums of 13 windows, and for no group besides that is used again.
    """
    text = """
        graph "stem"
        dims c = 3, p = 230, x = 112, k = 7, n = 64, q = 7
        %v : u8{c,p,q} = input "v" [c, q, p]
        %w : i8{c,k,n,q} = input "w" [n, c, q, k]
        %y : i32{n,x} = sum{c,q,k} i32(%v[c, p=k+2*x, q]) * i32(%w[c, k, n, q])
        output "y" [n, x] = %y
        """
    schedule = (
        "split(x, 13); split(n, 32); reorder([n.o, x.o, x.i, n.i]); peel(x.o); "
        "tile([x.i, n.i], [unroll, vector]); split(k, 4); cut(k.o, [1]); mark(k.i, dot)"
    )
    assembly = assembled(text, schedule, VNNI, small=NONE)
    assert "vpdpbusd" in assembly
    assert not re.search(r"%zmm\d+, -?\d*\(%rsp\)", assembly)
