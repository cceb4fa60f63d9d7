"""Buffers that hold one slice of a dim, and kernels that use them as if they held no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from rutc.tensor_ir.expr import Coord
from rutc.tensor_ir.indices.affine import Index, Range, Size, minimum
from rutc.tensor_ir.kernel import Access, Buffer, Stmt
from rutc.tensor_ir.statements import rewrite
from rutc.tensor_ir.steps.step import simplified


def within_slices(
    args: list[Buffer],
    body: list[Stmt],
    early: str | None,
    symbols: Mapping[str, Range],
) -> tuple[list[Buffer], list[Stmt]]:
    """Buffers with room for one slice as if they held no other, and the body using them so.

    %u[y%8], u[y=8*t + y] = ..  ->  %u[y], u[y=y] = ..

    `early` is the symbol of slices the last of which begins early: not at a multiple of their size.
    """
    room: dict[str, dict[str, Size]] = {}
    whole = {(b.name, d): extent for b in args for d, extent in b.layout.extents}
    for b in args:
        blocked = {a.dim for a in b.layout.axes if a.div != 1}
        rings = (a for a in b.layout.axes if not a.whole and a.dim not in blocked)
        room[b.name] = {a.dim: a.extent for a in rings}

    def wrapped(name: str, coords: tuple[tuple[str, Coord], ...]) -> tuple[tuple[str, Coord], ...]:
        sizes = room.get(name, {})

        def within(d: str, c: Coord) -> Coord:
            if d not in sizes or not isinstance(c, Index):
                return c
            if early is not None and early in c.names():
                return c - early_start(early, sizes[d], whole[name, d])
            return c % Index.of(sizes[d])

        return tuple((d, within(d, c)) for d, c in coords)

    moved = tuple(body)
    if any(room.values()):
        moved = rewrite(
            moved,
            read=lambda r: r.at(wrapped(r.value, r.coords)) if room.get(r.value) else r,
            access=lambda a: Access(a.buffer, wrapped(a.buffer, a.coords)),
        )
    own: list[Buffer] = []
    for b in args:
        sizes = room[b.name]
        axes = tuple(replace(a, whole=a.whole or a.dim in sizes) for a in b.layout.axes)
        extents = tuple((d, sizes.get(d, e)) for d, e in b.layout.extents)
        own.append(replace(b, layout=replace(b.layout, axes=axes, extents=extents)))
    return own, list(simplified(moved, symbols))


def early_start(symbol: str, size: Size, end: Size) -> Index:
    """Where a slice begins of which the last one ends at `end`: min(symbol * size, end - size).

    What divides both is factored out: 2*min(s*n, m - n).
    """
    size, end = Index.of(size), Index.of(end)
    common = gcd(size.const, end.const, *(c for _, c in (*size.terms, *end.terms)))
    part = size // common
    return minimum(Index.of(symbol) * part, end // common - part, {}) * common
