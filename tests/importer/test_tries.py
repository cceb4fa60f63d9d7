"""N-grams that are found in a trie, against ONNX Runtime; and tries themselves."""

import numpy as np
import pytest

from rutc.importer.ops.lookup import COMPARED
from rutc.importer.ops.tries import Trie


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shape", [(40,), (3, 40), (1, 40)])
@pytest.mark.parametrize(("least", "skips", "shared"), [(1, 0, False), (2, 2, False), (1, 1, True)])
def test_many_n_grams(mode, shape, least, skips, shared, check, make_node, rng):
    """They are found in a trie; columns may be those of several n-grams, or of none.

    Of several n-grams of a column, the mode IDF has the last weight in ONNX Runtime.
    """
    shared = shared and mode != "IDF"
    words = [1, 2, 3, 5, 8, -7, 11]
    pairs = [(p, q) for p in words for q in words if p < q + 3]
    triples = [(p, q, r) for p in words for q in (2, 3, 8) for r in (3, -7)] + [(9, 9, 1)]
    grams = [(w,) for w in words], pairs, triples
    count = sum(map(len, grams))
    columns = rng.permutation(count + 3)[:count]
    node = make_node(
        "TfIdfVectorizer",
        ["x"],
        mode=mode,
        min_gram_length=least,
        max_gram_length=3,
        max_skip_count=skips,
        ngram_counts=[0, len(words), len(words) + 2 * len(pairs)],
        ngram_indexes=(columns // 2 if shared else columns).tolist(),
        pool_int64s=[w for each in grams for gram in each for w in gram],
        weights=rng.uniform(0.25, 4.0, count).tolist(),
    )
    assert sum(len(gram) >= least for each in grams for gram in each) > COMPARED
    check(node, {"x": rng.choice([*words, 4, 9], shape)})


def counting(make_node, words):
    """A node that counts single numbers, each in a column of its own."""
    return make_node(
        "TfIdfVectorizer",
        ["x"],
        mode="TF",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=list(range(len(words))),
        pool_int64s=words,
    )


def test_n_grams_that_are_there_twice_are_counted_for_both(check, make_node):
    """ONNX Runtime refuses them; the standard does not."""
    words = list(range(1, COMPARED + 9))
    node = counting(make_node, [*words, 5])
    counts = np.zeros((1, len(words) + 1), np.float32)
    counts[0, [0, 4, -1]] = 1, 2, 2
    check(node, {"x": np.array([[5, 1, 5, 99]])}, expected=[counts])


@pytest.mark.parametrize("count", [3, COMPARED + 9])
def test_n_grams_that_the_operands_type_does_not_have_occur_nowhere(count, check, make_node):
    words = [0, *range(2, count), 1 << 32, (1 << 32) + 5, -(1 << 40)]
    node = counting(make_node, words)
    check(node, {"x": np.array([[0, 5, 0, 99]], np.int32)})


def test_a_trie_leads_to_what_sequences_stand_for(rng):
    drawn = rng.integers(1, 30, (4000, 3)).tolist()
    goals = {tuple(s[: 1 + k % 3]): k for k, s in enumerate(drawn)}
    trie = Trie.of(goals, -1)

    def walked(sequence):
        place = 0
        for number in sequence:
            child = trie.base[place] + number
            place = child if trie.check[child] == place else trie.dead
        return int(trie.goal[place])

    assert {s: walked(s) for s in goals} == goals
    others = {tuple(s) for s in rng.integers(0, 30, (2000, 3)).tolist()} - goals.keys()
    assert {walked(s) for s in others} == {-1}
    nodes = {s[:k] for s in goals for k in range(len(s) + 1)}
    assert len(trie.base) < len(nodes) + len(nodes) // 4
    assert Trie.of({}, 0).goal.tolist() == [0, 0]
