"""Slices that a program assigns to, which exporters write as ScatterND, are no scatters."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper, numpy_helper

import rutc
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.runtime import load
from rutc.tensor_ir import Call, Scatter
from tests.close import assert_close

ROWS, COLUMNS = 9, 37


def node(op: str, inputs: list[str], output: str, **attributes: object) -> NodeProto:
    """A node of one output."""
    return helper.make_node(op, inputs, [output], **attributes)


def model(first: int) -> onnx.ModelProto:
    """x[:, 1:, :-1] = 2*x[:, 1:, :-1] + r, for x{batch, rows, columns}; `first` is the first row.

    The batch is open, so that its part of the indices is no constant.
    """
    data = {
        "zero": np.array(0),
        "one": np.array(1),
        "batches": np.array([-1, 1, 1]),
        "last": np.array([3]),
        "row": np.arange(first, first + ROWS - 1).reshape(-1, 1),
        "column": np.arange(COLUMNS - 1),
        "begin": np.array([1, 0]),
        "end": np.array([ROWS, COLUMNS - 1]),
        "axes": np.array([1, 2]),
        "sizes": np.array([ROWS - 1, COLUMNS - 1]),
        "two": np.array(2, np.float32),
    }
    nodes = [
        node("Shape", ["x"], "shape"),
        node("Gather", ["shape", "zero"], "batch"),
        node("Range", ["zero", "batch", "one"], "images"),
        node("Reshape", ["images", "batches"], "image"),
        node("Reshape", ["batch", "one_axis"], "count"),
        node("Concat", ["count", "sizes"], "whole", axis=0),
        *(
            step
            for name in ("image", "row", "column")
            for step in (
                node("Expand", [name, "whole"], f"{name}_all"),
                node("Unsqueeze", [f"{name}_all", "last"], f"{name}_at"),
            )
        ),
        node("Concat", ["image_at", "row_at", "column_at"], "at", axis=-1),
        node("Slice", ["x", "begin", "end", "axes"], "part"),
        node("Mul", ["part", "two"], "twice"),
        node("Add", ["twice", "r"], "new"),
        node("ScatterND", ["x", "at", "new"], "y"),
    ]
    data["one_axis"] = np.array([1])
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "assigned",
        [
            helper.make_tensor_value_info("x", floats, ["batch", ROWS, COLUMNS]),
            helper.make_tensor_value_info("r", floats, [ROWS - 1, COLUMNS - 1]),
        ],
        [helper.make_tensor_value_info("y", floats, None)],
        [numpy_helper.from_array(a, n) for n, a in data.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("first", [1, 1 - ROWS])
def test_positions_that_count_along_a_size_are_index_expressions(
    first: int, tmp_path: Path
) -> None:
    onnx.save(model(first), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert not any(isinstance(n, Call) for n in graph.nodes)
    assert not any(isinstance(n, Scatter) for n in optimize(graph).nodes)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("first", [1, 1 - ROWS])
def test_what_is_assigned(first: int, target: str, tmp_path: Path) -> None:
    onnx.save(model(first), tmp_path / "m.onnx")
    library = tmp_path / "m.so"
    rutc.compile(tmp_path / "m.onnx", library, target=target, verify=False, db="none")
    rng = np.random.default_rng(0)
    for threads in (1, 2):
        with load(library, threads=threads) as session:
            for batch in (0, 1, 3):
                x = rng.standard_normal((batch, ROWS, COLUMNS)).astype(np.float32)
                x[:, 0, 3], x[:, 2, -1], x[:, 3, 5] = np.nan, np.inf, -np.inf
                r = rng.standard_normal((ROWS - 1, COLUMNS - 1)).astype(np.float32)
                wanted = x.copy()
                wanted[:, 1:, :-1] = 2 * wanted[:, 1:, :-1] + r
                (got,) = session.run(None, {"x": x, "r": r})
                assert_close(got, wanted)
