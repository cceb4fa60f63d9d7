"""Counts of n-grams in rows of numbers or strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.lookup import COMPARED, mapped
from rutc.importer.ops.scatter import scattered
from rutc.importer.ops.tries import Trie
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ZERO

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
    grams = _Grams.of(pool, ngram_counts, ngram_indexes, min_gram_length, max_gram_length, x.dtype)
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
        dtype: DType,
    ) -> _Grams:
        """Those of at least `least` and at most `most` elements, all of which a type has."""
        found: list[list[tuple[int, Gram]]] = [[] for _ in range(max(columns, default=-1) + 1)]
        number = 0
        for k, start in enumerate(starts):
            size = k + 1
            end = starts[k + 1] if size < len(starts) else len(pool)
            for first in range(start, end - size + 1, size):
                if number >= len(columns):
                    raise OperatorError(f"more n-grams than the {len(columns)} indexes")
                gram = tuple(pool[first : first + size])
                if least <= size <= most and _may_occur(gram, dtype):
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

    def sequences(self) -> Mapping[Gram, tuple[int, int]] | None:
        """The column and the slot of each n-gram; None where one has several."""
        places = [(int(c), int(s)) for c, s in zip(*np.nonzero(self.lengths), strict=True)]
        found = {tuple(self.elements[p][: self.lengths[p]].tolist()): p for p in places}
        return found if len(found) == len(places) else None


def _may_occur(gram: Gram, dtype: DType) -> bool:
    """Whether an operand of a type may hold all elements of an n-gram."""
    if not dtype.is_int:
        return True
    limits = np.iinfo(dtype.numpy)
    return all(limits.min <= int(element) <= limits.max for element in gram)


def _counted(b: Builder, x: Tensor, grams: _Grams, distances: int, *, each: bool = False) -> Tensor:
    """{row, column} f32: how often the n-grams of a column occur; `each`: {row, column, slot}."""
    sequences = grams.sequences() if np.count_nonzero(grams.lengths) > COMPARED else None
    if sequences is not None:
        return _found_in_trie(b, x, grams, sequences, distances, each=each)
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


def _found_in_trie(
    b: Builder,
    x: Tensor,
    grams: _Grams,
    sequences: Mapping[Gram, tuple[int, int]],
    distances: int,
    *,
    each: bool,
) -> Tensor:
    """What `_counted` gives, by a walk from every place of the operand and a scatter of its ends.

    place = child[place, number[x[p + d * j]]]   for j = 0, 1, ..;   count[goal[place]] += 1

    A walk takes as long for a thousand n-grams as for ten.
    """
    columns, slots, most = grams.elements.shape
    width = columns * (slots if each else 1)
    kind: np.dtype = np.dtype(object) if x.dtype is DType.STRING else x.dtype.numpy
    words = sorted({w for gram in sequences for w in gram}, key=str)
    number = {w: k + 1 for k, w in enumerate(words)}
    goals = {
        tuple(number[w] for w in gram): c * slots + s if each else c
        for gram, (c, s) in sequences.items()
    }
    trie = Trie.of(goals, width)
    base, check, goal = map(b.constant, (trie.base, trie.check, trie.goal))
    numbers = mapped(b, x, np.array(words, kind), np.arange(1, len(words) + 1), 0)
    outer = b.axes((*x.shape[:-1], width + 1))
    counts = b.nest(outer, lit(0, DType.F32))
    lengths = {len(gram) for gram in goals}
    for d in range(1, distances + 1):
        axes = b.axes(x.shape)
        at = [a.index for a in axes]
        place: Expr = lit(0, DType.I64)
        for j in range(most):
            word = b.read(numbers, [*at[:-1], at[-1] + d * j], lit(0, DType.I64))
            child = apply("add", b.read(base, [place]), word)
            known = apply("eq", b.read(check, [child]), place)
            walked = b.nest(axes, apply("select", known, child, lit(trie.dead, DType.I64)))
            place = b.read(walked, at)
            # Unigrams are counted for one distance only.
            if j + 1 in lengths and (j or d == 1):
                coords = [*at[:-1], b.read(goal, [place])]
                counts = scattered(b, counts, axes, coords, lit(1, DType.F32), "add")
    shape = (*x.shape[:-1], columns, *((slots,) if each else ()))
    seen = b.axes(shape)
    index = [a.index for a in seen]
    rows = index[: x.rank - 1]
    column = index[x.rank - 1]
    flat = column * slots + index[-1] if each else column
    return b.nest(seen, b.read(counts, [*rows, flat]))
