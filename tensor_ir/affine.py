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
from operator import attrgetter
from threading import Lock
from typing import Self, assert_never
from weakref import WeakValueDictionary

import numpy as np

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


_KNOWN: WeakValueDictionary[object, Var | _Pair] = WeakValueDictionary()
"""All atoms that are in use, by what they are made of."""
_MAKING = Lock()


@lru_cache(maxsize=1 << 14)
def quoted(name: str) -> str:
    """A variable's name as it stands in text: in single quotes unless it is a plain word."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name, re.ASCII) and name not in RESERVED:
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


class Var:
    """A variable: a dim, a loop counter or a symbolic size. Equal atoms are one object."""

    __match_args__ = ("name",)
    __slots__ = ("__weakref__", "key", "name", "names")

    name: str
    names: frozenset[str]
    key: tuple[int, str]
    """What atoms are ordered by."""

    def __new__(cls, name: str) -> Self:
        """The variable of that name."""
        found = _KNOWN.get(name)
        if found is None:
            with _MAKING:
                found = _KNOWN.get(name)
                if found is None:
                    found = _KNOWN[name] = object.__new__(cls)
                    found.name = name
                    found.names = frozenset((name,))
                    found.key = (0, quoted(name))
        assert isinstance(found, cls)
        return found

    def __reduce__(self) -> tuple[type[Var], tuple[str]]:
        return Var, (self.name,)

    def __str__(self) -> str:
        return quoted(self.name)

    def __repr__(self) -> str:
        return f"Var({self.name!r})"


class _Pair:
    """An operation on two expressions. Equal atoms are one object."""

    __slots__ = ("__weakref__", "a", "b", "bounds", "names", "ordered", "text")

    a: Index
    b: Index
    names: frozenset[str]
    ordered: tuple[str, ...]
    """The names in their order."""
    bounds: dict[tuple[Range | None, ...], Range | None]
    """The bounds that were found, by the ranges of the names."""
    text: str | None

    def __new__(cls, a: Index, b: Index) -> Self:
        """The atom of these operands."""
        name = (cls, a, b)
        found = _KNOWN.get(name)
        if found is None:
            with _MAKING:
                found = _KNOWN.get(name)
                if found is None:
                    found = _KNOWN[name] = object.__new__(cls)
                    found.a, found.b = a, b
                    found.names = a.names() | b.names()
                    found.ordered = tuple(sorted(found.names))
                    found.bounds = {}
                    found.text = None
        assert isinstance(found, cls)
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[Index, Index]]:
        return type(self), (self.a, self.b)

    @property
    def key(self) -> tuple[int, str]:
        """What atoms are ordered by."""
        return 1, str(self)

    def __str__(self) -> str:
        if self.text is None:
            self.text = self._written()
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.a!r}, {self.b!r})"

    def _written(self) -> str:
        raise NotImplementedError


class _Division(_Pair):
    """A division of two expressions."""

    __match_args__ = ("num", "den")
    __slots__ = ()

    @property
    def num(self) -> Index:
        """What is divided."""
        return self.a

    @property
    def den(self) -> Index:
        """By what."""
        return self.b


class FloorDiv(_Division):
    """`num // den`, rounded toward minus infinity; `den` is positive."""

    __slots__ = ()

    def _written(self) -> str:
        return f"{_paren(self.a)} // {_paren(self.b)}"


class Mod(_Division):
    """`num % den`, in [0, den); `den` is positive."""

    __slots__ = ()

    def _written(self) -> str:
        return f"{_paren(self.a)} % {_paren(self.b)}"


class Min(_Pair):
    """The smaller of two expressions."""

    __match_args__ = ("a", "b")
    __slots__ = ()

    def _written(self) -> str:
        return f"min({self.a}, {self.b})"


class Max(_Pair):
    """The larger of two expressions."""

    __match_args__ = ("a", "b")
    __slots__ = ()

    def _written(self) -> str:
        return f"max({self.a}, {self.b})"


Atom = Var | FloorDiv | Mod | Min | Max
Monomial = tuple[Atom, ...]


class Index:
    """A canonical integer expression: `const` plus coefficient * product-of-atoms terms.

    It is never changed, but it is no `record`: millions are made of a large model.
    """

    __slots__ = ("_hash", "_names", "_ordered", "_text", "const", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    const: int

    def __init__(self, terms: tuple[tuple[Monomial, int], ...] = (), const: int = 0) -> None:
        """Make the sum of canonical terms and a constant."""
        self.terms = terms
        self.const = const
        self._hash: int | None = None
        self._names: frozenset[str] | None = None
        self._ordered: tuple[str, ...] | None = None
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Index):
            return NotImplemented
        return self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.terms, self.const))
        return self._hash

    def __reduce__(self) -> tuple[type[Index], tuple[object, int]]:
        # Hashes differ from process to process.
        return Index, (self.terms, self.const)

    def __repr__(self) -> str:
        return f"<{self}>"

    # -- construction ---------------------------------------------------------------------------
    @staticmethod
    def of(x: Index | int | str) -> Index:
        """`x` as an expression: an int is a constant, a string a variable."""
        if isinstance(x, Index):
            return x
        return _variable(x) if isinstance(x, str) else Index((), int(x))

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
                terms.append((tuple(sorted((*m, *n), key=_KEY)), c * d))
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
        if self._names is None:
            self._names = frozenset().union(*[a.names for mono, _ in self.terms for a in mono])
        return self._names

    def ordered_names(self) -> tuple[str, ...]:
        """All variables that occur, in the order of their names."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.names()))
        return self._ordered

    def coefficient(self, name: str) -> int | None:
        """The constant c with self = c*name + rest, rest free of `name`; None if there is none."""
        if len(self.terms) == 1:
            ((mono, c),) = self.terms
            if len(mono) == 1 and isinstance(mono[0], Var):
                return c if mono[0].name == name else 0
        found = 0
        for mono, c in self.terms:
            if len(mono) == 1 and isinstance(mono[0], Var):
                if mono[0].name == name:
                    found = c
            elif any(name in a.names for a in mono):
                return None
        return found

    def factor(self, name: str) -> Index | None:
        """The f with self = f*name + rest, both free of `name`; None if there is none.

        Unlike `coefficient`, f may hold other variables: of `n*i + j`, `i` has the factor `n`.
        """
        found: list[tuple[Monomial, int]] = []
        for mono, c in self.terms:
            own = [a for a in mono if name in a.names]
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
        if self._text is None:
            self._text = self._written()
        return self._text

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
_KEY = attrgetter("key")


@lru_cache(maxsize=1 << 14)
def _variable(name: str) -> Index:
    """The expression that is just a variable."""
    return Index((((Var(name),), 1),))


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
    return len(mono), tuple([a.key for a in mono])


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
    # What an atom is part of asks for its bounds again and again.
    known = a.bounds
    at = tuple([ranges.get(name) for name in a.ordered])
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
