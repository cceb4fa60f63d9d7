"""Decision trees as tables: one row a node, the trees' nodes in one numbering.

A leaf is a node whose two branches lead to itself, so that walking further does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.base.record import record
from rutc.importer.building.expressions import OperatorError

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
"""The comparisons of a branch; a mode is a position in this list."""
MEMBER = 6
"""The mode of a branch on membership in a set, which is replaced by a chain of EQ."""
LEAF = 7
LINE = 8
"""Nodes of a walk in one cache line."""


Row = list[float]
"""A node while chains are made: feature, threshold, mode, yes, no, missing."""
_MODE, _NO = 2, 4


@record(eq=False)
class Forest:
    """The nodes of all trees, `roots` of the trees, and the longest way down in steps.

    `height` has the most steps down from each node that a root leads to.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    depth: int
    height: np.ndarray


@record(eq=False)
class Votes:
    """What leaves give: node `node[i]` adds `weight[i]` to target `target[i]`."""

    node: np.ndarray
    target: np.ndarray
    weight: np.ndarray


def forest(
    feature: np.ndarray,
    threshold: np.ndarray,
    mode: np.ndarray,
    yes: np.ndarray,
    no: np.ndarray,
    missing: np.ndarray,
    roots: np.ndarray,
) -> Forest:
    """The forest of these tables. Raises OperatorError where they make no trees."""
    n = len(feature)
    own = np.arange(n)
    leaf = mode == LEAF
    yes, no = np.where(leaf, own, yes), np.where(leaf, own, no)
    if n == 0 or len(roots) == 0:
        raise OperatorError("the ensemble has no trees")
    if min(yes.min(), no.min(), roots.min()) < 0 or max(yes.max(), no.max(), roots.max()) >= n:
        raise OperatorError("a branch leads to a node that does not exist")
    levels, level = list[np.ndarray](), np.unique(roots)
    while True:
        level = level[~leaf[level]]
        if not level.size:
            break
        levels.append(level)
        level = np.unique(np.concatenate((yes[level], no[level])))
        if len(levels) > n:
            raise OperatorError("the branches of a tree lead back to a node above them")
    height = np.zeros(n, np.int64)
    for level in reversed(levels):
        height[level] = 1 + np.maximum(height[yes[level]], height[no[level]])
    feature = np.where(leaf, 0, feature)
    threshold = np.where(leaf, 0, threshold).astype(threshold.dtype)
    return Forest(feature, threshold, mode, yes, no, missing & ~leaf, roots, len(levels), height)


@record(eq=False)
class Walk:
    """A forest as a walk takes it: from a node to its `first`, or to the next if its test holds.

    A leaf's test never holds, and its first is itself. What several branches lead to is in one
    place: elsewhere a node without a test stands for it. `source` is the forest's node; `mode`
    knows no NEQ, whose branches have changed sides.
    """

    first: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    missing: np.ndarray
    source: np.ndarray
    roots: np.ndarray
    depth: int

    @property
    def leaf(self) -> np.ndarray:
        """The forest's leaf that each node is; -1 where it is none."""
        return np.where(self.first == np.arange(len(self.first)), self.source, -1)


def walk_of(f: Forest) -> Walk:
    """The walk down a forest, level by level."""
    unequal = f.mode == MODES.index("NEQ")
    yes, no = np.where(unequal, f.no, f.yes), np.where(unequal, f.yes, f.no)
    mode = np.where(unequal, MODES.index("EQ"), f.mode)
    missing = f.missing & ~unequal
    place = np.full(len(f.mode), -1)
    level, count = f.roots, 0
    sources, firsts, tests = [], [], []
    while level.size:
        slots = count + np.arange(len(level))
        inner = f.mode[level] != LEAF
        # The first of equal nodes that are not in a place yet.
        new = np.zeros(len(level), bool)
        new[np.unique(level, return_index=True)[1]] = True
        new &= inner & (place[level] < 0)
        place[level[new]] = slots[new]
        below = count + len(level) + 2 * np.arange(new.sum())
        first = np.where(inner, place[level], slots)
        first[new] = below
        sources.append(level)
        firsts.append(first)
        tests.append(new)
        count += len(level)
        level = np.stack((no[level[new]], yes[level[new]]), axis=1).reshape(-1)
    source, first, test = (np.concatenate(x) for x in (sources, firsts, tests))
    usual = mode[f.mode != LEAF]
    never = usual[0] if usual.size else 0
    # No comparison with NaN holds.
    threshold = np.where(test, f.threshold[source], np.nan).astype(f.threshold.dtype)
    roots = np.arange(len(f.roots))
    place, count = _places(first, test, [len(x) for x in sources])

    def placed(values: np.ndarray, other: object) -> np.ndarray:
        found = np.full(count, other, values.dtype)
        found[place] = values
        return found

    below = np.arange(count)
    below[place] = place[first]
    return Walk(
        below,
        placed(np.where(test, f.feature[source], 0), 0),
        placed(threshold, np.nan),
        placed(np.where(test, mode[source], never), never),
        placed(missing[source] & test, False),
        placed(source, 0),
        roots,
        _longest(below, placed(test, False), roots),
    )


