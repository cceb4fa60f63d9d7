"""Classical models and encodings of ai.onnx.ml."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.oracles import OLD

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
put = partial(Build.node, domain=ML)


def table(b: Build, columns: int, kind: type = np.float32) -> Val:
    """Rows of features."""
    return b.leaf(np.dtype(kind), [b.one([1, 3, 7, 17]), columns])


def numbers(b: Build, count: int, low: float = -2, high: float = 2) -> list[float]:
    """Numbers that a float holds."""
    random = np.random.default_rng(b.number(0, 1 << 16))
    return [float(v) for v in random.uniform(low, high, count).astype(np.float32)]


@maker("Scaler Normalizer Binarizer")
def scaling(b: Build, op: str) -> None:
    rows, columns = b.one([1, 3, 7]), b.one([2, 1, 5])
    x = b.leaf(np.dtype(np.float32), [rows, columns])
    if op == "Scaler":
        numbers = {
            n: [b.one([0.5, 1.0, -2.0]) for _ in range(columns)] for n in ("offset", "scale")
        }
        put(b, op, [x], **numbers)
    elif op == "Normalizer":
        put(b, op, [x], norm=b.one(["MAX", "L1", "L2"]))
    else:
        put(b, op, [x], threshold=b.one([0.0, 0.5, -1.0]))


@maker("LinearRegressor")
def linear(b: Build, op: str) -> None:
    columns, targets = b.one([2, 1, 5]), b.one([1, 3])
    x = b.leaf(np.dtype(np.float32), [b.one([1, 3, 7]), columns])
    weights = b.leaf(np.dtype(np.float32), [columns * targets], low=-2, high=2, fixed=True)
    put(
        b,
        op,
        [x],
        coefficients=weights.array.tolist(),
        intercepts=[0.5] * targets,
        targets=targets,
    )


@maker("ArrayFeatureExtractor")
def features(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(b.one([np.float32, np.int64])), [b.one([1, 3]), 5])
    put(b, op, [x, b.leaf(np.dtype(np.int64), [b.number(1, 4)], low=0, high=4)])


@maker("LabelEncoder")
def labels(b: Build, op: str) -> None:
    keys: dict[str, list[Any]] = {
        "int64": [0, 1, 3],
        "float": [1.0, float("nan"), -2.0],
        "string": ["a", "", "Zoë"],
    }
    values: dict[str, list[Any]] = {
        "float": [0.5, -1.0, 7.0],
        "int64": [7, -1, 1 << 40],
        "string": ["b", "", "a"],
    }
    defaults = {"float": [-0.0, 2.0], "int64": [-1, 4], "string": ["_Unused", ""]}
    key, value = b.one(list(keys)), b.one(list(values))
    x = b.leaf(
        dtype_named(key), b.shape(1, 2), **({} if key == "string" else {"low": -2, "high": 4})
    )
    if key == "float":
        specials = np.array([1, np.nan, -2, 0.5], np.float32)
        x = b.given(np.resize(specials[np.abs(np.trunc(x.array)).astype(int) % 4], x.shape))
    given = {f"keys_{key}s": keys[key], f"values_{value}s": values[value]}
    if b.chance(70):
        given[f"default_{value}"] = b.one(defaults[value])
    put(b, op, [x], **given)


@maker("OneHotEncoder")
def one_hot_encoder(b: Build, op: str) -> None:
    if b.chance(30):
        x = b.leaf(np.dtype(object), b.shape(1, 2))
        put(b, op, [x], cats_strings=["a", "ab", "Zoë"], zeros=1)
    else:
        kind = b.dtype(["int64", "float", "int32", "double"])
        x = b.leaf(kind, b.shape(1, 2), low=0, high=4)
        x = b.given(np.trunc(x.array).astype(kind)) if kind.kind == "f" else x
        put(b, op, [x], cats_int64s=[3, 0, 2], zeros=1)


@maker("Imputer")
def imputer(b: Build, op: str) -> None:
    columns = b.one([2, 1, 5])
    count = b.one([1, columns])
    if b.chance(40):
        x = b.leaf(np.dtype(np.int64), [3, columns], low=-1, high=2)
        values = [b.number(5, 9) for _ in range(count)]
        put(b, op, [x], imputed_value_int64s=values, replaced_value_int64=b.one([0, -1]))
    else:
        wanted = b.one([0.0, float("nan"), 1.0])
        x = table(b, columns)
        values = numbers(b, count)
        put(b, op, [x], imputed_value_floats=values, replaced_value_float=wanted)


@maker("FeatureVectorizer")
def feature_vectorizer(b: Build, op: str) -> None:
    kind, rows = b.dtype(["float", "int64", "double", "int32"]), b.one([1, 3])
    widths = [b.number(1, 4) for _ in range(b.number(1, 3))]
    put(b, op, [b.leaf(kind, [rows, w]) for w in widths], inputdimensions=widths)


@maker("CategoryMapper")
def category_mapper(b: Build, op: str) -> None:
    names = {"cats_int64s": [0, 2, 5], "cats_strings": ["a", "ab", "0"]}
    if b.chance(50):
        x = b.leaf(np.dtype(object), b.shape(0, 2))
        put(b, op, [x], default_int64=b.one([-1, 7]), **names)
    else:
        x = b.leaf(np.dtype(np.int64), b.shape(0, 2), low=-1, high=5)
        put(b, op, [x], default_string="none", **names)


@maker("LinearClassifier")
def linear_classifier(b: Build, op: str) -> None:
    columns, classes = b.one([2, 1, 5]), b.one([3, 2, 5])
    x = table(b, columns, b.one([np.float32, np.int64, np.float64, np.int32]))
    put(
        b,
        op,
        [x],
        2,
        coefficients=numbers(b, columns * classes),
        intercepts=numbers(b, classes),
        post_transform=b.one(TRANSFORMS),
        multi_class=b.number(0, 1),
        **_labels(b, classes, "classlabels_ints"),
    )


def _labels(b: Build, classes: int, whole: str) -> dict[str, Any]:
    if b.chance(30):
        return {"classlabels_strings": [f"c{k}" for k in range(classes)][::-1]}
    return {whole: [3 * k - 1 for k in range(classes)][::-1]}


def _kernel(b: Build) -> dict[str, Any]:
    return {
        "kernel_type": b.one(["LINEAR", "RBF", "POLY", "SIGMOID"]),
        "kernel_params": [b.one([0.5, 0.1]), b.one([0.0, 1.0]), b.one([2.0, 3.0])],
    }


@maker("SVMRegressor")
def svm_regressor(b: Build, op: str) -> None:
    columns, vectors = b.one([2, 1, 5]), b.one([3, 1, 7])
    put(
        b,
        op,
        [table(b, columns)],
        support_vectors=numbers(b, columns * vectors),
        coefficients=numbers(b, vectors),
        n_supports=vectors,
        rho=numbers(b, 1),
        one_class=b.number(0, 1),
        **_kernel(b),
    )


@maker("SVMClassifier")
def svm_classifier(b: Build, op: str) -> None:
    columns, classes = b.one([2, 1, 5]), b.one([3, 2, 4])
    per_class = [b.number(1, 3) for _ in range(classes)]
    vectors, pairs = sum(per_class), classes * (classes - 1) // 2
    given: dict[str, Any] = {}
    if b.chance(50):
        given = {"prob_a": numbers(b, pairs, -2, -0.5), "prob_b": numbers(b, pairs, -1, 1)}
    put(
        b,
        op,
        [table(b, columns, b.one([np.float32, np.int64, np.float64]))],
        2,
        support_vectors=numbers(b, columns * vectors),
        coefficients=numbers(b, vectors * (classes - 1)),
        vectors_per_class=per_class,
        rho=numbers(b, pairs),
        **_kernel(b),
        **given,
        **_labels(b, classes, "classlabels_ints"),
    )


def _one_version(b: Build, op: str) -> None:
    """Raises Refused where the model has trees of another version of the domain."""
    if any(n.op_type.startswith("Tree") and (n.op_type in OLD) != (op in OLD) for n in b.nodes):
        raise Refused(op)


@dataclass
class _Trees:
    """Nodes of trees, in the order of attributes of opsets before 5, and the leaves."""

    rows: list[tuple[int, int, int, str, float, int, int, int]] = field(default_factory=list)
    leaves: list[tuple[int, int]] = field(default_factory=list)


COMPARISONS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def _grow(b: Build, trees: _Trees, tree: int, columns: int, depth: int, mode: str) -> int:
    """Grows a tree below a new node; returns the node's number in its tree."""
    number = sum(row[0] == tree for row in trees.rows)
    place = len(trees.rows)
    if depth == 0 or b.chance(20):
        trees.rows.append((tree, number, 0, "LEAF", 0.0, 0, 0, 0))
        trees.leaves.append((tree, number))
        return number
    trees.rows.append((tree, number, 0, mode, 0.0, 0, 0, 0))
    kind = mode if b.chance(80) else b.one(COMPARISONS)
    split = b.one([0.5, 0.0, -1.0, 1.0, 2.0])
    yes = _grow(b, trees, tree, columns, depth - 1, mode)
    no = _grow(b, trees, tree, columns, depth - 1, mode)
    feature, missing = b.number(0, columns - 1), b.number(0, 1)
    trees.rows[place] = (tree, number, feature, kind, split, yes, no, missing)
    return number


