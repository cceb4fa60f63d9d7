"""What is known at import of the integers that elements may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.tensor_ir import Apply, Cast, Const, DType, Expr, Index, IndexValue, Lit, Nest, Read
from rutc.tensor_ir.dtype import integer_range
from rutc.tensor_ir.expr import substitute
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.indices.affine import Range
from rutc.tensor_ir.indices.dim_ranges import is_positive

DEEPEST = 24
"""Operations on one path that are looked through."""

MOST = 400
"""Operations that are looked at in all."""


def inside(b: Builder, e: Expr, low: Index, high: Index) -> bool:
    """Whether the integer `e` provably lies in [low, high)."""
    return _Elements(b).inside(e, low, high, DEEPEST)


def definition(b: Builder, value: str, *, chosen: bool = True) -> tuple[Expr, ...] | None:
    """The expressions one of which every element of a value is; None if there are none.

    With `chosen`, an element may be one that the others lead to, as the largest of a row.
    """
    for n in reversed(b.nodes):
        for k, v in enumerate(outs(n)):
            if v.name != value:
                continue
            if not isinstance(n, Nest):
                return None
            if n.reducer is None:
                return n.body
            if not chosen or not all(_some(b, d) for d in n.bound):
                return None
            if n.reducer.name.startswith("arg") and k == 1:
                return n.body[1:]
            return n.body if n.reducer.name in ("max", "min") else None
    return None


def as_index(b: Builder, e: Expr) -> Index | None:
    """The index expression that an integer is wherever it is computed; None if none is found.

    %r{i} = index(i);  %at{i,k} = select(index(k - 1) < 0, %r[i], %q[i])    ->    %at[i=j, k=0] is j
    """
    return _Places(b).of(e, DEEPEST)


def _holds(dtype: DType, bounds: Range | None) -> bool:
    """Whether all numbers within bounds, if these are known, are some of an integer type."""
    least, greatest = integer_range(dtype)
    return bounds is not None and least <= bounds[0] and bounds[1] <= greatest


def _some(b: Builder, dim: str) -> bool:
    """Whether a dim has elements for all sizes."""
    bounds = b.extents[dim].bounds(b.ranges)
    return bounds is not None and bounds[0] > 0


@dataclass
class _Elements:
    """One question; `left` counts the operations that may still be looked at."""

    b: Builder
    left: int = MOST

    def inside(self, e: Expr, low: Index, high: Index, depth: int) -> bool:
        at_least = self.compared(e, low, depth, least=True)
        return at_least and self.compared(e, high - 1, depth, least=False)

    def compared(self, e: Expr, limit: Index, depth: int, *, least: bool) -> bool:
        """Whether `e` is never below (`least`), or never above, the limit."""
        self.left -= 1
        if depth == 0 or self.left < 0:
            return False
        found = self.interval(e, depth)
        if found is not None and self.ordered(Index.of(found[0 if least else 1]), limit, least):
            return True

        def all_of(*parts: Expr) -> bool:
            return all(self.compared(p, limit, depth - 1, least=least) for p in parts)

        match e:
            case IndexValue(index):
                room = index - limit if least else limit - index
                return is_positive(room + 1, self.b.ranges)
            case Cast(arg, kind) if kind.is_int and arg.dtype.is_int:
                return kind.bits >= 64 and arg.dtype.is_signed and all_of(arg)
            case Apply("select", (_, p, q)):
                return all_of(p, q)
            case Apply(("min" | "max") as op, (p, q)):
                return all_of(p, q) if (op == "min") == least else all_of(p) or all_of(q)
            case Read(value) if e.fill is None or all_of(e.fill):
                bodies = definition(self.b, value)
                return bodies is not None and all_of(*bodies)
            case _:
                return False

    def ordered(self, i: Index, limit: Index, least: bool) -> bool:
        bounds = (i - limit if least else limit - i).bounds(self.b.ranges)
        return bounds is not None and bounds[0] >= 0

    def interval(self, e: Expr, depth: int) -> Range | None:
        """Inclusive bounds of an integer expression."""
        self.left -= 1
        if depth == 0 or self.left < 0 or not e.dtype.is_int:
            return None
        found: Range | None = None
        match e:
            case Lit(value):
                return int(value), int(value)
            case IndexValue(index):
                return index.bounds(self.b.ranges)
            case Cast(arg) if arg.dtype is DType.BOOL:
                found = 0, 1
            case Cast(arg):
                found = self.interval(arg, depth - 1)
            case Read(value):
                found = self.read(value, depth)
                if e.fill is not None and found is not None:
                    fill = int(e.fill.value)
                    found = min(found[0], fill), max(found[1], fill)
            case Apply(op, args) if op != "select":
                parts = [self.interval(a, depth - 1) for a in args]
                found = _applied(op, parts)
            case Apply(_, (_, p, q)):
                x, y = self.interval(p, depth - 1), self.interval(q, depth - 1)
                if x is not None and y is not None:
                    found = min(x[0], y[0]), max(x[1], y[1])
            case _:
                return None
        return found if _holds(e.dtype, found) else None

    def read(self, value: str, depth: int) -> Range | None:
        for c in self.b.consts:
            if c.out.name == value:
                return _of_array(c)
        bodies = definition(self.b, value)
        if bodies is None:
            return None
        parts = [self.interval(body, depth - 1) for body in bodies]
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        return min(p[0] for p in known), max(p[1] for p in known)


@dataclass
class _Places:
    """One question; `left` counts the operations that may still be looked at."""

    b: Builder
    left: int = MOST

    def of(self, e: Expr, depth: int) -> Index | None:
        self.left -= 1
        if depth == 0 or self.left < 0 or not e.dtype.is_int:
            return None
        found: Index | None = None
        match e:
            case Lit(value):
                found = Index.of(int(value))
            case IndexValue(index):
                found = index
            case Cast(arg) if arg.dtype.is_int:
                found = self.of(arg, depth - 1)
            case Read():
                found = self.read(e, depth)
            case Apply("select", (Apply(op, (p, q)), chosen, other)):
                x, y = self.of(p, depth - 1), self.of(q, depth - 1)
                holds = None if x is None or y is None else self.compared(op, x - y)
                if holds is not None:
                    found = self.of(chosen if holds else other, depth - 1)
            case Apply("add" | "sub" as op, (p, q)):
                x, y = self.of(p, depth - 1), self.of(q, depth - 1)
                if x is not None and y is not None:
                    found = x + y if op == "add" else x - y
            case _:
                return None
        bounds = None if found is None else found.bounds(self.b.ranges)
        return found if _holds(e.dtype, bounds) else None

    def read(self, r: Read, depth: int) -> Index | None:
        """What an element is that is read inside of its value."""
        at: dict[str, Index] = {}
        for d, c in r.coords:
            if not isinstance(c, Index):
                return None
            if r.fill is not None and not self.b.inside(c, self.b.extents[d]):
                return None
            at[d] = c
        for const in self.b.consts:
            if const.out.name == r.value:
                array = const.data.array
                return affine_in(array, [at[d] for d in const.axes]) if array.size else None
        bodies = definition(self.b, r.value, chosen=False)
        if bodies is None or len(bodies) != 1:
            return None
        return self.of(substitute(bodies[0], at), depth - 1)

    def compared(self, op: str, gap: Index) -> bool | None:
        """Whether a comparison of two integers holds, of which the difference is `gap`."""
        bounds = gap.bounds(self.b.ranges)
        if bounds is None:
            return None
        low, high = bounds
        match op:
            case "lt":
                return _decided(high < 0, low >= 0)
            case "le":
                return _decided(high <= 0, low > 0)
            case "gt":
                return _decided(low > 0, high <= 0)
            case "ge":
                return _decided(low >= 0, high < 0)
            case _:
                return None


def _decided(always: bool, never: bool) -> bool | None:
    return True if always else False if never else None


def affine_in(values: np.ndarray, coords: Sequence[Index]) -> Index | None:
    """`values` as an affine expression of the coordinates (one an axis); None if they are none."""
    origin = values[(0,) * values.ndim]
    line = Index.of(int(origin))
    expected = np.full(values.shape, origin)
    for i, c in enumerate(coords):
        n = values.shape[i]
        if n > 1:
            second = values[tuple(int(k == i) for k in range(values.ndim))]
            line = line + c * int(second - origin)
            shape = [n if k == i else 1 for k in range(values.ndim)]
            expected = expected + ((second - origin) * np.arange(n)).reshape(shape)
    return line if np.array_equal(values, expected) else None


def _of_array(c: Const) -> Range | None:
    array: np.ndarray = c.data.array
    return (int(array.min()), int(array.max())) if array.size else None


def _applied(op: str, parts: list[Range | None]) -> Range | None:
    """Bounds of an operator's result."""
    if op == "mod" and parts[1] is not None and parts[1][0] > 0:
        return 0, parts[1][1] - 1
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    match op, known:
        case "neg", [(a, z)]:
            return -z, -a
        case "add", [(a, z), (c, y)]:
            return a + c, z + y
        case "sub", [(a, z), (c, y)]:
            return a - y, z - c
        case "mul", [(a, z), (c, y)]:
            corners = (a * c, a * y, z * c, z * y)
            return min(corners), max(corners)
        case "min", [(a, z), (c, y)]:
            return min(a, c), min(z, y)
        case "max", [(a, z), (c, y)]:
            return max(a, c), max(z, y)
        case _:
            return None
