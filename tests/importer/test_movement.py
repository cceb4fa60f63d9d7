"""Views, cuts, joins, pads, gathers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rutc.importer import import_model
from rutc.tensor_ir import Nest, Read
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.onnx_files import i64


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 6, 5)).astype("f4")


@pytest.mark.parametrize(
    "shape",
    [(24, 5), (4, 2, 3, 5), (2, 2, 6, 5), (120,), (-1, 10), (0, -1), (5, 24), (1, 4, 1, 30, 1)],
)
def test_reshape(shape, x, check, make_node):
    check(make_node("Reshape", ["x", "s"]), {"x": x}, {"s": i64(*shape)})


def test_what_is_padded_to_a_multiple_is_split(tmp_path):
    """n rounded up to a multiple of 256 by way of max(n, 256), as some exports do it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Max", ["n", "frame"], ["long"]),
        helper.make_node("Sub", ["long", "n"], ["short"]),
        helper.make_node("Concat", ["none", "short"], ["first"], axis=0),
        helper.make_node("Pad", ["x", "first"], ["wide"]),
        helper.make_node("Add", ["long", "most"], ["more"]),
        helper.make_node("Div", ["more", "frame"], ["frames"]),
        helper.make_node("Mul", ["frames", "frame"], ["whole"]),
        helper.make_node("Sub", ["whole", "long"], ["rest"]),
        helper.make_node("Concat", ["none", "rest"], ["second"], axis=0),
        helper.make_node("Pad", ["wide", "second"], ["padded"]),
        helper.make_node("Reshape", ["padded", "split"], ["y"]),
    ]
    constants = {"frame": [256], "most": [255], "none": [0], "split": [-1, 256]}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    inner = helper.make_graph(
        nodes,
        "g",
        [x],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.array(a), n) for n, a in constants.items()],
    )
    made = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    for n in (1, 255, 256, 257, 1000):
        values = np.arange(1, n + 1, dtype=np.float32)
        y = interpret(graph, {"x": values})["y"]
        assert y.shape == (-(-max(n, 256) // 256), 256)
        assert (y.reshape(-1)[:n] == values).all()
        assert not y.reshape(-1)[n:].any()


def test_split_and_merge_read_affinely(x, check, make_node):
    nodes = [
        make_node("Relu", ["x"], ["r"]),
        make_node("Reshape", ["r", "s"], ["t"]),
        make_node("Relu", ["t"]),
    ]
    graph = check(nodes, {"x": x}, {"s": i64(4, 2, 3, 5)})
    (view,) = [n for n in graph.nodes if isinstance(n, Nest) and n.is_view]
    assert "//" not in str(view.body[0])
    assert "%" not in str(view.body[0])


@pytest.mark.parametrize("perm", [(0, 1, 2), (2, 0, 1), (1, 0, 2), None])
def test_transpose(perm, x, check, make_node):
    attributes = {} if perm is None else {"perm": perm}
    graph = check(make_node("Transpose", ["x"], **attributes), {"x": x})
    assert all(isinstance(n.body[0], Read) for n in graph.nodes if isinstance(n, Nest))


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1, 0), (3, 5), (0, 1), (1, 1)),
        ((-3,), (-1,), (1,), (1,)),
        ((10,), (0,), (1,), (-2,)),
        ((-1,), (-(1 << 62),), (2,), (-1,)),
        ((0, 1), (1 << 62, 100), (-1, 0), (2, 3)),
        ((3,), (1,), (0,), (1,)),
    ],
)
def test_slice(starts, ends, axes, steps, x, check, make_node):
    constants = {"s": i64(*starts), "e": i64(*ends), "a": i64(*axes), "t": i64(*steps)}
    check(make_node("Slice", ["x", "s", "e", "a", "t"]), {"x": x}, constants)


def test_split(x, check, make_node):
    step = make_node("Split", ["x", "s"], ["a", "b", "c"], axis=1)
    check(step, {"x": x}, {"s": i64(1, 3, 2)}, outputs=("a", "b", "c"))
    step = make_node("Split", ["x"], ["a", "b"], axis=-1, num_outputs=2)
    check(step, {"x": x}, outputs=("a", "b"))


@pytest.mark.parametrize("axis", [0, 1])
def test_concat_of_operands_beyond_number(axis, check, make_node, rng):
    arrays = {f"x{k}": rng.standard_normal((2, 2)).astype("f4") for k in range(1500)}
    check(make_node("Concat", list(arrays), axis=axis), arrays)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis, x, check, make_node, rng):
    shape = list(x.shape)
    shape[axis] = 1
    inputs = {"a": x, "b": rng.standard_normal(shape).astype("f4"), "c": x + 1}
    check(make_node("Concat", ["a", "b", "c"], axis=axis), inputs)
    shape[axis] = 0
    inputs["b"] = np.zeros(shape, "f4")
    check(make_node("Concat", ["a", "b", "c"], axis=axis), inputs)


def test_units(x, check, make_node):
    one = x[:, :1]
    check(make_node("Squeeze", ["x", "a"]), {"x": one}, {"a": i64(-2)})
    check(make_node("Squeeze", ["x"]), {"x": one})
    check(make_node("Unsqueeze", ["x", "a"]), {"x": x}, {"a": i64(0, -1)})
    check(make_node("Flatten", ["x"], axis=2), {"x": x})
    check(make_node("Expand", ["x", "s"]), {"x": one}, {"s": i64(2, 1, 3, 1)})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 0, 2, 0, 2, 1), (3, 0, 0, 2, 0, 0)])
