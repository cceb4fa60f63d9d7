"""Kernels that differ in their literals alone have one function, and compute as before."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.runtime import load
from tests.close import assert_close
from tests.machines import V3, V4, needs

LAYERS = {"a": (0.37, 131), "b": (0.021, 7), "c": (0.7, 128)}
"""Scales and zero points of what is stored in 8 bits."""


def quantised(rows: int, columns: int) -> onnx.ModelProto:
    """y = scale * quantised(x * scale + 0.3 * scale) for each layer, and q, its numbers."""
    nodes, weights, inputs, outputs = [], [], [], []
    for name, (scale, zero) in LAYERS.items():
        given = {"scale": np.float32(scale), "zero": np.uint8(zero), "d": np.float32(0.3 * scale)}
        weights += [numpy_helper.from_array(v, f"{n}{name}") for n, v in given.items()]
        inputs.append(helper.make_tensor_value_info(f"x{name}", TensorProto.FLOAT, [rows, columns]))
        outputs += [
            helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, [rows, columns]),
            helper.make_tensor_value_info(f"q{name}", TensorProto.UINT8, [rows, columns]),
        ]
        nodes += [
            helper.make_node("Mul", [f"x{name}", f"scale{name}"], [f"p{name}"]),
            helper.make_node("Add", [f"p{name}", f"d{name}"], [f"y{name}"]),
            helper.make_node(
                "QuantizeLinear", [f"y{name}", f"scale{name}", f"zero{name}"], [f"q{name}"]
            ),
        ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "target", [pytest.param(n, marks=needs(m)) for n, m in (("x86-64-v3", V3), ("x86-64-v4", V4))]
)
def test_layers_that_differ_in_literals_share_code(
    target: str, threads: int, tmp_path: Path
) -> None:
    model = quantised(67, 77)
    onnx.save(model, tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", target=target, verify=False, db="none")
    rng = np.random.default_rng(0)
    feed = {f"x{n}": (rng.standard_normal((67, 77)) * 90).astype(np.float32) for n in LAYERS}
    for x in feed.values():
        x.flat[:7] = [np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-40]
    options = onnxruntime.SessionOptions()
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options)
    want = reference.run(None, feed)
    with load(tmp_path / "m.so", threads=threads) as session:
        got = session.run(None, feed)
        symbols = [k["symbol"] for k in session.manifest["kernels"]]
    for y, expected in zip(got, want, strict=True):
        if y.dtype == np.uint8:
            # The product and its sum are rounded once.
            off = y.astype(int) - expected
            assert np.abs(off).max() <= 1
            assert (off != 0).mean() < 1e-3
        else:
            assert_close(y, expected)
    assert len(symbols) == len(LAYERS)
    assert len(set(symbols)) == 1
