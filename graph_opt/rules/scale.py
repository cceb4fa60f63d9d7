"""Scales and shifts by constants: combined with each other, and folded into weights.

Batch normalisation of a convolution, however it is spelled, becomes the convolution with other
weights plus a bias [Jacob et al. 2018, §3.2].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.affine_steps import (
    Affine,
    Step,
    affine_of,
    factor_of,
    follow,
    is_constant,
    joined_scales,
    scale_and_shift,
    slope_and_offset,
)
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, atoms, index_coords, indices, reads_at_point
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rounding import elements, is_representable, over_budget, rounds
from rutc.graph_opt.sum_weights import (
    WIDE,
    Weights,
    cost_of_joining,
    cost_of_scaling,
    cost_of_shifting,
    weights_of,
)
from rutc.tensor_ir import Apply, Expr, Index, Lit, Nest, Node, Read, Value, apply
from rutc.tensor_ir.expr import index_names, map_index, reads, substitute, walk
from rutc.tensor_ir.indices.affine import FloorDiv
from rutc.tensor_ir.terms import factors, product_of

MOST_STEPS = 8
"""So many steps are followed no further back, so that long sequences take time in proportion to
their length; a normalisation has four. What can be one is so before more follow."""


@rounds(
    changes="Neighbouring factors are one, rounded once. Behind a sum of products with constant "
    "weights, shifts move behind scales.",
    refused="A factor is no normal number; a shift before the last step is large beside what the "
    "sum itself rounds for inputs of about 4.",
)
@matches("elementwise")
def combine_scales(n: Node, editor: Editor) -> Result:
    """Of scales and shifts by constants after each other, neighbouring scales become one.

    %y{c,i} = (%x[c, i] - %m[c]) / %d[c] * %g[c] + %b[c]
    ->
    %y.scale{c} = f32(f64(%g[c]) / f64(%d[c]))
    %y{c,i} = (%x[c, i] - %m[c]) * %y.scale[c] + %b[c]

    Where %x is a sum of products into whose weights the scale can go, all of them become
    `%x[c, i] * %y.scale[c] + %y.shift[c]`.
    """
    found = _affine_nest(n, editor)
    if isinstance(found, Reason):
        return found
    assert isinstance(n, Nest)
    whole, nests, before = found
    steps = _distributed(whole, editor)
    why = steps if isinstance(steps, Reason) else None
    if isinstance(steps, Reason | None) or not (nests or len(steps) < before):
        steps = joined_scales(whole.steps, editor)
        if before <= Affine(whole.x, steps).operations:
            return why or Reason(f"{before} operations are not more than {len(steps)}")
    new: list[Node] = []
    outlined: list[Step] = []
    for s in steps:
        kind = "shift" if s.op == "add" else "scale"
        by = _outlined(s.by, f"{n.out.name}.{kind}", n, new, editor)
        if isinstance(by, Reason):
            return by
        outlined.append(Step(s.op, by))
    origin = merge_origins(*reversed(nests), n)
    return (*new, replace(n, body=(follow(whole.x, outlined),), origin=origin))


@rounds(
    changes="A factor moves from a sum of products into its constant weights.",
    refused="Scaled weights leave the range of exponents that the budget allows.",
)
@matches("elementwise")
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
    known = _form(n, editor)
    if known is None or not known.affine.steps:
        return Reason("it does not scale by a constant")
    form = known.affine
    scale = factor_of(form.steps[0], editor)
    if scale is None:
        return Reason("it does not begin with a scale by normal numbers")
    product = _scaled_sum(form.x, n, editor)
    if isinstance(product, Reason):
        return product
    product = replace(product, origin=merge_origins(product, n))
    folded = _into_weights(product, form.x, scale, editor)
    if isinstance(folded, Reason):
        return folded
    return (*folded, replace(n, body=(follow(form.x, form.steps[1:]),)))


@rounds(
    changes="Constant factors of a sum's terms are one, rounded once.",
    refused="Their product is not finite, or underflows.",
)
@matches("reduction")
def join_weights(n: Node, editor: Editor) -> Result:
    """Of several constant factors of a product, the smaller ones go into a larger one.

    %y{n,o} = sum{c} %x[n, c] * %s[c] * %w[o, c]
    ->
    %w.scaled{c,o} = %w[o, c] * %s[c]
    %y{n,o} = sum{c} %x[n, c] * %w.scaled[o, c]
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    parts = factors(n.body[0])
    if len(parts) < 3 or n.out.dtype not in WIDE:
        return Reason("not a product of three factors")
    why = Reason("no factor is constant")
    for i, part in enumerate(parts):
        if not is_constant(part, editor):
            continue
        others = replace(n, body=(product_of([*parts[:i], *parts[i + 1 :]]),))
        folded = _into_weights(others, None, part, editor)
        if not isinstance(folded, Reason):
            return folded
        why = folded
    return why


