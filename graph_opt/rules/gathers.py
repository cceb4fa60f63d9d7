"""What a sum alone reads of a gather is read where it lies."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import is_plain, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.contraction import inlined
from rutc.tensor_ir import Index, Nest, Node, Read
from rutc.tensor_ir.expr import index_names


@matches("reduction")
def sum_gathered(n: Node, editor: Editor) -> Result:
    """A reduction that uses each gathered element once gathers it itself.

    %g{m,k,i} = %w[e=%at[m], k, i]
    %y{m,i} = sum{k} %x[m, k] * %g[m, k, i]   ->   %y{m,i} = sum{k} %x[m, k] * %w[e=%at[m], k, i]

    A copy would be written and read once each: of the matrices that tokens choose among experts
    it takes longer than their products. No place may depend on what is reduced, and a row must be
    longer than the list of places. A part of a constant that lies at one place is read there by
    any number of rows, as a matrix that all tokens chose: the constant is laid as the sum reads it.

    %g{k,i} = %w[e=%at[], k, i]
    %y{m,i} = sum{k} %x[m, k] * %g[k, i]      ->   %y{m,i} = sum{k} %x[m, k] * %w[e=%at[], k, i]
    """
    if not isinstance(n, Nest) or n.reducer is None:
        return Reason("nothing is reduced")
    for r in dict.fromkeys(node_reads(n)):
        p = editor.nest(r.value)
        if p is None or p.reducer is not None or not is_plain(r):
            continue
        gather = _gather(p)
        if gather is None or not editor.is_read_once(r.value, n):
            continue
        part = not _places(gather) and editor.constant(gather.value) is not None
        if part or editor.typical(n.dims) <= editor.typical(p.dims):
            new = inlined(n, r, p)
            if not any(_places(x) & set(n.bound) for x in node_reads(new)):
                return (new,)
    return Reason("it reads no gather each of whose elements it uses once")


def _gather(p: Nest) -> Read | None:
    """All that a nest reads: at one place that data tell, or one for each index of some dims."""
    match p.body:
        case (Read(fill=None) as r,) if _places(r) < set(p.dims):
            return r if any(not isinstance(c, Index) for _, c in r.coords) else None
        case _:
            return None


def _places(r: Read) -> set[str]:
    """The loops on which the places depend that data tell."""
    return {d for _, c in r.coords if not isinstance(c, Index) for d in index_names(c)}
