"""Models of narrow types: what they round is judged as the rounding that it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.importer import import_model
from rutc.tensor_ir import Lit, Nest, apply
from rutc.verify import THOROUGH, Effort, Verification, verify_model
from rutc.verify.judging.budget import relative_error
from rutc.verify.judging.traits import output_traits

RANDOM = np.random.default_rng(9)
Nodes = Sequence[onnx.NodeProto]


def _save(
    folder: Path,
    nodes: Nodes,
    weights: Mapping[str, np.ndarray],
    shape: Sequence[int],
    kind: int = 1,
) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", kind, None)
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "m", [x], [y], constants)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=10,
    )
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _verified(
    path: Path, wrong: str = "", factor: float = 1.0, effort: Effort = THOROUGH
) -> Verification:
    """The verification of a model, perhaps with one of its values off by a factor."""
    library = path.with_suffix(".so")
    graph = import_model(path)
    if wrong:
        (nest,) = (n for n in graph.nodes if isinstance(n, Nest) and n.out.name == wrong)
        body = apply("mul", nest.body[0], Lit(factor, nest.out.dtype))
        changed = Nest(nest.outs, nest.bound, nest.reducer, (body,), nest.origin)
        nodes = tuple(changed if n is nest else n for n in graph.nodes)
        object.__setattr__(graph, "nodes", nodes)
    with patch("rutc.driver.plans.planning.import_model", lambda *_, **__: graph):
        compile_model(path, library, Options(), None)
    return verify_model(path, library, effort=effort)


def _layers(kind: int, count: int = 6) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """A float32 network that computes in a narrow type between two casts."""
    nodes = [helper.make_node("Cast", ["x"], ["h0"], to=kind)]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {}
    for k in range(count):
        drawn = RANDOM.standard_normal((64, 64)) / 8
        weights[f"w{k}"] = drawn.astype(dtype)
        if kind == TensorProto.BFLOAT16:
            # ONNX Runtime has no products in this type: they are those of float32, rounded.
            wide = helper.make_node("Cast", [f"h{k}"], [f"a{k}"], to=TensorProto.FLOAT)
            other = helper.make_node("Cast", [f"w{k}"], [f"b{k}"], to=TensorProto.FLOAT)
            product = helper.make_node("MatMul", [f"a{k}", f"b{k}"], [f"p{k}"])
            bounded = helper.make_node("Tanh", [f"p{k}"], [f"t{k}"])
            nodes += [wide, other, product, bounded]
            nodes.append(helper.make_node("Cast", [f"t{k}"], [f"h{k + 1}"], to=kind))
            continue
        nodes.append(helper.make_node("MatMul", [f"h{k}", f"w{k}"], [f"p{k}"]))
        nodes.append(helper.make_node("Tanh", [f"p{k}"], [f"h{k + 1}"]))
    nodes.append(helper.make_node("Cast", [f"h{count}"], ["y"], to=TensorProto.FLOAT))
    return nodes, weights


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_floats_of_16_bits_inside_are_judged_by_their_own_roundings(
    kind: int, tmp_path: Path
) -> None:
    nodes, weights = _layers(kind)
    path = _save(tmp_path, nodes, weights, [8, 64])
    assert output_traits(import_model(path))["y"].narrow
    found = _verified(path)
    assert found.passed
    assert not _verified(path, wrong="p3", factor=1.2).passed


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_floats_of_16_bits_inside_are_allowed_for_where_there_is_no_truth(
    kind: int, tmp_path: Path
) -> None:
    path = _save(tmp_path, *_layers(kind, 12), [8, 64])
    found = _verified(path, effort=Effort(0.0, 0.0))
    assert (found.passed, found.with_truth) == (True, 0)
    assert not _verified(path, wrong="p3", factor=1.5, effort=Effort(0.0, 0.0)).passed


def _quantised(folder: Path) -> Path:
    """Three layers of 8-bit products between quantisations."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {"zero": np.array(0, np.int8)}
    value = "x"
    for k, scale in enumerate((0.03, 0.05, 0.05)):
        weights[f"s{k}"] = np.array(scale, np.float32)
        weights[f"w{k}"] = RANDOM.integers(-127, 128, (64, 64)).astype(np.int8)
        weights[f"t{k}"] = np.array(0.002, np.float32)
        nodes += [
            helper.make_node("QuantizeLinear", [value, f"s{k}", "zero"], [f"q{k}"]),
            helper.make_node("DequantizeLinear", [f"q{k}", f"s{k}", "zero"], [f"d{k}"]),
            helper.make_node("DequantizeLinear", [f"w{k}", f"t{k}", "zero"], [f"v{k}"]),
            helper.make_node("MatMul", [f"d{k}", f"v{k}"], [f"p{k}"]),
        ]
        value = f"p{k}"
    nodes[-1].output[0] = "y"
    return _save(folder, nodes, weights, [16, 64])


