"""One layer in several ONNX spellings becomes one kernel."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rutc.compiler import compile_model
from rutc.runtime import load
from tests.kernels import assert_agree

BATCH, SIZE, FROM, TO, POSE, WINDOW = 2, 7, 3, 5, 2, 3
OUT = (SIZE - WINDOW) // 2 + 1


def capsules(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    """A capsule layer {n, from, y, x, p, q} -> {n, to, y, x, p, q} from its gathered patches."""
    index = np.array([[2 * o + k for k in range(WINDOW)] for o in range(OUT)], np.int64)
    patches = [
        helper.make_node("Gather", ["x", "index"], ["rows"], axis=2),
        helper.make_node("Gather", ["rows", "index"], ["patches"], axis=4),
    ]
    shape = (BATCH, FROM, SIZE, SIZE, POSE, POSE)
    graph = helper.make_graph(
        [*patches, *nodes],
        "capsules",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(c, name) for name, c in {"index": index, **constants}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def spellings() -> dict[str, onnx.ModelProto]:
    """A batched product and a sum; a broadcast product and a sum; one product."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((TO, FROM, WINDOW, WINDOW, POSE, POSE)).astype(np.float32)
    node = helper.make_node
    last = node("Transpose", ["patches"], ["t"], perm=[0, 1, 3, 5, 2, 4, 6, 7])
    batched = capsules(
        last,
        node("Reshape", ["t", "before"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("ReduceSum", ["m", "axes"], ["s"], keepdims=0),
        node("Reshape", ["s", "after"], ["y"]),
        w=w,
        before=np.array([BATCH, 1, FROM, WINDOW, WINDOW, OUT * OUT * POSE, POSE]),
        axes=np.array([2, 3, 4]),
        after=np.array([BATCH, TO, OUT, OUT, POSE, POSE]),
    )
    broadcast = capsules(
        last,
        node("Unsqueeze", ["t", "unit"], ["u"]),
        node("Mul", ["u", "w"], ["m"]),
        node("ReduceSum", ["m", "axes"], ["y"], keepdims=0),
        w=w[None, :, :, :, :, None, None, None, :, :],
        unit=np.array([1, 9]),
        axes=np.array([2, 3, 4, 8]),
    )
    length = FROM * WINDOW * WINDOW * POSE
    product = capsules(
        node("Transpose", ["patches"], ["t"], perm=[0, 2, 4, 6, 1, 3, 5, 7]),
        node("Reshape", ["t", "before"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("Reshape", ["m", "after"], ["s"]),
        node("Transpose", ["s"], ["y"], perm=[0, 4, 1, 2, 3, 5]),
        w=np.ascontiguousarray(w.transpose(1, 2, 3, 4, 0, 5)).reshape(length, TO * POSE),
        before=np.array([BATCH * OUT * OUT * POSE, length]),
        after=np.array([BATCH, OUT, OUT, POSE, TO, POSE]),
    )
    return {"batched": batched, "broadcast": broadcast, "product": product}


def test_three_spellings_of_a_capsule_layer_are_one_kernel(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((BATCH, FROM, SIZE, SIZE, POSE, POSE))
    x = x.astype(np.float32)
    kernels = []
    for name, model in spellings().items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        report = compile_model(path, path.with_suffix(".so"))
        with load(report.library, threads=1) as session:
            (got,) = session.run(None, {"x": x})
            kernels.append([k["symbol"] for k in session.manifest["kernels"]])
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        assert_agree(name, got, wanted, exact=False, reduction=FROM * WINDOW * WINDOW * POSE)
        assert report.arena_bytes == 0
    assert len(kernels[0]) == 1
    assert kernels[0] == kernels[1] == kernels[2]
