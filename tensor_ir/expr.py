"""Scalar expressions: what a nest computes at one point of its iteration space.

    expr  := literal | index | read | local | op(expr, ...) | cast(expr) | bits_type(expr)
    read  := %value[dim=coord, ... else literal]
    coord := index                     (affine, with // and %)
           | expr of type i64          (data-dependent: a gather)

Semantics. Operators work on operands of one dtype and are total: integer overflow wraps, integer
division truncates, `mod` takes the divisor's sign (also for floats) and `fmod` the dividend's, all
three give 0 for an integer divisor of 0, an integer power with a negative exponent truncates (0 to
it gives 0), `round` takes ties to even, `sign` of NaN is NaN, `min` and `max` give NaN when an
operand is NaN, shifts by the width or more (or by a negative count) give 0 (the sign for a negative
`shr`), casts from float to integer saturate (NaN gives 0), from integer to integer wrap and to bool
test `!= 0`. `bits_type` reads an element's bits as another type of the same width (those of a bool
are 0 or 1, and any but 0 are true). `select` evaluates both arms; a read outside its value's
extents gives the literal after `else`, and without one it never happens (the verifier proves it, or
for a data-dependent coordinate the reader clamps; of a value without elements it gives 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import c_float
from dataclasses import replace
from itertools import chain
from math import inf
from operator import is_
from typing import assert_never

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.indices.affine import Index

UNARY_FLOAT = frozenset([
    "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "floor", "ceil", "round",
])  # fmt: skip
ELEMENTARY = (UNARY_FLOAT - {"sqrt", "floor", "ceil", "round"}) | {"pow"}
"""Functions whose values are sums of many terms: tens of operations, each waiting for another."""
UNARY = UNARY_FLOAT | frozenset(["neg", "abs", "sign", "not", "bitnot", "isnan", "isinf"])
ARITHMETIC = frozenset(["add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max"])
LOGIC = frozenset(["and", "or", "xor"])
BITWISE = frozenset(["bitand", "bitor", "bitxor", "shl", "shr"])
COMPARE = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
BINARY = ARITHMETIC | LOGIC | BITWISE | COMPARE
OPS: Mapping[str, int] = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), "select": 3}
"""Every operator with its arity. `and or xor not` take bools, `bit*` and shifts integers."""


@record
class Lit:
    """A literal, rounded to its type; strings carry their text, and 0 is the box that holds none.

    Raises:
        ValueError: The type does not have the value.
    """

    value: int | float | bool | str
    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _as_element(self.value, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lit) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, DType]:
        return repr(self.value), self.dtype


def _as_element(x: float | bool | str, dtype: DType) -> int | float | bool | str:
    """`x` as Python's own type for `dtype`, rounded to it."""
    if dtype is DType.STRING or isinstance(x, str):
        if dtype is not DType.STRING or not isinstance(x, str):
            raise ValueError(f"{x!r} is no literal of type {dtype}")
        return x
    if dtype is DType.TENSOR:
        if x != 0:
            raise ValueError(f"{x!r} is no literal of type {dtype}")
        return 0
    if dtype is DType.BOOL:
        return bool(x)
    if dtype is DType.F64:
        return float(x)
    if dtype is DType.F32:
        return c_float(x).value
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.asarray(float(x)).astype(dtype.numpy))
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    if x != x or x in (inf, -inf) or int(x) != x or not 0 <= x - lowest < (1 << dtype.bits):
        raise ValueError(f"{x!r} is no literal of type {dtype}")
    return int(x)


@record
class IndexValue:
    """The value of an index expression, as i64."""

    index: Index

    @property
    def dtype(self) -> DType:
        """Always i64."""
        return DType.I64


@record
class Read:
    """The element of `value` at `coords` (one per dim, sorted by dim); `fill` outside of it."""

    value: str
    coords: tuple[tuple[str, Coord], ...]
    dtype: DType
    fill: Lit | None = None

    def coord(self, dim: str) -> Coord:
        """The coordinate along `dim`. Raises KeyError for a dim that the value does not have."""
        return dict(self.coords)[dim]

    def at(self, coords: tuple[tuple[str, Coord], ...]) -> Read:
        """The read at other coordinates."""
        return Read(self.value, coords, self.dtype, self.fill)


