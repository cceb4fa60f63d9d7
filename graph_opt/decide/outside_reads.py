"""Reads that may lie outside of a value, where what reads it computes it anew.

    %v{y} = %a[y] + %b[y]
    %w{t} = %v[y=4*t - 1 else 0.0]   ->   %w{t} = %a[y=4*t - 1 else 0.0] + %b[y=4*t - 1 else 0.0]

    %v{y} = %a[y] + 1.0              ->   %w{t} = select(4*t - 1 < 0, 0.0,
    %w{t} = %v[y=4*t - 1 else 0.0]            select(y.extent - 4*t < 0, 0.0,
                                                %a[y=4*t - 1 else 0.0] + 1.0))

What it is made of is read outside as well, and gives a fill there. Where all of that together is
the value's own fill, there is nothing to test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import copysign

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import index_coords, is_gathered, side_by_side
from rutc.graph_opt.plan import Illegal
from rutc.graph_opt.rules.algebra import simplify
from rutc.graph_opt.rules.views import can_leave, leaves_together
from rutc.tensor_ir.expr import Apply, Expr, Lit, Read, reads, substitute, transform, walk
from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.indices.affine import FloorDiv, Index
from rutc.tensor_ir.textual.text import value_name


def inlined_outside(n: Nest, r: Read, producer: Nest, editor: Editor) -> Nest:
    """`n` computing the elementwise `producer` itself wherever it reads it by `r`, with its fill.

    Raises:
        Illegal: What it is made of cannot be read outside.
    """
    fill, body, env = r.fill, producer.body[0], dict(index_coords(r))
    assert fill is not None, "what is read inside is computed there"
    if any(is_gathered(x) or x.dtype.is_opaque for x in reads(body)):
        raise Illegal(f"{value_name(r.value)} is read outside, and computed where data tell")
    if any(isinstance(x, Apply) and x.op in ("div", "mod") and x.dtype.is_int for x in walk(body)):
        raise Illegal(f"{value_name(r.value)} is read outside, where it would divide by 0")
    filled = transform(body, lambda x: _filled(x, fill, env, editor))
    at = substitute(filled, env)
    for d, c in env.items():
        if can_leave(d, c, editor) and not _is_fill_outside(d, filled, fill, editor):
            at = side_by_side(c, fill, side_by_side(editor.extents[d] - 1 - c, fill, at))
    new = tuple(transform(e, lambda x: at if x == r else x) for e in n.body)
    return replace(n, body=new, origin=merge_origins(producer, n))


def _filled(x: Expr, fill: Lit, env: Mapping[str, Index], editor: Editor) -> Expr:
    """A read with a fill, if its coordinates may lie outside where those of `env` do."""
    if not isinstance(x, Read) or x.fill is not None:
        return x
    if not any(can_leave(d, c.subs(env), editor) for d, c in index_coords(x)):
        return x
    return replace(x, fill=fill if fill.dtype is x.dtype else Lit(0, x.dtype))


def _is_fill_outside(dim: str, body: Expr, fill: Lit, editor: Editor) -> bool:
    """Whether an expression is the fill wherever `dim` lies outside, as what it reads is."""

    def outside(x: Expr) -> Expr:
        if isinstance(x, Read) and x.fill is not None and _leaves(dim, x, editor):
            return x.fill
        return x

    there = simplify(transform(body, outside), editor)
    if not isinstance(there, Lit) or there != fill:
        return False
    signs = (copysign(1, float(x.value)) for x in (there, fill))
    return not fill.dtype.is_float or len({*signs}) == 1


def _leaves(dim: str, inner: Read, editor: Editor) -> bool:
    """Whether a read lies outside of its value wherever `dim` does."""
    for d, c in index_coords(inner):
        match c.terms:
            case (((FloorDiv(num, den),), 1),) if num.as_var == dim and den.is_const:
                room = (editor.extents[dim] - editor.extents[d] * den.value).bounds(editor.ranges)
                if c.const == 0 and room is not None and room[0] >= 0:
                    return True
    return leaves_together(dim, inner, editor)
