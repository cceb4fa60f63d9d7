"""Integer expressions over named variables: index maps, extents, loop bounds and addresses.

An `Index` is a polynomial with integer coefficients over *atoms*, kept in one canonical form, so
that structural equality is algebraic equality for everything affine:

    index := const + sum(coefficient * atom * atom ...)
    atom  := name | (index // index) | (index % index) | min(index, index) | max(index, index)

`//` rounds toward minus infinity and `%` takes the divisor's sign, as in Python. Variables are
dims, loop counters or a model's symbolic sizes; all range over integers. Nothing overflows: the
verifier bounds every buffer below 2**63 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import assert_never

import numpy as np

Range = tuple[int, int]
"""An inclusive range (lowest, highest) of an integer variable."""

RESERVED = frozenset(("and", "else", "false", "inf", "nan", "not", "or", "true"))
"""Words of the text form that a variable's name must be quoted to use."""


def quoted(name: str) -> str:
    """A variable's name as it stands in text: in single quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name, re.ASCII) and name not in RESERVED:
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


@dataclass(frozen=True)
class Var:
    """A variable: a dim, a loop counter or a symbolic size."""

    name: str

    def __str__(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True)
class FloorDiv:
    """`num // den`, rounded toward minus infinity; `den` is positive."""

    num: Index
    den: Index

    def __str__(self) -> str:
        return f"{_paren(self.num)} // {_paren(self.den)}"


@dataclass(frozen=True)
class Mod:
    """`num % den`, in [0, den); `den` is positive."""

    num: Index
    den: Index

    def __str__(self) -> str:
        return f"{_paren(self.num)} % {_paren(self.den)}"


@dataclass(frozen=True)
class Min:
    """The smaller of two expressions."""

    a: Index
    b: Index

    def __str__(self) -> str:
        return f"min({self.a}, {self.b})"


@dataclass(frozen=True)
class Max:
    """The larger of two expressions."""

    a: Index
    b: Index

    def __str__(self) -> str:
        return f"max({self.a}, {self.b})"


Atom = Var | FloorDiv | Mod | Min | Max
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Index:
    """A canonical integer expression: `const` plus coefficient * product-of-atoms terms."""

    terms: tuple[tuple[Monomial, int], ...] = ()
    const: int = 0

    # -- construction ---------------------------------------------------------------------------
    @staticmethod
    def of(x: Index | int | str) -> Index:
        """`x` as an expression: an int is a constant, a string a variable."""
        if isinstance(x, Index):
            return x
        if isinstance(x, str):
            return Index((((Var(x),), 1),))
        return Index((), int(x))

    def __add__(self, other: Index | int) -> Index:
        other = Index.of(other)
        if not other.terms:
            return Index(self.terms, self.const + other.const)
        if not self.terms:
            return Index(other.terms, self.const + other.const)
        return _collect([*self.terms, *other.terms], self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + Index.of(other) * -1

    def __rsub__(self, other: Index | int) -> Index:
        return Index.of(other) - self

    def __mul__(self, other: Index | int) -> Index:
        other = Index.of(other)
        if not other.terms:
            if other.const == 0:
                return ZERO
            k = other.const
            return Index(tuple((m, c * k) for m, c in self.terms), self.const * k)
        if not self.terms:
            return other * self.const
        terms: list[tuple[Monomial, int]] = [(m, c * other.const) for m, c in self.terms]
        terms += [(m, c * self.const) for m, c in other.terms]
        for m, c in self.terms:
            for n, d in other.terms:
                terms.append((tuple(sorted((*m, *n), key=_atom_key)), c * d))
        return _collect(terms, self.const * other.const)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        return floordiv(self, Index.of(other), {})

    def __mod__(self, other: Index | int) -> Index:
        return mod(self, Index.of(other), {})

    # -- questions ------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def value(self) -> int:
        """The constant's value. Raises ValueError when a variable occurs."""
        if self.terms:
            raise ValueError(f"{self} is not a constant")
        return self.const

    @property
    def as_var(self) -> str | None:
        """The variable's name when the expression is just one variable."""
        if self.const == 0 and len(self.terms) == 1:
            (mono, c) = self.terms[0]
            if c == 1 and len(mono) == 1 and isinstance(mono[0], Var):
                return mono[0].name
        return None

    def names(self) -> frozenset[str]:
        """All variables that occur."""
        return _names(self)

    def coefficient(self, name: str) -> int | None:
        """The constant c with self = c * name + rest, rest free of `name`; None if there is none."""
        found = 0
        for mono, c in self.terms:
            if mono == (Var(name),):
                found = c
            elif any(name in _atom_names(a) for a in mono):
                return None
        return found

    def subs(self, env: Mapping[str, Index]) -> Index:
        """The expression with variables replaced, canonical again."""
        if not self.terms or self.names().isdisjoint(env):
            return self
        total = Index((), self.const)
        for mono, c in self.terms:
            term = Index((), c)
            for a in mono:
                term = term * _subs_atom(a, env)
            total = total + term
        return total

    def evaluate(self, env: Mapping[str, int | np.ndarray]) -> int | np.ndarray:
        """The value with every variable given, as an int or a (broadcast) integer array."""
        total: int | np.ndarray = self.const
        for mono, c in self.terms:
            term: int | np.ndarray = c
            for a in mono:
                term = term * _evaluate_atom(a, env)
            total = total + term
        return total

    def bounds(self, ranges: Mapping[str, Range]) -> Range | None:
        """Inclusive bounds over the ranges of its variables, or None where one has no range."""
        lo = hi = self.const
        for mono, c in self.terms:
            mlo, mhi = 1, 1
            for a in mono:
                b = _atom_bounds(a, ranges)
                if b is None:
                    return None
                corners = (mlo * b[0], mlo * b[1], mhi * b[0], mhi * b[1])
                mlo, mhi = min(corners), max(corners)
            lo += min(c * mlo, c * mhi)
            hi += max(c * mlo, c * mhi)
        return lo, hi

    def simplify(self, ranges: Mapping[str, Range]) -> Index:
        """An equal expression, divisions and remainders reduced as far as the ranges allow."""
        if all(isinstance(a, Var) for mono, _ in self.terms for a in mono):
            return self
        total = Index((), self.const)
        for mono, c in self.terms:
            term = Index((), c)
            for a in mono:
                term = term * _simplify_atom(a, ranges)
            total = total + term
        return _join_div_mod(total)

    def __str__(self) -> str:
        parts: list[str] = []
        for mono, c in self.terms:
            # A quotient needs parentheses beside a factor, and after a leading minus, which
            # binds tighter than `//` and `%`.
            alone = len(mono) == 1 and (c == 1 or (c == -1 and bool(parts)))
            body = "*".join(_factor(a, alone=alone) for a in mono)
            sign = "-" if c < 0 else "+"
            parts += [sign, body if abs(c) == 1 else f"{abs(c)}*{body}"]
        if self.const or not parts:
            parts += ["-" if self.const < 0 else "+", str(abs(self.const))]
        first = parts[1] if parts[0] == "+" else "-" + parts[1]
        return " ".join([first, *parts[2:]])


