"""Softmax and moments with less work: fewer passes over a row, fewer divisions.

Two passes over a row become one: a maximum and a sum, a mean and its variance. Which is faster
depends on whether a row stays in a near cache between two passes, so these rules take the size from
which a row counts as long. Probabilities that only weigh a sum are divided after it.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_plain
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rounding import Change, over_budget, rounds
from rutc.graph_opt.sum_weights import WIDE
from rutc.tensor_ir import Apply, Expr, Index, Lit, Nest, Node, Read, Value, apply, reducer
from rutc.tensor_ir.expr import point, reads, substitute
from rutc.tensor_ir.indices.affine import floordiv
from rutc.tensor_ir.machine import COMMON, FEWEST_LANES, Machine

SAMPLES = 16
"""Elements of a long row whose mean is taken off before all others are looked at."""


@rounds(
    changes="A sum of exponentials is scaled whenever a larger element is found: one rounding "
    "more, each time. It is not made of partial sums: each of 16 to 64 lanes adds its share of a "
    "row in order.",
    refused="Never: of a row in random order, few elements are larger than all before them.",
)
@matches("reduction")
@record
class OnePassSoftmax:
    """The maximum of a row and the sum of exponentials relative to it are found together.

    %m{b} = max{i} %x[b, i]
    %e{b,i} = exp(%x[b, i] - %m[b])
    %z{b} = sum{i} %e[b, i]
    %y{b,i} = %e[b, i] / %z[b]
    ->
    %m{b}, %z{b} = logsumexp{i} %x[b, i]
    %e{b,i} = exp(%x[b, i] - %m[b])
    %y{b,i} = %e[b, i] / %z[b]

    A row of nothing but -inf has a sum of 0 in one pass and NaN in two. So all readers of the sum
    must divide such an exponential by it (NaN in both cases).
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The maximum's nest as one that finds the sum too."""
        if not isinstance(n, Nest) or not reduces(n, "sum"):
            return Reason("not a sum in f32 or f64")
        difference = exponent_of(n.body[0], editor)
        if difference is None:
            return Reason("not a sum of exponentials of a difference")
        x, m = difference
        top = editor.nest(m.value)
        if top is None or not reduces(top, "max"):
            return Reason("no maximum is subtracted")
        if editor.block(top) != editor.block(n):
            return Reason("the maximum is computed outside of this body")
        if not is_over_rows(top, m, n.bound, x, editor):
            return Reason("the maximum is not that of the summed row")
        if _row_bytes(n, editor) <= self.machine.l2 // 2:
            return Reason("the row is short: a second pass finds it in the cache")
        if editor.is_output(n.out.name) or not all(
            _divides(r, n.out.name, m.value, editor) for r in editor.readers(n.out.name)
        ):
            return Reason("the sum is used for more than dividing the exponentials")
        how = reducer("logsumexp", n.out.dtype)
        origin = merge_origins(top, n)
        return (Nest((top.out, n.out), top.bound, how, top.body, origin),)


