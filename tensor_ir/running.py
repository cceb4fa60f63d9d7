"""Running reductions: of all elements up to each one along a loop, or from each one on.

    y{m} = sum{k} x[m - k else 0]      as long as x is, for every m of x[0], x[1], .., x[m]

Each takes in one element more than the one before, so that a kernel need not begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rutc.base.record import record
from rutc.tensor_ir.expr import (
    Expr,
    IndexValue,
    Read,
    index_names,
    reads,
    substitute,
    transform,
    walk,
)
from rutc.tensor_ir.indices.affine import Index, Range, Size
from rutc.tensor_ir.interpreter.evaluate import evaluate_expr, literal
from rutc.tensor_ir.nodes import Nest
from rutc.tensor_ir.reducer import Reducer, as_locals

MANY = 1 << 62
"""Iterations of a loop whose number has no bound."""


@record
class Prefix:
    """A reduction over `bound` of what lies at m - k for the loop m, `along`, or m + k if `back`.

    `elements` are what it takes in at m: those of which k is 0.
    """

    bound: str
    along: str
    back: bool
    elements: tuple[Expr, ...]


def running(
    reducer: Reducer,
    elements: tuple[Expr, ...],
    bound: str,
    free: Iterable[str],
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range],
    extent_of: Callable[[Read, str], Size],
) -> Prefix | None:
    """What a reduction over `bound` is where it is a running one along one of the free loops.

    `extents` are those of the loops, and `extent_of` that of a dim of what is read.
    """
    if not any(r.fill is not None for e in elements for r in reads(e)):
        return None
    step = Index.of(bound)
    for m in free:
        for back in (False, True):
            shift = {m: Index.of(m) - step if back else Index.of(m) + step}
            at = tuple(substitute(e, shift) for e in elements)
            if any(bound in index_names(e) for e in at):
                continue
            n, taken = Index.of(extents[m]), Index.of(extents[bound])
            # What lies before the first element or after the last one, and what is not taken in.
            away = (n + step, taken + step) if back else (-1 - step, n - 1 - taken - step)
            beyond = (tuple(substitute(e, {m: a}) for e in at) for a in away)
            if all(_adds_nothing(reducer, e, extents, symbols, extent_of) for e in beyond):
                return Prefix(bound, m, back, at)
    return None


def running_nest(nest: Nest, extent: Callable[[str], Size]) -> Prefix | None:
    """What a nest reduces where it is a running reduction; None for any other.

    `extent` gives that of a dim, at the sizes that are asked about.
    """
    if nest.reducer is None or len(nest.bound) != 1:
        return None
    loops = {d: extent(d) for d in nest.dims}
    body, (bound,), free = nest.body, nest.bound, nest.out.dims
    return running(nest.reducer, body, bound, free, loops, {}, lambda _, d: extent(d))


def _adds_nothing(
    reducer: Reducer,
    elements: tuple[Expr, ...],
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range],
    extent_of: Callable[[Read, str], Size],
) -> bool:
    """Whether elements are the reducer's identity, as all that they read lies outside."""
    ranges = dict(symbols)
    for v, extent in extents.items():
        most = Index.of(extent).bounds(symbols)
        ranges[v] = (0, max(most[1] - 1, 0) if most is not None else MANY)

    def is_outside(r: Read) -> bool:
        for d, c in r.coords:
            if not isinstance(c, Index):
                continue
            low, high = c.bounds(ranges), (c - extent_of(r, d)).bounds(ranges)
            if (low is not None and low[1] < 0) or (high is not None and high[0] >= 0):
                return True
        return False

    def filled(x: Expr) -> Expr:
        return x.fill if isinstance(x, Read) and x.fill is not None and is_outside(x) else x

    known = tuple(transform(e, filled) for e in elements)
    if any(isinstance(x, Read | IndexValue) for e in known for x in walk(e)):
        return False
    env = as_locals(x=[evaluate_expr(e, {}, {}) for e in known])
    pairs = zip(reducer.lift, reducer.identity, strict=True)
    return all(evaluate_expr(e, env, {}) == literal(identity) for e, identity in pairs)