def _forest(b: Build, columns: int) -> tuple[_Trees, dict[str, Any]]:
    trees = _Trees()
    mode = b.one(COMPARISONS)
    for tree in range(b.number(1, 4)):
        _grow(b, trees, tree, columns, b.number(0, 4), mode)
    names = "treeids nodeids featureids modes values truenodeids falsenodeids"
    columns_of = zip(*trees.rows, strict=True)
    names += " missing_value_tracks_true"
    given: dict[str, Any] = {
        f"nodes_{n}": list(c) for n, c in zip(names.split(), columns_of, strict=True)
    }
    return trees, given


@maker("TreeEnsembleRegressor")
def tree_regressor(b: Build, op: str) -> None:
    _one_version(b, op)
    columns, targets = b.one([2, 1, 5]), b.one([1, 3])
    trees, given = _forest(b, columns)
    votes = [(t, n, b.number(0, targets - 1)) for t, n in trees.leaves]
    how, then = b.one(["SUM", "AVERAGE", "MIN", "MAX"]), b.one(TRANSFORMS[:4])
    if b.chance(30):
        given["base_values"] = numbers(b, targets)
        how, then = "SUM", "NONE"
    put(
        b,
        op,
        [table(b, columns)],
        n_targets=targets,
        aggregate_function=how,
        post_transform=then,
        target_treeids=[t for t, _, _ in votes],
        target_nodeids=[n for _, n, _ in votes],
        target_ids=[k for _, _, k in votes],
        target_weights=numbers(b, len(votes)),
        **given,
    )


