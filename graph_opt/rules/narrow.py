"""Products of quantised numbers are summed as integers.

A quantised number is `(q - zero) * scale` with an 8-bit `q`. A sum of products of two of them is
`scales * sum{k} (q - zero) * (p - other)`, and as integers wrap, the zero points come out of the
sum exactly: `sum q*p - other * sum q - zero * sum p + zero * other * count`
[Jacob et al. 2018, §2.3]. What is left, a sum of products of 8-bit numbers, is what processors
have instructions for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered, is_plain, wrapped
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rounding import elements, is_representable, rounds
from rutc.tensor_ir import Apply, Cast, DType, Expr, Index, Lit, Nest, Node, Read, Value, apply
from rutc.tensor_ir.expr import Coord, index_names, reads, substitute, transform
from rutc.tensor_ir.graph import Origin
from rutc.tensor_ir.indices.affine import product
from rutc.tensor_ir.reducer import reducer
from rutc.tensor_ir.terms import factors

LARGEST_SUM = (1 << 31) // (255 * 255)
"""So many products of differences of 8-bit numbers surely fit in 32 bits."""


LEAST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**118
"""Between these, multiples of a scale by differences of 8-bit numbers are normal numbers."""


@record
class Quantised:
    """`(q - zero) * scale`, an i32 without `scale`, else an f32. None stands for 0 and 1."""

    q: Read
    zero: Expr | None = None
    scale: Expr | None = None
    is_real: bool = False
    source: Nest | None = None

    @property
    def whole(self) -> Expr:
        """`q - zero` as an i32."""
        q = Cast(self.q, DType.I32)
        return q if self.zero is None else apply("sub", q, self.zero)

    @property
    def number(self) -> Expr:
        """What it is, of the type that it has."""
        found: Expr = Cast(self.whole, DType.F32) if self.is_real else self.whole
        return found if self.scale is None else apply("mul", found, self.scale)


@rounds(
    changes="Scales move out of sums of products of quantised numbers, which are exact then.",
    refused="Where multiples of a constant scale may overflow. Where the product of the scales is "
    "no normal number, they stay two factors.",
)
@matches("reduction")
def sum_integers(n: Node, editor: Editor) -> Result:
    """A sum of products of quantised numbers is one of integers, scaled.

    %a{m,k} = f32(i32(%q[m, k]) - 7) * 0.1
    %b{k,n} = f32(%w[k, n]) * %s[n]
    %y{m,n} = sum{k} %a[m, k] * %b[k, n]
    ->
    %y.whole{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w[k, n])
    %y{m,n} = f32(%y.whole[m, n]) * (0.1 * %s[n])
    """
    found = quantised_sum(n, editor)
    if isinstance(found, Reason):
        return found
    n, parts = found
    if not all(p.is_real for p in parts):
        return Reason("the products are integers already")
    points = editor.size(n.bound)
    if points is None or points > LARGEST_SUM:
        return Reason("the sum may not fit in 32 bits")
    scales = [p.scale for p in parts if p.scale is not None]
    if not all(may_be_finite(s, editor) for s in scales):
        return Reason("multiples of a scale may be infinite, and such a one times 0 is no number")
    origin = origin_of(n, parts)
    whole = Value(editor.fresh_value(f"{n.out.name}.whole"), DType.I32, n.out.dims)
    total = Nest(
        (whole,),
        n.bound,
        reducer("sum", DType.I32),
        (apply("mul", parts[0].whole, parts[1].whole),),
        origin,
    )
    real: Expr = Cast(at_point(whole), DType.F32)
    if len(scales) == 2 and _is_normal_product(scales, editor):
        scales = [apply("mul", *scales)]
    for scale in scales:
        real = apply("mul", real, scale)
    return total, Nest(n.outs, (), None, (real,), n.origin)


@matches("reduction")
def sum_narrow(n: Node, editor: Editor) -> Result:
    """Operands of 8 bits are read where they are multiplied, less their zero points outside.

    %a{m,k} = i32(%q[m, k]) - i32(%z)
    %b{k,n} = i32(%w[k, n]) - 3
    %y{m,n} = sum{k} %a[m, k] * %b[k, n]
    ->
    %y.narrow{m,n} = sum{k} i32(%q[m, k]) * i32(%w[k, n])
    %y.left{m} = sum{k} i32(%q[m, k])
    %y.right{n} = sum{k} i32(%w[k, n])
    %y{m,n} = %y.narrow[m, n] - 3 * %y.left[m] - i32(%z) * (%y.right[n] - 3 * 8)

    The zero points stay where a sum of their own would cost as much as the sum of products.
    """
    found = integer_sum(n, editor)
    if isinstance(found, Reason):
        return found
    n, (a, b) = found
    origin = origin_of(n, (a, b))
    summed = [q for q, zero in ((a.q, b.zero), (b.q, a.zero)) if zero is not None]
    cheap = _shares(n, a.q, b.q) or all(editor.constant(q.value) is not None for q in summed)
    if not summed or not cheap:
        body = apply("mul", a.whole, b.whole)
        if body == n.body[0]:
            return Reason("its operands are read as they are")
        return (replace(n, body=(body,), origin=origin),)
    new: list[Node] = []

    def added(kind: str, element: Expr, dims: frozenset[str]) -> Read:
        own = tuple(d for d in n.out.dims if d in dims)
        value = Value(editor.fresh_value(f"{n.out.name}.{kind}"), DType.I32, own)
        new.append(Nest((value,), n.bound, n.reducer, (element,), origin))
        return at_point(value)

    left, right = Cast(a.q, DType.I32), Cast(b.q, DType.I32)
    total: Expr = added("narrow", apply("mul", left, right), frozenset(n.out.dims))
    if b.zero is not None:
        total = apply("sub", total, apply("mul", b.zero, added("left", left, index_names(a.q))))
    if a.zero is not None:
        sums: Expr = added("right", right, index_names(b.q))
        if b.zero is not None:
            count = wrapped(product(editor.extents[d] for d in n.bound).value, DType.I32)
            sums = apply("sub", sums, apply("mul", b.zero, count))
        total = apply("sub", total, apply("mul", a.zero, sums))
    return (*new, replace(n, bound=(), reducer=None, body=(total,)))


def may_be_finite(scale: Expr, editor: Editor) -> bool:
    """Whether nothing shows that multiples of a scale by differences of 8-bit numbers overflow."""
    found = elements(scale, sorted(index_names(scale)), editor)
    return found is None or bool((np.abs(found) <= LARGEST_SCALE).all())


def _is_normal_product(scales: list[Expr], editor: Editor) -> bool:
    """Whether the product of two scales is known to neither overflow nor underflow."""
    a, b = scales
    axes = sorted(index_names(a) | index_names(b))
    left, right = elements(a, axes, editor), elements(b, axes, editor)
    return left is not None and right is not None and is_representable(left * right, DType.F32)


# -- recognition --------------------------------------------------------------------------------
def quantised_sum(n: Node, editor: Editor) -> tuple[Nest, tuple[Quantised, Quantised]] | Reason:
    """(the nest, its two factors) of a sum of products of quantised numbers."""
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    if n.out.dtype not in (DType.I32, DType.F32) or n.body[0].dtype is not n.out.dtype:
        return Reason("not a sum in i32 or f32")
    parts = factors(n.body[0])
    if len(parts) != 2:
        return Reason("not a product of two factors")
    if editor.size(n.bound) in (None, 0):
        return Reason("the sum's length is symbolic or zero")
    found: list[Quantised] = []
    for part in parts:
        q = quantised(part) or produced(part, editor)
        if q is None:
            return Reason("a factor is no quantised number")
        q = replace(q, zero=_plain_zero(q.zero, editor))
        others = [e for e in (q.zero, q.scale) if e is not None]
        if any(index_names(e) & set(n.bound) for e in others):
            return Reason("a scale or zero point varies along the sum")
        found.append(q)
    return n, (found[0], found[1])


def integer_sum(n: Node, editor: Editor) -> tuple[Nest, tuple[Quantised, Quantised]] | Reason:
    """The same of a sum whose products are integers."""
    found = quantised_sum(n, editor)
    if not isinstance(found, Reason) and any(p.is_real for p in found[1]):
        return Reason("the products are not integers")
    return found


def origin_of(n: Nest, parts: Iterable[Quantised]) -> Origin:
    """What a sum of quantised factors is made of: what computes them, too."""
    return merge_origins(*(p.source for p in parts if p.source is not None), n)


def quantised(e: Expr) -> Quantised | None:
    """`e` as an 8-bit read less a zero point, times a scale."""
    match e:
        case Apply(op="mul", args=(x, scale)) if e.dtype is DType.F32:
            form = quantised(x)
            if form is None or form.scale is not None or not _less(scale, form.q):
                return None
            return replace(form, scale=scale)
        case Cast(arg, DType.F32) if arg.dtype is DType.I32:
            form = quantised(arg)
            return None if form is None else replace(form, is_real=True)
        case Apply(op="sub", args=(Cast(Read() as q, DType.I32), zero)) if e.dtype is DType.I32:
            return Quantised(q, zero) if _is_narrow(q) and _less(zero, q) else None
        case Cast(Read() as q, DType.I32 | DType.F32) if _is_narrow(q):
            return Quantised(q, is_real=e.dtype is DType.F32)
        case _:
            return None


def maker(e: Expr, editor: Editor) -> tuple[Nest, Quantised] | None:
    """The elementwise nest that computes what `e` reads, and the quantised number that it is."""
    if not isinstance(e, Read) or is_gathered(e):
        return None
    p = editor.nest(e.value)
    form = quantised(p.body[0]) if p is not None and p.reducer is None else None
    return None if p is None or form is None or not is_plain(form.q) else (p, form)


def produced(e: Expr, editor: Editor) -> Quantised | None:
    """The quantised number that an elementwise nest computes and `e` reads."""
    found = maker(e, editor)
    if found is None or not isinstance(e, Read):
        return None
    p, form = found
    env = dict(index_coords(e))

    def here(x: Expr | None) -> Expr | None:
        return None if x is None else substitute(x, env)

    q = substitute(form.q, env)
    assert isinstance(q, Read)
    if e.fill is not None:
        # Outside stands what is 0 once the zero point is subtracted.
        zero = form.zero if form.zero is not None else Lit(0, DType.I32)
        if e.fill.value != 0 or not isinstance(zero, Lit) or not _same_edges(e, form.q, p, editor):
            return None
        low, high = (-128, 127) if q.dtype.is_signed else (0, 255)
        if not low <= int(zero.value) <= high:
            return None
        q = replace(q, fill=Lit(zero.value, q.dtype))
    return Quantised(q, here(form.zero), here(form.scale), form.is_real, p)


def _plain_zero(zero: Expr | None, editor: Editor) -> Expr | None:
    """The zero point as a literal, or None for 0, if it is a constant of equal elements."""
    value = zero
    if isinstance(zero, Cast | Read):
        r = zero.arg if isinstance(zero, Cast) else zero
        c = editor.constant(r.value) if isinstance(r, Read) else None
        if c is not None and c.data.array.size and (c.data.array == c.data.array.flat[0]).all():
            value = Lit(int(c.data.array.flat[0]), DType.I32)
    return None if isinstance(value, Lit) and value.value == 0 else value


def _same_edges(e: Read, q: Read, p: Nest, editor: Editor) -> bool:
    """Whether `e` is outside of `p`'s output exactly where `q`, at that point, is of its value.

    Dims along which `e` reads all there is have no edges, and `q` may read any part there.
    """
    at = dict(index_coords(e))
    whole = {d for d in p.out.dims if _is_all(at.get(d), d, editor)}
    edges = [d for d in p.out.dims if d not in whole]
    beside = [(d, c) for d, c in index_coords(q) if not c.names() <= whole]
    return sorted(c.as_var or "" for _, c in beside) == sorted(edges) and all(
        editor.extents[d] == editor.extents[c.as_var] for d, c in beside if c.as_var
    )


def _is_all(c: Index | None, d: str, editor: Editor) -> bool:
    """Whether a coordinate along a dim goes over all of it, and no further."""
    own = None if c is None else c.as_var
    return own is not None and editor.extents[own] == editor.extents[d]


def _is_narrow(r: Read) -> bool:
    return r.dtype in (DType.I8, DType.U8)


def _less(e: Expr, q: Read) -> bool:
    """Whether `e` varies over fewer dims than `q`: the literals, scales and zero points."""
    return index_names(e) < index_names(q) if any(reads(e)) else isinstance(e, Lit)


def _shares(n: Nest, a: Read, b: Read) -> bool:
    """Whether each operand is used again along a dim that the other one has."""
    free = frozenset(n.out.dims)
    left, right = index_names(a) & free, index_names(b) & free
    return not left >= right and not right >= left


# -- quantised numbers outside of products --------------------------------------------------------
@matches("view", "elementwise")
def gather_narrow(n: Node, editor: Editor) -> Result:
    """A few of many quantised numbers are made real where they are read.

    %t{v,k} = f32(i32(%w[v, k]) - 3) * 0.1                  with a constant %w
    %y{m,k} = %t[v=%i[m], k]
    ->
    %y{m,k} = f32(i32(%w[v=%i[m], k]) - 3) * 0.1
    """
    if not isinstance(n, Nest) or n.reducer is not None:
        return Reason("not elementwise")
    why = Reason("it reads no quantised constants")
    for r in dict.fromkeys(reads(n.body[0])):
        p = editor.nest(r.value)
        form = quantised(p.body[0]) if p is not None and p.reducer is None else None
        if p is None or form is None or editor.constant(form.q.value) is None:
            continue
        points, size = editor.size(n.dims), editor.size(p.dims)
        if r.fill is not None:
            why = Reason(f"%{r.value} is padded")
        elif points is not None and size is not None and points >= size:
            why = Reason(f"all of %{r.value} is needed")
        elif (here := _moved(p.body[0], dict(r.coords))) is None:
            why = Reason(f"%{r.value} is no plain widening")
        else:
            body = transform(n.body[0], lambda x, r=r, here=here: here if x == r else x)  # type: ignore[misc]
            return (replace(n, body=(body,), origin=merge_origins(p, n)),)
    return why


def _moved(e: Expr, at: Mapping[str, Coord]) -> Expr | None:
    """`e`, which reads at single dims, at other coordinates."""

    def coord(c: Coord) -> Coord | None:
        if not isinstance(c, Index):
            return None
        return c if c.is_const else at.get(c.as_var or "")

    if any(coord(c) is None for r in reads(e) for _, c in r.coords):
        return None

    def visit(x: Expr) -> Expr:
        if not isinstance(x, Read):
            return x
        return x.at(tuple((d, coord(c) or c) for d, c in x.coords))

    return transform(e, visit)


@matches("elementwise")
def drop_requantised(n: Node, editor: Editor) -> Result:
    """Quantising what was a quantised number of the same scale and zero point gives that number.

    %x{i} = f32(i32(%q[i]) - 7) * 0.1
    %y{i} = u8(i32(min(max(round(%x[i] / 0.1) + 7.0, 0.0), 255.0)))     ->   %q
    """
    found = quantising(n)
    if isinstance(found, Reason):
        return found
    n, r, scale, zero = found
    p = editor.nest(r.value)
    form = quantised(p.body[0]) if p is not None and p.reducer is None else None
    if p is None or form is None or not form.is_real or not is_plain(r):
        return Reason(f"%{r.value} is no quantised number")
    if form.q.dtype is not n.out.dtype or not is_plain(form.q):
        return Reason("it was quantised to another type")
    own = form.zero.value if isinstance(form.zero, Lit) else None if form.zero else 0
    if form.scale != Lit(scale, DType.F32) or own != zero:
        return Reason("the scale or the zero point differs")
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        return Reason("multiples of the scale may overflow, or be no normal numbers")
    body = substitute(form.q, dict(index_coords(r)))
    return (replace(n, body=(body,), origin=merge_origins(p, n)),)


def quantising(n: Node) -> tuple[Nest, Read, float, int] | Reason:
    """(the nest, x, scale, zero) of a node that only quantises x, or why it does not."""
    if not isinstance(n, Nest) or n.reducer is not None:
        return Reason("not elementwise")
    found = _quantising(n.body[0])
    return (n, *found) if found is not None else Reason("it does not quantise")


def _quantising(e: Expr) -> tuple[Read, float, int] | None:
    """(x, scale, zero) of an `e` that is x / scale, rounded, plus zero, saturated."""
    match e:
        case Cast(Cast(Apply("min", (Apply("max", (x, Lit() as low)), Lit() as high)), _), kind):
            pass
        case _:
            return None
    limits = {DType.U8: (0, 255), DType.I8: (-128, 127)}.get(kind)
    if limits != (low.value, high.value):
        return None
    zero = 0
    match x:
        case Apply("add", (Apply("round") as rounded, Lit(shift))):
            x, zero = rounded, int(shift)
    match x:
        case Apply("round", (Apply("div", (Read() as r, Lit(scale))),)):
            return r, float(scale), zero
        case Apply("round", (Apply("mul", (Read() as r, Lit(inverse))),)) if inverse:
            return r, 1.0 / float(inverse), zero
        case _:
            return None
