"""Rows that panels part are asked for by the tiles that read them first."""

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import PrefetchLater
from rutc.tuner import choose
from tests.tuner.test_schedules import lowered

MIX = """
graph "values, each times the weights of three heads"
symbols rows = 1..512
dims h = 4, g = 3, m = rows, j = KEYS, e = LANES
%p : f32{g,h,j,m} = input "p" [h, g, m, j]
%v : f32{e,h,j} = input "v" [h, j, e]
%y : f32{e,g,h,m} = sum{j} %p[g, h, j, m] * %v[e, h, j]
output "y" [h, m, g, e] = %y
"""
AVX2, AVX512 = x86.avx2(), x86.avx512()


@pytest.mark.parametrize(
    ("machine", "keys", "lanes", "again"),
    [
        (AVX2, 640, 64, [("m.o",)]),
        (AVX2, 643, 64, [("m.o",)]),
        # The hardware keeps up with panels that read half of each row.
        (AVX2, 640, 40, []),
        # Tiles have whole rows, which follow one another.
        (AVX2, 640, 24, []),
        (AVX512, 640, 64, []),
        # The first cache holds them.
        (AVX2, 32, 64, []),
    ],
)
def test_tiles_that_read_parts_of_rows_first_ask_for_them(
    machine: Machine, keys: int, lanes: int, again: list[tuple[str, ...]]
) -> None:
    kernel, constants = lowered(MIX.replace("KEYS", str(keys)).replace("LANES", str(lanes)))
    schedule = choose(kernel, machine, constants).schedule
    assert [s.again for s in schedule if isinstance(s, PrefetchLater)] == again


def test_tiles_of_a_known_number_mostly_read_what_is_near() -> None:
    text = MIX.replace("KEYS", "640").replace("LANES", "64")
    kernel, constants = lowered(text.replace("symbols rows = 1..512\n", "").replace("rows", "32"))
    schedule = choose(kernel, AVX2, constants).schedule
    assert not any(isinstance(s, PrefetchLater) for s in schedule)
