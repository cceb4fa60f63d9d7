"""Walks down forests, step by step, against the forests' own branches."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rutc.importer import import_model
from rutc.importer.ops.forest import (
    LEAF,
    LINE,
    MODES,
    WORDS,
    Bits,
    Forest,
    Sieve,
    Walk,
    forest,
    possible_sieves,
    sieve_of,
    walk_of,
)
from rutc.tensor_ir.interpret import interpret

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


def walked(w: Walk, x: np.ndarray, start: np.ndarray | None = None) -> list[int]:
    """The same, by as many steps in all trees as the walk says."""
    node = w.roots if start is None else start
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


def sieved(sieve: Sieve, rest: Walk, x: np.ndarray) -> list[int]:
    """The leaf of each tree, by all tests of the sieve and a walk from where they lead."""
    value = x[sieve.feature]
    holds = np.select(
        [sieve.mode == m for m in range(6)], [c(value, sieve.threshold) for c in COMPARE]
    ).astype(bool)
    holds |= sieve.missing & np.isnan(value)
    word, bits = sieve.bits.dtype, sieve.bits
    left = np.bitwise_and.reduce(np.where(holds, ~word(0), sieve.left), axis=1)
    lowest = left & (~left + word(1))
    place = (lowest * word(bits.ordering)) >> word(bits.ordered)
    start = np.arange(len(left)) * bits.count + place.astype(int)
    return walked(rest, x, start)


def random_numbers(rng: np.random.Generator) -> np.ndarray:
    """Three numbers, with those that compare in other ways."""
    numbers = [-np.inf, -2, -1, -0.0, 0, 1, 1.5, 2, np.inf, np.nan]
    return rng.choice(np.array(numbers, np.float32), 3)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("nodes", "trees"), [(3, 1), (40, 1), (63, 1), (120, 7), (24, 8), (127, 1), (900, 3)]
)
def test_sieves_lead_to_the_leaves_of_the_branches(nodes: int, trees: int, share: bool) -> None:
    rng = np.random.default_rng(nodes + trees)
    for _ in range(5):
        f = random_forest(rng, nodes, trees, share=share)
        found = possible_sieves(f)
        assert found
        for sieve in found:
            rest = walk_of(f.below(sieve))
            for _ in range(30):
                x = random_numbers(rng)
                assert sieved(sieve, rest, x) == reached(f, x)


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


@pytest.mark.parametrize("bits", WORDS, ids=lambda bits: str(bits.count))
def test_a_leaf_has_a_bit_of_a_word(bits: Bits) -> None:
    assert sorted(map(bits.place, range(bits.count))) == [*range(bits.count)]
    for leaves in (bits.count // 2 + 1, bits.count):
        f = line(leaves)
        sieve = possible_sieves(f)[0]
        assert sieve.bits is bits
        rest = walk_of(f.below(sieve))
        assert rest.depth == 0
        for value in (*range(-1, leaves + 2), np.nan, np.inf):
            x = np.array([value], np.float32)
            assert sieved(sieve, rest, x) == reached(f, x)


@pytest.mark.parametrize(
    ("f", "steps"),
    [(line(40), 8), (line(WORDS[-1].count + 1), 33), (line(500), 468), (complete(8), 3)],
)
def test_larger_trees_are_walked_from_a_sieve(f: Forest, steps: int) -> None:
    """What is left of the walk; the tests of the sieve are those from which it is longer."""
    sieve = possible_sieves(f)[-1]
    assert sieve.bits is WORDS[0]
    assert sieve.left.shape == (1, WORDS[0].count - 1)
    rest = walk_of(f.below(sieve))
    assert rest.depth == steps
    rng = np.random.default_rng(steps)
    for _ in range(30):
        x = random_numbers(rng) * np.float32(100 if steps > 3 else 1)
        assert sieved(sieve, rest, x) == reached(f, x)


def test_trees_without_a_test_have_no_sieve() -> None:
    zeros = np.zeros(2, int)
    none = zeros.astype(bool)
    leaves = np.array([LEAF, LEAF])
    assert sieve_of(forest(zeros, np.zeros(2, "f4"), leaves, zeros, zeros, none, zeros)) is None


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
        (complete(3), 100, True),
        (complete(5), 100, False),
        (complete(6), 100, False),
        # Few walks have no others to wait for.
        (complete(5), 10, True),
        (complete(6), 40, False),
        (complete(9), 100, False),
        (line(500), 100, True),
    ],
)
def test_sieves_pay_where_walks_are_long_for_their_trees(
    tree: Forest, trees: int, pays: bool
) -> None:
    assert (sieve_of(many(tree, trees)) is not None) == pays


def test_one_large_tree_makes_no_sieve_of_small_ones() -> None:
    """All trees would have as many tests."""
    small, large = many(complete(1), 999), complete(6)
    joined = [np.concatenate(pair) for pair in zip(_tables(small), _tables(large), strict=True)]
    at = len(small.mode)
    joined[3][at:] += at
    joined[4][at:] += at
    f = forest(*joined, np.array([*small.roots, at]))
    assert f.depth == 6
    assert sieve_of(f) is None


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
