"""Optionals and ranks that the run decides."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import rutc
from rutc.errors import UserError
from rutc.runtime.errors import ModelError
from tests.run_time_structure.models import (
    ANY,
    BOOL,
    body,
    floats,
    graph,
    ints,
    node,
    optional,
    rows,
    sequence,
)


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


def of_two_ranks():
    """The node of y: x, or the sum of all of x."""
    then = graph([node("Identity", ["x"], ["a"])], {}, {"a": ANY})
    orelse = graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], {}, {"b": ANY})
    return node("If", ["c"], ["y"], then_branch=then, else_branch=orelse)


def test_branches_of_different_rank(check):
    nodes = [
        of_two_ranks(),
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
    chosen = of_two_ranks()
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


def test_one_element_joins_a_tensor_of_any_rank(check):
    """A result has the rank of the longer shape."""
    nodes = [
        of_two_ranks(),
        node("Add", ["y", "row"], ["one"]),
        node("Div", ["cube", "y"], ["three"]),
        node("Sub", ["scalar", "y"], ["same"]),
        node("Less", ["y", "row"], ["less"]),
    ]
    inner = graph(nodes, {"c": BOOL, "x": floats("k", 2)}, {})
    inner.output.extend(onnx.ValueInfoProto(name=n) for n in ("one", "three", "same", "less"))
    constants = {"row": [1.5], "cube": [[[2.0]]], "scalar": 4.0}
    inner.initializer.extend(
        numpy_helper.from_array(np.array(a, np.float32), n) for n, a in constants.items()
    )
    check(inner, [{"c": np.array(c), "x": rows(k, 2)} for c in (True, False) for k in (1, 3)])
