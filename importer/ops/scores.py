"""What the classifiers and regressors of ai.onnx.ml do with their scores: transforms and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import sigmoid_of
from rutc.importer.ops.normalization import softmax_over
from rutc.importer.ops.reductions import place_of_extreme, reduced
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast

ML = "ai.onnx.ml"
"""The domain of these operators."""

NEARLY_ZERO = 1e-7
"""SOFTMAX_ZERO leaves scores of at most this magnitude out of its sum."""


def floats(b: Builder, x: Tensor) -> Tensor:
    """x as f32."""
    return b.as_type(x, DType.F32)


def matrix(b: Builder, x: Tensor) -> Tensor:
    """x as {n, features}; a vector is one row. Raises OperatorError for another rank."""
    if x.rank == 1:
        return b.reshaped(x, (b.axis(1), *x.axes))
    if x.rank != 2:
        raise OperatorError(f"a matrix of features is expected, not {x}")
    return x


def of_features(b: Builder, x: Tensor, count: int) -> Tensor:
    """x {n, features} of so many features; a run ends that has others, where it alone knows."""
    known = Index.of(count)
    if x.shape[1].is_const or count < 1:
        return x
    # Elements lie where the size that is checked says, so that none is read outside.
    more = b.same(x.shape[1], known) - known
    shape = x.shape[0], known
    return b.view(x, shape, lambda n, k: (n, k + more), fill=lit(0, x.dtype))


def table(b: Builder, values: Sequence[float], shape: Sequence[int], what: str) -> Tensor:
    """The numbers of an attribute as an f32 constant of a shape."""
    array = np.array(values, np.float32)
    if array.size != math.prod(shape):
        raise OperatorError(f"{what} has {array.size} values, {math.prod(shape)} are expected")
    return b.constant(array.reshape(shape), DType.F32, what)


def transformed(b: Builder, scores: Tensor, how: str) -> Tensor:
    """`scores` {.., classes} after a post transform."""
    match how:
        case "NONE":
            return scores
        case "LOGISTIC":
            return b.map(sigmoid_of, scores)
        case "SOFTMAX":
            return softmax_over(b, scores, scores.rank - 1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(b, scores)
        case "PROBIT":
            return b.map(_probit, scores)
        case _:
            raise OperatorError(f"post transform {how!r} is unknown")


def _softmax_zero(b: Builder, scores: Tensor) -> Tensor:
    """exp(s - max) / sum, where scores near 0 become s * exp(-max) and do not count."""
    last = (scores.rank - 1,)
    peak = reduced(b, scores, last, "max", keepdims=True)

    def counts(s: Expr) -> Expr:
        return apply("gt", apply("abs", s), lit(NEARLY_ZERO, s.dtype))

    def raised(s: Expr, m: Expr) -> Expr:
        return apply("exp", apply("sub", s, m))

    counted = b.map(
        lambda s, m: apply("select", counts(s), raised(s, m), lit(0, s.dtype)), scores, peak
    )
    total = reduced(b, counted, last, "sum", keepdims=True)

    def share(s: Expr, m: Expr, sum_: Expr) -> Expr:
        small = apply("mul", s, apply("exp", apply("neg", m)))
        return apply("div", apply("select", counts(s), raised(s, m), small), sum_)

    return b.map(share, scores, peak, total)


def _probit(s: Expr) -> Expr:
    """sqrt(2) * erfinv(2 s - 1), the inverse by Winitzki's closed form with a = 0.147."""
    x = apply("sub", apply("mul", s, lit(2, s.dtype)), lit(1, s.dtype))
    one = lit(1, s.dtype)
    log = apply("log", apply("mul", apply("sub", one, x), apply("add", one, x)))
    half = apply("mul", log, lit(0.5, s.dtype))
    v = apply("add", half, lit(2 / (math.pi * 0.147), s.dtype))
    square = apply("sub", apply("mul", v, v), apply("mul", log, lit(1 / 0.147, s.dtype)))
    size = apply("sqrt", apply("sub", apply("sqrt", square), v))
    sign = apply("select", apply("lt", x, lit(0, s.dtype)), lit(-1, s.dtype), one)
    return apply("mul", apply("mul", sign, size), lit(math.sqrt(2), s.dtype))


def paired(b: Builder, score: Tensor, fn: Callable[[Expr], tuple[Expr, Expr]]) -> Tensor:
    """The two columns that `fn` makes of the only column of `score` {n, 1}."""
    axes = b.axes((*score.shape[:-1], 2))
    first, second = fn(b.read(score, [*(a.index for a in axes[:-1]), 0]))
    which = apply("eq", IndexValue(axes[-1].index), lit(0, DType.I64))
    return b.nest(axes, apply("select", which, first, second))


def two_classes(b: Builder, score: Tensor, how: str, *, positive: bool) -> tuple[Tensor, Tensor]:
    """The class {n} and the scores {n, 2} of two classes that share the score {n, 1}."""
    found = above(b, score, 0, 0.5 if positive else 0.0)
    if how == "PROBIT":
        return found, b.map(_probit, score)
    if positive or how == "LOGISTIC":
        return found, complemented(b, score, how)
    return found, paired(b, score, lambda s: (apply("neg", s), s))


def above(b: Builder, scores: Tensor, column: int, limit: float) -> Tensor:
    """{n}: 1 where a column of {n, classes} is above the limit, else 0."""
    axes = b.axes(scores.shape[:1])
    found = apply("gt", b.read(scores, [axes[0].index, column]), lit(limit, scores.dtype))
    return b.nest(axes, cast(found, DType.I64))


def complemented(b: Builder, score: Tensor, how: str) -> Tensor:
    """{n, 2}: the score {n, 1} of the second class and the first's: 1 - s, sigmoid(-s)."""
    if how == "LOGISTIC":
        return paired(b, score, lambda s: (sigmoid_of(apply("neg", s)), sigmoid_of(s)))
    return paired(b, score, lambda s: (apply("sub", lit(1, s.dtype), s), s))


def best(b: Builder, scores: Tensor) -> Tensor:
    """The position {n} of the largest score of each row of {n, classes}, the first of equals."""
    axes = b.axes(scores.shape)
    if axes[-1].dim is None:
        return b.nest(axes[:-1], lit(0, DType.I64))
    return place_of_extreme(b, axes[:-1], b.spread(scores, axes), axes[-1])


class Labels:
    """The labels of a classifier's classes: integers or strings."""

    def __init__(self, ints: Sequence[int], strings: Sequence[str]) -> None:
        if strings and ints:
            raise OperatorError("both integer and string class labels are given")
        self.strings = bool(strings)
        self.values: tuple[int | str, ...] = tuple(strings) or tuple(ints)

    def __len__(self) -> int:
        return len(self.values)

    def two(self) -> Labels:
        """These if they are two, else 0 and 1."""
        if len(self) == 2:
            return self
        return Labels((), ("0", "1")) if self.strings else Labels((0, 1), ())

    def of(self, b: Builder, found: Tensor) -> Tensor:
        """The labels of the classes at positions `found`."""
        kind = DType.STRING if self.strings else DType.I64
        known = np.array(self.values, object if self.strings else np.int64)
        if not known.size:
            raise OperatorError("no class labels are given")
        named = b.constant(known, kind, "labels")
        return b.map(lambda i: b.read(named, [i]), found)
