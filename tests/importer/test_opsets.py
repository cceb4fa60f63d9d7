"""Models of old opsets: for every change of an operator's signature, a model from before it.

Each case uses what the newer definition took away, moved or gave another default; the oracle runs
the model as its own opset defines it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import get_schema
from onnx.reference import ReferenceEvaluator

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.opsets.convert import OPSET, _is_changed
from rutc.importer.reading.proto import subgraphs
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close

X = np.random.default_rng(0).standard_normal((2, 6, 8, 8)).astype("f4")
M = np.random.default_rng(1).standard_normal((4, 6)).astype("f4")
T = np.random.default_rng(2).standard_normal((2, 3, 5)).astype("f4")
TIES = np.array([[1, 3, 3], [2, 2, 0]], "f4")
BYTES = np.random.default_rng(3).integers(0, 255, (3, 4)).astype("u1")
SERIES = np.random.default_rng(4).standard_normal((4, 2, 3)).astype("f4")


def floats(*values):
    return np.array(values, "f4")


def ints(*values):
    return np.array(values, "i8")


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


@dataclass(frozen=True)
class Case:
    """One node of an old opset: its inputs in order (arrays, or None), constants and attributes."""

    op: str
    opset: int
    inputs: tuple = ()
    constants: tuple = ()
    attributes: dict = field(default_factory=dict)
    outputs: int = 1
    reference: bool = False

    def __str__(self) -> str:
        options = "-".join(f"{k}={v}" for k, v in self.attributes.items() if np.isscalar(v))
        return f"{self.op}-{self.opset}" + (f"-{options}" if options else "")


def reductions(op, opset):
    return [
        Case(op, opset, (np.abs(T),), (), {"axes": [0, -1], "keepdims": 0}),
        Case(op, opset, (np.abs(T),), (), {"axes": [1]}),
        Case(op, opset, (np.abs(T),)),
    ]


def weights(gates, directions=1):
    rows = gates * 5
    return normal(directions, rows, 3), normal(directions, rows, 5), normal(directions, 2 * rows)


IMAGE = np.random.default_rng(5).standard_normal((1, 1, 4, 4)).astype("f4")
GRID = np.random.default_rng(6).uniform(-1.2, 1.2, (1, 3, 5, 2)).astype("f4")
SCALES = floats(1, 1, 1.5, 2)
CASES = [
    Case("ArgMax", 11, (TIES,), (), {"axis": 1}),
    Case("ArgMin", 11, (-TIES,), (), {"axis": 0, "keepdims": 0}),
    Case("Attention", 23, (normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4))),
    Case(
        "Attention",
        24,
        (normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4), None, None, None, ints(4, 3)),
        (),
        {"is_causal": 1},
        reference=True,
    ),
    Case("AveragePool", 9, (X,), (), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    Case("AveragePool", 18, (X,), (), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("BatchNormalization", 8, (X,), tuple(np.abs(normal(6)) for _ in range(4)), {"spatial": 1}),
    Case("BatchNormalization", 13, (X,), tuple(np.abs(normal(6)) for _ in range(4))),
    Case("BatchNormalization", 14, (X,), tuple(np.abs(normal(6)) for _ in range(4))),
    Case("Cast", 8, (T * 100,), (), {"to": TensorProto.INT32}),
    Case("Cast", 18, (T,), (), {"to": TensorProto.FLOAT16}),
    Case("Cast", 23, (T,), (), {"to": TensorProto.FLOAT8E4M3FN, "saturate": 0}, reference=True),
    Case("CastLike", 18, (T, np.zeros(1, "f8")), reference=True),
    Case("CastLike", 23, (T, np.zeros(1, "f2")), reference=True),
    Case("Clip", 10, (X,), (), {"min": -0.5, "max": 0.7}),
    Case("Clip", 7, (X,), (), {"max": 0.7}),
    Case("Constant", 10, (), (), {"value": numpy_helper.from_array(T)}),
    Case("Constant", 11, (), (), {"value": numpy_helper.from_array(TIES)}),
    Case("DFT", 19, (T[..., None],), (), {"axis": 2}),
    Case("DFT", 17, (T[..., None],), (), {"axis": 1, "onesided": 1}),
    Case("DFT", 17, (normal(2, 6, 2),), (), {"inverse": 1}),
    Case("DepthToSpace", 10, (normal(1, 8, 2, 3),), (), {"blocksize": 2}),
    Case("DequantizeLinear", 12, (BYTES,), (floats(0.1)[0], np.uint8(3)), {}),
    Case("DequantizeLinear", 20, (BYTES,), (floats(0.1, 0.2, 1, 2), None), {"axis": 1}),
    Case("DequantizeLinear", 22, (BYTES,), (normal(3, 2), None), {"axis": 1, "block_size": 2}),
    Case("Dropout", 11, (X,), (), {"ratio": 0.3}),
    Case("Dropout", 9, (X,), (), {"ratio": 0.3}, outputs=2),
    Case("GRU", 13, (SERIES,), weights(3), {"hidden_size": 5}, outputs=2),
    Case("GatherND", 11, (X,), (ints([0, 1], [1, 2]),)),
    Case("Gemm", 10, (M, normal(6, 3), normal(3)), (), {"alpha": 0.5, "beta": 2.0}),
    Case("Gemm", 10, (M, normal(3, 6), normal(1, 3)), (), {"transB": 1}),
    Case("GridSample", 19, (IMAGE, GRID), (), {"mode": "bilinear"}),
    Case("GridSample", 19, (IMAGE, GRID), (), {"mode": "bicubic", "padding_mode": "border"}),
    Case("GridSample", 16, (IMAGE, GRID), (), {"mode": "nearest"}),
    Case("Hardmax", 12, (T,), (), {"axis": 1}),
    Case("Hardmax", 8, (T,)),
    Case("LSTM", 13, (SERIES,), weights(4), {"hidden_size": 5}, outputs=3),
    Case("LogSoftmax", 12, (T,), (), {"axis": 1}),
    Case("LogSoftmax", 9, (T,)),
    Case("LpPool", 17, (X,), (), {"kernel_shape": [3, 3], "p": 3, "pads": [1, 1, 1, 1]}),
    Case("MaxPool", 7, (X,), (), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
    Case("MaxPool", 9, (X,), (), {"kernel_shape": [2, 2], "storage_order": 1}, outputs=2),
    Case("MaxPool", 9, (X,), (), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    Case("OptionalHasElement", 17, (T,), reference=True),
    Case("Pad", 10, (M,), (), {"pads": [1, 0, 2, 3], "value": 1.5}),
    Case("Pad", 8, (M,), (), {"pads": [1, 0, 2, 3], "mode": "reflect"}),
    Case("Pad", 17, (M,), (ints(0, 1, 1, 0), floats(7)[0])),
    Case("QuantizeLinear", 12, (M,), (floats(0.1)[0], np.uint8(9))),
    Case("QuantizeLinear", 18, (M,), (np.abs(normal(6)), np.zeros(6, "i1")), {"axis": 1}),
    Case("QuantizeLinear", 20, (M,), (floats(0.05)[0], np.int8(-3)), {"saturate": 1}),
    Case(
        "QuantizeLinear",
        22,
        (M,),
        (np.abs(normal(4, 3)), np.zeros((4, 3), "u1")),
        {"axis": 1, "block_size": 2},
    ),
    Case("RNN", 13, (SERIES,), weights(1), {"hidden_size": 5}, outputs=2),
    Case("Range", 26, (), (floats(1)[0], floats(7)[0], floats(1.5)[0])),
    *reductions("ReduceL1", 17),
    *reductions("ReduceL2", 13),
    *reductions("ReduceLogSum", 17),
    *reductions("ReduceLogSumExp", 17),
    Case("ReduceLogSum", 11, (ints((3, 1), (200, 5)),), (), {"axes": [1]}),
    Case("ReduceLogSumExp", 17, (ints((3, 1), (7, 5)),), (), {"axes": [1]}),
    *reductions("ReduceMax", 17),
    *reductions("ReduceMean", 13),
    *reductions("ReduceMean", 10),
    *reductions("ReduceSumSquare", 8),
    *reductions("ReduceLogSumExp", 11),
    *reductions("ReduceMin", 13),
    *reductions("ReduceProd", 17),
    *reductions("ReduceSum", 12),
    *reductions("ReduceSumSquare", 17),
    Case("Reshape", 13, (T,), (ints(0, -1),)),
    Case("Resize", 10, (IMAGE,), (SCALES,), {"mode": "linear"}),
    Case("Resize", 10, (IMAGE,), (SCALES,), {"mode": "nearest"}),
    Case("Resize", 10, (IMAGE,), (floats(1, 1, 0.5, 3),), {"mode": "nearest"}),
    Case(
        "Resize",
        12,
        (IMAGE,),
        (floats(), SCALES),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    Case(
        "Resize",
        12,
        (IMAGE,),
        (floats(), floats(), ints(1, 1, 7, 6)),
        {"mode": "cubic", "cubic_coeff_a": -0.5},
    ),
    *(
        Case(
            "Resize",
            opset,
            (IMAGE,),
            (floats(), *sizes),
            {
                "mode": "nearest",
                "coordinate_transformation_mode": "tf_half_pixel_for_nn",
                "nearest_mode": rounding,
            },
        )
        for opset in (11, 12)
        for rounding in ("floor", "round_prefer_floor")
        for sizes in ((SCALES,), (floats(1, 1, 0.5, 3),), (floats(), ints(1, 1, 7, 3)))
    ),
    Case("Resize", 17, (IMAGE,), (None, SCALES), {"mode": "nearest", "nearest_mode": "ceil"}),
    Case(
        "RoiAlign",
        15,
        (X, np.array([[0, 0, 4, 5], [1, 2, 6, 6]], "f4"), ints(0, 1)),
        (),
        {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
    ),
    Case("ScatterElements", 15, (M, np.array([[0, 1, 3, 2, 1, 0]]), normal(1, 6))),
    Case("ScatterND", 15, (M, np.array([[0], [2]]), normal(2, 6))),
    Case("Shape", 14, (X,)),
    Case("Slice", 9, (X,), (), {"axes": [1, 3], "starts": [1, -4], "ends": [4, 100]}),
    Case("Slice", 8, (X,), (), {"starts": [0, 1], "ends": [1, -1]}),
    Case("Softmax", 12, (T,)),
    Case("Softmax", 8, (T,), (), {"axis": 0}),
    Case("Softmax", 11, (T,), (), {"axis": -1}),
    Case("SpaceToDepth", 25, (normal(1, 2, 4, 6),), (), {"blocksize": 2}),
    Case("Split", 12, (X,), (), {"axis": 1, "split": [1, 3, 2]}, outputs=3),
    Case("Split", 10, (X,), (), {"axis": 2}, outputs=2),
    Case("Split", 17, (X,), (), {"axis": 1}, outputs=3),
    Case("Split", 13, (X,), (ints(2, 4),), {"axis": 1}, outputs=2),
    Case("Squeeze", 12, (X[:1, None],), (), {"axes": [0, 1]}),
    Case("Squeeze", 9, (X[:1, None],)),
    Case("TopK", 9, (M,), (), {"k": 3, "axis": 1}, outputs=2),
    Case("TopK", 10, (M,), (ints(2),), {"axis": 0}, outputs=2),
    Case("Unsqueeze", 12, (M,), (), {"axes": [0, 3]}),
    Case("Unsqueeze", 9, (M,), (), {"axes": [1]}),
    Case("Upsample", 8, (IMAGE,), (), {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]}),
    Case("Upsample", 9, (IMAGE,), (SCALES,), {"mode": "nearest"}),
    # The signature stayed, the meaning changed.
    Case("Mod", 25, (M, np.abs(normal(4, 6)) + 1), (), {"fmod": 1}),
    Case("Mod", 12, (ints(-7, 7, 5), ints(3, -3, 2))),
    Case("BitShift", 25, (BYTES, BYTES % 9), (), {"direction": "LEFT"}),
    Case("BitShift", 11, (BYTES, BYTES % 8), (), {"direction": "RIGHT"}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_model_of_an_old_opset(case, check, make_node, make_model):
    names, inputs, constants = [], {}, {}
    for store, arrays in ((inputs, case.inputs), (constants, case.constants)):
        for array in arrays:
            names.append("" if array is None else f"i{len(names)}")
            if array is not None:
                store[names[-1]] = np.asarray(array)
    outputs = ["y", "z", "w"][: case.outputs]
    step = make_node(case.op, names, outputs, **case.attributes)
    shown = outputs[:1] if case.op == "Dropout" else outputs
    expected = None
    if case.reference:
        model = make_model([step], inputs, outputs, constants, case.opset)
        expected = ReferenceEvaluator(model).run(shown, inputs)
        expected = [np.asarray(e) for e in expected]
    check(step, inputs, constants, outputs=shown, opset=case.opset, expected=expected)


CHANGES = {
    *("ArgMax 12", "ArgMin 12", "Attention 24", "Attention 25", "AveragePool 10"),
    *("AveragePool 19", "BatchNormalization 9", "BatchNormalization 14", "Cast 19", "Cast 24"),
    *("CastLike 19", "CastLike 24", "Clip 11", "Constant 11", "Constant 12", "DFT 20"),
    *("DepthToSpace 11", "DequantizeLinear 13", "DequantizeLinear 21", "DequantizeLinear 23"),
    *("Dropout 12", "GRU 14", "GatherND 12", "Gemm 11", "GridSample 20", "Hardmax 13"),
    *("LSTM 14", "LogSoftmax 13", "LpPool 18", "MaxPool 8", "MaxPool 10", "Pad 11", "Pad 18"),
    *("OptionalHasElement 18", "QuantizeLinear 13", "QuantizeLinear 19", "QuantizeLinear 21"),
    *("QuantizeLinear 23", "RNN 14", "Range 27", "ReduceL1 18", "ReduceL2 18"),
    *("ReduceLogSum 18", "ReduceLogSumExp 18", "ReduceMax 18", "ReduceMean 18", "ReduceMin 18"),
    *("ReduceProd 18", "ReduceSum 13", "ReduceSumSquare 18", "Reshape 14", "Resize 11"),
    *("Resize 13", "Resize 18", "RoiAlign 16", "Scan 9", "ScatterElements 16", "ScatterND 16"),
    *("Shape 15", "Slice 10", "Softmax 13", "SpaceToDepth 28", "Split 13", "Split 18"),
    *("Squeeze 13", "TopK 10", "TopK 11", "Unsqueeze 13", "Upsample 9"),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_every_change_of_a_signature_has_a_case(change):
    op, version = change.split()
    if op == "Scan":
        return  # tests/importer/test_advanced.py: its operands are graphs.
    before = get_schema(op, int(version) - 1).since_version
    opsets = [c.opset for c in CASES if c.op == op]
    assert any(before <= opset < int(version) for opset in opsets)


def test_nested_graphs_are_converted(check, make_node, rng):
    x = rng.standard_normal((1, 2, 3, 4)).astype("f4")
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, (2, 3, 4))
    branches = {
        name: helper.make_graph(
            [make_node("Squeeze", ["x"], ["z"], axes=[0]), make_node(op, ["z"], ["w"])],
            name,
            [],
            [out],
        )
        for name, op in (("then_branch", "Softmax"), ("else_branch", "LogSoftmax"))
    }
    step = make_node("If", ["c"], ["y"], **branches)
    for taken in (True, False):
        check(step, {"x": x, "c": np.array(taken)}, opset=11)


SETTLED = [
    ("Flatten", 13, (X,), {"axis": -2}),
    ("Relu", 13, (X,), {}),
    ("AveragePool", 19, (X,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0]}),
    ("MaxPool", 21, (X,), {"kernel_shape": [3, 2], "ceil_mode": 1}),
    ("Softplus", 17, (M,), {}),
    ("Transpose", 13, (T,), {"perm": [2, 0, 1]}),
    ("Gemm", 15, (M, M.T.copy()), {}),
    ("Dropout", 13, (M,), {}),
]


def refuse(*_):
    raise AssertionError("converted")


@pytest.mark.parametrize(("op", "opset", "inputs", "attributes"), SETTLED)
def test_what_did_not_change_is_not_converted(
    op, opset, inputs, attributes, tmp_path, monkeypatch
) -> None:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], name="N", **attributes)
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with monkeypatch.context() as patch:
        patch.setattr("rutc.importer.opsets.convert._SETTLED", OPSET)
        converted = import_model(path)
    patched = "rutc.importer.opsets.convert.version_converter.convert_version"
    monkeypatch.setattr(patched, refuse)
    assert str(import_model(path)) == str(converted)


@pytest.mark.parametrize(
    ("op", "version", "changed"),
    [
        ("Relu", 13, False),
        ("Conv", 22, False),
        ("BatchNormalization", 14, True),
        ("GroupNormalization", 18, True),
        ("ReduceSum", 11, True),
        ("ReduceMean", 17, True),
        ("Split", 17, True),
        ("GridSample", 19, True),
        ("Upsample", 9, True),
        ("Nonsense", 20, True),
    ],
)
def test_changed_operators(op, version, changed) -> None:
    assert _is_changed(op, version) == changed


CONSTANTS = """<ir_version: 7, opset_import: ["" : 11]>
g (float[3, 40] x, bool c) => (float[3, 50] y, float[40, 50] w, float[3, 50] z) {{
    {large}
    s = Softmax (x)
    y = MatMul (s, w)
    z = If (c) <
        then_branch = a () => (float[3, 50] p) {{ p = MatMul (x, w) }},
        else_branch = b () => (float[3, 50] q) {{ {inner} q = MatMul (s, v) }}
    >
}}"""


def _with_constants(data: np.ndarray) -> onnx.ModelProto:
    """A model whose weights are all nodes, as some exporters write them."""
    nodes = {name: f"{name} = Constant <value = float[1] {{0}}> ()" for name in ("w", "v")}
    model = onnx.parser.parse_model(CONSTANTS.format(large=nodes["w"], inner=nodes["v"]))
    for graph in subgraphs(model.graph):
        for node in graph.node:
            if node.op_type == "Constant":
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(data, ""))
    return model


def test_weights_that_are_nodes_mean_the_same(tmp_path):
    data = normal(40, 50)
    model = _with_constants(data)
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    for c in (True, False):
        feeds = {"x": normal(3, 40), "c": np.array(c)}
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for found, wanted in zip(
            interpret(graph, feeds).values(), session.run(None, feeds), strict=True
        ):
            assert_close(found, wanted, level=Level.MODEL)


def in_nested_graph(array, source):
    """A Loop whose body adds a constant: an initializer, or a node with a list of elements."""
    tensor = helper.make_tensor("k", TensorProto.FLOAT, array.shape, array.ravel())
    nodes = [helper.make_node("Constant", [], ["k"], value=tensor)] if source == "node" else []
    nodes += [
        helper.make_node("Softmax", ["v"], ["s"], axis=0),
        helper.make_node("Add", ["s", "k"], ["next"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    like = [helper.make_tensor_value_info(n, TensorProto.FLOAT, array.shape) for n in "vxy"]
    result = helper.make_tensor_value_info("next", TensorProto.FLOAT, array.shape)
    trip = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    go, on = (helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go", "on"))
    held = [numpy_helper.from_array(array, "k")] if source == "initializer" else []
    body = helper.make_graph(nodes, "b", [trip, go, like[0]], [on, result], held)
    count = numpy_helper.from_array(np.array(2), "n")
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", like[1:2], like[2:], [count])
    imports = [helper.make_opsetid("", 11)]
    return helper.make_model(graph, opset_imports=imports, ir_version=7)


def in_function(array):
    """A call of a function that adds a constant."""
    tensor = numpy_helper.from_array(array)
    nodes = [
        helper.make_node("Constant", [], ["k"], value=tensor),
        helper.make_node("Softmax", ["a"], ["s"], axis=0),
        helper.make_node("Add", ["s", "k"], ["r"]),
    ]
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("acme", 1)]
    function = helper.make_function("acme", "Twist", ["a"], ["r"], nodes, imports[:1])
    like = [helper.make_tensor_value_info(n, TensorProto.FLOAT, array.shape) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Twist", ["x"], ["y"], domain="acme")], "g", like[:1], like[1:]
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[function])


@pytest.mark.parametrize("kept", [0, 1 << 20])
@pytest.mark.parametrize("source", ["initializer", "node", "function"])
def test_weights_in_nested_graphs_and_functions_are_not_converted(
    source, kept, tmp_path, monkeypatch
):
    given = []

    def converted(call, model, *args):
        given.append(model.ByteSize())
        return call(model, *args)

    monkeypatch.setattr("rutc.importer.opsets.convert.isolated", converted)
    monkeypatch.setattr("rutc.importer.reading.wire.LEAST_BYTES", kept)
    k, x = normal(40, 50), normal(2, 40, 50)[0]
    model = in_function(k) if source == "function" else in_nested_graph(k, source)
    assert model.ByteSize() > k.nbytes
    onnx.save(model, tmp_path / "m.onnx")
    found = interpret(import_model(tmp_path / "m.onnx"), {"x": x})["y"]
    assert given
    assert max(given) < 2000
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    assert_close(found, wanted, reduction=1024)


def test_weights_that_are_nodes_are_not_converted(tmp_path, monkeypatch):
    given = []

    def converted(call, model, *args):
        given.append(model.ByteSize())
        return call(model, *args)

    monkeypatch.setattr("rutc.importer.opsets.convert.isolated", converted)
    model = _with_constants(normal(40, 50))
    assert model.ByteSize() > 2 * 4 * 40 * 50
    onnx.save(model, tmp_path / "m.onnx")
    import_model(tmp_path / "m.onnx")
    assert [size < 2000 for size in given] == [True]


def test_a_weight_that_is_a_node_and_something_else(tmp_path):
    model = _with_constants(normal(40, 50))
    model.graph.node.append(helper.make_node("Identity", ["y"], ["w"]))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"'w'.* is computed by more than one node"):
        import_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("inside", [False, True])
def test_operators_at_which_the_inference_of_types_ends_its_process(tmp_path, inside):
    """A LabelEncoder that reads what nobody can tell the type of, in a graph that is converted."""
    ml = "ai.onnx.ml"
    named = {"keys_floats": [2.0, 4.0], "values_strings": ["two", "four"]}
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Scaler", ["f"], ["z"], domain=ml, scale=[2.0]),
        helper.make_node("LabelEncoder", ["z"], ["y"], domain=ml, default_string="none", **named),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    if inside:
        branches = {f"{k}_branch": helper.make_graph(nodes, k, [], [y]) for k in ("then", "else")}
        nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, [3, 1])]
    inputs += [helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid(ml, 2)]
    graph = helper.make_graph(nodes, "g", inputs, [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    given = {"x": np.array([[2], [1], [7]]), "c": np.array(True)}
    found = interpret(import_model(tmp_path / "m.onnx"), given)["y"]
    assert found.tolist() == [["four"], ["two"], ["none"]]
