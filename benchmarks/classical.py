"""`python -m benchmarks.classical`: models of scikit-learn, one artifact for all batches of each.

Machines with support vectors, forests, boosted trees, columns of strings, encoders of labels, and
probabilities by class in maps, as skl2onnx exports them, with one thread and with two. rutc and
ONNX Runtime take turns. Results go to benchmarks/results/classical.json and docs/classical.md.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks import layout
from benchmarks.protocol import Page, beside, write
from benchmarks.store import Entry, case_of

Inputs = dict[str, np.ndarray]
BATCHES = (1, 10, 100, 1000, 10000)
DOMAINS = {"": 21, "ai.onnx.ml": 3}
SEED = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model of any batch: how it is made, and its inputs for so many rows."""

    build: Callable[[], onnx.ModelProto]
    inputs: Callable[[int], Inputs]


def _rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


def _rows(count: int, features: int) -> np.ndarray:
    return _rng().standard_normal((count, features)).astype(np.float32)


def _classes(x: np.ndarray, classes: int) -> np.ndarray:
    """Classes that curved combinations of features tell, but for some noise."""
    rng = np.random.default_rng(1)
    score = np.tanh(x @ rng.standard_normal((x.shape[1], 8))) @ rng.standard_normal((8, classes))
    found: np.ndarray = np.argmax(score + 0.5 * rng.standard_normal(score.shape), axis=1)
    return found


def _exported(model: object, x: np.ndarray, *, zipmap: bool) -> onnx.ModelProto:
    from skl2onnx import to_onnx

    options = {"zipmap": zipmap} if hasattr(model, "classes_") else None
    made: onnx.ModelProto = to_onnx(model, x[:1], target_opset=DOMAINS, options=options)
    return made


def fitted(
    make: Callable[[], Any],
    *,
    features: int,
    classes: int = 0,
    rows: int = 2000,
    named: bool = False,
    zipmap: bool = False,
) -> Model:
    """Returns an estimator that has learnt so many classes (0: a number) from random rows."""

    def build() -> onnx.ModelProto:
        x = _rows(rows, features)
        y: np.ndarray = _classes(x, classes or 2)
        if not classes:
            y = np.tanh(x[:, 0] * x[:, 1]) + x[:, 2] + 0.1 * _rng().standard_normal(rows)
        if named:
            y = np.array([f"class {k}" for k in range(classes)], object)[y]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _exported(make().fit(x, y), x, zipmap=zipmap)

    return Model(build, lambda batch: {"X": _rows(batch, features)})


def _support(kind: str, *, regress: bool = False, likely: bool = False) -> Callable[[], Any]:
    from sklearn.svm import SVC, SVR

    if regress:
        return lambda: SVR(kernel=kind)
    return lambda: SVC(kernel=kind, probability=likely, random_state=SEED)


def _trees(name: str, **options: Any) -> Callable[[], Any]:
    import sklearn.ensemble

    made: Any = getattr(sklearn.ensemble, name)
    return lambda: made(random_state=SEED, **options)


def _logistic() -> Callable[[], Any]:
    from sklearn.linear_model import LogisticRegression

    made: Callable[[], Any] = LogisticRegression
    return made


def _words(count: int, kinds: int) -> np.ndarray:
    """A column of words of so many kinds, and now and then one of no kind."""
    known = [f"category {k}" for k in range(kinds)] + ["something else"]
    return np.array(known, object)[_rng().integers(0, kinds + 1, count)].reshape(-1, 1)


KINDS = (200, 12, 4, 40)
"""How many words each column of the pipeline knows."""


def columns(numbers: int = 8) -> Model:
    """Returns columns of words, each in one-hot form, beside numbers, to a logistic regression."""

    def inputs(batch: int) -> Inputs:
        words = np.concatenate([_words(batch, kinds) for kinds in KINDS], axis=1)
        return {"words": words, "numbers": _rows(batch, numbers)}

    def build() -> onnx.ModelProto:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType, StringTensorType
        from sklearn.compose import ColumnTransformer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder

        count = len(KINDS)
        hot = OneHotEncoder(handle_unknown="ignore")
        each = ColumnTransformer(
            [
                ("words", hot, list(range(count))),
                ("rest", "passthrough", list(range(count, count + numbers))),
            ]
        )
        given = inputs(2000)
        x = np.concatenate([given["words"], given["numbers"].astype(object)], axis=1)
        model = make_pipeline(each, LogisticRegression()).fit(x, _classes(given["numbers"], 3))
        types = [
            ("words", StringTensorType([None, count])),
            ("numbers", FloatTensorType([None, numbers])),
        ]
        plain = {"zipmap": False}
        made: onnx.ModelProto = to_onnx(
            model, initial_types=types, target_opset=DOMAINS, options=plain
        )
        return made

    return Model(build, inputs)


