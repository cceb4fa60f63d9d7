"""DynamicQuantizeLSTM rounds all rows with one step, rutc each with its own: noise tells of it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.layers import quantised_lstm
from rutc.driver.compiler import Options, compile_model
from rutc.importer import import_model
from rutc.importer.quantised import rounds_each_row
from rutc.verify.truth.truth import Truth, rounded_rows
from rutc.verify.verify import verify_model


def _written(path: Path, factor: float = 1.0) -> Path:
    """A quantised LSTM, its weights' scales times a factor."""
    model = quantised_lstm(12, 2, 16, 24).build()
    for tensor in model.graph.initializer:
        if tensor.name in ("ws", "rs"):
            scaled = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    onnx.save(model, path)
    return path


def test_steps_of_rows_agree_with_one_step(tmp_path: Path) -> None:
    model = _written(tmp_path / "lstm.onnx")
    library = compile_model(model, tmp_path / "lstm.so", Options()).library
    assert verify_model(model, library).passed


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_other_weights_do_not(tmp_path: Path, factor: float) -> None:
    other = _written(tmp_path / "other.onnx", factor)
    library = compile_model(other, tmp_path / "other.so", Options()).library
    assert not verify_model(_written(tmp_path / "lstm.onnx"), library).passed


def test_noise_moves_rows_by_up_to_a_step(tmp_path: Path) -> None:
    model = _written(tmp_path / "lstm.onnx")
    graph = import_model(model)
    names = rounds_each_row(model)
    # Rows of the input, and of the state in each step.
    assert len(rounded_rows(graph, names)) == 2
    x = {"x": np.random.default_rng(0).standard_normal((12, 2, 16)).astype(np.float32)}
    exact = Truth(graph).run(x)["y"]
    fine, coarse = (
        np.abs(t.run(x, 1)["y"] - exact).max() for t in (Truth(graph), Truth(graph, names))
    )
    assert fine < coarse / 10
    assert coarse < 0.1


def test_other_models_round_as_they_say(tmp_path: Path) -> None:
    model = _written(tmp_path / "lstm.onnx")
    proto = onnx.load(model)
    proto.graph.node[0].op_type = "LSTM"
    onnx.save(proto, model)
    assert rounds_each_row(model) == frozenset()
