"""Operators of ai.onnx.ml against ONNX Runtime, or the standard where that departs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.importer.ops.sieves import SHORT
from rutc.runtime import load
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build
from tests.machines import on_machines

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
Run = Callable[..., list[np.ndarray]]


def model_of(
    op: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    version: int,
    attributes: Mapping[str, object],
) -> onnx.ModelProto:
    """A model of one node."""

    def kind(a: np.ndarray) -> int:
        if a.dtype == object:
            return TensorProto.STRING
        return helper.np_dtype_to_tensor_dtype(a.dtype)

    node = helper.make_node(op, list(inputs), list(outputs), domain=ML, **attributes)
    infos = [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in inputs.items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph([node], "g", infos, results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(op, x, outputs=.., **attributes)`: the results of the interpreter."""

    def fn(
        op: str, *xs: np.ndarray, outputs: Sequence[str] = ("y",), version: int = 3, **at: object
    ) -> list[np.ndarray]:
        inputs = {f"x{i}": x for i, x in enumerate(xs)}
        path = tmp_path / "m.onnx"
        onnx.save(model_of(op, inputs, outputs, version, at), path)
        graph = import_model(path)
        verify(graph)
        got = interpret(graph, inputs)
        return [got[o] for o in outputs]

    return fn


@pytest.fixture
def agree(run: Run) -> Callable[..., None]:
    """`agree(op, x, ..)`: the results are those of ONNX Runtime."""

    def fn(
        op: str, *xs: np.ndarray, outputs: Sequence[str] = ("y",), version: int = 3, **at: object
    ) -> None:
        got = run(op, *xs, outputs=outputs, version=version, **at)
        inputs = {f"x{i}": x for i, x in enumerate(xs)}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        model = model_of(op, inputs, outputs, version, at).SerializeToString()
        want = onnxruntime.InferenceSession(model, options).run(list(outputs), inputs)
        for mine, theirs in zip(got, want, strict=True):
            assert mine.shape == theirs.shape
            if theirs.dtype.kind == "f":
                assert mine.dtype == theirs.dtype
                assert_close(mine, theirs, level=Level.MODEL)
            else:
                np.testing.assert_array_equal(mine, theirs)

    return fn


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    """Rows of features, of which one is zero."""
    found = rng.standard_normal((5, 3)).astype("f4")
    found[1] = 0
    return found


@pytest.mark.parametrize("kind", ["f4", "i8"])
def test_scaler_and_normalizer(kind, x, agree):
    x = (x * 4).astype(kind)
    agree("Scaler", x, offset=[1.0, 2.0, 3.0], scale=[0.5, 1.0, 2.0])
    agree("Scaler", x, offset=[1.0], scale=[0.5])
    for norm in ("MAX", "L1", "L2"):
        agree("Normalizer", x, norm=norm)


def test_features(x, agree, run):
    agree("Binarizer", x, threshold=0.5)
    agree("ArrayFeatureExtractor", x, np.array([[2, 0]]))
    agree("ArrayFeatureExtractor", x[0], np.array([1, 1]))
    agree("FeatureVectorizer", x, x, inputdimensions=[3, 3])
    (y,) = run("FeatureVectorizer", x, x, inputdimensions=[2, 4])
    want = np.concatenate((x[:, :2], x, np.zeros((5, 1), "f4")), axis=1)
    np.testing.assert_array_equal(y, want)
    missing = x.copy()
    missing[2, 1] = np.nan
    agree("Imputer", missing, imputed_value_floats=[7.0], replaced_value_float=float("nan"))
    agree("Imputer", x, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=0.0)
    agree("Imputer", x.astype("i8"), imputed_value_int64s=[7], replaced_value_int64=0)