def test_pad(mode, pads, x, check, make_node):
    check(make_node("Pad", ["x", "p"], mode=mode), {"x": x}, {"p": i64(*pads)})


def test_pad_value_and_axes(x, check, make_node):
    constants = {"p": i64(1, -1, 2, 0), "v": np.float32(7).reshape(()), "a": i64(2, 0)}
    check(make_node("Pad", ["x", "p", "v", "a"]), {"x": x}, constants)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("at", [i64(0, -1, 2), i64(1).reshape(()), i64(0, 3, 1, -2).reshape(2, 2)])
def test_gather(axis, at, x, check, make_node):
    check(make_node("Gather", ["x", "i"], axis=axis), {"x": x, "i": at})
    check(make_node("Gather", ["x", "i"], axis=axis), {"x": x}, {"i": at})


def test_other_gathers(x, check, make_node, rng):
    at = rng.integers(-4, 4, (2, 6, 5))
    check(make_node("GatherElements", ["x", "i"], axis=0), {"x": x, "i": at})
    at = rng.integers(-4, 4, (3, 2))
    check(make_node("GatherND", ["x", "i"]), {"x": x, "i": at})
    at = rng.integers(-5, 5, (4, 3, 1))
    check(make_node("GatherND", ["x", "i"], batch_dims=1), {"x": x, "i": at})


def test_index_operators(x, check, make_node):
    check(make_node("EyeLike", ["x"], k=1), {"x": x[0]})
    constants = {"d": i64(5).reshape(()), "v": np.array([-1, 2], "f4")}
    check(make_node("OneHot", ["i", "d", "v"], axis=1), {"i": i64(0, -1, 4, 9)}, constants)
    check(
        make_node("ReverseSequence", ["x", "l"], batch_axis=1, time_axis=0),
        {"x": x, "l": i64(4, 1, 2, 3, 4, 2)},
    )
    check(make_node("Tile", ["x", "r"]), {"x": x}, {"r": i64(2, 1, 3)})


def test_depth_and_space(check, make_node, rng):
    x = {"x": rng.standard_normal((2, 8, 4, 6)).astype("f4")}
    check(make_node("SpaceToDepth", ["x"], blocksize=2), x)
    for mode in ("DCR", "CRD"):
        check(make_node("DepthToSpace", ["x"], blocksize=2, mode=mode), x)


RESIZES = [
    ("nearest", "asymmetric", {"nearest_mode": "floor"}),
    ("nearest", "half_pixel", {}),
    ("linear", "half_pixel", {}),
    ("linear", "align_corners", {}),
    ("linear", "pytorch_half_pixel", {}),
    ("cubic", "half_pixel", {}),
    ("cubic", "asymmetric", {"cubic_coeff_a": -0.5, "exclude_outside": 1}),
]


@pytest.mark.parametrize(("mode", "coordinates", "attributes"), RESIZES)
@pytest.mark.parametrize("size", [(8, 12), (7, 3), (4, 6)])
def test_resize(mode, coordinates, attributes, size, check, make_node, rng):
    x = {"x": rng.standard_normal((1, 2, 4, 6)).astype("f4")}
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **attributes}
    step = make_node("Resize", ["x", "", "", "s"], **attributes)
    check(step, x, {"s": i64(1, 2, *size)})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("extent", "scale"), [(5, 1.3), (7, 0.6), (6, 1.75), (9, 0.45)])
def test_corners_are_those_of_scale_times_extent(
    mode, extent, scale, check, make_node, make_model, rng
):
    """Also where that is a fraction, by the standard: not those of the result's whole elements.

    ONNX Runtime takes the latter.
    """
    x = {"x": rng.standard_normal((1, 1, extent, extent)).astype("f4")}
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    step, scales = make_node("Resize", ["x", "", "s"], **attributes), np.array([1, 1, scale, scale])
    constants = {"s": scales.astype("f4")}
    expected = ReferenceEvaluator(make_model([step], x, ["y"], constants)).run(None, x)
    check(step, x, constants, expected=expected)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["u1", "f2"])
def test_numbers_are_rounded_once_after_all_axes(known, kind, check, make_node, make_model):
    # Beyond the edge of the first row its interpolation is far below 0.
    x = np.array([[0, 255, 255, 0], *[[0, 0, 255, 0]] * 3]).reshape(1, 1, 4, 4).astype(kind)
    step = make_node("Resize", ["x", "", "", "s"], mode="cubic")
    wide, size = {"x": x.astype("f8")}, {"s": i64(1, 1, 7, 9)}
    (y,) = ReferenceEvaluator(make_model([step], wide, ["y"], size)).run(None, wide)
    y = np.rint(y).clip(0, 255) if kind == "u1" else y
    given, constants = ({"x": x}, size) if known else ({"x": x, **size}, {})
    check(step, given, constants, expected=[y.astype(kind)], steps=kind == "u1")


def test_resize_by_whole_scales_is_a_view(check, make_node, rng):
    x = {"x": rng.standard_normal((1, 2, 4, 6)).astype("f4")}
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    step = make_node("Resize", ["x", "", "s"], **attributes)
    graph = check(step, x, {"s": np.array([1, 1, 2, 3], "f4")})
    assert all(n.is_view for n in graph.nodes if isinstance(n, Nest))
