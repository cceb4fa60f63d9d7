"""Work before kernels grows no faster than the graph: counted in function calls, not in seconds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.tensor_ir.machine import Machine
from tests.machines import V4
from tests.work import calls_counted

SMALL = 120
"""Nodes of the smallest graph: of more than one kernel, as the largest kernels have a limit."""
SLACK = 1.05


def _chain(count: int) -> list[NodeProto]:
    """Elementwise nodes, each of the last two values."""
    names = ["x", "x", *(f"v{i}" for i in range(count))]
    ops = ("Add", "Max", "Sub")
    return [
        helper.make_node(ops[i % 3], [names[i], names[i + 1]], [names[i + 2]])
        if i % 2
        else helper.make_node("Sin", [names[i + 1]], [names[i + 2]])
        for i in range(count)
    ]


def _fan(count: int) -> list[NodeProto]:
    """Many readers of one value that differ by a literal, added up in pairs."""
    nodes: list[NodeProto] = []
    for i in range(count // 3):
        value = helper.make_tensor("value", TensorProto.FLOAT, (), [1.5 + i / 8])
        nodes.append(helper.make_node("Constant", [], [f"c{i}"], value=value))
        nodes.append(helper.make_node("Max", ["x", f"c{i}"], [f"m{i}"]))
    level = [f"m{i}" for i in range(count // 3)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        made = [f"{a}_{b}" if len(a) + len(b) < 20 else f"s{len(nodes)}_{a}" for a, b in pairs]
        nodes += [
            helper.make_node("Add", [a, b], [s]) for (a, b), s in zip(pairs, made, strict=True)
        ]
        level = made + level[2 * len(pairs) :]
    return nodes


def _layers(count: int) -> list[NodeProto]:
    """Products with one matrix, normalisations and turned values, a kernel or two each."""
    nodes: list[NodeProto] = []
    last = "x"
    for i in range(count // 5):
        a, b, c, d, last = last, f"a{i}", f"b{i}", f"c{i}", f"v{i}"
        nodes += [
            helper.make_node("MatMul", [a, "w"], [b]),
            helper.make_node("Softmax", [b], [c], axis=0),
            helper.make_node("Transpose", [c], [d], perm=[1, 0]),
            helper.make_node("Tanh", [d], [f"t{i}"]),
            helper.make_node("Transpose", [f"t{i}"], [last], perm=[1, 0]),
        ]
    return nodes


def _scales(count: int) -> list[NodeProto]:
    """One value scaled and shifted by constants again and again."""
    nodes: list[NodeProto] = []
    last = "x"
    for i in range(count // 2):
        data = np.linspace(1 + i / 100, 2, 64, dtype=np.float32)
        nodes.append(
            helper.make_node("Constant", [], [f"c{i}"], value=numpy_helper.from_array(data))
        )
        nodes.append(helper.make_node(("Mul", "Add")[i % 2], [last, f"c{i}"], [f"v{i}"]))
        last = f"v{i}"
    return nodes


def _steps(count: int) -> list[NodeProto]:
    """Products with one matrix, each added to the value before: rows never meet."""
    nodes: list[NodeProto] = []
    last = "x"
    for i in range(count // 3):
        nodes += [
            helper.make_node("MatMul", [last, "w"], [f"a{i}"]),
            helper.make_node("Add", [f"a{i}", last], [f"b{i}"]),
            helper.make_node("Tanh", [f"b{i}"], [f"v{i}"]),
        ]
        last = f"v{i}"
    return nodes


def _write(path: Path, nodes: list[NodeProto], batch: int | str) -> None:
    shape = [batch, 64]
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _calls(path: Path, machine: Machine = V4) -> int:
    """The function calls from a model to its plans."""
    with calls_counted() as made:
        for version in versions(import_model(path), machine):
            decide(version.graph, machine)
    return made[0]


@pytest.mark.parametrize("batch", [8, "n"])
@pytest.mark.parametrize("kind", [_chain, _fan, _layers, _scales])
def test_work_grows_linearly(
    kind: Callable[[int], list[NodeProto]], batch: int | str, tmp_path: Path
) -> None:
    counts: list[int] = []
    # The first time, modules are loaded and tables filled.
    for size in (SMALL, SMALL, 2 * SMALL, 4 * SMALL):
        _write(tmp_path / f"{size}.onnx", kind(size), batch)
        counts.append(_calls(tmp_path / f"{size}.onnx"))
    _, one, two, four = counts
    assert four - two <= 2 * (two - one) * SLACK


@pytest.mark.parametrize("batch", [8, "n"])
def test_turns_that_never_pay_are_soon_given_up(batch: int | str, tmp_path: Path) -> None:
    # Kernels pass each other more than the second cache holds, and read more weights again.
    machine = replace(V4, l2=1 << 14)
    counts: list[int] = []
    for size in (SMALL, SMALL, 2 * SMALL, 4 * SMALL):
        _write(tmp_path / f"{size}.onnx", _steps(size), batch)
        counts.append(_calls(tmp_path / f"{size}.onnx", machine))
    _, one, two, four = counts
    assert four - two <= 2 * (two - one) * SLACK