@rounds(
    changes="Mean and variance are moved from element to element, relative to the mean of 16 of "
    "them: a bit where that is a few deviations off. Beside an infinity, what an element is off "
    "the mean is NaN, and not infinite.",
    refused="The mean is used for more than differences from it. Elements far from zero cost "
    "nothing, only 16 that stand for no others do.",
)
@matches("elementwise")
@record
class OnePassMoments:
    """The mean of a row and the mean of its squared deviations are found together.

    %s{b} = sum{i} %x[b, i]
    %m{b} = %s[b] * 0.125
    %q{b} = sum{i} (%x[b, i] - %m[b]) * (%x[b, i] - %m[b])
    %v{b} = %q[b] * 0.125
    ->
    %m.near{b} = sum{j} %x[b, i=8*j // 4] * 0.25
    %m.rest{b}, %v{b} = moments{i} %x[b, i] - %m.near[b]
    %m{b} = %m.near[b] + %m.rest[b]

    A mean that is moved by less than its last digit does not move, so what all elements have in
    common is taken off first: about that, as the mean of a few tells. An infinite element makes NaN
    of such a mean, so all readers of the mean must subtract it.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The mean's nest as one that finds the variance too."""
        found = _mean(n, editor)
        if found is None:
            return Reason("not a mean in f32 or f64")
        squares, _ = found
        assert isinstance(n, Nest)
        deviation = _squared_difference(squares.body[0], editor)
        if deviation is None:
            return Reason("not a mean of squared differences")
        x, m = deviation
        center = editor.nest(m.value)
        mean = _mean(center, editor) if center is not None else None
        if mean is None or center is None:
            return Reason("no mean is subtracted")
        total, of = mean
        if editor.block(center) != editor.block(n) or n.out.dims != center.out.dims:
            return Reason("the mean is computed elsewhere")
        if not _is_read_in_place(found[1]) or not _is_read_in_place(of):
            return Reason("the sums are read with other dims")
        if not is_over_rows(total, m, squares.bound, x, editor):
            return Reason("the mean is not that of the squared row")
        if _row_bytes(squares, editor) <= self.machine.l2 // 2:
            return Reason("the row is short: a second pass finds it in the cache")
        if editor.is_output(m.value) or not all(
            _subtracts(r, m.value) for r in editor.readers(m.value)
        ):
            return Reason("the mean is used for more than differences from it")
        origin = merge_origins(total, center, squares, n)
        return _around_samples(center, total, replace(n, origin=origin), editor)


def _around_samples(center: Nest, total: Nest, n: Nest, editor: Editor) -> tuple[Node, ...]:
    """The nests of a row's mean and variance, relative to the mean of a few of its elements."""
    name, dtype, dims = center.out.name, n.out.dtype, center.out.dims
    extents = {d: editor.extents[d] for d in total.bound}
    count = Index.of(SAMPLES)
    number = editor.fresh_dim(f"{name}.sample", count)
    at = {d: floordiv(Index.of(number) * e, count, editor.ranges) for d, e in extents.items()}
    sample = apply("mul", substitute(total.body[0], at), Lit(1.0 / SAMPLES, dtype))
    near = Value(editor.fresh_value(f"{name}.near"), dtype, dims)
    rest = Value(editor.fresh_value(f"{name}.rest"), dtype, dims)
    moved = apply("sub", total.body[0], at_point(near))
    mean = apply("add", at_point(near), at_point(rest))
    return (
        Nest((near,), (number,), total.reducer, (sample,), n.origin),
        Nest((rest, n.out), total.bound, reducer("moments", dtype), (moved,), n.origin),
        Nest(center.outs, (), None, (mean,), n.origin),
    )


@rounds(
    changes="Sums of exponentials times values are divided, not the exponentials: products are "
    "larger by the divisor, which is at most the number of elements.",
    refused="The divisor is no sum of exponentials of which the largest is 1; rows may be longer "
    "than 2**24.",
)
@matches("reduction")
def divide_later(n: Node, editor: Editor) -> Result:
    """Where probabilities weigh a sum, the sum is divided, not each of them.

    %e{b,i} = exp(%x[b, i] - %m[b])
    %z{b} = sum{i} %e[b, i]
    %p{b,i} = %e[b, i] / %z[b]
    %y{b,k} = sum{i} %p[b, i] * %v[i, k]
    ->
    %y.undivided{b,k} = sum{i} %e[b, i] * %v[i, k]
    %y{b,k} = %y.undivided[b, k] / %z[b]

    The maximum of its row being subtracted, no exponential is above 1 and one is 1. So the divisor
    lies between 1 and the number of elements. The attention of one pass divides there, too
    [Dao et al. 2022, §3.1].
    """
    if not isinstance(n, Nest) or not reduces(n, "sum"):
        return Reason("not a sum in f32 or f64")
    match n.body[0]:
        case Apply(op="mul", args=(Read() as p, v)) if _quotient(p, editor) is not None:
            pass
        case Apply(op="mul", args=(v, Read() as p)) if _quotient(p, editor) is not None:
            pass
        case _:
            return Reason("not a sum of products with a quotient")
    quotient = _quotient(p, editor)
    assert quotient is not None
    e, z = quotient
    if not editor.is_read_once(p.value, n):
        return Reason("the probabilities have another reader")
    at = dict(index_coords(p))
    divisor = substitute(z, at)
    if not isinstance(divisor, Read) or _names(divisor) & set(n.bound):
        return Reason("the divisor varies along the sum")
    if editor.typical(set(n.out.dims) - _names(p)) >= editor.typical(n.bound):
        return Reason("there are no fewer quotients after the sum")
    total = _total(z, editor)
    if total is None:
        return Reason("the divisor is no sum of a row's probabilities")
    most = editor.most(total.bound)
    if most is None:
        return Reason("the row's length has no bound")
    refused = over_budget(Change(top=log2(max(most, 1))), n.out.dtype)
    if refused is not None:
        return refused
    undivided = Value(editor.fresh_value(f"{n.out.name}.undivided"), n.out.dtype, n.out.dims)
    weighed = replace(n, outs=(undivided,), body=(apply("mul", substitute(e, at), v),))
    quotients = apply("div", at_point(undivided), divisor)
    return (weighed, Nest(n.outs, (), None, (quotients,), n.origin))


