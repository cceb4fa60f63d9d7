"""Sizes of 1 that are found when the model runs are broadcast, against ONNX Runtime."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from rutc.runtime import ModelError
from tests.close import assert_close
from tests.run_time_sizes.test_computed_sizes import compiled

pytestmark = pytest.mark.sampled(3, whole=True)

Arrays = Mapping[str, np.ndarray]
KINDS = {"c": TensorProto.BOOL, "s": TensorProto.INT64}


def model_of(nodes: list[NodeProto], shapes: Mapping[str, list[str | int]]) -> onnx.ModelProto:
    """A model of inputs of symbolic sizes with the output y."""
    infos = [
        helper.make_tensor_value_info(n, KINDS.get(n, TensorProto.FLOAT), shape)
        for n, shape in shapes.items()
    ]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def check(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], folder: Path) -> int:
    """One library gives ONNX Runtime's results, and fails where that does; how often it failed."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options)
    failed = 0
    with compiled(model, folder) as session:
        for feed in feeds:
            sizes = {n: a.shape for n, a in feed.items()}
            try:
                (want,) = reference.run(None, feed)
            except (Fail, InvalidArgument, RuntimeException):
                failed += 1
                with pytest.raises(
                    ModelError, match=r"(N: the shapes .* do not broadcast|N: the si|input 'w')"
                ):
                    session.run(None, feed)
                continue
            (got,) = session.run(None, feed)
            assert got.shape == want.shape, sizes
            assert_close(got, want, reduction=1024, err_msg=str(sizes))
    return failed


def arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random inputs of these shapes."""
    rng = np.random.default_rng(0)
    made = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    return {n: a > 0 if n == "c" else a for n, a in made.items()}


def test_one_slope_for_each_column(tmp_path: Path) -> None:
    """A slope of another size's name belongs to the last axis, of which it may be 1."""
    node = helper.make_node("PRelu", ["x", "z"], ["y"], name="N")
    model = model_of([node], {"x": ["a", "b", "c"], "z": ["d"]})
    feeds = [arrays({"x": (3, 4, 5), "z": (n,)}) for n in (5, 1)]
    assert check(model, feeds, tmp_path) == 0


@pytest.mark.parametrize("op", ["Add", "Where", "Max"])
def test_elementwise(op: str, tmp_path: Path) -> None:
    """Both of the sizes 1 and 37, whole vectors and a part, on two axes of all operands."""
    names = "cxz" if op == "Where" else "xz"
    shapes: dict[str, list[str | int]] = {n: [f"{n}0", f"{n}1"] for n in names}
    model = model_of([helper.make_node(op, list(names), ["y"], name="N")], shapes)
    sizes = list(product((1, 37), repeat=2))
    feeds = [arrays(dict(zip(names, s, strict=True))) for s in product(sizes, repeat=len(names))]
    feeds.append(arrays(dict.fromkeys(names, (2, 5)) | {names[-1]: (2, 3)}))
    assert check(model, feeds, tmp_path) == 1


