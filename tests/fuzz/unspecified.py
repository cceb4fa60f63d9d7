"""What the standard leaves open: such elements of results are not compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from rutc.verify.judging.tolerance import Level, is_float, tolerance
from tests.fuzz.data import finfo, iinfo, is_integer
from tests.fuzz.rules import CONTRIB, LARGE, Feed

Mask = Callable[[NodeProto, Feed, np.ndarray], np.ndarray]


def _whole_of(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What whole number NaN becomes, and a float that the type cannot hold."""
    x = feed[node.input[0]]
    if not is_float(x.dtype) or not is_integer(result.dtype):
        return np.zeros(result.shape, bool)
    real = x.astype(np.float64)
    if node.op_type == "QuantizeLinear":
        with np.errstate(all="ignore"):
            steps = np.abs(real) / np.abs(feed[node.input[1]].astype(np.float64)).min(initial=1)
        most = min(LARGE, float(finfo(x.dtype).max))
        return np.asarray(~(np.abs(real) < LARGE) | ~(steps < most))
    info = iinfo(result.dtype)
    return np.asarray(~((real > float(info.min) - 1) & (real < float(info.max) + 1)))


def _cast(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What whole number NaN becomes, and what power of two a negative number or a tiny one.

    An infinite number becomes the largest power of two by the standard, NaN by the reference.
    """
    x = feed[node.input[0]]
    if result.dtype.name != "float8_e8m0fnu":
        return _whole_of(node, feed, result)
    real = x.astype(np.float64)
    saturated = all(a.name != "saturate" or a.i for a in node.attribute)
    open_ones = np.isinf(real) if saturated else real < 2.0**-126
    return np.asarray(np.signbit(real) | open_ones)


def _large_whole(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What whole numbers become that a float does not hold."""
    x = feed[node.input[0]].astype(np.float64)
    return np.asarray(np.abs(x) > 2.0**53) if is_integer(result.dtype) else np.zeros(x.shape, bool)


def _largest_with_nan(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether a maximum over a window takes NaN for the largest element or leaves it out."""
    x = feed[node.input[0]]
    return np.full(result.shape, is_float(x.dtype) and bool(np.isnan(x.astype(np.float64)).any()))


def _largest(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether NaN is the largest, and the type's least number that of numbers which are less."""
    with_nan = _largest_with_nan(node, feed, result)
    if not is_float(result.dtype):
        return with_nan
    return with_nan | (result.astype(np.float64) == float(finfo(result.dtype).min))


def _least_of_window(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether the largest of nothing but minus infinity is the type's least number, and where."""
    if is_float(result.dtype):
        return np.asarray(result.astype(np.float64) == float(finfo(result.dtype).min))
    x = feed[node.input[0]]
    return np.full(result.shape, is_float(x.dtype) and bool((x == -np.inf).any()))


def _missing_in_trees(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Which way a missing number goes where what is not equal goes another way than what is."""
    x = feed[node.input[0]]
    unequal = any(b"BRANCH_NEQ" in a.strings for a in node.attribute if a.name == "nodes_modes")
    if not (unequal and is_float(x.dtype)) or result.shape[:1] != x.shape[:1]:
        return np.zeros(result.shape, bool)
    missing = np.isnan(x.astype(np.float64)).reshape(len(x), -1).any(1)
    return np.broadcast_to(missing.reshape(-1, *[1] * (result.ndim - 1)), result.shape)


def _scattered_nan(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether NaN, where several numbers go to one place, is the smallest and largest of them."""
    extreme = any(a.name == "reduction" and a.s in (b"min", b"max") for a in node.attribute)
    floats = [feed[n] for n in node.input if is_float(feed[n].dtype)]
    wild = any(bool(np.isnan(a.astype(np.float64)).any()) for a in floats)
    return np.full(result.shape, extreme and wild)


def _no_logarithm(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What is less than the logarithm of a tiny number, or of a finite one over an infinite one.

    As the logarithm of a softmax, which is 0 there or none, it is log(0) or none.
    """
    real = result.astype(np.float64)
    beyond = bool(np.isposinf(feed[node.input[0]].astype(np.float64)).any())
    kind = result.dtype if result.dtype.itemsize > 2 else np.dtype(np.float32)
    tiny = real < np.log(float(finfo(kind).smallest_normal))
    return np.asarray(tiny | (~np.isfinite(real) & beyond))


def _infinite_most(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """The sum of exponentials of infinite numbers, of which the largest is taken away first."""
    infinite = bool(np.isinf(feed[node.input[0]].astype(np.float64)).any())
    return np.asarray(np.isnan(result.astype(np.float64)) & infinite)


def _zero_slopes(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What 0 becomes by the text 0, by those who multiply it -0 (negative slopes) or NaN."""
    x, slope = (feed[n] for n in node.input)
    if not is_float(x.dtype):
        return np.zeros(result.shape, bool)
    real = slope.astype(np.float64)
    return np.asarray(np.broadcast_to((~np.isfinite(real) | (real < 0)) & (x == 0), result.shape))


def _beyond_range(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What is left of a sum after an infinite element has left it, and log(0) for log(tiny)."""
    return ~np.isfinite(result.astype(np.float64))


def _not_finite(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What comes of a range that is not finite: a scale, or sums with signs of any order."""
    x = feed[node.input[0]]
    with np.errstate(over="ignore", invalid="ignore"):
        span = x.max(initial=0) - x.min(initial=0)
    return np.full(result.shape, not np.isfinite(span))


def _no_step(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """The same, or of one so small that its 255th part, by which all are divided, is 0."""
    x = feed[node.input[0]].astype(np.float64)
    span = max(x.max(initial=0), 0) - min(x.min(initial=0), 0)
    tiny = 0 < span / 255 < float(finfo(np.dtype(np.float32)).smallest_normal)
    return _not_finite(node, feed, result) | tiny


def _windowed_not_finite(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """The same of a signal's products with a window."""
    signal = feed[node.input[0]]
    windows = [feed[n] for n in node.input[2:3] if n]
    with np.errstate(over="ignore", invalid="ignore"):
        most = np.prod([np.abs(a).max(initial=0) for a in (signal, *windows)], dtype=signal.dtype)
    return _not_finite(node, feed, result) | ~np.isfinite(most)


def _too_large_products(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What an infinite sum becomes by a finite product too large for the type.

    Where it meets an infinite number of the other sign, it is none if the product was rounded, and
    that number if the product was added exactly.
    """
    if not is_float(result.dtype):
        return np.zeros(result.shape, bool)
    sizes = [np.abs(feed[n].astype(np.float64)) for n in node.input[:2] if n]
    most = np.prod([np.where(np.isfinite(a), a, 0).max(initial=0) for a in sizes])
    return ~np.isfinite(result.astype(np.float64)) & bool(most > float(finfo(result.dtype).max))


def _too_large_inside(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What an activation makes of products that are too large for the type.

    The factors of an attention's scores are products themselves where it projects its operand.
    """
    sizes = [np.abs(feed[n].astype(np.float64)).max(initial=0) for n in node.input[:2] if n]
    terms = feed[node.input[0]].shape[-1]
    most = float(np.prod(sizes)) * terms
    if "Attention" in node.op_type:
        projected = node.op_type == "Attention"
        most = most**2 * terms if projected else most
    return np.full(result.shape, not most < float(finfo(result.dtype).max))


def _spread_or_too_large(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What infinite products add up to where one of their factors is spread along the sum.

    It may be taken out of the sum, in which infinite products of both signs are no number.
    """
    operands = [feed[n] for n in node.input]
    wild = not all(bool(np.isfinite(a.astype(np.float64)).all()) for a in operands)
    spread = any(1 in a.shape for a in operands)
    too_large = _too_large_products(node, feed, result)
    return too_large | (~np.isfinite(result.astype(np.float64)) & (wild and spread))


def _squares_overflow(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What a variance that is too large makes of the elements."""
    x = feed[node.input[0]].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        small = bool((x * x).sum() < float(finfo(result.dtype).max))
    return np.full(result.shape, not small)


def _cancelled_logarithm(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """The logarithm of a sum that may be negative, so small it is beside the largest element."""
    x = np.abs(feed[node.input[0]].astype(np.float64))
    with np.errstate(all="ignore"):
        total = np.exp(result.astype(np.float64))
        largest = np.nan_to_num(x, nan=0, posinf=0).max(initial=0)
        unsure = total <= tolerance(Level.KERNEL, result.dtype, x.size).scale * largest
    return np.asarray(unsure | ~np.isfinite(total))


def _product_overflows(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What a product becomes some of whose factors alone are too large for the type."""
    x = feed[node.input[0]]
    if not is_float(x.dtype):
        return np.zeros(result.shape, bool)
    size = np.abs(x.astype(np.float64))
    with np.errstate(all="ignore"):
        decades = np.log10(np.where(size > 1, size, 1)).sum()
    return np.full(result.shape, not decades < np.log10(float(finfo(x.dtype).max)))


def _power_overflows(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What a power becomes that neither the integer nor a float can hold."""
    if not is_integer(result.dtype):
        return np.zeros(result.shape, bool)
    base, exponent = (feed[n].astype(np.float64) for n in node.input)
    with np.errstate(all="ignore"):
        size = np.abs(np.broadcast_to(base**exponent, result.shape))
    most = min(float(iinfo(result.dtype).max), 2.0**53)
    return np.asarray(~(size <= most))


def _deviates_little(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What equal elements become, as the number added to their deviation is 0 in a narrow type."""
    narrow = result.dtype.itemsize == 2
    undefined = np.isnan(result.astype(np.float64)) & narrow
    return np.asarray(_squares_overflow(node, feed, result) | undefined)


def _loses_deviation(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What nearly equal elements become where the variance is a difference of large squares.

    Those of a channel are nearly equal: then those of its group may be.
    """
    x = feed[node.input[0]].astype(np.float64)
    last = any(a.name == "channels_last" and a.i for a in node.attribute)
    inner = tuple(range(1, x.ndim - 1)) if last else tuple(range(2, x.ndim))
    return np.asarray(_squares_overflow(node, feed, result) | _nearly_equal(x, inner, 1e-3))


def _equal_rows(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What elements become whose deviation is nothing but the rounding of their mean."""
    x = feed[node.input[0]].astype(np.float64)
    if node.op_type.startswith("Skip"):
        x = x + feed[node.input[1]].astype(np.float64)
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % max(x.ndim, 1)
    inner = tuple(range(axis, x.ndim))
    return np.asarray(_squares_overflow(node, feed, result) | _nearly_equal(x, inner, 1e-5))


def _mean_of_none(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """The mean of no elements: 0 by ONNX Runtime, NaN by the reference."""
    return np.full(result.shape, feed[node.input[0]].size == 0)


def _nearly_equal(x: np.ndarray, axes: tuple[int, ...], share: float) -> bool:
    """Whether some elements along the axes deviate by no more than that share of the largest."""
    with np.errstate(all="ignore"):
        return bool(x.size) and bool((x.std(axes) <= np.abs(x).max(axes) * share).any())


def _determinant_overflows(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What eliminating rows makes of numbers that are not finite, or have such products.

    A row that is larger by far takes all digits of the others, so its size counts for every row.
    """
    x = np.abs(feed[node.input[0]].astype(np.float64))
    with np.errstate(all="ignore"):
        size = np.nan_to_num(x.sum(-1).max(-1, initial=0), nan=np.inf) ** x.shape[-1]
    return np.asarray(~(size < float(finfo(result.dtype).max)))


def _masked_infinities(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether scores and values that are not finite count where the mask leaves them out.

    Added up, an infinite score and a mask of minus infinity are NaN; so are a mask that is NaN and
    one of minus infinity, and 0 times an infinite value. Implementations that do not compute what
    is masked give the result of the others. A weight so small that a narrow type makes 0 of it is
    as if it were masked.
    """
    masked = any(a.name == "is_causal" and a.i for a in node.attribute) or len(node.input) > 3
    q, k, v = (feed[n].astype(np.float64) for n in node.input[:3])
    with np.errstate(all="ignore"):
        finite = bool(np.isfinite(np.abs(q).max(initial=0) * np.abs(k).max(initial=0)))
    masks = [feed[n] for n in node.input[3:4] if n]
    finite &= not any(bool(np.isnan(m.astype(np.float64)).any()) for m in masks)
    valued = bool(np.isfinite(v).all())
    real = result.astype(np.float64)
    return np.isnan(real) & (masked and not (finite and valued)) | ~np.isfinite(real) & (not valued)


def _drawn(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Random numbers; the body that old opsets give for Bernoulli takes 1 - p for p."""
    return np.full(result.shape, True)


_PRODUCTS = "MatMul Gemm Conv ConvTranspose"
_CONTRIB_PRODUCTS = "FusedMatMul TransposeMatMul FusedGemm"
_ACTIVATED = """
    FusedMatMulActivation GemmFastGelu Attention MultiHeadAttention GroupQueryAttention
"""

UNSPECIFIED: Mapping[str, Mask] = {
    **dict.fromkeys(_PRODUCTS.split(), _too_large_products),
    "Einsum": _spread_or_too_large,
    **{f"{CONTRIB}.{n}": _too_large_products for n in _CONTRIB_PRODUCTS.split()},
    **{f"{CONTRIB}.{n}": _too_large_inside for n in _ACTIVATED.split()},
    **dict.fromkeys(
        (
            "RandomNormal",
            "RandomUniform",
            "RandomNormalLike",
            "RandomUniformLike",
            "Bernoulli",
            "Multinomial",
        ),
        _drawn,
    ),
    "Attention": _masked_infinities,
    "Cast": _cast,
    "CastLike": _cast,
    "Det": _determinant_overflows,
    "QuantizeLinear": _whole_of,
    "com.microsoft.QuantizeLinear": _whole_of,
    "com.microsoft.GroupNorm": _loses_deviation,
    "com.microsoft.LayerNormalization": _equal_rows,
    "com.microsoft.SkipLayerNormalization": _equal_rows,
    "com.microsoft.SimplifiedLayerNormalization": _squares_overflow,
    "GlobalAveragePool": _mean_of_none,
    "GlobalMaxPool": _largest,
    "MaxPool": _least_of_window,
    "TreeEnsembleRegressor": _missing_in_trees,
    "TreeEnsembleClassifier": _missing_in_trees,
    "Hardmax": _largest_with_nan,
    "TopK": _largest_with_nan,
    "Pow": _power_overflows,
    "ReduceProd": _product_overflows,
    "CumProd": _product_overflows,
    "InstanceNormalization": _squares_overflow,
    "LayerNormalization": _equal_rows,
    "GroupNormalization": _squares_overflow,
    "RMSNormalization": _squares_overflow,
    "MeanVarianceNormalization": _deviates_little,
    "LpNormalization": _squares_overflow,
    "LRN": _beyond_range,
    "LogSoftmax": _no_logarithm,
    "ReduceMean": _mean_of_none,
    "ReduceLogSum": _cancelled_logarithm,
    "ReduceLogSumExp": _infinite_most,
    "ScatterElements": _scattered_nan,
    "ScatterND": _scattered_nan,
    "PRelu": _zero_slopes,
    "BatchNormalization": _beyond_range,
    "Shrink": _large_whole,
    "DynamicQuantizeLinear": _no_step,
    "DFT": _not_finite,
    "STFT": _windowed_not_finite,
    "SoftmaxCrossEntropyLoss": _beyond_range,
}
"""Where the standard leaves a result open: such elements are not compared."""


@dataclass(frozen=True)
class Edge:
    """Numbers where a function jumps, ends or grows beyond all bounds: every `period`, from `at`.

    What becomes of an operand that may be on either side of one is open.
    """

    at: tuple[float, ...] = (0.0,)
    period: float = 0.0
    operand: int = 0


EDGES: Mapping[str, Edge] = {
    "Tan": Edge((np.pi / 2,), np.pi),
    "Reciprocal": Edge(),
    "Div": Edge(operand=1),
    "Log": Edge(),
    "Sqrt": Edge(),
    "Acos": Edge((-1.0, 1.0)),
    "Asin": Edge((-1.0, 1.0)),
    "Atanh": Edge((-1.0, 1.0)),
    "Acosh": Edge((1.0,)),
}


def crosses(edge: Edge, runs: Sequence[np.ndarray]) -> np.ndarray:
    """Which elements of an operand, computed several times, may be on either side of an edge.

    They may be as far from what was computed as that is apart.
    """
    if not is_float(runs[0].dtype):
        return np.zeros(runs[0].shape, bool)
    real = np.stack([np.nan_to_num(r.astype(np.float64)) for r in runs])
    low, high = real.min(0), real.max(0)
    with np.errstate(over="ignore"):
        apart = (high - low) / 2
        low, high = low - apart, high + apart
    found = np.zeros(low.shape, bool)
    for at in edge.at:
        if edge.period:
            found |= np.floor((low - at) / edge.period) != np.floor((high - at) / edge.period)
        else:
            found |= (low < at) & (high > at)
    return found
