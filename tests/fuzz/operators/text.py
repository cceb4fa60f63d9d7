"""Operators on strings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Val, maker

WORDS = ("", "a", "b", "ab", "Zoë", "0", "-1.5", "a b")
PATTERNS = ("a.*", "[a-z]+", "", "(a|b)*", r"-?\\d+(\\.\\d+)?", ".", "a b|Zo.")


def words(b: Build, low: int = 0, high: int = 3) -> Val:
    """A tensor of words."""
    return b.pick(["string"], lambda v: low <= v.rank <= high, lambda: b.shape(low, high))


@maker("StringConcat")
def string_concat(b: Build, op: str) -> None:
    x = words(b)
    b.node(op, [x, b.spread(x)])


@maker("RegexFullMatch")
def regex_full_match(b: Build, op: str) -> None:
    b.node(op, [words(b)], pattern=b.one(PATTERNS))


@maker("StringSplit")
def string_split(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(object), b.shape(0, 2))
    given: dict[str, Any] = {"maxsplit": b.number(1, 2)} if b.chance(30) else {}
    b.node(op, [x], 2, delimiter=b.one([None, " ", "a", "b"]), **given)


@maker("StringNormalizer")
def string_normalizer(b: Build, op: str) -> None:
    shape = b.one([[3], [1, 4], [1]])
    stop = [b.one(WORDS[1:6]) for _ in range(b.number(0, 2))]
    given: dict[str, Any] = {"stopwords": stop} if stop else {}
    action = b.one(["NONE", "LOWER", "UPPER"])
    case = b.number(0, 1)
    x = b.leaf(np.dtype(object), shape)
    b.node(op, [x], case_change_action=action, is_case_sensitive=case, **given)


@maker("TfIdfVectorizer")
def tf_idf(b: Build, op: str) -> None:
    mode = b.one(["TF", "IDF", "TFIDF"])
    given: dict[str, Any] = {}
    if b.chance(50):
        given["weights"] = [0.5, 1.0, 2.0, -1.0]
    if b.chance(40):
        x = b.leaf(np.dtype(object), b.shape(1, 2))
        given["pool_strings"] = ["a", "Zoë", "ab", "", "a", "a"]
    else:
        x = b.leaf(np.dtype(b.one([np.int64, np.int32])), b.shape(1, 2), low=0, high=3)
        given["pool_int64s"] = [0, 2, 1, 3, 0, 0]
    b.node(
        op,
        [x],
        mode=mode,
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=b.number(0, 2),
        ngram_counts=[0, 2],
        ngram_indexes=[1, 0, 3, 2] if mode == "IDF" else b.one([[1, 0, 3, 2], [1, 0, 0, 2]]),
        **given,
    )
