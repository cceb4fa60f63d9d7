"""Values of which bf16 is stored, too, are read so: one of the two then needs no memory.

%r{m} = max(%p[m], 0)                              %r{m} = max(%p[m], 0)
%r.hi{m} = bf16(%r[m])                             %r.hi{m} = bf16(%r[m])
%q{n} = sum{m} f32(%r.hi[m]) * ..            ->    %q{n} = sum{m} f32(%r.hi[m]) * ..
%y{m} = %q[m] + %r[m]                              %y{m} = %q[m] + f32(%r.hi[m])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exact_places import places
from rutc.graph_opt.exprs import at_point
from rutc.tensor_ir import Cast, DType, Expr, Lit, Nest, Read
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.graph import used


def read_rounded(editor: Editor, but: Collection[str] = ()) -> None:
    """Makes nests read the numbers in bf16 that values were rounded to before, in their place.

    Those that give the values `but` read what they do, and so does all that reads places. What the
    outputs are, or copies of, stays as it is: states above all, which the next runs go on from.
    """
    exact = places(editor.nodes.values()) | _given(editor)
    rounded: dict[str, str] = {}
    for key in tuple(editor.names()):
        n = editor.nodes.get(key)
        if not isinstance(n, Nest):
            continue
        source = _rounds_whole(n, editor)
        if source is not None:
            computed = isinstance(editor.producer(source), Nest)
            if computed and source not in exact:
                rounded.setdefault(source, n.out.name)
            continue
        if rounded.keys().isdisjoint(used(n)) or n.outs[0].name in but:
            continue
        body = tuple(transform(e, lambda x: _widened(x, rounded)) for e in n.body)
        if body != n.body:
            editor.replace(n, (replace(n, body=body),))


def _given(editor: Editor) -> set[str]:
    """The values that are outputs, and those of whose elements outputs are copies."""
    found = {v for v in editor.values if editor.is_output(v)}
    left = list(found)
    while left:
        n = editor.nest(left.pop())
        match n.body if n is not None else ():
            case (Read() as r,) if r.value not in found:
                found.add(r.value)
                left.append(r.value)
    return found


def _rounds_whole(n: Nest, editor: Editor) -> str | None:
    """The value in f32 all of which a nest stores in bf16, and nothing else; or None."""
    match n.body:
        case (Cast(arg=Read() as r),) if n.out.dtype is DType.BF16 and r.dtype is DType.F32:
            return r.value if r == at_point(editor.values[r.value]) else None
        case _:
            return None


def _widened(e: Expr, rounded: Mapping[str, str]) -> Expr:
    """What is read of a rounded value, where bf16 has what is read outside of it."""
    if not isinstance(e, Read) or e.value not in rounded:
        return e
    fill = None if e.fill is None else replace(e.fill, dtype=DType.BF16)
    if fill is not None and Lit(fill.value, DType.F32) != e.fill:
        return e
    return Cast(replace(e, value=rounded[e.value], dtype=DType.BF16, fill=fill), DType.F32)
