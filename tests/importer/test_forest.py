"""Walks down forests, step by step, against the forests' own branches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.ops.forest import (
    LEAF,
    LINE,
    MODES,
    Forest,
    Walk,
    forest,
    walk_of,
)
from rutc.importer.ops.sieves import (
    LONG,
    SHORT,
    Sieves,
    SieveTables,
    Word,
    possible_sieves,
    sieves_of,
)
from rutc.tensor_ir.interpreter.interpret import interpret

COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


def random_forest(rng: np.random.Generator, nodes: int, trees: int, *, share: bool) -> Forest:
    """A forest whose branches lead to later nodes, of which they may share some."""
    mode = rng.integers(0, len(MODES), nodes)
    yes, no = np.zeros(nodes, int), np.zeros(nodes, int)
    free = list(range(trees, nodes))
    for i in range(nodes):
        later = [k for k in free if k > i]
        if len(later) < 2:
            mode[i] = LEAF
            continue
        yes[i], no[i] = rng.choice(later[:8], 2, replace=share)
        if not share:
            free = [k for k in free if k not in (yes[i], no[i])]
    values = rng.integers(-2, 3, nodes).astype(np.float32)
    features, missing = rng.integers(0, 3, nodes), rng.random(nodes) < 0.5
    return forest(features, values, mode, yes, no, missing, np.arange(trees))


def reached(f: Forest, x: np.ndarray) -> list[int]:
    """The leaf of each tree, by its branches."""
    found = []
    for node in f.roots:
        while f.mode[node] != LEAF:
            value = x[f.feature[node]]
            holds = COMPARE[f.mode[node]](value, f.threshold[node])
            holds |= bool(f.missing[node]) and np.isnan(value)
            node = (f.yes if holds else f.no)[node]
        found.append(int(node))
    return found


def walked(w: Walk, x: np.ndarray) -> list[int]:
    """The same, by as many steps in all trees as the walk says."""
    node = w.roots
    for _ in range(w.depth):
        value = x[w.feature[node]]
        modes = w.mode[node]
        holds = np.select(
            [modes == m for m in range(6)], [c(value, w.threshold[node]) for c in COMPARE]
        )
        holds = holds.astype(bool) | (w.missing[node] & np.isnan(value))
        node = w.first[node] + holds
    assert (w.first[node] == node).all()
    return w.source[node].tolist()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("nodes", "trees"), [(1, 1), (3, 1), (40, 1), (120, 7), (9, 9)])
def test_walks_end_at_the_leaves_of_the_branches(nodes: int, trees: int, share: bool) -> None:
    rng = np.random.default_rng(nodes + trees)
    numbers = np.array([-np.inf, -2, -1, -0.0, 0, 1, 1.5, 2, np.inf, np.nan], np.float32)
    for _ in range(5):
        f = random_forest(rng, nodes, trees, share=share)
        w = walk_of(f)
        assert w.depth >= f.depth
        assert share or w.depth == f.depth
        assert len(w.first) <= 2 * nodes + LINE * (f.depth + 1)
        for _ in range(30):
            x = rng.choice(numbers, 3)
            assert walked(w, x) == reached(f, x)


def test_a_root_that_a_branch_leads_to_is_in_one_place() -> None:
    zeros = np.zeros(4, int)
    mode = np.array([0, 0, LEAF, LEAF])
    yes, no = np.array([1, 2, 0, 0]), np.array([3, 3, 0, 0])
    roots = np.array([0, 1, 1, 2])
    f = forest(zeros, np.array([1, 0, 0, 0], "f4"), mode, yes, no, zeros.astype(bool), roots)
    for value in (-1.0, 0.5, 2.0, np.nan):
        x = np.array([value], np.float32)
        assert walked(walk_of(f), x) == reached(f, x)


def sifted(f: SieveTables, at: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The places of the ways that are left by the sieves of these numbers."""
    value = x[f.feature[at]]
    tests = [f.mode[at] == m for m in range(6)]
    holds = np.select(tests, [c(value, f.threshold[at]) for c in COMPARE]).astype(bool)
    holds |= f.missing[at] & np.isnan(value)
    every, free = np.uint32(0xFFFFFFFF), np.uint32((1 << f.word.free) - 1)
    left = np.bitwise_and.reduce(np.where(holds, every, f.left[at]), axis=1) & ~free
    assert (f.left[at] & free == f.feature[at] & free).all()
    lowest = left & (~left + np.uint32(1))
    return (lowest * np.uint32(f.word.ordering) >> np.uint32(f.word.ordered)).astype(int)