ZERO = Index()
ONE = Index((), 1)


def floordiv(a: Index, b: Index, ranges: Mapping[str, Range]) -> Index:
    """`a // b`, simplified where constants or ranges allow."""
    if b == ONE:
        return a
    if b.is_const and a.is_const:
        return Index.of(a.const // b.const)
    if a == b:
        return ONE
    if b.is_const:
        d = b.const
        outside, inside = _split_multiples(a, d)
        if _fits(inside, d, ranges):
            return outside
        g = gcd(d, *(c for _, c in inside.terms))
        if g > 1:
            low = inside.const // g
            reduced = Index(tuple((m, c // g) for m, c in inside.terms), low)
            return outside + floordiv(reduced, Index.of(d // g), ranges)
        parts = _split_small(inside, d, ranges)
        if parts is not None:
            big, _, g = parts
            return outside + floordiv(big, Index.of(d // g), ranges)
        if len(inside.terms) == 1 and inside.const == 0 and inside.terms[0][1] == 1:
            (atom,) = inside.terms[0][0] if len(inside.terms[0][0]) == 1 else (None,)
            if isinstance(atom, FloorDiv) and atom.den.is_const:
                return outside + floordiv(atom.num, atom.den * d, ranges)
            if isinstance(atom, Mod) and atom.den.is_const and atom.den.const % d == 0:
                quotient = floordiv(atom.num, b, ranges)
                return outside + mod(quotient, Index.of(atom.den.const // d), ranges)
        return outside + _atom(FloorDiv(inside, b))
    whole = _exact_quotient(a, b)
    if whole is not None:
        return whole
    bounds_a, bounds_b = a.bounds(ranges), b.bounds(ranges)
    if bounds_a and bounds_b and bounds_a[0] >= 0 and bounds_b[0] > bounds_a[1]:
        return ZERO
    return _atom(FloorDiv(a, b))


def mod(a: Index, b: Index, ranges: Mapping[str, Range]) -> Index:
    """`a % b`, simplified where constants or ranges allow."""
    if b == ONE or a == b:
        return ZERO
    if b.is_const and a.is_const:
        return Index.of(a.const % b.const)
    if b.is_const:
        d = b.const
        _, inside = _split_multiples(a, d)
        if _fits(inside, d, ranges):
            return inside
        g = gcd(d, *(c for _, c in inside.terms))
        if g > 1:
            low, left = inside.const // g, inside.const % g
            reduced = Index(tuple((m, c // g) for m, c in inside.terms), low)
            return mod(reduced, Index.of(d // g), ranges) * g + left
        parts = _split_small(inside, d, ranges)
        if parts is not None:
            big, small, g = parts
            return mod(big, Index.of(d // g), ranges) * g + small
        if len(inside.terms) == 1 and inside.const == 0 and inside.terms[0][1] == 1:
            (atom,) = inside.terms[0][0] if len(inside.terms[0][0]) == 1 else (None,)
            if isinstance(atom, Mod) and atom.den.is_const and atom.den.const % d == 0:
                return mod(atom.num, b, ranges)
        return _atom(Mod(inside, b))
    if _exact_quotient(a, b) is not None:
        return ZERO
    bounds_a, bounds_b = a.bounds(ranges), b.bounds(ranges)
    if bounds_a and bounds_b and bounds_a[0] >= 0 and bounds_b[0] > bounds_a[1]:
        return a
    return _atom(Mod(a, b))


def minimum(a: Index | int, b: Index | int, ranges: Mapping[str, Range] | None = None) -> Index:
    """`min(a, b)`, one of the two where the ranges decide."""
    return _extreme(Index.of(a), Index.of(b), ranges or {}, Min)


def maximum(a: Index | int, b: Index | int, ranges: Mapping[str, Range] | None = None) -> Index:
    """`max(a, b)`, one of the two where the ranges decide."""
    return _extreme(Index.of(a), Index.of(b), ranges or {}, Max)


def product(xs: Iterable[Index | int]) -> Index:
    """The product of `xs`; 1 for none."""
    total = ONE
    for x in xs:
        total = total * x
    return total


# -- internals ----------------------------------------------------------------------------------
def _extreme(
    a: Index, b: Index, ranges: Mapping[str, Range], kind: type[Min] | type[Max]
) -> Index:
    difference = (a - b).bounds(ranges)
    if difference is not None and (difference[1] <= 0 or difference[0] >= 0):
        a_is_less = difference[1] <= 0
        return a if a_is_less == (kind is Min) else b
    if str(b) < str(a):
        a, b = b, a
    return _atom(kind(a, b))


def _atom(atom: Atom) -> Index:
    return Index((((atom,), 1),))


def _atom_key(a: Atom) -> tuple[int, str]:
    return (0 if isinstance(a, Var) else 1, str(a))


def _collect(terms: list[tuple[Monomial, int]], const: int) -> Index:
    total: dict[Monomial, int] = {}
    for m, c in terms:
        total[m] = total.get(m, 0) + c
    kept = [(m, c) for m, c in total.items() if c]
    kept.sort(key=lambda mc: (len(mc[0]), [_atom_key(a) for a in mc[0]]))
    return Index(tuple(kept), const)


@lru_cache(maxsize=1 << 16)
def _names(x: Index) -> frozenset[str]:
    return frozenset().union(*(_atom_names(a) for mono, _ in x.terms for a in mono))


def _atom_names(a: Atom) -> frozenset[str]:
    match a:
        case Var(name):
            return frozenset((name,))
        case FloorDiv(x, y) | Mod(x, y) | Min(x, y) | Max(x, y):
            return _names(x) | _names(y)
        case _:
            assert_never(a)


def _map_atom(
    a: FloorDiv | Mod | Min | Max, f: Callable[[Index], Index], ranges: Mapping[str, Range]
) -> Index:
    match a:
        case FloorDiv(x, y):
            return floordiv(f(x), f(y), ranges)
        case Mod(x, y):
            return mod(f(x), f(y), ranges)
        case Min(x, y):
            return minimum(f(x), f(y), ranges)
        case Max(x, y):
            return maximum(f(x), f(y), ranges)
        case _:
            assert_never(a)


def _subs_atom(a: Atom, env: Mapping[str, Index]) -> Index:
    if isinstance(a, Var):
        return env.get(a.name, _atom(a))
    return _map_atom(a, lambda x: x.subs(env), {})


def _simplify_atom(a: Atom, ranges: Mapping[str, Range]) -> Index:
    if isinstance(a, Var):
        bound = ranges.get(a.name)
        return Index.of(bound[0]) if bound and bound[0] == bound[1] else _atom(a)
    return _map_atom(a, lambda x: x.simplify(ranges), ranges)


def _evaluate_atom(a: Atom, env: Mapping[str, int | np.ndarray]) -> int | np.ndarray:
    match a:
        case Var(name):
            return env[name]
        case FloorDiv(x, y):
            return x.evaluate(env) // y.evaluate(env)
        case Mod(x, y):
            return x.evaluate(env) % y.evaluate(env)
        case Min(x, y):
            p, q = x.evaluate(env), y.evaluate(env)
            both_int = isinstance(p, int) and isinstance(q, int)
            return min(p, q) if both_int else np.minimum(p, q)
        case Max(x, y):
            p, q = x.evaluate(env), y.evaluate(env)
            both_int = isinstance(p, int) and isinstance(q, int)
            return max(p, q) if both_int else np.maximum(p, q)
        case _:
            assert_never(a)


def _atom_bounds(a: Atom, ranges: Mapping[str, Range]) -> Range | None:
    if isinstance(a, Var):
        return ranges.get(a.name)
    match a:
        case FloorDiv(x, y) | Mod(x, y) | Min(x, y) | Max(x, y):
            p, q = x.bounds(ranges), y.bounds(ranges)
    if isinstance(a, Mod):
        if q is None or q[0] <= 0:
            return None
        if p is not None and 0 <= p[0] and p[1] < q[0]:
            return p
        return 0, q[1] - 1
    if p is None or q is None:
        return None
    match a:
        case FloorDiv():
            if q[0] <= 0:
                return None
            corners = (p[0] // q[0], p[0] // q[1], p[1] // q[0], p[1] // q[1])
            return min(corners), max(corners)
        case Min():
            return min(p[0], q[0]), min(p[1], q[1])
        case Max():
            return max(p[0], q[0]), max(p[1], q[1])
        case _:
            assert_never(a)


def _split_multiples(a: Index, d: int) -> tuple[Index, Index]:
    """(q, r) with a = q*d + r, q taking every term whose coefficient d divides."""
    whole = tuple((m, c // d) for m, c in a.terms if c % d == 0)
    rest = tuple((m, c) for m, c in a.terms if c % d != 0)
    return Index(whole, a.const // d), Index(rest, a.const % d)


def _fits(rest: Index, d: int, ranges: Mapping[str, Range]) -> bool:
    """Whether 0 <= rest < d over the ranges."""
    bounds = rest.bounds(ranges)
    return bounds is not None and 0 <= bounds[0] and bounds[1] < d


def _split_small(
    inside: Index, d: int, ranges: Mapping[str, Range]
) -> tuple[Index, Index, int] | None:
    """(big, small, g) with inside = big*g + small, g a proper divisor of d and 0 <= small < g.

    16*a + b  ->  (a, b, 16)  for d = 64 when 0 <= b < 16.
    """
    for g in sorted({gcd(c, d) for _, c in inside.terms}, reverse=True):
        if g in (1, d):
            continue
        big = tuple((m, c // g) for m, c in inside.terms if c % g == 0)
        small = Index(tuple((m, c) for m, c in inside.terms if c % g != 0), inside.const % g)
        bounds = small.bounds(ranges)
        if big and bounds is not None and 0 <= bounds[0] and bounds[1] < g:
            return Index(big, inside.const // g), small, g
    return None


def _exact_quotient(a: Index, b: Index) -> Index | None:
    """q with a = q*b where b is one monomial that divides every term of a, else None."""
    if b.const != 0 or len(b.terms) != 1:
        return None
    mono, k = b.terms[0]
    if a.const != 0 or not a.terms:
        return None
    quotient: list[tuple[Monomial, int]] = []
    for m, c in a.terms:
        left = list(m)
        for atom in mono:
            if atom not in left:
                return None
            left.remove(atom)
        if c % k:
            return None
        quotient.append((tuple(left), c // k))
    const = sum(c for m, c in quotient if not m)
    return _collect([(m, c) for m, c in quotient if m], const)


def _join_div_mod(x: Index) -> Index:
    """x with every pair  c*d*(e // d) + c*(e % d)  joined to  c*e."""
    for mono, c in x.terms:
        if len(mono) == 1 and isinstance(mono[0], Mod) and mono[0].den.is_const:
            e, d = mono[0].num, mono[0].den.const
            partner: Monomial = (FloorDiv(e, mono[0].den),)
            whole = dict(x.terms)
            quotient = floordiv(e, mono[0].den, {})
            if whole.get(partner) == c * d:
                rest = x - _atom(mono[0]) * c - _atom(partner[0]) * (c * d)
                return _join_div_mod(rest + e * c)
            if quotient.terms and len(quotient.terms) == 1 and quotient.const == 0:
                m, k = quotient.terms[0]
                if k == 1 and whole.get(m) == c * d:
                    rest = x - _atom(mono[0]) * c - Index(((m, c * d),))
                    return _join_div_mod(rest + e * c)
    return x


def _factor(a: Atom, *, alone: bool) -> str:
    if isinstance(a, FloorDiv | Mod) and not alone:
        return f"({a})"
    return str(a)


def _paren(x: Index) -> str:
    simple = x.as_var is not None or (x.is_const and x.const >= 0)
    return str(x) if simple else f"({x})"
