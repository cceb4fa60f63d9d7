"""Models in float16 with some float32 in them, as converters leave them, beside ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node

import rutc
from rutc.driver.api import compile
from rutc.errors import UserError
from rutc.importer import import_model
from tests.close import assert_close

F32, F16 = TensorProto.FLOAT, TensorProto.FLOAT16
MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    weights: Mapping[str, np.ndarray],
    given: int = F16,
    result: int = F16,
    opset: int = 17,
) -> Path:
    """A model from x{2, 3, 4, 4} to y."""
    x = helper.make_tensor_value_info("x", given, [2, 3, 4, 4])
    y = helper.make_tensor_value_info("y", result, None)
    data = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], data)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


Case = tuple[list[NodeProto], dict[str, np.ndarray], dict[str, int]]


def _norm(operator: str, *shift: str) -> list[NodeProto]:
    return [make_node(operator, ["x", "s", *shift], ["a"]), make_node("Mul", ["a", "f"], ["y"])]


SCALES = np.array([1, 1, 2, 2], np.float32)
STATISTICS = {"s": f32(3), "b": f32(3), "m": f32(3), "v": np.abs(f32(3)) + 1}
BATCH = [make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])]
ACCEPTED: dict[str, Case] = {
    "a norm with float32 scales gives float32": (
        _norm("SimplifiedLayerNormalization"),
        {"s": f32(4), "f": f32(4)},
        {"result": F32},
    ),
    "a norm of float32 with float16 scales gives float16": (
        _norm("SimplifiedLayerNormalization"),
        {"s": f16(4), "f": f16(4)},
        {"given": F32},
    ),
    "a layer norm of before opset 17": (
        _norm("LayerNormalization", "b"),
        {"s": f32(4), "b": f32(4), "f": f32(4)},
        {"result": F32, "opset": 13},
    ),
    "a blocked operator between casts": (
        [
            make_node("Cast", ["x"], ["a"], to=F32),
            make_node("Erf", ["a"], ["b"]),
            make_node("Cast", ["b"], ["y"], to=F16),
        ],
        {},
        {},
    ),
    "Resize with float32 scales": (
        [make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
        {"scales": SCALES},
        {},
    ),
    "Resize with float32 regions": (
        [make_node("Resize", ["x", "roi", "scales"], ["y"], mode="nearest")],
        {"roi": np.zeros(0, np.float32), "scales": SCALES},
        {"opset": 11},
    ),
    "Resize with scales that are cast": (
        [
            make_node("Cast", ["half"], ["scales"], to=F32),
            make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest"),
        ],
        {"half": SCALES.astype(np.float16)},
        {},
    ),
    "Upsample": (
        [make_node("Upsample", ["x", "scales"], ["y"], mode="linear")],
        {"scales": SCALES},
        {"opset": 9},
    ),
    "batch statistics in float32": (
        BATCH,
        {k: a.astype(np.float16) if k in "sb" else a for k, a in STATISTICS.items()},
        {"opset": 14},
    ),
    "all of a batch norm but its data in float32": (BATCH, STATISTICS, {"opset": 15}),
    "a power in float32": (
        [make_node("Relu", ["x"], ["a"]), make_node("Pow", ["a", "e"], ["y"])],
        {"e": np.array(2, np.float32)},
        {},
    ),
    "a constant cast like the data": (
        [make_node("CastLike", ["c", "x"], ["z"]), make_node("Add", ["x", "z"], ["y"])],
        {"c": f32(4)},
        {},
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_onnx_runtime_accepts_is_the_same(name: str, tmp_path: Path) -> None:
    nodes, weights, how = ACCEPTED[name]
    path = save(tmp_path / "m.onnx", nodes, weights, **how)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = f32(2, 3, 4, 4).astype(np.float16 if how.get("given", F16) == F16 else np.float32)
    (wanted,) = session.run(None, {"x": x})
    made = compile(path, tmp_path / "m.so")
    assert made.verification is not None
    assert made.verification.passed
    with rutc.load(made.library) as compiled:
        (got,) = compiled.run(None, {"x": x})
    assert got.dtype == wanted.dtype
    bound = 2e-3 if got.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=bound, atol=bound)


def test_the_norm_of_opset_23_has_the_type_of_its_scales(tmp_path: Path) -> None:
    nodes = [make_node("RMSNormalization", ["x", "s"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"s": f32(4)}, result=F32, opset=23)
    x = f16(2, 3, 4, 4)
    with rutc.load(compile(path, tmp_path / "m.so", verify=False).library) as compiled:
        (got,) = compiled.run(None, {"x": x})
    assert got.dtype == np.float32
    wide = x.astype("f8")
    scale = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale
    assert_close(got, wanted, reduction=1024)


REFUSED: dict[str, tuple[Case, str]] = {
    "a product": (
        ([make_node("Mul", ["x", "c"], ["y"])], {"c": f32(4)}, {}),
        r"Mul .*the types of 'A' \(f16\) and 'B' \(f32\) differ",
    ),
    "weights": (
        ([make_node("Conv", ["x", "w"], ["y"])], {"w": f32(2, 3, 3, 3)}, {}),
        r"Conv .*the types of 'X' \(f16\) and 'W' \(f32\) differ",
    ),
    "bounds": (
        ([make_node("Clip", ["x", "low"], ["y"])], {"low": np.array(0, np.float32)}, {}),
        r"Clip .*the types of 'input' \(f16\) and 'min' \(f32\) differ",
    ),
    "scales that must be float32": (
        (
            [make_node("Resize", ["x", "", "scales"], ["y"])],
            {"scales": SCALES.astype(np.float16)},
            {},
        ),
        "Resize .*'scales' must not be of type f16",
    ),
    "an output of another type": (
        ([make_node("Relu", ["x"], ["y"])], {}, {"result": F32}),
        "output 'y' is declared as float, and what computes it gives float16",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_runtime_refuses_is_refused(name: str, tmp_path: Path) -> None:
    (nodes, weights, how), said = REFUSED[name]
    path = save(tmp_path / "m.onnx", nodes, weights, **how)
    with pytest.raises(Exception, match=r"[Tt]ype"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with pytest.raises(UserError, match=said):
        import_model(path)
