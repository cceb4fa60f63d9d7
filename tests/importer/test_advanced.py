"""Scatters, prefixes, sorting, quantisation, sampling, spectra, loops, standard functions."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.tensor_ir import Nest, Scan, While
from rutc.tensor_ir.expr import Apply, reads, walk
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.onnx_files import i64


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 6, 5)).astype("f4")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(axis, reduction, x, check, make_node, rng):
    n = x.shape[axis]
    at = np.argsort(rng.random((3, 5, 5)), axis=axis)[:3, :5, :4] - (n if axis == 0 else 0)
    inputs = {"x": x, "i": at, "u": rng.standard_normal(at.shape).astype("f4")}
    check(make_node("ScatterElements", ["x", "i", "u"], axis=axis, reduction=reduction), inputs)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_nd(reduction, x, check, make_node, rng):
    at = i64(0, 3, -1, 5, 2, -2).reshape(3, 2)
    updates = rng.standard_normal((3, 5)).astype("f4")
    inputs = {"x": x, "i": at, "u": updates}
    check(make_node("ScatterND", ["x", "i", "u"], reduction=reduction), inputs)


@pytest.mark.parametrize("length", [1, 5, 100])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumulative_sum(length, reverse, exclusive, check, make_node, rng):
    inputs = {"x": rng.standard_normal((3, length, 2)).astype("f4")}
    step = make_node("CumSum", ["x", "a"], reverse=reverse, exclusive=exclusive)
    graph = check(step, inputs, {"a": i64(-2).reshape(())})
    assert not any(isinstance(n, Scan) for n in graph.nodes)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("k", "axis"), [(3, -1), (1, 0), (6, 1), (0, 1)])
def test_top_k(largest, k, axis, check, make_node, rng):
    x = rng.integers(0, 4, (4, 6, 5)).astype("f4")
    step = make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)
    check(step, {"x": x}, {"k": i64(k)}, outputs=("v", "i"))


@pytest.mark.parametrize("kind", ["u1", "i1"])
@pytest.mark.parametrize("per_axis", [False, True])
def test_quantize(kind, per_axis, x, check, make_node, rng):
    size = (6,) if per_axis else ()
    scale = rng.uniform(0.01, 0.1, size).astype("f4")
    zero = rng.integers(0, 50, size).astype(kind)
    constants = {"s": scale, "z": zero}
    check(make_node("QuantizeLinear", ["x", "s", "z"]), {"x": x}, constants)
    stored = rng.integers(0, 120, x.shape).astype(kind)
    check(make_node("DequantizeLinear", ["x", "s", "z"]), {"x": stored}, constants)


def test_integer_products(check, make_node, rng):
    a = rng.integers(0, 255, (3, 5)).astype("u1")
    # Of larger ones ONNX Runtime's sums of two products saturate where a CPU lacks VNNI.
    w = rng.integers(-64, 64, (5, 4)).astype("i1")
    inputs = {"a": a, "b": w, "az": np.uint8(7).reshape(()), "bz": np.int8(-3).reshape(())}
    check(make_node("MatMulInteger", ["a", "b", "az", "bz"]), inputs)
    image = rng.integers(0, 255, (1, 3, 5, 5)).astype("u1")
    kernel = rng.integers(0, 255, (2, 3, 3, 3)).astype("u1")
    zeros = {"xz": np.uint8(9).reshape(()), "wz": np.uint8(4).reshape(())}
    step = make_node("ConvInteger", ["x", "w", "xz", "wz"], pads=[1, 1, 1, 1])
    check(step, {"x": image, "w": kernel}, zeros)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode, padding, align, check, make_node, rng):
    inputs = {
        "x": rng.standard_normal((2, 3, 5, 6)).astype("f4"),
        "g": rng.uniform(-1.4, 1.4, (2, 4, 3, 2)).astype("f4"),
    }
    step = make_node("GridSample", ["x", "g"], mode=mode, padding_mode=padding, align_corners=align)
    graph = check(step, inputs)
    # Places and weights are computed once for all channels.
    for n in graph.nodes:
        if isinstance(n, Nest) and any(r.value == "x" for e in n.body for r in reads(e)):
            around = [e for body in n.body for e in walk(body)]
            assert not any(isinstance(e, Apply) and e.op == "floor" for e in around)


@pytest.mark.parametrize("onesided", [0, 1])
def test_dft(onesided, check, make_node, rng):
    x = {"x": rng.standard_normal((2, 12, 1)).astype("f4")}
    check(make_node("DFT", ["x", "", "a"], onesided=onesided), x, {"a": i64(1).reshape(())})


@pytest.mark.parametrize(("have", "length"), [(120, None), (90, 128), (150, 105)])
@pytest.mark.parametrize(
    ("parts", "inverse", "onesided"), [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 0)]
)
def test_dft_of_factors(have, length, parts, inverse, onesided, check, make_node, rng):
    x = {"x": rng.standard_normal((2, have, 3, parts)).astype("f4")}
    constants = {"a": i64(1).reshape(())} | ({} if length is None else {"n": np.array(length)})
    names = ["x", "n" if "n" in constants else "", "a"]
    # ONNX Runtime's own angles of such lengths are rounded far more.
    signal = x["x"].astype("f8") @ np.array([1, 1j])[:parts]
    turned = np.fft.ifft(signal, length, 1) if inverse else np.fft.fft(signal, length, 1)
    shown = turned[:, : turned.shape[1] // 2 + 1 if onesided else None]
    want = np.stack([shown.real, shown.imag], -1).astype("f4")
    step = make_node("DFT", names, inverse=inverse, onesided=onesided)
    graph = check(step, x, constants, expected=[want])
    longest = max(prod(extents(graph, n)) for n in graph.nodes if isinstance(n, Nest))
    assert longest <= 2 * 21


@pytest.mark.parametrize("length", [128, 105])
def test_dft_back_from_one_side(length, check, make_node, rng):
    x = rng.standard_normal((2, length, 1)).astype("f4")
    spectrum = np.fft.rfft(x[..., 0]).astype("c8")
    parts = np.stack([spectrum.real, spectrum.imag], -1)
    constants = {"a": i64(1).reshape(()), "n": np.array(length)}
    step = make_node("DFT", ["x", "n", "a"], inverse=1, onesided=1)
    graph = check(step, {"x": parts}, constants, expected=[x])
    longest = max(prod(extents(graph, n)) for n in graph.nodes if isinstance(n, Nest))
    assert longest <= 2 * 21


def extents(graph, nest):
    """Those of the dims that a nest reduces over."""
    return [graph.extents[d].const for d in nest.bound]


def body(make_node, condition):
    """(trip, going, total) -> (going', total + x, total)."""
    nodes = [
        make_node("Add", ["total", "x"], ["next"]),
        make_node("Identity", ["next"], ["shown"]),
        *condition,
    ]
    inputs = [
        helper.make_tensor_value_info("trip", TensorProto.INT64, ()),
        helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("total", TensorProto.FLOAT, (3,)),
    ]
    outputs = [
        helper.make_tensor_value_info("going_on", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("next", TensorProto.FLOAT, (3,)),
        helper.make_tensor_value_info("shown", TensorProto.FLOAT, (3,)),
    ]
    return nodes, inputs, outputs


@pytest.mark.parametrize("trips", [1, 4])
def test_loop_with_known_trips(trips, check, make_node, rng):
    nodes, inputs, outputs = body(make_node, [make_node("Identity", ["going"], ["going_on"])])
    graph = helper.make_graph(nodes, "body", inputs, outputs)
    step = make_node("Loop", ["m", "c", "t"], ["last", "all"], body=graph)
    arrays = {n: rng.standard_normal(3).astype("f4") for n in ("x", "t")}
    constants = {"m": i64(trips).reshape(()), "c": np.array(True)}
    made = check(step, arrays, constants, outputs=("last", "all"))
    assert any(isinstance(n, Scan) for n in made.nodes) == (trips > 1)


@pytest.mark.parametrize("limit", [0, 2, 100])
def test_loop_until_a_condition(limit, check, make_node):
    condition = [
        make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
        make_node("Less", ["sum", "bound"], ["going_on"]),
    ]
    nodes, inputs, outputs = body(make_node, condition)
    graph = helper.make_graph(nodes, "body", inputs, outputs[:2])
    step = make_node("Loop", ["m", "", "t"], ["y"], body=graph)
    arrays = {
        "x": np.ones(3, "f4"),
        "t": np.zeros(3, "f4"),
        "bound": np.float32(20).reshape(()),
        "m": i64(limit).reshape(()),
    }
    made = check(step, arrays)
    assert any(isinstance(n, While) for n in made.nodes)


def test_scan(check, make_node, rng):
    shape = (3,)
    infos = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n in ("total", "part", "next", "shown")
    }
    nodes = [
        make_node("Add", ["total", "part"], ["next"]),
        make_node("Neg", ["next"], ["shown"]),
    ]
    graph = helper.make_graph(
        nodes, "body", [infos["total"], infos["part"]], [infos["next"], infos["shown"]]
    )
    step = make_node(
        "Scan",
        ["t", "x"],
        ["last", "all"],
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[-1],
    )
    inputs = {"t": np.zeros(3, "f4"), "x": rng.standard_normal((3, 5)).astype("f4")}
    check(step, inputs, outputs=("last", "all"))


@pytest.mark.parametrize("batch", [1, 3])
def test_scan_over_a_batch_as_opset_8_has_it(batch, check, make_node, rng):
    infos = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,))
        for n in ("total", "part", "next", "shown")
    }
    nodes = [make_node("Add", ["total", "part"], ["next"]), make_node("Neg", ["next"], ["shown"])]
    graph = helper.make_graph(
        nodes, "body", [infos["total"], infos["part"]], [infos["next"], infos["shown"]]
    )
    inputs = {
        "t": rng.standard_normal((batch, 2)).astype("f4"),
        "x": rng.standard_normal((batch, 4, 2)).astype("f4"),
    }
    options = {"body": graph, "num_scan_inputs": 1, "directions": [1]}
    step = make_node("Scan", ["", "t", "x"], ["last", "all"], **options)
    check(step, inputs, outputs=("last", "all"), opset=8)


