"""What is put together of several values and quantised afterwards is quantised before."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import quantised, quantising
from rutc.graph_opt.rules.windows_narrow import number_quantised, quantised_before
from rutc.tensor_ir import Apply, DType, Expr, Lit, Nest, Node, Read, apply
from rutc.tensor_ir.expr import reads


@matches("elementwise")
def quantise_before_joining(n: Node, editor: Editor) -> Result:
    """The parts of a concatenation are quantised where they are made: bytes are put together.

    %a{i} = f32(i32(%q[i]) - 3) * 0.5
    %b{j} = max(%x[j], 0.0)
    %c{k} = select(index(k - 8) < 0, %a[i=k else 0], %b[j=k-8 else 0])
    %y{k} = u8(i32(min(max(round(%c[k] / 0.1) + 7.0, 0.0), 255.0)))
    ->
    %y.before{i} = u8(i32(min(max(round(%a[i] / 0.1) + 7.0, 0.0), 255.0)))
    %y.before2{j} = u8(i32(min(max(round(%b[j] / 0.1) + 7.0, 0.0), 255.0)))
    %y{k} = select(index(k - 8) < 0, %y.before[i=k else 7], %y.before2[j=k-8 else 7])

    A part is then a function of one number of 8 bits, or is quantised where it is computed. Not of
    what is stored in f32 in any case, nor of values of which only a part is read.
    """
    found = quantising(n)
    if isinstance(found, Reason):
        return found
    n, r, scale, zero = found
    p = editor.nest(r.value)
    if p is None or p.reducer is not None or len(p.body) > 1:
        return Reason(f"%{r.value} is not put together of values")
    parts = _parts(p.body[0])
    if parts is None or len(parts) < 2:
        return Reason(f"%{r.value} is not put together of values")
    if r != at_point(p.out) or not editor.is_read_once(r.value, n):
        return Reason(f"%{r.value} is read elsewhere, too")
    if not 0 < scale < inf:
        return Reason("the scale is no positive number")
    made: dict[str, Nest] = {}
    for part in parts:
        source = editor.nest(part.value)
        if source is None or is_gathered(part) or not _is_free(part, p, source, editor):
            return Reason(f"%{part.value} is stored as it is")
        made[part.value] = source
    sizes = [editor.size(d) for d in (n.out.dims, *(s.out.dims for s in made.values()))]
    if None in sizes or sum(s or 0 for s in sizes[1:]) > (sizes[0] or 0):
        return Reason("only a part of what it is put together of may be read")
    kind, before = n.out.dtype, dict[str, Nest]()
    for name, source in made.items():
        before[name] = quantised_before(n, r, source.out, editor, before.values())

    def narrow(e: Expr) -> Expr:
        match e:
            case Apply("select", (condition, a, b)):
                return apply("select", condition, narrow(a), narrow(b))
            case Read(fill=fill):
                outside = None
                if fill is not None:
                    outside = number_quantised(float(fill.value), scale, zero, kind)
                return Read(before[e.value].out.name, e.coords, kind, outside)
            case _:
                assert isinstance(e, Lit)
                return number_quantised(float(e.value), scale, zero, kind)

    joined = replace(p, outs=n.outs, body=(narrow(p.body[0]),), origin=merge_origins(p, n))
    return (*before.values(), joined)


def _parts(e: Expr) -> tuple[Read, ...] | None:
    """What is read of values that places alone choose from; None where some of it is computed."""
    match e:
        case Apply("select", (condition, a, b)) if not any(reads(condition)):
            p, q = _parts(a), _parts(b)
            return None if p is None or q is None else (*p, *q)
        case Read() if e.dtype is DType.F32:
            return (e,)
        case Lit():
            return ()
        case _:
            return None


def _is_free(part: Read, reader: Nest, source: Nest, editor: Editor) -> bool:
    """Whether nothing stores what is read of a value but numbers of 8 bits."""
    is_narrow = source.reducer is None and quantised(source.body[0]) is not None
    return is_narrow or editor.is_read_once(part.value, reader)
