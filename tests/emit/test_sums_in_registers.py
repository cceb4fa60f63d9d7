"""Sums of a tile of rows stay in registers, also where a run tells how many rows a tile has."""

import re

import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.machines import V3
from tests.tensor_ir.test_steps import kernel_of

ROWS = """
    graph "rows"
    symbols rows = 1..999
    dims i = rows, j = 64, k = 64
    %x : f32{i,k} = input "x" [i, k]
    %w : f32{j,k} = input "w" [k, j]
    %y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
    output "y" [i, j] = %y
"""
TILES = (
    "split(i, 6); split(j, 16); reorder([j.o, i.o, i.i, j.i]); {rows}; "
    "tile([i.i, j.i], [unroll, vector]); split(k, 4); mark(k.i, unroll)"
)
ON_STACK = re.compile(r"^\tvmov\w+\t.*%rsp.*%?ymm|^\tvmov\w+\t%ymm\d+, .*%rsp", re.MULTILINE)


@pytest.mark.parametrize("rows", ["even(i.o, 0)", "peel(i.o)"])
def test_sums_of_a_tile_of_rows_stay_in_registers(rows: str) -> None:
    """Twelve sums, two of the weights' vectors and an element of a row take 15 of 16 registers."""
    kernel = apply_schedule(kernel_of(ROWS), parse_schedule(TILES.format(rows=rows)))
    assembly = compile_assembly(emit_kernel(kernel, V3).text, V3)
    assert "vfmadd" in assembly
    assert not ON_STACK.findall(assembly)
