"""The class `Index`: a polynomial over atoms, as `affine` describes it.

Quotients, remainders and extremes come out of the rules of `division`, which are written with the
sums and products of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar, Protocol

from rutc.tensor_ir.indices.atoms import FloorDiv, Max, Min, Mod, Value, Var
from rutc.tensor_ir.indices.ranges import Range


class Rules(Protocol):
    """The canonical and short forms of what is no polynomial of variables."""

    def floordiv(self, a: Index, b: Index, ranges: Mapping[str, Range], /) -> Index:
        """`a // b`."""

    def mod(self, a: Index, b: Index, ranges: Mapping[str, Range], /) -> Index:
        """`a % b`."""

    def rebuilt(self, a: Compound, x: Index, y: Index, ranges: Mapping[str, Range], /) -> Index:
        """The atom's operation on other operands."""

    def simplify(self, x: Index, ranges: Mapping[str, Range], /) -> Index:
        """An equal expression over the ranges, with fewer and smaller atoms."""

    def near_quotient(
        self, known: Range, num: Index, den: Index, ranges: Mapping[str, Range], /
    ) -> Range:
        """Bounds of `num // den`, of which those by the operands' are known."""

    def joint_bounds(self, mono: Monomial, known: Range, ranges: Mapping[str, Range], /) -> Range:
        """Bounds of a product, of which those by its factors' are known."""


