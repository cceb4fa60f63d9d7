"""What is computed of long rows is computed again rather than stored."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import is_plain, node_reads
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.contraction import inlined
from rutc.record import record
from rutc.tensor_ir import Apply, Index, Nest, Node, Read
from rutc.tensor_ir.affine import ONE
from rutc.tensor_ir.expr import index_names, walk

CHEAP = frozenset(("add", "sub", "mul"))
MOST_OPERATIONS = 3


@record
class RecomputeRows:
    """Long rows less their mean, and the like, are computed where they are read.

    %c{b,i} = %x[b, i] - %m[b]
    %q{b} = sum{i} %c[b, i] * %c[b, i]
    %y{b,i} = %c[b, i] * %s[b]
    ->
    %q{b} = sum{i} (%x[b, i] - %m[b]) * (%x[b, i] - %m[b])
    %y{b,i} = (%x[b, i] - %m[b]) * %s[b]

    Rows of more than `long_row_bytes` do not stay in the nearest cache from pass to pass: then it
    costs less to read one of them than to store and read another one as well.
    """

    long_row_bytes: int = 16 << 10

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nest computing what it read of its rows."""
        if not isinstance(n, Nest):
            return Reason("not a nest")
        why = Reason("it reads no rows less what is known of them")
        for r in dict.fromkeys(node_reads(n)):
            p = editor.nest(r.value)
            if p is None or p.reducer is not None or editor.is_output(r.value):
                continue
            added = set(n.dims) - set(p.dims)
            if any(editor.extents[d] != ONE for d in added) or not _is_point(r):
                continue
            row = _row(p, editor)
            if row is None:
                continue
            size = editor.size(row)
            if size is not None and size * p.out.dtype.bytes <= self.long_row_bytes:
                why = Reason("the row is short: it stays in the cache")
                continue
            return (inlined(n, r, p),)
        return why


def _is_point(r: Read) -> bool:
    return all(c == Index.of(d) for d, c in r.coords)


def _row(p: Nest, editor: Editor) -> set[str] | None:
    """The dims along which `p` does the same to each element of a value; None for what is dear."""
    operations = [x for x in walk(p.body[0]) if isinstance(x, Apply)]
    if not 0 < len(operations) <= MOST_OPERATIONS or any(x.op not in CHEAP for x in operations):
        return None
    reads = dict.fromkeys(node_reads(p))
    if not all(map(is_plain, reads)):
        return None
    whole = [r for r in reads if index_names(r) == set(p.dims)]
    others = [r for r in reads if r not in whole and editor.constant(r.value) is None]
    known = {d for r in others for d in index_names(r)}
    row = set(p.dims) - known
    computed = any(_is_of_rows(r, row, editor) for r in others)
    return row if len(whole) == 1 and computed and row else None


def _is_of_rows(r: Read, row: set[str], editor: Editor) -> bool:
    """Whether a value is computed by a reduction, perhaps with elementwise nests after it."""
    n = editor.nest(r.value)
    while n is not None and n.reducer is None:
        sources = [s for s in node_reads(n) if editor.nest(s.value) is not None]
        n = editor.nest(sources[0].value) if sources else None
    return n is not None
