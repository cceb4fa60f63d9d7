"""Ensembles of decision trees: from sieve to sieve, or node by node, all trees in step.

A sieve makes many tests of a tree at once, a vector of them, and strikes out ways by those that
fail; the number of the first way that is left tells what comes next:

left{n,t} = bitand{i} select(x[n, feature[s, i]] <= threshold[s, i], ~0, left[s, i]), s = sieve[n,t]

Where that takes longer, a walk makes one test a step, by gathers from a table of nodes:

node{n,t} = first[node] + (x[n, feature[node]] <= threshold[node])   (depth times)
y{n,k}    = sum{t} weight[node[n,t], k]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.forest import (
    Branches,
    Forest,
    Nodes,
    Votes,
    Walk,
    walk_of,
)
from rutc.importer.ops.scans import Step, scanned
from rutc.importer.ops.scores import (
    ML,
    Labels,
    above,
    best,
    floats,
    matrix,
    transformed,
    two_classes,
)
from rutc.importer.ops.sieves import BITS, Sieves, SieveTables, sieves_of
from rutc.importer.ops.thresholds import compared, holds, narrowed, or_missing, passes
from rutc.importer.registry import operator
from rutc.tensor_ir import BitCast, DType, Expr, Index, IndexValue, apply, cast

UNROLLED = 24
"""Trees of up to this depth are walked without a loop."""
DENSE = 1 << 22
"""Weights of leaves for all targets are one table up to this many elements."""

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def walked(b: Builder, x: Tensor, f: Walk) -> Tensor:
    """The node {n, t} where the walk of each row of x {n, features} down each tree ends."""
    axes = b.axes((x.shape[0], len(f.roots)), ("n", "tree"))
    start = b.nest(axes, b.read(b.constant(f.roots.astype(np.int64)), [axes[1].index]))
    if f.depth == 0:
        return start
    table, kind = _Table(b, f), compared(x, f)
    modes = np.unique(f.mode)
    mode = b.constant(f.mode.astype(np.int64))

    def step(_: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        axes = b.axes(states[0].shape, ("n", "tree"))
        node = b.spread(states[0], axes)
        word = b.read(table.words, [node])
        value = cast(b.read(x, [axes[0].index, table.feature(word)]), kind)
        limit = cast(table.threshold(node, word), kind)
        found = holds(value, limit, modes, b.read(mode, [node]))
        if f.missing.any() and x.dtype.is_float:
            found = or_missing(found, value, table.missing(word))
        down = apply("add", table.first(word), cast(found, DType.I64))
        return [b.nest(axes, down)], []

    return _repeated(b, f.depth, start, step)


def _repeated(b: Builder, times: int, state: Tensor, step: Step) -> Tensor:
    """The state after so many steps, which are a loop if they are many."""
    if times > UNROLLED:
        return scanned(b, Index.of(times), [state], step)[0][0]
    for _ in range(times):
        (state,), _ = step(Index.of(0), [state])
    return state


def sieved(b: Builder, x: Tensor, f: Sieves) -> Tensor:
    """The state {n, t} that each row of x {n, features} reaches after all sieves of each tree."""
    shape, ways = (x.shape[0], Index.of(len(f.first.left))), f.first.word.ways
    # Numbers without a sign need no comparison with 0 before they are places.
    number, base = (b.constant(table.astype(np.uint32)) for table in (f.sieve, f.base))
    first, others = _Sifted(b, x, f.first), _Sifted(b, x, f.others)

    def begin(axes: Sequence[Axis]) -> Expr:
        return cast(IndexValue(axes[1].index * ways), DType.U32)

    def step(_: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        def told(table: Tensor, axes: Sequence[Axis]) -> Expr:
            now = b.read(states[0], [a.index for a in axes])
            return b.read(table, [cast(now, DType.I64)])

        def sieve(axes: Sequence[Axis]) -> Expr:
            return cast(told(number, axes), DType.I64)

        return [others.onward(shape, sieve, lambda axes: told(base, axes))], []

    state = first.onward(shape, lambda axes: axes[1].index, begin)
    return b.as_type(_repeated(b, f.depth - 1, state, step), DType.I64)


class _Sifted:
    """Rows x {n, features} of which tests are made, those of some sieves."""

    def __init__(self, b: Builder, x: Tensor, f: SieveTables) -> None:
        self.b, self.x, self.word = b, x, f.word
        self.kind = compared(x, f)
        self.count = f.left.shape[1]
        self.feature = b.constant(f.feature.astype(np.uint32))
        self.threshold, self.left = b.constant(f.threshold), b.constant(f.left)
        self.modes, self.mode = np.unique(f.mode), b.constant(f.mode.astype(np.int64))
        tracks = f.missing.any() and x.dtype.is_float
        passing = passes(f) if tracks else None
        self.passing = b.constant(passing) if passing is not None else None
        self.missing = b.constant(f.missing) if tracks and passing is None else None

    def onward(
        self,
        shape: Sequence[Index],
        sieve: Callable[[Sequence[Axis]], Index | Expr],
        begin: Callable[[Sequence[Axis]], Expr],
    ) -> Tensor:
        """The states {n, t} to which these sieves lead, from where states of their ways begin."""
        b, kind, test = self.b, DType.U32, self.b.axis(self.count, "test")
        axes = b.axes(shape, ("n", "tree"))
        at = sieve(axes)

        def told(table: Tensor) -> Expr:
            return b.read(table, [at, test.index])

        words, free = told(self.left), (1 << self.word.free) - 1
        feature = apply("bitand", words, lit(free, kind)) if free else told(self.feature)
        value = cast(b.read(self.x, [axes[0].index, cast(feature, DType.I64)]), self.kind)
        if self.passing is not None:
            instead = cast(told(self.passing), self.kind)
            value = apply("select", apply("isnan", value), instead, value)
        found = holds(value, cast(told(self.threshold), self.kind), self.modes, told(self.mode))
        if self.missing is not None:
            found = or_missing(found, value, told(self.missing))
        every = (1 << BITS) - 1
        left = b.nest(axes, apply("select", found, lit(every, kind), words), (test,), "bitand")
        axes = b.axes(shape, ("n", "tree"))
        ways = b.read(left, [a.index for a in axes])
        if free:
            ways = apply("bitand", ways, lit(every - free, kind))
        lowest = apply("bitand", ways, apply("sub", lit(0, kind), ways))
        ordered = apply("mul", lowest, lit(self.word.ordering, kind))
        way = apply("shr", ordered, lit(self.word.ordered, kind))
        return b.nest(axes, apply("add", begin(axes), way))


def _tested(b: Builder, x: Tensor, f: Forest) -> Tensor:
    """The rows x {n, features} up to the last feature that a branch tests.

    Where the run tells how many features there are, it ends unless all of these are there.

    Raises OperatorError where x has not all of them.
    """
    tested, features = f.feature[f.height > 0], x.shape[1]
    if not tested.size:
        return x
    if tested.min() < 0:
        raise OperatorError(f"a branch tests feature {tested.min()}")
    last = int(tested.max())
    if not features.is_const:
        return b.view(x, (x.shape[0], last + 1), lambda *at: at)
    if last >= features.const:
        raise OperatorError(f"a branch tests feature {last} of {features}")
    return x


class _Table:
    """The nodes of a walk as `words`, a u64 for each: signed ones take longer to shift.

    From its highest bits on: the first node below, the feature, whether NaN goes the way of `yes`,
    and the bits of the threshold, where all that has room; else thresholds have a table of their
    own. Few bytes for a node keep more of a forest in the cache.
    """

    def __init__(self, b: Builder, f: Walk) -> None:
        self.b = b
        self.bits = int(f.feature.max(initial=0)).bit_length()
        single = f.threshold.dtype == np.float32
        places = max(len(f.first) - 1, 1).bit_length()
        self.limits = None
        self.low = 32 if single and places + self.bits + 1 + 32 <= 64 else 0
        if not self.low:
            self.limits = b.constant(f.threshold)
        tests = (f.first << self.bits | f.feature) << 1 | f.missing
        words = tests.astype(np.uint64) << np.uint64(self.low)
        if self.low:
            words |= f.threshold.view(np.uint32)
        self.words = b.constant(words)

    def first(self, word: Expr) -> Expr:
        """The first node below."""
        return cast(apply("shr", word, lit(self.low + 1 + self.bits, DType.U64)), DType.I64)

    def feature(self, word: Expr) -> Expr:
        """The feature that the node tests."""
        shifted = apply("shr", word, lit(self.low + 1, DType.U64))
        return cast(apply("bitand", shifted, lit((1 << self.bits) - 1, DType.U64)), DType.I64)

    def missing(self, word: Expr) -> Expr:
        """Whether the test holds for NaN."""
        bit = apply("bitand", word, lit(1 << self.low, DType.U64))
        return apply("ne", bit, lit(0, DType.U64))

    def threshold(self, node: Expr, word: Expr) -> Expr:
        """What the feature is compared with."""
        if self.limits is not None:
            return self.b.read(self.limits, [node])
        return BitCast(cast(word, DType.I32), DType.F32)


def gathered(
    b: Builder, node: Tensor, leaf: np.ndarray, v: Votes, targets: int, how: str
) -> Tensor:
    """{n, targets}: the sum, least or largest vote for each target of the nodes {n, t}.

    `leaf` has the forest's leaf that each node is; -1 where it is none.
    """
    if len(v.target) and not 0 <= v.target.min() <= v.target.max() < targets:
        raise OperatorError(f"a vote is for target {v.target.max()} of {targets}")
    order = np.argsort(v.node, kind="stable")
    known = np.searchsorted(v.node[order], np.stack((leaf, leaf + 1)))
    # The votes of each leaf among the nodes, which may have some of the forest's leaves twice.
    counts = np.where(leaf >= 0, known[1] - known[0], 0)
    starts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(rows)) - starts[rows]
    vote = order[known[0][rows] + place]
    target, weight = v.target[vote], v.weight[vote]
    neutral = {"sum": 0.0, "min": np.inf, "max": -np.inf}[how]
    most = int(counts.max(initial=1))
    axes = b.axes((node.shape[0], targets), ("n", "target"))
    tree = b.axis(node.shape[1], "tree")
    at = b.read(node, [axes[0].index, tree.index])
    if len(counts) * targets <= max(DENSE, 2 * most * len(counts)):
        dense = np.full((len(counts), targets), neutral, weight.dtype)
        ufunc = {"sum": np.add, "min": np.minimum, "max": np.maximum}[how]
        ufunc.at(dense, (rows, target), weight)
        if targets == 1:
            # Beside the walk, so that rows of votes are summed.
            kept = b.map(lambda i: b.read(b.constant(dense), [i, 0]), node)
            one = b.read(kept, [axes[0].index, tree.index])
            return b.nest(axes, one, (tree,), how)
        return b.nest(axes, b.read(b.constant(dense), [at, axes[1].index]), (tree,), how)
    listed = np.full((len(counts), most), -1, np.int64)
    shares = np.full((len(counts), most), neutral, weight.dtype)
    listed[rows, place] = target
    shares[rows, place] = weight
    ballot = b.axis(most, "vote")
    mine = apply("eq", b.read(b.constant(listed), [at, ballot.index]), IndexValue(axes[1].index))
    share = b.read(b.constant(shares), [at, ballot.index])
    body = apply("select", mine, share, lit(neutral, share.dtype))
    return b.nest(axes, body, (tree, ballot), how)


def aggregated(
    b: Builder, x: Tensor, f: Forest, v: Votes, targets: int, how: str, base: np.ndarray
) -> Tensor:
    """{n, targets}: the votes of all trees in one number, with the base values added.

    A target without a vote has 0.
    """
    if how not in _AGGREGATES:
        raise OperatorError(f"the aggregate function {how!r} is unknown")
    reducer = "sum" if how in ("AVERAGE", "SUM") else how.lower()
    x, found = narrowed(b, _tested(b, x, f), f), sieves_of(f)
    if found is None:
        walk = walk_of(f)
        y = gathered(b, walked(b, x, walk), walk.leaf, v, targets, reducer)
    else:
        state = sieved(b, x, found)
        y = gathered(b, state, found.leaf, v, targets, reducer)
    if how == "AVERAGE":
        count = len(f.roots)
        y = b.map(lambda e: apply("div", e, lit(count, e.dtype)), y)
    elif how != "SUM":
        y = b.map(lambda e: apply("select", apply("isinf", e), lit(0, e.dtype), e), y)
    if not base.size:
        return y
    if base.size != targets:
        raise OperatorError(f"{base.size} base values for {targets} targets")
    return b.map(lambda e, s: apply("add", e, cast(s, e.dtype)), y, b.constant(base))


def _numbers(tensor: object, plain: Sequence[float]) -> np.ndarray:
    """The numbers of an attribute that is a tensor or a list."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1)
    return np.array(plain, np.float32)