def _places(first: np.ndarray, test: np.ndarray, levels: Sequence[int]) -> tuple[np.ndarray, int]:
    """Where each node is put, and the number of places, some of which stay free.

    The two nodes below one are neighbours. Such a pair and those below it, two levels, share a
    cache line where nodes are words of 8 bytes: then a walk touches half as many lines.
    """
    place = np.arange(len(first))
    ends = np.cumsum(levels)
    count = _whole(levels[0])

    def put(pairs: np.ndarray, places: np.ndarray) -> None:
        place[pairs], place[pairs + 1] = places, places + 1

    for begin, end in zip(ends[:-1:2], ends[1::2], strict=False):
        pairs = np.arange(begin, end, 2)
        below = test[pairs] + test[pairs + 1].astype(np.int64)
        three, two, one = (pairs[below == n] for n in (2, 1, 0))
        lines = count + LINE * np.arange(len(three))
        put(three, lines)
        put(first[three], lines + 2)
        put(first[three + 1], lines + 4)
        spare = min(len(one), len(three))
        put(one[:spare], lines[:spare] + 6)
        count += LINE * len(three)
        halves = count + LINE // 2 * np.arange(len(two))
        put(two, halves)
        put(np.where(test[two], first[two], first[two + 1]), halves + 2)
        count += LINE // 2 * len(two)
        put(one[spare:], count + 2 * np.arange(len(one) - spare))
        count = _whole(count + 2 * (len(one) - spare))
    return place, count


