"""What is known of a kernel's places in memory and registers, kept while its code is made."""

from __future__ import annotations

from dataclasses import field

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Coord
from rutc.tensor_ir.kernel import Buffer


@record
class Site:
    """Coordinates in a kernel, and what they are where their variables have certain values.

    `names` are all variables that decide; None where data do.
    """

    names: tuple[str, ...] | None
    addresses: dict[object, Index | None] = field(default_factory=dict)
    """Element numbers of memory; None for what is outside."""
    registers: dict[object, tuple[tuple[object, ...], bool]] = field(default_factory=dict)
    """Numbers of registers, and whether these differ between the lanes."""

    @staticmethod
    def of(places: tuple[tuple[str, Coord], ...], buffer: Buffer) -> Site:
        """Coordinates of a buffer's elements, of which nothing is known yet."""
        indices = [c for _, c in places if isinstance(c, Index)]
        if len(indices) < len(places):
            return Site(None)
        return Site(tuple(sorted(buffer.layout.names().union(*(c.names() for c in indices)))))
