"""Scales and shifts by constants: combined with each other, and folded into weights.

Batch normalisation of a convolution, however it is spelled, becomes the convolution with other
weights plus a bias [Jacob et al. 2018, §3.2]. A product is distributed over a sum, `(x + c) * s`
becoming `x*s + c*s`, only where that saves an operation or lets a scale go into weights: it rounds
relative to `c*s`, not to the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import atoms, index_coords, indices, is_plain, point
from rutc.graph_opt.rewrite import Reason, Result
from rutc.record import record
from rutc.tensor_ir import Apply, Const, DType, Expr, Index, Lit, Nest, Node, Read, Value, apply
from rutc.tensor_ir.affine import FloorDiv
from rutc.tensor_ir.expr import index_names, map_index, reads, substitute, transform, walk

WIDE = (DType.F32, DType.F64)


@record
class Affine:
    """`scale * x + shift`; None stands for a scale of 1 and a shift of 0."""

    x: Read
    scale: Expr | None = None
    shift: Expr | None = None

    @property
    def operations(self) -> int:
        """How many operations it takes once both constants are known."""
        return (self.scale is not None) + (self.shift is not None)

    def expr(self) -> Expr:
        """As an expression."""
        scaled = self.x if self.scale is None else apply("mul", self.x, self.scale)
        return scaled if self.shift is None else apply("add", scaled, self.shift)


def combine_scales(n: Node, editor: Editor) -> Result:
    """A chain of scales and shifts by constants becomes one scale and one shift.

    %y{c,i} = (%x[c, i] - %m[c]) / %d[c] * %g[c] + %b[c]
    ->
    %y.scale{c} = 1.0 / %d[c] * %g[c]
    %y.shift{c} = (0.0 - %m[c]) / %d[c] * %g[c] + %b[c]
    %y{c,i} = %x[c, i] * %y.scale[c] + %y.shift[c]
    """
    found = affine_nest(n, editor)
    if isinstance(found, Reason):
        return found
    assert isinstance(n, Nest)
    form, chain = found
    before = sum(_operations(e) for c in (n, *chain) for e in c.body)
    saves = before > form.operations
    folds = bool(chain) and form.scale is not None and _foldable(n, form, editor)
    if not saves and not folds:
        return Reason(f"{before} operations are not more than {form.operations}")
    new: list[Node] = []
    scale = _outlined(form.scale, f"{n.out.name}.scale", n, new, editor)
    shift = _outlined(form.shift, f"{n.out.name}.shift", n, new, editor)
    if isinstance(scale, Reason):
        return scale
    if isinstance(shift, Reason):
        return shift
    body = Affine(form.x, scale, shift).expr()
    origin = merge_origins(*reversed(chain), n)
    return (*new, replace(n, body=(body,), origin=origin))


def fold_scale(n: Node, editor: Editor) -> Result:
    """A scale by a constant goes into a constant operand of the sum of products that it scales.

    %t{n,o} = sum{c} %x[n, c] * %w[o, c]
    %y{n,o} = %t[n, o] * %s[o] + %b[o]
    ->
    %w.scaled{c,o} = %w[o, c] * %s[o]
    %t{n,o} = sum{c} %x[n, c] * %w.scaled[o, c]
    %y{n,o} = %t[n, o] + %b[o]
    """
    if not isinstance(n, Nest) or n.reducer is not None:
        return Reason("not elementwise")
    form = affine(n.body[0], editor)
    if form is None or form.scale is None:
        return Reason("it does not scale by a constant")
    product = contraction(form.x, n, editor)
    if isinstance(product, Reason):
        return product
    scale = _rebased(form.scale, _inverse(form.x))
    if scale is None:
        return Reason("the scale varies over more than the sum of products")
    folded = into_weights(replace(product, origin=merge_origins(product, n)), scale, editor)
    if isinstance(folded, Reason):
        return folded
    rest = Affine(form.x, None, form.shift)
    return (*folded, replace(n, body=(rest.expr(),)))


def join_weights(n: Node, editor: Editor) -> Result:
    """Of several constant factors of a product, the smaller ones go into a larger one.

    %y{n,o} = sum{c} %x[n, c] * %s[c] * %w[o, c]
    ->
    %w.scaled{c,o} = %w[o, c] * %s[c]
    %y{n,o} = sum{c} %x[n, c] * %w.scaled[o, c]
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name != "sum":
        return Reason("not a sum")
    parts = factors(n.body[0])
    if len(parts) < 3 or n.out.dtype not in WIDE:
        return Reason("not a product of three factors")
    why = Reason("no factor is constant")
    for i, part in enumerate(parts):
        if not is_constant(part, editor):
            continue
        others = replace(n, body=(product_of([*parts[:i], *parts[i + 1 :]]),))
        folded = into_weights(others, part, editor)
        if not isinstance(folded, Reason):
            return folded
        why = folded
    return why


