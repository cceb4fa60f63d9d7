"""Windows most of which lie outside of what they are read from."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from rutc.driver.parts.build import Builder
from rutc.driver.parts.launches import KernelFacts
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.compiled import build, run
from tests.machines import NATIVE, V3, on_native_and_v3
from tests.onnx_files import write_model

CONVOLUTIONS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, list[int] | int]]] = {
    # input, weights, attributes
    "some": ((1, 16, 16, 16), (24, 16, 3, 3), {"dilations": [12, 12], "pads": [12] * 4}),
    "centre": ((2, 9, 7, 11), (5, 9, 3, 3), {"dilations": [13, 11], "pads": [13, 11, 13, 11]}),
    "one dim": ((1, 16, 13, 19), (20, 16, 3, 1), {"dilations": [8, 1], "pads": [8, 0, 8, 0]}),
    "along": ((1, 16, 5, 17), (18, 16, 1, 3), {"dilations": [1, 12], "pads": [0, 12, 0, 12]}),
    "uneven": ((1, 11, 17, 13), (13, 11, 3, 5), {"dilations": [9, 4], "pads": [3, 11, 15, 7]}),
    "strides": (
        (1, 12, 15, 14),
        (26, 12, 3, 3),
        {"dilations": [8, 7], "pads": [8, 6, 8, 9], "strides": [2, 3]},
    ),
    "groups": ((1, 32, 9, 9), (24, 16, 3, 3), {"dilations": [6, 6], "pads": [6] * 4, "group": 2}),
    "each channel": (
        (1, 9, 9, 9),
        (9, 1, 3, 3),
        {"dilations": [7, 7], "pads": [7] * 4, "group": 9},
    ),
    "a pixel": ((1, 17, 1, 1), (3, 17, 3, 3), {"dilations": [4, 4], "pads": [4] * 4}),
    "far beyond": ((1, 8, 3, 2), (9, 8, 2, 2), {"dilations": [40, 9], "pads": [40, 9, 40, 9]}),
    "small maps": ((3, 24, 4, 3), (10, 24, 3, 3), {"pads": [2, 2, 2, 2]}),
}


def save(
    path: Path,
    node: onnx.NodeProto,
    shape: tuple[int | str, ...],
    weights: np.ndarray | None = None,
) -> None:
    """A model of one node that reads x, and constant weights."""
    constants = {} if weights is None else {"w": weights}
    write_model(path, [node], {"x": shape}, {"y": None}, constants)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Whole numbers, whose sums of products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def check(path: Path, machine: Machine, folder: Path, *inputs: np.ndarray) -> None:
    """Compare what a model computes with what its graph means."""
    graph = import_model(path)
    library = build(decide(optimize(graph), machine), machine, folder)
    for x in inputs:
        with np.errstate(all="ignore"):
            expected = interpret(graph, {"x": x})["y"]
        for threads in (1, 2):
            got = run(library, {"x": x}, threads)["y"]
            np.testing.assert_array_equal(got, expected)


def with_extremes(x: np.ndarray) -> np.ndarray:
    """The same numbers, some of them NaN or infinite."""
    found = x.reshape(-1).copy()
    for at, extreme in enumerate((np.nan, np.inf, -np.inf)):
        found[at :: max(len(found) // 3, 4)] = extreme
    return found.reshape(x.shape)


@on_native_and_v3
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_agree_with_their_meaning(name: str, machine: Machine, tmp_path: Path) -> None:
    shape, weights, attributes = CONVOLUTIONS[name]
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    save(tmp_path / "model.onnx", node, shape, numbers(weights, 0))
    x = numbers(shape, 1)
    check(tmp_path / "model.onnx", machine, tmp_path, x, with_extremes(x))


@on_native_and_v3
def test_transposed_convolutions_agree_with_their_meaning(machine: Machine, tmp_path: Path) -> None:
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], dilations=[7, 5], strides=[2, 1], pads=[6, 5, 7, 5]
    )
    save(tmp_path / "model.onnx", node, (1, 10, 6, 7), numbers((10, 12, 3, 3), 0))
    check(tmp_path / "model.onnx", machine, tmp_path, numbers((1, 10, 6, 7), 1))


@on_native_and_v3
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("MaxPool", {"dilations": [6, 5]}),
        ("AveragePool", {"dilations": [6, 5], "count_include_pad": 0}),
        ("AveragePool", {"dilations": [6, 5], "count_include_pad": 1}),
        ("MaxPool", {"dilations": [1, 1], "strides": [2, 2]}),
    ],
)
def test_pools_agree_with_their_meaning(
    operator: str, attributes: dict[str, list[int] | int], machine: Machine, tmp_path: Path
) -> None:
    node = helper.make_node(
        operator, ["x"], ["y"], kernel_shape=[4, 4], pads=[3, 2, 3, 3], **attributes
    )
    shape = (2, 19, 14, 13)
    save(tmp_path / "model.onnx", node, shape)
    x = numbers(shape, 1)
    check(tmp_path / "model.onnx", machine, tmp_path, x, with_extremes(x))


@on_native_and_v3
def test_sizes_of_the_run_agree_with_their_meaning(machine: Machine, tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[60, 50], pads=[60, 50, 60, 50])
    save(tmp_path / "model.onnx", node, (1, 8, "h", "w"), numbers((18, 8, 3, 3), 0))
    sizes = (0, 1 << 20, 1, 128)
    graph = import_model(tmp_path / "model.onnx", dims={"h": sizes, "w": sizes})
    plan = decide(optimize(graph), NATIVE)
    assert any("inside(" in f.schedule for f in _facts(plan))
    library = build(plan, machine, tmp_path)
    for h, w in ((1, 1), (7, 3), (64, 51), (13, 121), (0, 5)):
        x = numbers((1, 8, h, w), h)
        expected = interpret(graph, {"x": x})["y"]
        for threads in (1, 2):
            np.testing.assert_array_equal(run(library, {"x": x}, threads)["y"], expected)


@on_native_and_v3
def test_windows_are_narrowed_where_rows_ask_for_what_others_read(
    machine: Machine, tmp_path: Path
) -> None:
    """What is asked for depends on how many rows a run has: that is tested in the window's loop."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2], pads=[2, 2])
    save(tmp_path / "model.onnx", node, ("n", 65, "h"), numbers((128, 65, 3), 0))
    graph = import_model(
        tmp_path / "model.onnx", dims={"n": (0, 1 << 20, 1, 32), "h": (0, 4, 1, 1)}
    )
    plan = decide(optimize(graph), NATIVE)
    schedules = [f.schedule for f in _facts(plan)]
    assert any("inside(" in s and "prefetch_block(" in s for s in schedules), schedules
    library = build(plan, machine, tmp_path)
    for n, h in ((1, 1), (2, 3), (9, 4), (0, 2)):
        x = numbers((n, 65, h), n)
        expected = interpret(graph, {"x": x})["y"]
        for threads in (1, 2):
            np.testing.assert_array_equal(run(library, {"x": x}, threads)["y"], expected)


