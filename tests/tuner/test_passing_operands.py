"""Operands of which no two rows of a tile share anything: they pass by in memory."""

from dataclasses import replace

from rutc.emit.targets import x86
from rutc.tensor_ir.facts.products import Small
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner.access import Shape
from rutc.tuner.analysis import analyse
from rutc.tuner.tiles.tile_cost import costed
from rutc.tuner.tiles.tile_registers import LONGEST_UNROLLED, crowded
from rutc.tuner.tiles.tiles import choose_tile
from tests.tuner.test_schedules import kernel_of

GATES = """
graph "gates"
dims g = 4, n = {n}, k = 256
%x : i8{{k}} = input "x" [k]
%s : i8{{g,k,n}} = input "s" [k, g, n]
%w : u8{{g,k,n}} = input "w" [k, g, n]
%y : i32{{g,n}} = sum{{k}} i32(%x[k] ^ %s[g, k, n]) * i32(%w[g, k, n])
output "y" [g, n] = %y
"""
ROW = """
graph "row"
dims m = {m}, n = {n}, k = 256
%x : f32{{k,m}} = input "x" [m, k]
%w : f32{{k,n}} = input "w" [k, n]
%y : f32{{m,n}} = sum{{k}} %x[k, m] * %w[k, n]
output "y" [m, n] = %y
"""
MACHINE = x86.avx2()


def gates(n: int = 256) -> tuple[Kernel, Shape]:
    kernel = kernel_of(GATES.format(n=n))
    args = tuple(replace(b, small=Small(any_two=True)) if b.name == "w" else b for b in kernel.args)
    kernel = replace(kernel, args=args)
    return kernel, analyse(kernel, frozenset(["s", "w"]))


def row(n: int = 512, m: int = 1) -> Shape:
    return analyse(kernel_of(ROW.format(n=n, m=m)), frozenset(["w"]))


def test_a_row_holds_no_vectors_of_what_passes_by() -> None:
    """Eight vectors of sums take ten registers: those of two rows would take vectors of both."""
    shape = row()
    each = {v: costed(shape, "n", v, (), MACHINE).cost for v in (4, 8)}
    assert each[8] < each[4]


def test_short_loops_of_what_passes_by_are_written_out() -> None:
    """Of a long one, what a part has written out would load vectors ahead."""
    for m, expected in ((1, False), (2, True)):
        shape = row(m=m)
        rows = (("m", 2),) if m > 1 else ()
        tile = costed(shape, "n", 12 // m if m > 1 else 8, rows, MACHINE)
        (r,) = shape.reductions
        assert crowded(r, tile, "k", LONGEST_UNROLLED, MACHINE) is expected
        assert crowded(r, tile, "k", 256, MACHINE)


def test_signs_of_a_row_pass_by() -> None:
    """A tile of a row leaves registers for one vector of magnitudes and signs, which is enough."""
    _, shape = gates()
    each = {v: costed(shape, "n", v, (), MACHINE).cost for v in (4, 8)}
    assert each[8] < each[4]


def test_what_fills_up_the_last_block_passes_by_too() -> None:
    """Two rows of five vectors of 32 would load as much as of 35, for fewer loads of a row."""
    _, shape = gates()
    tile = choose_tile(shape, MACHINE)
    assert tile is not None
    assert 32 % tile.vectors == 0
