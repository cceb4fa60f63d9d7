"""Forests as sieves: many tests of a tree in one step, whatever they give.

A *sieve* has the upper tests of a tree, or of what is left of one. A test that fails strikes out
ways; the first way that is left by all is the one to go [Lucchese et al. 2015, QuickScorer]. It
leads to a leaf or to the next sieve.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    below = _Below(f.height.tolist(), f.yes.tolist(), f.no.tolist())
    first = [_part(root, word, below) for root in f.roots.tolist()]
    parts = dict[int, _Part]()
    inner = [end for part in first for end in part.ends if below.height[end]]
    for root in inner:
        if root not in parts:
            part = parts[root] = _part(root, SHORT, below)
            inner += [end for end in part.ends if below.height[end]]
    # What is below a node is less high.
    depth = dict[int, int]()
    for root in sorted(parts, key=below.height.__getitem__):
        depth[root] = 1 + max(depth.get(end, 0) for end in parts[root].ends)
    begin = len(first) * word.ways
    node = np.full(begin + len(parts) * SHORT.ways, -1)
    for i, part in enumerate(first):
        for way, end in enumerate(part.ends):
            node[i * word.ways + word.place(way)] = end
    for i, part in enumerate(parts.values()):
        for way, end in enumerate(part.ends):
            node[begin + i * SHORT.ways + SHORT.place(way)] = end
    number = {root: i for i, root in enumerate(parts)}
    next_ = np.array([number.get(n, -1) for n in node.tolist()])
    base = np.where(next_ < 0, np.arange(len(node)), begin + next_ * SHORT.ways)
    leaf = np.where((node >= 0) & (f.mode[node] == LEAF), node, -1)
    most = max(len(part.tests) for part in first)
    if most > LANES:
        most += -most % LANES
    return Sieves(
        _tests(f, first, word, most),
        # The first of these is for leaves.
        _tests(f, [_Part([], []), *parts.values()], SHORT, SHORT.ways),
        1 + next_,
        base,
        leaf,
        1 + max(depth.get(end, 0) for part in first for end in part.ends),
    )


@record(eq=False)
class _Below:
    """How many steps there are to go from each node, and to which it leads."""

    height: list[int]
    yes: list[int]
    no: list[int]


@record(eq=False)
class _Part:
    """The tests of a sieve, with the ways from one to another if each passes; the ways' ends."""

    tests: list[tuple[int, int, int]]
    ends: list[int]


def _part(root: int, word: Word, below: _Below) -> _Part:
    """The tests below a node from which there are the most steps to go, as many as have ways."""
    tests: list[tuple[int, int, int]] = []
    ends, high = [root], [below.height[root]]
    while len(ends) < word.ways and (most := max(high)) > 0:
        way = high.index(most)
        node = ends[way]
        tests = [(n, first + (first > way), end + (end > way)) for n, first, end in tests]
        tests.append((node, way, way + 1))
        ends[way : way + 1] = yes, no = below.yes[node], below.no[node]
        high[way : way + 1] = below.height[yes], below.height[no]
    return _Part(tests, ends)


def _tests(f: Forest, parts: Sequence[_Part], word: Word, most: int) -> SieveTables:
    """Tables of so many tests for each part; what a part has less leaves all ways."""
    test = np.full((len(parts), most), np.argmax(f.mode != LEAF))
    struck = np.zeros(test.shape, np.uint32)
    for i, part in enumerate(parts):
        for k, (node, begin, end) in enumerate(part.tests):
            test[i, k] = node
            struck[i, k] = (1 << end) - (1 << begin) << word.free
    feature, free = f.feature[test], np.uint32((1 << word.free) - 1)
    left = ~struck & ~free | feature.astype(np.uint32) & free
    return SieveTables(feature, f.threshold[test], f.mode[test], f.missing[test], left, word)
