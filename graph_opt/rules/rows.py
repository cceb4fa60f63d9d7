"""What is computed of rows is computed again rather than stored."""

from __future__ import annotations

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import is_plain, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.contraction import inlined
from rutc.tensor_ir import Apply, Nest, Node, Read
from rutc.tensor_ir.expr import index_names, walk
from rutc.tensor_ir.machine import COMMON, Machine

CHEAP = frozenset(("add", "sub", "mul"))


@matches("view", "elementwise", "reduction")
@record
class RecomputeRows:
    """Rows less their mean, and the like, are computed where they are read.

    %c{b,i} = %x[b, i] - %m[b]
    %q{b} = sum{i} %c[b, i] * %c[b, i]
    %y{b,i} = %c[b, i] * %s[b]
    ->
    %q{b} = sum{i} (%x[b, i] - %m[b]) * (%x[b, i] - %m[b])
    %y{b,i} = (%x[b, i] - %m[b]) * %s[b]

    Reading one row costs less than to store and read another one as well, even in the nearest
    cache; and a reader at other places, as of a view, would need memory for all rows.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nest, of which one read is computed in it; or why not."""
        if not isinstance(n, Nest):
            return Reason("not a nest")
        most = self.machine.coefficients.fusion.operations
        for r in dict.fromkeys(node_reads(n)):
            p = editor.nest(r.value)
            if p is None or p.reducer is not None or editor.is_output(r.value) or not is_plain(r):
                continue
            if editor.typical(n.dims) > editor.typical(p.dims) or not _is_row(p, editor, most):
                continue
            return (inlined(n, r, p),)
        return Reason("it reads no rows less what is known of them")


def _is_row(p: Nest, editor: Editor, most: int) -> bool:
    """Whether `p` does the same, in `most` cheap operations, to each element of a row."""
    reads = dict.fromkeys(node_reads(p))
    # Most nests read nothing beside their row.
    if len(reads) < 2 or not all(map(is_plain, reads)):
        return False
    operations = [x for x in walk(p.body[0]) if isinstance(x, Apply)]
    if not 0 < len(operations) <= most or any(x.op not in CHEAP for x in operations):
        return False
    whole = [r for r in reads if index_names(r) & editor.extents.keys() == set(p.dims)]
    others = [r for r in reads if r not in whole and editor.constant(r.value) is None]
    row = set(p.dims) - {d for r in others for d in index_names(r)}
    return len(whole) == 1 and any(_is_of_rows(r, editor) for r in others) and bool(row)


def _is_of_rows(r: Read, editor: Editor) -> bool:
    """Whether a value is computed by a reduction, perhaps with elementwise nests after it."""
    n = editor.nest(r.value)
    while n is not None and n.reducer is None:
        sources = [s for s in node_reads(n) if editor.nest(s.value) is not None]
        n = editor.nest(sources[0].value) if sources else None
    return n is not None