@rounds(
    changes="What is divided by a sum of exponentials is multiplied by its reciprocal: one "
    "rounding more.",
    refused="The largest exponential is not 1: the sum may be small or large.",
)
@matches("elementwise")
@record
class MultiplyByReciprocal:
    """What is divided by a row's sum of probabilities is multiplied by its reciprocal.

    %y{b,i} = %e[b, i] / %z[b]
    ->
    %z.reciprocal{b} = 1.0 / %z[b]
    %y{b,i} = %e[b, i] * %z.reciprocal[b]

    The maximum being subtracted, the sum is at least 1, so its reciprocal neither overflows nor
    loses digits.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The reciprocal's nest, and the products; or why not."""
        if not isinstance(n, Nest) or n.reducer is not None or n.out.dtype not in WIDE:
            return Reason("nothing is divided in f32 or f64")
        match n.body[0]:
            case Apply(op="div", args=(a, Read() as z)) if is_plain(z):
                pass
            case _:
                return Reason("nothing is divided by a value")
        fewest = FEWEST_LANES
        if editor.typical(set(n.out.dims) - _names(z)) < fewest:
            return Reason("few quotients have one divisor")
        total = _total(z, editor)
        if total is None:
            return Reason("the divisor is no sum of a row's probabilities")
        dims = next(v.dims for v in total.outs if v.name == z.value)
        out = Value(editor.fresh_value(f"{z.value}.reciprocal"), n.out.dtype, dims)
        inverse = apply("div", Lit(1.0, out.dtype), replace(z, coords=point(dims)))
        product = apply("mul", a, replace(z, value=out.name))
        return (Nest((out,), (), None, (inverse,), n.origin), replace(n, body=(product,)))


def _total(z: Read, editor: Editor) -> Nest | None:
    """The nest of which `z` reads a sum of exponentials, one of which at least is 1."""
    n = editor.nest(z.value)
    if n is None:
        return None
    if n.reducer is not None and n.reducer.name == "logsumexp":
        return n if z.value == n.outs[1].name else None
    difference = exponent_of(n.body[0], editor) if reduces(n, "sum") else None
    if difference is None:
        return None
    x, m = difference
    top = editor.nest(m.value)
    if top is None or not reduces(top, "max"):
        return None
    return n if is_over_rows(top, m, n.bound, x, editor) else None


def _names(r: Read) -> set[str]:
    return {v for _, c in index_coords(r) for v in c.names()}


def _quotient(p: Read, editor: Editor) -> tuple[Read, Read] | None:
    """(a, b) where the nest that `p` reads computes `a / b` of two plain reads."""
    n = editor.nest(p.value) if is_plain(p) else None
    if n is None or n.reducer is not None or n.out.dtype not in WIDE:
        return None
    match n.body[0]:
        case Apply(op="div", args=(Read() as a, Read() as b)) if is_plain(a) and is_plain(b):
            return a, b
        case _:
            return None


def reduces(n: Nest, name: str) -> bool:
    """Whether a nest is such a reduction, of f32 or f64."""
    return n.reducer is not None and n.reducer.name == name and n.out.dtype in WIDE


