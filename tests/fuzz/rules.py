"""Which oracle counts where they differ, and what no operand may be.

What `tests.fuzz.oracles` knows of operators stands here and in `tests.fuzz.unspecified`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from rutc.verify.judging.tolerance import is_float
from tests.fuzz import rules_contrib

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
SUMS = frozenset([*_SUMS.split(), "Adagrad", "Adam", "Momentum"]) | rules_contrib.SUMS
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
    DynamicQuantizeLinear
"""
CHOICES = frozenset(_CHOICES.split())
"""Operators that choose one of many: a few values of an open operand do not show all results."""

ROUNDING = frozenset(["Cast", "CastLike", "QuantizeLinear", f"{CONTRIB}.QuantizeLinear"])
"""Operators that may make one integer of all the values that show that an element is open."""

_COMPARING = """
    Equal Greater GreaterOrEqual Less LessOrEqual Max Min Div Mod BitShift BitwiseAnd BitwiseOr
"""
COMPARING = frozenset(_COMPARING.split())
"""Operators that may make the same of all values that show that an integer is open."""

BOUNDING = frozenset(["Clip", "HardSigmoid", "Sign", "ThresholdedRelu"])
"""Operators of a bounded range, in which an oracle gives NaN a place."""

UNSIGNED = frozenset(["Celu", "Relu", "Selu"])
"""Operators of whose zeros one oracle keeps the sign, and the other does not."""

BITWISE = frozenset(["BitCast"])
"""Operators that show the last bit of what other operators compute."""

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
        frozenset({"Gelu"}),
        "wide",
        "the reference rounds 1 + erf(x), which is 0 then, to the narrow type",
        _narrow,
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
        "the reference gives places of other elements",
        lambda node, feed, opset: len(node.output) > 1,
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
        frozenset({"LpPool"}),
        "ort",
        "the reference leaves out dilations of the extents where there is no padding",
        lambda node, feed, opset: any(a.s == b"VALID" for a in node.attribute),
    ),
    Rule(
        frozenset({"Min", "ReduceMin"}),
        "reference",
        "ONNX Runtime compares the lower halves of 64-bit integers",
        lambda node, feed, opset: feed[node.input[0]].dtype.itemsize == 8,
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
        "reference",
        "by the standard's tests, the corners of a result are those of scale times extent",
        lambda node, feed, opset: any(a.s == b"align_corners" for a in node.attribute),
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
        lambda node, feed, opset: not finite(feed[node.input[0]]),
    ),
)


def finite(array: np.ndarray) -> bool:
    """Whether no element is infinite or NaN; integers are neither."""
    return not is_float(array.dtype) or bool(np.isfinite(array.astype(np.float64)).all())


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


def largest_operand(node: NodeProto, feed: Feed) -> np.ndarray:
    """The largest finite element of any operand: steps are taken from what is optimised."""
    real = [np.abs(a.astype(np.float64)) for a in feed.values() if is_float(a.dtype)]
    return np.asarray(max((a[np.isfinite(a)].max(initial=0.0) for a in real), default=0.0))


def _recurrent_terms(node: NodeProto, feed: Feed) -> np.ndarray:
    """What a state is computed from, added up over the steps, each of which passes errors on."""
    x, w, r = (np.abs(feed[n].astype(np.float64)) for n in node.input[:3])
    state = max([np.abs(feed[n]).max(initial=1) for n in node.input[5:6] if n], default=1.0)
    largest = x.max(initial=0) * w.max(initial=0) * w.shape[-1]
    largest += float(state) * r.max(initial=0) * r.shape[-1]
    return np.asarray(largest * max(x.shape[:2], default=1))


TERMS: Mapping[str, Callable[[NodeProto, Feed], np.ndarray]] = {
    "Det": _determinant_error,
    **dict.fromkeys(("Adagrad", "Adam", "Momentum"), largest_operand),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _recurrent_terms),
}
"""How large the terms are that cancel, where it is not a product of two operands' elements."""