def test_one_hot_and_categories(run, agree):
    numbers = np.array([[0, 3], [1, 2]])
    agree("OneHotEncoder", numbers, cats_int64s=[0, 1, 2])
    names = np.array(["a", "zz", "c"], object)
    agree("OneHotEncoder", names, cats_strings=["a", "c"])
    agree("CategoryMapper", names, cats_strings=["a", "c"], cats_int64s=[5, 7])
    agree("CategoryMapper", np.array([5, 7, 1]), cats_strings=["a", "c"], cats_int64s=[5, 7])
    with pytest.raises(UserError, match="none of the categories"):
        run("OneHotEncoder", names, cats_strings=["a", "c"], zeros=0)


def test_weights_of_vectors_that_cancel(run, rng):
    half = (3000 * rng.standard_normal(700)).astype(np.float32)
    weights = rng.permutation(np.concatenate((half, -half)))
    machine = {"kernel_type": "LINEAR", "n_supports": 1400, "kernel_params": [0.0, 0.0, 0.0]}
    (y,) = run(
        "SVMRegressor",
        np.array([[1.0], [3.0]], np.float32),
        support_vectors=[1.0] * 1400,
        coefficients=weights.tolist(),
        rho=[0.5],
        **machine,
    )
    assert y.reshape(-1).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "keys",
    [
        [5],
        [3, 1, 2, -4],
        list(range(-700, 700, 7)),
        [0, 1 << 40, 7],
        [-(1 << 63), 3 - (1 << 63)],
        [(1 << 63) - 1, (1 << 63) - 2],
        list(range(0, 100000, 999)),
    ],
)
def test_integers_near_keys_and_far_from_them(agree, keys):
    ends = np.iinfo(np.int64)
    near = [k + d for k in keys for d in (-1, 0, 1) if ends.min <= k + d <= ends.max]
    x = np.array([*near, ends.min, ends.max, 0], np.int64)
    values = [float(i) for i in range(len(keys))]
    agree("LabelEncoder", x, keys_int64s=keys, values_floats=values, default_float=-7.0)


def test_label_encoder(agree, run):
    numbers = np.array([[1, 2, 9], [2, 3, -150]])
    agree("LabelEncoder", numbers, keys_int64s=[1, 2], values_floats=[0.5, 1.5])
    agree("LabelEncoder", numbers, keys_int64s=[1, 2], values_strings=["a", "b"])
    keys = np.random.default_rng(0).permutation(300) - 150
    many = {"values_int64s": list(range(300))}
    agree("LabelEncoder", numbers, keys_int64s=keys.tolist(), **many)
    floats = numbers.astype("f4")
    floats[0, 0] = 0.5
    agree("LabelEncoder", floats, keys_floats=keys.astype(float).tolist(), **many)
    names = np.array(["b", "a", "q"], object)
    agree("LabelEncoder", names, keys_strings=["a", "b"], values_int64s=[4, 5], default_int64=0)
    (y,) = run("LabelEncoder", np.array([2, 1]), keys_int64s=[1, 2, 2], values_int64s=[5, 6, 7])
    assert y.tolist() == [7, 5]
    nan = np.array([np.nan, 1.0, 0.0], "f4")
    (y,) = run("LabelEncoder", nan, keys_floats=[float("nan"), 1.0], values_int64s=[3, 4])
    assert y.tolist() == [3, 4, -1]
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.array([1.0, 2.0])),
        "values_tensor": numpy_helper.from_array(np.array([1, 2], np.int16)),
        "default_tensor": numpy_helper.from_array(np.array([9], np.int16)),
    }
    (y,) = run("LabelEncoder", numbers.astype("f8"), version=4, **tensors)
    assert y.dtype == np.int16
    assert y.tolist() == [[1, 2, 9], [2, 9, 9]]
    agree("LabelEncoder", names, version=1, classes_strings=["q", "a"])


