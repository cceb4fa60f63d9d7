"""Models with strings: interpreted, compiled and compared, also with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rutc
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.regex import RegexError, program_of
from rutc.runtime.errors import ModelError
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.regex import full_match

pytestmark = pytest.mark.sampled(6)

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., list[np.ndarray]]


def texts(*items: str) -> np.ndarray:
    """Strings as numpy holds them."""
    return np.array(items, object)


def model(nodes: Sequence[NodeProto], inputs: Arrays, outputs: Sequence[str]) -> onnx.ModelProto:
    """A model with the inputs' shapes fixed."""

    def kind(a: np.ndarray) -> int:
        if a.dtype == object:
            return TensorProto.STRING
        return helper.np_dtype_to_tensor_dtype(a.dtype)

    infos = [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in inputs.items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(list(nodes), "g", infos, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(nodes, inputs, outputs, agree=True)`: of the library, which agrees with the twins."""

    def fn(
        nodes: Sequence[NodeProto] | NodeProto,
        inputs: Arrays,
        outputs: Sequence[str] = ("y",),
        *,
        agree: bool = True,
    ) -> list[np.ndarray]:
        steps = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
        made = model(steps, inputs, outputs)
        path = tmp_path / "m.onnx"
        onnx.save(made, path)
        twins = interpret(import_model(path), inputs)
        rutc.compile(path, tmp_path / "m.so", verify=False)
        with rutc.load(tmp_path / "m.so") as session:
            got = session.run(None, inputs)
            again = session.run(None, inputs)
        for name, mine, more in zip(outputs, got, again, strict=True):
            np.testing.assert_array_equal(mine, twins[name])
            np.testing.assert_array_equal(mine, more)
        if agree:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            theirs = onnxruntime.InferenceSession(made.SerializeToString(), options)
            for mine, other in zip(got, theirs.run(None, dict(inputs)), strict=True):
                np.testing.assert_array_equal(mine, other)
        return got

    return fn


def test_strings_are_moved_chosen_and_compared(run):
    x = np.array([["a", "bü", ""], ["日本", "a", "x y"]], object)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Gather", ["x", "i"], ["g"], axis=1),
        helper.make_node("Equal", ["x", "s"], ["e"]),
        helper.make_node("Where", ["e", "x", "s"], ["w"]),
        helper.make_node("Concat", ["x", "w"], ["c"], axis=0),
    ]
    inputs = {"x": x, "i": np.array([2, 0]), "s": texts("a", "a", "x y")}
    got = run(nodes, inputs, ("t", "g", "e", "w", "c"))
    assert got[3].tolist() == [["a", "a", "x y"], ["a", "a", "x y"]]


def test_concatenation(run):
    x, y = texts("a", "", "ü"), np.array([["1"], ["zwei"]], object)
    run(helper.make_node("StringConcat", ["x", "y"], ["y0"]), {"x": x, "y": y}, ("y0",))
    many = texts(*(f"{i % 700}" for i in range(2000)))
    twice = [
        helper.make_node("StringConcat", ["x", "x"], ["t"]),
        helper.make_node("StringConcat", ["t", "x"], ["y"]),
        helper.make_node("Equal", ["t", "x"], ["e"]),
    ]
    got = run(twice, {"x": many}, ("y", "e"))
    assert got[0][-1] == "599599599"


def test_labels_of_strings(run):
    encode = {"domain": "ai.onnx.ml", "keys_strings": ["a", "b"]}
    x = texts("b", "q", "a")
    run(helper.make_node("LabelEncoder", ["x"], ["y"], values_int64s=[4, 5], **encode), {"x": x})
    run(
        helper.make_node("LabelEncoder", ["x"], ["y"], values_strings=["A", "B"], **encode),
        {"x": x},
    )
    numbers = np.array([5, 9])
    back = {"domain": "ai.onnx.ml", "cats_strings": ["p", "q"], "cats_int64s": [5, 6]}
    run(helper.make_node("CategoryMapper", ["x"], ["y"], **back), {"x": numbers})


@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
def test_change_of_case(action, run):
    x = texts("Straße", "ÄÖÜ", "λόγος", "Дом", "ǅ", "ẞ", "")
    node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action=action)
    (got,) = run(node, {"x": x}, agree=False)
    if action == "UPPER":
        assert got.tolist()[:4] == ["STRAßE", "ÄÖÜ", "ΛΌΓΟΣ", "ДОМ"]


def test_every_character_changes_case(run):
    x = texts(*(chr(c) for c in range(1, 0x1E944) if not 0xD800 <= c < 0xE000))
    for action in ("LOWER", "UPPER"):
        node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action=action)
        run(node, {"x": x}, agree=False)


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "u1", "?", "f2"])
def test_numbers_become_text_and_back(kind, run):
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.integers(-20, 20, 60)
    floats = np.concatenate((rng.standard_normal(60) * scale, [0.0, -0.0, 1.0, 1e16, 1e-5, 0.1]))
    floats = np.concatenate((floats, [np.nan, np.inf, -np.inf]))
    integers = rng.integers(0, 100, 20)
    with np.errstate(over="ignore"):
        x = floats.astype(kind) if kind[0] == "f" else integers.astype(kind)
    (text,) = run(
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING), {"x": x}, agree=False
    )
    to = helper.np_dtype_to_tensor_dtype(x.dtype)
    (back,) = run(helper.make_node("Cast", ["x"], ["y"], to=to), {"x": text}, agree=False)
    np.testing.assert_array_equal(back, x)
    if kind == "f4":
        assert text.tolist()[-9:-3] == ["0.0", "-0.0", "1.0", "1e+16", "1e-05", "0.1"]


def test_text_that_is_no_number(run, tmp_path):
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)
    (got,) = run(node, {"x": texts("12", " -7 ", "12.7", "1e3")}, agree=False)
    assert got.tolist() == [12, -7, 12, 1000]
    onnx.save(model([node], {"x": texts("a")}, ["y"]), tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    with rutc.load(tmp_path / "m.so") as session:
        with pytest.raises(ModelError, match='"hi" is no number'):
            session.run(None, {"x": texts("hi")})
        with pytest.raises(ModelError, match="must be strings"):
            session.run(None, {"x": np.array([1.0])})
        assert session.get_inputs()[0].type == "tensor(string)"
        (y,) = session.run(None, {"x": np.array(["5"])})
        assert y.tolist() == [5]


SUBJECTS = (
    *["", "a", "ab", "abc", "aB", "ABC", "a1", "12", "foo@bar.com", "a.b", "\n", "a\nb", "ü", "Üb"],
    *[" ", "a b", "_x", "x-y", "aaa", "aaaa", "[", "]", "ß", "é", "日本", "a\tb", "}", "{2}", "]a"],
    *["-", "^", "\\", "K", "k", "\u212a", "\u017f", "s", "S"],
)
PATTERNS = (
    *["a", "a*", "a+b?", "[a-z]+", "[^a-z]*", "(?i)abc", "(?i)[a-b]+", "a|b|", "(a|b)*c?", "."],
    *[r"\w+@\w+\.com", r"\d+", r"\D*", r"\s", r"\S+", "(?s).", "(?s).*", "a.b", "(?m)^a$\\n^b$"],
    *[r"\bab?\b", r"\p{Lu}+", r"\pL+", r"\PL*", r"[\p{L}\d]+", "[[:alpha:]]+", "[[:^alpha:]]+"],
    *["a{2}", "a{2,3}", "a{2,}", r"\Qa.b\E", r"\x41", r"\x{65E5}本", r"[\]a]+", "[]a]+", "[^]a]"],
    *["[a-]+", r"\\", "(?P<n>a)b", "(?:ab)c", "(?i:a)B", "a(?i)b", "(?-i)a", "()", "^$", r"\A\z"],
    *[r"a\B1", "x*?", "(?i)k", "(?i)s", "(?i)ß", "[[:word:]]+", r"[^\d]", r"\141", "(?i)ü.?"],
)


def expected_matches(pattern: str) -> list[bool]:
    """What ONNX Runtime says, which uses RE2."""
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    made = model([node], {"x": texts(*SUBJECTS)}, ["y"])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    return session.run(None, {"x": texts(*SUBJECTS)})[0].tolist()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_expressions(pattern):
    program = program_of(pattern)
    assert [full_match(program, s) for s in SUBJECTS] == expected_matches(pattern)


@pytest.mark.parametrize("pattern", ["(a|b)*c?|ü|日.|[^a]", r"(?i)\bab?\b|k", "(?m)^a$\\n^b$", ""])
def test_compiled_regular_expressions(pattern, run):
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    run(node, {"x": texts(*SUBJECTS)})


@pytest.mark.parametrize(
    "pattern",
    ["a**", "(", "a)", "[z-a]", r"\1", "(?=a)", "a{1001}", "{2}", "+a", r"\q", "[a", r"\p{Nope}"],
)
def test_refused_patterns(pattern, tmp_path):
    with pytest.raises(RegexError):
        program_of(pattern)
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    onnx.save(model([node], {"x": texts("a")}, ["y"]), tmp_path / "m.onnx")
    with pytest.raises(UserError, match="is not accepted"):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("low", "high", "skips"), [(1, 1, 0), (1, 2, 5), (2, 3, 1)])
def test_n_grams(mode, low, high, skips, run):
    shape = {
        "min_gram_length": low,
        "max_gram_length": high,
        "max_skip_count": skips,
        "mode": mode,
        "ngram_counts": [0, 4, 10] if high == 3 else [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "weights": [0.5, 1.0, 2.0, 3.0, 1.0, 2.0, 5.0],
    }
    numbers = {"pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **shape, **numbers)
    run(node, {"x": np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)})
    words = {"pool_strings": list("abcdabbcca")}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **shape, **words)
    run(node, {"x": texts(*"abcabcab")})


@pytest.mark.parametrize("delimiter", ["", ",", "--", "ü"])
@pytest.mark.parametrize("limit", [None, 0, 1, 2])
def test_split(delimiter, limit, run):
    x = np.array([["a,b,c", " x  y\tz "], ["", "a--b---c"], [",,", "1ü2"]], object)
    how = {} if limit is None else {"maxsplit": limit}
    node = helper.make_node("StringSplit", ["x"], ["y", "n"], delimiter=delimiter, **how)
    got = run(node, {"x": x}, ("y", "n"), agree=False)
    want = ReferenceEvaluator(model([node], {"x": x}, ("y", "n"))).run(None, {"x": x})
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize(
    "words", [["monday"], ["Monday", "TUESDAY"], ["monday", "tuesday", "wednesday"]]
)
def test_stop_words(action, sensitive, words, run):
    how = {"case_change_action": action, "is_case_sensitive": sensitive, "stopwords": words}
    node = helper.make_node("StringNormalizer", ["x"], ["y"], **how)
    for x in (texts("monday", "tuesday", "wednesday"), np.array([["Monday", "tuesday"]], object)):
        (got,) = run(node, {"x": x}, agree=False)
        fold = str if sensitive else str.lower
        left = [w for w in x.reshape(-1).tolist() if fold(w) not in set(map(fold, words))] or [""]
        change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[action]
        assert got.reshape(-1).tolist() == [change(w) for w in left]
        assert got.ndim == x.ndim


@pytest.mark.parametrize("ordered", [0, 1])
def test_distinct_strings(ordered, run):
    x = texts("b", "a", "", "ü", "ab", "a", "z", "b", "日", "")
    node = helper.make_node("Unique", ["x"], ["y", "first", "which", "count"], sorted=ordered)
    outputs = ("y", "first", "which", "count")
    got = run(node, {"x": x}, outputs, agree=False)
    found = list(dict.fromkeys(x.tolist()))
    want = sorted(found) if ordered else found
    assert got[0].tolist() == want
    assert got[1].tolist() == [x.tolist().index(w) for w in want]
    assert [want[k] for k in got[2]] == x.tolist()
    assert got[3].tolist() == [x.tolist().count(w) for w in want]


def test_strings_are_padded_tiled_and_scattered(run):
    x = np.array([["a", "b"], ["c", "d"]], object)
    constants = {"p": [1, 0, 0, 1], "r": [2, 1], "i": [[1], [0]], "k": [0, 1], "n": 3}
    nodes = [
        helper.make_node("Constant", [], [n], value_ints=v)
        if isinstance(v, list) and not isinstance(v[0], list)
        else helper.make_node(
            "Constant", [], [n], value=numpy_helper.from_array(np.array(v, np.int64))
        )
        for n, v in constants.items()
    ]
    nodes += [
        helper.make_node("Pad", ["x", "p", "u"], ["padded"]),
        helper.make_node("Tile", ["x", "r"], ["tiled"]),
        helper.make_node("ScatterND", ["x", "i", "x"], ["turned"]),
        helper.make_node("OneHot", ["k", "n", "v"], ["hot"]),
        helper.make_node("GatherND", ["x", "i"], ["rows"]),
        helper.make_node("Slice", ["x", "k", "r"], ["part"]),
    ]
    inputs = {"x": x, "u": np.array("?", object), "v": texts("no", "yes")}
    outputs = ("padded", "tiled", "turned", "hot", "rows", "part")
    got = run(nodes, inputs, outputs, agree=False)
    assert got[1].tolist() == [["a", "b"], ["c", "d"]] * 2
    assert got[0].tolist() == [["?", "?", "?"], ["a", "b", "?"], ["c", "d", "?"]]
    assert got[2].tolist() == [["c", "d"], ["a", "b"]]
    assert got[3].tolist() == [["yes", "no", "no"], ["no", "yes", "no"]]
    assert got[4].tolist() == [["c", "d"], ["a", "b"]]


ENCODED = {"keys_strings": ["b", "", "a", "ü"], "values_int64s": [5, 6, 7, 8]}


def test_strings_that_the_model_knows_and_others(run: Run) -> None:
    x = texts("a", "b", "", "ü", "ab", "_Unused", "b ", "u", "b")
    encode = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **ENCODED)
    (found,) = run(encode, {"x": x})
    assert found.tolist() == [7, 5, 6, 8, -1, -1, -1, -1, 5]


def test_strings_that_a_run_makes_are_looked_up(run: Run) -> None:
    """`ab` is a key; another key is a string of the model that is no key of this encoder."""
    table = {"keys_strings": ["ab", "cd"], "values_strings": ["cd", "x"], "default_string": "ab"}
    nodes = [
        helper.make_node("StringConcat", ["p", "q"], ["joined"]),
        helper.make_node("LabelEncoder", ["joined"], ["y"], domain="ai.onnx.ml", **table),
        helper.make_node("LabelEncoder", ["y"], ["z"], domain="ai.onnx.ml", **table),
    ]
    inputs = {"p": texts("a", "c", "x", ""), "q": texts("b", "d", "", "ab")}
    y, z = run(nodes, inputs, ["y", "z"])
    assert y.tolist() == ["cd", "x", "ab", "cd"]
    assert z.tolist() == ["x", "ab", "cd", "x"]


def test_the_last_of_equal_keys_counts(run: Run) -> None:
    table = {"keys_strings": ["a", "b", "a"], "values_int64s": [1, 2, 3]}
    encode = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **table)
    (found,) = run(encode, {"x": texts("a", "b", "c")}, agree=False)
    assert found.tolist() == [3, 2, -1]


def test_many_strings_of_many_runs(tmp_path: Path) -> None:
    """The table of strings grows and is emptied; the model's own stay where they are."""
    keys = [f"key {k}" for k in range(300)]
    table = {"keys_strings": keys, "values_int64s": list(range(300))}
    encode = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **table)
    onnx.save(model([encode], {"x": np.full(500, "", object)}, ["y"]), tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    rng = np.random.default_rng(0)
    with rutc.load(tmp_path / "m.so") as session:
        for turn in range(6):
            known = rng.integers(0, 600, 500)
            x = np.array([f"key {k}" if k < 300 else f"{turn} {k}" * 9 for k in known], object)
            (found,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(found, np.where(known < 300, known, -1))