@maker("TreeEnsembleClassifier")
def tree_classifier(b: Build, op: str) -> None:
    _one_version(b, op)
    columns, classes = b.one([2, 1, 5]), b.one([3, 2, 5])
    trees, given = _forest(b, columns)
    binary = classes == 2 and b.chance(50)
    votes = [(t, n, 0 if binary else b.number(0, classes - 1)) for t, n in trees.leaves]
    # A class without a vote wins over those with negative ones, or takes no part.
    low = -2 if binary else 0
    put(
        b,
        op,
        [table(b, columns, b.one([np.float32, np.float64, np.int64]))],
        2,
        post_transform=b.one(TRANSFORMS[:4]),
        class_treeids=[t for t, _, _ in votes],
        class_nodeids=[n for _, n, _ in votes],
        class_ids=[k for _, _, k in votes],
        class_weights=numbers(b, len(votes), low, 1),
        **_labels(b, classes, "classlabels_int64s"),
        **given,
    )


@maker("TreeEnsemble")
def tree_ensemble(b: Build, op: str) -> None:
    _one_version(b, op)
    columns, targets = b.one([2, 1, 5]), b.one([1, 3])
    kind = b.dtype(["float", "double"])
    trees = _Trees()
    for tree in range(b.number(1, 3)):
        _grow(b, trees, tree, columns, b.number(1, 4), "BRANCH_LEQ")
    inner = [r for r in trees.rows if r[3] != "LEAF"]
    place = {r[:2]: k for k, r in enumerate(inner)}
    leaf = {at: k for k, at in enumerate(trees.leaves)}
    if any((tree, 0) not in place for tree in {r[0] for r in trees.rows}):
        raise Refused(op)

    def ends(column: int) -> tuple[list[int], list[int]]:
        at = [(r[0], int(r[column])) for r in inner]
        return [place.get(a, leaf.get(a, 0)) for a in at], [int(a in leaf) for a in at]

    (yes, yes_leaf), (no, no_leaf) = ends(5), ends(6)
    modes = np.array([COMPARISONS.index(r[3]) for r in inner], np.uint8)
    # ONNX Runtime takes SOFTMAX for LOGISTIC and LOGISTIC for SOFTMAX.
    put(
        b,
        op,
        [b.leaf(kind, [b.one([1, 3, 17]), columns])],
        n_targets=targets,
        aggregate_function=b.one([1, 0, 2, 3]),
        post_transform=b.one([0, 3]),
        tree_roots=[place[tree, 0] for tree in sorted({r[0] for r in trees.rows})],
        nodes_featureids=[r[2] for r in inner],
        nodes_splits=numpy_helper.from_array(np.array([r[4] for r in inner], kind)),
        nodes_modes=numpy_helper.from_array(modes),
        nodes_truenodeids=yes,
        nodes_trueleafs=yes_leaf,
        nodes_falsenodeids=no,
        nodes_falseleafs=no_leaf,
        nodes_missing_value_tracks_true=[r[7] for r in inner],
        leaf_targetids=[b.number(0, targets - 1) for _ in trees.leaves],
        leaf_weights=numpy_helper.from_array(np.array(numbers(b, len(trees.leaves)), kind)),
    )
