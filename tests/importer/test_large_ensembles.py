"""Ensembles of trees of any size are read at once, not node by node."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.importer import import_model
from rutc.importer.contents import contents
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.proto import load
from rutc.importer.reading.wire import without_elements

INNER = 255


def ensemble(path: Path, trees: int, **others: object) -> Path:
    """A regressor of whole trees with so many inner nodes each; a tree's nodes lie as in a heap."""
    rng = np.random.default_rng(0)
    tree, node = (x.reshape(-1).tolist() for x in np.indices((trees, 2 * INNER + 1)))
    inner = [n < INNER for n in node]
    leaves = [i for i, n in enumerate(node) if n >= INNER]
    made = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_treeids=tree,
        nodes_nodeids=node,
        nodes_featureids=[n % 7 for n in node],
        nodes_values=rng.standard_normal(len(node)).astype("f4").tolist(),
        nodes_modes=["BRANCH_LEQ" if i else "LEAF" for i in inner],
        nodes_truenodeids=[2 * n + 1 if i else 0 for n, i in zip(node, inner, strict=True)],
        nodes_falsenodeids=[2 * n + 2 if i else 0 for n, i in zip(node, inner, strict=True)],
        target_treeids=[tree[i] for i in leaves],
        target_nodeids=[node[i] for i in leaves],
        target_ids=[0] * len(leaves),
        target_weights=rng.standard_normal(len(leaves)).astype("f4").tolist(),
        **others,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 7])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1])
    graph = helper.make_graph([made], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def calls(path: Path) -> int:
    """The calls of Python functions, and resumptions of generators, that reading a model takes."""
    count = 0

    def counted(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        import_model(path)
        contents(path)
    finally:
        sys.setprofile(before)
    return count


def test_more_trees_take_hardly_more_calls(tmp_path: Path) -> None:
    few, many = (ensemble(tmp_path / f"{n}.onnx", n) for n in (8, 64))
    calls(few)
    assert calls(many) < 1.2 * calls(few)


def test_their_numbers_are_kept_as_they_are_written(tmp_path: Path) -> None:
    path = ensemble(tmp_path / "m.onnx", 8, nodes_hitrates=[-1.0, 300.5] * 3000)
    small = load(path, ModelFolder(tmp_path))
    assert small == onnx.load(path)
    data = path.read_bytes()
    assert without_elements(memoryview(data)) == data


@pytest.mark.parametrize(
    "damage", [b"\x40", b"\x40" + b"\xff" * 10 + b"\x01", b"\x3d\x01", b"\x4a\x05a"]
)
def test_a_run_of_numbers_that_its_message_cuts_off(damage: bytes) -> None:
    attribute = b"\x40\x85\x02" * 30_000 + damage
    whole = attribute
    for key in (b"\x2a", b"\x0a", b"\x3a"):
        whole = key + _varint(len(whole)) + whole
    assert without_elements(memoryview(whole)) is None


def _varint(size: int) -> bytes:
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([*length, size])
