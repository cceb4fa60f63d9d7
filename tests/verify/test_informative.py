"""Outputs that say nothing, and what is said of them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.api import compile
from rutc.verify import Verification
from rutc.verify.judging.informative import says_nothing
from rutc.verify.verify import RANDOM


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.zeros((2, 3), np.float32), "all zeros"),
        (np.zeros((), np.float32), "all zeros"),
        (np.full(3, 0.5, np.float32), "constant 0.5"),
        (np.full(3, np.nan, np.float32), "all NaN"),
        (np.array([np.nan, np.inf], np.float32), "all infinite or NaN"),
        (np.array([1.0, 1e-9, 0.0], np.float32), "saturated at 0 and 1"),
        (np.array([4, 4]), "constant 4"),
        (np.zeros((0, 3), np.float32), "empty"),
        (np.array([4]), ""),
        (np.array([0.2, 0.8], np.float32), ""),
        (np.array([1e-9, 3e-9], np.float32), ""),
        (np.array([0.0, np.nan, 0.3], np.float32), ""),
        (np.array([True, False]), ""),
        (np.array(["a", "a"], object), ""),
    ],
)
def test_what_says_nothing(value: np.ndarray, why: str) -> None:
    assert says_nothing(value) == why


def _verified(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    y: onnx.ValueInfoProto | None = None,
) -> Verification:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = y or helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "m", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    made = compile(folder / "m.onnx", folder / "m.so").verification
    assert made is not None
    return made


def test_other_inputs_are_tried(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "low"], ["above"]),
        helper.make_node("Less", ["x", "high"], ["below"]),
        helper.make_node("And", ["above", "below"], ["inside"]),
        helper.make_node("Where", ["inside", "x", "zero"], ["y"]),
    ]
    bounds = {"low": np.float32(4), "high": np.float32(5), "zero": np.float32(0)}
    found = _verified(tmp_path, nodes, bounds)
    assert found.passed
    assert found.unverified == ()
    assert found.runs > 1


def test_an_output_that_says_nothing_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("Neg", ["size"], ["below"]),
        helper.make_node("Relu", ["below"], ["y"]),
    ]
    found = _verified(tmp_path, nodes, {})
    assert found.passed
    assert found.unverified == ("'y': says nothing: all zeros",)


def test_a_constant_output_is_checked_by_being_equal(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["c"], ["y"])]
    found = _verified(tmp_path, nodes, {"c": np.zeros(3, np.float32)})
    assert found.passed
    assert found.unverified == ()


def test_other_inputs_are_tried_for_the_elements_of_a_sequence(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sub", ["x", "high"], ["above"]),
        helper.make_node("Relu", ["above"], ["size"]),
        helper.make_node("SplitToSequence", ["size", "whole"], ["y"], axis=0),
    ]
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    bounds = {"high": np.float32(300), "whole": np.int64(4)}
    found = _verified(tmp_path, nodes, bounds, y)
    assert [o.name for o in found.outputs] == ["y[0]"]
    assert found.passed
    assert found.unverified == ()


def test_random_elements_of_a_sequence_are_not_compared(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["noise"]),
        helper.make_node("SplitToSequence", ["noise", "half"], ["y[0]"], axis=0),
    ]
    y = helper.make_tensor_sequence_value_info("y[0]", TensorProto.FLOAT, None)
    found = _verified(tmp_path, nodes, {"half": np.int64(2)}, y)
    assert found.passed
    assert [o.remark for o in found.outputs] == [RANDOM, RANDOM]


def test_random_numbers_are_said_to_be_unverified(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], seed=1.0),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    found = _verified(tmp_path, nodes, {})
    assert found.passed
    assert found.unverified == ("'y': drawn at random: only its type and shape are compared",)
