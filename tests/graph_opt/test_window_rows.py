"""Windows of few channels whose products lie side by side in registers for matrices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from rutc.driver.parts.build import Builder
from rutc.graph_opt.alternatives.factor_parts import ROUNDED
from rutc.graph_opt.decide import decide
from rutc.tensor_ir import Graph, Index
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build, run
from tests.machines import TILES_V3
from tests.precision.test_parts import ALWAYS, MACHINES, parted, save

FIRST = replace(ALWAYS, parts=ROUNDED)


def windows(
    path: Path, shape: tuple[int, ...], outputs: int, window: int, step: int, ahead: int
) -> Graph:
    """The graph of a convolution of rounded factors, `ahead` of whose windows lie outside."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((outputs, shape[1], window, window)).astype(np.float32)
    pads = [ahead, ahead, ahead + 1, ahead]
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[step, step], pads=pads)
    save(path, shape, [node], w=w)
    return parted(path, FIRST)


CASES = [
    # Channels, window and step: those of ResNet, of MobileNet and of a vision transformer.
    ((1, 3, 23, 29), 16, 7, 2, 3, 28),
    ((2, 3, 17, 18), 32, 3, 2, 1, 24),
    ((1, 3, 64, 96), 16, 16, 16, 0, 64),
    ((1, 2, 19, 21), 17, 9, 1, 4, 18),
    ((1, 5, 16, 16), 16, 2, 1, 0, 16),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("shape", "outputs", "window", "step", "ahead", "products"), CASES)
def test_products_of_few_channels_lie_side_by_side(
    tmp_path: Path,
    shape: tuple[int, ...],
    outputs: int,
    window: int,
    step: int,
    ahead: int,
    products: int,
    machine: Machine,
) -> None:
    graph = windows(tmp_path / "net.onnx", shape, outputs, window, step, ahead)
    assert dict(graph.dims)["taps"] == Index.of(products)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted = interpret(graph, {"x": x})["y"]
    library = build(decide(graph, machine), machine, tmp_path)
    for threads in (1, 2):
        got = run(library, {"x": x}, threads)["y"]
        terms = shape[1] * window * window
        assert_close(got, wanted, level=Level.KERNEL, reduction=terms)


def test_registers_multiply_them(tmp_path: Path) -> None:
    graph = windows(tmp_path / "net.onnx", (1, 3, 32, 32), 32, 7, 2, 3)
    texts: list[str] = []
    plan = decide(graph, TILES_V3)
    builder = Builder(plan, TILES_V3, "model", 1, keep_subnormals=False, code=False)
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    assert sum("call void @llvm.x86.tdpbf16ps(" in text for text in texts) == 1


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_beside_a_window_changes_nothing_in_it(tmp_path: Path, odd: float) -> None:
    graph = windows(tmp_path / "net.onnx", (1, 3, 16, 16), 16, 3, 1, 1)
    x = np.ones((1, 3, 16, 16), np.float32)
    usual = interpret(graph, {"x": x})["y"]
    x[0, 1, 7, 9] = odd
    found = interpret(graph, {"x": x})["y"]
    got = run(build(decide(graph, TILES_V3), TILES_V3, tmp_path), {"x": x}, 1)["y"]
    for y in (found, got):
        other = ~np.isfinite(y) | (y != usual)
        assert set(zip(*np.nonzero(other.any(axis=(0, 1))), strict=True)) <= {
            (a, b) for a in (6, 7, 8) for b in (8, 9, 10)
        }


def test_channels_that_are_many_stay_as_they_are(tmp_path: Path) -> None:
    graph = windows(tmp_path / "net.onnx", (1, 16, 16, 16), 16, 3, 1, 1)
    assert "taps" not in dict(graph.dims)
    assert any(v.endswith(".hi") for v in graph.values)
