"""Subnormal numbers: zeros by default, kept on request, and the caller's own are left alone."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.verify import VerificationFailed
from tests.close import assert_close
from tests.onnx_files import write_model

SUBNORMAL = np.float32(1e-40)
COUNT = 1 << 20
NARROW = [
    "FLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ",
    "FLOAT6E2M3",
    "FLOAT6E3M2",
    "FLOAT4E2M1",
]


@pytest.fixture(scope="module")
def halving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = 0.5 * x, for enough elements to be shared among threads."""
    path = tmp_path_factory.mktemp("subnormals") / "halving.onnx"
    node = helper.make_node("Mul", ["x", "half"], ["y"])
    half = np.array(0.5, np.float32)
    return write_model(path, [node], {"x": [COUNT]}, {"y": [COUNT]}, {"half": half})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("keep", "expected"), [(False, np.float32(0)), (True, SUBNORMAL / 2)])
def test_subnormals(
    halving: Path, tmp_path: Path, threads: int, *, keep: bool, expected: np.float32
) -> None:
    library = tmp_path / "halving.so"
    rutc.compile(halving, library, keep_subnormals=keep, verify=False)
    session = rutc.load(library, threads=threads)
    (y,) = session.run(None, {"x": np.full(COUNT, SUBNORMAL)})
    # Summed as integers: numpy's own arithmetic must not decide.
    assert set(np.asarray(y).view(np.int32).tolist()) == {int(expected.view(np.int32))}
    assert np.full(8, SUBNORMAL) @ np.ones(8, np.float32) > 0, "the caller's mode has changed"


@pytest.mark.parametrize("name", NARROW)
def test_small_numbers_of_narrow_floats_are_no_zeros(tmp_path: Path, name: str) -> None:
    kind = TensorProto.DataType.Value(name)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    bits = ml_dtypes.finfo(dtype).bits
    x = np.arange(1 << bits, dtype=f"u{dtype.itemsize}").view(dtype)
    infos = [helper.make_tensor_value_info("x", kind, x.shape)]
    infos += [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)]
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opset = helper.make_opsetid("", 28)
    path, library = tmp_path / "cast.onnx", tmp_path / "cast.so"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=14), path)
    rutc.compile(path, library, verify=False)
    (y,) = rutc.load(library).run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(y), x.astype(np.float32))


TINY = np.float32(1e-39)
CHANGES: dict[str, tuple[float | bool, float | bool]] = {
    "Log": (-np.inf, np.log(TINY)),
    "Sqrt": (0.0, np.sqrt(TINY)),
    "Sign": (0.0, 1.0),
    "Ceil": (0.0, 1.0),
    "Relu": (0.0, TINY),
    "Div": (np.nan, 1.0),
    "Mul": (0.0, TINY * np.float32(1e30)),
    "Max": (0.0, TINY),
    "Equal": (True, False),
    "Greater": (False, True),
    "Cast": (False, True),
    "Identity": (TINY, TINY),
    "Abs": (TINY, TINY),
    "Neg": (-TINY, -TINY),
}
"""What docs/numerics.md says that operators make of 1e-39, flushing and keeping."""


@pytest.mark.parametrize("keep", [False, True])
def test_what_flushing_changes(tmp_path: Path, *, keep: bool) -> None:
    others = {"Div": ["x"], "Mul": ["large"], "Max": ["zero"], "Equal": ["zero"]}
    others["Greater"] = ["zero"]
    nodes, outputs = [], []
    for name, (_, value) in CHANGES.items():
        attributes = {"to": TensorProto.BOOL} if name == "Cast" else {}
        nodes.append(helper.make_node(name, ["x", *others.get(name, [])], [name], **attributes))
        kind = TensorProto.BOOL if isinstance(value, bool) else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(name, kind, [64]))
    constants = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("zero", 0.0), ("large", 1e30))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    path, library = tmp_path / "tiny.onnx", tmp_path / "tiny.so"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    rutc.compile(path, library, keep_subnormals=keep, verify=False)
    found = rutc.load(library, threads=1).run(None, {"x": np.full(64, TINY)})
    for (name, expected), got in zip(CHANGES.items(), found, strict=True):
        wanted = np.full(64, expected[keep], np.asarray(got).dtype)
        assert_close(np.asarray(got), wanted, reduction=16, err_msg=name)


def test_verification_tells_how_they_are_kept(tmp_path: Path) -> None:
    """Of weights that are all subnormal numbers."""
    weights = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32) * SUBNORMAL
    path, library = tmp_path / "tiny.onnx", tmp_path / "tiny.so"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    write_model(path, [node], {"x": [4, 8]}, {"y": [4, 16]}, {"w": weights})
    with pytest.raises(VerificationFailed) as caught:
        rutc.compile(path, library)
    (output,) = caught.value.verification.outputs
    assert "--keep-subnormals" in output.reason
    rutc.compile(path, library, keep_subnormals=True)


def test_verification_tells_of_infinities_that_follow_from_flushing(tmp_path: Path) -> None:
    """Of Log(Exp(x)), where it is computed of inputs of 64 times the usual magnitude."""
    nodes = [helper.make_node("Exp", ["x"], ["z"]), helper.make_node("Log", ["z"], ["y"])]
    path, library = tmp_path / "log.onnx", tmp_path / "log.so"
    write_model(path, nodes, {"x": [64, 17]}, {"y": [64, 17]})
    found = rutc.compile(path, library).verification
    assert found is not None
    assert found.passed
    assert (
        "elements are infinite, as numbers below 1.2e-38 count as zeros" in found.outputs[0].remark
    )
    found = rutc.compile(path, library, keep_subnormals=True).verification
    assert found is not None
    assert "1.2e-38" not in found.outputs[0].remark
    assert rutc.load(library).manifest["keep_subnormals"] is True
