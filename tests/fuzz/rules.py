"""Which oracle counts where they differ, and what no operand may be.

What `tests.fuzz.oracles` knows of operators stands here and in `tests.fuzz.unspecified`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from rutc.verify.tolerance import is_float
from tests.fuzz import rules_contrib
from tests.fuzz.data import iinfo

Array = Any
"""A value: a numpy array, a list of them, or None."""
Feed = Mapping[str, Array]

CONTRIB = "com.microsoft"
"""ONNX Runtime's own operators; only it computes them."""

LARGE = 1e6
"""Numbers from which on quantised ones may have overflowed an integer on the way."""

_EXACT = """
    Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Concat Pad Tile Expand Gather
    GatherElements GatherND ScatterND ScatterElements Where Max Min Relu Abs Neg Sign Clip Ceil
    Floor Round Trilu DepthToSpace SpaceToDepth ReduceMax ReduceMin MaxPool GlobalMaxPool TopK
    Compress ReverseSequence Shape Size NonZero Unique OneHot EyeLike ConstantOfShape Hardmax
    CenterCropPad SequenceAt SequenceConstruct SequenceInsert SequenceErase ConcatFromSequence
    SplitToSequence TensorScatter MaxUnpool BitCast Cast CastLike ThresholdedRelu
"""
EXACT = frozenset(_EXACT.split()) | rules_contrib.EXACT
"""Operators that give operands' elements, or roundings of them."""

_SUMS = """
    MatMul Gemm Einsum Conv ConvTranspose DFT STFT ReduceSum ReduceMean ReduceLogSum
    ReduceLogSumExp BatchNormalization InstanceNormalization LayerNormalization
    GroupNormalization MeanVarianceNormalization AveragePool GlobalAveragePool Resize GridSample
    RoiAlign RNN GRU LSTM Attention CumSum Det Col2Im RotaryEmbedding LinearRegressor Scan Loop
    LogSoftmax HannWindow HammingWindow BlackmanWindow HardSwish HardSigmoid TfIdfVectorizer
    Gelu Mish Softplus NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
"""
SUMS = frozenset(_SUMS.split()) | rules_contrib.SUMS
"""Operators whose zeros may come of cancellation, and then be another number elsewhere."""

ABSOLUTE = (
    frozenset(
        [
            *("RNN", "GRU", "LSTM", "Sigmoid", "Tanh", "Softmax", "Attention", "Celu", "Elu"),
            *("Selu", "Gelu", "Mish", "Softplus", "LinearClassifier", "SVMClassifier"),
            *("LinearRegressor", "SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier"),
            "TreeEnsembleRegressor",
        ]
    )
    | rules_contrib.ABSOLUTE
)
"""Operators whose error is of the size of their range, or of exp(x) - 1 of numbers around 1,
however small a result."""

_CHOICES = """
    ArgMax ArgMin Hardmax TopK MaxPool Unique NonMaxSuppression LabelEncoder TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor LinearClassifier SVMClassifier
"""
CHOICES = frozenset(_CHOICES.split())
"""Operators that choose one of many: a few values of an open operand do not show all results."""

COUNTING = frozenset(["Unique", "NonZero", "Compress", "NonMaxSuppression"])
"""Operators whose operands' elements decide the shape of the result; those that are open do not."""

STABLE = frozenset(["Det", f"{CONTRIB}.Inverse"])
"""Operators whose results are at best exact for operands that are a rounding away."""

_NARROWLY_SUMMED = """
    ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare ReduceProd
    CumSum CumProd GlobalAveragePool
"""
NARROWLY_SUMMED = frozenset(_NARROWLY_SUMMED.split())
"""Operators that the reference computes in narrow types, one rounding an element."""

_SINGLE = """
    Erf Gelu HardSwish Celu HardSigmoid Selu Mish InstanceNormalization BatchNormalization
    LayerNormalization RMSNormalization GroupNormalization MeanVarianceNormalization GridSample
    Resize Upsample LRN Swish LeakyRelu Elu Attention TreeEnsemble
"""
SINGLE = frozenset(_SINGLE.split()) | rules_contrib.SINGLE
"""Operators that the oracles compute, whatever the type, from constants of single precision."""


def operator_name(node: NodeProto) -> str:
    """The node's operator, after its domain where that is not of the standard."""
    return f"{CONTRIB}.{node.op_type}" if node.domain == CONTRIB else node.op_type


