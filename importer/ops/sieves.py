"""Forests as sieves: many tests of a tree in one step, whatever they give.

A *sieve* has the upper tests of a tree, or of what is left of one. A test that fails strikes out
ways; the first way that is left by all is the one to go [Lucchese et al. 2015, QuickScorer]. It
leads to a leaf or to the next sieve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rutc.base.record import record
from rutc.importer.ops.forest import LEAF, Forest
from rutc.tensor_ir.coefficients import COEFFICIENTS


@record
class Word:
    """Words of 32 bits, the upper ones a bit for each way out of a sieve; `free` ones are below.

    A way's bit times `ordering` has a number of its own in the bits from `ordered` on, which are as
    many as numbers of ways have [Leiserson, Prokop & Randall 1998].
    """

    ways: int
    ordering: int
    ordered: int

    @property
    def free(self) -> int:
        """The bits that no way has: the lowest ones, with room for a feature's number."""
        return BITS - self.ways

    def place(self, way: int) -> int:
        """The number that a way's bit tells."""
        return (self.ordering << self.free + way) % (1 << BITS) >> self.ordered


BITS = 32
SHORT, LONG = Word(16, 0x09AF, 28), Word(32, 0x077CB531, 27)
LANES = 8
"""Tests that a vector has, or a half of one: more than those are made whole vectors."""


@record(eq=False)
class SieveTables:
    """The tests of some sieves, {sieve, test}: feature, threshold, mode, whether NaN passes.

    `left` has a bit for each way that a failure leaves, in the order yes before no. The free bits
    of its words have the feature's number, if there are any.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    missing: np.ndarray
    left: np.ndarray
    word: Word


@record(eq=False)
class Sieves:
    """The sieves of a forest, and where each way leads.

    Those that walks begin with, `first`, one for each tree, have as many ways as their words have
    bits; a way leads to the *state* tree * ways + its place. The state's `sieve` of all `others` is
    next, and leads to the state `base` + the way's place. The one of a leaf has a single way, back
    to its state. `leaf` has the forest's leaf of each state, -1 where it is none. After `depth`
    sieves all trees are at leaves.
    """

    first: SieveTables
    others: SieveTables
    sieve: np.ndarray
    base: np.ndarray
    leaf: np.ndarray
    depth: int

    @property
    def steps(self) -> float:
        """What a tree takes, in steps of a walk."""
        costs, tests = COEFFICIENTS.forests, int(self.first.left.shape[1])
        test = costs.test if self.first.word is SHORT else costs.long_test
        return test * tests + costs.sieve * (self.depth - 1)


def sieves_of(f: Forest) -> Sieves | None:
    """The sieves of a forest; None where a walk takes less time, step by step.

    An import is for any machine, so that what these take are the coefficients of all.
    """
    if f.depth == 0 or f.feature.max() >= 1 << SHORT.free:
        return None
    best, trees = min(possible_sieves(f), key=lambda s: s.steps), len(f.roots)
    walk = f.depth * max(trees, COEFFICIENTS.forests.walks)
    return best if best.steps * trees < walk else None


def possible_sieves(f: Forest) -> list[Sieves]:
    """Sieves that a forest may have: more ways out of the first ones may save later ones."""
    short = _sieves(f, SHORT)
    return [short] if short.depth == 1 else [short, _sieves(f, LONG)]


def _sieves(f: Forest, word: Word) -> Sieves:
    """Sieves of a forest, the first ones with such words."""
    first = _parts_of(f, f.roots, word)
    number = np.full(len(f.mode), -1)
    levels, count, inner = list[_Parts](), 0, first.inner
    while (new := _first_ones(inner[number[inner] < 0])).size:
        number[new] = count + np.arange(len(new))
        levels.append(_parts_of(f, new, SHORT))
        count, inner = count + len(new), levels[-1].inner
    none = _parts_of(f, np.empty(0, np.int64), SHORT)
    others = _Parts(*(np.concatenate(tables) for tables in zip(none, *levels, strict=True)))
    depth = _depths(f, others)
    placed = first.placed(word), others.placed(SHORT)
    node = np.concatenate([ends.reshape(-1) for ends in placed]).astype(np.int64)
    begin = len(f.roots) * word.ways
    next_ = np.where(node < 0, -1, number[node])
    base = np.where(next_ < 0, np.arange(len(node)), begin + next_ * SHORT.ways)
    leaf = np.where((node >= 0) & (f.mode[node] == LEAF), node, -1)
    most = int((first.test >= 0).sum(1).max())
    if most > LANES:
        most += -most % LANES
    return Sieves(
        first.tables(f, word, most),
        # The first of these is for leaves.
        others.after_none().tables(f, SHORT, SHORT.ways),
        1 + next_,
        base,
        leaf,
        1 + int(depth[first.end].max()),
    )


def _first_ones(nodes: np.ndarray) -> np.ndarray:
    """The nodes without those that are there before."""
    return nodes[np.sort(np.unique(nodes, return_index=True)[1])]


class _Parts(NamedTuple):
    """What each of some sieves has, -1 where it has less.

    Its `root` {sieve}, the node that is asked first; of its tests {sieve, test}, which are one less
    than ways, the node and the ways `begin` to `stop` to which it leads where it passes; the nodes
    to which its ways lead, `end` {sieve, way}, and their heights.
    """

    root: np.ndarray
    test: np.ndarray
    begin: np.ndarray
    stop: np.ndarray
    end: np.ndarray
    height: np.ndarray

    @property
    def inner(self) -> np.ndarray:
        """The nodes at the ends of ways that are no leaves."""
        return self.end[self.height > 0]

    def placed(self, word: Word) -> np.ndarray:
        """The ends {sieve, place}, at the places that the ways' bits tell."""
        found = np.empty_like(self.end)
        found[:, [word.place(way) for way in range(word.ways)]] = self.end
        return found

    def after_none(self) -> _Parts:
        """These after a sieve without tests."""
        return _Parts(*(np.insert(table, 0, -1, axis=0) for table in self))

    def tables(self, f: Forest, word: Word, most: int) -> SieveTables:
        """Tables of so many tests for each sieve; what one has less leaves all ways."""
        test = np.full((len(self.root), most), np.argmax(f.mode != LEAF), np.int32)
        struck = np.zeros(test.shape, np.uint32)
        some = min(most, self.test.shape[1])
        there = self.test[:, :some] >= 0
        test[:, :some][there] = self.test[:, :some][there]
        stop, begin = (x[:, :some][there].astype(np.int64) for x in (self.stop, self.begin))
        struck[:, :some][there] = (1 << stop) - (1 << begin) << word.free
        feature, free = f.feature.astype(np.uint32)[test], np.uint32((1 << word.free) - 1)
        left = ~struck & ~free | feature & free
        return SieveTables(feature, f.threshold[test], f.mode[test], f.missing[test], left, word)