class Index:
    """A canonical integer expression: `const` plus coefficient * product-of-atoms terms.

    It is never changed, but it is no `record`: millions are made of a large model.
    """

    __slots__ = ("_hash", "_names", "_ordered", "_plain", "_text", "const", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    const: int
    rules: ClassVar[Rules]
    """The module `division`, which is written with this class: `affine` puts it here."""

    def __init__(self, terms: tuple[tuple[Monomial, int], ...] = (), const: int = 0) -> None:
        """Make the sum of canonical terms and a constant."""
        self.terms = terms
        self.const = const
        self._hash: int | None = None
        self._names: frozenset[str] | None = None
        self._ordered: tuple[str, ...] | None = None
        self._plain: bool | None = None
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # At the end of the process the module's names are gone before the table of atoms.
        if not isinstance(other, type(self)):
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
        return f"<{self._text or self}>"

    # -- construction ---------------------------------------------------------------------------
    @staticmethod
    def of(x: Index | int | str) -> Index:
        """`x` as an expression: an int is a constant, a string a variable."""
        if isinstance(x, Index):
            return x
        return _variable(x) if isinstance(x, str) else Index((), int(x))

    def __add__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return self._shifted(int(other))
        if not other.terms:
            return self._shifted(other.const)
        if not self.terms:
            return Index(other.terms, self.const + other.const)
        return collect([*self.terms, *other.terms], self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self._scaled(-1)

    def __sub__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return self._shifted(-int(other))
        if not other.terms:
            return self._shifted(-other.const)
        return self + other._scaled(-1)

    def __rsub__(self, other: Index | int) -> Index:
        return Index.of(other) - self

    def __mul__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return self._scaled(int(other))
        if not other.terms:
            return self._scaled(other.const)
        if not self.terms:
            return other._scaled(self.const)
        terms: list[tuple[Monomial, int]] = []
        if other.const:
            terms += [(m, c * other.const) for m, c in self.terms]
        if self.const:
            terms += [(m, c * self.const) for m, c in other.terms]
        for m, c in self.terms:
            for n, d in other.terms:
                terms.append((tuple(sorted((*m, *n), key=_KEY)), c * d))
        const = self.const * other.const
        return Index(tuple(terms), const) if len(terms) == 1 else collect(terms, const)

    def _shifted(self, k: int) -> Index:
        """The sum with a constant."""
        return Index(self.terms, self.const + k) if k else self

    def _scaled(self, k: int) -> Index:
        """The product with a constant."""
        if k == 0:
            return ZERO
        if k == 1:
            return self
        return Index(tuple([(m, c * k) for m, c in self.terms]), self.const * k)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        return self.rules.floordiv(self, Index.of(other), {})

    def __rfloordiv__(self, other: Index | int) -> Index:
        return self.rules.floordiv(Index.of(other), self, {})

    def __mod__(self, other: Index | int) -> Index:
        return self.rules.mod(self, Index.of(other), {})

    # -- questions ------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def is_polynomial(self) -> bool:
        """Whether there are no atoms but variables."""
        if self._plain is None:
            self._plain = all(isinstance(a, Var) for mono, _ in self.terms for a in mono)
        return self._plain

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

    def is_multiple(self, n: int) -> bool:
        """Whether it is seen to be a multiple of `n`: the constant and all coefficients are."""
        return self.const % n == 0 and all(c % n == 0 for _, c in self.terms)

    def names(self) -> frozenset[str]:
        """All variables that occur."""
        if self._names is None:
            atoms = [a for mono, _ in self.terms for a in mono]
            self._names = (
                atoms[0].names if len(atoms) == 1 else frozenset().union(*[a.names for a in atoms])
            )
        return self._names

    def size(self) -> int:
        """What it costs: variables 1, a constant 1, other atoms 4 and their operands."""
        total = 1 if self.const else 0
        for mono, _ in self.terms:
            for a in mono:
                total += a.size
        return total

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
        canonical = True
        for mono, c in self.terms:
            if len(mono) == 1 and isinstance(mono[0], Var):
                by = env.get(mono[0].name)
                if by is None:
                    terms.append((mono, c))
                    continue
            else:
                # Of most products variables stay or become numbers.
                kept, by = [], Index((), c)
                for a in mono:
                    x = _subs_atom(a, env)
                    if x is None:
                        kept.append(a)
                    else:
                        by = by * x
                if len(kept) == len(mono):
                    terms.append((mono, c))
                    continue
                c = 1
                if kept:
                    by = Index(((tuple(kept), 1),)) * by
            if by.terms:
                canonical = False
                terms += [(m, k * c) for m, k in by.terms]
            const += by.const * c
        # Terms that are left out leave the others in their order.
        return Index(tuple(terms), const) if canonical else collect(terms, const)

    def with_atoms(self, of: Callable[[Atom], Index]) -> Index:
        """The expression with `of(a)` in the place of each atom a."""
        total = Index((), self.const)
        for mono, c in self.terms:
            term = Index((), c)
            for a in mono:
                term = term * of(a)
            total = total + term
        return total

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """The value with every variable given, as an int or a (broadcast) integer array."""
        total: Value = self.const
        for mono, c in self.terms:
            term: Value = c
            for a in mono:
                term = term * _evaluate_atom(a, env)
            total = total + term
        return total

    def bounds(self, ranges: Mapping[str, Range]) -> Range | None:
        """Inclusive bounds over the ranges of its variables, or None where one has no range."""
        lo = hi = self.const
        for mono, c in self.terms:
            found = _atom_bounds(mono[0], ranges)
            for a in mono[1:]:
                found = _product_bounds(found, _atom_bounds(a, ranges))
            if found is None:
                return None
            if len(mono) > 1:
                found = self.rules.joint_bounds(mono, found, ranges)
            mlo, mhi = found
            if c < 0:
                mlo, mhi = mhi, mlo
            lo += c * mlo
            hi += c * mhi
        return lo, hi

    def apart(self) -> tuple[Index, Index]:
        """(beside, inside): the constant with variables that no other atom reads, and the rest."""
        atoms = [a for mono, _ in self.terms for a in mono if not isinstance(a, Var)]
        read = frozenset().union(*[a.names for a in atoms])
        beside: list[tuple[Monomial, int]] = []
        inside: list[tuple[Monomial, int]] = []
        for term in self.terms:
            (first, *others), _ = term
            alone = not others and isinstance(first, Var) and first.name not in read
            (beside if alone else inside).append(term)
        return Index(tuple(beside), self.const), Index(tuple(inside))

    def simplify(self, ranges: Mapping[str, Range]) -> Index:
        """An equal expression, divisions and remainders reduced as far as the ranges allow."""
        return self.rules.simplify(self, ranges)

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


Compound = FloorDiv[Index] | Mod[Index] | Min[Index] | Max[Index]
Atom = Var | Compound
Monomial = tuple[Atom, ...]
ZERO = Index()
ONE = Index((), 1)

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


@lru_cache(maxsize=1 << 16)
def of_atom(atom: Atom) -> Index:
    """The expression that is just `atom`; of equal atoms the same, which has its bounds already."""
    return Index((((atom,), 1),))


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[tuple[int, str], ...]]:
    return _monomial_key(term[0])


@lru_cache(maxsize=1 << 14)
def _monomial_key(mono: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return len(mono), tuple([a.key for a in mono])


def _subs_atom(a: Atom, env: Mapping[str, Index]) -> Index | None:
    """An atom with variables replaced; None where it has none of them."""
    if isinstance(a, Var):
        return env.get(a.name)
    by = tuple([env.get(name) for name in a.ordered])
    return None if by.count(None) == len(by) else _replaced(a, by)


@lru_cache(maxsize=1 << 14)
def _replaced(a: Compound, by: tuple[Index | None, ...]) -> Index:
    """An atom whose variables are replaced; None: not. Sizes have the same ones again and again."""
    env = {name: x for name, x in zip(a.ordered, by, strict=True) if x is not None}
    return Index.rules.rebuilt(a, a.a.subs(env), a.b.subs(env), {})


def _evaluate_atom(a: Atom, env: Mapping[str, Value]) -> Value:
    if isinstance(a, Var):
        return env[a.name]
    return a.value_of(a.a.evaluate(env), a.b.evaluate(env))


def _atom_bounds(a: Atom, ranges: Mapping[str, Range]) -> Range | None:
    if isinstance(a, Var):
        return ranges.get(a.name)
    # What an atom is part of asks for its bounds again and again.
    known = a.bounds
    at = tuple([ranges.get(name) for name in a.ordered])
    if at in known:
        return known[at]
    found = a.bounds_of(a.a.bounds(ranges), a.b.bounds(ranges))
    if found is not None and isinstance(a, FloorDiv) and not a.den.is_const:
        found = Index.rules.near_quotient(found, a.num, a.den, ranges)
    known[at] = found
    return found


def _product_bounds(x: Range | None, y: Range | None) -> Range | None:
    """Bounds of a product of two that may have any values in theirs."""
    if x is None or y is None:
        return None
    corners = (x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1])
    return min(corners), max(corners)


def _factor(a: Atom, *, alone: bool) -> str:
    if isinstance(a, FloorDiv | Mod) and not alone:
        return f"({a})"
    return str(a)
