"""Constants take the dims of their readers: cutting and reshaping them costs nothing."""

from __future__ import annotations

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import map_expressions, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Const, Data, Expr, Index, Nest, Node, Read, Value
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.indices.affine import Range


@matches("view", "elementwise", "reduction")
@record
class SliceConstant:
    """A constant of which a nest reads a range along a dim, and others none of it, is that range.

    %w = const {e: 384}
    %y{h} = sum{k} %x[k] * %w[e=h+256, k]      ->   %w.e = const {e.1: 128}
                                                    %y{h} = sum{k} %x[k] * %w.e[e.1=h, k]

    Each reader then has a constant that can be laid out as it likes. Constants smaller than
    `smallest_bytes` stay.
    """

    smallest_bytes: int = 1 << 12

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The constant's part, and the nest that reads it."""
        if not isinstance(n, Nest):
            return Reason("only nests")
        for r in node_reads(n):
            const = editor.constant(r.value)
            if const is None or const.data.array.nbytes < self.smallest_bytes:
                continue
            for d, c in r.coords:
                span = _span(n, r.value, d, editor)
                if span is None or (isinstance(c, Index) and c.is_const):
                    continue
                others = (m for m in editor.readers(r.value) if m is not n)
                if all(_apart(span, _span(m, r.value, d, editor)) for m in others):
                    return _slice(n, const, d, span, editor)
        return Reason("it reads no range of a constant that no other reads in part")


def _apart(span: Range, other: Range | None) -> bool:
    """Whether another reader's range, None for all, is the same or shares nothing with this one."""
    return other is not None and (other == span or other[1] < span[0] or span[1] < other[0])


def _span(n: Node, value: str, d: str, editor: Editor) -> Range | None:
    """The lowest and highest coordinate at which a nest reads a dim, unless that is all of it."""
    whole = editor.size((d,))
    if not isinstance(n, Nest) or whole is None:
        return None
    sizes = {v: editor.size((v,)) for v in n.dims}
    ranges = {v: (0, size - 1) for v, size in sizes.items() if size}
    low, high = whole, -1
    for r in node_reads(n):
        if r.value != value:
            continue
        c = dict(r.coords)[d]
        bounds = c.bounds(ranges) if isinstance(c, Index) and r.fill is None else None
        if bounds is None:
            return None
        low, high = min(low, bounds[0]), max(high, bounds[1])
    return (low, high) if 0 <= low <= high < whole and (low, high) != (0, whole - 1) else None


def range_of(const: Const, d: str, span: Range, editor: Editor) -> tuple[Const, str]:
    """What a constant has from the first to the last index of a dim, and the dim that it has."""
    first, last = span
    at = const.axes.index(d)
    part = editor.fresh_dim(d, Index.of(last + 1 - first))
    axes = (*const.axes[:at], part, *const.axes[at + 1 :])
    cut = (slice(None),) * at + (slice(first, last + 1),)
    data = Data(np.ascontiguousarray(const.data.array[cut]))
    name = editor.fresh_value(f"{const.out.name}.{d}")
    value = Value(name, const.out.dtype, tuple(sorted(axes)))
    return Const(value, axes, data, const.origin), part


def _slice(n: Nest, const: Const, d: str, span: Range, editor: Editor) -> Result:
    taken, part = range_of(const, d, span, editor)

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.value != const.out.name:
            return e
        coords = [
            (part, c - span[0]) if x == d and isinstance(c, Index) else (x, c) for x, c in e.coords
        ]
        return Read(taken.out.name, tuple(sorted(coords, key=lambda p: p[0])), e.dtype)

    return taken, map_expressions(n, lambda e: transform(e, visit))


@matches("view", "elementwise", "reduction")
def split_constant(n: Node, editor: Editor) -> Result:
    """A constant read at k*a + b along a dim has the dims a and b instead.

    %w = const {e: 768}
    %y{h,d} = sum{k} %x[k] * %w[e=64*h+d, k]   ->   %w.h.d = const {h: 12, d: 64}
                                                    %y{h,d} = sum{k} %x[k] * %w.h.d[h, d, k]

    The loops must number the dim's elements without gaps, as the digits of a number do; there may
    be more than two.
    """
    if not isinstance(n, Nest):
        return Reason("only nests")
    for r in node_reads(n):
        const = editor.constant(r.value)
        if const is None or r.fill is not None:
            continue
        for d, c in r.coords:
            if isinstance(c, Index):
                parts = _parts(n, d, c, const, editor)
                if parts is not None:
                    return _split(n, r, d, parts, const, editor)
    return Reason("it reads no constant at a multiple of one loop plus another")


def _parts(
    n: Nest, d: str, c: Index, const: Const, editor: Editor
) -> tuple[tuple[str, int], ...] | None:
    """The loops whose digits make up c, the highest first, and their extents."""
    whole = editor.size((d,))
    if c.const or len(c.terms) < 2 or whole is None:
        return None
    found: list[tuple[str, int]] = []
    for mono, weight in sorted(c.terms, key=lambda x: -x[1]):
        name = Index(((mono, 1),)).as_var
        size = editor.size((name,)) if name in n.dims else None
        if name is None or size is None or name in const.out.dims or whole != weight * size:
            return None
        found.append((name, size))
        whole = weight
    return tuple(found) if whole == 1 else None


def _split(
    n: Nest,
    r: Read,
    d: str,
    parts: tuple[tuple[str, int], ...],
    const: Const,
    editor: Editor,
) -> Result:
    dims = tuple(v for v, _ in parts)
    at = const.axes.index(d)
    axes = (*const.axes[:at], *dims, *const.axes[at + 1 :])
    shape = const.data.array.shape
    array = const.data.array.reshape((*shape[:at], *(e for _, e in parts), *shape[at + 1 :]))
    name = editor.fresh_value(".".join((const.out.name, *dims)))
    value = Value(name, const.out.dtype, tuple(sorted(axes)))
    split = Const(value, axes, Data(array), const.origin)
    kept = tuple((x, c) for x, c in r.coords if x != d)
    coords = tuple(sorted((*kept, *((v, Index.of(v)) for v in dims)), key=lambda p: p[0]))
    new_read = Read(name, coords, r.dtype)

    def visit(e: Expr) -> Expr:
        return new_read if e == r else e

    new = map_expressions(n, lambda e: transform(e, visit))
    return split, new
