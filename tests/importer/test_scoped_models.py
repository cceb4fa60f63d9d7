"""Random models whose graphs and functions share names of values, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.importer.scoped_models import SHAPE, random_model


@pytest.mark.parametrize("opset", [11, 12, 16])
@pytest.mark.parametrize("seed", range(40))
def test_results_of_graphs_that_share_names(seed: int, opset: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(random_model(seed, opset), path)
    graph = import_model(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    feeds = {name: rng.standard_normal(SHAPE).astype("f4") for name in ("a", "x")}
    for go in (True, False):
        given = {**feeds, "go": np.array(go)}
        (wanted,) = session.run(None, given)
        found = interpret(graph, given)["result"]
        assert_close(found, wanted, level=Level.MODEL)
