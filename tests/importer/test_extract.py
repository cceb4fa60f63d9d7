"""Parts of models: which nodes make what a node reads."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer.extract import ModelParts


def chain(path: Path, count: int) -> Path:
    """Writes a model of `count` nodes, each of which adds the results of the two before it."""
    names = ["x", "x", *(f"v{k}" for k in range(count))]
    nodes = [helper.make_node("Add", names[k : k + 2], [names[k + 2]]) for k in range(count)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", names[-1]))
    graph = helper.make_graph(nodes, "g", [x], [y])
    imports = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def test_makers_of_what_nodes_read(tmp_path: Path) -> None:
    parts = ModelParts(chain(tmp_path / "m.onnx", 4))
    assert [parts.producers(k) for k in range(4)] == [(), (0,), (0, 1), (1, 2)]


def test_makers_are_found_in_time_that_grows_as_the_nodes_do(tmp_path: Path) -> None:
    count = 20_000
    parts = ModelParts(chain(tmp_path / "m.onnx", count))
    begin = time.process_time()
    found = [parts.producers(k) for k in range(count)]
    assert time.process_time() - begin < 5
    assert found[-1] == (count - 3, count - 2)


def test_parts_that_are_too_large_for_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ModelParts(chain(tmp_path / "m.onnx", 4))
    monkeypatch.setattr("rutc.importer.extract.MOST_BYTES", 20)
    with pytest.raises(UserError, match="one file of ONNX holds at most 20"):
        parts.write_with_outputs(tmp_path / "part.onnx", ["v1"])
    assert not (tmp_path / "part.onnx").exists()