@dataclass(frozen=True)
class Rule:
    """Which oracle counts for operators, and why; `when` looks at the node and its operands.

    `counts` is "ort", "reference", or "wide": the reference, given narrow floats in single
    precision, its results then stored in their type. With "rows" both count, the reference given
    the operand as rows of all axes from one on.
    """

    operators: frozenset[str]
    counts: str
    why: str
    when: Callable[[NodeProto, Feed, int], bool] = lambda node, feed, opset: True


def _integers(node: NodeProto, feed: Feed, opset: int) -> bool:
    first = feed[next(n for n in node.input if n)]
    return isinstance(first, np.ndarray) and first.dtype.kind in "iu"


def _narrow(node: NodeProto, feed: Feed, opset: int) -> bool:
    return bool(is_float(feed[node.input[0]].dtype) and feed[node.input[0]].dtype.itemsize == 2)


RULES: tuple[Rule, ...] = (
    Rule(
        NARROWLY_SUMMED,
        "wide",
        "the reference rounds every partial sum to the narrow type, where a long one no longer "
        "grows; ONNX Runtime has no kernel",
        _narrow,
    ),
    Rule(
        frozenset({"Div", "Mod"}),
        "reference",
        "ONNX Runtime's process ends at an integer division by zero or an overflowing one; numpy "
        "gives 0, or the smallest integer",
        _integers,
    ),
    Rule(
        frozenset({"GlobalMaxPool"}),
        "ort",
        "the reference reduces two axes however many there are",
    ),
    Rule(
        frozenset({"LRN"}),
        "ort",
        "the reference goes through as many channels as there are images",
    ),
    Rule(
        frozenset({"Softmax", "LogSoftmax", "Hardmax"}),
        "rows",
        "the reference knows one axis only, opsets before 13 all from an axis on",
        lambda node, feed, opset: opset < 13,
    ),
    Rule(
        frozenset({"Softmax", "LogSoftmax"}),
        "wide",
        "the reference rounds exponentials, their sum and its logarithm to the narrow type; ONNX "
        "Runtime has no kernel for all of them",
        _narrow,
    ),
    Rule(
        frozenset(
            {
                "LayerNormalization",
                "RMSNormalization",
                "GroupNormalization",
                "MeanVarianceNormalization",
            }
        ),
        "ort",
        "the reference computes in the narrow type, not in that of stash_type",
        lambda node, feed, opset: feed[node.input[0]].dtype.itemsize == 2,
    ),
    Rule(
        frozenset({"RNN", "GRU", "LSTM"}),
        "ort",
        "the reference leaves sequence_lens out",
        lambda node, feed, opset: len(node.input) > 4 and bool(node.input[4]),
    ),
    Rule(
        frozenset({"Loop"}),
        "ort",
        "the reference makes no trip without a condition, and does not stack one result",
    ),
    Rule(
        frozenset({"LpNormalization"}),
        "ort",
        "the reference adds up powers of the elements, not of their magnitudes",
    ),
    Rule(
        frozenset({"Gemm"}),
        "ort",
        "the reference multiplies with alpha, a float, what may be more than a float holds",
        _integers,
    ),
    Rule(
        frozenset({"AveragePool"}),
        "ort",
        "the reference leaves out dilations of the extents and NaN of the sums",
    ),
    Rule(
        frozenset({"MaxPool", "LpPool", "QLinearConv", "ConvInteger"}),
        "ort",
        "the reference gives other extents where the padding follows from the extents",
        lambda node, feed, opset: any(a.s.startswith(b"SAME") for a in node.attribute),
    ),
    Rule(
        frozenset({"MaxPool"}),
        "ort",
        "the reference leaves padding out of the extents where one side of an axis has none",
        lambda node, feed, opset: any(a.name == "pads" and not all(a.ints) for a in node.attribute),
    ),
    Rule(
        frozenset({"LpPool"}),
        "ort",
        "the reference multiplies means of elements by the extent of a whole window, padding and "
        "what the window covers of it or not",
        lambda node, feed, opset: any(a.name in ("pads", "ceil_mode") for a in node.attribute),
    ),
    Rule(
        frozenset({"ConvTranspose"}),
        "ort",
        "the reference takes each group's bias, and its weights, from where the first's are",
        lambda node, feed, opset: any(a.name == "group" and a.i > 1 for a in node.attribute),
    ),
    Rule(
        frozenset({"Unique"}),
        "ort",
        "the reference does not restore the order of appearance along axes other than the first",
    ),
    Rule(
        frozenset({"TreeEnsembleRegressor"}),
        "reference",
        "ONNX Runtime leaves the base value out of a target without a vote",
        lambda node, feed, opset: any(a.name == "base_values" for a in node.attribute),
    ),
    Rule(
        frozenset({"TreeEnsembleRegressor", "TreeEnsemble"}),
        "ort",
        "the reference has no post transform, and the type's limits for targets without a vote",
    ),
    Rule(
        frozenset({"Optional"}),
        "ort",
        "the reference gives a list of the element",
    ),
    Rule(
        frozenset({"LinearClassifier", "SVMClassifier", "FeatureVectorizer"}),
        "ort",
        "the reference gives labels, and features, of other types and shapes",
    ),
    Rule(
        frozenset({"TfIdfVectorizer"}),
        "ort",
        "the reference gives the columns the weights, which are those of n-grams",
        lambda node, feed, opset: any(a.name == "weights" for a in node.attribute),
    ),
    Rule(
        frozenset({"StringSplit"}),
        "reference",
        "ONNX Runtime gives no part of an empty string, which by the text is one as what stands "
        "before and after each delimiter is",
        lambda node, feed, opset: bool(
            any(a.name == "delimiter" and a.s for a in node.attribute)
            and (feed[node.input[0]] == "").any()
        ),
    ),
    Rule(
        frozenset({"ReverseSequence"}),
        "ort",
        "the reference takes lengths beyond the extent",
    ),
    Rule(
        frozenset({"Resize"}),
        "ort",
        "the reference takes scale times extent for the length of the result, a fraction",
        lambda node, feed, opset: any(a.s == b"pytorch_half_pixel" for a in node.attribute),
    ),
    Rule(
        frozenset({"Resize"}),
        "ort",
        "the reference multiplies the neighbours of the nearest element by 0, infinite ones too",
        lambda node, feed, opset: not _finite(feed[node.input[0]]),
    ),
)