def sieved(f: Sieves, x: np.ndarray) -> list[int]:
    """The same, by as many sieves in all trees as they say."""
    trees = np.arange(len(f.first.left))
    state = trees * f.first.word.ways + sifted(f.first, trees, x)
    for _ in range(f.depth - 1):
        state = f.base[state] + sifted(f.others, f.sieve[state], x)
    assert (f.sieve[state] == 0).all()
    assert (f.base[state] + sifted(f.others, f.sieve[state], x) == state).all()
    return f.leaf[state].tolist()


def random_numbers(rng: np.random.Generator) -> np.ndarray:
    """Three numbers, with those that compare in other ways."""
    numbers = [-np.inf, -2, -1, -0.0, 0, 1, 1.5, 2, np.inf, np.nan]
    return rng.choice(np.array(numbers, np.float32), 3)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("nodes", "trees"), [(1, 1), (3, 1), (40, 1), (63, 1), (120, 7), (24, 8), (127, 1), (900, 3)]
)
def test_sieves_lead_to_the_leaves_of_the_branches(nodes: int, trees: int, share: bool) -> None:
    rng = np.random.default_rng(nodes + trees)
    for _ in range(5):
        f = random_forest(rng, nodes, trees, share=share)
        if f.depth == 0:
            assert sieves_of(f) is None
            continue
        for found in possible_sieves(f):
            assert len(found.others.left) <= 1 + np.count_nonzero(f.mode != LEAF)
            for _ in range(30):
                x = random_numbers(rng)
                assert sieved(found, x) == reached(f, x)


def line(leaves: int) -> Forest:
    """A tree whose tests have a leaf each, but for the last one, which has two."""
    tests = leaves - 1
    mode = np.array([0] * tests + [LEAF] * leaves)
    yes = np.array([*range(tests, 2 * tests), *[0] * leaves])
    no = np.array([*range(1, tests), 2 * tests, *[0] * leaves])
    values = np.arange(2 * tests + 1).astype(np.float32)
    zeros = np.zeros(2 * tests + 1, int)
    return forest(zeros, values, mode, yes, no, zeros.astype(bool), np.array([0]))


def complete(depth: int) -> Forest:
    """A tree all of whose leaves are so many steps down."""
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    mode = np.array([0] * inner + [LEAF] * (nodes - inner))
    below = np.where(mode == LEAF, 0, 2 * np.arange(nodes) + 1)
    values = np.linspace(-2, 2, nodes).astype(np.float32)
    none = np.zeros(nodes, bool)
    return forest(np.arange(nodes) % 3, values, mode, below, below + 1, none, np.array([0]))


@pytest.mark.parametrize("word", [SHORT, LONG], ids=lambda word: str(word.ways))
def test_a_way_has_a_place(word: Word) -> None:
    assert sorted(map(word.place, range(word.ways))) == [*range(word.ways)]
    # What is left of a sieve without tests is every way: the first one leads to the same state.
    assert word.place(0) == 0


@pytest.mark.parametrize(
    ("f", "depths"),
    [
        (line(2), [1]),
        (line(16), [1]),
        (line(17), [2, 1]),
        (line(32), [3, 1]),
        (line(33), [3, 2]),
        (line(500), [34, 33]),
        (complete(4), [1]),
        (complete(5), [2, 1]),
        (complete(8), [2, 2]),
        (complete(9), [3, 2]),
    ],
)
def test_sieves_have_as_many_ways_as_words_have_bits(f: Forest, depths: list[int]) -> None:
    found = possible_sieves(f)
    assert [s.depth for s in found] == depths
    leaves = np.flatnonzero(f.mode == LEAF)
    for s in found:
        assert sorted(s.leaf[s.leaf >= 0]) == leaves.tolist()
        for value in (*range(-1, len(leaves) + 2), np.nan, np.inf):
            x = np.array([value] * 3, np.float32)
            assert sieved(s, x) == reached(f, x)


def test_what_branches_share_is_one_sieve() -> None:
    """Ways of as many steps as there are nodes would be more than memory has."""
    nodes = 200
    yes = np.minimum(np.arange(nodes) + 1, nodes - 1)
    no = np.minimum(np.arange(nodes) + 2, nodes - 1)
    mode = np.where(np.arange(nodes) < nodes - 1, 0, LEAF)
    values = np.linspace(-2, 2, nodes).astype(np.float32)
    none = np.zeros(nodes, bool)
    f = forest(np.arange(nodes) % 3, values, mode, yes, no, none, np.array([0]))
    rng = np.random.default_rng(0)
    for found in possible_sieves(f):
        assert len(found.others.left) <= nodes
        for _ in range(30):
            x = random_numbers(rng)
            assert sieved(found, x) == reached(f, x)


def many(f: Forest, trees: int) -> Forest:
    """So many trees like the one of a forest."""
    at = np.repeat(np.arange(trees) * len(f.mode), len(f.mode))
    tables = (np.tile(t, trees) for t in (f.feature, f.threshold, f.mode))
    below = (np.tile(t, trees) + at for t in (f.yes, f.no))
    return forest(*tables, *below, np.tile(f.missing, trees), np.arange(trees) * len(f.mode))