@pytest.mark.parametrize("how", TRANSFORMS)
def test_linear_models(how, x, agree, rng):
    def numbers(n):
        return rng.standard_normal(n).tolist()

    for targets in (1, 2):
        agree(
            "LinearRegressor",
            x,
            coefficients=numbers(3 * targets),
            intercepts=numbers(targets),
            targets=targets,
            post_transform=how,
        )
    both = {"outputs": ("y", "z"), "post_transform": how}
    agree(
        "LinearClassifier",
        x,
        coefficients=numbers(9),
        intercepts=numbers(3),
        classlabels_strings=["a", "b", "c"],
        **both,
    )
    agree(
        "LinearClassifier",
        x,
        coefficients=numbers(3),
        intercepts=numbers(1),
        classlabels_ints=[4, 9],
        **both,
    )


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vector_machines(kernel, classes, x, agree, rng):
    def numbers(n):
        return rng.standard_normal(n).tolist()

    shape = {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0]}
    for one_class in (0, 1):
        agree(
            "SVMRegressor",
            x,
            coefficients=numbers(4),
            support_vectors=numbers(12),
            n_supports=4,
            rho=[0.2],
            one_class=one_class,
            **shape,
        )
    pairs = classes * (classes - 1) // 2
    common = {
        "coefficients": numbers((classes - 1) * 2 * classes),
        "support_vectors": numbers(6 * classes),
        "vectors_per_class": [2] * classes,
        "rho": numbers(pairs),
        "classlabels_ints": list(range(3, 3 + classes)),
        "outputs": ("y", "z"),
        **shape,
    }
    for how in TRANSFORMS:
        agree("SVMClassifier", x, post_transform=how, **common)
    a, c = (-np.abs(rng.standard_normal(pairs))).tolist(), numbers(pairs)
    agree("SVMClassifier", x, prob_a=a, prob_b=c, **common)
    linear = {"coefficients": numbers(3 * classes), "rho": [0.3], "kernel_params": [0.1, 0.1, 3.0]}
    labels = {"classlabels_ints": common["classlabels_ints"], "outputs": ("y", "z")}
    agree("SVMClassifier", x, **linear, **labels)


DEPTHS = (1, 3, 6, 9)
"""Of trees of 2 leaves, of one sieve, and of several."""
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def grown(rng, trees, depth, modes, *, missing, features=4):
    """Random trees over some features: the nodes_* attributes and the leaves (tree, node)."""
    rows = []

    def grow(tree, left, first):
        place = len(rows)
        rows.append(None)
        if left == 0 or rng.random() < 0.15:
            rows[place] = (tree, place - first, 0, "LEAF", 0.0, 0, 0, 0)
            return place - first
        yes, no = grow(tree, left - 1, first), grow(tree, left - 1, first)
        test = (int(rng.integers(features)), str(rng.choice(modes)), float(rng.integers(-2, 3)))
        tracks = int(missing and rng.random() < 0.5)
        rows[place] = (tree, place - first, *test, yes, no, tracks)
        return place - first

    for t in range(trees):
        grow(t, depth, len(rows))
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    names = (*names, "missing_value_tracks_true")
    nodes = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    return nodes, [(r[0], r[1]) for r in rows if r[3] == "LEAF"]


@pytest.fixture
def samples(rng: np.random.Generator) -> np.ndarray:
    """Rows of small integers with missing values."""
    found = rng.integers(-3, 4, (20, 4)).astype("f4")
    found[3, 1] = found[5] = np.nan
    return found


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("depth", DEPTHS)
def test_tree_regressor(aggregate, targets, depth, samples, agree, rng):
    for modes in (MODES[:1], MODES):
        for how in TRANSFORMS[:3]:
            nodes, leaves = grown(rng, 4, depth, modes, missing=len(modes) > 1)
            votes = [(t, n, k) for t, n in leaves for k in range(targets)]
            base = {"base_values": [0.5] * targets} if how == "NONE" else {}
            agree(
                "TreeEnsembleRegressor",
                samples,
                aggregate_function=aggregate,
                n_targets=targets,
                target_treeids=[v[0] for v in votes],
                target_nodeids=[v[1] for v in votes],
                target_ids=[v[2] for v in votes],
                target_weights=rng.integers(1, 9, len(votes)).astype(float).tolist(),
                post_transform=how,
                **base,
                **nodes,
            )