def _finite(array: np.ndarray) -> bool:
    return not is_float(array.dtype) or bool(np.isfinite(array.astype(np.float64)).all())


def _labelled(node: NodeProto, feed: Feed) -> bool:
    scores, labels = (feed[n].shape for n in node.input[:2])
    return bool(scores[:1] + scores[2:] == labels)


def _batches_equal(node: NodeProto, feed: Feed) -> bool:
    return len({feed[n].shape[0] for n in node.input[:3]}) == 1


def _some_numbers(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    return bool(x.size) and not (is_float(x.dtype) and np.isnan(x.astype(np.float64)).any())


def _has_elements(node: NodeProto, feed: Feed) -> bool:
    return bool(feed[node.input[0]].size)


def _reduces_exactly(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    if is_float(x.dtype):
        return True
    return bool(x.size) and float(np.abs(x.astype(np.float64)).sum()) < 2.0**53


def _squares_fit(node: NodeProto, feed: Feed) -> bool:
    """The type holds the sum of squares; the reference sums in a wider one, but squares in it."""
    x = feed[node.input[0]]
    if is_float(x.dtype):
        return True
    return bool(x.size) and float((x.astype(np.float64) ** 2).sum()) < min(
        float(iinfo(x.dtype).max), 2.0**53
    )


def _boxes_counted(node: NodeProto, feed: Feed) -> bool:
    rois, batch = (feed[n] for n in node.input[1:3])
    return _finite_image(node, feed) and rois.shape == (len(batch), 4)


def _channels_match(node: NodeProto, feed: Feed) -> bool:
    x, *rest = (feed[n] for n in node.input)
    return all(a.shape == x.shape[1:2] for a in rest)


def _computed_widely(node: NodeProto, feed: Feed) -> bool:
    """The reference gives another type for narrow ones."""
    return bool(feed[node.input[0]].dtype.itemsize > 2)


def _floating(node: NodeProto, feed: Feed) -> bool:
    return bool(is_float(feed[node.input[0]].dtype))


def _window_fits(node: NodeProto, feed: Feed) -> bool:
    """A window lies in the padded extents; else ONNX Runtime rounds a negative quotient up."""
    given = {a.name: list(a.ints) for a in node.attribute}
    kernel = given["kernel_shape"]
    shape = feed[node.input[0]].shape
    last = any(a.name == "channels_last" and a.i for a in node.attribute)
    inner = last or node.op_type.startswith("Nhwc")
    count, extents = len(kernel), shape[1:-1] if inner else shape[2:]
    if any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute):
        return True
    pads, dilations = given.get("pads") or [0] * (2 * count), given.get("dilations") or [1] * count
    return all(
        dilations[k] * (kernel[k] - 1) < extents[k] + pads[k] + pads[count + k]
        for k in range(count)
    )


def _pools_plainly(node: NodeProto, feed: Feed) -> bool:
    dilated = any(a.name == "dilations" and max(a.ints) > 1 for a in node.attribute)
    same = any(a.s.startswith(b"SAME") for a in node.attribute)
    x = feed[node.input[0]]
    plain = not (dilated and same) and not np.isnan(x.astype(np.float64)).any()
    return plain and _window_fits(node, feed)


def _finite_operands(node: NodeProto, feed: Feed) -> bool:
    floats = [a for a in feed.values() if is_float(a.dtype)]
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in floats)


