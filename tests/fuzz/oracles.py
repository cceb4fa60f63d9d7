"""What a node must give: ONNX Runtime, the reference of the onnx package, and which of them counts.

Both compute every node by itself, on the same operands. Where they agree, that is the result.
Where they do not, `RULES` says which of them counts and why; where no rule says it, both do: a
result is right if it is either's, element by element, and the run counts the operator among the
disputed.

Both are only as exact as their own arithmetic, and a function that jumps makes much of a
rounding error. So a graph is computed four times: by the oracle that counts, by the other one, and
twice with results moved by as much as two implementations may differ (`rutc.verify.tolerance`).
How far the four are apart is what a result may be away, over the tolerance of its own node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, defs, helper
from onnx.reference import ReferenceEvaluator

from rutc.verify.tolerance import Level, is_float, tolerance
from tests.fuzz.data import is_integer

Array = Any
"""An element of a feed: a numpy array, a list of them, or None."""
Feed = Mapping[str, Array]

NEWEST_OPSET = 26
"""The newest opset whose models ONNX Runtime runs."""
IR_VERSION = 10
ML_VERSION = 5

_EXACT = """
    Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Concat Pad Tile Expand Gather
    GatherElements GatherND ScatterND ScatterElements Where Max Min Relu Abs Neg Sign Clip Ceil
    Floor Round Trilu DepthToSpace SpaceToDepth ReduceMax ReduceMin MaxPool GlobalMaxPool TopK
    Compress ReverseSequence Shape Size NonZero Unique OneHot EyeLike ConstantOfShape Hardmax
    CenterCropPad SequenceAt SequenceConstruct SequenceInsert SequenceErase ConcatFromSequence
    SplitToSequence TensorScatter MaxUnpool BitCast Cast CastLike ThresholdedRelu
"""
EXACT = frozenset(_EXACT.split())
"""Operators that give operands' elements, or roundings of them."""

_SUMS = """
    MatMul Gemm Einsum Conv ConvTranspose DFT STFT ReduceSum ReduceMean ReduceLogSum
    ReduceLogSumExp BatchNormalization InstanceNormalization LayerNormalization
    GroupNormalization MeanVarianceNormalization AveragePool GlobalAveragePool Resize GridSample
    RoiAlign RNN GRU LSTM Attention CumSum Det Col2Im RotaryEmbedding LinearRegressor Scan Loop
    LogSoftmax
"""
SUMS = frozenset(_SUMS.split())
"""Operators whose zeros may come of cancellation, and then be another number elsewhere."""

_SINGLE = """
    Erf Gelu HardSwish Celu HardSigmoid Selu Mish InstanceNormalization BatchNormalization
    LayerNormalization RMSNormalization GroupNormalization MeanVarianceNormalization GridSample
    LRN Swish LeakyRelu Elu Attention
"""
SINGLE = frozenset(_SINGLE.split())
"""Operators that the oracles compute, whatever the type, from constants of single precision."""


@dataclass(frozen=True)
class Rule:
    """Which oracle counts for operators, and why; `when` looks at the node and its operands."""

    operators: frozenset[str]
    counts: str
    why: str
    when: Callable[[NodeProto, Feed, int], bool] = lambda node, feed, opset: True


def _integers(node: NodeProto, feed: Feed, opset: int) -> bool:
    first = feed[next(n for n in node.input if n)]
    return isinstance(first, np.ndarray) and first.dtype.kind in "iu"


RULES: tuple[Rule, ...] = (
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
        "ort",
        "the reference knows one axis only, opsets before 13 all from an axis on",
        lambda node, feed, opset: opset < 13,
    ),
    Rule(
        frozenset({"LayerNormalization", "RMSNormalization", "GroupNormalization"}),
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
        frozenset({"Gemm"}),
        "ort",
        "the reference multiplies with alpha, a float, what may be more than a float holds",
        _integers,
    ),
    Rule(
        frozenset({"AveragePool"}),
        "ort",
        "the reference leaves dilations out of the extents",
        lambda node, feed, opset: any(a.name == "dilations" for a in node.attribute),
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
)


