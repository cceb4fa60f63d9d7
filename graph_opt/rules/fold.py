"""What can be computed now is computed now."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import as_view, node_reads, point
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import quantised
from rutc.tensor_ir import Const, Data, Graph, If, Lit, Nest, Node, Read
from rutc.tensor_ir.expr import index_names
from rutc.tensor_ir.graph import mentioned, outs
from rutc.tensor_ir.interpret import interpret_values


@matches("view", "elementwise", "reduction")
@record
class FoldConstants:
    """Computes nests that read only constants.

    %y{i} = %c[i=i] * %s[i=i]          ->   %y{i} = const [i] ...

    A result may be as large as `small_bytes`, or `growth` times what the nest reads: larger ones
    are cheaper to compute at run time than to store. A view keeps its source unless it is small.
    With `keep_quantised`, matrices of 8-bit numbers stay, which sums of products may want.
    """

    small_bytes: int = 1 << 16
    growth: float = 2.0
    most_points: int = 1 << 28
    keep_quantised: bool = False

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nest's outputs as constants."""
        if not isinstance(n, Nest):
            return Reason("only nests are computed")
        if self.keep_quantised and n.reducer is None and len(n.out.dims) > 1:
            form = quantised(n.body[0])
            if form is not None:
                return Reason("sums of products may want the 8-bit numbers")
        sources: dict[str, Const] = {}
        for r in node_reads(n):
            c = editor.constant(r.value)
            if c is None:
                return Reason(f"%{r.value} is not a constant")
            sources[r.value] = c
        points, elements = editor.size(n.dims), editor.size(n.out.dims)
        if points is None or elements is None:
            return Reason("its size is symbolic")
        sizes = dict(editor.graph.symbols)
        if sizes and any(name in sizes for name in mentioned(n)):
            return Reason("it depends on a size")
        trips = editor.enclosing_dims(n)
        if trips and any(trips & index_names(e) for e in n.body):
            return Reason("it depends on the trip of a scan")
        if n.out.dtype.is_opaque:
            return Reason("strings and boxes are left to the run time")
        size = sum(elements * v.dtype.bytes for v in n.outs)
        if size > self.small_bytes:
            read = sum(c.data.array.size * c.out.dtype.bytes for c in sources.values())
            if as_view(n) is not None:
                return Reason("a view of a large constant is read in its place")
            if size > self.growth * read:
                return Reason(f"{size} bytes from {read}: too large to store")
        if points > self.most_points:
            return Reason(f"{points} points are too many to compute while compiling")
        origin = merge_origins(*sources.values(), n)
        return fold(replace(n, origin=origin), sources, editor)


def fold(n: Nest, sources: dict[str, Const], editor: Editor) -> tuple[Node, ...]:
    """The constants that a nest of constants gives."""
    dims = dict.fromkeys((*n.dims, *(d for c in sources.values() for d in c.axes)))
    graph = Graph(
        name=n.out.name,
        dims=tuple((d, editor.extents[d]) for d in dims),
        nodes=(*sources.values(), n),
        outputs=(),
    )
    values = interpret_values(graph, {})
    return tuple(Const(v, v.dims, Data(values[v.name]), n.origin) for v in outs(n))


@matches("other")
def choose_branch(n: Node, editor: Editor) -> Result:
    """An If whose condition is known is its branch.

    %y = if true { %a = .. yield %a } else { .. }    ->   %a = ..;  %y = %a
    """
    if not isinstance(n, If):
        return Reason("not an If")
    made_by = editor.producer(n.cond)
    if isinstance(made_by, Const):
        taken = bool(made_by.data.array.item())
    elif isinstance(made_by, Nest) and isinstance(made_by.body[0], Lit):
        taken = bool(made_by.body[0].value)
    else:
        return Reason(f"%{n.cond} is not known")
    nodes = editor.body(n, 0 if taken else 1)
    results = n.then.results if taken else n.orelse.results
    copies = tuple(
        Nest((v,), (), None, (Read(r, point(v.dims), v.dtype),), n.origin)
        for v, r in zip(n.outs, results, strict=True)
    )
    return (*nodes, *copies)
