"""Loops whose states change in shape, and loops in functions and scans."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.runtime.errors import ModelError
from tests.run_time_structure.models import (
    ANY,
    ANY_INT,
    BOOL,
    body,
    floats,
    graph,
    in_queue,
    ints,
    node,
    rows,
    sequence,
)


def test_a_sequence_that_grows(check):
    nodes = [
        node("Cast", ["trip"], ["number"], to=TensorProto.FLOAT),
        node("Add", ["x", "number"], ["y"]),
        node("SequenceInsert", ["s", "y"], ["t"]),
    ]
    state = sequence(floats("k"))
    loop = node("Loop", ["m", "", "none"], ["all"], body=body(nodes, {"s": state}, {"t": state}))
    outer = [node("SequenceEmpty", [], ["none"]), loop, node("SequenceLength", ["all"], ["n"])]
    inner = graph(outer, {"m": ints(), "x": floats("k")}, {"all": state, "n": ints()})
    check(inner, [{"m": np.array(m), "x": rows(3)} for m in (0, 1, 5, 90)])


def test_a_queue_until_a_condition_fails(check):
    state = sequence(floats("k"))
    nodes = [
        *in_queue(state),
        node("Less", ["trip", "last"], ["more"]),
    ]
    constants = {"three": np.array(3), "zero": np.array(0)}
    inside = body(nodes, {"s": state}, {"t": state, "n": ints()}, constants, going="more")
    outer = [
        node("SequenceConstruct", ["x"], ["first"]),
        node("Loop", ["", "c", "first"], ["queue", "lengths"], body=inside),
    ]
    inputs = {"c": BOOL, "x": floats("k"), "last": ints()}
    inner = graph(outer, inputs, {"queue": state, "lengths": ints(None)})
    feeds = [(True, 0), (True, 1), (True, 20), (False, 2)]
    check(inner, [{"c": np.array(c), "x": rows(4), "last": np.array(n)} for c, n in feeds])


def test_states_and_loops_that_grow_in_each_other(check):
    inside = body(
        [node("Concat", ["v", "x"], ["w"], axis=0)], {"v": floats(None)}, {"w": floats(None)}
    )
    nodes = [
        node("Loop", ["trip", "", "a"], ["b"], body=inside),
        node("Shape", ["b"], ["shape"]),
        node("SequenceInsert", ["s", "b"], ["t"]),
    ]
    states = {"a": floats(None), "s": sequence(floats(None))}
    results = {"b": floats(None), "t": sequence(floats(None)), "shape": ints(1)}
    outer = [
        node("SequenceEmpty", [], ["none"]),
        node(
            "Loop", ["m", "", "x", "none"], ["y", "s", "shapes"], body=body(nodes, states, results)
        ),
    ]
    outputs = {"y": floats(None), "s": sequence(floats(None)), "shapes": ints(None, 1)}
    inner = graph(outer, {"m": ints(), "x": floats("k")}, outputs)
    feeds = [{"m": np.array(m), "x": rows(k)} for m, k in ((1, 2), (2, 1), (5, 3))]
    check(inner, feeds)


def test_sizes_from_the_number_of_the_trip(check):
    nodes = [
        node("Range", ["zero", "trip", "one"], ["r"]),
        node("Concat", ["a", "r"], ["b"], axis=0),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    inside = body(nodes, {"a": ints(None)}, {"b": ints(None)}, constants)
    inner = graph(
        [node("Loop", ["m", "", "x"], ["y"], body=inside)],
        {"m": ints(), "x": ints("k")},
        {"y": ints(None)},
    )
    check(inner, [{"m": np.array(m), "x": np.arange(k)} for m, k in ((0, 2), (1, 1), (5, 3))])


def test_a_trip_count_beyond_all_memory(check):
    nodes = [
        node("Concat", ["a", "a"], ["b"], axis=0),
        node("Size", ["b"], ["n"]),
        node("Less", ["n", "most"], ["more"]),
        node("ReduceSum", ["b"], ["sum"], keepdims=0),
    ]
    inside = body(nodes, {"a": floats(None)}, {"b": floats(None), "sum": floats()}, going="more")
    inner = graph(
        [node("Loop", ["m", "", "x"], ["y", "sums"], body=inside)],
        {"x": floats("k"), "most": ints()},
        {"y": floats(None), "sums": floats(None)},
        {"m": np.array(2**63 - 1)},
    )
    feeds = [{"x": rows(k), "most": np.array(n)} for k, n in ((1, 10), (3, 5), (2, 200))]
    check(inner, feeds)


def test_greedy_decoding(check, tmp_path):
    """Tokens until one ends the text, the past growing; the past's sums are collected."""
    words, width, heads = 11, 6, 2
    make = np.random.default_rng(3).standard_normal
    weights = {n: make((width, width)).astype("f4") for n in ("wq", "wk", "wv")}
    weights |= {"table": make((words, width)).astype("f4"), "out": make((width, words)) * 1.0}
    weights["out"] = weights["out"].astype("f4")
    split = np.array([1, 1, heads, width // heads])
    nodes = [node("Gather", ["table", "token"], ["e"])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["e", f"w{name}"], [f"{name}_flat"]),
            node("Reshape", [f"{name}_flat", "split"], [f"{name}_parts"]),
            node("Transpose", [f"{name}_parts"], [f"{name}_heads"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("SequenceAt", ["past", "zero"], ["keys"]),
        node("SequenceAt", ["past", "one"], ["values"]),
        node("Concat", ["keys", "k_heads"], ["keys2"], axis=2),
        node("Concat", ["values", "v_heads"], ["values2"], axis=2),
        node("SequenceConstruct", ["keys2", "values2"], ["past2"]),
        node("Transpose", ["keys2"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_heads", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "values2"], ["mixed"]),
        node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["rows", "merged"], ["row"]),
        node("MatMul", ["row", "out"], ["logits"]),
        node("ArgMax", ["logits"], ["next"], axis=2, keepdims=0),
        node("Concat", ["text", "next"], ["text2"], axis=1),
        node("ReduceSum", ["values2"], ["sum"], keepdims=0),
        node("Squeeze", ["next"], ["word"]),
        node("Equal", ["word", "stop"], ["ends"]),
        node("Not", ["ends"], ["more"]),
    ]
    past = sequence(floats(1, heads, None, width // heads))
    states = {"token": ints(1, 1), "text": ints(1, None), "past": past}
    results = {"next": ints(1, 1), "text2": ints(1, None), "past2": past, "sum": floats()}
    constants = {
        **weights,
        "split": split,
        "merged": np.array([1, 1, width]),
        "zero": np.array(0),
        "one": np.array(1),
    }
    inside = body(nodes, states, results, constants, going="more")
    loop = node(
        "Loop", ["m", "", "first", "first", "none"], ["last", "text", "p", "sums"], body=inside
    )
    outer = [
        node("SequenceConstruct", ["nothing", "nothing"], ["none"]),
        loop,
        node("SequenceAt", ["p", "where"], ["final"]),
    ]
    outer[0].input[:] = ["nothing", "nothing"]
    inner = graph(
        outer,
        {"m": ints(), "first": ints(1, 1), "stop": ints()},
        {"text": ints(1, None), "sums": floats(None), "final": ANY},
        {"nothing": np.zeros((1, heads, 0, width // heads), "f4"), "where": np.array(0)},
    )
    feeds = [
        {"m": np.array(m), "first": np.array([[t]]), "stop": np.array(stop)}
        for m, t, stop in [(0, 1, 99), (1, 4, 99), (40, 2, 99), (40, 5, 3), (40, 3, 1)]
    ]
    check(inner, feeds)


def running_sum():
    """The body of a Scan that adds rows to a state; writes the sum and its product with others."""
    return graph(
        [
            node("Add", ["s", "a"], ["t"]),
            node("Mul", ["t", "b"], ["product"]),
            node("Identity", ["t"], ["sum"]),
        ],
        {"s": floats(2), "a": floats(2), "b": floats(2)},
        {"t": floats(2), "product": floats(2), "sum": floats(2)},
    )


def test_loops_that_run_no_trip_or_one(check):
    """Scans over two lengths that must agree, zero included, forwards and backwards."""
    scan = node(
        "Scan",
        ["s", "p", "q"],
        ["last", "products", "sums"],
        body=running_sum(),
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[0, 1],
        scan_output_axes=[1, 0],
        scan_output_directions=[1, 0],
    )
    inputs = {"s": floats(2), "p": floats("n", 2), "q": floats(2, "m")}
    outputs = {"last": floats(2), "products": floats(2, None), "sums": floats(None, 2)}
    inner = graph([scan], inputs, outputs)
    feeds = [{"s": rows(2), "p": rows(n, 2), "q": rows(2, n)} for n in (1, 2, 7)]
    library = check(inner, feeds)
    with (
        rutc.load(library) as session,
        pytest.raises(ModelError, match=r"sizes n and m differ|but 3 here"),
    ):
        session.run(None, {**feeds[1], "q": rows(2, 3)})
    none = {"s": rows(2), "p": rows(0, 2), "q": rows(2, 0)}
    empty = [[rows(2), np.zeros((2, 0), "f4"), np.zeros((0, 2), "f4")]]
    check(inner, [none], empty, dims={"n": (0, 9), "m": (0, 9)})


def test_control_flow_in_functions(check):
    """A function with a loop with an if, whose branches see the function's operand."""
    grown = graph([node("Concat", ["a", "x"], ["w"], axis=0)], {}, {"w": floats(None)})
    kept = graph([node("Identity", ["a"], ["v"])], {}, {"v": floats(None)})
    nodes = [
        node("Mod", ["trip", "two"], ["odd"]),
        node("Cast", ["odd"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["b"], then_branch=grown, else_branch=kept),
    ]
    inside = body(nodes, {"a": floats(None)}, {"b": floats(None)}, {"two": np.array(2)})
    loop = node("Loop", ["m", "", "x"], ["y"], body=inside)
    opset = [helper.make_opsetid("", 20)]
    function = helper.make_function("local", "Grow", ["x", "m"], ["y"], [loop], opset)
    call = node("Grow", ["z", "m"], ["y"], domain="local")
    inner = graph([call], {"z": floats("k"), "m": ints()}, {"y": floats(None)})
    model = helper.make_model(
        inner, opset_imports=[*opset, helper.make_opsetid("local", 1)], functions=[function]
    )
    feeds = [{"z": rows(k), "m": np.array(m)} for k, m in ((1, 0), (3, 1), (2, 6))]
    expected = [[np.tile(f["z"], 1 + int(f["m"]) // 2)] for f in feeds]
    check(model, feeds, expected)


def test_a_batch_of_different_lengths_as_opset_8_has_it(check):
    names = ["last", "products", "sums"]
    scan = node("Scan", [*"nspq"], names, body=running_sum(), num_scan_inputs=2, directions=[1, 0])
    rows_of = {"s": floats("b", 2), "p": floats("b", "m", 2), "q": floats("b", "m", 2)}
    outputs = dict(zip(names, rows_of.values(), strict=True))
    inner = graph([scan], {"n": ints("b"), **rows_of}, outputs)
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    feeds = [
        {
            "n": np.array(lengths),
            "s": rows(len(lengths), 2),
            "p": rows(len(lengths), longest, 2),
            "q": rows(len(lengths), longest, 2, seed=1),
        }
        for lengths, longest in [((1, 3), 3), ((5, 2, 4), 5), ((1,), 1)]
    ]
    check(model, feeds)


@pytest.mark.parametrize("more", ["", "c"])
def test_a_body_that_no_run_completes(check, more):
    """A loop that never runs is right, though its body reads beyond the end of a sequence."""
    nodes = [
        node("SequenceAt", ["s", "length"], ["beyond"]),
        node("Add", ["v", "beyond"], ["w"]),
        node("Neg", ["w"], ["u"]),
        node("ReduceMax", ["w"], ["largest"], keepdims=0),
        node("Less", ["largest", "limit"], ["stay"]),
    ]
    results = {"w": floats(2), "u": floats(2)}
    inside = body(
        nodes,
        {"v": floats(2)},
        results,
        {"limit": np.float32(9)},
        **({"going": "stay"} if more else {}),
    )
    trips = "" if more else "m"
    outer = [
        node("SequenceLength", ["s"], ["length"]),
        node("Loop", [trips, more, "x"], ["y", "z"], body=inside),
        node("Neg", ["y"], ["minus"]),
    ]
    inputs = {"s": sequence(floats(2)), "x": floats(2), **({"c": BOOL} if more else {"m": ints()})}
    inner = graph(outer, inputs, {"y": floats(2), "z": floats(None, 2), "minus": floats(2)})
    never, once = ({"c": np.array(b)} if more else {"m": np.array(int(b))} for b in (False, True))
    feed = {"s": [rows(2), rows(2)], "x": rows(2)}
    with (
        rutc.load(check(inner, [{**feed, **never}])) as session,
        pytest.raises(ModelError, match="a position is out of range"),
    ):
        session.run(None, {**feed, **once})


@pytest.mark.parametrize("most", [None, 100])
def test_a_state_that_the_first_trip_gives_its_rank(check, most):
    """A state that holds nothing of use at first, which Softmax after the loop needs a rank of."""
    nodes = [
        node("Add", ["a", "x"], ["b"]),
        node("Unsqueeze", ["b", "zero"], ["new"]),
        node("Cast", ["trip"], ["at"], to=TensorProto.INT64),
        # The condition gets another rank, too.
        node("Less", ["count", "limit"], ["more"]),
        node("Add", ["count", "one"], ["next"]),
    ]
    states = {"a": floats("k"), "old": ANY, "count": ANY_INT}
    results = {"b": floats("k"), "new": ANY, "next": ANY_INT, "at": ints()}
    inside = body(nodes, states, results, {"zero": [0], "one": [1]}, going="more")
    trips = {} if most is None else {"m": np.array(most)}
    start = [*["m" if trips else "", "yes"], "x", "nothing", "none"]
    outer = [
        node("Loop", start, ["sum", "last", "count", "trips"], body=inside),
        node("Softmax", ["last"], ["y"]),
        node("Add", ["count", "ten"], ["counted"]),
    ]
    constants = {
        "yes": np.array(True),
        "nothing": np.float32(0),
        "none": np.array(0),
        "ten": np.array([[10]]),
        **trips,
    }
    inputs = {"x": floats("k"), "limit": ints(1)}
    outputs = {"sum": floats("k"), "y": ANY, "counted": ANY_INT, "trips": ints("t")}
    inner = graph(outer, inputs, outputs, constants)
    check(inner, [{"x": rows(3), "limit": np.array([n])} for n in (-5, 0, 1, 70)])
    if most is not None:
        check(inner, [{"x": rows(3), "limit": np.array([200])}])
