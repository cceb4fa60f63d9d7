"""Quantised numbers that are summed by themselves, as pooling and means do, are summed as bytes."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, wrapped
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rounding import rounds
from rutc.graph_opt.rules.narrow import may_be_finite, produced
from rutc.tensor_ir import Cast, DType, Expr, Nest, Node, Read, Value, apply
from rutc.tensor_ir.expr import index_names
from rutc.tensor_ir.indices.affine import product
from rutc.tensor_ir.reducer import reducer

LARGEST_SUM = (1 << 31) // 255
"""So many differences of 8-bit numbers surely fit in 32 bits."""


@rounds(
    changes="Scales move out of sums of quantised numbers, which are exact then.",
    refused="Where multiples of a constant scale may overflow.",
)
@matches("reduction")
def sum_bytes(n: Node, editor: Editor) -> Result:
    """A sum of quantised numbers is one of bytes, less the zero points, scaled.

    %a{m,k} = f32(i32(%q[m, k]) - 7) * 0.1
    %y{m} = sum{k} %a[m, k]
    ->
    %y.whole{m} = sum{k} i32(%q[m, k])
    %y{m} = f32(%y.whole[m] - 7 * 8) * 0.1
    """
    if not isinstance(n, Nest) or not n.is_sum or n.out.dtype is not DType.F32:
        return Reason("not a sum in f32")
    found = produced(n.body[0], editor)
    if found is None or not found.is_real:
        return Reason("what is summed is no quantised number")
    if any(index_names(e) & set(n.bound) for e in (found.zero, found.scale) if e is not None):
        return Reason("a scale or zero point varies along the sum")
    points = editor.size(n.bound)
    if points is None or not 0 < points <= LARGEST_SUM:
        return Reason("the sum may not fit in 32 bits")
    if _overlap(found.q, n, editor):
        return Reason("windows overlap: each number would be widened for every one that has it")
    if found.scale is not None and not may_be_finite(found.scale, editor):
        return Reason("multiples of the scale may be infinite, and sums of such no numbers")
    origin = n.origin if found.source is None else merge_origins(found.source, n)
    whole = Value(editor.fresh_value(f"{n.out.name}.whole"), DType.I32, n.out.dims)
    body: Expr = Cast(found.q, DType.I32)
    total = Nest((whole,), n.bound, reducer("sum", DType.I32), (body,), origin)
    left: Expr = at_point(whole)
    if found.zero is not None:
        count = wrapped(product(editor.extents[d] for d in n.bound).value, DType.I32)
        left = apply("sub", left, apply("mul", found.zero, count))
    real: Expr = Cast(left, DType.F32)
    if found.scale is not None:
        real = apply("mul", real, found.scale)
    return total, Nest(n.outs, (), None, (real,), n.origin)


def _overlap(q: Read, n: Nest, editor: Editor) -> bool:
    """Whether several sums may read the same number."""
    for _, c in index_coords(q):
        bound = [(c.coefficient(d), editor.size((d,))) for d in c.names() if d in n.bound]
        steps = [c.coefficient(d) for d in c.names() if d not in n.bound]
        if not bound or not steps:
            continue
        reach = 0
        for step, extent in bound:
            if step is None or extent is None:
                return True
            reach += abs(step) * (extent - 1)
        if any(step is None or abs(step) <= reach for step in steps):
            return True
    return False