def _finite_image(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    nearest = any(a.name == "mode" and a.s == b"nearest" for a in node.attribute)
    return nearest or _finite(x)


def _finite_weights(node: NodeProto, feed: Feed) -> bool:
    """Finite weights; between dilated ones the reference multiplies elements with zeros."""
    dilated = any(a.name == "dilations" and max(a.ints) > 1 for a in node.attribute)
    if dilated:
        return _finite_operands(node, feed)
    return _finite(feed[node.input[1]])


def _updates_fit(node: NodeProto, feed: Feed) -> bool:
    x, at, updates = (feed[n].shape for n in node.input)
    return bool(updates == at[:-1] + x[at[-1] :])


def _finite_and_fitting(node: NodeProto, feed: Feed) -> bool:
    hidden, peepholes = feed[node.input[2]].shape[2], [feed[n] for n in node.input[7:]]
    fit = all(p.shape[1] == 3 * hidden for p in peepholes)
    return fit and _finite_operands(node, feed)


def _finite_and_some(node: NodeProto, feed: Feed) -> bool:
    """ONNX Runtime leaves sums of nothing as they are in memory."""
    return all(bool(a.size) for a in feed.values()) and _finite_operands(node, feed)


def _second_spreads(node: NodeProto, feed: Feed) -> bool:
    """The second operand spreads over the first, of whose shape the result is."""
    x, other = (feed[n].shape for n in node.input[:2])
    return len(other) <= len(x) and all(
        e in (1, n) for e, n in zip(other[::-1], x[::-1], strict=False)
    )


def _states_fit(node: NodeProto, feed: Feed) -> bool:
    """States as the body declares them, where its shapes alone tell those of no trips' results."""
    (body,) = (a.g for a in node.attribute if a.name == "body")
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in body.input[2:]]
    given = [feed[n] for n in node.input[2:]]
    known = [(list(a.shape), s) for a, s in zip(given, shapes, strict=True) if _is_tensor(a)]
    trips, going = (feed[n] if n else np.array(1) for n in node.input[:2])
    return bool((trips > 0).all() and going.all()) or all(a == s for a, s in known)


def _is_tensor(value: Array) -> bool:
    return isinstance(value, np.ndarray)


def _moderate(node: NodeProto, feed: Feed) -> bool:
    """Scores beyond what a float holds are no classes, and no probabilities."""
    x = feed[node.input[0]].astype(np.float64)
    return bool((np.abs(x) < LARGE).all())


def _joinable(node: NodeProto, feed: Feed) -> bool:
    """Extents other than those joined are equal; ONNX Runtime passes over what has no elements."""
    parts = [p for n in node.input for p in (feed[n] if isinstance(feed[n], list) else [feed[n]])]
    given = {a.name: a.i for a in node.attribute}
    ranks = {p.ndim for p in parts}
    if len(ranks) != 1:
        return False
    at = -1 if given.get("new_axis") else given["axis"] % max(1, *ranks)
    return len({tuple(e for k, e in enumerate(p.shape) if k != at) for p in parts}) == 1


def _scales_fit(node: NodeProto, feed: Feed) -> bool:
    """One scale for all, for each place along the axis, or for blocks; the reference broadcasts."""
    x, scale = (feed[n].shape for n in node.input[:2])
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    if len(scale) != 1 or scale == (1,):
        return True
    return -len(x) <= axis < len(x) and x[axis] == scale[0]


