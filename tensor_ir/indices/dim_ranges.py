"""Ranges of dims' indices, which may know an end that is an expression of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rutc.tensor_ir.indices.polynomial import Index
from rutc.tensor_ir.indices.ranges import Range


class DimRange(Range):
    """The indices below a symbolic extent: from 0 to at most what the extent's symbols allow.

    It differs from the plain range: of `w*y + x` it tells that `x`, below `w`, is the remainder.
    """

    extent: Index

    def __new__(cls, most: int, extent: Index) -> Self:
        """The range 0..most, of which a run has the indices below `extent`."""
        made = super().__new__(cls, (0, most))
        made.extent = extent
        return made

    def __reduce__(self) -> tuple[type[DimRange], tuple[int, Index]]:
        return DimRange, (self[1], self.extent)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, DimRange) and self.extent == other.extent
        return same and tuple(self) == tuple(other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.extent))


def dim_range(extent: Index, symbols: Mapping[str, Range]) -> Range | None:
    """The range of the indices below an extent; None where it has no bound."""
    bounds = extent.bounds(symbols)
    if bounds is None:
        return None
    most = max(bounds[1] - 1, 0)
    return (0, most) if extent.is_const else DimRange(most, extent)


def is_positive(x: Index, ranges: Mapping[str, Range]) -> bool:
    """Whether an expression is known to be more than 0 wherever all dims have an index.

    h*w - w*y - x  ->  h*w - w*(h - 1) - (w - 1) = 1, for y below h and x below w
    w*y - 2*y + 1  ->  1, where w is 2 at least
    """
    found = x.bounds(ranges)
    if found is not None and found[0] > 0:
        return True
    for name in x.ordered_names():
        limits = ranges.get(name)
        by = x.factor(name) if isinstance(limits, DimRange) else None
        slope = None if by is None else by.bounds(ranges)
        if not isinstance(limits, DimRange) or slope is None:
            continue
        if slope[1] <= 0:
            x = x.subs({name: limits.extent - 1})
        elif slope[0] >= 0:
            x = x.subs({name: Index.of(0)})
    found = x.bounds(ranges)
    return found is not None and found[0] > 0
