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
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import assert_never

import numpy as np

from rutc.record import record
from rutc.tensor_ir.ranges import Range, common_sizes

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "FloorDiv",
    "Index",
    "Max",
    "Min",
    "Mod",
    "Monomial",
    "Range",
    "Size",
    "Var",
    "collect",
    "floordiv",
    "maximum",
    "minimum",
    "mod",
    "plain",
    "product",
    "quoted",
    "typical",
]

RESERVED = frozenset(("and", "else", "false", "inf", "nan", "not", "or", "true"))
"""Words of the text form that a variable's name must be quoted to use."""


@lru_cache(maxsize=1 << 14)
def quoted(name: str) -> str:
    """A variable's name as it stands in text: in single quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name, re.ASCII) and name not in RESERVED:
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


@record
class Var:
    """A variable: a dim, a loop counter or a symbolic size."""

    name: str

    def __str__(self) -> str:
        return quoted(self.name)


@record
class FloorDiv:
    """`num // den`, rounded toward minus infinity; `den` is positive."""

    num: Index
    den: Index

    def __str__(self) -> str:
        return f"{_paren(self.num)} // {_paren(self.den)}"


@record
class Mod:
    """`num % den`, in [0, den); `den` is positive."""

    num: Index
    den: Index

    def __str__(self) -> str:
        return f"{_paren(self.num)} % {_paren(self.den)}"


@record
class Min:
    """The smaller of two expressions."""

    a: Index
    b: Index

    def __str__(self) -> str:
        return f"min({self.a}, {self.b})"


@record
class Max:
    """The larger of two expressions."""

    a: Index
    b: Index

    def __str__(self) -> str:
        return f"max({self.a}, {self.b})"


Atom = Var | FloorDiv | Mod | Min | Max
Monomial = tuple[Atom, ...]


@record
class Index:
    """A canonical integer expression: `const` plus coefficient * product-of-atoms terms."""

    terms: tuple[tuple[Monomial, int], ...] = ()
    const: int = 0

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((self.terms, self.const))
        return known

    def __reduce__(self) -> tuple[type[Index], tuple[object, int]]:
        # Hashes of strings differ from process to process.
        return Index, (self.terms, self.const)

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
        if not isinstance(other, Index):
            return Index(self.terms, self.const + other)
        if not other.terms:
            return Index(self.terms, self.const + other.const)
        if not self.terms:
            return Index(other.terms, self.const + other.const)
        return collect([*self.terms, *other.terms], self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.const - other)
        if not other.terms:
            return Index(self.terms, self.const - other.const)
        return self + other * -1

    def __rsub__(self, other: Index | int) -> Index:
        return Index.of(other) - self

    def __mul__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            other = Index.of(other)
        if not other.terms:
            k = other.const
            if k == 0:
                return ZERO
            if not self.terms:
                return Index((), self.const * k)
            return Index(tuple([(m, c * k) for m, c in self.terms]), self.const * k)
        if not self.terms:
            return other * self.const
        terms: list[tuple[Monomial, int]] = [(m, c * other.const) for m, c in self.terms]
        terms += [(m, c * self.const) for m, c in other.terms]
        for m, c in self.terms:
            for n, d in other.terms:
                terms.append((tuple(sorted((*m, *n), key=_atom_key)), c * d))
        return collect(terms, self.const * other.const)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        return division.floordiv(self, Index.of(other), {})

    def __rfloordiv__(self, other: Index | int) -> Index:
        return division.floordiv(Index.of(other), self, {})

    def __mod__(self, other: Index | int) -> Index:
        return division.mod(self, Index.of(other), {})

    # -- questions ------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def is_polynomial(self) -> bool:
        """Whether there are no atoms but variables."""
        for mono, _ in self.terms:
            for a in mono:
                if not isinstance(a, Var):
                    return False
        return True

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

    @property
    def as_multiple(self) -> tuple[int, str] | None:
        """(k, name) when the expression is just k times one variable, k positive."""
        if self.const == 0 and len(self.terms) == 1:
            (mono, c) = self.terms[0]
            if c > 0 and len(mono) == 1 and isinstance(mono[0], Var):
                return c, mono[0].name
        return None

    def names(self) -> frozenset[str]:
        """All variables that occur."""
        known: frozenset[str] | None = self.__dict__.get("_names")
        if known is None:
            found = [
                (a.name,) if isinstance(a, Var) else _atom_names(a)
                for mono, _ in self.terms
                for a in mono
            ]
            known = self.__dict__["_names"] = frozenset().union(*found)
        return known

    def ordered_names(self) -> tuple[str, ...]:
        """All variables that occur, in the order of their names."""
        known: tuple[str, ...] | None = self.__dict__.get("_ordered")
        if known is None:
            known = self.__dict__["_ordered"] = tuple(sorted(self.names()))
        return known

    def coefficient(self, name: str) -> int | None:
        """The constant c with self = c*name + rest, rest free of `name`; None if there is none."""
        if len(self.terms) == 1:
            ((mono, c),) = self.terms
            if len(mono) == 1 and isinstance(mono[0], Var):
                return c if mono[0].name == name else 0
        found = 0
        for mono, c in self.terms:
            if mono == (Var(name),):
                found = c
            elif any(name in _atom_names(a) for a in mono):
                return None
        return found

    def factor(self, name: str) -> Index | None:
        """The f with self = f*name + rest, both free of `name`; None if there is none.

        Unlike `coefficient`, f may hold other variables: of `n*i + j`, `i` has the factor `n`.
        """
        found: list[tuple[Monomial, int]] = []
        for mono, c in self.terms:
            own = [a for a in mono if name in _atom_names(a)]
            if not own:
                continue
            if own != [Var(name)]:
                return None
            found.append((tuple(a for a in mono if a != Var(name)), c))
        const = sum(c for m, c in found if not m)
        return collect([(m, c) for m, c in found if m], const)

    def subs(self, env: Mapping[str, Index]) -> Index:
        """The expression with variables replaced, canonical again."""
        if not self.terms or env.keys().isdisjoint(self.names()):
            return self
        terms: list[tuple[Monomial, int]] = []
        const = self.const
        for mono, c in self.terms:
            term = _subs_atom(mono[0], env)
            for a in mono[1:]:
                term = term * _subs_atom(a, env)
            terms += [(m, k * c) for m, k in term.terms]
            const += term.const * c
        return collect(terms, const)

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
            found = _atom_bounds(mono[0], ranges)
            if found is None:
                return None
            mlo, mhi = found
            for a in mono[1:]:
                b = _atom_bounds(a, ranges)
                if b is None:
                    return None
                corners = (mlo * b[0], mlo * b[1], mhi * b[0], mhi * b[1])
                mlo, mhi = min(corners), max(corners)
            if c < 0:
                mlo, mhi = mhi, mlo
            lo += c * mlo
            hi += c * mhi
        return lo, hi

    def simplify(self, ranges: Mapping[str, Range]) -> Index:
        """An equal expression, divisions and remainders reduced as far as the ranges allow."""
        return division.simplify(self, ranges)

    def __str__(self) -> str:
        known: str | None = self.__dict__.get("_text")
        if known is None:
            known = self.__dict__["_text"] = self._written()
        return known

    def _written(self) -> str:
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

Size = int | Index
"""A number of elements, bytes or iterations: an int, or an expression of symbolic sizes."""


def plain(x: Size) -> Size:
    """`x`, an int if it is constant."""
    return x.const if isinstance(x, Index) and not x.terms else x


def product(xs: Iterable[Index | int]) -> Index:
    """The product of `xs`; 1 for none."""
    total = ONE
    for x in xs:
        total = total * x
    return total


def typical(x: Size, symbols: Mapping[str, Range]) -> int:
    """`x` where every symbol has a common value of its range, for weighing costs."""
    return x if isinstance(x, int) else int(x.evaluate(common_sizes(symbols)))


# -- internals ----------------------------------------------------------------------------------
def _atom_key(a: Atom) -> tuple[int, str]:
    return (0 if isinstance(a, Var) else 1, str(a))


def collect(terms: list[tuple[Monomial, int]], const: int) -> Index:
    """The canonical sum of terms and a constant."""
    total: dict[Monomial, int] = {}
    for m, c in terms:
        total[m] = total.get(m, 0) + c
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return Index(tuple(kept), const)


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[tuple[int, str], ...]]:
    return _monomial_key(term[0])


@lru_cache(maxsize=1 << 14)
def _monomial_key(mono: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return len(mono), tuple(map(_atom_key, mono))


def _atom_names(a: Atom) -> frozenset[str]:
    match a:
        case Var(name):
            return frozenset((name,))
        case FloorDiv(x, y) | Mod(x, y) | Min(x, y) | Max(x, y):
            return x.names() | y.names()
        case _:
            assert_never(a)


def _subs_atom(a: Atom, env: Mapping[str, Index]) -> Index:
    if isinstance(a, Var):
        return env.get(a.name, division.of_atom(a))
    x, y = division.parts_of(a)
    new_x, new_y = x.subs(env), y.subs(env)
    if new_x is x and new_y is y:
        return division.of_atom(a)
    return division.rebuilt(a, new_x, new_y, {})


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
    own = a.__dict__
    names: tuple[str, ...] | None = own.get("_ordered")
    if names is None:
        names = own["_ordered"] = tuple(sorted(_atom_names(a)))
        own["_bounds"] = {}
    # What an atom is part of asks for its bounds again and again.
    known: dict[tuple[Range | None, ...], Range | None] = own["_bounds"]
    at = tuple([ranges.get(name) for name in names])
    if at in known:
        return known[at]
    found = known[at] = _compound_bounds(a, ranges)
    return found


def _compound_bounds(a: FloorDiv | Mod | Min | Max, ranges: Mapping[str, Range]) -> Range | None:
    x, y = division.parts_of(a)
    p, q = x.bounds(ranges), y.bounds(ranges)
    if isinstance(a, Mod):
        if q is None or q[0] <= 0:
            return None
        if p is not None and p[0] >= 0 and p[1] < q[0]:
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


def _factor(a: Atom, *, alone: bool) -> str:
    if isinstance(a, FloorDiv | Mod) and not alone:
        return f"({a})"
    return str(a)


def _paren(x: Index) -> str:
    simple = x.as_var is not None or (x.is_const and x.const >= 0)
    return str(x) if simple else f"({x})"


# The rules of division are written with `Index`, whose operators they are.
from rutc.tensor_ir import division  # noqa: E402
from rutc.tensor_ir.division import floordiv, maximum, minimum, mod  # noqa: E402
