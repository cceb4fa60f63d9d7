"""LSTM, GRU, RNN and If."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.tensor_ir import If, Index, Scan
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, FEATURES = 5, 3


def operands(op, directions, steps, batch, rng):
    rows = GATES[op] * HIDDEN
    arrays = {
        "x": rng.standard_normal((steps, batch, FEATURES)),
        "w": rng.standard_normal((directions, rows, FEATURES)),
        "r": rng.standard_normal((directions, rows, HIDDEN)),
        "b": rng.standard_normal((directions, 2 * rows)),
        "h": rng.standard_normal((directions, batch, HIDDEN)),
        "c": rng.standard_normal((directions, batch, HIDDEN)),
    }
    return {n: a.astype("f4") for n, a in arrays.items()}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("steps", "batch"), [(4, 2), (1, 1), (3, 1)])
def test_layers(op, direction, steps, batch, check, make_node, rng):
    arrays = operands(op, 2 if direction == "bidirectional" else 1, steps, batch, rng)
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    names = ["x", "w", "r", "b", "", "h"] + (["c"] if op == "LSTM" else [])
    step = make_node(op, names, outputs, direction=direction, hidden_size=HIDDEN)
    used = {n: arrays[n] for n in names if n}
    inputs = {n: a for n, a in used.items() if n in "xhc"}
    weights = {n: a for n, a in used.items() if n in "wrb"}
    graph = check(step, inputs, weights, outputs=outputs)
    scans = sum(isinstance(n, Scan) for n in graph.nodes)
    assert scans == (0 if steps == 1 else 2 if direction == "bidirectional" else 1)


@pytest.mark.parametrize("op", GATES)
def test_a_run_of_other_features_than_the_weights_ends(op, tmp_path, make_node, make_model, rng):
    arrays = operands(op, 1, 2, 1, rng)
    weights = {n: arrays[n] for n in "wr"}
    step = make_node(op, ["x", "w", "r"], ["y"], hidden_size=HIDDEN)
    model = make_model([step], {"x": arrays["x"]}, ["y"], weights)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "m"
    onnx.save(model, tmp_path / "m.onnx")
    graph = optimize(import_model(tmp_path / "m.onnx", dims={"m": (1, FEATURES + 2)}))
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    (want,) = oracle.run(None, {"x": arrays["x"]})
    assert_close(interpret(graph, {"x": arrays["x"]})["y"], want)
    for other in (FEATURES - 1, FEATURES + 2):
        with pytest.raises(UserError, match=f"the sizes m and {FEATURES} differ"):
            interpret(graph, {"x": np.ones((2, 1, other), np.float32)})


@pytest.mark.parametrize("given", [["h"], ["", "c"], ["h", "c"]])
@pytest.mark.parametrize("layout", [0, 1])
def test_states_may_have_a_size_of_another_name(given, layout, tmp_path, make_node, rng):
    """What nothing outside of a branch tells to be the same, a run that takes it finds out."""
    arrays = operands("LSTM", 1, 3, 2, rng)
    states = [n for n in given if n]
    if layout:
        arrays |= {n: np.swapaxes(arrays[n], 0, 1) for n in ("x", *states)}
    node = make_node("LSTM", ["x", "w", "r", "b", "", *given], ["y"], layout=layout, hidden_size=5)
    info = helper.make_tensor_value_info
    other = make_node("Identity", ["none"], ["z"])
    shape = (2, 3, 1, 5) if layout else (3, 1, 2, 5)
    branches = [
        helper.make_graph([n], "branch", [], [info(n.output[0], TensorProto.FLOAT, None)])
        for n in (node, other)
    ]
    taken = make_node("If", ["k"], ["out"], then_branch=branches[0], else_branch=branches[1])
    axes = {"x": [3, "batch", FEATURES], **{n: [1, f"{n} batch", 5] for n in states}}
    if layout:
        axes = {n: [a[1], a[0], a[2]] for n, a in axes.items()}
    inputs = [info("k", TensorProto.BOOL, [])]
    inputs += [info(n, TensorProto.FLOAT, a) for n, a in axes.items()]
    weights = {n: arrays[n] for n in "wrb"} | {"none": np.zeros(shape, "f4")}
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    outputs = [info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph([taken], "net", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    made = optimize(import_model(tmp_path / "m.onnx"))
    feed = {"k": np.array(True), **{n: arrays[n] for n in axes}}
    # ONNX Runtime has no layout of batches first.
    session = ReferenceEvaluator(str(tmp_path / "m.onnx"))
    (want,) = session.run(None, feed)
    assert_close(interpret(made, feed)["out"], want)
    short = states[0]
    feed[short] = feed[short][:1] if layout else feed[short][:, :1]
    with pytest.raises(UserError, match=r"the sizes .* differ"):
        interpret(made, feed)


@pytest.mark.parametrize("op", GATES)
def test_sequence_lengths_and_defaults(op, check, make_node, rng):
    arrays = operands(op, 2, 4, 3, rng)
    arrays["l"] = np.array([4, 1, 2], np.int32)
    step = make_node(
        op, ["x", "w", "r", "", "l"], ["y", "y_h"], direction="bidirectional", hidden_size=HIDDEN
    )
    check(step, {n: arrays[n] for n in "xwrl"}, outputs=("y", "y_h"))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [[3, 1, 2], [2, 2, 2], [0, 1, 0], [0, 0, 0], [7, 0, 7]])
@pytest.mark.parametrize("known", [False, True])
def test_steps_that_are_padding_for_all_sequences(
    op, direction, lengths, known, check, make_node, rng
):
    """As many trips as the longest sequence has steps; the results are those of all steps."""
    ways = 2 if direction == "bidirectional" else 1
    arrays = operands(op, ways, 7, 3, rng)
    arrays["l"] = np.array(lengths, np.int32)
    names = ["x", "w", "r", "b", "l"]
    step = make_node(op, names, ["y", "y_h"], direction=direction, hidden_size=HIDDEN)
    weights = {n: arrays[n] for n in ("wrbl" if known else "wrb")}
    inputs = {n: arrays[n] for n in "xl" if n not in weights}
    graph = check(step, inputs, weights, outputs=("y", "y_h"))
    (trips,) = {graph.extents[n.dim] for n in graph.nodes if isinstance(n, Scan)} or {Index.of(1)}
    assert trips.bounds(dict(graph.symbols)) == ((max(1, *lengths),) * 2 if known else (1, 7))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_sequences_without_steps_end_in_zeros(op, direction, check, make_node, rng):
    arrays = operands(op, 2 if direction == "bidirectional" else 1, 4, 3, rng)
    arrays["l"] = np.array([4, 0, 2], np.int32)
    states = ["h"] + ["c"] * (op == "LSTM")
    outputs = ["y", "y_h", "y_c"][: 1 + len(states)]
    names = ["x", "w", "r", "b", "l", *states]
    step = make_node(op, names, outputs, direction=direction, hidden_size=HIDDEN)
    check(step, {n: arrays[n] for n in names}, outputs=outputs)


def test_gru_linear_before_reset(check, make_node, rng):
    arrays = operands("GRU", 1, 3, 2, rng)
    step = make_node("GRU", list("xwrb"), linear_before_reset=1, hidden_size=HIDDEN)
    check(step, {n: arrays[n] for n in "xwrb"})


def test_peepholes_and_activations(check, make_node, rng):
    arrays = operands("LSTM", 1, 3, 2, rng)
    arrays["p"] = rng.standard_normal((1, 3 * HIDDEN)).astype("f4")
    step = make_node("LSTM", ["x", "w", "r", "b", "", "h", "c", "p"], hidden_size=HIDDEN)
    check(step, arrays)
    arrays.pop("p")
    names = ["x", "w", "r", "b", "", "h", "c"]
    choice = ["Sigmoid", "Relu", "Softsign"]
    check(make_node("LSTM", names, hidden_size=HIDDEN, activations=choice), arrays)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"input_forget": 1}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {}),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_clip(op, options, direction, check, make_node, rng):
    arrays = operands(op, 2 if direction == "bidirectional" else 1, 3, 2, rng)
    names = ["x", "w", "r", "b", "", "h"] + (["c"] if op == "LSTM" else [])
    step = make_node(op, names, direction=direction, hidden_size=HIDDEN, clip=0.4, **options)
    check(step, {n: arrays[n] for n in names if n})


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout(op, check, make_node, make_model, rng):
    arrays = operands(op, 2, 4, 3, rng)
    names = ["x", "w", "r", "b", "", "h"] + (["c"] if op == "LSTM" else [])
    outputs = ["y", "y_h"] + (["y_c"] if op == "LSTM" else [])
    options = {"direction": "bidirectional", "hidden_size": HIDDEN}
    turned = {n: a.swapaxes(0, 1) if n in "xhc" else a for n, a in arrays.items() if n in names}
    steps = [
        make_node("Transpose", [n], [f"{n}t"], perm=[1, 0, 2]) for n in names if n and n in "xhc"
    ]
    inner = [f"{n}t" if n and n in "xhc" else n for n in names]
    steps.append(make_node(op, inner, [f"{o}t" for o in outputs], **options))
    steps.append(make_node("Transpose", ["yt"], ["y"], perm=[2, 0, 1, 3]))
    steps += [make_node("Transpose", [f"{o}t"], [o], perm=[1, 0, 2]) for o in outputs[1:]]
    model = make_model(steps, turned, outputs, {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(outputs, turned)
    step = make_node(op, names, outputs, layout=1, **options)
    check(step, turned, outputs=outputs, expected=expected)


ACTIVATIONS = {
    "Affine": ([0.5], [0.2]),
    "LeakyRelu": ([0.1], []),
    "ThresholdedRelu": ([0.3], []),
    "ScaledTanh": ([0.7], [0.4]),
    "HardSigmoid": ([0.3], [0.4]),
    "Elu": ([0.6], []),
    "Relu": ([], []),
    "Softsign": ([], []),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_both_directions(name, check, make_node, rng):
    arrays = operands("RNN", 2, 3, 2, rng)
    alpha, beta = ACTIVATIONS[name]
    step = make_node(
        "RNN",
        list("xwrb"),
        direction="bidirectional",
        hidden_size=HIDDEN,
        activations=[name, name],
        activation_alpha=[alpha[0], alpha[0] / 2] if alpha else None,
        activation_beta=[beta[0], beta[0] / 2] if beta else None,
    )
    check(step, {n: arrays[n] for n in "xwrb"})


def branches(make_node):
    def graph(name, op):
        out = helper.make_tensor_value_info("z", TensorProto.FLOAT, (2, 3))
        return helper.make_graph([make_node(op, ["x"], ["z"])], name, [], [out])

    return {"then_branch": graph("yes", "Exp"), "else_branch": graph("no", "Neg")}


@pytest.mark.parametrize("taken", [False, True])
def test_if_at_run_time(taken, check, make_node, rng):
    inputs = {"x": rng.standard_normal((2, 3)).astype("f4"), "c": np.array(taken)}
    graph = check(make_node("If", ["c"], **branches(make_node)), inputs)
    assert any(isinstance(n, If) for n in graph.nodes)


@pytest.mark.parametrize("taken", [False, True])
def test_if_known_at_import(taken, check, make_node, rng):
    inputs = {"x": rng.standard_normal((2, 3)).astype("f4")}
    graph = check(make_node("If", ["c"], **branches(make_node)), inputs, {"c": np.array(taken)})
    assert not any(isinstance(n, If) for n in graph.nodes)


def test_a_batch_that_input_and_state_name_differently(tmp_path, make_node, make_model, rng):
    """The model says that they are equal: a run with others is refused."""
    arrays = operands("GRU", 1, 3, 2, rng)
    step = make_node("GRU", ["x", "w", "r", "b", "", "h"], ["y", "y_h"], hidden_size=HIDDEN)
    given = {n: arrays[n] for n in "xh"}
    model = make_model([step], given, ["y", "y_h"], {n: arrays[n] for n in "wrb"})
    for info, name in zip(model.graph.input, ("n", "m"), strict=True):
        info.type.tensor_type.shape.dim[1].dim_param = name
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for batch in (1, 2):
        fed = {n: a[:, :batch] for n, a in given.items()}
        got = interpret(graph, fed)
        for name, want in zip(("y", "y_h"), session.run(None, fed), strict=True):
            assert_close(got[name], want, reduction=1024)
    with pytest.raises(UserError, match=r"input .h. is f32 of shape \[1, 2, 5\]"):
        interpret(graph, {"x": given["x"], "h": given["h"][:, :1]})