def test_functions_of_the_standard_are_expanded(check, make_node, rng):
    q, k, v = (rng.standard_normal((2, 3, s, 4)).astype("f4") for s in (5, 7, 7))
    inputs = {"q": q, "k": k, "v": v}
    graph = check(make_node("Attention", list(inputs)), inputs, opset=23)
    assert all(n.origin == ("Attention_y",) for n in graph.nodes if isinstance(n, Nest))
    check(make_node("HannWindow", ["n"]), {}, {"n": i64(9).reshape(())})
    scores = {"s": rng.standard_normal((3, 5)).astype("f4"), "l": i64(1, 4, 0)}
    check(make_node("SoftmaxCrossEntropyLoss", ["s", "l"]), scores)


def test_sequences_are_resolved_at_import(x, check, make_node):
    nodes = [
        make_node("SplitToSequence", ["x", "s"], ["parts"], axis=1),
        make_node("SequenceAt", ["parts", "last"], ["tail"]),
        make_node("SequenceErase", ["parts", "last"], ["rest"]),
        make_node("SequenceInsert", ["rest", "tail", "first"], ["turned"]),
        make_node("SequenceLength", ["turned"], ["n"]),
        make_node("ConcatFromSequence", ["turned"], ["y"], axis=1),
    ]
    constants = {"s": i64(1, 3, 2), "last": i64(-1).reshape(()), "first": i64(0).reshape(())}
    check(nodes, {"x": x}, constants, outputs=("y", "n"))


