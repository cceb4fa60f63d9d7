"""Which elements there are, which are distinct, which boxes remain, which do not exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.tensor_ir.interpreter.routines.job import Job
from rutc.tensor_ir.interpreter.routines.sorting import order_keys


def nonzero(job: Job) -> Sequence[np.ndarray]:
    """{rank, n}: the coordinates of the true elements, in row-major order; there must be n."""
    (x,) = job.args
    found = np.argwhere(x).T.astype(np.int64)
    if found.shape != job.results[0].shape:
        job.fail(f"{found.shape[1]} elements, not {job.results[0].shape[1]}")
    return (found,)


def check_position(job: Job) -> Sequence[np.ndarray]:
    """The length of an axis; the run ends where the worst of some positions is out of range.

    Operands: the worst position and the length. The position p is given as 2*p, or as
    2*(`offset` - 1 - p) + 1 for a negative p, and none as a negative number.
    Attribute: `offset`: 0 where positions may count from the end.
    """
    worst, length = (int(a) for a in job.args)
    far = worst >> 1
    if worst >= 0 and far >= length:
        position = -1 - (far - job.integer("offset")) if worst & 1 else far
        job.fail(f"the index {position} is out of range for {length} elements")
    return (np.array(length, np.int64),)


def unique(job: Job) -> Sequence[np.ndarray]:
    """(first, inverse, counts, number) of the distinct rows of {n, ..}.

    `first` {n} holds the position of each distinct row's first occurrence, `counts` {n} how many
    rows equal it, both in their first `number` elements and 0 after; `inverse` {n} says which of
    them each row is. Rows compare element by element, NaN equal to NaN and above all numbers.
    Attribute: `sorted`: 1 for ascending order, 0 for that of first occurrence.
    """
    (x,) = job.args
    rows = order_keys(x).reshape(len(x), int(np.prod(x.shape[1:])))
    order = np.lexsort((*rows.T[::-1], np.zeros(len(x)))) if len(x) else np.zeros(0, np.int64)
    new = np.ones(len(x), np.bool_)
    new[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    group = np.cumsum(new) - 1
    starts = order[new]
    rank = np.arange(len(starts))
    if not job.integer("sorted"):
        by_position = np.argsort(starts)
        rank[by_position] = np.arange(len(starts))
    first, inverse, counts = (np.zeros(len(x), np.int64) for _ in range(3))
    first[rank] = starts
    inverse[order] = rank[group]
    np.add.at(counts, inverse, 1)
    return first, inverse, counts, np.array(len(starts), np.int64)


def non_max_suppression(job: Job) -> Sequence[np.ndarray]:
    """(chosen, number): rows (batch, class, box) of the boxes that are kept, and how many.

    Operands: boxes {batch, box, 4}, scores {batch, class, box}, the most boxes of a class, the
    overlap and the score from which on boxes are dropped. `chosen` is 0 after `number` rows.
    Attributes: `filtered`: whether only scores above the last operand count; `center_point_box`:
    whether boxes are (x, y, width, height) of their centers, or (y, x, y, x) of two corners.

    Of each class, boxes are taken by descending score, the earlier box first among equals, unless
    they share more than the allowed part of their union with one that is taken.
    """
    boxes, scores, most, overlap, least = job.args
    rows: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], centered=bool(job.integer("center_point_box")))
        for kind in range(scores.shape[1]):
            order = np.argsort(~order_keys(scores[batch, kind]), kind="stable")
            if job.integer("filtered"):
                order = order[scores[batch, kind, order] > least]
            kept = _kept(corners[order], int(most), float(overlap))
            rows += [(batch, kind, int(box)) for box in order[kept]]
    room = job.results[0].shape[0]
    if len(rows) > room:
        job.fail(f"{len(rows)} boxes, more than {room}")
    chosen = np.zeros((room, 3), np.int64)
    chosen[: len(rows)] = np.array(rows, np.int64).reshape(-1, 3)
    return chosen, np.array(len(rows), np.int64)


def _kept(boxes: np.ndarray, most: int, overlap: float) -> list[int]:
    """The first `most` of boxes {box, 4} that share no more than that with one kept before."""
    left = np.ones(len(boxes), np.bool_)
    near = _Near(boxes)
    kept: list[int] = []
    for box in range(len(boxes)):
        if len(kept) >= most:
            break
        if not left[box]:
            continue
        kept.append(box)
        left[box] = False
        # A share of 0 is too much where less than that is allowed.
        others = np.arange(len(boxes)) if overlap < 0 else near.to(box)
        others = others[left[others]]
        if others.size:
            left[others[_overlaps(boxes[box], boxes[others].T) > overlap]] = False
    return kept


class _Near:
    """Which boxes may meet one, by their extents along the axis that tells more of them apart.

    In the order of their lower ends these are a run: those that begin below its upper end, but for
    the first ones, which all end below its lower end.
    """

    def __init__(self, boxes: np.ndarray) -> None:
        along = [self._runs(boxes[:, axis], boxes[:, axis + 2]) for axis in (0, 1)]
        self._order, self._first, self._last = min(along, key=lambda x: float((x[2] - x[1]).sum()))

    @staticmethod
    def _runs(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The order, and of each box the part of it that holds those that may meet it."""
        order = np.argsort(low, kind="stable")
        ends = np.fmax.accumulate(high[order])
        first = np.searchsorted(ends, low, "right")
        return order, first, np.maximum(first, np.searchsorted(low[order], high, "left"))

    def to(self, box: int) -> np.ndarray:
        """Those that may meet a box."""
        return self._order[self._first[box] : self._last[box]]


def _corners(boxes: np.ndarray, *, centered: bool) -> np.ndarray:
    """{box, 4} f32: the least y and x, then the greatest."""
    boxes = boxes.astype(np.float32)
    if centered:
        half = boxes[:, [3, 2]] / np.float32(2)
        return np.concatenate([boxes[:, [1, 0]] - half, boxes[:, [1, 0]] + half], axis=1)
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(low, high), np.maximum(low, high)], axis=1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """{k}: intersections of a box {4} and others {4, k} by their unions; 0 with empty boxes."""
    top, left, bottom, right = others
    with np.errstate(all="ignore"):
        height = np.minimum(box[2], bottom) - np.maximum(box[0], top)
        width = np.minimum(box[3], right) - np.maximum(box[1], left)
        inside = height * width
        first, second = ((y2 - y1) * (x2 - x1) for y1, x1, y2, x2 in (box, others))
        union = first + second - inside
        share = inside / union
        empty = (inside <= 0) | (first <= 0) | (second <= 0) | (union <= 0)
    return np.where((height > 0) & (width > 0) & ~empty, share, np.float32(0))
