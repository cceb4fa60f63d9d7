"""What index expressions are made of besides constants: variables, and operations on two of them.

The operations are written for any kind of expression; `polynomial` has the one kind there is.
"""

from __future__ import annotations

from threading import Lock
from typing import ClassVar, Generic, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from rutc.tensor_ir.indices.ranges import Range
from rutc.tensor_ir.textual.quoting import quoted

Value = int | np.ndarray


class Operand(Protocol):
    """What an atom asks of the expressions in it."""

    const: int

    @property
    def is_const(self) -> bool:
        """Whether no variable occurs."""

    @property
    def as_var(self) -> str | None:
        """The variable's name when the expression is just one variable."""

    def names(self) -> frozenset[str]:
        """All variables that occur."""

    def size(self) -> int:
        """What it costs."""


I = TypeVar("I", bound=Operand)  # noqa: E741

_KNOWN: WeakValueDictionary[object, object] = WeakValueDictionary()
"""All atoms that are in use, by what they are made of."""
_MAKING = Lock()


class Var:
    """A variable: a dim, a loop counter or a symbolic size. Equal atoms are one object."""

    __match_args__ = ("name",)
    __slots__ = ("__weakref__", "key", "name", "names")

    size: ClassVar[int] = 1
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


class Pair(Generic[I]):
    """An operation on two expressions. Equal atoms are one object."""

    __slots__ = ("__weakref__", "a", "b", "bounds", "names", "ordered", "size", "text")

    a: I
    b: I
    names: frozenset[str]
    ordered: tuple[str, ...]
    """The names in their order."""
    bounds: dict[tuple[Range | None, ...], Range | None]
    """The bounds that were found, by the ranges of the names."""
    size: int
    """What it costs: 4 and its operands."""
    text: str | None

    def __new__(cls, a: I, b: I) -> Self:
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
                    found.size = 4 + a.size() + b.size()
                    found.text = None
        assert isinstance(found, cls)
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[I, I]]:
        return type(self), (self.a, self.b)

    @property
    def operands(self) -> tuple[I, I]:
        """The two expressions."""
        return self.a, self.b

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

    @staticmethod
    def value_of(p: Value, q: Value) -> Value:
        """The operation on values of the operands."""
        raise NotImplementedError

    @staticmethod
    def bounds_of(p: Range | None, q: Range | None) -> Range | None:
        """The bounds of the operation, by those of the operands."""
        raise NotImplementedError


class _Division(Pair[I]):
    """A division of two expressions."""

    __match_args__ = ("num", "den")
    __slots__ = ()

    @property
    def num(self) -> I:
        """What is divided."""
        return self.a

    @property
    def den(self) -> I:
        """By what."""
        return self.b


class FloorDiv(_Division[I]):
    """`num // den`, rounded toward minus infinity; `den` is positive."""

    __slots__ = ()

    def _written(self) -> str:
        return f"{_paren(self.a)} // {_paren(self.b)}"

    @staticmethod
    def value_of(p: Value, q: Value) -> Value:
        """The quotient."""
        return p // q

    @staticmethod
    def bounds_of(p: Range | None, q: Range | None) -> Range | None:
        """Those of the quotients of the operands' ends."""
        if p is None or q is None or q[0] <= 0:
            return None
        corners = (p[0] // q[0], p[0] // q[1], p[1] // q[0], p[1] // q[1])
        return min(corners), max(corners)


class Mod(_Division[I]):
    """`num % den`, in [0, den); `den` is positive."""

    __slots__ = ()

    def _written(self) -> str:
        return f"{_paren(self.a)} % {_paren(self.b)}"

    @staticmethod
    def value_of(p: Value, q: Value) -> Value:
        """The remainder."""
        return p % q

    @staticmethod
    def bounds_of(p: Range | None, q: Range | None) -> Range | None:
        """Below the divisor; those of the number where it always is below."""
        if q is None or q[0] <= 0:
            return None
        if p is not None and p[0] >= 0 and p[1] < q[0]:
            return p
        return 0, q[1] - 1


class Min(Pair[I]):
    """The smaller of two expressions."""

    __match_args__ = ("a", "b")
    __slots__ = ()

    def _written(self) -> str:
        return f"min({self.a}, {self.b})"

    @staticmethod
    def value_of(p: Value, q: Value) -> Value:
        """The smaller one."""
        both_int = isinstance(p, int) and isinstance(q, int)
        return min(p, q) if both_int else np.minimum(p, q)

    @staticmethod
    def bounds_of(p: Range | None, q: Range | None) -> Range | None:
        """The smaller ones of the bounds."""
        return None if p is None or q is None else (min(p[0], q[0]), min(p[1], q[1]))


class Max(Pair[I]):
    """The larger of two expressions."""

    __match_args__ = ("a", "b")
    __slots__ = ()

    def _written(self) -> str:
        return f"max({self.a}, {self.b})"

    @staticmethod
    def value_of(p: Value, q: Value) -> Value:
        """The larger one."""
        both_int = isinstance(p, int) and isinstance(q, int)
        return max(p, q) if both_int else np.maximum(p, q)

    @staticmethod
    def bounds_of(p: Range | None, q: Range | None) -> Range | None:
        """The larger ones of the bounds."""
        return None if p is None or q is None else (max(p[0], q[0]), max(p[1], q[1]))


def _paren(x: Operand) -> str:
    simple = x.as_var is not None or (x.is_const and x.const >= 0)
    return str(x) if simple else f"({x})"
