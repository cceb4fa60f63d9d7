"""Sizes that a model computes in floating point, and rounds.

The way of a convolution's missing rows from Python's `math.ceil` to ONNX is one of these:

    i64(ceil(f32(n - 3) / 2.0 + 1.0))   ->   (n - 3 + 3) // 2

Such a scalar is a formula like others where floating point computes it exactly: as long as its
numerator, over its denominator, fits the mantissa. An open size is at most what that holds for.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from rutc.base.record import record
from rutc.importer.building.nest_builder import NestBuilder
from rutc.importer.building.tensor import Tensor
from rutc.importer.free_sizes.open_sizes import not_above
from rutc.tensor_ir import Apply, Cast, DType, Expr, Index, IndexValue, Lit, Nest, Read
from rutc.tensor_ir.indices.affine import ONE, floordiv

_FLOATS = (DType.F32, DType.F64)
DEEPEST = 32
"""Operations between a size as an integer and what is rounded."""
LARGE = 1 << 12
"""Sizes that nobody stated may be as large as this at least, and be rounded then."""


@record
class _Ratio:
    """`num / den`, as floating point has it after so many operations that may have rounded it.

    A whole number is not rounded, and no other one becomes whole.
    """

    num: Index
    den: int
    inexact: int


def float_size(b: NestBuilder, t: Tensor, kind: DType) -> np.ndarray | None:
    """The element of a scalar as the integer of type `kind` that it becomes; None if none is told.

    What is so for some values only of a size that nobody stated is told of it.
    """
    if kind not in (DType.I64, DType.I32) or t.dtype not in _FLOATS:
        return None
    if t.known is not None or any(e != ONE for e in t.shape):
        return None
    work = _Work(b)
    found = work.ratio(_element(b, t.name), DEEPEST)
    if found is None or found.den != 1 or found.inexact:
        return None
    if kind is DType.I32:
        work.limits.append((found.num, (1 << 31) - 1))
    not_above(b, work.limits, LARGE)
    if not all(_within(b, num, most) for num, most in work.limits):
        return None
    made = np.empty(1, object)
    made[0] = found.num
    return made.reshape((1,) * t.rank)


def _element(b: NestBuilder, name: str) -> Expr | None:
    """The expression that gives a value of one element, where a nest of this body does."""
    for n in reversed(b.nodes):
        if isinstance(n, Nest) and n.out.name == name:
            return n.body[0] if n.reducer is None and not n.out.dims else None
    return None


def _within(b: NestBuilder, x: Index, most: int) -> bool:
    bounds = x.bounds(b.ranges)
    return bounds is not None and -most <= bounds[0] and bounds[1] <= most


class _Work:
    """What scalars are, and how large each numerator may be for that."""

    def __init__(self, b: NestBuilder) -> None:
        self.b = b
        self.limits: list[tuple[Index, int]] = []

    def ratio(self, e: Expr | None, depth: int) -> _Ratio | None:
        """What an expression of sizes computes."""
        if e is None or not depth or (e.dtype not in _FLOATS):
            return None
        match e:
            case Lit(value, dtype):
                number = float(value)
                if not np.isfinite(number):
                    return None
                exact = Fraction(number)
                return self.held(Index.of(exact.numerator), exact.denominator, 0, dtype)
            case Read(name, (), _, None):
                return self.ratio(_element(self.b, name), depth - 1)
            case Cast(IndexValue(size), dtype):
                return self.held(size, 1, 0, dtype)
            case Apply(op, args):
                parts = [self.ratio(a, depth - 1) for a in args]
                known = [p for p in parts if p is not None]
                return self.applied(op, known, e.dtype) if len(known) == len(args) else None
            case _:
                return None

    def applied(self, op: str, parts: list[_Ratio], dtype: DType) -> _Ratio | None:
        """An operation on ratios; of inexact ones only what keeps them between whole numbers."""
        x, y = parts[0], parts[-1]
        match op:
            case "floor":
                return self.held(floordiv(x.num, Index.of(x.den), self.b.ranges), 1, 0, dtype)
            case "ceil":
                above = -floordiv(-x.num, Index.of(x.den), self.b.ranges)
                return self.held(above, 1, 0, dtype)
            case "add" | "sub":
                inexact = x.inexact + y.inexact
                if inexact and 1 not in (x.den, y.den):
                    return None
                first, second = x.num * y.den, y.num * x.den
                num = first + second if op == "add" else first - second
                return self.held(num, x.den * y.den, inexact and inexact + 1, dtype)
            case "mul" if not x.inexact and not y.inexact:
                return self.held(x.num * y.num, x.den * y.den, 0, dtype)
            case "div" if not x.inexact and y.num.is_const and y.num.const > 0 and y.den == 1:
                by = y.num.const
                return self.held(x.num, x.den * by, int(by & (by - 1) != 0), dtype)
            case _:
                return None

    def held(self, num: Index, den: int, inexact: int, dtype: DType) -> _Ratio:
        """A ratio, with how large the numerator may be for floating point to tell it exactly.

        Operation i rounds by less than 1 / (i * (i + 1)) of 1 / den: all of them by less than that.
        """
        limit = (1 << (np.finfo(dtype.numpy).nmant + 1)) // (inexact * (inexact + 1) or 1)
        if not _within(self.b, num, limit):
            self.limits.append((num, limit))
        return _Ratio(num, den, inexact)
