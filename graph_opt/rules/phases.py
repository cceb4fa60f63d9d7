"""Sums that keep every K-th tap are sums over those taps [Shi et al. 2016, §3]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import TypeVar

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import produced, quantised
from rutc.tensor_ir import Apply, DType, Expr, Index, IndexValue, Lit, Nest, Node, Read, apply
from rutc.tensor_ir.expr import map_index, substitute, walk
from rutc.tensor_ir.indices.affine import ZERO, Mod, floordiv, mod
from rutc.tensor_ir.terms import factors

C = TypeVar("C")

MOST_PHASES = 16
"""Sums that one sum may become."""


@matches("reduction")
def solve_phase(n: Node, editor: Editor) -> Result:
    """A condition that only one phase of a bound dim meets picks that phase.

    %y{j} = sum{k} select(index((j - k) % 2) == 0, %x[i=(j - k) // 2 else 0], 0) * %w[k]
    ->
    %y{j} = sum{k_o} %x[i=j // 2 - k_o else 0] * %w[k=2*k_o + j % 2]

    A transposed convolution is one such sum: its stride is the number of phases. The terms that go
    are 0 unless a weight is infinite or NaN. Where phases have different numbers of taps, as three
    of two have, each is a sum of its own:

    %y.0{q} = sum{k_o} %x[i=q - k_o else 0] * %w[k=2*k_o]
    %y.1{q} = %x[i=q else 0] * %w[k=1]
    %y{j} = select(index(j % 2) == 0, %y.0[q=j // 2 else 0], %y.1[q=j // 2 else 0])

    A condition that no bound dim is in, as that of a single tap, leaves phases without any:

    %y{j} = sum{c} select(index(j % 2) == 0, %x[c, i=j // 2], 0) * %w[c]
    ->
    %y.0{q} = sum{c} %x[c, i=q] * %w[c]
    %y{j} = select(index(j % 2) == 0, %y.0[q=j // 2 else 0], 0)
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    solved = _solved(n, editor)
    if isinstance(solved, Reason):
        return solved
    if isinstance(solved, Nest):
        return (solved,)
    return _joined(n, solved, editor)


@matches("reduction")
def solve_quantised_phase(n: Node, editor: Editor) -> Result:
    """The same of products of quantised numbers, which are summed as integers then.

    %a{i} = f32(%q[i]) * 0.5
    %b{k} = f32(%w[k]) * 0.1
    %y{j} = sum{k} select(index((j - k) % 2) == 0, %a[i=(j - k) // 2 else 0], 0) * %b[k]
    ->
    %y{j} = sum{k_o} %a[i=j // 2 - k_o else 0] * %b[k=2*k_o + j % 2]

    What else is multiplied waits until scales are in its weights.
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    parts = [_whichever(e) for e in factors(n.body[0])]
    if any(quantised(e) is None and produced(e, editor) is None for e in parts):
        return Reason("a factor is no quantised number")
    return solve_phase(n, editor)


def _whichever(e: Expr) -> Expr:
    """What an expression is where all its conditions are met that choose it or 0."""
    found = _chosen_by_zero(e)
    return e if found is None else _whichever(found[1])


@matches("reduction")
def solve_place(n: Node, editor: Editor) -> Result:
    """A condition that only one index of a bound dim meets picks that index.

    %y{j} = sum{k} select(index(j - k) == 0, %x[], 0) * %w[k]   ->   %y{j} = %x[] * %w[k=j]
    for extent(j) <= extent(k).

    So are windows over a picture of one pixel. The terms that go are 0 unless a weight is infinite
    or NaN.
    """
    if not isinstance(n, Nest) or not n.is_sum:
        return Reason("not a sum")
    why = Reason("no factor is chosen by a place")
    for condition, k, chosen in _chosen_factors(n, _chosen_by_zero):
        at = _solution(condition, k)
        if at is None:
            continue
        if not _is_index_of(at, k, editor):
            why = Reason(f"{k} may be no index at {at}")
            continue
        whole = replace(n, body=(chosen,))
        return (_with_phase(whole, k, at, 1, 1, editor),)
    return why


def _chosen_factors(
    n: Nest, chosen_by: Callable[[Expr], tuple[C, Expr] | None]
) -> Iterator[tuple[C, str, Expr]]:
    """Yields for each factor that a condition chooses, and each bound dim: that, and the product.

    The factor in it is the one that is chosen then.
    """
    for condition, product in _chosen(n.body[0], chosen_by):
        for k in n.bound:
            yield condition, k, product


def _chosen(
    e: Expr, chosen_by: Callable[[Expr], tuple[C, Expr] | None]
) -> Iterator[tuple[C, Expr]]:
    """The same for each factor. Others are multiplied with each other as before."""
    match e:
        case Apply("mul", (a, b)):
            yield from ((c, apply("mul", kept, b)) for c, kept in _chosen(a, chosen_by))
            yield from ((c, apply("mul", a, kept)) for c, kept in _chosen(b, chosen_by))
        case _ if (found := chosen_by(e)) is not None:
            yield found


def _solution(e: Index, k: str) -> Index | None:
    """Where `e` is 0, as an index of k that is found without a remainder."""
    step = e.coefficient(k)
    if not step:
        return None
    rest = Index.of(k) * step - e
    numbers = (rest.const, *(c for _, c in rest.terms))
    if k in rest.names() or any(c % step for c in numbers):
        return None
    return Index(tuple((a, c // step) for a, c in rest.terms), rest.const // step)


def _is_index_of(at: Index, dim: str, editor: Editor) -> bool:
    """Whether a place, of dims alone, is always below the extent of a dim, and never negative."""
    if not at.names() <= editor.extents.keys():
        return False
    extent, sizes = editor.size((dim,)), {d: editor.size((d,)) for d in at.names()}
    if not extent or not all(sizes.values()):
        return False
    bounds = at.bounds({d: (0, size - 1) for d, size in sizes.items() if size})
    return bounds is not None and bounds[0] >= 0 and bounds[1] < extent


@record
class _Uneven:
    """A sum of which `dim`, in its phases, takes different numbers of taps along `k`.

    Without a k it takes all of its terms in phase 0, and none in others.
    """

    product: Expr
    k: str | None
    dim: str
    phase: Index
    phases: int


def _solved(n: Nest, editor: Editor) -> Nest | _Uneven | Reason:
    """The sum of one phase's taps, or which dim's phases have different numbers of them."""
    why = Reason("no factor is chosen by a remainder")
    for condition, k, chosen in _chosen_factors(n, _chosen_by_remainder):
        extent, sign = editor.extents[k], condition.num.coefficient(k)
        phases, named = condition.den.const, condition.num.names()
        alone = "" if named & set(n.bound) else _split_dim(n, named)
        if alone:
            return _Uneven(chosen, None, alone, condition.num, phases)
        if sign is None or sign % phases not in (1, phases - 1):
            continue
        if not extent.is_const:
            why = Reason(f"the extent {extent} of {k} is not known")
            continue
        rest = condition.num - Index.of(k) * sign
        phase = mod(rest if sign % phases == phases - 1 else -rest, condition.den, {})
        if extent.const % phases == 0:
            whole = replace(n, body=(chosen,))
            return _with_phase(whole, k, phase, phases, extent.const // phases, editor)
        if dim := _split_dim(n, rest.names()):
            return _Uneven(chosen, k, dim, phase, phases)
        why = Reason(f"the extent {extent} of {k} is not a multiple of {phases}")
    return why


def _split_dim(n: Nest, named: frozenset[str]) -> str:
    """The one dim whose phases these names tell, if it may have a sum for each; else ""."""
    dim = next(iter(named)) if len(named) == 1 else ""
    splits = dim in n.out.dims and len(n.outs) == 1 and _phases(n.body[0]) <= MOST_PHASES
    return dim if splits else ""


def _joined(n: Nest, first: _Uneven, editor: Editor) -> tuple[Node, ...]:
    """A sum for each phase of all dims that are uneven, and the nest that puts them together."""
    sums: list[Node] = []

    def leaf(part: Nest, coords: Mapping[str, Index]) -> Expr:
        """The read of a sum whose dims are where `coords` of the whole one's say."""
        solved = _solved(part, editor) if part.reducer is not None else Reason("one term")
        if isinstance(solved, Nest):
            return leaf(solved, coords)
        if isinstance(solved, _Uneven):
            return split(part, solved, coords)
        sums.append(part)
        at = sorted((d, coords.get(d, Index.of(d))) for d in part.out.dims)
        # Other phases may go on for longer.
        return Read(part.out.name, tuple(at), part.out.dtype, _zero(part.out.dtype))

    def split(whole: Nest, how: _Uneven, coords: Mapping[str, Index]) -> Expr:
        many, extent = Index.of(how.phases), editor.extents[how.dim]
        found: list[Expr] = []
        for r in range(how.phases):
            count = floordiv(extent + (how.phases - 1 - r), many, {})
            if count == ZERO:
                found.append(_zero(whole.out.dtype))
                continue
            inner = editor.fresh_dim(f"{how.dim}_o", count)
            part = _of_phase(whole, how, inner, r, editor)
            at = {**coords, inner: floordiv(Index.of(how.dim), many, {})}
            found.append(_zero(whole.out.dtype) if part is None else leaf(part, at))
        chosen = found[-1]
        for r in reversed(range(how.phases - 1)):
            here = apply("eq", IndexValue(mod(Index.of(how.dim), many, {})), Lit(r, DType.I64))
            chosen = apply("select", here, found[r], chosen)
        return chosen

    body = split(n, first, {})
    return (*sums, Nest(n.outs, (), None, (body,), n.origin))


def _zero(dtype: DType) -> Lit:
    return Lit(0.0 if dtype.is_float else 0, dtype)


def _of_phase(n: Nest, how: _Uneven, inner: str, r: int, editor: Editor) -> Nest | None:
    """The sum at every `phases`-th index of a dim, from `r` on, over the taps that count there.

    None if none do.
    """
    at = Index.of(inner) * how.phases + r
    first = editor.simplify(mod(how.phase.subs({how.dim: at}), Index.of(how.phases), {}))
    extent = 1 if how.k is None else editor.extents[how.k].const
    taps = -(-(extent - first.const) // how.phases)
    if taps <= 0:
        return None
    dims = tuple(sorted(inner if d == how.dim else d for d in n.out.dims))
    out = replace(n.out, name=editor.fresh_value(f"{n.out.name}.{r}"), dims=dims)
    there = substitute(how.product, {how.dim: at})
    part = replace(n, outs=(out,), body=(there,))
    if how.k is None:
        return replace(part, body=(map_index(there, editor.simplify),))
    return _with_phase(part, how.k, first, how.phases, taps, editor)


def _phases(e: Expr) -> int:
    """The phases of all that remainders choose in an expression."""
    found = filter(None, map(_chosen_by_remainder, walk(e)))
    return prod(condition.den.const for condition, _ in found)


def _chosen_by_remainder(e: Expr) -> tuple[Mod[Index], Expr] | None:
    """(a % K, x) of `select(index(a % K) == 0, x, 0)`."""
    found = _chosen_by_zero(e)
    match found:
        case (Index(terms=(((Mod() as m,), 1),), const=0), kept) if m.den.is_const:
            return m, kept
        case _:
            return None


def _chosen_by_zero(e: Expr) -> tuple[Index, Expr] | None:
    """(a, x) of `select(index(a) == 0, x, 0)`."""
    match e:
        case Apply(
            op="select", args=(Apply(op="eq", args=(IndexValue(a), zero)), kept, Lit() as other)
        ) if zero == Lit(0, DType.I64) and other.value == 0:
            return a, kept
        case _:
            return None


def _with_phase(n: Nest, k: str, phase: Index, phases: int, count: int, editor: Editor) -> Nest:
    """`n` over the `count` indices k = phases * k_o + phase only."""
    left = tuple(d for d in n.bound if d != k)
    at = phase
    if count > 1:
        outer = editor.fresh_dim(f"{k}_o", Index.of(count))
        left = tuple(outer if d == k else d for d in n.bound)
        at = phase + Index.of(outer) * phases
    body = map_index(substitute(n.body[0], {k: at}), editor.simplify)
    return replace(n, bound=left, body=(body,), reducer=n.reducer if left else None)
