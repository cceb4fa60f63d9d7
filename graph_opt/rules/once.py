"""Functions that take long are computed once for all elements that they are the same for.

Kernels that have rows in vectors do so by themselves; those that have vectors across them do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, index_coords, is_plain
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Apply, Expr, IndexValue, Nest, Node, Read, Value
from rutc.tensor_ir.expr import ELEMENTARY, children, reads, transform, walk
from rutc.tensor_ir.machine import FEWEST_LANES


@matches("elementwise")
def compute_once(n: Node, editor: Editor) -> Result:
    """A function of a row's sum is a value of its own, not one of each of the row's elements.

    %z{b} = sum{i} exp(%x[b, i])
    %y{b,i} = %x[b, i] - log(%z[b])
    ->
    %z{b} = sum{i} exp(%x[b, i])
    %z.log{b} = log(%z[b])
    %y{b,i} = %x[b, i] - %z.log[b]
    """
    if not isinstance(n, Nest) or n.reducer is not None:
        return Reason("not elementwise")
    found = next((x for e in n.body for x in _of_one_read(e)), None)
    if found is None:
        return Reason("it computes no elementary function of one element")
    e, r = found
    along = {name for _, c in index_coords(r) for name in c.names()}
    if editor.typical(set(n.out.dims) - along) < FEWEST_LANES:
        return Reason("few elements have one operand in common")
    producer = editor.nest(r.value)
    if producer is None or producer.reducer is None:
        return Reason(f"%{r.value} is no reduction, whose kernel would compute it")
    source = editor.values[r.value]
    if len(along) != len(source.dims) or any(c.as_var is None for _, c in index_coords(r)):
        return Reason(f"it reads a part of %{r.value}")
    own = at_point(source)
    value = Value(editor.fresh_value(f"{r.value}.{e.op}"), e.dtype, source.dims)
    once = Nest((value,), (), None, (transform(e, lambda x: own if x == r else x),), n.origin)
    given = Read(value.name, r.coords, e.dtype)
    body = tuple(transform(x, lambda x: given if x == e else x) for x in n.body)
    return once, replace(n, body=body)


def _of_one_read(e: Expr) -> Iterator[tuple[Apply, Read]]:
    """The largest expressions that are elementary functions of one plain read, with it."""
    if isinstance(e, Apply) and e.op in ELEMENTARY and len(given := set(reads(e))) == 1:
        (r,) = given
        if is_plain(r) and not any(isinstance(x, IndexValue) for x in walk(e)):
            yield e, r
            return
    for part in children(e):
        yield from _of_one_read(part)