def test_a_fixed_size_stays_fixed(tmp_path: Path) -> None:
    """A size that meets the number 19 is 19 or 1; what follows needs the number."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["t"], name="N"),
        helper.make_node("MatMul", ["t", "w"], ["u"]),
        helper.make_node("Softmax", ["u"], ["y"], axis=0),
    ]
    shapes: dict[str, list[str | int]] = {"x": ["n", 19], "b": ["p", "q"], "w": [19, 8]}
    model = model_of(nodes, shapes)
    feeds = [
        arrays({"x": (n, 19), "b": b, "w": (19, 8)})
        for n, b in [
            (4, (4, 19)),
            (4, (1, 19)),
            (4, (4, 1)),
            (1, (5, 1)),
            (4, (3, 19)),
            (4, (4, 2)),
        ]
    ]
    assert check(model, feeds, tmp_path) == 2


@pytest.mark.parametrize("transposed", [False, True])
def test_stacks_of_matrices(transposed: bool, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="N")]
    if transposed:
        nodes = [
            helper.make_node("Transpose", ["w"], ["v"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["x", "v"], ["y"], name="N"),
        ]
    model = model_of(nodes, {"x": ["a", "h", "m", 16], "w": ["c", "g", "k", "n"]})
    last = (5, 16) if transposed else (16, 5)
    feeds = [
        arrays({"x": (*p, 7, 16), "w": (*q, *last)})
        for p, q in [((2, 3), (2, 3)), ((1, 3), (2, 1)), ((2, 1), (1, 3)), ((2, 3), (3, 3))]
    ]
    feeds.append(arrays({"x": (2, 3, 7, 16), "w": (2, 3, *[n + 1 for n in last])}))
    assert check(model, feeds, tmp_path) == 2


def test_expand(tmp_path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "s"], ["y"], name="N")]
    model = model_of(nodes, {"x": ["a", "b"], "s": [3]})
    feeds = [
        {**arrays({"x": x}), "s": np.array(s)}
        for x, s in [
            ((1, 21), (2, 3, 1)),
            ((3, 1), (1, 1, 33)),
            ((3, 5), (2, 1, 5)),
            ((1, 1), (4, 1, 1)),
            ((2, 5), (2, 3, 5)),
        ]
    ]
    assert check(model, feeds, tmp_path) == 1


def test_a_mask_before_a_softmax(tmp_path: Path) -> None:
    """Scores plus a mask, whose size the model does not relate to that of the keys."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["p"], name="N"),
        helper.make_node("Add", ["p", "m"], ["s"], name="N2"),
        helper.make_node("Softmax", ["s"], ["w"], axis=-1),
        helper.make_node("MatMul", ["w", "v"], ["y"], name="N3"),
    ]
    shapes: dict[str, list[str | int]] = {
        "q": ["batch", 2, "steps", 8],
        "k": ["batch", 2, 8, "keys"],
        "m": ["masks", 1, "rows", "total"],
        "v": ["batch", 2, "keys", 8],
    }
    feeds = [
        arrays({"q": (b, 2, s, 8), "k": (b, 2, 8, n), "m": m, "v": (b, 2, n, 8)})
        for b, s, n, m in [
            (2, 5, 23, (2, 1, 5, 23)),
            (2, 5, 23, (1, 1, 1, 23)),
            (1, 1, 40, (1, 1, 1, 40)),
            (2, 4, 7, (2, 1, 4, 1)),
            (1, 1, 1, (1, 1, 1, 1)),
        ]
    ]
    assert check(model_of(nodes, shapes), feeds, tmp_path) == 0


def test_a_size_of_zero(tmp_path: Path) -> None:
    """0 and 1 give 0, as everywhere; a size is found by a selection."""
    nodes = [
        helper.make_node("Compress", ["x", "c"], ["t"], axis=0),
        helper.make_node("Add", ["t", "z"], ["y"], name="N"),
    ]
    model = model_of(nodes, {"x": [5], "c": [5], "z": ["n"]})
    feeds = []
    for chosen, n in [(0, 1), (1, 1), (1, 4), (3, 1), (3, 3), (0, 0), (1, 0), (3, 4)]:
        feed = arrays({"x": (5,), "z": (max(n, 1),)})
        feeds += [{**feed, "c": np.arange(5) < chosen}] * (n > 0)
    assert check(model, feeds, tmp_path) == 1


def test_a_product_plus_what_may_be_a_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["a", "b", "d"], ["y"], name="N", transB=1)]
    model = model_of(nodes, {"a": ["m", 6], "b": ["n", 6], "d": ["p", "q"]})
    feeds = [
        arrays({"a": (3, 6), "b": (19, 6), "d": d})
        for d in [(3, 19), (1, 19), (3, 1), (1, 1), (2, 1)]
    ]
    assert check(model, feeds, tmp_path) == 1


def test_einsum(tmp_path: Path) -> None:
    nodes = [helper.make_node("Einsum", ["a", "b"], ["y"], name="N", equation="bij,bjk->bik")]
    model = model_of(nodes, {"a": ["p", 3, "j"], "b": ["q", "k", 20]})
    feeds = [
        arrays({"a": a, "b": b})
        for a, b in [
            ((2, 3, 9), (2, 9, 20)),
            ((1, 3, 9), (2, 9, 20)),
            ((2, 3, 9), (1, 9, 20)),
            ((3, 3, 9), (2, 9, 20)),
        ]
    ]
    assert check(model, feeds, tmp_path) == 1