def test_a_quantised_network_is_judged_by_steps_that_noise_explains(tmp_path: Path) -> None:
    found = _verified(_quantised(tmp_path))
    assert found.passed
    assert found.with_truth == found.runs
    # Not by the few per cent that quantised networks may be off where there is no truth.
    assert {o.judged for o in found.outputs} <= {"float64", "float64 by noise"}


@pytest.mark.parametrize("value", ["p1", "y"])
def test_one_per_cent_in_a_quantised_network_is_found(value: str, tmp_path: Path) -> None:
    assert not _verified(_quantised(tmp_path), wrong=value, factor=1.01).passed


def test_labels_between_equal_scores_may_be_either(tmp_path: Path) -> None:
    # Two classes sum the same products, the second one in another order; the third is apart.
    w = RANDOM.standard_normal((64, 1)).astype(np.float32)
    order = RANDOM.permutation(64)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Gather", ["x", "order"], ["z"], axis=1),
        helper.make_node("MatMul", ["z", "v"], ["q"]),
        helper.make_node("MatMul", ["x", "u"], ["r"]),
        helper.make_node("Concat", ["p", "q", "r"], ["scores"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["y"], axis=1),
    ]
    u = RANDOM.standard_normal((64, 1)).astype(np.float32)
    path = _save(tmp_path, nodes, {"w": w, "v": w[order], "u": u, "order": order}, [200, 64], 7)
    found = _verified(path)
    assert found.passed
    assert found.outputs[0].error is not None
    assert found.outputs[0].error > 0
    assert not _verified(path, wrong="r", factor=1.3).passed


def _forest(folder: Path, shift: float = 0.0) -> Path:
    """Trees whose classes often get as many votes, one threshold of them shifted."""
    trees, classes = 20, 3
    random = np.random.default_rng(4)
    thresholds = random.standard_normal(trees)
    thresholds[7] += shift
    arrays: dict[str, list[Any]] = {
        key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "true", "false")
    }
    votes: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        rows = [(0, "BRANCH_LEQ", 1, 2), (1, "LEAF", 0, 0), (2, "LEAF", 0, 0)]
        for number, mode, yes, no in rows:
            for key, value in (
                ("treeids", tree),
                ("nodeids", number),
                ("featureids", tree % 4),
                ("values", float(thresholds[tree]) if mode != "LEAF" else 0.0),
                ("modes", mode),
                ("true", yes),
                ("false", no),
            ):
                arrays[key].append(value)
            if mode == "LEAF":
                for key, value in (
                    ("treeids", tree),
                    ("nodeids", number),
                    ("ids", (tree + number) % classes),
                    ("weights", 0.1),
                ):
                    votes[key].append(value)
    named = {"true": "truenodeids", "false": "falsenodeids"}
    attributes: dict[str, Any] = {
        "classlabels_int64s": list(range(classes)),
        **{f"nodes_{named.get(key, key)}": values for key, values in arrays.items()},
        **{f"class_{key}": values for key, values in votes.items()},
    }
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["y", "scores"], domain="ai.onnx.ml", **attributes
    )
    return _save(folder, [node], {}, [100, 4], TensorProto.INT64)


def test_labels_of_trees_with_equal_votes_may_be_either(tmp_path: Path) -> None:
    path, library = _forest(tmp_path), tmp_path / "m.so"
    compile_model(path, library, Options(), None)
    # On several threads ONNX Runtime sums equal votes in several orders.
    found = verify_model(path, library, threads=4)
    assert found.passed
    assert found.unverified == ()
    assert found.with_truth == found.runs
    assert found.outputs[0].judged == "float64 by noise"
    assert found.outputs[0].reference_error
    compile_model(_forest(tmp_path, shift=1.0), library, Options(), None)
    assert not verify_model(_forest(tmp_path), library, threads=4).passed


def test_where_onnx_runtime_is_wrong_the_model_passes_if_it_is_read_rightly(tmp_path: Path) -> None:
    # ONNX Runtime computes variances as differences of large squares here.
    nodes = [
        helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2),
    ]
    weights = {"scale": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    path = _save(tmp_path, nodes, weights, [3, 4, 2, 2])
    assert _verified(path).passed


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_results_of_other_shapes_are_infinitely_far_apart(dtype: type) -> None:
    """Data may tell how many elements there are, and rounding which."""
    for n in (0, 1, 2):
        found = relative_error(np.ones((n, 2), dtype), np.ones((3, 2), dtype))
        assert found == float("inf")