# -- recognition --------------------------------------------------------------------------------
def affine_nest(n: Node, editor: Editor) -> tuple[Affine, tuple[Nest, ...]] | Reason:
    """A nest as one scale and shift, with the nests before it that only scale and shift too."""
    if not isinstance(n, Nest) or n.reducer is not None or n.out.dtype not in WIDE:
        return Reason("not elementwise in f32 or f64")
    body, chain, last = n.body[0], [], n
    form = affine(body, editor)
    if form is None or form.operations == 0:
        return Reason("not a scale and shift by constants")
    while (before := editor.nest(form.x.value)) is not None:
        if before.reducer is not None or before.out.dtype not in WIDE:
            break
        if not editor.is_read_once(before.out.name, last) or form.x.fill is not None:
            break
        inner = affine(before.body[0], editor)
        if inner is None or inner.operations == 0:
            break
        at = substitute(before.body[0], dict(index_coords(form.x)))
        x = form.x
        body = transform(body, lambda e, x=x, at=at: at if e == x else e)  # type: ignore[misc]
        merged = affine(body, editor)
        if merged is None:
            break
        form, last = merged, before
        chain.append(before)
    return form, tuple(chain)


def affine(e: Expr, editor: Editor) -> Affine | None:
    """`e` as `scale * x + shift` with constants around one read that is not constant."""
    match e:
        case Read():
            return Affine(e) if is_plain(e) and editor.constant(e.value) is None else None
        case Apply(op="neg", args=(x,)) if e.dtype in WIDE:
            return _scaled(affine(x, editor), Lit(-1.0, e.dtype))
        case Apply(op="add" | "mul", args=(x, c)) if is_constant(x, editor):
            return affine(Apply(e.op, (c, x)), editor) if not is_constant(c, editor) else None
        case Apply(op="add", args=(x, c)) if is_constant(c, editor):
            return _shifted(affine(x, editor), c)
        case Apply(op="mul", args=(x, c)) if is_constant(c, editor):
            return _scaled(affine(x, editor), c)
        case Apply(op="sub", args=(x, c)) if is_constant(c, editor):
            return _shifted(affine(x, editor), _negated(c))
        case Apply(op="sub", args=(c, x)) if is_constant(c, editor):
            return _shifted(_scaled(affine(x, editor), Lit(-1.0, e.dtype)), c)
        case Apply(op="div", args=(x, c)) if is_constant(c, editor):
            return _divided(affine(x, editor), c)
        case _:
            return None


def is_constant(e: Expr, editor: Editor) -> bool:
    """Whether `e` is made of literals and constants at affine coordinates."""
    for x in walk(e):
        match x:
            case Lit() | Apply():
                pass
            case Read() if is_plain(x) and editor.constant(x.value) is not None:
                pass
            case _:
                return False
    return e.dtype in WIDE


def contraction(x: Read, reader: Nest, editor: Editor) -> Nest | Reason:
    """The sum of products that `x` reads, if `reader` alone needs it."""
    n = editor.nest(x.value)
    if n is None or n.reducer is None or n.reducer.name != "sum":
        return Reason(f"%{x.value} is no sum")
    if not editor.is_read_once(x.value, reader):
        return Reason(f"%{x.value} has another reader")
    return n


def factors(e: Expr) -> list[Expr]:
    """The factors of a product, in order."""
    if isinstance(e, Apply) and e.op == "mul":
        return [f for a in e.args for f in factors(a)]
    return [e]


def product_of(parts: list[Expr]) -> Expr:
    """The product of at least one factor, from the left."""
    total = parts[0]
    for p in parts[1:]:
        total = apply("mul", total, p)
    return total


# -- rewriting ----------------------------------------------------------------------------------
def into_weights(n: Nest, scale: Expr, editor: Editor) -> tuple[Node, ...] | Reason:
    """The sum of products `n` times `scale` (over the dims of `n`), as new weights and a sum."""
    parts = factors(n.body[0])
    why = Reason("no factor is a constant")
    for i, w in enumerate(parts):
        c = editor.constant(w.value) if isinstance(w, Read) else None
        if c is None or not isinstance(w, Read) or w.dtype not in WIDE:
            continue
        if len(editor.readers(w.value)) > 1 or editor.is_output(w.value):
            why = Reason(f"%{w.value} has another reader")
            continue
        if w.fill is not None and w.fill.value != 0:
            why = Reason(f"%{w.value} is padded with {w.fill.value}")
            continue
        if not all(isinstance(at, Index) for _, at in w.coords):
            why = Reason(f"%{w.value} is read at data-dependent coordinates")
            continue
        own = _rebased(scale, _inverse(w))
        if own is None:
            why = Reason(f"the scale varies over more than %{w.value}")
            continue
        return _with_weights(n, parts, i, c, own, editor)
    return why