def _reflects(node: NodeProto, feed: Feed) -> bool:
    """What is reflected has as many other elements as it is padded with."""
    if all(a.s != b"reflect" for a in node.attribute):
        return True
    x, count = feed[node.input[0]], feed[node.input[0]].ndim
    given = next((a.ints for a in node.attribute if a.name == "pads"), None)
    pads = list(given) if given is not None else feed[node.input[1]].tolist()
    axes = feed[node.input[3]].tolist() if len(node.input) > 3 else range(count)
    most = [max(pads[k], pads[k + len(pads) // 2]) for k in range(len(pads) // 2)]
    return all(p < max(1, x.shape[a]) for a, p in zip(axes, most, strict=False))


VALID: Mapping[str, Callable[[NodeProto, Feed], bool]] = {
    "NegativeLogLikelihoodLoss": _labelled,
    "SoftmaxCrossEntropyLoss": _labelled,
    "Attention": _batches_equal,
    "Unique": _some_numbers,
    "Det": _computed_widely,
    "ReduceLogSum": _floating,
    "ReduceLogSumExp": _floating,
    "MaxPool": _pools_plainly,
    "AveragePool": _pools_plainly,
    "LpPool": _pools_plainly,
    "Upsample": _finite_image,
    "Pad": _reflects,
    "QuantizeLinear": _scales_fit,
    "DequantizeLinear": _scales_fit,
    "Concat": _joinable,
    "ConcatFromSequence": _joinable,
    "RNN": _finite_operands,
    "GRU": _finite_operands,
    "LSTM": _finite_and_fitting,
    "ScatterND": _updates_fit,
    "RoiAlign": _boxes_counted,
    "ArgMax": _has_elements,
    "ArgMin": _has_elements,
    "ReduceMean": _reduces_exactly,
    "ReduceSumSquare": _squares_fit,
    "ReduceL1": _reduces_exactly,
    "ReduceL2": _squares_fit,
    "ReduceSum": _reduces_exactly,
    "ReduceProd": _reduces_exactly,
    "BatchNormalization": _channels_match,
    "OneHot": _finite_operands,
    "GridSample": _finite_image,
    "Resize": _finite_image,
    "Conv": _finite_weights,
    "ConvTranspose": _finite_weights,
    "DeformConv": _finite_operands,
    "LinearAttention": _finite_operands,
    "CausalConvWithState": _finite_operands,
    "NonMaxSuppression": _finite_operands,
    "AffineGrid": _finite_operands,
    "MaxRoiPool": _finite_operands,
    "SVMClassifier": _moderate,
    "SVMRegressor": _moderate,
    "LinearClassifier": _moderate,
    **dict.fromkeys(rules_contrib.FINITE, _finite_operands),
    **dict.fromkeys(rules_contrib.NOT_EMPTY, _finite_and_some),
    "com.microsoft.NhwcMaxPool": _pools_plainly,
    "com.microsoft.QLinearAveragePool": _window_fits,
    **dict.fromkeys(rules_contrib.SKIPPING, _second_spreads),
    "Loop": _states_fit,
    "PRelu": _second_spreads,
}
"""What operands must be, where an oracle takes others or is known to fail, or where (0 times an
infinite weight, outside of an image or between its elements) the standard leaves it open."""


def counting(node: NodeProto, feed: Feed, opset: int) -> str:
    """The oracle that alone counts for a node (see `Rule`), or "" for both."""
    for rule in RULES:
        if operator_name(node) in rule.operators and rule.when(node, feed, opset):
            return rule.counts
    return ""


def determinant_terms(node: NodeProto, feed: Feed) -> np.ndarray:
    """At most what each determinant's terms are: the product of its rows' lengths."""
    x = np.abs(feed[node.input[0]].astype(np.float64))
    with np.errstate(all="ignore"):
        return np.asarray(np.nan_to_num(x.sum(-1).prod(-1), nan=np.inf, posinf=np.inf))


def _determinant_error(node: NodeProto, feed: Feed) -> np.ndarray:
    """The terms, times how far a determinant is from 1: the reference adds up logarithms."""
    terms = determinant_terms(node, feed)
    with np.errstate(all="ignore"):
        return np.asarray(terms * (1 + np.abs(np.log(np.where(terms > 0, terms, 1)))))


TERMS: Mapping[str, Callable[[NodeProto, Feed], np.ndarray]] = {"Det": _determinant_error}
"""How large the terms are that cancel, where it is not a product of two operands' elements."""
