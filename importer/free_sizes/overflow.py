"""Sizes that may be more than i64 holds: what a run tests in floating point, which does not wrap.

n*m = 6 may hold where n*m is 6 + 2^64.   ->   n*m = 6 and real(n)*real(m) <= 2^62
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import Atom, FloorDiv, Max, Min, Mod, Range, Var

LONGEST = (1 << 63) - 1
"""No size is longer: an i64 holds it."""
LARGEST = Lit(float(1 << 62), DType.F64)
"""Whatever is at most so much in floating point is less than 2^63."""


def holds(value: Expr) -> Expr:
    """Whether i64 holds what this f64 says a size is."""
    return apply("le", apply("abs", value), LARGEST)


def exact(size: Index, ranges: Mapping[str, Range]) -> Expr | None:
    """Whether a size is what i64 makes of it; None where it always is."""
    bounds = size.bounds(ranges)
    if bounds is not None and bounds[0] >= -LONGEST and bounds[1] <= LONGEST:
        return None
    return holds(real(size))


def equal(a: Index, b: Index, ranges: Mapping[str, Range]) -> Expr:
    """Whether two sizes are one."""
    same = apply("eq", IndexValue(a - b), Lit(0, DType.I64))
    told = exact(a - b, ranges)
    return same if told is None else apply("and", same, told)


def differ(a: Index, b: Index, ranges: Mapping[str, Range]) -> Expr:
    """Whether two sizes are not one."""
    other = apply("ne", IndexValue(a - b), Lit(0, DType.I64))
    told = exact(a - b, ranges)
    return other if told is None else apply("or", other, apply("not", told))


def real(size: Index) -> Expr:
    """A size as f64."""
    total: Expr = Lit(float(size.const), DType.F64)
    for mono, c in size.terms:
        term: Expr = Lit(float(c), DType.F64)
        for atom in mono:
            term = apply("mul", term, _real_atom(atom))
        total = apply("add", total, term)
    return total


def _real_atom(atom: Atom) -> Expr:
    match atom:
        case Var(name):
            return cast(IndexValue(Index.of(name)), DType.F64)
        case FloorDiv(x, y):
            return apply("floor", apply("div", real(x), real(y)))
        case Mod(x, y):
            return apply("mod", real(x), real(y))
        case Min(x, y):
            return apply("min", real(x), real(y))
        case Max(x, y):
            return apply("max", real(x), real(y))
        case _:
            assert_never(atom)
