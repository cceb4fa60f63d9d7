"""How long slices are of a dim whose size a run tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import Machine

Number = TypeVar("Number", int, Index)

FEWEST_SLICES = 4
"""Threads share slices: with fewer, they would have nothing to do."""
SHARED_TURNS = FEWEST_SLICES // 2
"""So many indices that take turns count as slices at most: threads take most of them whole, and
share the slices of those that are left over."""
TILE_VECTORS = 2
"""Vectors of a register tile: each uses what is loaded into all lanes."""


def even_slices(
    extent: Number,
    around: Number,
    size: Number,
    fits: Number | None,
    least: Number,
    smaller: Callable[[Number, Number | int], Number],
    larger: Callable[[Number, Number | int], Number],
) -> tuple[Number, Number]:
    """(number, size) of slices of an extent that hold about as many indices each, `size` at most.

    They are of as many as `fits`, if that is known; then there are `FEWEST_SLICES` at least, if
    there are indices, and none need be shorter than `least` for that. `smaller` and `larger` give
    one of two such numbers.
    """
    if fits is not None:
        shared = larger(extent * around // FEWEST_SLICES, least)
        size = larger(smaller(smaller(size, fits), shared), 1)
    count = (extent + size - 1) // size
    some = larger(count, 1)
    each = (extent + some - 1) // some
    return count, smaller(size, each)


def least_size(work: Sequence[tuple[int, int, bool]], machine: Machine) -> int:
    """The indices below which a slice takes about as long; 0 where shorter ones take less.

    Lanes that lie along the dim that is cut stay idle in a slice that does not fill a register
    tile: kernels of which that is so take a time a for it however short it is, others b for all
    that fills a tile. As `FEWEST_SLICES` of them two threads take 2*a + b/2, and as one slice a
    thread a + b, which is no more where 2*a >= b.

    Args:
        work: Of each kernel its iterations, its indices for each of a slice's, and whether its
            lanes lie along these.
        machine: Its vectors are of so many lanes.
    """
    idle = sum(points for points, _, along in work if along)
    if 2 * idle < sum(points for points, _, along in work if not along):
        return 0
    lanes = TILE_VECTORS * machine.width
    return max((-(-lanes // ratio) for _, ratio, along in work if along), default=0)