# -- recognition --------------------------------------------------------------------------------
@record
class _Form:
    """An elementwise nest as steps around a read, and how many operations it has."""

    affine: Affine
    operations: int


def _form(n: Nest, editor: Editor) -> _Form | None:
    """The form of an elementwise nest, which others ask for as well; None if it has none."""
    key = n.out.name
    if key not in editor.found:
        affine = affine_of(n.body[0], editor)
        made = None if affine is None else _Form(affine, sum(map(_operations, n.body)))
        editor.found[key] = made
    form = editor.found[key]
    assert form is None or isinstance(form, _Form)
    return form


def _affine_nest(n: Node, editor: Editor) -> tuple[Affine, tuple[Nest, ...], int] | Reason:
    """(a nest as steps around a read, the nests before it that are such steps too, operations)."""
    if not isinstance(n, Nest) or n.reducer is not None or n.out.dtype not in WIDE:
        return Reason("not elementwise in f32 or f64")
    nests, last = list[Nest](), n
    form = _form(n, editor)
    if form is None or not form.affine.steps:
        return Reason("not a scale and shift by constants")
    found, operations = form.affine, form.operations
    while len(found.steps) < MOST_STEPS and (before := editor.nest(found.x.value)) is not None:
        if before.reducer is not None or before.out.dtype not in WIDE:
            break
        if not editor.is_read_once(before.out.name, last) or found.x.fill is not None:
            break
        inner = _form(before, editor)
        if inner is None or not inner.affine.steps:
            break
        at = _at(inner.affine, found.x)
        found, last = Affine(at.x, at.steps + found.steps), before
        nests.append(before)
        operations += inner.operations
    return found, tuple(nests), operations


def _at(inner: Affine, place: Read) -> Affine:
    """What a nest computes where it is read: over the reader's dims."""
    if reads_at_point(place):
        return inner
    env = dict(index_coords(place))
    x = substitute(inner.x, env)
    assert isinstance(x, Read)
    return Affine(x, tuple([Step(s.op, substitute(s.by, env)) for s in inner.steps]))


def _scaled_sum(x: Read, reader: Nest, editor: Editor) -> Nest | Reason:
    """The sum of products that `x` reads, if `reader` alone needs it."""
    n = editor.nest(x.value)
    if n is None or not n.is_sum:
        return Reason(f"%{x.value} is no sum")
    if not editor.is_read_once(x.value, reader):
        return Reason(f"%{x.value} has another reader")
    return n


# -- rewriting ----------------------------------------------------------------------------------
def _distributed(a: Affine, editor: Editor) -> tuple[Step, ...] | Reason | None:
    """The steps as a scale that can go into the weights of the sum before them, and a shift.

    None if there is no sum before them.
    """
    product = editor.nest(a.x.value)
    if product is None or not product.is_sum:
        return None
    if len(editor.readers(a.x.value)) != 1 or editor.is_output(a.x.value):
        return Reason(f"%{a.x.value} has another reader")
    scale, shift = scale_and_shift(a)
    why = Reason("no factor is a constant")
    for w in weights_of(product, editor):
        refused = w if isinstance(w, Reason) else _refused_shift(a, w, editor)
        if refused is None and scale is not None:
            folded = _into_weights(product, a.x, scale, editor)
            refused = folded if isinstance(folded, Reason) else None
        if refused is None:
            scales = () if scale is None else (Step("mul", scale),)
            return scales if shift is None else (*scales, Step("add", shift))
        why = refused
    return why