@record
class Local:
    """A named scalar bound by the surrounding construct (a reducer's state or element)."""

    name: str
    dtype: DType


@record
class Apply:
    """The operator `op` of `OPS` applied to `args`."""

    op: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if OPS.get(self.op) != len(self.args):
            raise ValueError(f"operator {self.op!r} with {len(self.args)} operands")

    # Operations are shared: what follows the operands of each would take a time that doubles with
    # every operation of a value with itself.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Apply) and hash(self) == hash(other) and _are_equal(self, other)

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((self.op, self.args))
        return known

    def __repr__(self) -> str:
        return f"Apply({_listed(self)})"

    def __getstate__(self) -> dict[str, object]:
        # What else is known is soon found again; and processes have other hashes of texts.
        return {"op": self.op, "args": self.args}

    @property
    def dtype(self) -> DType:
        """The result's type: bool for comparisons and tests, else the operands'."""
        # That of a long sum would be asked of all its operations again and again.
        known: DType | None = self.__dict__.get("_dtype")
        if known is None:
            tests = self.op in COMPARE or self.op in LOGIC or self.op in ("not", "isnan", "isinf")
            chosen = self.args[1 if self.op == "select" else 0]
            known = self.__dict__["_dtype"] = DType.BOOL if tests else chosen.dtype
        return known


@record
class Cast:
    """`arg` converted to `dtype` (saturating from float to integer, rounding to nearest even)."""

    arg: Expr
    dtype: DType


@record
class BitCast:
    """The bits of `arg` as an element of `dtype`, which is of the same width."""

    arg: Expr
    dtype: DType


Expr = Lit | IndexValue | Read | Local | Apply | Cast | BitCast
_OPERATIONS = (Apply, Cast, BitCast)
_LEAVES = (Lit, Local)
_REMEMBERING = (Apply, Cast)
"""What remembers the reads, indices and parts below it, of which every step asks."""
Coord = Index | Expr


def apply(op: str, *args: Expr) -> Apply:
    """`op(args...)`."""
    return Apply(op, args)


