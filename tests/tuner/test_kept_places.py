"""What of a window a tile's rows read again in a later step: registers keep it where there are."""

import pytest

from rutc.emit.targets import x86
from rutc.tuner.access import Reduction
from rutc.tuner.analysis import analyse
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_loads import kept_places
from rutc.tuner.tiles.tile_registers import crowded
from tests.tuner.test_schedules import kernel_of

# A phase of a transposed convolution of 4x4 windows in steps of two.
PHASE = """
graph "phase"
dims y = 4, x = 4, w = 5, n = 256, c = 512, k = 2
%i : f32{c,w,y} = input "i" [y, c, w]
%f : f32{c,k,n} = input "f" [k, c, n]
%o : f32{n,x,y} = sum{c,k} %i[c, w=x+k, y] * %f[c, k, n]
output "o" [y, x, n] = %o
"""


@pytest.fixture
def reduction() -> Reduction:
    (found,) = analyse(kernel_of(PHASE), frozenset(["f"])).reductions
    return found


def test_rows_along_each_other_loop_have_places_that_are_read_again(reduction: Reduction) -> None:
    # Of four places of a row three are read again, beside the one that is being read.
    assert kept_places(reduction, (("x", 4),), "k", 2) == 4
    assert kept_places(reduction, (("y", 2), ("x", 4)), "k", 2) == 7
    assert kept_places(reduction, (("y", 2),), "k", 2) == 0


def test_a_tile_whose_windows_lack_registers_is_not_written_out(reduction: Reduction) -> None:
    # 24 sums, 3 vectors and 6 places that are read again: all sums would go over memory.
    tile = RegisterTile("n", 3, (("y", 2), ("x", 4)), 1.0)
    assert crowded(reduction, tile, "k", 2, x86.avx512())
    smaller = RegisterTile("n", 2, (("y", 2), ("x", 4)), 1.0)
    assert not crowded(reduction, smaller, "k", 2, x86.avx512())
