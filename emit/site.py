"""What is known of a kernel's places in memory and registers, kept while its code is made."""

from __future__ import annotations

from dataclasses import field

from rutc.base.record import record
from rutc.tensor_ir.expr import Coord, Lit
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer, Space


@record
class Site:
    """Coordinates in a kernel, and what they are where their variables have certain values.

    `names` are all variables that decide; None where data do.
    """

    names: tuple[str, ...] | None
    address: Index | None = None
    """The element number in memory, as short as it is whatever is known."""
    addresses: dict[object, Index | None] = field(default_factory=dict)
    """Element numbers of memory; None for what is outside."""
    registers: dict[object, tuple[tuple[object, ...], bool]] = field(default_factory=dict)
    """Numbers of registers, and whether these differ between the lanes."""
    outside: dict[object, bool] = field(default_factory=dict)
    """Whether they are known to be outside of the buffer."""

    @staticmethod
    def of(places: tuple[tuple[str, Coord], ...], buffer: Buffer) -> Site:
        """Coordinates of a buffer's elements, of which nothing is known yet."""
        coords = {d: c for d, c in places if isinstance(c, Index)}
        if len(coords) < len(places):
            return Site(None)
        layout = buffer.layout
        names = tuple(sorted(layout.names().union(*(c.names() for c in coords.values()))))
        address = None
        if buffer.space is not Space.REGISTER and layout.plain:
            address = layout.address(coords, {})
        return Site(names, address)


class Sites:
    """All coordinates of a kernel's buffers, each with what is known of it."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._sites: dict[object, Site] = {}
        self._same: dict[tuple[str, int, int], tuple[object, object, Site]] = {}

    def at(self, places: tuple[tuple[str, Coord], ...], buffer: Buffer, fill: Lit | None) -> Site:
        """What is known of a place; the table keeps it, so that nothing else gets its identity."""
        # Looking it up by what it is takes the hashes of all coordinates.
        same = buffer.name, id(places), id(fill)
        known = self._same.get(same)
        if known is None:
            key = buffer.name, places, fill
            found = self._sites.get(key)
            if found is None:
                found = self._sites[key] = Site.of(places, buffer)
            known = self._same[same] = places, fill, found
        return known[2]
