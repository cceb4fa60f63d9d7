"""How much work float64 does for a verification, and what ends it."""

import gc
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.api import compile
from rutc.importer import import_model
from rutc.runtime import load
from rutc.tensor_ir import Graph
from rutc.verify.truth.oracle import Effort, Oracle
from rutc.verify.truth.truth import Truth
from tests.close import assert_close

Nodes = list[onnx.NodeProto]


def _save(folder: Path, nodes: Nodes, shape: list[int | str]) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))


def _until_unchanged(factor: float) -> Nodes:
    """y = the limit of v -> `factor` v + 0.1 from x on."""
    inside = [
        _constant("factor", np.float32(factor)),
        _constant("tenth", np.float32(0.1)),
        _constant("none", np.float32(0)),
        helper.make_node("Mul", ["v", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "tenth"], ["w"]),
        helper.make_node("Sub", ["w", "v"], ["change"]),
        helper.make_node("Abs", ["change"], ["size"]),
        helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "none"], ["more"]),
    ]
    kinds = {"trip": TensorProto.INT64, "go": TensorProto.BOOL, "more": TensorProto.BOOL}

    def port(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, kinds.get(name, TensorProto.FLOAT), [] if name in kinds else [16]
        )

    takes, gives = ([port(n) for n in names] for names in (("trip", "go", "v"), ("more", "w")))
    body = helper.make_graph(inside, "body", takes, gives)
    return [
        _constant("true", np.array(True)),
        helper.make_node("Loop", ["", "true", "x"], ["y"], body=body),
    ]


def _oracle(path: Path, effort: Effort, graph: Graph | None = None) -> Oracle:
    compile(path, path.with_suffix(".so"), verify=False)
    return Oracle(path, load(str(path.with_suffix(".so"))), graph, effort)


X = np.linspace(-1, 1, 16, dtype=np.float32)


def test_a_loop_that_noise_keeps_going_ends(tmp_path: Path) -> None:
    path = _save(tmp_path, _until_unchanged(0.3), [16])
    answer = _oracle(path, Effort(1.0, 1.0), import_model(path)).at({"x": X})
    assert answer is not None
    assert_close(answer.outputs["y"], 1 / 7, reduction=16, dtype=np.float32)
    assert list(answer.noise("y")) == []


def test_work_that_was_in_vain_counts(tmp_path: Path) -> None:
    path = _save(tmp_path, _until_unchanged(-1.0), [16])
    oracle = _oracle(path, Effort(0.1, 0.0), import_model(path))
    assert oracle.at({"x": X}) is None
    assert oracle.refused.startswith("not computed, at least 0.1 s of work; of 0.1 s granted 0.1 s")
    assert oracle.at({"x": X}) is None
    assert "of 0.1 s granted 0 s are left" in oracle.refused


def test_noise_that_leaves_what_the_model_allows_explains_nothing(tmp_path: Path) -> None:
    # In float64 the position is 0; with noise it is 1 in most runs, which no table of one row has.
    nodes = [
        _constant("table", np.float32([7.0])),
        helper.make_node("Sin", ["x"], ["sine"]),
        _constant("factor", 1 / np.sin(np.float32(1)) - np.float32(1e-7)),
        helper.make_node("Mul", ["sine", "factor"], ["scaled"]),
        helper.make_node("Floor", ["scaled"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "at"], ["y"]),
    ]
    path = _save(tmp_path, nodes, [16])
    answer = _oracle(path, Effort(1.0, 1.0), import_model(path)).at({"x": np.ones(16, np.float32)})
    assert answer is not None
    assert all((run == 7).all() for run in answer.noise("y"))
    assert len(list(answer.noise("y"))) < 8


def test_one_import_is_held(tmp_path: Path) -> None:
    def held() -> int:
        gc.collect()
        return sum(isinstance(o, Truth) for o in gc.get_objects())

    path = _save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], ["n"])
    before = held()
    oracle = _oracle(path, Effort(1.0, 1.0))
    for size in (3, 3, 4, 5):
        answer = oracle.at({"x": np.ones(size, np.float32)})
        assert answer is not None
        assert answer.outputs["y"].shape == (size,)
    assert held() == before + 1