@operator("TreeEnsembleRegressor", ML)
def tree_ensemble_regressor(
    b: Builder,
    x: Tensor,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] = (),
    base_values_as_tensor: object = None,
    n_targets: int = 1,
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: object = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: object = None,
    post_transform: str = "NONE",
    target_ids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_treeids: Sequence[int] = (),
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: object = None,
) -> Tensor:
    """The targets' values {n, targets}: what the trees' leaves say, aggregated."""
    nodes = Nodes(
        nodes_treeids,
        nodes_nodeids,
        nodes_featureids,
        nodes_modes,
        _numbers(nodes_values_as_tensor, nodes_values),
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_missing_value_tracks_true,
    )
    weights = _numbers(target_weights_as_tensor, target_weights)
    votes = nodes.votes(target_treeids, target_nodeids, target_ids, weights)
    if n_targets == 1:
        votes = _first_votes(votes)
    base = _numbers(base_values_as_tensor, base_values)
    rows = matrix(b, x)
    y = aggregated(b, rows, nodes.forest(), votes, n_targets, aggregate_function, base)
    return floats(b, transformed_targets(b, y, post_transform))


def _first_votes(votes: Votes) -> Votes:
    """The first vote of each leaf, where there is one target: ONNX Runtime counts no other.

    Exporters rely on that: the trees by which scikit-learn tells the leaf of a sample repeat the
    leaf's number for each class.
    """
    first = np.sort(np.unique(votes.node, return_index=True)[1])
    return Votes(votes.node[first], votes.target[first], votes.weight[first])


