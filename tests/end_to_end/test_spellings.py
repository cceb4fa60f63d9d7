"""One layer in several ONNX spellings becomes one kernel."""

from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from benchmarks.capsules import Layer, spellings
from rutc.driver.compiler import compile_model
from rutc.runtime import load
from tests.kernels import assert_agree

LAYER = Layer(batch=2, size=7, inputs=3, outputs=5, pose=2)


def test_three_spellings_of_a_capsule_layer_are_one_kernel(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal(LAYER.shape)
    x = x.astype(np.float32)
    kernels = []
    for name, model in spellings(LAYER).items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        report = compile_model(path, path.with_suffix(".so"))
        with load(report.library, threads=1) as session:
            (got,) = session.run(None, {"x": x})
            kernels.append([k["symbol"] for k in session.manifest["kernels"]])
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        assert_agree(name, got, wanted, exact=False, reduction=LAYER.reduction)
        assert report.arena_bytes == 0
    assert len(kernels[0]) == 1
    assert kernels[0] == kernels[1] == kernels[2]
