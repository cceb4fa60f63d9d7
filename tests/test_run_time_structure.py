"""Sequences, optionals and ranks that the run decides, and values that loops change in shape.

Compiled and run with 1 and 2 threads, against ONNX Runtime or numpy.
"""

from __future__ import annotations

import mmap
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, TypeProto, helper, numpy_helper

import rutc
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.runtime.errors import ModelError
from rutc.tensor_ir.interpret import interpret
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.routines import Box
from rutc.tensor_ir.text import constants_of

node = helper.make_node
ANY = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
BOOL = helper.make_tensor_type_proto(TensorProto.BOOL, [])
TEXTS = helper.make_tensor_type_proto(TensorProto.STRING, [None])
sequence = helper.make_sequence_type_proto
optional = helper.make_optional_type_proto


def floats(*shape: int | str | None) -> TypeProto:
    """The type of a float tensor."""
    return helper.make_tensor_type_proto(TensorProto.FLOAT, list(shape))


def ints(*shape: int | str | None) -> TypeProto:
    """The type of an integer tensor."""
    return helper.make_tensor_type_proto(TensorProto.INT64, list(shape))


def graph(nodes, inputs, outputs, constants=()):
    """A graph; inputs and outputs by name with their types."""
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(n, t) for n, t in inputs.items()],
        [helper.make_value_info(n, t) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(constants).items()],
    )


def body(nodes, states, results, constants=(), going=None):
    """A loop's body with the inputs `trip` and `going`; without a condition it goes on."""
    nodes = [*nodes, node("Identity", [going or "going"], ["on"])]
    inputs = {"trip": ints(), "going": BOOL, **states}
    return graph(nodes, inputs, {"on": BOOL, **results}, constants)


