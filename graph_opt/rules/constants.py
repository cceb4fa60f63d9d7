"""Constants take the dims of their readers: reshaping them costs nothing."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import map_expressions, node_reads
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Const, Data, Expr, Index, Nest, Node, Read, Value
from rutc.tensor_ir.expr import transform


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
