"""Windows: reads that a bound loop and a free one move along the same dim, as in pooling."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache

from rutc.base.record import record
from rutc.tensor_ir.expr import Read, coord_names
from rutc.tensor_ir.indices.affine import Index

MOST_TAPS = 64
"""Elements of a window that schedules of windows write out."""


@record
class Window:
    """A coordinate that a bound loop and a free one move.

    %x[y=2*y + 12*k - 12 else 0.0]   ->   bound k, step 12; free y, stride 2; start -12
    """

    bound: str
    step: int
    free: str
    stride: int
    start: int
    extent: int


def window(c: Index, bound: Collection[str], free: Collection[str], extent: int) -> Window | None:
    """The window that is a coordinate of some extent; None where other loops move it, too."""
    names = c.names()
    own, around = names & set(bound), names & set(free)
    if len(own) != 1 or len(around) != 1:
        return None
    (b,), (f,) = own, around
    step, stride = c.coefficient(b), c.coefficient(f)
    if not step or not stride:
        return None
    rest = c - Index.of(b) * step - Index.of(f) * stride
    return Window(b, step, f, stride, rest.const, extent) if rest.is_const else None


@lru_cache(maxsize=4096)
def share_inside(w: Window, turns: int, rows: int, tile: int = 1) -> float:
    """The share of the bound loop's iterations in which some row of a tile is inside.

    There are `turns` iterations of the bound loop and `rows` of the free one. A shorter tile at the
    end counts as much less as it has fewer rows.
    """
    whole, rest = divmod(rows, tile)
    done = 0
    for k in range(turns):
        at = w.start + w.step * k
        done += tile * _tiles_inside(w, at, tile, whole)
        done += rest * _tiles_inside(w, at + w.stride * tile * whole, rest, 1) if rest else 0
    return done / (rows * turns) if rows * turns else 1.0


def _tiles_inside(w: Window, at: int, rows: int, count: int) -> int:
    """How many of `count` tiles, the first row of the first one `at` a place, have a row inside."""
    step, reach = w.stride * rows, w.stride * (rows - 1)
    # The first row of such a tile is at a place from `low` on, and below `high`.
    low, high = -max(reach, 0) - at, w.extent - min(reach, 0) - at
    if step < 0:
        step, low, high = -step, 1 - high, 1 - low
    return max(0, min(count, -(-high // step)) - max(0, -(-low // step)))


def partners(
    reads: Iterable[Read],
    free: AbstractSet[str],
    bound: AbstractSet[str],
    single: AbstractSet[str] = frozenset(),
) -> dict[str, str] | None:
    """Bound loop -> the free loop that moves the reads along the same dim by constant steps.

    %x[c, y=2*y+ky-1, x=2*x+kx-1] * %w[c, ky, kx]   ->   ky: y, kx: x

    Reads whose every dim is moved by one kind of loop only, like that of weights, have no say. None
    where a bound loop moves a window's read alone or in another way, or moves no window at all.
    Loops in neither set have one iteration only. Those that are `single`, such as that over the row
    of a slice, are partners where no other free loop is.
    """
    found: dict[str, str] = {}
    for r in reads:
        moved: set[str] = set()
        alone = False
        for _, c in r.coords:
            names = coord_names(c)
            own, around = names & bound, names & free or names & single
            if not own:
                continue
            if not around:
                alone = True
                continue
            if not isinstance(c, Index) or len(own) != 1 or len(around) != 1:
                return None
            (b,), (f,) = own, around
            if not c.coefficient(b) or not c.coefficient(f) or found.setdefault(b, f) != f:
                return None
            moved.add(b)
        if moved and alone:
            return None
    return found if found.keys() == bound else None