def transformed_targets(b: Builder, y: Tensor, how: str) -> Tensor:
    """The scores after a post transform, of which a single target knows PROBIT only."""
    single = y.shape[1].is_const and y.shape[1].const == 1
    return y if single and how != "PROBIT" else transformed(b, y, how)


@operator("TreeEnsembleClassifier", ML)
def tree_ensemble_classifier(
    b: Builder,
    x: Tensor,
    *,
    base_values: Sequence[float] = (),
    base_values_as_tensor: object = None,
    class_ids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_treeids: Sequence[int] = (),
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: object = None,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: object = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: object = None,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    """The label {n} of the class with the highest score, and all scores {n, classes}.

    Where all leaves vote for the first of two classes, their sum s is the second's score and the
    first's is its complement: 1 - s if no weight is negative (the label then turns at 0.5), else
    -s (it turns at 0).
    """
    nodes = Nodes(
        nodes_treeids,
        nodes_nodeids,
        nodes_featureids,
        nodes_modes,
        _numbers(nodes_values_as_tensor, nodes_values),
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_missing_value_tracks_true,
    )
    labels = Labels(classlabels_int64s, classlabels_strings)
    weights = _numbers(class_weights_as_tensor, class_weights)
    votes = nodes.votes(class_treeids, class_nodeids, class_ids, weights)
    if len(labels) == 1:
        votes = _first_votes(votes)
    base = _numbers(base_values_as_tensor, base_values)
    rows = matrix(b, x)
    positive = len(labels) == 2 and bool((weights >= 0).all())
    voted = np.unique(votes.target)
    forest = nodes.forest()
    if len(labels) <= 2 and voted.tolist() == [0] and base.size <= 1:
        score = aggregated(b, rows, forest, votes, 1, "SUM", base)
        found, scores = two_classes(b, score, post_transform, positive=positive)
        alone = len(labels) == 1 and post_transform != "PROBIT"
        return labels.two().of(b, found), floats(b, score if alone else scores)
    y = aggregated(b, rows, forest, votes, len(labels), "SUM", base)
    found = best(b, y)
    if len(labels) == 2 and len(voted) == 1:
        found = above(b, y, 1, 0.5 if positive else 0.0)
    return labels.of(b, found), floats(b, transformed(b, y, post_transform))


@operator("TreeEnsemble", ML)
def tree_ensemble(
    b: Builder,
    x: Tensor,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: np.ndarray,
    membership_values: np.ndarray | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: np.ndarray | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: np.ndarray,
    nodes_splits: np.ndarray,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Tensor:
    """The targets' values {n, targets}: what the trees' leaves say, aggregated."""
    if not 0 <= aggregate_function < len(_AGGREGATES):
        raise OperatorError(f"the aggregate function {aggregate_function} is unknown")
    if not 0 <= post_transform < len(_TRANSFORMS):
        raise OperatorError(f"the post transform {post_transform} is unknown")
    wide = x.dtype if x.dtype is DType.F64 else DType.F32
    branches = Branches(
        nodes_featureids,
        nodes_modes,
        nodes_splits.astype(wide.numpy),
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_trueleafs,
        nodes_falseleafs,
        nodes_missing_value_tracks_true,
        membership_values,
        tree_roots,
    )
    leaves = np.arange(len(leaf_weights)) + len(nodes_featureids)
    votes = Votes(leaves, np.array(leaf_targetids, np.int64), leaf_weights.astype(wide.numpy))
    how = _AGGREGATES[aggregate_function]
    forest = branches.forest(len(leaves))
    y = aggregated(b, matrix(b, x), forest, votes, n_targets, how, np.empty(0))
    y = transformed_targets(b, y, _TRANSFORMS[post_transform])
    return b.as_type(y, x.dtype)