def _with_weights(
    n: Nest, parts: list[Expr], position: int, c: Const, scale: Expr, editor: Editor
) -> tuple[Node, ...]:
    """`n` reading `c * scale` in the place of `c`."""
    w = parts[position]
    assert isinstance(w, Read)
    base = c.out.name if c.out.name.endswith(".scaled") else f"{c.out.name}.scaled"
    name = editor.fresh_value(base)
    element = Read(c.out.name, point(c.out.dims), w.dtype)
    scaled = Value(name, w.dtype, c.out.dims)
    origin = merge_origins(c, n)
    weights = Nest((scaled,), (), None, (apply("mul", element, scale),), origin)
    parts = [*parts[:position], replace(w, value=name), *parts[position + 1 :]]
    return weights, replace(n, body=(product_of(parts),))


def _foldable(n: Nest, form: Affine, editor: Editor) -> bool:
    """Whether the scale of `form` can go into weights once `n` reads the sum directly."""
    total = editor.nest(form.x.value)
    if total is None or total.reducer is None or total.reducer.name != "sum":
        return False
    if len(editor.readers(form.x.value)) != 1 or form.scale is None:
        return False
    scale = _rebased(form.scale, _inverse(form.x))
    return scale is not None and not isinstance(into_weights(total, scale, editor), Reason)


def _inverse(r: Read) -> dict[Index, Index]:
    """What is known of the reader's indices in terms of the dims of the value that `r` reads.

    %x[h=e // 4, d=e % 4, i=j+1]  ->  {e // 4: h, e % 4: d, e: 4*h + d, j+1: i}
    """
    at = {c: Index.of(d) for d, c in index_coords(r)}
    for c, outer in list(at.items()):
        for a in atoms(c):
            if isinstance(a, FloorDiv) and a.num // a.den == c and a.num % a.den in at:
                at[a.num] = outer * a.den + at[a.num % a.den]
    return at


def _rebased(e: Expr, at: Mapping[Index, Index]) -> Expr | None:
    """`e` over other dims, or None if some index in it is not known in `at`.

    An index is known if it is a key of `at`, or made of keys that are dims.
    """
    env = {d: new for old, new in at.items() if (d := old.as_var) is not None}
    for i in indices(e):
        if i not in at and not i.names() <= env.keys():
            return None
    return map_index(e, lambda i: at[i] if i in at else i.subs(env))


def _outlined(
    e: Expr | None, name: str, n: Nest, new: list[Node], editor: Editor
) -> Expr | Reason | None:
    """A constant expression as one read, its nest appended to `new`."""
    if e is None or isinstance(e, Lit | Read):
        return e
    dims = tuple(sorted(index_names(e)))
    size, source = editor.size(dims), 0
    for r in reads(e):
        c = editor.constant(r.value)
        source += c.data.array.size if c is not None else 0
    if size is None or not set(dims) <= set(n.out.dims):
        return Reason("the constants are read at symbolic coordinates")
    if size > max(2 * source, 1 << 14):
        return Reason(f"{size} elements are too many for a scale made of {source}")
    value = Value(editor.fresh_value(name), e.dtype, dims)
    new.append(Nest((value,), (), None, (e,), n.origin))
    return Read(value.name, point(dims), e.dtype)


def _operations(e: Expr) -> int:
    return sum(isinstance(x, Apply) for x in walk(e))


def _negated(e: Expr) -> Expr:
    return (
        Lit(-e.value, e.dtype)
        if isinstance(e, Lit) and not isinstance(e.value, str)
        else apply("neg", e)
    )


def _shifted(form: Affine | None, c: Expr) -> Affine | None:
    if form is None:
        return None
    return replace(form, shift=c if form.shift is None else apply("add", form.shift, c))


def _scaled(form: Affine | None, c: Expr) -> Affine | None:
    if form is None:
        return None
    scale = c if form.scale is None else apply("mul", form.scale, c)
    return Affine(form.x, scale, None if form.shift is None else apply("mul", form.shift, c))


def _divided(form: Affine | None, c: Expr) -> Affine | None:
    if form is None:
        return None
    one = Lit(1.0, c.dtype)
    scale = apply("div", one if form.scale is None else form.scale, c)
    return Affine(form.x, scale, None if form.shift is None else apply("div", form.shift, c))