@on_native_and_v3
def test_the_halo_of_any_number_of_images_is_left_out(machine: Machine, tmp_path: Path) -> None:
    """Nothing tests there whether it is outside, as memory has the fill, but a loop may know."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[3, 0, 3, 0])
    save(tmp_path / "model.onnx", node, ("n", 32, 17, 17), numbers((64, 32, 7, 1), 0))
    graph = import_model(tmp_path / "model.onnx", dims={"n": (0, 9, 1, 1)})
    plan = decide(optimize(graph), machine)
    assert any(x.halo for x in plan.layouts.values())
    (schedule,) = (f.schedule for f in _facts(plan, machine) if f.flops)
    assert "inside(" in schedule
    library = build(plan, machine, tmp_path)
    for n in (1, 3, 0):
        x = with_extremes(numbers((n, 32, 17, 17), n))
        with np.errstate(all="ignore"):
            expected = interpret(graph, {"x": x})["y"]
        for threads in (1, 2):
            np.testing.assert_array_equal(run(library, {"x": x}, threads)["y"], expected)


@on_native_and_v3
def test_infinite_weights_meet_the_zeros_outside(machine: Machine, tmp_path: Path) -> None:
    """0 * inf is NaN: nothing may be left out."""
    weights = numbers((4, 9, 3, 3), 0)
    weights[1, 2, 0, 0] = np.inf
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[8, 8], pads=[8] * 4)
    save(tmp_path / "model.onnx", node, (1, 9, 7, 7), weights)
    x = numbers((1, 9, 7, 7), 1)
    assert np.isnan(interpret(import_model(tmp_path / "model.onnx"), {"x": x})["y"][:, 1]).all()
    check(tmp_path / "model.onnx", machine, tmp_path, x)


@pytest.mark.parametrize(
    ("extent", "dilation", "passed"), [(16, 12, True), (28, 12, True), (112, 1, False)]
)
def test_loops_over_windows_keep_inside_where_that_is_less_work(
    extent: int, dilation: int, passed: bool, tmp_path: Path
) -> None:
    plan = _convolution(extent, dilation, tmp_path)
    (schedule,) = (f.schedule for f in _facts(plan) if f.flops)
    assert ("inside(" in schedule) is passed


@pytest.mark.parametrize(("extent", "dilation"), [(16, 12), (28, 12)])
def test_no_halo_is_filled_that_no_window_reads(extent: int, dilation: int, tmp_path: Path) -> None:
    plan = _convolution(extent, dilation, tmp_path)
    halos = [[lo for _, lo, _ in x.halo] for x in plan.layouts.values() if x.halo]
    assert halos == [[dilation]]


def test_taps_that_are_outside_everywhere_are_left_out(tmp_path: Path) -> None:
    plan = _convolution(16, 18, tmp_path)
    (fact,) = (f for f in _facts(plan) if f.flops)
    assert "inside(" not in fact.schedule
    assert fact.flops < 2.1 * 32 * 24 * 16 * 16


def _facts(plan: Plan, machine: Machine = V3) -> list[KernelFacts]:
    return Builder(plan, machine, "model", 1, keep_subnormals=True).build().facts


def _convolution(extent: int, dilation: int, folder: Path) -> Plan:
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], dilations=[dilation] * 2, pads=[dilation] * 4
    )
    save(folder / "model.onnx", node, (1, 32, extent, extent), numbers((24, 32, 3, 3), 0))
    graph = import_model(folder / "model.onnx")
    return decide(optimize(graph), NATIVE)