def _whole(count: int) -> int:
    """So many nodes filled up to whole lines."""
    return -(-count // LINE) * LINE


def _longest(first: np.ndarray, test: np.ndarray, roots: np.ndarray) -> int:
    """The steps of the longest walk."""
    moves = first != np.arange(len(first))
    depth, level = 0, roots[moves[roots]]
    while level.size:
        level = np.unique(np.concatenate((first[level], first[level[test[level]]] + 1)))
        level = level[moves[level]]
        depth += 1
    return depth


@record(eq=False)
class Nodes:
    """The attributes of a TreeEnsembleClassifier or -Regressor that describe nodes."""

    tree: Sequence[int]
    node: Sequence[int]
    feature: Sequence[int]
    mode: Sequence[str]
    threshold: np.ndarray
    yes: Sequence[int]
    no: Sequence[int]
    missing: Sequence[int]

    def forest(self) -> Forest:
        """The forest; a tree's root is the node to which no branch of the tree leads."""
        n = len(self.node)
        lengths = {len(a) for a in (self.tree, self.feature, self.mode, self.yes, self.no)}
        if lengths != {n} or len(self.threshold) != n or len(self.missing) not in (0, n):
            raise OperatorError("the attributes nodes_* differ in length")
        known = {**{f"BRANCH_{m}": i for i, m in enumerate(MODES)}, "LEAF": LEAF}
        unknown = sorted(set(self.mode) - known.keys())
        if unknown:
            raise OperatorError(f"the node mode {unknown[0]!r} is unknown")
        mode = np.fromiter(map(known.__getitem__, self.mode), np.int8, n)
        rows, tree = self._rows(), np.array(self.tree, np.int64)
        inner = mode != LEAF
        yes, no = (rows.of(tree, np.array(to, np.int64)) for to in (self.yes, self.no))
        reached = np.zeros(n + 1, bool)
        reached[yes[inner]] = reached[no[inner]] = True
        missing = np.array(self.missing, bool) if len(self.missing) else np.zeros(n, bool)
        roots = np.flatnonzero(~reached[:n])
        feature = np.array(self.feature, np.int64)
        return forest(feature, self.threshold, mode, yes, no, missing, roots)

    def votes(
        self,
        tree: Sequence[int],
        node: Sequence[int],
        target: Sequence[int],
        weight: np.ndarray,
    ) -> Votes:
        """The votes that these attributes describe."""
        if {len(node), len(target), len(weight)} != {len(tree)}:
            raise OperatorError("the attributes of the leaves' votes differ in length")
        rows = self._rows().of(np.array(tree, np.int64), np.array(node, np.int64))
        if (rows < 0).any():
            raise OperatorError("a vote belongs to a node that does not exist")
        return Votes(rows, np.array(target, np.int64), weight)

    def _rows(self) -> _Rows:
        rows = _Rows(np.array(self.tree, np.int64), np.array(self.node, np.int64))
        if rows.repeated:
            raise OperatorError("two nodes of a tree have the same id")
        return rows


class _Rows:
    """Where each pair of a tree and a node {n} is among those that are listed."""

    def __init__(self, tree: np.ndarray, node: np.ndarray) -> None:
        self.trees, tree = np.unique(tree, return_inverse=True)
        self.nodes, node = np.unique(node, return_inverse=True)
        pairs = tree * len(self.nodes) + node
        self.order = np.argsort(pairs, kind="stable")
        self.pairs = pairs[self.order]

    @property
    def repeated(self) -> bool:
        """Whether a pair is listed twice."""
        return bool((self.pairs[1:] == self.pairs[:-1]).any())

    def of(self, tree: np.ndarray, node: np.ndarray) -> np.ndarray:
        """The row of each pair {m}; -1 for one that is not listed."""
        if not self.pairs.size:
            return np.full(len(tree), -1)
        trees, nodes = _place_in(self.trees, tree), _place_in(self.nodes, node)
        place = _place_in(self.pairs, trees * len(self.nodes) + nodes)
        return np.where((trees < 0) | (nodes < 0) | (place < 0), -1, self.order[place])


def _place_in(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The place of each number among values that ascend, -1 where it is not there."""
    place = np.minimum(np.searchsorted(values, found), len(values) - 1)
    return np.where(values[place] == found, place, -1)


@record(eq=False)
class Branches:
    """The attributes of a TreeEnsemble: branches and leaves are numbered apart."""

    feature: Sequence[int]
    mode: np.ndarray
    threshold: np.ndarray
    yes: Sequence[int]
    no: Sequence[int]
    yes_leaf: Sequence[int]
    no_leaf: Sequence[int]
    missing: Sequence[int]
    members: np.ndarray | None
    roots: Sequence[int]

    def forest(self, leaves: int) -> Forest:
        """The forest of the branches followed by the leaves."""
        n = len(self.feature)
        lengths = {len(a) for a in (self.mode, self.threshold, self.yes, self.no)}
        lengths |= {len(self.yes_leaf), len(self.no_leaf)}
        if lengths != {n} or len(self.missing) not in (0, n):
            raise OperatorError("the attributes nodes_* differ in length")
        if ((self.mode < 0) | (self.mode > MEMBER)).any():
            raise OperatorError("a node mode is unknown")
        missing = self.missing or [0] * n
        yes = [i + n if leaf else i for i, leaf in zip(self.yes, self.yes_leaf, strict=True)]
        no = [i + n if leaf else i for i, leaf in zip(self.no, self.no_leaf, strict=True)]
        columns = (self.feature, self.threshold.tolist(), self.mode.tolist(), yes, no, missing)
        rows = [list(row) for row in zip(*columns, strict=True)]
        rows += [[0, 0.0, LEAF, 0, 0, 0]] * leaves
        rows = _chained(rows, n, _sets(self.members))
        feature, threshold, mode, yes_, no_, tracks = (np.array(c) for c in zip(*rows, strict=True))
        threshold = threshold.astype(self.threshold.dtype)
        roots = np.array(self.roots, np.int64)
        return forest(feature, threshold, mode, yes_, no_, tracks.astype(bool), roots)


def _chained(rows: list[Row], branches: int, sets: list[list[float]]) -> list[Row]:
    """Branches on membership by chains: `x in {a, b}` -> `x == a`, where it fails `x == b`."""
    places = [i for i in range(branches) if rows[i][_MODE] == MEMBER]
    if len(sets) != len(places):
        raise OperatorError(f"{len(sets)} sets of members for {len(places)} branches on them")
    equal = MODES.index("EQ")
    for i, members in zip(places, sets, strict=True):
        feature, _, _, yes, last, missing = rows[i]
        at = i
        for k, m in enumerate(members or [float("nan")]):
            if k:
                rows.append([])
                rows[at][_NO] = len(rows) - 1
                at = len(rows) - 1
            rows[at] = [feature, m, equal, yes, last, missing]
    return rows


def _sets(members: np.ndarray | None) -> list[list[float]]:
    """The sets that NaNs end."""
    sets: list[list[float]] = []
    current: list[float] = []
    for m in members.reshape(-1).tolist() if members is not None else ():
        if m == m:
            current.append(m)
        else:
            sets.append(current)
            current = []
    return [*sets, current] if current else sets
