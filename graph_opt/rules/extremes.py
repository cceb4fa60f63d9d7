"""Both extremes of the same elements are found together."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import DType, Index, Nest, Node, reducer
from rutc.tensor_ir.expr import substitute

BOTH = {("min", "max"): "minmax", ("max", "min"): "maxmin"}
"""The reducer that does what two do."""


@matches("reduction")
def find_extremes(n: Node, editor: Editor) -> Result:
    """The least and the largest element, in one pass over them.

    %l{b} = min{i} %x[b, i]
    %h{b} = max{i} %x[b, i]
    ->
    %l{b}, %h{b} = minmax{i} %x[b, i]
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name not in ("min", "max"):
        return Reason("no least or largest element")
    if n.out.dtype is DType.BOOL:
        return Reason("truths have no extremes")
    for source in dict.fromkeys(r.value for r in node_reads(n)):
        for other in editor.readers(source):
            if isinstance(other, Nest) and (how := _together(other, n, editor)) is not None:
                both = reducer(how, n.out.dtype)
                outs, origin = (other.out, n.out), merge_origins(other, n)
                return (Nest(outs, other.bound, both, other.body, origin),)
    return Reason("nothing earlier finds the other extreme")


def _together(other: Nest, n: Nest, editor: Editor) -> str | None:
    """The reducer that finds what two nests do, of which the other one is the earlier; or None."""
    if other.reducer is None or n.reducer is None:
        return None
    how = BOTH.get((other.reducer.name, n.reducer.name))
    if how is None or other.out.dims != n.out.dims or editor.block(other) != editor.block(n):
        return None
    if [editor.extents[d] for d in other.bound] != [editor.extents[d] for d in n.bound]:
        return None
    names = dict(zip(n.bound, map(Index.of, other.bound), strict=True))
    same = tuple(substitute(e, names) for e in n.body) == other.body
    return how if same and editor.is_before(other, n) else None