def cast(arg: Expr, dtype: DType) -> Expr:
    """`arg` as `dtype`; `arg` itself when it already is."""
    return arg if arg.dtype is dtype else Cast(arg, dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, data-dependent coordinates included."""
    match e:
        case Lit() | IndexValue() | Local():
            return ()
        case Read():
            return tuple(c for _, c in e.coords if not isinstance(c, Index))
        case Apply():
            return e.args
        case Cast() | BitCast():
            return (e.arg,)
        case _:
            assert_never(e)


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and all its subexpressions, parents first; an operation shared by several, only once."""
    if not isinstance(e, _REMEMBERING):
        alone = isinstance(e, _LEAVES) or (isinstance(e, Read) and reads_plainly(e))
        return iter((e,) if alone else _walked(e))
    # Expressions never change, and are walked by every step that looks at their node. They do not
    # hold themselves: only the search for cycles would find those to be garbage.
    below: tuple[Expr, ...] | None = e.__dict__.get("_below")
    if below is None:
        below = e.__dict__["_below"] = _walked(e)[1:]
    return chain((e,), below)


def _are_equal(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same, each pair of operations compared once."""
    seen: set[tuple[int, int]] = set()
    stack = [(a, b)]
    while stack:
        x, y = stack.pop()
        if x is y or (id(x), id(y)) in seen:
            continue
        operates = isinstance(x, _OPERATIONS)
        if not (hash(x) == hash(y) and _name(x) == _name(y) if operates else x == y):
            return False
        seen.add((id(x), id(y)))
        stack += zip(children(x), children(y), strict=True)
    return True


def _listed(e: Expr) -> str:
    """All operations in `e`, each once, after its operands: `#0=abs(x); #1=mul(#0, #0)`."""
    numbers: dict[Expr, int] = {}
    said: list[str] = []
    stack = [e]
    while stack:
        x = stack[-1]
        missing = [a for a in children(x) if isinstance(a, _OPERATIONS) and a not in numbers]
        if missing and x not in numbers:
            stack += missing[::-1]
            continue
        stack.pop()
        if x not in numbers:
            args = (f"#{numbers[a]}" if a in numbers else repr(a) for a in children(x))
            said.append(f"#{len(said)}={_name(x)}({', '.join(args)})")
            numbers[x] = len(numbers)
    return "; ".join(said)


def _name(x: Expr) -> str:
    """What an operation does."""
    return x.op if isinstance(x, Apply) else f"{type(x).__name__} {x.dtype}"


def has_functions(e: Expr) -> bool:
    """Whether an expression computes elementary functions."""
    return any(isinstance(x, Apply) and x.op in ELEMENTARY for x in walk(e))


def operations(e: Expr) -> int:
    """The number of operations and casts in `e`; one shared by several counts once."""
    return sum([isinstance(x, _REMEMBERING) for x in walk(e)])


def _walked(e: Expr) -> tuple[Expr, ...]:
    found: list[Expr] = []
    seen: set[int] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Apply):
            if id(x) in seen:
                continue
            seen.add(id(x))
            stack.extend(x.args[::-1])
        elif not isinstance(x, Read) or not reads_plainly(x):
            stack.extend(children(x)[::-1])
        found.append(x)
    return tuple(found)


def reads(e: Expr) -> Iterator[Read]:
    """All reads in `e`, those inside coordinates included, outermost first."""
    known: tuple[Read, ...] | None = e.__dict__.get("_reads")
    if known is None:
        if isinstance(e, Read) and reads_plainly(e):
            return iter((e,))
        known = tuple([x for x in walk(e) if isinstance(x, Read)])
        if isinstance(e, _REMEMBERING):
            e.__dict__["_reads"] = known
    return iter(known)


def read_values(e: Expr) -> tuple[str, ...]:
    """The values that `e` reads, each once, in the order of the first reads."""
    known: tuple[str, ...] | None = e.__dict__.get("_read_values")
    if known is None:
        if isinstance(e, Read) and reads_plainly(e):
            return (e.value,)
        known = tuple(dict.fromkeys([r.value for r in reads(e)]))
        if isinstance(e, _REMEMBERING):
            e.__dict__["_read_values"] = known
    return known


def transform(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """`e` rebuilt from the leaves up, `f` applied to every node after its children.

    Operations that are shared stay shared: `f` sees them once.
    """
    return _transformed(e, f, {})


def _transformed(e: Expr, f: Callable[[Expr], Expr], done: dict[int, Expr]) -> Expr:
    """`transform`, the operations in `done` by identity being so already."""
    # No closure that calls itself: only the search for cycles would find that to be garbage.
    if isinstance(e, Apply):
        known = done.get(id(e))
        if known is None:
            args = tuple([done.get(id(x)) or _transformed(x, f, done) for x in e.args])
            known = done[id(e)] = f(e if all(map(is_, args, e.args)) else Apply(e.op, args))
        return known
    if isinstance(e, Read):
        if reads_plainly(e):
            return f(e)
        coords = tuple(
            [(d, c if isinstance(c, Index) else _transformed(c, f, done)) for d, c in e.coords]
        )
        return f(e if coords == e.coords else e.at(coords))
    if isinstance(e, Cast | BitCast):
        arg = _transformed(e.arg, f, done)
        return f(e if arg is e.arg else replace(e, arg=arg))
    return f(e)


def reads_plainly(r: Read) -> bool:
    """Whether all coordinates are index expressions: none depends on data."""
    # All reads are asked again and again; a generator would take twice as long.
    for _, c in r.coords:  # noqa: SIM110
        if not isinstance(c, Index):
            return False
    return True


def map_index(e: Expr, f: Callable[[Index], Index]) -> Expr:
    """`e` with `f` applied to every index expression in it; `e` itself if that changes none.

    `f` is asked about equal indices once.
    """
    mapped = {i: f(i) for i in indices(e)}
    if all(i is new or i == new for i, new in mapped.items()):
        return e
    found = _mapped(e, mapped.__getitem__, None, {})
    if isinstance(found, Apply | Cast):
        # Steps map the same expression again and again: what it is made of need not be sought.
        found.__dict__["_indices"] = tuple(dict.fromkeys(mapped.values()))
    return found


def map_reads(e: Expr, f: Callable[[Index], Index], read: Callable[[Read], Expr]) -> Expr:
    """`e` with `f` applied to every index expression in it, and `read` to every read after that."""
    return _mapped(e, f, read, {})


def _mapped(
    e: Expr,
    f: Callable[[Index], Index],
    read: Callable[[Read], Expr] | None,
    done: dict[int, Expr],
) -> Expr:
    """`map_index` or `map_reads`; operations and reads in `done` by identity are mapped already."""
    if isinstance(e, Apply):
        known = done.get(id(e))
        if known is None:
            # Most operands are literals, locals, or operations that are mapped already.
            args = tuple(
                [
                    x if isinstance(x, _LEAVES) else done.get(id(x)) or _mapped(x, f, read, done)
                    for x in e.args
                ]
            )
            known = done[id(e)] = e if all(map(is_, args, e.args)) else Apply(e.op, args)
        return known
    if isinstance(e, Read):
        coords = tuple(
            [(d, f(c) if isinstance(c, Index) else _mapped(c, f, read, done)) for d, c in e.coords]
        )
        moved = e if coords == e.coords else e.at(coords)
        known = done[id(e)] = moved if read is None else read(moved)
        return known
    if isinstance(e, IndexValue):
        index = f(e.index)
        return e if index == e.index else IndexValue(index)
    if isinstance(e, Cast | BitCast):
        arg = _mapped(e.arg, f, read, done)
        return e if arg is e.arg else replace(e, arg=arg)
    return e


def indices(e: Expr) -> tuple[Index, ...]:
    """The index expressions in `e`, equal ones once."""
    known: tuple[Index, ...] | None = e.__dict__.get("_indices")
    if known is None:
        match e:
            case Read() if reads_plainly(e):
                return tuple([c for _, c in e.coords if isinstance(c, Index)])
            case IndexValue(index):
                return (index,)
            case Lit() | Local():
                return ()
            case _:
                pass
        found: dict[Index, None] = {}
        for x in walk(e):
            if isinstance(x, IndexValue):
                found[x.index] = None
            elif isinstance(x, Read):
                found.update({c: None for _, c in x.coords if isinstance(c, Index)})
        known = e.__dict__["_indices"] = tuple(found)
    return known


def substitute(e: Expr, env: Mapping[str, Index]) -> Expr:
    """`e` with dims and symbols replaced by index expressions."""
    return map_index(e, lambda i: i.subs(env)) if env else e


def bind(e: Expr, env: Mapping[str, Expr]) -> Expr:
    """`e` with locals replaced by expressions."""
    return transform(e, lambda x: env.get(x.name, x) if isinstance(x, Local) else x)


def index_names(e: Expr) -> frozenset[str]:
    """The dims and symbols that occur in `e`'s index expressions."""
    return frozenset().union(*[i.names() for i in indices(e)])


def coord_names(c: Coord) -> frozenset[str]:
    """The dims and symbols on which a coordinate depends, also those that choose data."""
    return c.names() if isinstance(c, Index) else index_names(c)


def plain_names(coords: tuple[tuple[str, Coord], ...]) -> frozenset[str]:
    """The dims and symbols of the coordinates that no data decide."""
    return frozenset().union(*[c.names() for _, c in coords if isinstance(c, Index)])


def point(dims: Iterable[str]) -> tuple[tuple[str, Index], ...]:
    """The coordinates of the current point: those that read a value of these dims there."""
    return tuple((d, Index.of(d)) for d in dims)
