"""The texts that a graph knows: what it compares the strings of its inputs with."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from rutc.driver.api import compile, verify
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.tensor_ir.facts.vocabulary import MOST_TEXTS, known_texts

HEADER = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 4]> '

MODELS = [
    (
        'g (string[n] s) => (string[n] y) { y = StringNormalizer <case_change_action = "LOWER",'
        ' stopwords = ["the", "a"]> (s) }',
        {"s": ("the", "a")},
    ),
    # Each input with what it meets, as it is or in another case; values are none.
    (
        "g (string[n] s, string[n] t, float[n] x) => (int64[n] y, string[n] z) {"
        ' l = StringNormalizer <case_change_action = "LOWER"> (s)'
        ' y = ai.onnx.ml.LabelEncoder <keys_strings = ["b", "c"], values_int64s = [1, 2]> (l)'
        ' z = ai.onnx.ml.LabelEncoder <keys_strings = ["d"], values_strings = ["e"],'
        ' default_string = "f"> (t) }',
        {"s": ("b", "c"), "t": ("d",)},
    ),
    ('g (string[n] s) => (bool[n] y) <string k = {"k"}> { y = Equal (s, k) }', {"s": ("k",)}),
    ("g (string[n] s, string[n] t) => (bool[n] y) { y = Equal (s, t) }", {}),
    ("g (float[n] x) => (float[n] y) { y = Neg (x) }", {}),
    # What stands in a branch.
    (
        'g (bool c, string[1] s) => (bool[1] y) <string k = {"k"}, string m = {"m"}> {'
        " y = If (c) <then_branch = a () => (bool[1] u) { u = Equal (s, k) },"
        " else_branch = b () => (bool[1] v) { v = Equal (s, m) }> }",
        {"s": ("k", "m")},
    ),
]


@pytest.mark.parametrize(("text", "wanted"), MODELS)
def test_known_texts(text: str, wanted: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    onnx.save(parser.parse_model(HEADER + text), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert known_texts(graph) == wanted
    assert known_texts(optimize(graph)) == wanted


def _counting(path: Path, grams: list[str], starts: list[int], delimiter: str) -> None:
    """Writes a model of counts of n-grams of the words of texts."""
    pool = "[" + ", ".join(f'"{w}"' for w in grams) + "]"
    columns = starts[1] + (len(grams) - starts[1]) // 2
    text = (
        "g (string[n] s) => (float[n, k] y) {"
        f' w, c = StringSplit <delimiter = "{delimiter}"> (s)'
        ' y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 2,'
        f" max_skip_count = 0, ngram_counts = {starts}, ngram_indexes = {list(range(columns))},"
        f" pool_strings = {pool}> (w) }}"
    )
    onnx.save(parser.parse_model(HEADER + text), path)


@pytest.mark.parametrize(("delimiter", "between"), [("", " "), (", ", ", ")])
def test_words_that_follow_each_other_come_together(
    delimiter: str, between: str, tmp_path: Path
) -> None:
    words = ["the", "cat", "sat", "on"]
    _counting(tmp_path / "m.onnx", [*words, "the", "cat", "sat", "on"], [0, 4], delimiter)
    (texts,) = known_texts(import_model(tmp_path / "m.onnx")).values()
    runs = [text.split(between) for text in texts]
    assert {len(run) for run in runs} == {1, 2, 3, 4}
    assert {word for run in runs for word in run} == set(words)
    report = compile(tmp_path / "m.onnx", tmp_path / "m.so")
    assert report.verification is not None
    told = verify(tmp_path / "m.onnx", report.library)
    assert told.passed
    assert not any("says nothing" in line for line in told.unverified)


def test_so_many_texts_are_kept_from_all_of_a_vocabulary(tmp_path: Path) -> None:
    keys = [f"word{k}" for k in range(1000)]
    node = helper.make_node(
        "LabelEncoder",
        ["s"],
        ["y"],
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=list(range(1000)),
    )
    ports = [
        helper.make_tensor_value_info(name, kind, ["n"])
        for name, kind in (("s", onnx.TensorProto.STRING), ("y", onnx.TensorProto.INT64))
    ]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    (texts,) = known_texts(import_model(tmp_path / "m.onnx")).values()
    places = [keys.index(text) for text in texts]
    assert len(places) == MOST_TEXTS
    assert set(np.diff(places)) <= {15, 16}
