"""Ranges of symbolic sizes at which every read stays inside of its value.

A weight of n rows that belongs to a layer of 12 is read at 12 rows: n is at least 12, and a run
with fewer is refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rutc.errors import UserError
from rutc.tensor_ir import Coord, Index, Nest, Node, Read, Scan, Scatter
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.indices.affine import ZERO, Range


def fitted(
    nodes: Sequence[Node], extents: Mapping[str, Index], symbols: Mapping[str, Range]
) -> dict[str, Range]:
    """The symbols' ranges, cut to the sizes that unconditional reads need.

    Raises:
        UserError: No size of a range will do.
    """
    found = dict(symbols)
    if not found:
        return found
    for n, r in _unconditional(nodes):
        for d, c in r.coords:
            room = room_of(c, extents[d], extents) if r.fill is None else None
            names = sorted(room.names()) if room is not None else []
            if room is None or len(names) != 1 or names[0] not in found:
                continue
            symbol, scale = names[0], room.coefficient(names[0])
            if not scale or not (spare := room - scale * Index.of(symbol)).is_const:
                continue
            low, high = found[symbol]
            least = max(low, -(spare.const // scale)) if scale > 0 else low
            most = min(high, spare.const // -scale) if scale < 0 else high
            if least > most:
                limit = f"at least {least}" if scale > 0 else f"at most {most}"
                raise UserError(
                    f"{', '.join(n.origin)} needs {limit} as size {symbol}, which is in "
                    f"{low}..{high}: give another range with --dim"
                )
            found[symbol] = (least, most)
    return found


def room_of(c: Coord, extent: Index, extents: Mapping[str, Index]) -> Index | None:
    """How far the last element read is from the end, where a coordinate grows with all its dims."""
    if not isinstance(c, Index) or any(x not in extents for x in c.names()):
        return None
    if c.as_var is not None and extents[c.as_var] == extent:
        return ZERO if extent != ZERO else None
    if any((c.coefficient(x) or 0) <= 0 or extents[x] == ZERO for x in c.names()):
        return None
    return extent - 1 - c.subs({x: extents[x] - 1 for x in c.names()})


def _unconditional(nodes: Sequence[Node]) -> Iterator[tuple[Nest | Scatter, Read]]:
    """Reads that every run makes, with the nests and scatters that make them."""
    for n in nodes:
        if isinstance(n, Nest):
            for e in n.body:
                yield from ((n, r) for r in reads(e))
        elif isinstance(n, Scatter):
            yield from ((n, r) for r in reads(n.body))
        elif isinstance(n, Scan):
            yield from _unconditional(n.body)
