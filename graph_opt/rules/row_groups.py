"""What may be the rows of a sum of products, where one factor is written anew in any order.

    sum{c,j} %x[y=2*v + j, i, c] * ..    rows of v and i: from v to v + 1, elements lie in between
    sum{c,j} %x[p=j % 2, q=v + j // 2, i, c] * ..    rows of (v, i) are those of one long loop

A dim that is read in steps of s may become s `phases`: the elements at the places 0, s, 2*s, ..,
those at 1, s + 1, .., and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from math import ceil

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.row_runs import Rows, row_runs
from rutc.tensor_ir import DType, Index, Nest, Read
from rutc.tensor_ir.indices.affine import minimum

Orders = Callable[[], Mapping[str, tuple[str, ...]]]
"""The dim orders that values are to have, their innermost dims apart."""


def row_choices(
    n: Nest, source: Read, columns: AbstractSet[str], editor: Editor, orders: Orders
) -> tuple[Rows, ...]:
    """What may be the rows; `columns` are the loops that move the other factor.

    All loops, if they go along dims of their own; else the longest one, or one over windows with
    those that lie inside of it in the value and follow it in the result.
    """
    free = {v for v in n.out.dims if v not in columns and editor.size((v,)) != 1}
    moving = {d: c for d, c in index_coords(source) if c.names() & free}
    plain = [v for c in moving.values() if (v := c.as_var) is not None]
    if len(plain) == len(moving):
        return (Rows(tuple(plain)),)
    loops = sorted({v for c in moving.values() for v in c.names() & free})
    longest = Rows((max(loops, key=lambda v: editor.typical((v,))),))
    if not plain:
        return (longest,)
    order = orders()
    result = [d for d in order[n.out.name] if editor.size((d,)) != 1]
    after = dict(pairwise(result))
    found: list[Rows] = []
    for run in row_runs(order[source.value], moving, free, editor.extents):
        count = 1
        while count < len(run.loops) and after.get(run.loops[count - 1]) == run.loops[count]:
            count += 1
        rows = replace(run, loops=run.loops[:count])
        if count > 1 and _has_phases(source, rows, editor):
            found.append(rows)
    return (longest, *found)


def _has_phases(source: Read, rows: Rows, editor: Editor) -> bool:
    """Whether what lies outside of the value lies outside of its phases, too."""
    extent = editor.size((rows.dim,))
    if rows.step == 1 or extent is None:
        return rows.step == 1
    return source.fill is None or extent % rows.step == 0


def in_phases(source: Read, rows: Rows, editor: Editor) -> tuple[Read, Read]:
    """(a value in the order of phases, how these are read): `rows` are at even distances then.

    %x[y=2*v + j] -> %x[y=min(2*q + p, last)] and [p=j % 2, q=v + j // 2]
    """
    extent, step = editor.extents[rows.dim].value, rows.step
    phase = editor.fresh_dim(f"{rows.dim}.phase", Index.of(step))
    place = editor.fresh_dim(f"{rows.dim}.place", Index.of(ceil(extent / step)))
    at = Index.of(place) * step + Index.of(phase)
    if extent % step:
        at = minimum(at, Index.of(extent - 1))
    dims = editor.values[source.value].dims
    whole = tuple((d, at if d == rows.dim else Index.of(d)) for d in dims)
    coords: list[tuple[str, Index]] = []
    for d, c in index_coords(source):
        if d == rows.dim:
            first = Index.of(rows.loops[0])
            rest = c - first * step
            coords.append((phase, editor.simplify(rest % step)))
            coords.append((place, first + editor.simplify(rest // step)))
        else:
            coords.append((d, c))
    fill = None if source.fill is None else replace(source.fill, dtype=DType.BF16)
    part = Read(source.value, tuple(coords), DType.BF16, fill)
    return Read(source.value, whole, source.dtype), part
