"""Sequences whose lengths the run decides."""

from __future__ import annotations

import numpy as np
import pytest

import rutc
from rutc.errors import UserError
from rutc.runtime.errors import ModelError
from tests.run_time_structure.models import (
    ANY,
    PAIRS,
    TEXTS,
    floats,
    graph,
    ints,
    node,
    refusals,
    rows,
    same,
    sequence,
)


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
        with pytest.raises(ModelError, match="rank of an element is 1, not 2"):
            session.run(None, {"s": [np.zeros(2, "f4")], "p": np.array(0)})
        with pytest.raises(ModelError, match="must be a list of tensors"):
            session.run(None, {"s": rows(3, 2), "p": np.array(0)})
        same(session.run(["all"], feeds[0])[0], np.concatenate(feeds[0]["s"]))
    with pytest.raises(UserError, match="neither a step nor a common size"):
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


WRONG_PARTS = """
for ks in ([10**9, 13], [11, 2], [-1, 7], [7, -1], [2**63 - 1, 2**63 - 1, 8], [5]):
    refused({"x": np.zeros((6, 5), "f4"), "k": np.array(1), "ks": np.array(ks, np.int64)})
refused({"x": np.zeros((6, 5), "f4"), "k": np.array(1), "ks": np.array([0, 6, 0])})
"""


def test_parts_that_are_not_those_of_the_whole(check):
    parts = node("SplitToSequence", ["x", "ks"], ["s"])
    inputs = {"x": floats("n", 5), "k": ints(), "ks": ints("p")}
    library = check(graph([parts], inputs, {"s": sequence(floats())}), [])
    *wrong, fine = refusals(library, WRONG_PARTS)
    assert len(wrong) == 6
    assert all(message.endswith("the parts do not make up 6") for message in wrong)
    assert fine == "it ran"


WRONG_SHAPES = """
for shapes in ([(3, 500)], [(1, 1)], [(1, 2), (2, 3)], [(1, 2), (3, 2)]):
    refused({"s": [np.zeros(shape, "f4") for shape in shapes]})
"""


@pytest.mark.parametrize("stacked", [0, 1])
def test_elements_of_other_shapes_are_not_joined(stacked, check):
    kind = sequence(floats(1, 2) if stacked else floats(None, 2))
    join = node("ConcatFromSequence", ["s"], ["all"], axis=0, new_axis=stacked)
    feeds = [{"s": [rows(1, 2), rows(1 if stacked else 3, 2)]}]
    library = check(graph([join], {"s": kind}, {"all": ANY}), feeds)
    *wrong, last = refusals(library, WRONG_SHAPES)
    assert all("is no part of" in w or "cannot be joined" in w for w in wrong)
    assert ("is no part of" in last) if stacked else last == "it ran"


WRONG_TYPES = """
order = np.dtype("f4").newbyteorder()
for items in ([10**12], [np.array(["a"])], [np.zeros(1, order)], [np.zeros(1, "M8[s]")],
              [np.zeros(1, "V3")], [[np.array([1])]], [np.array([10**12])]):
    items = [np.array([i]) if isinstance(i, int) else i for i in items]
    refused({"s": items, "p": np.array(0)}, "run_into")
"""


@pytest.mark.parametrize(
    ("kind", "joining"),
    [("strings", 0), ("strings", 1), ("integers", 0), ("integers", 1), ("sequences", 0)],
)
def test_elements_of_other_types_are_refused(kind, joining, check):
    """Strings and boxes are numbers in a program, but no integers."""
    types = {"strings": TEXTS, "integers": ints(None), "sequences": sequence(ints(None))}
    nodes = [node("SequenceAt", ["s", "p"], ["y"])]
    if kind == "sequences":
        nodes = [node("SequenceAt", ["s", "p"], ["t"]), node("SequenceAt", ["t", "p"], ["y"])]
    if joining:
        nodes = [node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    outputs = {"y": TEXTS if kind == "strings" else ints(None)}
    inputs = {"s": sequence(types[kind]), "p": ints()}
    library = check(graph(nodes, inputs, outputs), [], [])
    number, text, order, date, void, inner, again = refusals(library, WRONG_TYPES)
    others = {"strings": "not strings", "integers": "not numbers", "sequences": "not tensors"}
    fits = {"strings": text, "integers": number, "sequences": inner}
    for message in {number, text, inner} - {fits[kind]}:
        assert others[kind] in message
    assert fits[kind] == "it ran"
    assert number == again
    assert "another byte order" in order
    assert "models have no tensors of" in date
    assert "models have no tensors of" in void


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
