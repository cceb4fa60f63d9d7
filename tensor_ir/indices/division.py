"""Quotients, remainders, minima and maxima of index expressions, in canonical and short forms.

Every rule holds for all integers, or for all values within the given ranges; with more known ranges
the same rules reach further. All divisors are positive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import gcd, lcm

from rutc.tensor_ir.indices.atoms import FloorDiv, Max, Min, Mod, Var
from rutc.tensor_ir.indices.polynomial import (
    ONE,
    ZERO,
    Atom,
    Compound,
    Index,
    Monomial,
    of_atom,
)
from rutc.tensor_ir.indices.quotients import below, is_sum, split_below, split_exact, without
from rutc.tensor_ir.indices.quotients import near_quotient as near_quotient
from rutc.tensor_ir.indices.ranges import Range

Ranges = Mapping[str, Range]

Extreme = type[Min[Index]] | type[Max[Index]]


def floordiv(a: Index, b: Index, ranges: Ranges) -> Index:
    """`a // b`, simplified where constants or ranges allow."""
    if b == ONE:
        return a
    if a.is_const and b.is_const:
        return Index.of(a.const // b.const)
    if a == b:
        return ONE
    if b.is_const:
        return floordiv(-a, -b, ranges) if b.const < 0 else _divide(a, b.const, ranges)
    if is_sum(b) and below(a, b, ranges):
        return ZERO
    whole, rest = split_exact(a, b)
    if rest == ZERO or below(rest, b, ranges):
        return whole
    parts = split_below(rest, b, ranges)
    if parts is not None:
        return whole + floordiv(parts.big, parts.times, ranges)
    return whole + of_atom(FloorDiv(rest, b))


def mod(a: Index, b: Index, ranges: Ranges) -> Index:
    """`a % b`, simplified where constants or ranges allow."""
    if b == ONE or a == b:
        return ZERO
    if a.is_const and b.is_const:
        return Index.of(a.const % b.const)
    if b.is_const:
        return -mod(-a, -b, ranges) if b.const < 0 else _remainder(a, b.const, ranges)
    if is_sum(b) and below(a, b, ranges):
        return a
    _, rest = split_exact(a, b)
    if rest == ZERO or below(rest, b, ranges):
        return rest
    parts = split_below(rest, b, ranges)
    if parts is not None:
        return mod(parts.big, parts.times, ranges) * parts.step + parts.small
    return of_atom(Mod(rest, b))


def minimum(a: Index | int, b: Index | int, ranges: Ranges | None = None) -> Index:
    """`min(a, b)`, without what the ranges show to be no smaller than another operand."""
    return _extreme(Index.of(a), Index.of(b), ranges or {}, Min)


def maximum(a: Index | int, b: Index | int, ranges: Ranges | None = None) -> Index:
    """`max(a, b)`, without what the ranges show to be no larger than another operand."""
    return _extreme(Index.of(a), Index.of(b), ranges or {}, Max)


def at_least(a: Index, b: Index, ranges: Ranges) -> bool:
    """Whether `maximum(a, b, ranges)` is `a`."""
    return all(
        any(_beats(k, x, ranges, Max) for k in extreme_operands(a, Max))
        for x in extreme_operands(b, Max)
    )


def simplify(x: Index, ranges: Ranges) -> Index:
    """An equal expression over the ranges, with fewer and smaller atoms.

    Variables of one value are replaced inside of atoms only: a coordinate that is a dim stays one.
    """
    if x.is_polynomial:
        return x
    return _simplified(x, tuple([(n, ranges[n]) for n in x.ordered_names() if n in ranges]))


@lru_cache(maxsize=1 << 14)
def _simplified(x: Index, known: tuple[tuple[str, Range], ...]) -> Index:
    """`x` simplified by the ranges of its own variables: operands recur in many expressions."""
    ranges = dict(known)
    found = _join(x.with_atoms(lambda a: _simplified_atom(a, ranges)), ranges)
    if not _has_far(found):
        return found
    near = _nearer(found, ranges)
    if near != found:
        near = simplify(near, ranges)
    return near if near.size() < found.size() else found


def joint_bounds(mono: Monomial, known: Range, ranges: Ranges) -> Range:
    """Bounds of a product, of which those by its factors' are known.

    A factor that depends on the variables beside it may bound it closer: n * (k // n) <= k, and
    n * min(a, b) is no more than n * a and n * b.
    """
    compound = [a for a in mono if not isinstance(a, Var)]
    if len(compound) != 1 or len(mono) == 1:
        return known
    (atom,) = compound
    if isinstance(atom, Mod) or (isinstance(atom, FloorDiv) and atom.den.is_const):
        return known
    rest = tuple(a for a in mono if a is not atom)
    times = Index(((rest, 1),))
    if any((b := of_atom(a).bounds(ranges)) is None or b[0] < 0 for a in rest):
        return known
    if isinstance(atom, FloorDiv):
        most = _most_shared(rest, atom.num, atom.den, ranges)
    else:
        found = atom.bounds_of((times * atom.a).bounds(ranges), (times * atom.b).bounds(ranges))
        most = found[1] if found is not None else None
    return known if most is None else (min(known[0], most), min(known[1], most))


def _most_shared(factors: Monomial, num: Index, den: Index, ranges: Ranges) -> int | None:
    """The most that a product of factors and of `num // den` may be, by factors of `den`."""
    total, most = num.bounds(ranges), None
    if total is None or total[1] < 0:
        return None
    for part in extreme_operands(den, Max):
        for m, k in part.terms:
            left, others = without(factors, m), (part - Index(((m, k),))).bounds(ranges)
            if k < 0 or left is None or others is None or others[0] < 0:
                continue
            by = Index(((left, 1),)).bounds(ranges) if left else (1, 1)
            if by is not None:
                found = by[1] * (total[1] // k)
                most = found if most is None else min(most, found)
    return most


# -- by constants -------------------------------------------------------------------------------
def _divide(a: Index, d: int, ranges: Ranges) -> Index:
    outside, inside = _split_multiples(a, d)
    known = _known_quotient(inside, d, ranges)
    if known is not None:
        return outside + known
    g = gcd(d, *(c for _, c in inside.terms))
    if g > 1:
        return outside + floordiv(_scaled_down(inside, g), Index.of(d // g), ranges)
    parts = _split_small(inside, d, ranges)
    if parts is not None:
        big, _, g = parts
        return outside + floordiv(big, Index.of(d // g), ranges)
    for mono, c in inside.terms:
        # (x // k + r) // d  ->  (x + k*r) // (k*d)
        if c == 1 and len(mono) == 1 and isinstance(mono[0], FloorDiv):
            inner = mono[0]
            if inner.den.is_const:
                rest = inside - of_atom(inner)
                return outside + floordiv(inner.num + inner.den * rest, inner.den * d, ranges)
    if len(inside.terms) == 1 and inside.const == 0:
        ((mono, c),) = inside.terms
        # (x % m) // d  ->  (x // d) % (m // d)   for m a multiple of d
        if c == 1 and len(mono) == 1 and isinstance(mono[0], Mod):
            num, den = mono[0].num, mono[0].den
            if den.is_const and den.const % d == 0:
                quotient = floordiv(num, Index.of(d), ranges)
                return outside + mod(quotient, Index.of(den.const // d), ranges)
    return outside + of_atom(FloorDiv(inside, Index.of(d)))


def _remainder(a: Index, d: int, ranges: Ranges) -> Index:
    _, inside = _split_multiples(a, d)
    known = _known_quotient(inside, d, ranges)
    if known is not None:
        return inside - known * d
    g = gcd(d, *(c for _, c in inside.terms))
    if g > 1:
        reduced = _scaled_down(inside, g)
        return mod(reduced, Index.of(d // g), ranges) * g + inside.const % g
    for mono, c in inside.terms:
        # (x % m + r) % d  ->  (x + r) % d   for m a multiple of d
        if len(mono) == 1 and isinstance(mono[0], Mod):
            inner = mono[0]
            if inner.den.is_const and c * inner.den.const % d == 0:
                unwrapped = inside - of_atom(inner) * c + inner.num * c
                return mod(unwrapped, Index.of(d), ranges)
    parts = _split_small(inside, d, ranges)
    if parts is not None:
        big, small, g = parts
        return mod(big, Index.of(d // g), ranges) * g + small
    return of_atom(Mod(inside, Index.of(d)))


def _split_multiples(a: Index, d: int) -> tuple[Index, Index]:
    """(q, r) with a = q*d + r, the coefficients of r below d and of their sign in a."""
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for m, c in a.terms:
        q = abs(c) // d * (1 if c > 0 else -1)
        if q:
            whole.append((m, q))
        if c != q * d:
            rest.append((m, c - q * d))
    return Index(tuple(whole), a.const // d), Index(tuple(rest), a.const % d)


def _known_quotient(rest: Index, d: int, ranges: Ranges) -> int | None:
    """`rest // d` if it is the same over all the ranges."""
    bounds = rest.bounds(ranges)
    if bounds is None or bounds[0] // d != bounds[1] // d:
        return None
    return bounds[0] // d


def _scaled_down(x: Index, g: int) -> Index:
    """`x // g` for g a divisor of every coefficient."""
    return Index(tuple((m, c // g) for m, c in x.terms), x.const // g)


def _split_small(inside: Index, d: int, ranges: Ranges) -> tuple[Index, Index, int] | None:
    """(big, small, g) with inside = big*g + small, g a proper divisor of d and 0 <= small < g.

    16*a + b  ->  (a, b, 16)           for d = 64 when 0 <= b < 16
    16*a + b  ->  (a + 1, b - 16, 16)  for d = 64 when 16 <= b < 32
    """
    for g in sorted({gcd(c, d) for _, c in inside.terms}, reverse=True):
        if g in (1, d):
            continue
        big = tuple((m, c // g) for m, c in inside.terms if c % g == 0)
        small = Index(tuple((m, c) for m, c in inside.terms if c % g != 0), inside.const % g)
        times = _known_quotient(small, g, ranges)
        if times is not None:
            return Index(big, inside.const // g + times), small - times * g, g
    return None


# -- extremes -----------------------------------------------------------------------------------
def _extreme(a: Index, b: Index, ranges: Ranges, kind: Extreme) -> Index:
    kept: list[Index] = []
    for x in (*extreme_operands(a, kind), *extreme_operands(b, kind)):
        if not any(_beats(k, x, ranges, kind) for k in kept):
            kept = [k for k in kept if not _beats(x, k, ranges, kind)]
            kept.append(x)
    kept.sort(key=str)
    found = kept.pop()
    while kept:
        found = of_atom(kind(kept.pop(), found))
    return found


def extreme_operands(x: Index, kind: Extreme) -> Iterator[Index]:
    """The operands of nested minima (or maxima), or `x` itself."""
    if x.const == 0 and len(x.terms) == 1:
        mono, c = x.terms[0]
        if c == 1 and len(mono) == 1 and isinstance(mono[0], kind):
            yield from extreme_operands(mono[0].a, kind)
            yield from extreme_operands(mono[0].b, kind)
            return
    yield x


def _beats(a: Index, b: Index, ranges: Ranges, kind: Extreme) -> bool:
    """Whether `a` is never worse than `b`, so that `b` does not count."""
    if a in extreme_operands(b, Max if kind is Min else Min):
        return True
    difference = (a - b).bounds(ranges)
    if difference is None:
        return False
    return difference[1] <= 0 if kind is Min else difference[0] >= 0


# -- simplification -----------------------------------------------------------------------------
def _simplified_atom(a: Atom, ranges: Ranges) -> Index:
    """An atom whose operands are simplified."""
    if isinstance(a, Var):
        return of_atom(a)
    return _rebuilt_within(a, tuple([(n, ranges[n]) for n in a.ordered if n in ranges]))


@lru_cache(maxsize=1 << 14)
def _rebuilt_within(a: Compound, known: tuple[tuple[str, Range], ...]) -> Index:
    """An atom simplified by the ranges of its own variables: sums around it differ in constants.

    In its operands variables of one value are replaced.
    """
    ranges = dict(known)
    single = {n: Index.of(r[0]) for n, r in known if r[0] == r[1]}
    x, y = (simplify(part.subs(single), ranges) for part in a.operands)
    return rebuilt(a, x, y, ranges)


def rebuilt(a: Compound, x: Index, y: Index, ranges: Ranges) -> Index:
    """The atom's operation on other operands."""
    match a:
        case FloorDiv():
            return floordiv(x, y, ranges)
        case Mod():
            return mod(x, y, ranges)
        case Min():
            return minimum(x, y, ranges)
        case Max():
            return maximum(x, y, ranges)


def _nearer(x: Index, ranges: Ranges) -> Index:
    """An equal expression in which coefficients of what is divided are as small as can be.

    (7*i + j) // 8  ->  i + (j - i) // 8,   (7*i + j) % 8  ->  (j - i) % 8

    So rows that are read with a stride of one less than they have, as a relative shift reads them,
    are found to be diagonals: where j - i + 8 is below 16, (15*i + j + 8) // 16 is i.
    """
    return x.with_atoms(lambda a: _nearer_atom(a, ranges))


def _nearer_atom(atom: Atom, ranges: Ranges) -> Index:
    if isinstance(atom, Var) or not _is_far(atom):
        return of_atom(atom)
    x, y = (_nearer(part, ranges) if _has_far(part) else part for part in atom.operands)
    by = _farther(atom, x, y)
    if by == ZERO and (x, y) == atom.operands:
        return of_atom(atom)
    near = rebuilt(atom, x - by * y, y, ranges)
    return by + near if isinstance(atom, FloorDiv) else near


def _farther(atom: Compound, x: Index, y: Index) -> Index:
    """How many divisors nearer terms of `x` come, which is divided by `y` in such an atom."""
    if not (isinstance(atom, FloorDiv | Mod) and y.is_const and len(x.terms) > 1):
        return ZERO
    return Index(tuple([(m, 1 if c > 0 else -1) for m, c in x.terms if 2 * abs(c) > y.const]))


def _has_far(x: Index) -> bool:
    """Whether an atom in `x` may have smaller coefficients in what is divided: few have."""
    for mono, _ in x.terms:
        for a in mono:
            if not isinstance(a, Var) and _is_far(a):
                return True
    return False


@lru_cache(maxsize=1 << 14)
def _is_far(atom: Compound) -> bool:
    """Whether terms are nearer with other coefficients in an atom, or in one of its operands."""
    return _farther(atom, *atom.operands) != ZERO or any(map(_has_far, atom.operands))


def _join(x: Index, ranges: Ranges) -> Index:
    """Quotients, remainders and extremes joined with other terms while that makes `x` smaller."""
    size = x.size()
    for candidate in _joined(x, ranges):
        if candidate.size() < size:
            return simplify(candidate, ranges)
    return x


def _joined(x: Index, ranges: Ranges) -> Iterator[Index]:
    """Expressions equal to `x` in which one atom is exchanged for others.

    e % d  ->  e - d*(e // d),   d*(e // d)  ->  e - e % d,
    e % d + d*((e // d + k) % m)  ->  (e + d*k) % (d*m),   min(a, b) + c  ->  min(a + c, b + c),
    max(a - c, b) + c + d  ->  max(a, b + c) + d,   max(a - c, b) + min(a, b + c)  ->  a + b
    """
    for mono, c in x.terms:
        for i, atom in enumerate(mono):
            if isinstance(atom, Var):
                continue
            rest = mono[:i] + mono[i + 1 :]
            factor = Index(((rest, c),)) if rest else Index.of(c)
            others = x - Index(((mono, c),))
            a, b = atom.operands
            if isinstance(atom, Mod):
                quotient = floordiv(a, b, ranges)
                yield others + factor * a - factor * b * quotient
                yield from _chained(others, rest, c, a, b, quotient, ranges)
            elif isinstance(atom, FloorDiv):
                scale, left = _split_factor(factor, b)
                if left == ZERO:
                    yield others + scale * a - scale * mod(a, b, ranges)
            elif not rest and (both := _both_extremes(others, c, atom)) is not None:
                yield both
            elif not rest and (part := _cancelled(others, c, a, b)) not in (ZERO, others):
                moved = _scaled_down(part, c)
                yield others - part + rebuilt(atom, a + moved, b + moved, ranges) * c
            elif not rest and others != ZERO and c == 1:
                yield rebuilt(atom, others + a, others + b, ranges)
            elif not rest and others != ZERO and c == -1:
                flipped = Max(a, b) if isinstance(atom, Min) else Min(a, b)
                yield rebuilt(flipped, others - a, others - b, ranges)


def _both_extremes(others: Index, c: int, atom: Compound) -> Index | None:
    """The sum of c times an extreme and others, if these have the other extreme of its operands.

    The operands may all be more there by one number: max(a, b) + min(a + s, b + s) is a + b + s.
    """
    a, b = atom.operands
    for mono, k in others.terms:
        if k != c or len(mono) != 1 or not isinstance(mono[0], Min | Max):
            continue
        if isinstance(mono[0], Min) is isinstance(atom, Min):
            continue
        for p, q in (mono[0].operands, mono[0].operands[::-1]):
            if p - a == q - b:
                return others - Index(((mono, k),)) + (p + b) * c
    return None


def _cancelled(others: Index, c: int, a: Index, b: Index) -> Index:
    """The terms of which c times an operand has the opposite: c * extreme(a, b) + others."""
    known = {(m, -c * k) for m, k in (*a.terms, *b.terms)}
    return Index(tuple(term for term in others.terms if term in known))


def _split_factor(factor: Index, b: Index) -> tuple[Index, Index]:
    if not b.is_const:
        return split_exact(factor, b)
    ((_, c),) = factor.terms or (((), factor.const),)
    divides = c % b.const == 0
    exact = Index(tuple((m, k // b.const) for m, k in factor.terms), factor.const // b.const)
    return (exact, ZERO) if divides else (ZERO, factor)


def _chained(
    others: Index, rest: Monomial, c: int, e: Index, d: Index, quotient: Index, ranges: Ranges
) -> Iterator[Index]:
    """The remainder c*rest*(e % d) joined with  c*d*rest*((e // d + k) % m)  among the others."""
    if not d.is_const:
        return
    for mono, k in others.terms:
        if k != c * d.const:
            continue
        for i, atom in enumerate(mono):
            if not isinstance(atom, Mod) or mono[:i] + mono[i + 1 :] != rest:
                continue
            more = atom.num - quotient
            if more.is_const:
                factor = Index(((rest, c),)) if rest else Index.of(c)
                whole = mod(e + d * more, d * atom.den, ranges)
                yield others - Index(((mono, k),)) + factor * whole


def close_bounds(x: Index, ranges: Ranges) -> Range | None:
    """Bounds of `x` over the ranges, in which quotients of the same terms are near each other.

    A quotient is what is divided less the remainder, which is below the divisor:
    8 * (2*((w + 7) // 8) - (w + 3) // 4) = 8 - 2*((w + 7) % 8) + 2*((w + 3) % 4),
    so that the difference of quotients is 0 or 1 whatever w is.
    """
    found = x.bounds(ranges)
    if found is None or len(x.terms) == 1 or x.is_polynomial:
        return found
    quotients: list[tuple[FloorDiv[Index], int]] = []
    rest = Index((), x.const)
    for mono, c in x.terms:
        a = mono[0]
        if len(mono) == 1 and isinstance(a, FloorDiv) and a.den.is_const:
            quotients.append((a, c))
        else:
            rest = rest + Index(((mono, c),))
    if not quotients:
        return found
    scale = lcm(*(a.den.const for a, _ in quotients))
    total = rest * scale
    for a, c in quotients:
        total = total + (a.num - a.num % a.den) * (c * scale // a.den.const)
    close = total.bounds(ranges)
    if close is None:
        return found
    return max(found[0], -(-close[0] // scale)), min(found[1], close[1] // scale)