def _refused_shift(a: Affine, w: Weights, editor: Editor) -> Reason | None:
    """Why the shifts of steps behind a sum cannot all be added at their end."""
    # The shift at the end may vary over more than the weights.
    *steps, last = a.steps
    if last.op == "add":
        last = Step("add", Lit(0.0, last.by.dtype))
    over = [_over_weights(s.by, a.x, w) for s in (*steps, last)]
    known = [Step(s.op, by) for s, by in zip((*steps, last), over, strict=True) if by is not None]
    if len(known) < len(over):
        return Reason(f"a step varies over more than %{w.const.out.name}")
    found = slope_and_offset(known, w.const.axes, editor)
    if found is None:
        return Reason("the constants are too many, or read at symbolic coordinates")
    slope, offset = found
    if not is_representable(slope, w.read.dtype):
        return Reason(f"the product of its scales is no normal number of {w.read.dtype}")
    return over_budget(cost_of_shifting(w, offset, editor), w.read.dtype)


def _over_weights(e: Expr, x: Read | None, w: Weights) -> Expr | None:
    """An expression of the reader of a sum, or of its terms, over the dims of the weights."""
    inner = e if x is None else _rebased(e, _inverse(x))
    return None if inner is None else _rebased(inner, _inverse(w.read))


def _into_weights(
    n: Nest, x: Read | None, scale: Expr, editor: Editor
) -> tuple[Nest, Nest] | Reason:
    """New weights and a sum, for the sum of products `n` that is scaled where `x` reads it.

    Without `x`, the scale is one of the terms themselves.
    """
    why = Reason("no factor is a constant")
    for w in weights_of(n, editor):
        if isinstance(w, Reason):
            why = w
            continue
        own = _over_weights(scale, x, w)
        if own is None:
            why = Reason(f"the scale varies over more than %{w.const.out.name}")
            continue
        by = elements(own, w.const.axes, editor)
        if by is None:
            why = Reason("the scale has too many elements, or a symbolic number")
            continue
        cost = cost_of_joining(w, by) if x is None else cost_of_scaling(w, by)
        refused = over_budget(cost, w.read.dtype)
        if refused is None:
            return _with_weights(w, own, editor)
        why = refused
    return why


def _with_weights(w: Weights, scale: Expr, editor: Editor) -> tuple[Nest, Nest]:
    """The constant times `scale`, and the sum that reads it instead."""
    c, read = w.const, w.read
    base = c.out.name if c.out.name.endswith(".scaled") else f"{c.out.name}.scaled"
    name = editor.fresh_value(base)
    element = at_point(c.out)
    scaled = Value(name, read.dtype, c.out.dims)
    origin = merge_origins(c, w.sum)
    weights = Nest((scaled,), (), None, (apply("mul", element, scale),), origin)
    parts = factors(w.sum.body[0])
    parts[w.position] = replace(read, value=name)
    return weights, replace(w.sum, body=(product_of(parts),))


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


def _outlined(e: Expr, name: str, n: Nest, new: list[Node], editor: Editor) -> Expr | Reason:
    """A constant expression as one read, its nest appended to `new`."""
    plain = e.args[0] if isinstance(e, Apply) and e.op == "neg" else e
    if isinstance(plain, Lit | Read):
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
    value = Value(editor.fresh_value(name, new), e.dtype, dims)
    new.append(Nest((value,), (), None, (e,), n.origin))
    return at_point(value)


def _operations(e: Expr) -> int:
    return sum(isinstance(x, Apply) for x in walk(e))
