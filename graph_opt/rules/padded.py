"""What lies around a quantised operand whose zero point only the run knows is stored with it.

Outside of such an operand stands its zero point: 0 once that is subtracted. A zero point that is
known is what a read gives there (`narrow`), an unknown one needs a place in memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import maker, quantised
from rutc.tensor_ir import (
    Cast,
    Expr,
    Index,
    IndexValue,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.expr import index_names, substitute
from rutc.tensor_ir.indices.affine import ZERO
from rutc.tensor_ir.lower import beyond
from rutc.tensor_ir.terms import factors, product_of


@record
class _Edge:
    """How far windows reach before a dim, and the dim of what is stored with all around it."""

    before: int
    dim: str


@matches("reduction")
def pad_quantised(n: Node, editor: Editor) -> Result:
    """A sum over windows reads a quantised operand with what lies around it.

    %a{x} = i32(%q[x]) - i32(%z)
    %y{x} = sum{k} %a[x=x+k-1 else 0] * i32(%w[k])
    ->
    %q.padded{p} = select(0 <= p - 1 < extent(x), %q[x=p-1 else 0], %z)
    %y{x} = sum{k} (i32(%q.padded[p=x+k]) - i32(%z)) * i32(%w[k])
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    parts = factors(n.body[0])
    if len(parts) != 2:
        return Reason("not a product of two factors")
    why = Reason("no factor is a quantised number of an unknown zero point")
    for i, part in enumerate(parts):
        found = maker(part, editor)
        if found is None or not isinstance(part, Read) or part.fill is None:
            continue
        p, form = found
        if quantised(parts[1 - i]) is None and maker(parts[1 - i], editor) is None:
            return Reason("the other factor is no quantised number")
        if not isinstance(form.zero, Cast) or index_names(form.zero) or part.fill.value != 0:
            continue
        if form.q.fill is not None:
            why = Reason(f"%{form.q.value} is not read as it is stored")
            continue
        edges = _edges(part, editor)
        if not edges:
            why = Reason(f"how far it reads outside of %{part.value} is not known")
            continue
        scale = form.scale
        if scale is not None:
            if not index_names(scale).isdisjoint(edges):
                why = Reason(f"the scale of %{part.value} varies along its windows")
                continue
            scale = substitute(scale, dict(index_coords(part)))
        padded, q = _padded(part, form.q, form.zero, edges, editor)
        parts[i] = replace(form, q=q, scale=scale).number
        origin = merge_origins(p, n)
        return (replace(padded, origin=origin), replace(n, body=(product_of(parts),)))
    return why


def _edges(r: Read, editor: Editor) -> dict[str, _Edge] | None:
    """Where a read goes outside, by the dims of its value; None where that is not known."""
    symbols = editor.symbols
    found: dict[str, _Edge] = {}
    for d, c in index_coords(r):
        reach = beyond(c, editor.extents[d], editor.extents, symbols)
        if reach is None:
            return None
        if any(reach):
            extent = editor.extents[d] + sum(reach)
            found[d] = _Edge(reach[0], editor.fresh_dim(f"{d}.padded", extent))
    return found


def _padded(
    r: Read, q: Read, zero: Expr, edges: dict[str, _Edge], editor: Editor
) -> tuple[Nest, Read]:
    """The operand with its edges, and how the window reads it."""
    at = {d: Index.of(e.dim) - e.before for d, e in edges.items()}
    conditions = [
        condition
        for d, c in at.items()
        for condition in (
            apply("le", IndexValue(ZERO), IndexValue(c)),
            apply("lt", IndexValue(c), IndexValue(editor.extents[d])),
        )
    ]
    inside = reduce(lambda one, other: apply("and", one, other), conditions)
    there = substitute(q, at)
    assert isinstance(there, Read)
    dims = tuple(sorted(edges[d].dim if d in edges else d for d, _ in r.coords))
    value = Value(editor.fresh_value(f"{q.value}.padded"), q.dtype, dims)
    body = apply("select", inside, replace(there, fill=Lit(0, q.dtype)), Cast(zero, q.dtype))
    coords = [
        (edges[d].dim, c + edges[d].before) if d in edges else (d, c) for d, c in index_coords(r)
    ]
    return Nest((value,), (), None, (body,)), Read(value.name, tuple(sorted(coords)), q.dtype)