def encoder(keys: int, *, words: bool, answers: bool = False) -> Model:
    """Returns LabelEncoder of so many keys: of words or of integers, to words or to integers."""
    texts, numbers = [f"category {k}" for k in range(keys)], [7 * k for k in range(keys)]

    def build() -> onnx.ModelProto:
        table: dict[str, Any] = {
            "keys_strings" if words else "keys_int64s": texts if words else numbers,
            "values_strings" if answers else "values_int64s": texts if answers else numbers,
        }
        node = helper.make_node("LabelEncoder", ["X"], ["Y"], domain="ai.onnx.ml", **table)
        kinds = [
            onnx.TensorProto.STRING if text else onnx.TensorProto.INT64 for text in (words, answers)
        ]
        ports = [
            helper.make_tensor_value_info(name, kind, [None, 1])
            for name, kind in zip("XY", kinds, strict=True)
        ]
        graph = helper.make_graph([node], "encoder", ports[:1], ports[1:])
        imports = [helper.make_opsetid(domain, version) for domain, version in DOMAINS.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def inputs(batch: int) -> Inputs:
        drawn = 7 * _rng().integers(0, keys + 1, (batch, 1))
        return {"X": _words(batch, keys) if words else drawn}

    return Model(build, inputs)


LEAFWISE: Mapping[str, int | None] = {"max_depth": None, "max_leaf_nodes": 31}
"""How LightGBM grows its trees: the leaf that gains most is split, as deep as that goes."""

MODELS: Mapping[str, Callable[[], Model]] = {
    "SVC rbf of 2": lambda: fitted(_support("rbf", likely=True), features=20, classes=2),
    "SVC rbf of 5": lambda: fitted(_support("rbf", likely=True), features=30, classes=5),
    "SVC poly of 3": lambda: fitted(_support("poly"), features=20, classes=3),
    "SVC linear of 3": lambda: fitted(_support("linear", likely=True), features=20, classes=3),
    "SVR rbf": lambda: fitted(_support("rbf", regress=True), features=20),
    "SVR sigmoid": lambda: fitted(_support("sigmoid", regress=True), features=20),
    "columns of words": columns,
    "LabelEncoder words to int64, 10": lambda: encoder(10, words=True),
    "LabelEncoder words to int64, 1000": lambda: encoder(1000, words=True),
    "LabelEncoder int64 to words, 10": lambda: encoder(10, words=False, answers=True),
    "LabelEncoder int64 to words, 1000": lambda: encoder(1000, words=False, answers=True),
    "logistic, named classes": lambda: fitted(_logistic(), features=20, classes=3, named=True),
    "logistic, maps": lambda: fitted(_logistic(), features=20, classes=3, zipmap=True),
    "logistic, maps of named classes": lambda: fitted(
        _logistic(), features=20, classes=3, named=True, zipmap=True
    ),
    "forest of 100, depth 8": lambda: fitted(
        _trees("RandomForestClassifier", max_depth=8), features=20, classes=3
    ),
    "forest of 100, depth 12": lambda: fitted(
        _trees("RandomForestClassifier", max_depth=12), features=50, classes=5
    ),
    "forest of 100, two classes": lambda: fitted(
        _trees("RandomForestClassifier", max_depth=10), features=30, classes=2
    ),
    "forest of 100 for a number": lambda: fitted(
        _trees("RandomForestRegressor", max_depth=10), features=20
    ),
    "boosting for a number": lambda: fitted(_trees("GradientBoostingRegressor"), features=20),
    "boosting of 3": lambda: fitted(_trees("GradientBoostingClassifier"), features=20, classes=3),
    "boosting of 31 leaves for a number": lambda: fitted(
        _trees("GradientBoostingRegressor", **LEAFWISE), features=20
    ),
    "boosting of 31 leaves, 2 classes": lambda: fitted(
        _trees("GradientBoostingClassifier", **LEAFWISE), features=20, classes=2
    ),
    "boosting of 31 leaves, 3 classes": lambda: fitted(
        _trees("GradientBoostingClassifier", **LEAFWISE), features=20, classes=3
    ),
}
"""Makers of the models by name; they learn when they are built."""

CASES = {
    f"{name}, batch {batch}, {threads} thread{'s' * (threads > 1)}": (name, batch, threads)
    for name in MODELS
    for batch in BATCHES
    for threads in (1, 2)
}


def measure(case: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: medians of whole calls."""
    name, batch, threads = CASES[case]
    model = MODELS[name]()
    return beside(model.build(), model.inputs(batch), threads, seconds, peers)


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.classical`. Models of scikit-learn as skl2onnx exports",
        "them, compiled once for all batches; times are of whole calls from Python, with arrays of",
        "`str` for text. Below 1 rutc is faster.",
        *layout.LINES,
    )
    return layout.page("Classical models", said, entries, _table)


def _table(entries: Sequence[Entry]) -> list[str]:
    titles = "model | rutc us | ORT us | rutc/ORT | commit: runs"
    return layout.table(titles, entries, layout.beside)


PAGE = Page(
    "classical",
    __doc__,
    list(CASES),
    measure,
    case_of,
    lambda entries: write("classical", page(entries)),
    prepare_s=8.0,
)

if __name__ == "__main__":
    PAGE.main()
