"""Operands that name axes and are inputs of the model, against ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from rutc.driver.api import compile
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.runtime import ModelError, load
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.onnx_files import i64
from tests.run_time_sizes.test_computed_sizes import compiled

REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.fixture
def x(rng):
    return rng.random((4, 3, 1, 5)).astype("f4")


@pytest.mark.parametrize("axes", [(1,), (-1, 0), (3, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op, keepdims, axes, x, check, make_node):
    node = make_node(f"Reduce{op}", ["x", "axes"], keepdims=keepdims)
    check(node, {"x": x, "axes": i64(*axes)})


@pytest.mark.parametrize("axes", [(2,), (-1, 0), (4, 0, 3)])
def test_unsqueeze(axes, x, check, make_node):
    check(make_node("Unsqueeze", ["x", "axes"]), {"x": x[0, ..., 0], "axes": i64(*axes)})


@pytest.mark.parametrize("axes", [(2,), (-1, 0), (0, 2, 4)])
def test_squeeze(axes, x, check, make_node):
    check(make_node("Squeeze", ["x", "axes"]), {"x": x[None, 0][..., None], "axes": i64(*axes)})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumulative_sums(axis, reverse, exclusive, x, check, make_node):
    node = make_node("CumSum", ["x", "axis"], reverse=reverse, exclusive=exclusive)
    check(node, {"x": x[:, :, 0], "axis": np.array(axis)})


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1,), (3,), (0,), (1,)),
        ((4, 2), (-6, 0), (-1, 1), (-2, -1)),
        ((0, 0, 0), (99, 99, 99), (3, 0, 1), (3, 2, 1)),
        ((-1, 2), (-99, 9), (1, 0), (-1, 5)),
    ],
)
@pytest.mark.parametrize("fixed", ["", "axes", "steps", "starts"])
def test_slice(starts, ends, axes, steps, fixed, x, check, make_node):
    names = ("starts", "ends", "axes", "steps")
    inputs = {"x": x}
    for name, values in zip(names, (starts, ends, axes, steps), strict=True):
        inputs[name] = i64(*values)
    constants = {fixed: inputs.pop(fixed)} if fixed else {}
    check(make_node("Slice", ["x", *names]), inputs, constants)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("axes", [(0, 1), (-1, 0), (3, 1)])
def test_pad(mode, axes, x, check, make_node):
    node = make_node("Pad", ["x", "pads", "", "axes"], mode=mode)
    check(node, {"x": x, "pads": i64(1, 2, 0, 1), "axes": i64(*axes)})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_one_library_for_all_axes(keepdims, rng, tmp_path, make_node):
    """Sums over any two axes of symbolic extents, the mean taken off, sliced along any axis."""
    nodes = [
        make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
        make_node("Sub", ["x", "m"], ["d"]),
        make_node("ReduceSumSquare", ["d", "axes"], ["v"], keepdims=keepdims),
        make_node("CumSum", ["d", "axis"], ["c"]),
        make_node("Slice", ["c", "s", "e", "axis1", "t"], ["p"]),
    ]
    integers = {"axes": [2], "axis": [], "s": [1], "e": [1], "axis1": [1], "t": [1]}
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c"])]
    infos += [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in integers.items()]
    results = [onnx.ValueInfoProto(name=n) for n in ("v", "c", "p")]
    graph = helper.make_graph(nodes, "g", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with compiled(model, tmp_path) as session:
        for shape, axes, axis, cut in [
            ((3, 7, 37), (0, 2), 1, (0, 5, 2)),
            ((3, 7, 37), (-1, 1), 0, (-1, -9, -1)),
            ((1, 40, 2), (1, 0), -1, (1, 9, 1)),
        ]:
            feed = {"x": rng.random(shape).astype("f4"), "axes": i64(*axes)}
            feed |= {"axis": np.array(axis), "axis1": i64(axis)}
            feed |= dict(zip("set", map(i64, cut), strict=True))
            for got, want in zip(session.run(None, feed), reference.run(None, feed), strict=True):
                assert_close(got, want, level=Level.MODEL)
        with pytest.raises(ModelError, match="the axes are not 2 different ones of 3"):
            session.run(None, {**feed, "axes": i64(1, -2)})
        with pytest.raises(ModelError, match="the axis is none of 3"):
            session.run(None, {**feed, "axis": np.array(3)})


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("ReduceSum", {"a": i64(4)}, "ReduceSum_y: the axes are not 1 different ones of 4"),
        ("Squeeze", {"a": i64(0)}, "the axes are not 1 different ones of extent 1 of 4"),
        ("Unsqueeze", {"a": i64(0, 0)}, "the axes are not 2 different ones of 6"),
    ],
)
def test_other_axes_end_the_run(op, inputs, message, x, tmp_path, make_node, make_model):
    feed = {"x": x, **inputs}
    onnx.save(make_model([make_node(op, ["x", "a"])], feed, ["y"], {}), tmp_path / "m.onnx")
    with pytest.raises(UserError, match=message):
        interpret(import_model(tmp_path / "m.onnx"), feed)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 7), (2, 1, 1, 4), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("fixed", [False, True])
def test_affine_grid(fixed, size, align_corners, check, make_node, rng):
    if align_corners and 1 in size[2:]:
        pytest.skip("ONNX Runtime divides by 0 for one element between two corners")
    rank = len(size) - 2
    theta = rng.standard_normal((2, rank, rank + 1)).astype("f4")
    node = make_node("AffineGrid", ["theta", "size"], align_corners=align_corners)
    given = {"size": i64(*size)}
    check(node, {"theta": theta, **({} if fixed else given)}, given if fixed else None)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("inverse", "onesided"), [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("length", [None, 5, 8])
def test_fourier_transforms(length, inverse, onesided, parts, axis, check, make_node, rng):
    """The axis and the length are told in the run."""
    if onesided and parts == 2:
        pytest.skip("a spectrum of complex numbers has two sides")
    inputs = {"x": rng.standard_normal((6, 7, parts)).astype("f4"), "axis": np.array(axis)}
    if length is not None:
        inputs["n"] = np.array(length)
    names = ["x", "n" if length is not None else "", "axis"]
    check(make_node("DFT", names, inverse=inverse, onesided=onesided), inputs)


@pytest.mark.parametrize(("step", "length"), [(3, 8), (1, 5), (8, 8)])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_short_time_transforms(windowed, onesided, step, length, check, make_node, rng):
    inputs = {
        "x": rng.standard_normal((2, 29, 1)).astype("f4"),
        "step": np.array(step),
        **({"w": rng.random(length).astype("f4")} if windowed else {}),
        "n": np.array(length),
    }
    node = make_node("STFT", ["x", "step", "w" if windowed else "", "n"], onesided=onesided)
    check(node, inputs)


def test_short_time_transforms_of_a_signal_without_parts(check, make_node, rng):
    """PyTorch exports {batch, t} for real numbers."""
    inputs = {"x": rng.standard_normal((2, 29)).astype("f4"), "step": np.array(3)}
    check(make_node("STFT", ["x", "step", "", "n"]), {**inputs, "n": np.array(8)})


def test_mel_weights(check, make_node):
    names = ["bins", "n", "rate", "low", "high"]
    values = [np.array(v) for v in (8, 16, 8192)] + [np.array(v, "f4") for v in (0, 4000)]
    check(make_node("MelWeightMatrix", names), dict(zip(names, values, strict=True)))


ELEMENTWISE = "e = Sigmoid (s) y = Mul (e, half)"


def squeezing(path: Path, rank: int, rest: str) -> Path:
    """A model that leaves out all axes of extent 1, with an output of that declared rank."""
    text = f"g (float[a, 1, b] x) => (float y) <float half = {{0.5}}> {{ s = Squeeze (x) {rest} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"][:rank])
    model.graph.output[0].CopyFrom(declared)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("rank", [0, 1])
def test_models_may_declare_the_rank_of_some_runs(rank, tmp_path):
    """Exported at sizes of 1, they leave out axes that they keep at others."""
    path = squeezing(tmp_path / "m.onnx", rank, ELEMENTWISE)
    oracle = onnxruntime.InferenceSession(path)
    with load(compile(path, tmp_path / "m.so").library) as session:
        for shape in [(4, 1, 3), (4, 1, 1), (1, 1, 3), (1, 1, 1)]:
            x = np.random.default_rng(0).random(shape, np.float32)
            (want,) = oracle.run(None, {"x": x})
            (got,) = session.run(None, {"x": x})
            assert got.shape == want.shape
            assert_close(got, want)


@pytest.mark.parametrize(
    ("rank", "rest"),
    [
        (2, ELEMENTWISE),
        # What needs to know the rank has the one of most runs.
        (0, "y = Softmax (s)"),
    ],
)
def test_axes_stay_where_nothing_may_leave_them_out(rank, rest, tmp_path):
    graph = import_model(squeezing(tmp_path / "m.onnx", rank, rest))
    x = np.random.default_rng(0).random((4, 1, 3), np.float32)
    (y,) = interpret(graph, {"x": x}).values()
    assert y.shape == (4, 3)
    with pytest.raises(UserError, match="name the axes to leave out"):
        interpret(graph, {"x": x[:1]})
