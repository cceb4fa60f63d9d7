"""Sequences, optionals and ranks that the run decides, and values that loops change in shape.

Compiled and run with 1 and 2 threads, against ONNX Runtime or numpy.
"""

from __future__ import annotations

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
from rutc.tensor_ir.parse import parse
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


@pytest.fixture
def check(tmp_path):
    """`check(graph, feeds, expected)`: expected of ONNX Runtime unless given."""

    def run(inner, feeds, expected=None, opset=20, **options):
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(inner, opset_imports=imports, ir_version=9)
        path: Path = tmp_path / "m.onnx"
        onnx.save(model, path)
        if expected is None:
            oracle = onnxruntime.InferenceSession(path)
            expected = [oracle.run(None, feed) for feed in feeds]
        imported = import_model(path, **options)
        assert parse(str(imported), constants_of(imported)) == imported
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


def test_a_queue_until_a_condition_fails(check):
    state = sequence(floats("k"))
    nodes = [
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
