"""Counts of n-grams in rows of numbers or strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.base.record import record
from rutc.importer.builder import Builder
from rutc.importer.expressions import OperatorError, lit
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import DType, Expr, IndexValue, Lit, apply, cast
from rutc.tensor_ir.affine import ZERO

Gram = tuple[int | str, ...]


@operator("TfIdfVectorizer")
def tf_idf_vectorizer(
    b: Builder,
    x: Tensor,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Tensor:
    """How often each n-gram of the pool occurs in the operand (in each row of it).

    count[g] = sum{p,d} and_j x[p + d * j] == gram_g[j]     for distances d = 1 .. skips + 1

    Unigrams are counted for d = 1 only. `ngram_indexes` gives each n-gram of the pool its column of
    the output, which sums up what its n-grams give; `weights` gives it its weight. The mode IDF
    tells whether there is one, times the weight; TFIDF is the count times the weight.
    """
    if x.rank not in (1, 2):
        raise OperatorError(f"the operand must have one or two axes, not {x}")
    pool: list[int | str] = [*pool_int64s, *pool_strings]
    grams = _Grams.of(pool, ngram_counts, ngram_indexes, min_gram_length, max_gram_length)
    if weights and len(weights) != len(ngram_indexes):
        raise OperatorError(f"{len(weights)} weights for {len(ngram_indexes)} n-grams")
    if not weights or mode == "TF":
        counts = _counted(b, x, grams, max_skip_count + 1)
        return b.map(_found, counts) if mode == "IDF" else counts
    counts = _counted(b, x, grams, max_skip_count + 1, each=True)
    factors = b.constant(np.array([*weights, 0.0], np.float32)[grams.numbers])
    outer, (slot,) = b.axes(counts.shape[:-1]), b.axes(counts.shape[-1:], ("slot",))
    count = b.read(counts, [*(a.index for a in outer), slot.index])
    factor = b.read(factors, [outer[-1].index, slot.index])
    weighted = apply("mul", count, factor) if mode == "TFIDF" else factor
    there = apply("gt", count, lit(0, DType.F32))
    return b.nest(outer, apply("select", there, weighted, lit(0, DType.F32)), [slot])


def _found(count: Expr) -> Expr:
    return apply(
        "select", apply("gt", count, lit(0, DType.F32)), lit(1, DType.F32), lit(0, DType.F32)
    )


@record
class _Grams:
    """The n-grams of every column: elements {column, slot, place}, lengths {column, slot}.

    Their numbers in the pool are {column, slot}. A slot of length 0 is empty; its number is -1.
    """

    elements: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray

    @staticmethod
    def of(
        pool: Sequence[int | str],
        starts: Sequence[int],
        columns: Sequence[int],
        least: int,
        most: int,
    ) -> _Grams:
        """Those of at least `least` and at most `most` elements."""
        found: list[list[tuple[int, Gram]]] = [[] for _ in range(max(columns, default=-1) + 1)]
        number = 0
        for k, start in enumerate(starts):
            size = k + 1
            end = starts[k + 1] if size < len(starts) else len(pool)
            for first in range(start, end - size + 1, size):
                if number >= len(columns):
                    raise OperatorError(f"more n-grams than the {len(columns)} indexes")
                if least <= size <= most:
                    gram = tuple(pool[first : first + size])
                    found[columns[number]].append((number, gram))
                number += 1
        slots = max((len(c) for c in found), default=0) or 1
        kind: type = object if pool and isinstance(pool[0], str) else np.int64
        elements: np.ndarray = np.zeros((len(found), slots, max(most, 1)), kind)
        lengths = np.zeros((len(found), slots), np.int64)
        numbers = np.full((len(found), slots), -1)
        for c, grams in enumerate(found):
            for s, (number, gram) in enumerate(grams):
                elements[c, s, : len(gram)] = gram
                lengths[c, s] = len(gram)
                numbers[c, s] = number
        if kind is object:
            elements[elements == 0] = ""
        return _Grams(elements, lengths, numbers)


def _counted(b: Builder, x: Tensor, grams: _Grams, distances: int, *, each: bool = False) -> Tensor:
    """{row, column} f32: how often the n-grams of a column occur; `each`: {row, column, slot}."""
    if x.dtype is DType.STRING:
        elements = b.constant(grams.elements, DType.STRING)
        fill = Lit("", DType.STRING)
    else:
        elements = b.constant(grams.elements.astype(x.dtype.numpy))
        fill = lit(0, x.dtype)
    lengths = b.constant(grams.lengths)
    columns, slots, places = grams.elements.shape
    extent = x.shape[-1]
    outer = b.axes((*x.shape[:-1], columns))
    rows, column = [a.index for a in outer[:-1]], outer[-1].index
    slots_axis, *bound = b.axes((slots, extent, distances), ("slot", "p", "d"))
    slot, p, distance = slots_axis.index, bound[0].index, bound[1].index + 1
    length = b.read(lengths, [column, slot])

    def holds(op: str, left: Expr, right: Expr | int) -> Expr:
        return apply(op, left, lit(right, left.dtype) if isinstance(right, int) else right)

    once = apply("or", holds("eq", IndexValue(distance), 1), holds("gt", length, 1))
    hit = apply("and", holds("gt", length, 0), once)
    for j in range(places):
        place = p + distance * j
        element = b.read(x, [*rows, place], fill)
        same = apply("eq", element, b.read(elements, [column, slot, ZERO + j]))
        if j:
            inside = holds("lt", IndexValue(place - extent), 0)
            same = apply("or", holds("le", length, j), apply("and", inside, same))
        hit = apply("and", hit, same)
    if each:
        return b.nest([*outer, slots_axis], cast(hit, DType.F32), bound)
    return b.nest(outer, cast(hit, DType.F32), [slots_axis, *bound])
