"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add, sigmoid_of
from rutc.importer.ops.contraction import matmul_of
from rutc.importer.ops.coupling import coupled
from rutc.importer.ops.operands import static
from rutc.importer.ops.scores import (
    ML,
    Labels,
    above,
    best,
    complemented,
    floats,
    matrix,
    of_features,
    paired,
    table,
    transformed,
)
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, apply, cast


def _products(b: Builder, x: Tensor, coefficients: Sequence[float], rows: int) -> Tensor:
    """x {n, features} times the transposed coefficients {rows, features}."""
    x = of_features(b, x, len(coefficients) // max(rows, 1))
    features = static(x.shape[1], "the number of features")
    weights = np.array(coefficients, np.float32)
    if weights.size != rows * features:
        raise OperatorError(
            f"there are {weights.size} coefficients; {rows} rows of {features} features need "
            f"{rows * features}"
        )
    return matmul_of(b, x, b.constant(weights.reshape(rows, features).T.copy()))


def _plus(b: Builder, y: Tensor, values: Sequence[float], what: str) -> Tensor:
    """y {n, m} plus one value for each column, or one for all."""
    if not values:
        return y
    columns = static(y.shape[1], "the number of columns")
    each = table(b, values, (1 if len(values) == 1 else columns,), what)
    return b.map(add, y, each)


@operator("LinearRegressor", ML)
def linear_regressor(
    b: Builder,
    x: Tensor,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """x times the coefficients plus the intercepts: {n, targets}."""
    rows = floats(b, matrix(b, x))
    y = _plus(b, _products(b, rows, coefficients, targets), intercepts, "intercepts")
    if targets == 1 and post_transform != "PROBIT":
        return y
    return transformed(b, y, post_transform)


@operator("LinearClassifier", ML)
def linear_classifier(
    b: Builder,
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    """The label {n} of the class with the highest score, and all scores.

    A single row of coefficients scores the second of two classes, which wins above 0.
    """
    rows = floats(b, matrix(b, x))
    labels = Labels(classlabels_ints, classlabels_strings)
    if intercepts:
        rows = of_features(b, rows, len(coefficients) // len(intercepts))
    features = static(rows.shape[1], "the number of features")
    count = len(intercepts) or max(len(coefficients) // max(features, 1), 1)
    y = _plus(b, _products(b, rows, coefficients, count), intercepts, "intercepts")
    if count > 1:
        return labels.of(b, best(b, y)), transformed(b, y, post_transform)
    label = labels.two().of(b, above(b, y, 0, 0.0))
    if post_transform == "PROBIT" or len(labels) != 2:
        return label, transformed(b, y, post_transform) if post_transform == "PROBIT" else y
    return label, complemented(b, y, post_transform)


def _kernel(
    b: Builder, x: Tensor, vectors: np.ndarray, kind: str, params: Sequence[float]
) -> Tensor:
    """{n, vectors}: the kernel of each row of x with each support vector."""
    gamma, shift, degree = params if len(params) == 3 else (0.0, 0.0, 0.0)
    if kind == "RBF":
        axes = b.axes((x.shape[0], len(vectors)), ("n", "vector"))
        feature = b.axis(x.shape[1], "feature")
        mine = b.read(x, [axes[0].index, feature.index])
        far = apply("sub", mine, b.read(b.constant(vectors), [axes[1].index, feature.index]))
        distance = b.nest(axes, apply("mul", far, far), (feature,))
        return b.map(lambda d: apply("exp", apply("mul", d, lit(-gamma, d.dtype))), distance)
    dot = matmul_of(b, x, b.constant(vectors.T.copy()))
    if kind == "LINEAR":
        return dot
    if kind not in ("POLY", "SIGMOID"):
        raise OperatorError(f"the kernel {kind!r} is unknown")

    line = b.map(
        lambda d: apply("add", apply("mul", d, lit(gamma, d.dtype)), lit(shift, d.dtype)), dot
    )
    if kind == "SIGMOID":
        return b.map(lambda e: apply("tanh", e), line)
    return b.map(lambda e: apply("pow", e, lit(int(degree), e.dtype)), line)


def _weighed(b: Builder, k: Tensor, weights: np.ndarray, rho: Sequence[float]) -> Tensor:
    """k {n, vectors} times weights {vectors, m} plus rho, summed in f64.

    Weights of both signs nearly cancel each other: in f32 the rounding errors of many of them are
    more than those of all that comes before.
    """
    y = matmul_of(b, k, b.constant(np.ascontiguousarray(weights, np.float64)), DType.F64)
    if not rho:
        return b.map(lambda e: cast(e, DType.F32), y)
    each = b.constant(np.array(rho, np.float32).astype(np.float64))
    return b.map(lambda e, c: cast(apply("add", e, c), DType.F32), y, each)


def _vectors(x: Tensor, values: Sequence[float], count: int) -> np.ndarray:
    features = static(x.shape[1], "the number of features")
    if len(values) != count * features:
        raise OperatorError(f"{len(values)} numbers for {count} vectors of {features} features")
    return np.array(values, np.float32).reshape(count, features)


@operator("SVMRegressor", ML)
def svm_regressor(
    b: Builder,
    x: Tensor,
    *,
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (),
) -> Tensor:
    """{n, 1}: the kernels weighted plus rho; for `one_class` 1 where that is above 0, else -1."""
    rows = floats(b, matrix(b, x))
    if n_supports > 0:
        rows = of_features(b, rows, len(support_vectors) // n_supports)
        vectors = _vectors(rows, support_vectors, n_supports)
        k = _kernel(b, rows, vectors, kernel_type, kernel_params)
        if len(coefficients) != n_supports:
            raise OperatorError(f"{len(coefficients)} coefficients for {n_supports} vectors")
        y = _weighed(b, k, np.array(coefficients, np.float32).reshape(-1, 1), rho[:1])
    else:
        y = _plus(b, _products(b, rows, coefficients, 1), rho[:1], "rho")
    if one_class:
        one, minus = lit(1, DType.F32), lit(-1, DType.F32)
        return b.map(lambda e: apply("select", apply("gt", e, lit(0, e.dtype)), one, minus), y)
    return transformed(b, y, post_transform) if post_transform == "PROBIT" else y


@operator("SVMClassifier", ML)
def svm_classifier(
    b: Builder,
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """The label {n} that most pairs of classes vote for, and the scores of classes or pairs."""
    rows = floats(b, matrix(b, x))
    labels = Labels(classlabels_ints, classlabels_strings)
    classes = len(labels)
    count = sum(vectors_per_class)
    if not count:
        return _linear_machine(b, rows, labels, coefficients, rho, post_transform)
    if len(vectors_per_class) != classes or classes < 2:
        raise OperatorError(f"vectors of {len(vectors_per_class)} classes for {classes} labels")
    rows = of_features(b, rows, len(support_vectors) // count)
    vectors = _vectors(rows, support_vectors, count)
    pairs = list(combinations(range(classes), 2))
    weights = _pair_weights(coefficients, vectors_per_class, pairs)
    k = _kernel(b, rows, vectors, kernel_type, kernel_params)
    if len(rho) != len(pairs):
        raise OperatorError(f"rho has {len(rho)} values for {len(pairs)} pairs of classes")
    scores = _weighed(b, k, weights.T, rho)
    label = labels.of(b, best(b, _votes(b, scores, pairs, classes)))
    if prob_a:
        given = len(prob_a), len(prob_b)
        if given != (len(pairs), len(pairs)):
            raise OperatorError(f"prob_a and prob_b have {given} values for {len(pairs)} pairs")
        likely = _pair_probabilities(b, scores, prob_a, prob_b)
        return label, transformed(b, coupled(b, likely, pairs, classes), post_transform)
    if classes > 2:
        return label, transformed(b, scores, post_transform)
    if post_transform == "NONE":
        return label, paired(b, scores, lambda s: (apply("neg", s), s))
    return label, complemented(b, scores, post_transform)


def _linear_machine(
    b: Builder,
    x: Tensor,
    labels: Labels,
    coefficients: Sequence[float],
    rho: Sequence[float],
    how: str,
) -> tuple[Tensor, Tensor]:
    """A machine without support vectors: a row of coefficients for each class, one rho for all."""
    classes = len(labels)
    y = _plus(b, _products(b, x, coefficients, classes), rho[:1], "rho")
    found = best(b, y)
    if classes == 2:
        limit = 0.5 if min(coefficients) >= 0 else 0.0
        test = "ge" if limit else "gt"
        axes = b.axes(y.shape[:1])
        scores = [b.read(y, [axes[0].index, c]) for c in (0, 1)]
        high = apply(test, apply("max", *scores), lit(limit, DType.F32))
        first = b.read(found, [axes[0].index])
        found = b.nest(axes, apply("select", high, lit(1, DType.I64), first))
    if classes == 1:
        return labels.of(b, found), transformed(b, y, how) if how == "PROBIT" else y
    return labels.of(b, found), transformed(b, y, how)


def _pair_weights(
    coefficients: Sequence[float], per_class: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> np.ndarray:
    """{pairs, vectors}: for classes i < j, row j - 1 at i's vectors and row i at j's."""
    count = sum(per_class)
    if len(coefficients) != (len(per_class) - 1) * count:
        raise OperatorError(
            f"{len(coefficients)} coefficients for {count} vectors of {len(per_class)} classes"
        )
    rows = np.array(coefficients, np.float32).reshape(-1, count)
    ends = np.cumsum(per_class)
    own = [slice(end - n, end) for end, n in zip(ends, per_class, strict=True)]
    weights = np.zeros((len(pairs), count), np.float32)
    for p, (i, j) in enumerate(pairs):
        weights[p, own[i]] = rows[j - 1, own[i]]
        weights[p, own[j]] = rows[i, own[j]]
    return weights


def _votes(b: Builder, scores: Tensor, pairs: Sequence[tuple[int, int]], classes: int) -> Tensor:
    """{n, classes}: how many pairs a class wins, the first of the pair above 0."""
    for_above = np.array([[c == i for c in range(classes)] for i, _ in pairs], np.float32)
    for_below = np.array([[c == j for c in range(classes)] for _, j in pairs], np.float32)
    axes = b.axes((scores.shape[0], classes))
    pair = b.axis(len(pairs), "pair")
    won = apply("gt", b.read(scores, [axes[0].index, pair.index]), lit(0, DType.F32))
    at = [pair.index, axes[1].index]
    gain = apply(
        "select", won, b.read(b.constant(for_above), at), b.read(b.constant(for_below), at)
    )
    return b.nest(axes, gain, (pair,))


def _pair_probabilities(
    b: Builder, scores: Tensor, slope: Sequence[float], shift: Sequence[float]
) -> Tensor:
    """{n, pairs}: 1 - sigmoid(slope * score + shift), kept off 0 and 1."""
    a = table(b, slope, (len(slope),), "prob_a")
    c = table(b, shift, (len(shift),), "prob_b")

    def fn(s: Expr, p: Expr, q: Expr) -> Expr:
        line = apply("add", apply("mul", s, p), q)
        likely = apply("sub", lit(1, s.dtype), sigmoid_of(line))
        return apply("min", apply("max", likely, lit(1e-7, s.dtype)), lit(1 - 1e-7, s.dtype))

    return b.map(fn, scores, a, c)
