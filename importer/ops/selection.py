"""Operators whose output is as long as their operands' elements say: counted first, then filled.

%n = sum{i} (%x[i] != 0);   bind s = %n;   %at{k, rank} = call nonzero(%x)     k = 0 .. s - 1
"""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.operands import axis_of
from rutc.importer.ops.positions import gathered
from rutc.importer.ops.reshape import reshape
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Index, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ZERO, minimum


def most(b: Builder, extent: Index) -> int:
    """The most that an extent can be."""
    bounds = extent.bounds(b.ranges)
    return MOST if bounds is None else min(max(bounds[1], 0), MOST)


def positions(b: Builder, mask: Tensor) -> Tensor:
    """{rank, n}: the coordinates of the true elements of a bool tensor, in row-major order."""
    mask = b.whole(mask)
    element = b.read(mask, [a.index for a in mask.axes])
    count = b.nest((), cast(element, DType.I64), mask.axes)
    found = b.count(count, "found", most(b, mask.size))
    axes = (Axis(b.dim(mask.rank), Index.of(mask.rank)), Axis(b.dim(found), found))
    return b.call("nonzero", (mask,), [(DType.I64, axes)])[0]


@operator("NonZero")
def non_zero(b: Builder, x: Tensor) -> Tensor:
    """The coordinates of the elements that are not 0, a column for each."""
    if x.dtype is DType.BOOL:
        return positions(b, x)
    return positions(b, b.map(lambda e: apply("ne", e, lit(0, e.dtype)), x))


@operator("Compress")
def compress(b: Builder, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices along an axis (or the elements) at which the condition holds."""
    if axis is None:
        x, axis = reshape(b, x, (x.size,)), 0
    at = axis_of(axis, x.rank)
    if condition.rank != 1:
        raise OperatorError(f"the condition must have one axis, not {condition}")
    length = minimum(condition.shape[0], x.shape[at], b.ranges)
    (row,) = b.axes((length,))
    mask = b.nest((row,), b.read(condition, [row.index]))
    found = positions(b, mask)
    (k,) = b.axes(found.shape[1:])
    return gathered(b, x, b.nest((k,), b.read(found, [ZERO, k.index])), at, trusted=True)


@operator("Unique")
def unique(
    b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> tuple[Tensor, ...]:
    """(the distinct elements or slices, where each comes first, which one each is, how many).

    In ascending order, or in the order in which they come first. All NaN are the same.
    """
    if axis is None:
        x, axis = reshape(b, x, (x.size,)), 0
    at = axis_of(axis, x.rank)
    whole = b.whole(x)
    if x.dtype is DType.STRING:
        whole = b.call("string_order", (whole,), [(DType.I64, whole.axes)])[0]
    long = whole.axes[at]
    rows = b.permuted(whole, [at, *(i for i in range(whole.rank) if i != at)])

    def results() -> tuple[DType, Sequence[Axis]]:
        return DType.I64, (Axis(b.dim(long.extent), long.extent),)

    scalar: tuple[DType, Sequence[Axis]] = (DType.I64, ())
    first, inverse, counts, number = b.call(
        "unique", (rows,), [results(), results(), results(), scalar], sorted=int(sorted)
    )
    found = b.count(number, "distinct", most(b, long.extent))
    first, counts = (front(b, t, found) for t in (first, counts))
    return gathered(b, x, first, at, trusted=True), first, inverse, counts


def front(b: Builder, t: Tensor, length: Index) -> Tensor:
    """The first elements of a tensor along its first axis."""
    axes = (Axis(b.dim(length), length), *b.axes(t.shape[1:]))
    return b.nest(axes, b.read(t, [a.index for a in axes]))


@operator("NonMaxSuppression")
def non_max_suppression(
    b: Builder,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """{n, 3}: batch, class and box of the boxes that overlap no better one of their class.

    boxes {batch, box, 4}, scores {batch, class, box}.
    """
    if boxes.rank != 3 or scores.rank != 3:
        raise OperatorError(f"boxes and scores must have three axes, not {boxes} and {scores}")
    pairs = ((boxes.shape[0], scores.shape[0]), (boxes.shape[1], scores.shape[2]))
    if any(one.is_const and other.is_const and one != other for one, other in pairs):
        raise OperatorError(f"the boxes {boxes} and the scores {scores} differ in number")
    batch, per_class = (b.same(*pair) for pair in pairs)
    b.number(boxes.shape[2], 4, "the number of coordinates of a box")

    def scalar(t: Tensor | None, default: Lit) -> Tensor:
        if t is not None and t.size == ZERO:
            raise OperatorError(f"a limit has no element: {t}")
        return b.nest((), default if t is None else cast(b.read(t, [0] * t.rank), default.dtype))

    limit = scalar(max_output_boxes_per_class, Lit(0, DType.I64))
    overlap = scalar(iou_threshold, Lit(0.0, DType.F32))
    least = scalar(score_threshold, Lit(float("-inf"), DType.F32))
    if max_output_boxes_per_class is None:
        per_class = ZERO
    elif max_output_boxes_per_class.array is not None:
        allowed = int(max_output_boxes_per_class.array.reshape(-1)[0])
        per_class = minimum(per_class, max(allowed, 0), b.ranges)
    room = batch * scores.shape[1] * per_class
    rows = (Axis(b.dim(room), room), Axis(b.dim(3), Index.of(3)))
    chosen, number = b.call(
        "non_max_suppression",
        [b.whole(t) for t in (boxes, scores, limit, overlap, least)],
        [(DType.I64, rows), (DType.I64, ())],
        center_point_box=int(center_point_box),
        filtered=int(score_threshold is not None),
    )
    return front(b, chosen, b.count(number, "selected", most(b, room)))