def rows(*shape, seed=0):
    """Random floats."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4")


def same(got, want):
    """Check that two values agree: arrays, lists of them, or None."""
    if want is None:
        assert got is None
    elif isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif np.asarray(want).dtype == object:
        assert got.tolist() == want.tolist()
    else:
        assert np.shape(got) == np.shape(want)
        assert np.asarray(got).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def in_box(value):
    """An array, or a list of arrays, as the content of a box."""
    if not isinstance(value, list):
        return Box(np.asarray(value))
    content = np.empty(len(value), object)
    content[:] = [in_box(v) for v in value]
    return Box(content)


def unboxed(boxes, kind):
    """A value of a type as a session gives it, from the boxes of a sequence or optional."""
    level, _, inner = kind.partition("(")
    if level == "tensor":
        return boxes.item().array
    sequences = inner.startswith("seq(")
    found = [unboxed(b.array, inner) if sequences else b.array for b in boxes]
    return found if level == "seq" else found[0] if found else None


def interpreted(imported, feed, want):
    """Check that the interpreter gives the same, where inputs and outputs are no static lists."""
    whole = imported.interface
    takes = dict(whole.inputs) if whole else {}
    gives = dict(whole.outputs) if whole else {}
    if any(b.kind not in ("tensor", "boxed") for b in (*takes.values(), *gives.values())):
        return
    inputs = {}
    for name, value in feed.items():
        if name in takes and takes[name].kind == "boxed":
            inner = takes[name].type.startswith("seq(")
            inputs[name] = in_box(value if inner else [] if value is None else [value]).array
        else:
            inputs[name] = np.asarray(value)
    got = interpret(imported, inputs)
    for (name, value), expected in zip(got.items(), want, strict=True):
        if name in gives and gives[name].kind == "boxed":
            value = unboxed(value, gives[name].type)
        same(value, expected)


@pytest.fixture
def check(tmp_path):
    """`check(graph, feeds, expected)`: expected of ONNX Runtime unless given."""

    def run(inner, feeds, expected=None, opset=20, **options):
        imports = [helper.make_opsetid("", opset)]
        model = inner
        if isinstance(inner, onnx.GraphProto):
            model = helper.make_model(inner, opset_imports=imports, ir_version=9)
        path: Path = tmp_path / "m.onnx"
        onnx.save(model, path)
        if expected is None:
            quiet = onnxruntime.SessionOptions()
            quiet.log_severity_level = 4
            oracle = onnxruntime.InferenceSession(path, quiet)
            expected = [oracle.run(None, feed) for feed in feeds]
        imported = import_model(path, **options)
        assert parse(str(imported), constants_of(imported)) == imported
        for feed, want in zip(feeds, expected, strict=True):
            interpreted(imported, feed, want)
        rutc.compile(path, path.with_suffix(".so"), verify=False, **options)
        for threads in (1, 2):
            with rutc.load(path.with_suffix(".so"), threads=threads) as session:
                for feed, want in zip(feeds, expected, strict=True):
                    for a, b in zip(session.run(None, feed), want, strict=True):
                        same(a, b)
        return path.with_suffix(".so")

    return run


# -- sequences ----------------------------------------------------------------------------------
PAIRS = sequence(floats(None, 2))


def test_an_input_of_unknown_length(check):
    nodes = [
        node("SequenceLength", ["s"], ["n"]),
        node("SequenceAt", ["s", "p"], ["one"]),
        node("ConcatFromSequence", ["s"], ["all"], axis=0),
    ]
    inner = graph(
        nodes, {"s": PAIRS, "p": ints()}, {"n": ints(), "one": floats(None, 2), "all": ANY}
    )
    lengths = [(3, 1), (3,), (0, 5, 7)]
    feeds = [
        {"s": [rows(n, 2) for n in each], "p": np.array(p)}
        for each, p in zip(lengths, (-1, 0, 1), strict=True)
    ]
    with rutc.load(check(inner, feeds)) as session:
        assert session.get_inputs()[0].type == "seq(tensor(float))"
        with pytest.raises(ModelError, match="a position is out of range"):
            session.run(None, {"s": feeds[0]["s"], "p": np.array(2)})
        with pytest.raises(ModelError, match="a position is out of range"):
            session.run(["all"], {"s": [], "p": np.array(0)})
        with pytest.raises(ModelError, match="must be float32, not float64"):
            session.run(None, {"s": [np.zeros((1, 2))], "p": np.array(0)})
        with pytest.raises(ModelError, match=r"has 1 axes, not 2"):
            session.run(None, {"s": [np.zeros(2, "f4")], "p": np.array(0)})
        with pytest.raises(ModelError, match="must be a list of tensors"):
            session.run(None, {"s": rows(3, 2), "p": np.array(0)})
        same(session.run(["all"], feeds[0])[0], np.concatenate(feeds[0]["s"]))
    with pytest.raises(UserError, match="no step"):
        check(inner, [], [], dims={"s": (2, 8, 2)})


@pytest.mark.parametrize("strings", [False, True])
def test_elements_put_in_and_taken_out(strings, check):
    kind = TEXTS if strings else floats(None, 2)
    nodes = [
        node("SequenceInsert", ["s", "x", "p"], ["more"]),
        node("SequenceErase", ["more", "q"], ["fewer"]),
        node("SequenceInsert", ["fewer", "x"], ["ended"]),
        node("SequenceErase", ["s"], ["front"]),
    ]
    inputs = {"s": sequence(kind), "x": kind, "p": ints(), "q": ints()}
    names = ("more", "fewer", "ended", "front")
    inner = graph(nodes, inputs, dict.fromkeys(names, sequence(kind)))

    def value(n):
        return np.array([f"é{k}" * k for k in range(n)], object) if strings else rows(n, 2)

    feeds = [
        {"s": [value(k) for k in range(n)], "x": value(4), "p": np.array(p), "q": np.array(q)}
        for n, p, q in [(1, 0, 1), (2, -1, 0), (3, 3, -1), (5, -2, -6)]
    ]
    check(inner, feeds)


@pytest.mark.parametrize(
    ("sizes", "attributes"), [("", {"keepdims": 0}), ("", {}), ("k", {"axis": 1}), ("ks", {})]
)
def test_parts_whose_number_the_run_tells(sizes, attributes, check):
    parts = node("SplitToSequence", ["x", sizes] if sizes else ["x"], ["s"], **attributes)
    inputs = {"x": floats("n", 5), "k": ints(), "ks": ints("p")}
    inner = graph([parts], inputs, {"s": sequence(floats())})
    feeds = [
        {"x": rows(n, 5), "k": np.array(k), "ks": np.array(ks)}
        for n, k, ks in [(6, 2, [1, 0, 3, 2]), (1, 5, [1]), (3, 7, [3])]
    ]
    library = check(inner, feeds)
    if sizes:
        with (
            rutc.load(library) as session,
            pytest.raises(ModelError, match=r"do not make up 3|less than 1"),
        ):
            session.run(None, {**feeds[2], "k": np.array(0), "ks": np.array([2])})


def test_a_map_over_a_sequence(check):
    inner = graph(
        [node("Add", ["a", "z"], ["sum"]), node("Shape", ["a"], ["shape"])],
        {"a": floats(None, 2), "b": floats(None, 2)},
        {"sum": ANY, "shape": ints(2)},
    )
    mapped = node("SequenceMap", ["s", "s"], ["t", "shapes"], body=inner)
    inputs = {"s": PAIRS, "z": floats()}
    outer = graph([mapped], inputs, {"t": PAIRS, "shapes": sequence(ints(2))})
    feeds = [{"s": [rows(n, 2) for n in each], "z": np.float32(2)} for each in [(3, 1), (0,), ()]]
    expected = [[[a + 2 for a in f["s"]], [np.array(a.shape) for a in f["s"]]] for f in feeds]
    check(outer, feeds, expected, opset=18)


# -- optionals and ranks ------------------------------------------------------------------------
def test_optionals_that_the_run_decides(check):
    held = sequence(floats("k"))
    nodes = [
        node("OptionalHasElement", ["o"], ["has"]),
        node(
            "If",
            ["has"],
            ["y"],
            then_branch=graph([node("OptionalGetElement", ["o"], ["a"])], {}, {"a": held}),
            else_branch=graph([node("SequenceEmpty", [], ["b"])], {}, {"b": held}),
        ),
        node(
            "If",
            ["has"],
            ["p"],
            then_branch=graph([node("Optional", ["x"], ["c"])], {}, {"c": optional(floats("k"))}),
            else_branch=graph(
                [node("Optional", [], ["d"], type=floats("k"))], {}, {"d": optional(floats("k"))}
            ),
        ),
        node("OptionalGetElement", ["p"], ["must"]),
    ]
    inputs = {"o": optional(held), "x": floats("k")}
    outputs = {"has": BOOL, "y": sequence(ANY), "p": optional(floats("k"))}
    lists = [[rows(3), rows(2)], None, []]
    feeds = [{"o": value, "x": rows(4)} for value in lists]
    expected = [[np.array(v is not None), v or [], None if v is None else rows(4)] for v in lists]
    check(graph(nodes[:3], inputs, outputs), feeds, expected, dims={"o?": (0, 1)})
    must = graph(nodes, inputs, {"must": floats("k")})
    library = check(must, feeds[:1], [[rows(4)]], dims={"o?": (0, 1)})
    with rutc.load(library) as session, pytest.raises(ModelError, match="has no element"):
        session.run(None, feeds[1])


def test_branches_of_different_rank(check):
    nodes = [
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=graph([node("Identity", ["x"], ["a"])], {}, {"a": ANY}),
            else_branch=graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], {}, {"b": ANY}),
        ),
        node("Exp", ["y"], ["e"]),
        node("Clip", ["e", "", "most"], ["z"]),
        node("Reshape", ["z", "row"], ["flat"]),
        node("Shape", ["z"], ["shape"]),
        node("Size", ["z"], ["size"]),
        node("Cast", ["z"], ["whole"], to=TensorProto.INT64),
        node("SequenceConstruct", ["y", "x"], ["s"]),
    ]
    names = ("y", "z", "flat", "shape", "size", "whole")
    inner = graph(nodes, {"c": BOOL, "x": floats("k", 2)}, {})
    inner.output.extend(onnx.ValueInfoProto(name=n) for n in (*names, "s"))
    constants = {"row": np.array([-1]), "most": np.float32(2)}
    inner.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()
    )
    feeds = [{"c": np.array(c), "x": rows(k, 2)} for c in (True, False) for k in (1, 3)]
    library = check(inner, feeds)
    with rutc.load(library) as session:
        assert session.get_outputs()[0].type == "tensor(float)"


def test_ranks_that_must_be_known(check):
    """What follows an if is imported for each branch; a loop decides a rank for good."""
    then = graph([node("Identity", ["x"], ["a"])], {}, {"a": ANY})
    orelse = graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], {}, {"b": ANY})
    chosen = node("If", ["c"], ["y"], then_branch=then, else_branch=orelse)
    soft = [node("Exp", ["y"], ["e"]), node("Softmax", ["e"], ["z"], name="soft")]
    inner = graph([chosen, *soft], {"c": BOOL, "x": floats(3, 2)}, {"z": ANY})
    e = np.exp(np.exp(rows(3, 2)))
    feeds = [{"c": np.array(c), "x": rows(3, 2)} for c in (True, False)]
    library = check(inner, feeds[:1], [[e / e.sum(1, keepdims=True)]])
    with rutc.load(library) as session, pytest.raises(ModelError, match="axis -1 is out of range"):
        session.run(None, feeds[1])
    lifted = node("Unsqueeze", ["a", "first"], ["y"])
    inside = body([node("Exp", ["a"], ["y"])], {"a": ANY}, {"y": ANY})
    loop = node("Loop", ["m", "", "x"], ["y"], body=inside)
    inner = graph([loop, soft[1]], {"m": ints(), "x": floats(3)}, {"z": ANY})
    inner.node[1].input[0] = "y"
    check(inner, [{"m": np.array(0), "x": rows(3)}])
    inside.node.insert(0, lifted)
    inside.node[1].input[0], inside.node[1].output[0] = "x", "unused"
    inside.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    inner.node[0].attribute[0].g.CopyFrom(inside)
    message = r"Unsqueeze \(node 'y'\).* a rank that only the run"
    with pytest.raises(UserError, match=message):
        check(inner, [], [])


# -- loops --------------------------------------------------------------------------------------
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


def in_queue(state):
    """Nodes that put x into the queue s of at most three elements, giving t of length n or 3."""
    return [
        node("SequenceInsert", ["s", "x"], ["longer"]),
        node("SequenceLength", ["longer"], ["n"]),
        node("Greater", ["n", "three"], ["full"]),
        node(
            "If",
            ["full"],
            ["t"],
            then_branch=graph([node("SequenceErase", ["longer", "zero"], ["a"])], {}, {"a": state}),
            else_branch=graph([node("Identity", ["longer"], ["b"])], {}, {"b": state}),
        ),
    ]


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


def test_loops_that_run_no_trip_or_one(check):
    """Scans over two lengths that must agree, zero included, forwards and backwards."""
    step = graph(
        [
            node("Add", ["s", "a"], ["t"]),
            node("Mul", ["t", "b"], ["product"]),
            node("Identity", ["t"], ["sum"]),
        ],
        {"s": floats(2), "a": floats(2), "b": floats(2)},
        {"t": floats(2), "product": floats(2), "sum": floats(2)},
    )
    scan = node(
        "Scan",
        ["s", "p", "q"],
        ["last", "products", "sums"],
        body=step,
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
    step = graph(
        [
            node("Add", ["s", "a"], ["t"]),
            node("Mul", ["t", "b"], ["product"]),
            node("Identity", ["t"], ["sum"]),
        ],
        {"s": floats(2), "a": floats(2), "b": floats(2)},
        {"t": floats(2), "product": floats(2), "sum": floats(2)},
    )
    names = ["last", "products", "sums"]
    scan = node("Scan", [*"nspq"], names, body=step, num_scan_inputs=2, directions=[1, 0])
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


# -- the C interface ----------------------------------------------------------------------------
C_PROGRAM = r"""
#include <stdio.h>
#include "m.h"

