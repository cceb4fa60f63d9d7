"""Tiles of one more row than the others, for the last row where it would be a block of its own."""

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import Even, Split, apply_schedule
from rutc.tuner import choose
from tests.tuner.test_schedules import lowered
from tests.tuner.test_tiles import OPEN


def scheduled(rows: str) -> tuple[Even, int, set[int]]:
    """How last blocks of a product's rows are made even, a tile's rows, and those with code."""
    kernel, constants = lowered(OPEN.replace("i = n", f"i = {rows}"))
    schedule = choose(kernel, x86.avx512(), constants).schedule
    (split,) = (s for s in schedule if isinstance(s, Split) and s.var == "i")
    made = apply_schedule(kernel, schedule)
    loops = (s for s in walk_loops(made.body) if s.var == "i.i")
    (even,) = (s for s in schedule if isinstance(s, Even))
    return even, split.factor, {loop.hi.const for loop in loops}


@pytest.mark.parametrize(("rows", "longer"), [("n", 1), ("n + 1", 1), ("2*n", 0), ("4*n + 2", 0)])
def test_rows_in_twos_never_leave_one(rows: str, longer: int) -> None:
    even, factor, tiles = scheduled(rows)
    assert even.longer == longer
    assert max(tiles) == factor + longer
