"""Models of scikit-learn, compiled, against their own predictions and ONNX Runtime's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rutc
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close

pytest.importorskip("skl2onnx")
datasets = pytest.importorskip("sklearn.datasets")

from skl2onnx import to_onnx  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler  # noqa: E402
from sklearn.svm import SVC, SVR  # noqa: E402

CLASSIFIERS: dict[str, tuple[str, Any]] = {
    "forest": ("load_digits", RandomForestClassifier(20, random_state=0)),
    "two_classes_forest": ("load_breast_cancer", RandomForestClassifier(10, random_state=0)),
    "boosting": ("load_iris", GradientBoostingClassifier(n_estimators=5, random_state=0)),
    "two_classes_boosting": (
        "load_breast_cancer",
        GradientBoostingClassifier(n_estimators=10, random_state=0),
    ),
    "logistic": ("load_wine", make_pipeline(StandardScaler(), LogisticRegression())),
    "two_classes_logistic": (
        "load_breast_cancer",
        make_pipeline(MinMaxScaler(), LogisticRegression()),
    ),
    "machine": (
        "load_iris",
        make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)),
    ),
    "perceptron": (
        "load_digits",
        make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=30, random_state=0)),
    ),
    "bayes": ("load_iris", GaussianNB()),
    "neighbours": ("load_iris", KNeighborsClassifier(3)),
    "components": ("load_digits", make_pipeline(Normalizer(), PCA(8), LogisticRegression())),
}
REGRESSORS: dict[str, Any] = {
    "linear": make_pipeline(StandardScaler(), LinearRegression()),
    "forest": RandomForestRegressor(10, random_state=0),
    "boosting": GradientBoostingRegressor(n_estimators=10, random_state=0),
    "machine": make_pipeline(StandardScaler(), SVR()),
    "clusters": KMeans(4, n_init=1, random_state=0),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(model: Any, x: np.ndarray, folder: Path, **options: object) -> list[np.ndarray]:
    """What the compiled model gives for x; ONNX Runtime has agreed before it is published."""
    exported = to_onnx(model, x[:1], target_opset={"": 21, "ai.onnx.ml": 3}, **options)
    path = folder / "model.onnx"
    path.write_bytes(exported.SerializeToString())
    rutc.compile(path, folder / "model.so", shapes={"X": x.shape})
    return rutc.load(folder / "model.so").run(None, {"X": x})


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str, tmp_path: Path) -> None:
    source, model = CLASSIFIERS[name]
    x, y = getattr(datasets, source)(return_X_y=True)
    x = x.astype(np.float32)
    model.fit(x, y)
    some = x[::17]
    label, scores = compiled(model, some, tmp_path, options={"zipmap": False})
    np.testing.assert_array_equal(label, model.predict(some))
    assert_close(scores, model.predict_proba(some), level=Level.MODEL)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name: str, tmp_path: Path) -> None:
    x, y = datasets.load_diabetes(return_X_y=True)
    x = x.astype(np.float32)
    model = REGRESSORS[name].fit(x, y)
    some = x[::17]
    found = compiled(model, some, tmp_path)[0]
    assert_close(found.reshape(-1), model.predict(some), level=Level.MODEL)


@pytest.mark.parametrize("named", [False, True])
def test_maps_of_probabilities_for_any_number_of_samples(named: bool, tmp_path: Path) -> None:
    x, y = datasets.load_iris(return_X_y=True)
    x = x.astype(np.float32)
    y = np.array(["setosa", "versicolor", "virginica"], object)[y] if named else y
    model = RandomForestClassifier(10, random_state=0).fit(x, y)
    path = tmp_path / "model.onnx"
    exported = to_onnx(model, x[:1], target_opset={"": 21, "ai.onnx.ml": 3})
    path.write_bytes(exported.SerializeToString())
    rutc.compile(path, tmp_path / "model.so")
    with rutc.load(tmp_path / "model.so") as session:
        for count in (1, 7, 150):
            label, likely = session.run(None, {"X": x[:count]})
            assert label.tolist() == model.predict(x[:count]).tolist()
            assert [list(m) for m in likely] == [model.classes_.tolist()] * count
            found = [list(m.values()) for m in likely]
            assert_close(found, model.predict_proba(x[:count]), reduction=1024, dtype=np.float32)
