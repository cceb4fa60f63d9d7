"""Tokenizer of ONNX Runtime, and text pipelines of scikit-learn, compiled and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import rutc
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close

ROWS = [
    ["Hello World", "I love computer science !", "", "ab,cd ef"],
    ["a  b", "  ", "aé b", "xaaby abab aXbXc"],
    ["ab12cd a", "line\nbreak", "a.b..c", "abcabd"],
    ["x", "3", "\u00e9t\u00e9 \U0001f600!", "aab ab"],
]
TOKENIZERS: list[dict[str, Any]] = [
    {"separators": [" "]},
    {"separators": [" "], "mincharnum": 2},
    {"separators": [" ", ","], "mark": 1},
    {"separators": ["X", "b"]},
    {"separators": ["a|aa"]},
    {"separators": ["a*"]},
    {"separators": [r"\b"], "mark": 1},
    {"separators": ["^a", r"\."]},
    {"separators": [""]},
    {"tokenexp": "."},
    {"tokenexp": "[a-z]+"},
    {"tokenexp": "[a-z]+", "mincharnum": 2, "mark": 1},
    {"tokenexp": "abd|abc?", "mincharnum": 3},
    {"tokenexp": "^ab"},
    {"tokenexp": r"\w\w+", "pad_value": ""},
    {"tokenexp": "a*"},
    {"tokenexp": "[#$]", "mark": 1},
]


def tokenizing(shape: list[str | int], tokenizers: list[dict[str, Any]]) -> ModelProto:
    nodes = [
        helper.make_node(
            "Tokenizer",
            ["x"],
            [f"y{k}"],
            domain="com.microsoft",
            **{"mark": 0, "mincharnum": 1, "pad_value": "#", **attributes},
        )
        for k, attributes in enumerate(tokenizers)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.STRING, shape)
    results = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes]
    graph = helper.make_graph(nodes, "g", [x], results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_tokens(tmp_path: Path) -> None:
    path, library = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(tokenizing(["n", "m"], TOKENIZERS), path)
    rutc.compile(path, library, verify=False)
    reference = onnxruntime.InferenceSession(path)
    graph = import_model(path)
    with rutc.load(library) as session:
        for rows in (ROWS, [["a", ""]], [["", ""]]):
            feed = {"x": np.array(rows, object)}
            made, meant = session.run(None, feed), interpret(graph, feed)
            for k, want in enumerate(reference.run(None, feed)):
                assert made[k].tolist() == want.tolist(), TOKENIZERS[k]
                assert meant[f"y{k}"].tolist() == want.tolist(), TOKENIZERS[k]


def test_texts_are_split_by_many_separators(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    separators = [chr(200 + k) for k in range(256)]
    onnx.save(tokenizing(["n"], [{"separators": separators}]), path)
    rutc.compile(path, tmp_path / "m.so", verify=False)
    feed = {"x": np.array(["a".join(separators)], object)}
    want = [["a"] * 255]
    assert interpret(import_model(path), feed)["y0"].tolist() == want
    with rutc.load(tmp_path / "m.so") as session:
        assert session.run(None, feed)[0].tolist() == want


@pytest.mark.parametrize("shape", [["n"], ["n", "m"], [0], [2, 0]])
def test_no_text_has_no_token(shape: list[str | int], tmp_path: Path) -> None:
    """The rank stays that of the result; ONNX Runtime gives the input's rank, against its own."""
    path = tmp_path / "m.onnx"
    onnx.save(tokenizing(shape, [{"separators": [" "]}, {"tokenexp": "a", "mark": 1}]), path)
    rutc.compile(path, tmp_path / "m.so", verify=False)
    extents = (0,) if len(shape) == 1 else (2, 0)
    with rutc.load(tmp_path / "m.so") as session:
        for tokens in session.run(None, {"x": np.empty(extents, object)}):
            assert tokens.shape == (*extents, 0)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"separators": ["("]}, "the pattern .* is not accepted"),
        ({"separators": [""], "mincharnum": 2}, "mincharnum is more than 1"),
        ({"separators": [" "], "tokenexp": "a"}, "either separators or tokenexp"),
        ({"tokenexp": "a", "mincharnum": 0}, "mincharnum > 0"),
        ({"separators": ["a"] * 257}, "257 separators; rutc takes at most 256"),
    ],
)
def test_tokenizers_that_are_refused(
    attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    onnx.save(tokenizing(["n"], [attributes]), tmp_path / "m.onnx")
    with pytest.raises(rutc.UserError, match=message):
        import_model(tmp_path / "m.onnx")


DOCUMENTS = [
    "This is the first document, about cats and dogs.",
    "And this one: is the second second document!",
    "Cats sleep; dogs don't.",
    "Is this the first document?",
    "a b c",
    "",
]


def pipelines() -> dict[str, Any]:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    return {
        "words": text.TfidfVectorizer(ngram_range=(1, 2)),
        "stop words": text.CountVectorizer(stop_words=["the", "is"], token_pattern="[a-zA-Z]+"),
        "characters": text.CountVectorizer(analyzer="char", ngram_range=(1, 2), binary=True),
    }


@pytest.mark.parametrize("name", ["words", "stop words", "characters"])
def test_pipelines_of_scikit_learn(name: str, tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(pipelines()[name], LogisticRegression())
    pipeline.fit(DOCUMENTS, [0, 1, 0, 1, 1, 0])
    model = skl2onnx.to_onnx(
        pipeline,
        initial_types=[("x", StringTensorType([None, 1]))],
        target_opset=18,
        options={"zipmap": False},
    )
    path, library = tmp_path / "m.onnx", tmp_path / "m.so"
    path.write_bytes(model.SerializeToString())
    rutc.compile(path, library)
    feed = {"x": np.array(DOCUMENTS, object)[:, None]}
    with rutc.load(library) as session:
        labels, scores = session.run(None, feed)
    np.testing.assert_array_equal(labels, pipeline.predict(DOCUMENTS))
    assert_close(scores, pipeline.predict_proba(DOCUMENTS), reduction=16)
