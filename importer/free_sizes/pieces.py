"""Sizes that are one formula up to some value of an input's size, and another one beyond it.

Where a size tells whether a cut begins before the first element, and so is counted from the end,
the length of the cut is computed by the run. In pieces of that size's range it is a formula:

    [1000 - t : 999 + t] of 1999 rows       t = 1..1000        2*t - 1
                                            t = 1001..2999     t - 1001
                                            t = 3000..         1999

What has to be equal to the length is so in some pieces only, which tells a size whose range nobody
stated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rutc.base.record import record
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.affine import Range

MOST_PIECES = 4


@record
class Pieces:
    """What a size is in each of the ranges of `symbol`, which make up all of that one's range.

    `place` is where the cut begins that the size follows from, counted from either end.
    """

    symbol: str
    place: Index
    parts: tuple[tuple[Range, Index], ...]


def pieces(
    symbol: str, ranges: Mapping[str, Range], certain: Callable[[Mapping[str, Range]], bool]
) -> list[Range] | None:
    """The range of a symbol in few pieces, in each of which something is certain; None if not so.

    Args:
        symbol: A size.
        ranges: The ranges of all sizes.
        certain: Whether it is where sizes have the given ranges.
    """
    low, most = ranges[symbol]
    found: list[Range] = []
    while low <= most:
        if len(found) == MOST_PIECES or not certain({**ranges, symbol: (low, low)}):
            return None
        high, last = low, most
        while high < last:
            middle = (high + last + 1) // 2
            holds = certain({**ranges, symbol: (low, middle)})
            high, last = (middle, last) if holds else (high, middle - 1)
        found.append((low, high))
        low = high + 1
    return found


def by_pieces(
    x: Index, known: Mapping[str, Pieces], ranges: Mapping[str, Range]
) -> tuple[str, list[tuple[Range, Index]]] | None:
    """A symbol, and in pieces of its range what `x` is as a formula, if it is one of such sizes."""
    sizes = sorted(n for n in x.names() if n in known)
    symbols = {known[n].symbol for n in sizes}
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    parts = [(ranges[symbol], x)]
    for n in sizes:
        parts = [
            (met, e.subs({n: formula}))
            for limits, e in parts
            for piece, formula in known[n].parts
            if (met := _common(limits, piece)) is not None
        ]
    return symbol, parts


def _common(a: Range, b: Range) -> Range | None:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None