def _labelled(node: NodeProto, feed: Feed) -> bool:
    scores, labels = (feed[n].shape for n in node.input[:2])
    return bool(scores[:1] + scores[2:] == labels)


def _batches_equal(node: NodeProto, feed: Feed) -> bool:
    return len({feed[n].shape[0] for n in node.input[:3]}) == 1


def _some_numbers(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    return bool(x.size) and not (is_float(x.dtype) and np.isnan(x.astype(np.float64)).any())


def _finite_operands(node: NodeProto, feed: Feed) -> bool:
    floats = [a for a in feed.values() if is_float(a.dtype)]
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in floats)


def _finite_image(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    nearest = any(a.name == "mode" and a.s == b"nearest" for a in node.attribute)
    return nearest or not is_float(x.dtype) or bool(np.isfinite(x.astype(np.float64)).all())


def _finite_weights(node: NodeProto, feed: Feed) -> bool:
    w = feed[node.input[1]]
    return not is_float(w.dtype) or bool(np.isfinite(w.astype(np.float64)).all())


VALID: Mapping[str, Callable[[NodeProto, Feed], bool]] = {
    "NegativeLogLikelihoodLoss": _labelled,
    "SoftmaxCrossEntropyLoss": _labelled,
    "Attention": _batches_equal,
    "Unique": _some_numbers,
    "RNN": _finite_operands,
    "GRU": _finite_operands,
    "LSTM": _finite_operands,
    "RoiAlign": _finite_image,
    "GridSample": _finite_image,
    "Resize": _finite_image,
    "Conv": _finite_weights,
    "ConvTranspose": _finite_weights,
}
"""What operands must be, where an oracle takes others or is known to fail, or where (0 times an
infinite weight, outside of an image or between its elements) the standard leaves it open."""

disputes: Counter[str] = Counter()
"""How often the oracles differed where no rule decides, by operator and type."""


class NoOracle(Exception):
    """Neither oracle computes a node."""


def counting(node: NodeProto, feed: Feed, opset: int) -> str:
    """The oracle that alone counts for a node: "reference", "ort", or "" for both."""
    for rule in RULES:
        if node.op_type in rule.operators and rule.when(node, feed, opset):
            return rule.counts
    return ""


def evaluate(node: NodeProto, opset: int, feeds: Sequence[Feed]) -> list[tuple[Array, ...]]:
    """The node's outputs, each as a tuple of its value in every run.

    Raises:
        NoOracle: Neither oracle computes the node in all runs.
    """
    if node.op_type in VALID and not all(VALID[node.op_type](node, f) for f in feeds):
        raise NoOracle(node.op_type)
    model = model_of(node, opset, feeds[0])
    counts = counting(node, feeds[0], opset)
    oracles = [_Reference(model), _Runtime(model)]
    if counts == "ort":
        oracles.reverse()
    if counts:
        oracles = oracles[:1]
    made: list[list[Array]] = []
    found = [o(feeds[0]) for o in oracles]
    usable = [o for o, f in zip(oracles, found, strict=True) if f is not None]
    first = next((f for f in found if f is not None), None)
    if first is None:
        raise NoOracle(node.op_type)
    if len(usable) == 2 and found[0] is not None and found[1] is not None:
        if [_shape(a) for a in found[0]] != [_shape(a) for a in found[1]]:
            disputes[_label(node, feeds[0])] += 1
            raise NoOracle(node.op_type)
        disputes[_label(node, feeds[0])] += not _like(found[0], found[1])
    made.append(first)
    for number in range(1, len(feeds)):
        oracle = usable[-1] if number == 1 else usable[0]
        same = all(feeds[number][n] is feeds[0][n] for n in feeds[0])
        if same:
            results = found[-1] if number == 1 and found[-1] is not None else first
        else:
            results = oracle(feeds[number])
            if results is None:
                raise NoOracle(node.op_type)
        if number > 1 and node.op_type not in EXACT:
            results = [_moved(a, node, feeds[0], number, k) for k, a in enumerate(results)]
        made.append(results)
    if node.op_type in UNSPECIFIED:
        made[1] = [_doubted(node, feeds[0], a, b) for a, b in zip(first, made[1], strict=True)]
    return list(zip(*made, strict=True))


def _doubted(node: NodeProto, feed: Feed, first: Array, second: Array) -> Array:
    """The second run's value, made another one than the first's where any will do."""
    open_ones = UNSPECIFIED[node.op_type](node, feed, first)
    if not open_ones.any():
        return second
    if is_float(first.dtype):
        other = np.where(np.isfinite(first.astype(np.float64)), np.nan, 0.0)
    else:
        other = np.where(first != 0, 0, 1)
    return np.where(open_ones, other.astype(first.dtype), second)


Mask = Callable[[NodeProto, Feed, np.ndarray], np.ndarray]


def _whole_of(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What whole number NaN becomes, and a float that the type cannot hold."""
    x = feed[node.input[0]]
    if not is_float(x.dtype) or not is_integer(result.dtype):
        return np.zeros(result.shape, bool)
    real = x.astype(np.float64)
    if node.op_type == "QuantizeLinear":
        return ~np.isfinite(real)
    info = ml_dtypes.iinfo(result.dtype)
    return ~((real > float(info.min) - 1) & (real < float(info.max) + 1))


def _largest_with_nan(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """Whether a maximum over a window takes NaN for the largest element or leaves it out."""
    x = feed[node.input[0]]
    return np.full(result.shape, is_float(x.dtype) and bool(np.isnan(x.astype(np.float64)).any()))


def _beyond_range(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What is left of a sum after an infinite element has left it, and log(0) for log(tiny)."""
    return ~np.isfinite(result.astype(np.float64))


def _not_finite(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What comes of a range that is not finite: a scale, or sums with signs of any order."""
    x = feed[node.input[0]]
    with np.errstate(over="ignore", invalid="ignore"):
        span = x.max(initial=0) - x.min(initial=0)
    return np.full(result.shape, not np.isfinite(span))


def _squares_overflow(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What a variance that is too large makes of the elements."""
    x = feed[node.input[0]].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        small = bool((x * x).sum() < float(ml_dtypes.finfo(result.dtype).max))
    return np.full(result.shape, not small)


def _power_overflows(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    """What a power becomes that neither the integer nor a float can hold."""
    if not is_integer(result.dtype):
        return np.zeros(result.shape, bool)
    base, exponent = (feed[n].astype(np.float64) for n in node.input)
    with np.errstate(all="ignore"):
        size = np.abs(np.broadcast_to(base**exponent, result.shape))
    most = min(float(ml_dtypes.iinfo(result.dtype).max), 2.0**53)
    return ~(size <= most)


UNSPECIFIED: Mapping[str, Mask] = {
    "Cast": _whole_of,
    "CastLike": _whole_of,
    "QuantizeLinear": _whole_of,
    "GlobalMaxPool": _largest_with_nan,
    "MaxPool": _largest_with_nan,
    "Hardmax": _largest_with_nan,
    "Pow": _power_overflows,
    "InstanceNormalization": _squares_overflow,
    "LayerNormalization": _squares_overflow,
    "GroupNormalization": _squares_overflow,
    "RMSNormalization": _squares_overflow,
    "MeanVarianceNormalization": _squares_overflow,
    "LpNormalization": _squares_overflow,
    "LRN": _beyond_range,
    "DynamicQuantizeLinear": _not_finite,
    "DFT": _not_finite,
    "STFT": _not_finite,
    "SoftmaxCrossEntropyLoss": _beyond_range,
}
"""Where the standard leaves a result open: such elements are not compared."""


def model_of(node: NodeProto, opset: int, feed: Feed) -> ModelProto:
    """A model of the node alone, its operands inputs of their shapes."""
    infos = [value_info(n, a) for n, a in feed.items()]
    outputs = [ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "one", infos, outputs)
    if opset > NEWEST_OPSET and all(_known_before(n) for n in _nodes([node])):
        opset = NEWEST_OPSET
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ML_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _known_before(node: NodeProto) -> bool:
    """Whether an operator of the newest opset is what it was in the newest that both run."""
    if node.domain:
        return True
    return bool(defs.get_schema(node.op_type).since_version <= NEWEST_OPSET)


def _nodes(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    found: list[NodeProto] = []
    for n in nodes:
        found.append(n)
        for a in n.attribute:
            if a.type == AttributeProto.GRAPH:
                found += _nodes(a.g.node)
    return found


def captured(node: NodeProto) -> list[str]:
    """The names that the node's subgraphs take from outside."""
    found: dict[str, None] = {}
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            found.update(dict.fromkeys(_free(a.g)))
    return list(found)


def _free(graph: GraphProto) -> list[str]:
    known = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    found: dict[str, None] = {}
    for n in graph.node:
        found.update(dict.fromkeys(i for i in (*n.input, *captured(n)) if i and i not in known))
        known.update(n.output)
    found.update(dict.fromkeys(o.name for o in graph.output if o.name not in known))
    return list(found)


def value_info(name: str, value: Array, *, shaped: bool = True) -> ValueInfoProto:
    """The declaration of a value: a tensor's, or a sequence's."""
    if isinstance(value, list):
        kind = _element(value[0]) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, kind, None)
    shape = value.shape if shaped else None
    return helper.make_tensor_value_info(name, _element(value), shape)


def _element(array: np.ndarray) -> int:
    if array.dtype.kind in "OU":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


class _Reference:
    """The implementation of the onnx package."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs; None where it has no implementation or refuses the operands."""
        try:
            with np.errstate(all="ignore"):
                made = ReferenceEvaluator(self.model).run(None, dict(feed))
        except Exception:
            return None
        return [_plain(a) for a in made]


class _Runtime:
    """ONNX Runtime, which rewrites nothing."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.session: onnxruntime.InferenceSession | None = None

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs; None where it has no kernel or refuses the operands."""
        try:
            if self.session is None:
                self.session = runtime(self.model)
            return [_plain(a) for a in self.session.run(None, dict(feed))]
        except Exception:
            return None


def runtime(model: ModelProto) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime on one thread."""
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _plain(value: Array) -> Array:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if value is None else np.asarray(value)


def _shape(value: Array) -> object:
    if isinstance(value, list):
        return [_shape(v) for v in value]
    return None if value is None else (value.shape, value.dtype)


def _like(left: Sequence[Array], right: Sequence[Array]) -> bool:
    return all(_same(a, b) for a, b in zip(left, right, strict=True))


def _same(a: Array, b: Array) -> bool:
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and _like(a, b)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not is_float(a.dtype):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    limit = tolerance(Level.MODEL, a.dtype, 64)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= limit.allowed(np.where(np.isfinite(y), y, 0.0))
    return bool(np.all(near | (x == y) | (np.isnan(x) & np.isnan(y))))


def _label(node: NodeProto, feed: Feed) -> str:
    first = next((feed[n] for n in node.input if n), None)
    kind = first.dtype.name if isinstance(first, np.ndarray) else "sequence"
    return f"{node.op_type}({kind})"


def reduction_of(operands: Sequence[Array], result: Array) -> int:
    """About how many operands' elements one element of a result sums up."""
    tensors = [a for a in operands if isinstance(a, np.ndarray)]
    sizes = [a.size for a in tensors]
    lengths = [a.shape[-1] for a in tensors if a.ndim]
    if not isinstance(result, np.ndarray):
        return 1
    return max(1, max(sizes, default=1) // max(1, result.size), *lengths)


def _moved(value: Array, node: NodeProto, feed: Feed, run: int, output: int) -> Array:
    """A result moved by what two implementations may differ."""
    if isinstance(value, list):
        return [_moved(v, node, feed, run, output) for v in value]
    if value is None or not is_float(value.dtype) or not value.size:
        return value
    random = np.random.default_rng([crc32(str(node.output[0]).encode()), run, output])
    real = value.astype(np.float64)
    finite = np.where(np.isfinite(real), real, 0.0)
    kind = value.dtype if node.op_type not in SINGLE else np.dtype(np.float32)
    limit = tolerance(Level.KERNEL, kind, reduction_of(list(feed.values()), value))
    step = limit.allowed(finite) / 2 * np.where(random.random(real.shape) < 0.5, -1.0, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = ~np.isfinite(real)
        if node.op_type not in SUMS:
            kept |= real == 0
        return np.where(kept, real, real + step).astype(value.dtype)