def _parts_of(f: Forest, roots: np.ndarray, word: Word) -> _Parts:
    """The tests below each root from which there are the most steps to go, as many as have ways."""
    ways = np.arange(word.ways)
    test = np.full((len(roots), word.ways - 1), -1, np.int32)
    begin, stop = np.zeros(test.shape, np.int8), np.zeros(test.shape, np.int8)
    end = np.full((len(roots), word.ways), -1, np.int32)
    height = end.copy()
    end[:, 0], height[:, 0] = roots, f.height[roots]
    rows = np.arange(len(roots))
    for k in range(word.ways - 1):
        # The first of those ways from whose end there are the most steps to go.
        rows = rows[height[rows].max(1) > 0]
        way = height[rows].argmax(1)
        node = end[rows, way]
        for bound in (begin, stop):
            bound[rows, :k] += bound[rows, :k] > way[:, None]
        test[rows, k], begin[rows, k], stop[rows, k] = node, way, way + 1
        old = ways - (ways > way[:, None])
        end[rows], height[rows] = end[rows[:, None], old], height[rows[:, None], old]
        for at, below in ((way, f.yes[node]), (way + 1, f.no[node])):
            end[rows, at], height[rows, at] = below, f.height[below]
    return _Parts(roots, test, begin, stop, end, height)


def _depths(f: Forest, parts: _Parts) -> np.ndarray:
    """How many of these sieves follow one another from each node on; 0 for none, the last one."""
    depth = np.zeros(len(f.mode) + 1, np.int64)
    height = f.height[parts.root]
    order = np.argsort(height, kind="stable")
    # What is below a node is less high.
    for rows in np.split(order, np.flatnonzero(np.diff(height[order])) + 1):
        depth[parts.root[rows]] = 1 + depth[parts.end[rows]].max(1, initial=0)
    return depth
