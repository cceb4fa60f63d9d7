"""Code for 64-bit Arm, run in an emulator, against ONNX Runtime."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.models.zoo import find
from rutc.runtime import ModelError, load
from rutc.verify.judging.compare import compare_outputs
from rutc.verify.judging.tolerance import Level
from tests.emulated import MISSING, run_emulated

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def check(model: Path, inputs: dict[str, np.ndarray], threads: int, **options: object) -> None:
    library = model.parent / "model.so"
    compile_model(model, library, Options(target="aarch64", **options))
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), quiet, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    if platform.machine() != "aarch64":
        with pytest.raises(ModelError, match="is for aarch64 processors, and this one is"):
            load(library)
    got = run_emulated(library, inputs, {n: a.dtype for n, a in expected.items()}, threads)
    compared = compare_outputs(got, expected, Level.MODEL)
    assert all(c.passed for c in compared), [c for c in compared if not c.passed]


@pytest.mark.parametrize("threads", [1, 2])
def test_operators(tmp_path, threads):
    """Every kind of schedule and the functions of each type, on sizes of no whole vectors."""
    rng = np.random.default_rng(0)
    f32 = lambda *s: rng.standard_normal(s).astype("f4")  # noqa: E731
    inputs = {
        "x": f32(2, 5, 13, 11),
        "a": f32(3, 37, 29),
        "h": rng.standard_normal((7, 33)).astype("f2"),
        "q": rng.integers(-128, 128, (19, 31), dtype=np.int8),
        "i": rng.integers(-50, 50, (17,), dtype=np.int64),
        "t": np.array([[0, -1, 36], [5, 2, 7]], np.int64),
    }
    inputs["a"][0, 0, :4] = [np.inf, -np.inf, np.nan, -0.0]
    constants = {
        "w": f32(7, 5, 3, 3),
        "b": f32(3, 29, 41),
        "hw": rng.standard_normal((33, 21)).astype("f2"),
        "qw": rng.integers(-128, 128, (31, 23), dtype=np.int8),
        "shape": np.array([-1, 13]),
        "sizes": np.array([2, 5, 20, 7]),
        "k": np.array([5]),
        "axes": np.array([1]),
    }
    nodes = [
        ("Conv", ["x", "w"], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        ("MatMul", ["a", "b"], {}),
        ("MatMul", ["h", "hw"], {}),
        ("MatMulInteger", ["q", "qw"], {}),
        *((op, ["a"], {}) for op in ("Exp", "Tanh", "Erf", "Sigmoid", "Sin", "Floor", "IsNaN")),
        ("Softmax", ["x"], {"axis": 1}),
        ("ReduceMax", ["x", "axes"], {}),
        ("ReduceSum", ["a", "axes"], {}),
        ("LayerNormalization", ["x", "s"], {"axis": -1}),
        ("Transpose", ["x"], {"perm": [0, 3, 1, 2]}),
        ("MaxPool", ["x"], {"kernel_shape": [3, 2]}),
        ("Reshape", ["x", "shape"], {}),
        ("Resize", ["x", "", "", "sizes"], {"mode": "linear"}),
        ("Gather", ["a", "t"], {"axis": 1}),
        ("Cast", ["q"], {"to": TensorProto.FLOAT16}),
        ("Cast", ["x"], {"to": TensorProto.INT32}),
        ("Mod", ["i", "seven"], {}),
        ("Log", ["pos"], {}),
    ]
    constants |= {"s": f32(11), "seven": np.array(7)}
    inputs["pos"] = np.abs(f32(5, 23)) + np.float32(1e-30)
    made = [helper.make_node(op, i, [f"{op}{n}"], **kw) for n, (op, i, kw) in enumerate(nodes)]
    made.append(helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=2))
    graph = helper.make_graph(
        made,
        "graph",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=o) for node in made for o in node.output],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    path = tmp_path / "graph.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    check(path, inputs, threads)


@pytest.mark.parametrize("name", ["digits", "silero_vad"])
def test_real_models(name, tmp_path):
    """Pretrained networks on seeded inputs."""
    model = find(name)
    path = tmp_path / "graph.onnx"
    path.write_bytes(model.obtain().read_bytes())
    check(path, dict(model.inputs(0)), 1, shapes=model.shapes)
