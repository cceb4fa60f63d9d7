"""Sums of products are recognised through their spellings and kept minimal."""

from __future__ import annotations

from dataclasses import replace

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_plain, node_reads, wrapped
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.sum_weights import WIDE
from rutc.tensor_ir import Apply, Cast, Expr, Index, Lit, Nest, Node, Read, apply
from rutc.tensor_ir.expr import index_names, substitute, transform, walk
from rutc.tensor_ir.indices.affine import ZERO
from rutc.tensor_ir.terms import factors

FOLDS = frozenset(("sum", "prod", "max", "maxnum", "min", "any", "all", "bitand"))
"""Reducers of one element, which they give where there is no other."""


@matches("reduction")
def drop_unit_dims(n: Node, editor: Editor) -> Result:
    """A bound dim of extent 1 is the index 0.

    %y{i} = sum{k,u} %x[i, k, u]       ->   %y{i} = sum{k} %x[i, k, u=0]       for extent(u) = 1
    """
    if not isinstance(n, Nest) or n.reducer is None:
        return Reason("nothing is reduced")
    unit = [d for d in n.bound if editor.extents[d].is_const and editor.extents[d].const == 1]
    if not unit:
        return Reason("no bound dim has extent 1")
    left = tuple(d for d in n.bound if d not in unit)
    if not left and n.reducer.name not in FOLDS:
        return Reason(f"{n.reducer.name} needs a bound dim")
    body = tuple(substitute(e, dict.fromkeys(unit, ZERO)) for e in n.body)
    return (replace(n, bound=left, body=body, reducer=n.reducer if left else None),)


@matches("reduction")
def drop_unused_dims(n: Node, editor: Editor) -> Result:
    """A bound dim that the body does not use repeats the same element.

    %y{i} = sum{j,k} %x[i, k]          ->   %y{i} = sum{k} %x[i, k] * 8.0      for extent(j) = 8
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name not in FOLDS - {"prod"}:
        return Reason("not a sum or an extreme")
    unused = [d for d in n.bound if d not in index_names(n.body[0])]
    repeats = editor.size(unused)
    if not unused or repeats is None or repeats == 0:
        return Reason("every bound dim of known extent is used")
    body = n.body[0]
    if n.reducer.name == "sum":
        if body.dtype.is_float and body.dtype not in WIDE:
            return Reason(f"{body.dtype} may not hold {repeats}")
        whole = body.dtype.is_int
        count = wrapped(repeats, body.dtype) if whole else Lit(float(repeats), body.dtype)
        body = apply("mul", body, count)
    left = tuple(d for d in n.bound if d not in unused)
    return (replace(n, bound=left, body=(body,), reducer=n.reducer if left else None),)


@matches("reduction")
def reduce_once(n: Node, editor: Editor) -> Result:
    """What is the same at every index of a dim is reduced once, and readers repeat it.

    %y{b,i} = sum{k} %x[k] * %w[i, k]  ->   %t{i} = sum{k} %x[k] * %w[i, k];  %y{b,i} = %t[i]

    So are factors that are expanded to a batch before they are multiplied, as tables of positions.
    Of constants, the sum is one then, however many images the run has.
    """
    if not isinstance(n, Nest) or n.reducer is None:
        return Reason("nothing is reduced")
    once = made_once(n, editor)
    return Reason("it differs along every dim") if once is None else (once, *repeated(n, once))


def made_once(n: Nest, editor: Editor) -> Nest | None:
    """What a nest computes, of those dims alone that make a difference; None where all do."""
    used = frozenset().union(*map(index_names, n.body))
    own = tuple(d for d in n.out.dims if d in used or editor.size((d,)) == 1)
    if own == n.out.dims:
        return None
    outs = tuple(replace(v, name=editor.fresh_value(f"{v.name}.once"), dims=own) for v in n.outs)
    return replace(n, outs=outs)


def repeated(n: Nest, once: Nest) -> tuple[Nest, ...]:
    """The outputs of a nest as views of what `once` computes."""
    return tuple(
        replace(n, outs=(v,), bound=(), reducer=None, body=(at_point(t),))
        for v, t in zip(n.outs, once.outs, strict=True)
    )


@matches("reduction")
def fuse_product_into_sum(n: Node, editor: Editor) -> Result:
    """A product that only broadcasts is computed where it is summed.

    %p{i,j,k} = %a[i, k] * %b[k, j]
    %y{i,j} = sum{k} %p[i, j, k]       ->   %y{i,j} = sum{k} %a[i, k] * %b[k, j]

    The product has more points than each of its operands has elements, so storing it is dearer
    than computing it again.
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    why = Reason("it sums no product")
    for part in _summed_reads(n.body[0]):
        p = editor.nest(part.value)
        if p is None or p.reducer is not None or len(factors(p.body[0])) < 2:
            continue
        if not is_plain(part):
            why = Reason(f"%{part.value} is padded or gathered")
        elif not editor.is_read_once(part.value, n):
            why = Reason(f"%{part.value} has another reader")
        elif not _broadcasts(p, editor):
            why = Reason(f"an operand of %{part.value} is as large as the product")
        else:
            return (inlined(n, part, p),)
    return why


@matches("reduction")
def fuse_sums(n: Node, editor: Editor) -> Result:
    """A sum of sums is one sum.

    %t{a,i} = sum{k} %x[a, k] * %w[i, k]
    %y{i} = sum{a} %t[a, i]            ->   %y{i} = sum{a,k} %x[a, k] * %w[i, k]
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    r = n.body[0]
    inner = editor.nest(r.value) if isinstance(r, Read) else None
    if not isinstance(r, Read) or inner is None or inner.reducer != n.reducer:
        return Reason("not a sum of a sum")
    coords = [c.as_var for _, c in index_coords(r)]
    if not is_plain(r) or sorted(c or "" for c in coords) != sorted(n.dims):
        return Reason("the inner sum is not read exactly once at every element")
    if not editor.is_read_once(r.value, n):
        return Reason(f"%{r.value} has another reader")
    names = {
        d: d if d not in n.dims else editor.fresh_dim(d, editor.extents[d]) for d in inner.bound
    }
    env = dict(index_coords(r)) | {d: Index.of(name) for d, name in names.items()}
    bound = (*n.bound, *names.values())
    body = substitute(inner.body[0], env)
    return (replace(n, bound=bound, body=(body,), origin=merge_origins(inner, n)),)


def inlined(n: Nest, r: Read, producer: Nest) -> Nest:
    """`n` computing the elementwise `producer` itself wherever it reads it by `r`."""
    at = substitute(producer.body[0], dict(index_coords(r)))
    body = tuple(transform(e, lambda x: at if x == r else x) for e in n.body)
    return replace(n, body=body, origin=merge_origins(producer, n))


def _summed_reads(e: Expr) -> list[Read]:
    """The reads that are the summed element or one of its factors, casts looked through."""
    match e:
        case Read():
            return [e]
        case Cast():
            return _summed_reads(e.arg)
        case Apply(op="mul"):
            return [r for a in e.args for r in _summed_reads(a)]
        case _:
            return []


def _broadcasts(p: Nest, editor: Editor) -> bool:
    """Whether every operand of a product has fewer dims than the product, constant factors too."""
    if not all(isinstance(x, Read | Lit | Cast | Apply) for x in walk(p.body[0])):
        return False
    if any(not isinstance(f, Read | Lit | Cast) for f in factors(p.body[0])):
        return False
    wide = {d for d in p.dims if editor.extents[d] != Index.of(1)}
    return all(is_plain(r) and not wide <= index_names(r) for r in node_reads(p))
