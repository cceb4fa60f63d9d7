"""Windows: reads that a bound loop and a free one move along the same dim, as in pooling."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Read, index_names

MOST_TAPS = 64
"""The most elements of a window that are written out one after the other."""


def partners(
    reads: Iterable[Read], free: AbstractSet[str], bound: AbstractSet[str]
) -> dict[str, str] | None:
    """Bound loop -> the free loop that moves the reads along the same dim by constant steps.

    %x[c, y=2*y+ky-1, x=2*x+kx-1] * %w[c, ky, kx]   ->   ky: y, kx: x

    Reads whose every dim is moved by one kind of loop only, like that of weights, have no say. None
    where a bound loop moves a window's read alone or in another way, or moves no window at all.
    Loops in neither set have one iteration only.
    """
    found: dict[str, str] = {}
    for r in reads:
        moved: set[str] = set()
        alone = False
        for _, c in r.coords:
            names = c.names() if isinstance(c, Index) else index_names(c)
            own, around = names & bound, names & free
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
