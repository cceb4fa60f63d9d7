"""The tests of branches: features beside thresholds, in as few bytes as tell every answer."""

from __future__ import annotations

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.forest import LEAF, MODES, Forest, Walk
from rutc.importer.ops.sieves import SieveTables
from rutc.tensor_ir import BitCast, DType, Expr, apply, cast

_COMPARE = dict(zip(MODES, ("le", "lt", "ge", "gt", "eq", "ne"), strict=True))
_ABOVE, _BELOW = ({MODES.index(m) for m in pair} for pair in (("LEQ", "GT"), ("LT", "GTE")))
"""Modes that ask whether a feature is above its threshold, and those that ask whether below."""
LEAST = np.float32(np.finfo(np.float32).tiny)
"""The least positive number that is not subnormal."""


def narrowed(b: Builder, x: Tensor, f: Forest) -> Tensor:
    """The rows x {n, features}: features of f64 beside thresholds of f32 as f32, where that tells.

    A feature is above a number of f32 where the least one of f32 that is not below it is:

    x <= f64(t)   ->   up(x) <= t        x < f64(t)   ->   -up(-x) < t

    Subnormal numbers of f32 may count as zeros. So there are none among thresholds, and `up` goes
    from 0 to the least number that is none.
    """
    modes = set(f.mode[f.mode != LEAF].tolist())
    size = np.abs(f.threshold)
    subnormal = bool(((size > 0) & (size < LEAST)).any())
    if x.dtype is not DType.F64 or f.threshold.dtype != np.float32 or subnormal:
        return x
    if modes <= _ABOVE:
        return _up(b, x)
    if modes <= _BELOW:
        return _negated(b, _up(b, _negated(b, x)))
    return x


def _up(b: Builder, x: Tensor) -> Tensor:
    """The least numbers of f32 that are not below those of f64; NaN stays NaN.

    Neighbours have bits that follow one another, upwards from 0, downwards below it.
    """
    nearest = b.as_type(x, DType.F32)

    def up(value: Expr, single: Expr) -> Expr:
        bits = BitCast(single, DType.I32)
        above = apply("add", bits, lit(1, DType.I32))
        above = apply("max", above, lit(int(LEAST.view(np.int32)), DType.I32))
        below = apply("sub", bits, lit(1, DType.I32))
        negative = apply("lt", bits, lit(0, DType.I32))
        next_ = BitCast(apply("select", negative, below, above), DType.F32)
        return apply("select", apply("lt", cast(single, DType.F64), value), next_, single)

    return b.map(up, x, nearest)


def _negated(b: Builder, x: Tensor) -> Tensor:
    return b.map(lambda e: apply("neg", e), x)


def compared(x: Tensor, f: Forest | Walk | SieveTables) -> DType:
    """The type in which features are compared with thresholds."""
    return DType.F64 if DType.F64 in (x.dtype, DType.of(f.threshold.dtype)) else DType.F32


def holds(value: Expr, limit: Expr, modes: np.ndarray, mode: Expr) -> Expr:
    """Whether the test of a mode, one of a few, holds."""
    tests = [apply(_COMPARE[MODES[m]], value, limit) for m in modes]
    found: Expr = tests[0]
    for m, test in zip(modes[1:].tolist(), tests[1:], strict=True):
        found = apply("select", apply("eq", mode, lit(m, DType.I64)), test, found)
    return found


def or_missing(found: Expr, value: Expr, tracks: Expr) -> Expr:
    """Whether a test holds, or NaN passes it and is there."""
    return apply("or", found, apply("and", tracks, apply("isnan", value)))


def passes(f: SieveTables) -> np.ndarray | None:
    """What to compare instead of NaN: a number that passes where NaN does, NaN elsewhere.

    Numbers take fewer instructions than truth values of vectors. None where no number passes a
    test that NaN does, as of less than -inf.
    """
    found = np.full_like(f.threshold, np.nan)
    for mode, held in enumerate((np.less_equal, np.less, np.greater_equal, np.greater, np.equal)):
        other = {"LT": -np.inf, "GT": np.inf}.get(MODES[mode])
        with np.errstate(invalid="ignore"):
            instead = f.threshold if other is None else np.full_like(f.threshold, other)
            able = held(instead, f.threshold)
        found = np.where(f.missing & (f.mode == mode) & able, instead, found)
    unequal = f.mode == MODES.index("NEQ")
    found = np.where(f.missing & unequal, np.where(f.threshold == 0, 1, 0), found)
    return None if (f.missing & np.isnan(found)).any() else found.astype(f.threshold.dtype)
