"""Convolutions compiled with minimal filtering, against ONNX Runtime."""

from math import inf
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from rutc.driver.compiler import Options, compile_model
from rutc.graph_opt import optimize
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.decide import decide
from rutc.graph_opt.pipeline import PIPELINE
from rutc.graph_opt.rewrite import Sweep
from rutc.importer import import_model
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.tolerance import Level, tolerance
from rutc.verify.reference import Reference
from tests.compiled import build, run
from tests.machines import on_native_and_v3
from tests.onnx_files import write_model

pytestmark = pytest.mark.sampled(6)


def model(
    path: Path,
    shape: tuple[int | str, ...],
    outputs: int,
    window: tuple[int, int],
    pads: list[int],
) -> None:
    """relu(conv(max(x, -1)) + x') with x' the input where the shapes agree, else nothing."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((outputs, shape[1], *window)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["leaky"]),
        helper.make_node("Conv", ["leaky", "w", "b"], ["conv"], pads=pads),
        helper.make_node("Relu", ["conv"], ["y"]),
    ]
    write_model(path, nodes, {"x": shape}, {"y": None}, {"w": weights, "b": bias})


@pytest.mark.parametrize(
    ("shape", "outputs", "window", "pads"),
    [
        ((1, 16, 8, 8), 16, (3, 3), [1, 1, 1, 1]),
        ((3, 5, 13, 9), 7, (3, 3), [1, 1, 1, 1]),
        ((1, 33, 6, 17), 20, (3, 3), [0, 2, 1, 0]),
        ((1, 4, 1, 1), 3, (3, 3), [1, 1, 1, 1]),
        ((2, 4, 2, 1), 3, (3, 3), [1, 1, 1, 1]),
        ((1, 3, 11, 12), 4, (5, 3), [2, 1, 2, 1]),
        ((1, 3, 11, 12), 4, (2, 2), [0, 0, 0, 0]),
        ((1, 6, 9, 30), 8, (1, 3), [0, 1, 0, 1]),
        ((1, 6, 9, 12), 8, (7, 3), [3, 1, 3, 1]),
    ],
)
@on_native_and_v3
def test_filtered_convolutions_agree(
    tmp_path: Path,
    shape: tuple[int, ...],
    outputs: int,
    window: tuple[int, int],
    pads: list[int],
    machine: Machine,
) -> None:
    path = tmp_path / "model.onnx"
    model(path, shape, outputs, window, pads)
    filtering = Sweep("filter", (MinimalFiltering(inf, -inf),))
    graph = optimize(import_model(path), pipeline=(*PIPELINE, filtering))
    # Dims of extent 1 are no windows: the importer takes them out of the sum.
    assert any(v.endswith(".points") for v in graph.values) or 1 in shape[2:]
    library = build(decide(graph, machine), machine, tmp_path)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (wanted,) = Reference(path, 1).run({"x": x}).values()
    wanted = np.asarray(wanted, np.float64)
    allowed = tolerance(Level.KERNEL, np.float32, shape[1] * window[0] * window[1])
    for threads in (1, 2):
        got = run(library, {"x": x}, threads)["y"]
        assert got.shape == wanted.shape
        assert (np.abs(got - wanted) <= allowed.allowed(wanted)).all()


@on_native_and_v3
@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        (
            {"h": (1, 96), "w": (1, 96)},
            [(1, 1), (2, 5), (8, 4), (7, 7), (13, 31), (48, 50), (1, 96)],
        ),
        ({"h": (4, 64, 4), "w": (2, 64, 2)}, [(4, 2), (8, 4), (12, 6), (64, 62)]),
        ({"h": (1, 9), "w": 6}, [(1, 6), (4, 6), (9, 6)]),
    ],
)
def test_pictures_of_all_sizes_are_filtered(
    tmp_path: Path,
    dims: dict[str, int | tuple[int, ...]],
    sizes: list[tuple[int, int]],
    machine: Machine,
) -> None:
    path = tmp_path / "model.onnx"
    model(path, (2, 5, "h", "w"), 7, (3, 3), [1, 1, 1, 1])
    filtering = Sweep("filter", (MinimalFiltering(inf, -inf),))
    graph = optimize(import_model(path, dims=dims), pipeline=(*PIPELINE, filtering))
    assert any(v.endswith(".points") for v in graph.values)
    library = build(decide(graph, machine), machine, tmp_path)
    reference = Reference(path, 1)
    allowed = tolerance(Level.KERNEL, np.float32, 5 * 3 * 3)
    rng = np.random.default_rng(1)
    for size in sizes:
        x = rng.standard_normal((2, 5, *size)).astype(np.float32)
        wanted = np.asarray(reference.run({"x": x})["y"], np.float64)
        for threads in (1, 2):
            got = run(library, {"x": x}, threads)["y"]
            assert got.shape == wanted.shape
            assert (np.abs(got - wanted) <= allowed.allowed(wanted)).all()


@pytest.mark.parametrize("exact", [False, True])
def test_exact_algorithms_leave_filtering_out(tmp_path: Path, *, exact: bool) -> None:
    path = tmp_path / "model.onnx"
    model(path, (1, 64, 28, 28), 64, (3, 3), [1, 1, 1, 1])
    dump = tmp_path / "dump"
    options = Options(dump=dump, exact_algorithms=exact)
    compile_model(path, tmp_path / "model.so", options)
    plan = (dump / "plan.txt").read_text(encoding="utf-8")
    assert (".points" in plan) is not exact


def test_operations_of_a_filter_are_those_that_a_run_does(tmp_path: Path) -> None:
    """A transform has an arm for each of 36 points, one of which is computed."""
    path = tmp_path / "model.onnx"
    model(path, (1, 64, 56, 56), 64, (3, 3), [1, 1, 1, 1])
    own = compile_model(path, tmp_path / "own.so", Options(), None)
    exact = compile_model(path, tmp_path / "exact.so", Options(exact_algorithms=True), None)
    products = 2 * 64 * 64 * 14 * 14 * 36
    assert products < own.flops < 1.4 * products < 0.5 * exact.flops