def test_stacked_sequence(x, check, make_node):
    nodes = [
        make_node("SequenceConstruct", ["x", "x"], ["both"]),
        make_node("ConcatFromSequence", ["both"], ["y"], axis=-1, new_axis=1),
    ]
    check(nodes, {"x": x})


def test_parts_of_one_known_size(tmp_path, make_node):
    """Of however many parts, each has one row where the model fills the sizes with ones."""
    nodes = [
        make_node("Shape", ["x"], ["n"], start=0, end=1),
        make_node(
            "ConstantOfShape",
            ["n"],
            ["ones"],
            value=helper.make_tensor("", TensorProto.INT64, [1], [1]),
        ),
        make_node("SplitToSequence", ["x", "ones"], ["parts"], axis=0),
        make_node("SequenceAt", ["parts", "second"], ["row"]),
        make_node("Shape", ["row"], ["shape"]),
        make_node("Concat", ["shape", "shape"], ["y"], axis=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    constants = [numpy_helper.from_array(i64(1).reshape(()), "second")]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    g = import_model(tmp_path / "m.onnx")
    assert set(dict(g.symbols)) == {"n"}
    np.testing.assert_array_equal(interpret(g, {"x": np.ones((5, 3), "f4")})["y"], [1, 3, 1, 3])
