"""Class probabilities from those of pairs, by pairwise coupling [Wu, Lin & Weng 2004, §4].

With r[i, j] the probability of class i against j, p minimises p' Q p over probabilities, where
Q[i, i] = sum{j} r[j, i]^2 and Q[i, j] = -r[j, i] r[i, j]. All rows iterate together; a row that
has converged stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.scans import repeated, scanned
from rutc.tensor_ir import DType, Index, IndexValue, apply

ROUNDS = 100
"""The most rounds over all classes."""
UNROLLED = 8
"""The pass over up to this many classes is no loop."""
ERROR = 0.005
"""A row has converged when no (Q p)[i] is further than this over the classes from p' Q p."""


def coupled(b: Builder, likely: Tensor, pairs: Sequence[tuple[int, int]], classes: int) -> Tensor:
    """{n, classes} from {n, pairs}, where pair (i, j) has the probability of i against j."""
    n = likely.shape[0]
    q = _quadratic(b, _against(b, likely, pairs, classes), classes)

    def step(states: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        going, p = _round(b, q, states[0], classes)
        return going, [p]

    start = b.nest(b.axes((n, classes)), lit(1 / classes, DType.F32))
    return repeated(b, ROUNDS, [start], step)[0]


def _against(b: Builder, likely: Tensor, pairs: Sequence[tuple[int, int]], classes: int) -> Tensor:
    """r {n, i, j}: the pair's probability, its complement for j < i, 0 for j = i."""
    number = np.zeros((classes, classes), np.int64)
    for k, (i, j) in enumerate(pairs):
        number[i, j] = number[j, i] = k
    axes = b.axes((likely.shape[0], classes, classes))
    n, first, second = (a.index for a in axes)
    zero, one = lit(0, DType.F32), lit(1, DType.F32)
    p = b.read(likely, [n, b.read(b.constant(number), [first, second])])
    order = IndexValue(second - first)
    later = apply("gt", order, lit(0, DType.I64))
    same = apply("eq", order, lit(0, DType.I64))
    body = apply("select", same, zero, apply("select", later, p, apply("sub", one, p)))
    return b.nest(axes, body)


def _quadratic(b: Builder, r: Tensor, classes: int) -> Tensor:
    """Q {n, i, j} of r."""
    axes = b.axes((r.shape[0], classes, classes))
    n, i, j = (a.index for a in axes)
    column = b.axes((r.shape[0], classes))
    k = b.axis(classes, "k")
    each = b.read(r, [column[0].index, k.index, column[1].index])
    squares = b.nest(column, apply("mul", each, each), (k,))
    same = apply("eq", IndexValue(i - j), lit(0, DType.I64))
    cross = apply("neg", apply("mul", b.read(r, [n, j, i]), b.read(r, [n, i, j])))
    return b.nest(axes, apply("select", same, b.read(squares, [n, i]), cross))


def _round(b: Builder, q: Tensor, p: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Whether a row had not converged, and p after one pass over all classes of such rows."""
    axes, j = b.axes(p.shape), b.axis(classes, "j")
    n, i = (a.index for a in axes)
    qp = b.nest(axes, apply("mul", b.read(q, [n, i, j.index]), b.read(p, [n, j.index])), (j,))
    rows, every = b.axes(p.shape[:1]), b.axis(classes, "i")
    at = [rows[0].index, every.index]
    pqp = b.nest(rows, apply("mul", b.read(p, at), b.read(qp, at)), (every,))
    off = apply("abs", apply("sub", b.read(qp, at), b.read(pqp, at[:1])))
    error = b.nest(rows, off, (every,), "max")

    def step(c: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return _updated(b, q, states, c), []

    if classes <= UNROLLED:
        states: Sequence[Tensor] = (p, qp, pqp)
        for c in range(classes):
            states = step(Index.of(c), states)[0]
    else:
        states = scanned(b, Index.of(classes), (p, qp, pqp), step)[0]
    done = b.map(lambda e: apply("lt", e, lit(ERROR / classes, e.dtype)), error)
    kept = b.reshaped(done, (*done.axes, b.axis(1)))
    each = b.axes(done.shape)
    going = b.nest((), apply("not", b.spread(done, each)), each, "any")
    return going, b.map(lambda d, old, new: apply("select", d, old, new), kept, p, states[0])


def _updated(b: Builder, q: Tensor, states: Sequence[Tensor], c: Index) -> list[Tensor]:
    """p, Q p and p' Q p after class c's share has been corrected."""
    p, qp, pqp = states
    rows = b.axes(p.shape[:1])
    n = rows[0].index
    own, slope = b.read(q, [n, c, c]), b.read(qp, [n, c])
    change = b.nest(rows, apply("div", apply("sub", b.read(pqp, [n]), slope), own))
    d = b.read(change, [n])
    one = lit(1, DType.F32)
    grown = apply("add", one, d)
    gain = apply("add", apply("mul", d, own), apply("mul", lit(2, DType.F32), slope))
    total = apply("add", b.read(pqp, [n]), apply("mul", d, gain))
    after = b.nest(rows, apply("div", apply("div", total, grown), grown))
    axes = b.axes(p.shape)
    n, j = (a.index for a in axes)
    d = b.read(change, [n])
    grown = apply("add", one, d)
    mine = apply("eq", IndexValue(j - c), lit(0, DType.I64))
    raised = apply("add", b.read(p, [n, j]), apply("select", mine, d, lit(0, DType.F32)))
    pushed = apply("add", b.read(qp, [n, j]), apply("mul", d, b.read(q, [n, c, j])))
    return [
        b.nest(axes, apply("div", raised, grown)),
        b.nest(axes, apply("div", pushed, grown)),
        after,
    ]
