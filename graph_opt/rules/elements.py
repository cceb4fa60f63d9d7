"""What the elements that a read finds are known to be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rutc.base.mapped import drop_pages
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.rules.views import can_leave
from rutc.tensor_ir import Apply, Const, Coord, DType, Expr, Index, IndexValue, Lit, Nest, Read

MOST_PROGRESSION = 1 << 16
MOST_IN_INDEX = 1 << 62
"""Larger tables of integers are not looked at."""


def read_element(r: Read, editor: Editor) -> Expr | None:
    """%c[..] -> 2.0 where %c is 2.0 everywhere; [a=i64 expression] -> [a=index] where it is one."""
    known = known_element(r, editor)
    if known is not None:
        return known
    if all(isinstance(c, Index) and c.is_polynomial for _, c in r.coords):
        return None
    coords = tuple((d, plain_coord(d, c, editor, r.fill)) for d, c in r.coords)
    changed = any(a is not b for (_, a), (_, b) in zip(coords, r.coords, strict=True))
    return r.at(coords) if changed else None


def known_element(r: Read, editor: Editor) -> Lit | IndexValue | None:
    """The literal or index expression that `r` always gives, if there is one."""
    n = editor.producer(r.value)
    element: Lit | IndexValue | None = None
    if isinstance(n, Const):
        element = splat(n) or progression(n, dict(r.coords))
    elif isinstance(n, Nest) and n.reducer is None and n.body:
        element = n.body[0] if isinstance(n.body[0], Lit | IndexValue) else None
    if element is None:
        return None
    inside = not any(can_leave(d, c, editor) for d, c in r.coords)
    if isinstance(element, Lit):
        # A data-dependent coordinate without a fill is clamped, so it stays inside.
        return element if r.fill is None or inside or r.fill == element else None
    at = dict(index_coords(r))
    if len(at) < len(r.coords) or not (inside or r.fill is None):
        return None
    return IndexValue(element.index.subs(at))


def padding(chosen: Apply, editor: Editor) -> Read | None:
    """The read that a choice is, where what is chosen instead of it is its fill.

    select(index(d - 1) < 0, 0.0, %x[a=d - 1 else 0.0])   ->   %x[a=d - 1 else 0.0]

    Zeros that are put before or behind a value are so a padding of it.
    """
    match chosen.args:
        case (Apply("lt", (IndexValue(e), Lit(0))), Lit() as fill, Read() as r) if r.fill == fill:
            # Where e < 0, so is c if it is no more.
            gaps = [c - e for _, c in r.coords if isinstance(c, Index)]
            outside = [b is not None and b[1] <= 0 for b in (g.bounds(editor.ranges) for g in gaps)]
        case (Apply("lt", (IndexValue(e), Lit(0))), Read() as r, Lit() as fill) if r.fill == fill:
            gaps = [c - e - editor.extents[d] for d, c in r.coords if isinstance(c, Index)]
            outside = [b is not None and b[0] >= 0 for b in (g.bounds(editor.ranges) for g in gaps)]
        case _:
            return None
    return r if any(outside) else None


def splat(n: Const) -> Lit | None:
    """The literal that every element of a constant equals, if there is one."""
    array = n.data.array
    if array.size == 0 or n.out.dtype.is_opaque:
        return None
    # The last element decides for nearly all; only then is a large array looked at, or copied.
    first = array[(0,) * array.ndim]
    last = array[(-1,) * array.ndim]
    drop_pages(array)
    if first.tobytes() != last.tobytes():
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    if not np.array_equal(flat[1:].view(np.uint8), flat[:-1].view(np.uint8)):
        return None
    value = first.item()
    return Lit(value, n.out.dtype) if value == value else None


def progression(n: Const, at: Mapping[str, Coord]) -> IndexValue | None:
    """The index expression that the elements of a constant i64 table are, if they are one.

    const [a, b] [[5, 6, 7], [15, 16, 17]]  ->  index(10*a + b + 5)

    Only the part of the table that constant coordinates in `at` select is looked at.
    """
    array = n.data.array
    if n.out.dtype is not DType.I64 or not 2 <= array.size <= MOST_PROGRESSION:
        return None
    known = {d: c.const for d, c in at.items() if isinstance(c, Index) and c.is_const}
    if any(not 0 <= known.get(d, 0) < k for d, k in zip(n.axes, array.shape, strict=True)):
        return None
    array = array[tuple(known.get(d, slice(None)) for d in n.axes)]
    axes = [d for d in n.axes if d not in known]
    first = int(array[(0,) * array.ndim])
    total, expected = Index.of(first), np.asarray(first, object)
    for axis, (d, extent) in enumerate(zip(axes, array.shape, strict=True)):
        line = np.moveaxis(array, axis, 0).reshape(extent, -1)[:, 0]
        step = int(line[1]) - first if extent > 1 else 0
        if max(abs(first), abs(step) * extent) > MOST_IN_INDEX:
            return None
        total = total + Index.of(d) * step
        shape = [-1 if axis == k else 1 for k in range(array.ndim)]
        expected = expected + (np.arange(extent).astype(object) * step).reshape(shape)
    same = np.array_equal(np.broadcast_to(expected, array.shape), array)
    return IndexValue(total) if same else None


def plain_coord(d: str, c: Coord, editor: Editor, fill: Lit | None = None) -> Coord:
    """A coordinate as a simplified index expression, where it is one and stays inside."""
    if isinstance(c, Index):
        simpler = editor.simplify(c)
        return c if simpler == c else simpler
    if isinstance(c, Lit):
        index = Index.of(int(c.value))
    elif isinstance(c, IndexValue):
        index = c.index
    else:
        return c
    return c if fill is None and can_leave(d, index, editor) else index
