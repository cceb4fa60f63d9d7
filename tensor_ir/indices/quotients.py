"""Quotients by expressions of symbols: what a divisor divides, and what lies below it."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from rutc.tensor_ir.indices.atoms import FloorDiv
from rutc.tensor_ir.indices.dim_ranges import is_positive
from rutc.tensor_ir.indices.polynomial import ZERO, Index, Monomial, collect
from rutc.tensor_ir.indices.ranges import Range

Ranges = Mapping[str, Range]

LONGEST_QUOTIENT = 16
"""Terms of what is divided by a sum, beyond which no quotient is looked for."""


def is_sum(b: Index) -> bool:
    """Whether a divisor is no product of a number and atoms."""
    return b.const != 0 or len(b.terms) != 1


def split_exact(a: Index, b: Index) -> tuple[Index, Index]:
    """(q, r) with a = q*b + r, q taking every term that b divides; of a sum b what leaves fewer."""
    if is_sum(b):
        quotient, left_over = split_sum(a, b)
        return (quotient, left_over) if _length(left_over) < _length(a) else (ZERO, a)
    mono, k = b.terms[0]
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for m, c in a.terms:
        left = without(m, mono)
        if left is None or c % k:
            rest.append((m, c))
        else:
            whole.append((left, c // k))
    const = sum(c for m, c in whole if not m)
    return collect([(m, c) for m, c in whole if m], const), Index(tuple(rest), a.const)


def split_sum(a: Index, b: Index) -> tuple[Index, Index]:
    """(q, r) with a = q*b + r for a sum b, by dividing terms by its leading one.

    c*n - c + x  ->  (c, x)  for b = n - 1
    """
    lead, factor = b.terms[-1]
    whole, rest, left_over = ZERO, a, ZERO
    for _ in range(LONGEST_QUOTIENT):
        if rest == ZERO:
            break
        mono, c = rest.terms[-1] if rest.terms else ((), rest.const)
        left = without(mono, lead)
        if left is None or c % factor:
            undivided = _monomial(mono, c)
            rest, left_over = rest - undivided, left_over + undivided
            continue
        term = _monomial(left, c // factor)
        whole, rest = whole + term, rest - term * b
    return whole, left_over + rest


def _length(x: Index) -> int:
    """The terms of a sum."""
    return len(x.terms) + (x.const != 0)


def without(mono: Monomial, factors: Monomial) -> Monomial | None:
    """The monomial divided by `factors`, or None if they do not divide it."""
    left = list(mono)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def below(rest: Index, b: Index, ranges: Ranges) -> bool:
    """Whether 0 <= rest < b over the ranges."""
    return is_positive(rest + 1, ranges) and is_positive(b - rest, ranges)


def is_below(index: Index, limit: Index, ends: Mapping[str, Index], ranges: Ranges) -> bool:
    """Whether an index is below `limit` as a loop's that ends there or before, or a quotient of it.

    i // 64 < n  ->  i < 64*n, where the loop over i ends
    """
    match index.terms:
        case (((FloorDiv(num, den),), 1),) if index.const == 0 and den.is_const:
            return is_below(num, limit * den, ends, ranges)
    end = ends.get(index.as_var or "")
    rest = (limit - end).bounds(ranges) if end is not None else None
    return rest is not None and rest[0] >= 0


def near_quotient(known: Range, num: Index, den: Index, ranges: Ranges) -> Range:
    """Bounds of `num // den`, of which those by the operands' are known.

    Closer ones for -den <= num < den, and for a number that is divided by a part of itself:

    (i - j) // n  ->  -1..0, for i and j below n
    (8*n - 1) // ((n + 7) // 8)  ->  7.., for n from 1 on
    """
    low, high = known
    low = max(low, _least_by_part(num, den, ranges) or low)
    if high > 0 and is_positive(den - num, ranges):
        high = 0
    if low < 0 and is_positive(num + 1, ranges):
        low = 0
    elif low < -1 and is_positive(num + den + 1, ranges):
        low = -1
    return low, high


def _least_by_part(num: Index, den: Index, ranges: Ranges) -> int | None:
    """The least that (a*n + b) // ((n + c) // k) may be; None for others, or if that may be < 0."""
    match den.terms:
        case (((FloorDiv() as part,), 1),) if den.const == 0 and part.den.is_const:
            name = part.num.ordered_names()[0]
        case _:
            return None
    rest = part.num - Index.of(name)
    times, known = num.coefficient(name), ranges.get(name)
    if not rest.is_const or times is None or known is None or num.names() != {name}:
        return None
    # It is (a*n + b) * k / (n + c) at least, which only grows with n, or only falls.
    found: list[int] = []
    for n in known:
        over, under = (times * n + num.const) * part.den.const, n + rest.const
        if over < 0 or under <= 0:
            return None
        found.append(over // under)
    return min(found)


class Parts(NamedTuple):
    """What is divided as big*step + small, 0 <= small < step, and the divisor as times*step."""

    big: Index
    small: Index
    step: Index
    times: Index


def split_below(rest: Index, b: Index, ranges: Ranges) -> Parts | None:
    """How a part of a product divides some terms and is above all others; None if none is.

    h*w*c + w*y + x  ->  (c, w*y + x, h*w, 4)  for b = 4*h*w when 0 <= w*y + x < h*w.
    """
    if is_sum(b):
        return _split_below_sum(rest, b, ranges)
    ((atoms, k),) = b.terms
    steps: dict[tuple[Monomial, int], None] = {}
    for mono, c in rest.terms:
        left = list(mono)
        shared = tuple(left.pop(left.index(a)) for a in atoms if a in left)
        steps[shared, gcd(c, k)] = None
    # The largest first: what it leaves needs no other division.
    for shared, g in sorted(steps, key=lambda s: (len(s[0]), s[1]), reverse=True):
        times = without(atoms, shared)
        if times is None or (shared, g) in (((), 1), (atoms, k)):
            continue
        divided = [(without(m, shared), c) for m, c in rest.terms]
        whole = [(m, c // g) for m, c in divided if m is not None and c % g == 0]
        left_over = [
            term for term, (m, c) in zip(rest.terms, divided, strict=True) if m is None or c % g
        ]
        step, small = _monomial(shared, g), Index(tuple(left_over), rest.const)
        if below(small, step, ranges):
            const = sum(c for m, c in whole if not m)
            big = collect([(m, c) for m, c in whole if m], const)
            return Parts(big, small, step, _monomial(times, k // g))
    return None


def _split_below_sum(rest: Index, b: Index, ranges: Ranges) -> Parts | None:
    """How a sum whose terms have a factor is divided by that and by what is left.

    c*w - 2*c + x  ->  (c, x, w - 2, 4)  for b = 4*w - 8 when 0 <= x < w - 2.
    """
    k = gcd(b.const, *(c for _, c in b.terms))
    if k == 1:
        return None
    step = Index(tuple((m, c // k) for m, c in b.terms), b.const // k)
    big, small = split_sum(rest, step)
    return Parts(big, small, step, Index.of(k)) if below(small, step, ranges) else None


def _monomial(atoms: Monomial, k: int) -> Index:
    return Index(((atoms, k),)) if atoms else Index.of(k)