int main(void) {
  float a[] = {1, 2, 3, 4}, b[] = {5, 6}, x[] = {7, 8};
  int64_t a_shape[] = {2, 2}, b_shape[] = {1, 2}, count[] = {2}, x_shape[] = {1, 2};
  int64_t turned[] = {1, 2};
  DLDataType f32 = {kDLFloat, 32, 1}, handle = {kDLOpaqueHandle, 64, 1};
  DLTensor first = {a, {kDLCPU, 0}, 2, f32, a_shape, turned, 0};
  DLTensor second = {b, {kDLCPU, 0}, 2, f32, b_shape, NULL, 0};
  const DLTensor *elements[] = {&first, &second};
  DLTensor s = {elements, {kDLCPU, 0}, 1, handle, count, NULL, 0};
  DLTensor given = {x, {kDLCPU, 0}, 2, f32, x_shape, NULL, 0};
  DLTensor longer = {0}, sum = {0};
  const DLTensor *inputs[] = {&s, &given};
  DLTensor *outputs[] = {&longer, &sum};
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  rutc_session *session = m_open(&options);
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  for (int64_t i = 0; i < longer.shape[0]; i++) {
    const DLTensor *element = ((DLTensor **)longer.data)[i];
    const float *data = element->data;
    printf("%d x %d: %g %g, ", (int)element->shape[0], (int)element->shape[1], data[0], data[1]);
  }
  printf("%g\n", *(float *)sum.data);
  elements[1] = NULL;
  longer = sum = (DLTensor){0};
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  elements[1] = &second;
  second.dtype.bits = 64;
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  m_close(session);
}
"""


def test_a_sequence_in_c(tmp_path):
    nodes = [
        node("SequenceInsert", ["s", "x"], ["longer"]),
        node("ConcatFromSequence", ["longer"], ["all"], axis=0),
        node("ReduceSum", ["all"], ["sum"], keepdims=0),
    ]
    inner = graph(nodes, {"s": PAIRS, "x": floats(1, 2)}, {"longer": PAIRS, "sum": floats()})
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)]), path)
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    (tmp_path / "program.c").write_text(C_PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    build = ["cc", *flags, "program.c", "./m.so", "-o", "program"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "2 x 2: 1 3, 1 x 2: 5 6, 1 x 2: 7 8, 36",
        "s: an element is no tensor in CPU memory",
        "all: an element is float64[1, 2], not float32[4, 2]",
    ]


# -- memory -------------------------------------------------------------------------------------
def resident():
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_memory_of_boxes_is_used_again(tmp_path):
    """A queue of 1 MiB elements in 400 trips, and 10,000 runs."""
    state = sequence(floats("k"))
    nodes = in_queue(state)
    constants = {"three": np.array(3), "zero": np.array(0)}
    inside = body(nodes, {"s": state}, {"t": state}, constants)
    outer = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["m", "", "none"], ["queue"], body=inside),
    ]
    inner = graph(outer, {"m": ints(), "x": floats("k")}, {"queue": state})
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)]), path)
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    with rutc.load(path.with_suffix(".so"), threads=1) as session:
        x = rows(1 << 18)
        before = resident()
        (queue,) = session.run(None, {"m": np.array(400), "x": x})
        assert len(queue) == 3
        assert resident() - before < 32 << 20
        feeds = [{"m": np.array(m), "x": rows(1 + m)} for m in range(20)]
        for turn in range(10_000):
            if turn == 100:
                before = resident()
            session.run(None, feeds[turn % 20])
        assert resident() - before < 2 << 20
