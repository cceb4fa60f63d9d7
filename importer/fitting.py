"""Ranges of symbolic sizes at which every read stays inside of its value.

A weight of n rows that belongs to a layer of 12 is read at 12 rows: n is at least 12, and a run
with fewer is refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rutc.errors import UserError
from rutc.tensor_ir import Index, Nest, Node, Read, Scan
from rutc.tensor_ir.affine import Range
from rutc.tensor_ir.expr import reads


def fitted(
    nodes: Sequence[Node], extents: Mapping[str, Index], symbols: Mapping[str, Range]
) -> dict[str, Range]:
    """The symbols' ranges, cut from below to the sizes that unconditional reads need.

    Raises:
        UserError: No size of a range is large enough.
    """
    found = dict(symbols)
    for n, r in _unconditional(nodes):
        for d, c in r.coords:
            if not isinstance(c, Index) or extents[d].is_const or r.fill is not None:
                continue
            names = sorted(c.names())
            if any(x not in extents or not extents[x].is_const for x in names):
                continue
            highest = c.bounds({x: (0, extents[x].const - 1) for x in names})
            symbol = _only_symbol(extents[d], found)
            if highest is None or symbol is None or any(not extents[x].const for x in names):
                continue
            scale = extents[d].coefficient(symbol)
            rest = extents[d] - Index.of(symbol) * (scale or 0)
            if not scale or scale < 0 or not rest.is_const:
                continue
            least = -((rest.const - highest[1] - 1) // scale)
            low, high = found[symbol]
            if least > high:
                raise UserError(
                    f"{', '.join(n.origin)} needs at least {least} as size {symbol}, which is at "
                    f"most {high}: give a larger range with --dim"
                )
            found[symbol] = (max(low, least), high)
    return found


def _only_symbol(extent: Index, symbols: Mapping[str, Range]) -> str | None:
    names = extent.names()
    return next(iter(names)) if len(names) == 1 and names <= symbols.keys() else None


def _unconditional(nodes: Sequence[Node]) -> Iterator[tuple[Nest, Read]]:
    """Reads of nests that every run computes, with their nests."""
    for n in nodes:
        if isinstance(n, Nest):
            for e in n.body:
                yield from ((n, r) for r in reads(e))
        elif isinstance(n, Scan):
            yield from _unconditional(n.body)
