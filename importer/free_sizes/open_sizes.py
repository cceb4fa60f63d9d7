"""What a model itself says of the inputs' sizes whose range nobody stated.

Where two extents must be equal and one is such a size, it is what the other one is: the import
begins again with that (`SizeFoundError`), and the equality is known. A node that tells which values
a size can have is imported to its end first, as it may tell of others: of both sides of a picture.
In a run, an input of another size is refused. Nothing is concluded from what a branch or a loop
holds, which may not be run.

    Conv of x{n, c, ..} with 3 channels         c = 3
    keys {n, past} and {n, new} in a row of n' = total positions        total = past + new
    seq words plus what a cut leaves of total positions, from past on   total = past + seq
    a text of seq words plus the first min(512, seq) rows of a table    seq <= 512
    (h + 15) // 48 rows of w columns, reshaped to one row of w          33 <= h <= 80
    n * b rows, reshaped to 10 for each of b        n = 10
    a window of 8 rows inside of (h + 3) // 4 rows      29 <= h
    x{h} beside itself halved, h upwards rounded, and doubled           h = 2, 4, 6, ..
    ceil(f32(h) / 2.0) rows         h <= 2^24, from where on f32 leaves numbers out
    n rows [1000 - t : 999 + t] of 1999, of which t = n // 2 + 1    t <= 1000
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.importer.building.nest_builder import NestBuilder
from rutc.importer.free_sizes.pieces import by_pieces
from rutc.importer.free_sizes.solutions import Solutions, reach, solutions
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.affine import (
    ONE,
    ZERO,
    Max,
    Min,
    Range,
    Var,
    floordiv,
    maximum,
    minimum,
)
from rutc.tensor_ir.indices.division import extreme_operands


class SizeFoundError(Exception):
    """The model says what sizes are, or which values they can have."""

    def __init__(self, told: Mapping[str, Index | Solutions]) -> None:
        """What sizes are or which values they can have, by their symbols."""
        super().__init__(told)
        self.told = told


def end_if_told(b: NestBuilder) -> None:
    """Raises SizeFoundError where a node, which ends here, has told which values sizes can have."""
    if b.told:
        raise SizeFoundError(b.told)


def _note(b: NestBuilder, symbol: str, values: Solutions) -> None:
    """Keep what the node says of a size, which is the first that it says, until it ends."""
    b.told.setdefault(symbol, values)


def must_equal(b: NestBuilder, x: Index, y: Index) -> None:
    """Tell a size that nobody stated, where the equality of two extents does.

    Raises SizeFoundError where it is a formula of others.
    """
    if b.depth:
        return
    order = list(b.open_sizes)
    for p, q in sorted(((x, y), (y, x)), key=lambda pq: -_place(order, pq[0])):
        symbol = _open(b, p)
        if symbol is not None and symbol not in q.names() and b.bound.keys().isdisjoint(q.names()):
            times = p.as_multiple
            bounds = q.bounds(b.ranges)
            assert times is not None
            if bounds is not None and bounds[0] >= 0 and (times[0] == 1 or _divides(times[0], q)):
                b.told[symbol] = q // times[0]
                raise SizeFoundError(b.told)
    _solve(b, x, y)


def _solve(b: NestBuilder, x: Index, y: Index) -> None:
    """Tell of a size that nobody stated that x = y holds for some of its values only.

    What both sides have as a factor is taken to be none of a run's zeros. A size that was found to
    be one of two alike counts as the first of them.
    """
    x, y = first_of_alike(b, x, y)
    if not b.pieces.keys().isdisjoint((x - y).names()):
        _solve_pieces(b, x, y, spread=False)
        return
    apart = x - y
    for p, q in ((x, y), (y, x)):
        times = floordiv(p, q, b.ranges) if q != ZERO else ZERO
        if times * q == p:
            apart = times - ONE
    if apart.const == 0:
        apart = _without_common(apart)
    names = apart.names()
    symbol = next(iter(names), "")
    if len(names) == 1 and symbol in b.open_sizes:
        found = solutions(apart, symbol, b.ranges[symbol])
        if found is not None:
            _note(b, symbol, found)


def first_of_alike(b: NestBuilder, x: Index, y: Index) -> tuple[Index, Index]:
    """Two extents in which the first of two alike sizes stands for both."""
    while alike := {n: b.alike[n][0] for n in (x - y).names() if n in b.alike}:
        x, y = x.subs(alike), y.subs(alike)
    return x, y


def may_broadcast(b: NestBuilder, x: Index, y: Index) -> None:
    """Tell of a size that nobody stated in which pieces of its range x = y holds, or one is 1.

    What a cut leaves of one size from another on is as long as what it is combined with: that it
    is a single row, which is repeated, or that a single row is repeated for it, no model means.

    Raises SizeFoundError where the larger one is a sum of others by that.
    """
    if b.depth:
        return
    for rest, other in ((x, y), (y, x)):
        told = _whole_of(b, rest, other)
        if told is not None:
            b.told[told[0]] = told[1]
            raise SizeFoundError(b.told)
    if b.pieces:
        _solve_pieces(b, *first_of_alike(b, x, y), spread=True)


def _whole_of(b: NestBuilder, rest: Index, other: Index) -> tuple[str, Index] | None:
    """The size of which a cut from a place on leaves `rest`, and the sum that it is.

    max(0, total - min(past, total)) rows, as many as seq        total, past + seq
    """
    left = next((p for p in extreme_operands(rest, Max) if p != ZERO), ZERO)
    if left.const or maximum(left, 0, b.ranges) != maximum(rest, 0, b.ranges):
        return None
    match left.terms:
        case (((Var(symbol),), 1), ((Min(),), -1)) | (((Min(),), -1), ((Var(symbol),), 1)):
            pass
        case _:
            return None
    whole = Index.of(symbol)
    places = [p for p in extreme_operands(whole - left, Min) if p != whole]
    if len(places) != 1 or minimum(places[0], whole) != whole - left:
        return None
    parts = places[0] + other
    known = {symbol, *b.bound}.isdisjoint(parts.names())
    bounds = parts.bounds(b.ranges)
    least = bounds is not None and bounds[0] >= 0
    return (symbol, parts) if known and least and symbol in b.open_sizes else None


def _solve_pieces(b: NestBuilder, x: Index, y: Index, *, spread: bool) -> None:
    """Tell of an open size that x = y, one of which is a formula in pieces, holds in some of them.

    With `spread`, an extent of 1 is as good as the other one. But the row that a cut leaves which
    wraps around from one place alone is none: where x = y holds elsewhere, that place is refused.
    """
    found = by_pieces(x - y, b.pieces, b.ranges)
    if found is None or found[0] not in b.open_sizes:
        return
    symbol, parts = found
    equal = [met for part in parts if (met := _zeros(*part, symbol)) is not None]
    for one in (x, y) if spread else ():
        told = by_pieces(one - ONE, b.pieces, b.ranges)
        for part in told[1] if told is not None else [(b.ranges[symbol], one - ONE)]:
            met = _zeros(*part, symbol)
            if met is not None and not (told is not None and equal and _one_place(b, one, met)):
                equal.append(met)
    if equal:
        least, most = min(low for low, _ in equal), max(high for _, high in equal)
        if (least, most) != tuple(b.ranges[symbol]):
            _note(b, symbol, Solutions(least, most))


def _one_place(b: NestBuilder, x: Index, limits: Range) -> bool:
    """Whether the cuts that an extent in pieces follows from begin at one place for all values."""
    cuts = [b.pieces[n] for n in x.names() if n in b.pieces]
    ends = [c.place.bounds({**b.ranges, c.symbol: limits}) for c in cuts]
    return all(e is not None and e[0] == e[1] for e in ends)


def _zeros(limits: Range, x: Index, symbol: str) -> Range | None:
    """The least and the largest value of a size for which `x` may be zero; None if there is none.

    What all terms have as a factor is taken to be none of a run's zeros.
    """
    if x.const == 0:
        x = _without_common(x)
    return reach(x, symbol, limits) if x.names() <= {symbol} else limits


def _without_common(x: Index) -> Index:
    """A sum without the names that all its terms have: of 8*n*b - 80*b, 8*n - 80."""
    for name in sorted(x.names()):
        while x.const == 0 and x.terms and all(Var(name) in mono for mono, _ in x.terms):
            x = floordiv(x, Index.of(name), {})
    return x


def at_most(b: NestBuilder, x: Index, y: Index) -> None:
    """Tell of y, a size that nobody stated, that x = min(512, y) is equal to it."""
    if b.depth or y.as_var not in b.open_sizes or y.as_var is None:
        return
    least, largest = b.ranges[y.as_var]
    for most in (p.const for p in extreme_operands(x, Min) if p.is_const and p.const > 1):
        if minimum(most, y) == x and most < largest:
            _note(b, y.as_var, Solutions(least, most))
            return


def not_empty(b: NestBuilder, x: Index) -> None:
    """Tell of an open size that an extent is 0 or less for small values of it only.

    Those are taken out for which its bounds show that.
    """
    symbol = next(iter(x.names()), "")
    if b.depth or len(x.names()) != 1 or symbol not in b.open_sizes:
        return
    least, most = low, high = b.ranges[symbol]
    while low < high:
        middle = (low + high) // 2
        bounds = x.bounds({symbol: (least, middle)})
        if bounds is None:
            return
        low, high = (middle + 1, high) if bounds[1] < 1 else (low, middle)
    if low > least:
        _note(b, symbol, Solutions(low, most))


def not_above(b: NestBuilder, limits: Sequence[tuple[Index, int]], large: int) -> None:
    """Tell of an open size that each is at most its limit for small values of it only.

    Values of less than `large` are not.
    """
    names = {n for x, _ in limits for n in x.names()}
    symbol = next(iter(names), "")
    if b.depth or len(names) != 1 or symbol not in b.open_sizes:
        return
    low, high = least, largest = b.ranges[symbol]
    while low < high:
        middle = (low + high + 1) // 2
        bounds = [(x.bounds({symbol: (least, middle)}), most) for x, most in limits]
        holds = all(found is not None and found[1] <= most for found, most in bounds)
        low, high = (middle, high) if holds else (low, middle - 1)
    if large <= low < largest:
        _note(b, symbol, Solutions(least, low))


def _open(b: NestBuilder, x: Index) -> str | None:
    found = x.as_multiple
    return found[1] if found is not None and found[1] in b.open_sizes else None


def _place(order: list[str], x: Index) -> int:
    """Later sizes are told by earlier ones."""
    found = x.as_multiple
    return order.index(found[1]) if found is not None and found[1] in order else -1


def _divides(k: int, x: Index) -> bool:
    return x.is_const and x.const % k == 0
