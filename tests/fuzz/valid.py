"""What operands must be for the oracles to compute an operator as the standard says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import NodeProto

from rutc.verify.judging.tolerance import is_float
from tests.fuzz import rules_contrib
from tests.fuzz.data import finfo, iinfo
from tests.fuzz.rules import ABSOLUTE, LARGE, Array, Feed, finite

LARGEST_STEP = 0.01
"""By how much a rounding of a state may change what the next one is computed from."""


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


def _same_batches(node: NodeProto, feed: Feed) -> bool:
    number = next((a.i for a in node.attribute if a.name == "batch_dims"), 0)
    x, at = (feed[n].shape[:number] for n in node.input)
    return bool(x == at)


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
    # Padding would be negative: ONNX Runtime leaves elements out, or fails.
    given = {a.name: list(a.ints) for a in node.attribute}
    strides = given.get("strides") or [1] * len(given["kernel_shape"])
    apart = any(k < s for k, s in zip(given["kernel_shape"], strides, strict=True))
    # The reference, which alone has all narrow types, pads no images if there are none.
    some = bool(x.size) or x.dtype.itemsize > 2
    return plain and some and not (same and apart) and _window_fits(node, feed)


def _finite_operands(node: NodeProto, feed: Feed) -> bool:
    floats = [a for a in feed.values() if is_float(a.dtype)]
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in floats)


def _finite_image(node: NodeProto, feed: Feed) -> bool:
    x = feed[node.input[0]]
    nearest = any(a.name == "mode" and a.s == b"nearest" for a in node.attribute)
    # The reference multiplies the neighbours of the nearest element by 0.
    corners = any(a.s == b"align_corners" for a in node.attribute)
    return finite(x) or (nearest and not corners)


def _finite_weights(node: NodeProto, feed: Feed) -> bool:
    """Finite weights; between dilated ones the reference multiplies elements with zeros."""
    dilated = any(a.name == "dilations" and max(a.ints) > 1 for a in node.attribute)
    if dilated:
        return _finite_operands(node, feed)
    return finite(feed[node.input[1]])


def _steps_alike(node: NodeProto, feed: Feed) -> bool:
    """Finite operands, all but the state for the same batches and steps."""
    given = [feed[n].shape[:2] for k, n in enumerate(node.input) if n and k != 3]
    return _finite_operands(node, feed) and len(set(given)) == 1


def _two_alike(node: NodeProto, feed: Feed) -> bool:
    """Finite values whose difference is exact: the reference adds it to one of them."""
    values = feed[node.input[2]]
    if not is_float(values.dtype) or values.shape != (2,):
        return _finite_operands(node, feed)
    off, on = values
    with np.errstate(over="ignore"):
        return _finite_operands(node, feed) and bool(off + (on - off) == on)


def _cut_windows(node: NodeProto, feed: Feed) -> bool:
    """Windows spread over no more than they cover: how more would be padded is open."""
    given = {a.name: list(a.ints) for a in node.attribute}
    same = any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute)
    x, w = (feed[n].shape[2:] for n in node.input[:2])
    ones, zeros = [1] * len(x), [0] * len(x)
    strides, apart = given.get("strides", ones), given.get("dilations", ones)
    extra = given.get("output_padding", zeros)
    whole = [
        s * (n - 1) + (k - 1) * d + 1 + e
        for n, k, s, d, e in zip(x, w, strides, apart, extra, strict=True)
    ]
    out = [n * s for n, s in zip(x, strides, strict=True)] if same else zeros
    out = given.get("output_shape", out)[-len(x) :]
    return _finite_weights(node, feed) and all(a >= b for a, b in zip(whole, out, strict=True))


def _updates_fit(node: NodeProto, feed: Feed) -> bool:
    x, at, updates = (feed[n].shape for n in node.input)
    return bool(updates == at[:-1] + x[at[-1] :])


def _updates_alike(node: NodeProto, feed: Feed) -> bool:
    """An update for each index; the reference leaves more of them out."""
    _, at, updates = (feed[n].shape for n in node.input)
    return bool(updates == at)


def _damped(node: NodeProto, feed: Feed) -> bool:
    """Finite operands, and weights of the state that make no large difference of a rounding."""
    weights = feed[node.input[2]]
    largest = float(np.abs(weights.astype(np.float64)).max(initial=0))
    steady = largest * float(finfo(weights.dtype).eps) < LARGEST_STEP
    return steady and _finite_operands(node, feed)


def _finite_and_fitting(node: NodeProto, feed: Feed) -> bool:
    hidden, peepholes = feed[node.input[2]].shape[2], [feed[n] for n in node.input[7:]]
    fit = all(p.shape[1] == 3 * hidden for p in peepholes)
    return fit and _damped(node, feed)


def _finite_and_some(node: NodeProto, feed: Feed) -> bool:
    """ONNX Runtime leaves sums of nothing as they are in memory."""
    return all(bool(a.size) for a in feed.values()) and _finite_operands(node, feed)


def _second_spreads(node: NodeProto, feed: Feed) -> bool:
    """The second operand spreads over the first, of whose shape the result is."""
    x, other = (feed[n].shape for n in node.input[:2])
    return len(other) <= len(x) and all(
        e in (1, n) for e, n in zip(other[::-1], x[::-1], strict=False)
    )


def _nested(node: NodeProto) -> set[str]:
    """The operators of the graphs in a node."""
    inner = [n for a in node.attribute for n in a.g.node]
    return {n.op_type for n in inner}.union(*map(_nested, inner))


def _computed_well(node: NodeProto, feed: Feed) -> bool:
    """ONNX Runtime computes what is nested exactly enough; the reference does not do all loops.

    Of 64-bit integers it compares the lower halves for their minimum. Its logistic of -19 is 0, and
    0 times an infinite number none.
    """
    found = _nested(node)
    if found & {"Min", "ReduceMin"}:
        return False
    floats = [a for a in feed.values() if _is_tensor(a) and is_float(a.dtype)]
    return not found & ABSOLUTE or all(map(finite, floats))


def _states_fit(node: NodeProto, feed: Feed) -> bool:
    """States as the body declares them, where its shapes alone tell those of no trips' results."""
    if not _computed_well(node, feed):
        return False
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


def _one_or_as_many(node: NodeProto, feed: Feed) -> bool:
    """One value for all features or one for each; of others ONNX Runtime takes the first."""
    counts = {len(a.floats) + len(a.ints) for a in node.attribute if a.name.startswith("imputed")}
    return counts <= {1, *feed[node.input[0]].shape[-1:]}


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
    "Imputer": _one_or_as_many,
    "QuantizeLinear": _scales_fit,
    "DequantizeLinear": _scales_fit,
    "Concat": _joinable,
    "ConcatFromSequence": _joinable,
    "RNN": _damped,
    "GRU": _damped,
    "LSTM": _finite_and_fitting,
    "GatherND": _same_batches,
    "ScatterND": _updates_fit,
    **dict.fromkeys(("ScatterElements", "Scatter"), _updates_alike),
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
    "OneHot": _two_alike,
    "GridSample": _finite_image,
    "Resize": _finite_image,
    "Conv": _finite_weights,
    "ConvTranspose": _cut_windows,
    "DeformConv": _finite_operands,
    "LinearAttention": _steps_alike,
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
    **dict.fromkeys(("If", "Scan", "SequenceMap"), _computed_well),
    "PRelu": _second_spreads,
}
"""What operands must be, where an oracle takes others or is known to fail, or where (0 times an
infinite weight, outside of an image or between its elements) the standard leaves it open."""