@on_machines
@pytest.mark.parametrize(("trees", "features"), [(1, 4), (5, 70), (19, 4), (25, 40), (40, 20)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_code_of_trees_for_any_number_of_rows(machine, trees, features, depth, rng, tmp_path):
    nodes, leaves = grown(rng, trees, depth, MODES[:1], missing=True, features=features)
    x = rng.integers(-3, 4, (33, features)).astype("f4")
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = np.inf
    votes = [(t, n, k) for t, n in leaves for k in range(2)]
    attributes = {
        "n_targets": 2,
        "target_treeids": [v[0] for v in votes],
        "target_nodeids": [v[1] for v in votes],
        "target_ids": [v[2] for v in votes],
        "target_weights": rng.integers(1, 9, len(votes)).astype(float).tolist(),
        **nodes,
    }
    model = model_of("TreeEnsembleRegressor", {"x": x}, ["y"], 3, attributes)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    library = build(decide(optimize(graph), machine), machine, tmp_path)
    with load(library, threads=2) as session:
        for rows in (0, 1, 2, 17, 33):
            (found,) = session.run(None, {"x": x[:rows]})
            want = interpret(graph, {"x": x[:rows]})["y"]
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("depth", "features"), [(450, 1), (70, (1 << SHORT.free) + 1)])
def test_deep_trees_are_gone_down_in_a_loop(depth, features, agree):
    """From sieve to sieve, or node by node."""
    last = features - 1
    chain = [(0, 2 * i, last, "BRANCH_GT", i / 1, 2 * i + 2, 2 * i + 1) for i in range(depth)]
    ends = [(0, 2 * i + 1, 0, "LEAF", 0.0, 0, 0) for i in range(depth)]
    rows = [*chain, *ends, (0, 2 * depth, 0, "LEAF", 0.0, 0, 0)]
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    nodes = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}
    leaves = [r[1] for r in rows if r[3] == "LEAF"]
    agree(
        "TreeEnsembleRegressor",
        np.arange(-1, depth + 3, dtype="f4").reshape(-1, 1).repeat(features, axis=1),
        target_treeids=[0] * len(leaves),
        target_nodeids=leaves,
        target_ids=[0] * len(leaves),
        target_weights=[float(k) for k in leaves],
        n_targets=1,
        **nodes,
    )


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_tree_classifier(how, positive, depth, samples, agree, rng):
    for classes, base in ((2, []), (2, [0.25]), (3, []), (3, [0.5, 0.25, -0.5])):
        nodes, leaves = grown(rng, 4, depth, MODES, missing=True)
        if classes == 2:
            votes = [(t, n, 0) for t, n in leaves]
        else:
            votes = [(t, n, k) for t, n in leaves for k in range(classes)]
        weights = rng.random(len(votes)) / 4 if positive else rng.standard_normal(len(votes))
        agree(
            "TreeEnsembleClassifier",
            samples,
            outputs=("y", "z"),
            class_treeids=[v[0] for v in votes],
            class_nodeids=[v[1] for v in votes],
            class_ids=[v[2] for v in votes],
            class_weights=weights.tolist(),
            classlabels_int64s=list(range(5, 5 + classes)),
            post_transform=how,
            **({"base_values": base} if base else {}),
            **nodes,
        )


