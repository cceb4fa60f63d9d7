"""Constant tables of places that grow gradually, as those of pictures that become larger do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rutc.tensor_ir.expr import Coord, Read, plain_names, reads, reads_plainly
from rutc.tensor_ir.graph import Const, Data, Nest
from rutc.tensor_ir.indices.affine import Index, Size
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.layout import Layout


def gradual_tables(
    nests: Iterable[Nest], constants: Mapping[str, Const], extents: Mapping[str, Size]
) -> dict[str, tuple[str, ...]]:
    """Along which dims of constants each element is the one before it or the next number.

    They are constants that tell places in what nests read, and all of these are inside. Any
    n neighbours along such a dim lie among n elements of what is read.
    """
    found: dict[str, tuple[str, ...]] = {}
    outside: set[str] = set()
    for r in (r for n in nests for e in n.body for r in reads(e) if not reads_plainly(r)):
        for d, c in r.coords:
            if not isinstance(c, Read) or c.value not in constants or not c.dtype.is_int:
                continue
            const = constants[c.value]
            if not _inside(const.data, extents[d]):
                outside.add(c.value)
            known = const.data.once("gradual", _gradual)
            found[c.value] = tuple(sorted(d for d, k in zip(const.axes, known, strict=True) if k))
    return {name: dims for name, dims in found.items() if dims and name not in outside}


def row_chosen(coords: tuple[tuple[str, Coord], ...], layout: Layout) -> tuple[str, int] | None:
    """(dim, extent) of the row of neighbours in memory of which data choose the one that is read.

    None where data choose along no dim or several, or not among neighbours of a known number.
    """
    data = [d for d, c in coords if not isinstance(c, Index)]
    if len(data) != 1 or layout.stride(data[0]) != 1:
        return None
    extent = dict(layout.extents)[data[0]]
    return (data[0], extent) if isinstance(extent, int) else None


def table_along(r: Read, buffers: Mapping[str, Buffer], var: str) -> tuple[str, Read] | None:
    """The dim of a read whose places a gradual table gives along a loop, and the table's read.

    None where the loop moves the read otherwise, or what is read does not lie along that dim.
    """
    row = row_chosen(r.coords, buffers[r.value].layout)
    if row is None or r.fill is not None:
        return None
    if var in plain_names(r.coords):
        return None
    d, _ = row
    table = dict(r.coords)[d]
    if not isinstance(table, Read) or not reads_plainly(table):
        return None
    moved = [(e, x) for e, x in table.coords if isinstance(x, Index) and var in x.names()]
    gradual = buffers[table.value].gradual
    alone = len(moved) == 1 and moved[0][0] in gradual and moved[0][1].coefficient(var) == 1
    return (d, table) if alone else None


def _inside(data: Data, extent: Size) -> bool:
    """Whether all numbers tell places of a dim that has so many."""
    low, high = data.once("bounds", lambda a: (int(a.min(initial=0)), int(a.max(initial=0))))
    return low >= 0 and isinstance(extent, int) and high < extent


def _gradual(array: np.ndarray) -> tuple[bool, ...]:
    """Along which axes elements grow by 0 or 1."""
    steps = (np.diff(array, axis=axis) for axis in range(array.ndim))
    return tuple(bool(s.size) and bool(((s == 0) | (s == 1)).all()) for s in steps)