def _expanded(e: Expr, editor: Editor) -> Expr:
    """What an elementwise nest computes for the element `e`; any other expression itself."""
    n = editor.nest(e.value) if isinstance(e, Read) and is_plain(e) else None
    if not isinstance(e, Read) or n is None or n.reducer is not None:
        return e
    return substitute(n.body[0], dict(index_coords(e)))


def _difference(e: Expr, editor: Editor) -> tuple[Expr, Read] | None:
    """(x, m) of `x - m`, where m is read at plain coordinates."""
    match _expanded(e, editor):
        case Apply(op="sub", args=(x, Read() as m)) if is_plain(m):
            return x, m
        case _:
            return None


def exponent_of(e: Expr, editor: Editor) -> tuple[Expr, Read] | None:
    """(x, m) of `exp(x - m)`."""
    match _expanded(e, editor):
        case Apply(op="exp", args=(arg,)):
            return _difference(arg, editor)
        case _:
            return None


def _squared_difference(e: Expr, editor: Editor) -> tuple[Expr, Read] | None:
    """(x, m) of `(x - m) * (x - m)` or `pow(x - m, 2)`."""
    match _expanded(e, editor):
        case Apply(op="mul", args=(a, b)) if a == b:
            return _difference(a, editor)
        case Apply(op="pow", args=(a, Lit(2.0))):
            return _difference(a, editor)
        case _:
            return None


def _subtracts(reader: Node, value: str) -> bool:
    """Whether `reader` does nothing with a value but to subtract it."""
    if not isinstance(reader, Nest):
        return False

    def uses(e: Expr) -> bool:
        return any(r.value == value for r in reads(e))

    def subtracts(e: Expr) -> bool:
        match e:
            case Apply(op="sub", args=(x, Read(of))) if of == value:
                return not uses(x)
            case Apply(args=args):
                return all(map(subtracts, args))
            case _:
                return not uses(e)

    return all(map(subtracts, reader.body))


def _mean(n: Node, editor: Editor) -> tuple[Nest, Read] | None:
    """The sum that `n` divides by the number of its points, and its read in `n`."""
    if not isinstance(n, Nest) or n.reducer is not None:
        return None
    match n.body[0]:
        case Apply(op="mul", args=(Read() as r, Lit(factor))) if not isinstance(factor, str):
            share = float(factor)
        case Apply(op="div", args=(Read() as r, Lit(count))) if not isinstance(count, str):
            share = 1.0 / count if count else 0.0
        case _:
            return None
    total = editor.nest(r.value)
    if total is None or not reduces(total, "sum"):
        return None
    points = editor.size(total.bound)
    return (total, r) if points and abs(share * points - 1.0) < 1e-6 else None


def _is_read_in_place(r: Read) -> bool:
    return r.fill is None and all(isinstance(c, Index) and c.as_var == d for d, c in r.coords)


def is_over_rows(first: Nest, at: Read, bound: tuple[str, ...], x: Expr, editor: Editor) -> bool:
    """Whether `first`, read by `at`, reduces the row of elements `x` along the dims `bound`."""
    if len(first.bound) != len(bound):
        return False
    pairs = list(zip(sorted(first.bound), sorted(bound), strict=True))
    if any(editor.extents[a] != editor.extents[b] for a, b in pairs):
        return False
    if any(c.names() & set(bound) for _, c in index_coords(at)):
        return False
    env = dict(index_coords(at)) | {a: Index.of(b) for a, b in pairs}
    element = substitute(first.body[0], env)
    return element in (x, _expanded(x, editor))


def _row_bytes(n: Nest, editor: Editor) -> int:
    points = editor.size(n.bound)
    return (points or 0) * n.out.dtype.bytes


def _divides(reader: Node, total: str, top: str, editor: Editor) -> bool:
    """Whether `reader` is `exp(x - top) / total` or `(x - top) - log(total)`."""
    if not isinstance(reader, Nest) or reader.reducer is not None:
        return False
    match reader.body[0]:
        case Apply(op="div", args=(e, Read(value))) if value == total:
            found = exponent_of(e, editor)
        case Apply(op="sub", args=(e, Apply(op="log", args=(Read(value),)))) if value == total:
            found = _difference(e, editor)
        case _:
            return False
    return found is not None and found[1].value == top
