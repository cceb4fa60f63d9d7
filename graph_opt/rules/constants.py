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

    The loops over a and b must cover the dim: a from 0 to extent(e)/k - 1, b from 0 to k - 1.
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
) -> tuple[str, int, str, int] | None:
    """(a, extent of a, b, extent of b) where c = extent(b)*a + b covers the dim d."""
    if c.const or len(c.terms) != 2:
        return None
    extent = editor.size((d,))
    loops = [(t, k) for t, k in c.terms if len(t) == 1]
    if len(loops) != 2 or extent is None:
        return None
    (high, k), (low, one) = sorted(loops, key=lambda x: -x[1])
    a, b = Index(((high, 1),)).as_var, Index(((low, 1),)).as_var
    if one != 1 or a is None or b is None or not {a, b} <= set(n.dims):
        return None
    sizes = editor.size((a,)), editor.size((b,))
    if sizes[0] is None or sizes[1] != k or sizes[0] * k != extent:
        return None
    if {a, b} & set(const.out.dims):
        return None
    return a, sizes[0], b, k


def _split(
    n: Nest,
    r: Read,
    d: str,
    parts: tuple[str, int, str, int],
    const: Const,
    editor: Editor,
) -> Result:
    a, m, b, k = parts
    at = const.axes.index(d)
    axes = (*const.axes[:at], a, b, *const.axes[at + 1 :])
    shape = const.data.array.shape
    array = const.data.array.reshape((*shape[:at], m, k, *shape[at + 1 :]))
    name = editor.fresh_value(f"{const.out.name}.{a}.{b}")
    value = Value(name, const.out.dtype, tuple(sorted(axes)))
    split = Const(value, axes, Data(array), const.origin)
    kept = tuple((x, c) for x, c in r.coords if x != d)
    coords = tuple(sorted((*kept, (a, Index.of(a)), (b, Index.of(b))), key=lambda p: p[0]))
    new_read = Read(name, coords, r.dtype)

    def visit(e: Expr) -> Expr:
        return new_read if e == r else e

    new = map_expressions(n, lambda e: transform(e, visit))
    return split, new