def ensemble(**changes: object) -> dict[str, object]:
    """A tree: x[0] in {1, 3} -> 10; else x[1] > 0.5 -> 20, else 30."""
    kinds = {"nodes_splits": "f4", "nodes_modes": "u1", "leaf_weights": "f4"}
    plain: dict[str, object] = {
        "n_targets": 2,
        "tree_roots": [0],
        "nodes_featureids": [0, 1],
        "nodes_modes": [6, 3],
        "nodes_splits": [0.0, 0.5],
        "nodes_truenodeids": [0, 1],
        "nodes_trueleafs": [1, 1],
        "nodes_falsenodeids": [1, 2],
        "nodes_falseleafs": [0, 1],
        "leaf_targetids": [0, 1, 1],
        "leaf_weights": [10.0, 20.0, 30.0],
        "membership_values": np.array([1, 3, np.nan], "f4"),
    }
    plain.update(changes)
    made: dict[str, object] = {}
    for name, value in plain.items():
        array = np.array(value, kinds[name]) if name in kinds else value
        made[name] = numpy_helper.from_array(array) if isinstance(array, np.ndarray) else array
    return made


def test_tree_ensemble_with_membership(agree, run):
    x = np.array([[1, 0], [3, 1], [2, 0], [2, 1], [np.nan, 1]], "f4")
    (y,) = run("TreeEnsemble", x, version=5, **ensemble())
    assert y.tolist() == [[10, 0], [10, 0], [0, 30], [0, 20], [0, 20]]
    agree("TreeEnsemble", x, version=5, **ensemble())
    (y,) = run("TreeEnsemble", x, version=5, **ensemble(nodes_missing_value_tracks_true=[1, 0]))
    assert y[-1].tolist() == [10, 0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes_featureids": [0, 7]}, "feature 7 of 2"),
        ({"nodes_falsenodeids": [0, 2]}, "lead back"),
        ({"leaf_targetids": [0, 1, 4]}, "target 4 of 2"),
        ({"nodes_truenodeids": [9, 1]}, "does not exist"),
        ({"aggregate_function": 8}, "aggregate function 8"),
    ],
)
def test_malformed_trees(changes, why, run):
    with pytest.raises(UserError, match=why):
        run("TreeEnsemble", np.zeros((2, 2), "f4"), version=5, **ensemble(**changes))


@pytest.mark.parametrize(
    ("op", "outputs", "attributes"),
    [
        ("LinearRegressor", ["y"], {"coefficients": [1.0, 2, 3, 4, 5, 6], "targets": 2}),
        (
            "LinearClassifier",
            ["y", "z"],
            {
                "coefficients": [1.0, -2, 3, 4, 5, -6],
                "intercepts": [0.5, 1.0],
                "classlabels_ints": [3, 4],
            },
        ),
        (
            "SVMRegressor",
            ["y"],
            {
                "coefficients": [1.0, -2],
                "support_vectors": [1.0, 2, 3, 4, 5, 6],
                "n_supports": 2,
                "kernel_type": "RBF",
                "kernel_params": [0.1, 0.0, 3.0],
                "rho": [0.5],
            },
        ),
        ("Scaler", ["y"], {"offset": [1.0, 2, 3], "scale": [2.0, 3, 4]}),
    ],
)
@pytest.mark.parametrize("stated", [None, {"m": (1, 5)}], ids=["any", "a range"])
def test_features_that_the_run_counts(
    op: str,
    outputs: list[str],
    attributes: dict[str, object],
    stated: dict[str, tuple[int, int]] | None,
    tmp_path: Path,
) -> None:
    """A model of matrices of any width takes those that its coefficients are for."""
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    fixed = model_of(op, {"x": x}, outputs, 1, attributes)
    free = model_of(op, {"x": x}, outputs, 1, attributes)
    for d, name in zip(free.graph.input[0].type.tensor_type.shape.dim, "nm", strict=True):
        d.dim_param = name
    onnx.save(free, tmp_path / "m.onnx")
    graph = optimize(import_model(tmp_path / "m.onnx", dims=stated))
    verify(graph)
    oracle = onnxruntime.InferenceSession(fixed.SerializeToString())
    for name, want in zip(outputs, oracle.run(None, {"x": x}), strict=True):
        assert_close(interpret(graph, {"x": x})[name], want, level=Level.KERNEL)
    with pytest.raises(UserError, match=r"(m and 3|3 and m) differ|is given"):
        interpret(graph, {"x": x[:, :2]})