@pytest.mark.parametrize(
    ("tree", "trees", "pays"),
    [
        (line(20), 5, True),
        (line(64), 300, True),
        (line(500), 100, True),
        (complete(3), 100, True),
        (complete(5), 100, True),
        (complete(6), 100, False),
        (complete(9), 100, False),
        # Few walks have no others to wait for.
        (complete(6), 25, True),
        (complete(9), 20, True),
    ],
)
def test_sieves_pay_where_walks_are_long_for_their_trees(
    tree: Forest, trees: int, pays: bool
) -> None:
    assert (sieves_of(many(tree, trees)) is not None) == pays


def test_words_have_room_for_a_feature() -> None:
    f = line(64)
    for feature, pays in (((1 << SHORT.free) - 1, True), (1 << SHORT.free, False)):
        assert (sieves_of(replace(f, feature=np.full_like(f.feature, feature))) is None) != pays


def test_one_large_tree_makes_no_sieves_of_small_ones() -> None:
    """All trees would go through as many."""
    small, large = many(complete(1), 999), complete(6)
    joined = [np.concatenate(pair) for pair in zip(_tables(small), _tables(large), strict=True)]
    at = len(small.mode)
    joined[3][at:] += at
    joined[4][at:] += at
    f = forest(*joined, np.array([*small.roots, at]))
    assert f.depth == 6
    assert sieves_of(f) is None


def _tables(f: Forest) -> tuple[np.ndarray, ...]:
    return f.feature, f.threshold, f.mode, f.yes, f.no, f.missing


STUMP = {
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0],
}


@pytest.mark.parametrize(
    ("op", "told", "wanted"),
    [
        ("TreeEnsembleRegressor", {"n_targets": 1}, [[2.5], [5.5]]),
        ("TreeEnsembleRegressor", {"n_targets": 2}, [[5.5, 0.5], [12.5, 0.5]]),
        ("TreeEnsembleClassifier", {"classlabels_int64s": [7]}, [[2.5], [5.5]]),
        ("TreeEnsembleClassifier", {"classlabels_int64s": [7, 8, 9]}, [[5.5, 1, 2], [12.5, 1, 2]]),
    ],
)
def test_a_leaf_s_first_vote_counts_where_there_is_one_target(op, told, wanted, tmp_path):
    """Leaf 2 gives 5 and 7, leaf 1 gives 2 and 3; the sums count where there are more targets."""
    which = "target" if op == "TreeEnsembleRegressor" else "class"
    count = len(wanted[0])
    votes = {"ids": [0] * 4, "nodeids": [2, 1, 1, 2], "treeids": [0] * 4}
    votes["weights"] = [5.0, 2.0, 3.0, 7.0]
    node = helper.make_node(
        op,
        ["x"],
        ["y"] if which == "target" else ["label", "y"],
        domain="ai.onnx.ml",
        base_values=[0.5, 1.0, 2.0][:count] if which == "class" else [0.5] * count,
        **{f"{which}_{name}": value for name, value in votes.items()},
        **told,
        **STUMP,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    given = {"x": np.array([[-1], [1]], np.float32)}
    found = interpret(import_model(tmp_path / "m.onnx"), given)["y"]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (theirs,) = session.run(["y"], given)
    if count != 2:
        # ONNX Runtime leaves the base value out of a target without a vote.
        np.testing.assert_array_equal(found, theirs)


def _last_feature(feature: int, shape: list[int | str], folder: Path) -> Path:
    """A model whose one branch tests a feature of x."""
    stump = STUMP | {"nodes_featureids": [feature, 0, 0]}
    votes = {"nodeids": [1, 2], "treeids": [0, 0], "ids": [0, 0], "weights": [2.0, 5.0]}
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        **{f"target_{name}": value for name, value in votes.items()},
        **stump,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize("shape", [[2, 4], [2, "features"]])
def test_no_branch_tests_a_feature_before_the_first(shape, tmp_path):
    with pytest.raises(UserError, match="tests feature -1"):
        import_model(_last_feature(-1, shape, tmp_path))


@pytest.mark.parametrize("last", [0, 3])
def test_rows_that_the_run_counts_have_all_features_that_branches_test(last, tmp_path):
    graph = import_model(_last_feature(last, [2, "features"], tmp_path))
    x = np.zeros((2, last + 3), np.float32)
    x[1, last] = 1
    for features in (last + 1, last + 3):
        (y,) = interpret(graph, {"x": x[:, :features]}).values()
        assert y.tolist() == [[2], [5]]
    with pytest.raises(UserError, match="features"):
        interpret(graph, {"x": x[:, :last]})
