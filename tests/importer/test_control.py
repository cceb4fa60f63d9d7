"""Ifs and loops whose shapes or lengths are known at run time only, against ONNX Runtime."""

from collections import ChainMap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.importer import import_model, model
from rutc.tensor_ir import Bind, If, Scan, While
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close


def info(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def graph_of(nodes, inputs, outputs, constants=()):
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    return helper.make_graph(nodes, "inner", inputs, outputs, tensors)


def loop_body(make_node, more=(), condition="going", outputs=("next",), shapes=((3,),)):
    """(trip, going, total) -> (condition, total + x + trip, ..)."""
    nodes = [
        make_node("Cast", ["trip"], ["number"], to=TensorProto.FLOAT),
        make_node("Add", ["total", "x"], ["sum"]),
        make_node("Add", ["sum", "number"], ["next"]),
        make_node("Identity", [condition], ["go on"]),
    ]
    inputs = [info("trip", TensorProto.INT64, ()), info("going", TensorProto.BOOL, ())]
    shown = [info(n, shape=s) for n, s in zip(outputs, shapes, strict=True)]
    return graph_of(
        [*nodes[:3], *more, nodes[3]],
        [*inputs, info("total", shape=(3,))],
        [info("go on", TensorProto.BOOL, ()), *shown],
        {"limit": np.array(6.0, "f4")},
    )


def stopping(make_node):
    """The condition that the sum stays below 6."""
    return [
        make_node("ReduceSum", ["next"], ["size"], keepdims=0),
        make_node("Less", ["size", "limit"], ["small"]),
    ]


X = np.array([0.25, 1.0, -0.5], "f4")


@pytest.mark.parametrize("trips", [0, 1, 5, -3])
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("going", [True, False])
def test_trips_decided_by_inputs(trips, fixed, going, check, make_node):
    body = loop_body(make_node, outputs=("next", "sum"), shapes=((3,), (3,)))
    node = make_node("Loop", ["m", "c", "t"], ["last", "all"], body=body)
    inputs = {"x": X, "t": np.zeros(3, "f4")}
    decided = {"m": np.array(trips), "c": np.array(going)}
    given, constants = ({}, decided) if fixed else (decided, {})
    graph = check(node, {**inputs, **given}, constants, outputs=("last", "all"))
    assert any(isinstance(n, Scan) for n in graph.nodes) == (not fixed or (trips == 5 and going))


@pytest.mark.parametrize("most", [1, 2, 40])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_condition_and_stacked_outputs(most, fixed, check, make_node):
    body = loop_body(make_node, stopping(make_node), "small", ("next", "sum"), ((3,), (3,)))
    node = make_node("Loop", ["m", "", "t"], ["last", "all"], body=body)
    inputs = {"x": X, "t": np.zeros(3, "f4")} | ({} if fixed else {"m": np.array(most)})
    constants = {"m": np.array(most)} if fixed else {}
    graph = check(node, inputs, constants, outputs=("last", "all"))
    assert any(isinstance(n, Bind) for n in graph.nodes) == (not fixed or most > 1)


@pytest.mark.parametrize("m", ["", "m"])
def test_a_condition_alone(m, check, make_node):
    body = loop_body(make_node, stopping(make_node), "small")
    node = make_node("Loop", [m, "", "t"], ["y"], body=body)
    constants = {"m": np.array(2**62)} if m else {}
    graph = check(node, {"x": X, "t": np.zeros(3, "f4")}, constants)
    assert any(isinstance(n, While) for n in graph.nodes)


def growing(make_node):
    """(trip, going, total) -> (going, total joined with x)."""
    nodes = [
        make_node("Concat", ["total", "x"], ["next"], axis=0),
        make_node("Identity", ["going"], ["go on"]),
    ]
    inputs = [
        info("trip", TensorProto.INT64, ()),
        info("going", TensorProto.BOOL, ()),
        info("total", shape=("n",)),
    ]
    outputs = [info("go on", TensorProto.BOOL, ()), info("next", shape=("m",))]
    return graph_of(nodes, inputs, outputs)


def test_states_that_grow_are_written_out(check, make_node):
    node = make_node("Loop", ["m", "", "t"], ["y"], body=growing(make_node))
    graph = check(node, {"x": X, "t": np.ones(1, "f4")}, {"m": np.array(4)})
    assert graph.extents[graph.outputs[0].axes[0]].value == 13


def test_nothing_but_the_condition_limits_stacked_outputs(check, make_node):
    body = loop_body(make_node, stopping(make_node), "small", ("next", "sum"), ((3,), (3,)))
    node = make_node("Loop", ["", "", "t"], ["last", "y"], body=body)
    graph = check(node, {"x": X, "t": np.zeros(3, "f4")}, outputs=("last", "y"))
    assert any(isinstance(n, While) for n in graph.nodes)


def test_loops_that_never_end(tmp_path, make_node, make_model):
    inputs = {"x": X, "t": np.zeros(3, "f4")}
    endless = make_node("Loop", ["", "", "t"], ["y"], body=loop_body(make_node))
    onnx.save(make_model([endless], inputs, ["y"], {}), tmp_path / "m.onnx")
    with pytest.raises(UserError, match="never ends"):
        import_model(tmp_path / "m.onnx")


def test_loops_in_loops_and_what_they_capture(check, make_node):
    inner = graph_of(
        [
            make_node("Mul", ["part", "x"], ["scaled"]),
            make_node("Add", ["scaled", "total"], ["more"]),
            make_node("Identity", ["go"], ["go2"]),
        ],
        [info("k", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("part")],
        [info("go2", TensorProto.BOOL, ()), info("more"), info("scaled")],
    )
    nodes = [
        make_node("Loop", ["m", "", "total"], ["next", "rows"], body=inner),
        make_node("ReduceSum", ["rows", "zero"], ["row"], keepdims=0),
        make_node("Identity", ["going"], ["go on"]),
    ]
    outer = graph_of(
        nodes,
        [info("i", TensorProto.INT64, ()), info("going", TensorProto.BOOL, ()), info("total")],
        [info("go on", TensorProto.BOOL, ()), info("next"), info("row")],
        {"zero": np.array([0])},
    )
    node = make_node("Loop", ["m", "", "t"], ["last", "all"], body=outer)
    inputs = {"x": X, "t": np.ones(3, "f4"), "m": np.array(3)}
    check(node, inputs, outputs=("last", "all"))


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_of_different_shapes(chosen, check, make_node, rng):
    then = graph_of(
        [make_node("Slice", ["x", "zero", "two"], ["part"])], [], [info("part", shape=(None, 3))]
    )
    orelse = graph_of([make_node("Neg", ["x"], ["whole"])], [], [info("whole", shape=(None, 3))])
    nodes = [
        make_node("If", ["c"], ["chosen"], then_branch=then, else_branch=orelse),
        make_node("ReduceSum", ["chosen", "one"], ["y"], keepdims=0),
    ]
    constants = {"zero": np.array([0]), "two": np.array([2]), "one": np.array([1])}
    inputs = {"c": np.array(chosen), "x": rng.standard_normal((5, 3)).astype("f4")}
    check(nodes, inputs, constants, outputs=("chosen", "y"))


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_that_compute_their_size(chosen, check, make_node, rng):
    then = graph_of([make_node("NonZero", ["x"], ["at"])], [], [info("at", TensorProto.INT64)])
    orelse = graph_of(
        [
            make_node("Greater", ["x", "half"], ["mask"]),
            make_node("NonZero", ["mask"], ["above"]),
            make_node("Add", ["above", "above"], ["twice"]),
        ],
        [],
        [info("twice", TensorProto.INT64)],
        {"half": np.array(0.5, "f4")},
    )
    node = make_node("If", ["c"], then_branch=then, else_branch=orelse)
    x = rng.integers(0, 2, (2, 7)).astype("f4") * rng.random((2, 7)).astype("f4")
    graph = check(node, {"c": np.array(chosen), "x": x})
    ifs = [n for n in graph.nodes if isinstance(n, If)]
    assert len(ifs) == 1
    assert any(isinstance(n, Bind) for n in walk_nodes(ifs[0].then.nodes))


def test_branches_of_different_rank(tmp_path, make_node, make_model):
    then = graph_of([make_node("Identity", ["x"], ["a"])], [], [info("a")])
    orelse = graph_of([make_node("ReduceSum", ["x"], ["b"], keepdims=0)], [], [info("b")])
    node = make_node("If", ["c"], then_branch=then, else_branch=orelse)
    onnx.save(make_model([node], {"c": np.array(True), "x": X}, ["y"], {}), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    for chosen, want in ((True, X), (False, X.sum())):
        (box,) = interpret(graph, {"c": np.array(chosen), "x": X})["y"]
        np.testing.assert_allclose(box.array, want)
    fixed = import_model(tmp_path / "m.onnx", values={"c": np.array(False)})
    assert interpret(fixed, {"c": np.array(False), "x": X})["y"] == pytest.approx(0.75)


def diverging(make_node):
    """An if that gives x or its sum over the last axis, and what makes one rank of both."""
    then = graph_of([make_node("Identity", ["x"], ["a"])], [], [info("a")])
    axes = {"last": np.array([-1])}
    reduced = make_node("ReduceSum", ["x", "last"], ["b"], keepdims=0)
    orelse = graph_of([reduced], [], [info("b")], axes)
    return [
        make_node("If", ["c"], ["chosen"], then_branch=then, else_branch=orelse),
        make_node("Shape", ["chosen"], ["shape"]),
        make_node("Size", ["shape"], ["rank"]),
        make_node("Reshape", ["chosen", "flat"], ["line"]),
    ]


@pytest.mark.parametrize("chosen", [True, False])
def test_what_follows_branches_of_different_rank(chosen, check, make_node, rng):
    inputs = {"c": np.array(chosen), "x": rng.standard_normal((2, 7)).astype("f4")}
    nodes = [*diverging(make_node), make_node("Mul", ["line", "line"], ["y"])]
    graph = check(nodes, inputs, {"flat": np.array([-1])}, outputs=("y", "rank"))
    assert sum(isinstance(n, If) for n in graph.nodes) == 1


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_ranks_that_differ_twice(chosen, again, check, make_node, rng):
    """The rank after the second if depends on both conditions."""
    one = {"first": np.array([0])}
    lifted = make_node("Unsqueeze", ["line", "first"], ["p"])
    then = graph_of([lifted], [], [info("p")], one)
    orelse = graph_of([make_node("Identity", ["line"], ["q"])], [], [info("q")])
    nodes = [
        *diverging(make_node),
        make_node("If", ["d"], ["second"], then_branch=then, else_branch=orelse),
        make_node("ReduceMean", ["second"], ["y"], keepdims=0),
    ]
    inputs = {"c": np.array(chosen), "d": np.array(again)}
    inputs["x"] = rng.standard_normal((2, 5)).astype("f4")
    check(nodes, inputs, {"flat": np.array([-1])}, outputs=("y", "rank"))


@pytest.mark.parametrize("extent", [1, 3])
def test_a_branch_in_which_the_rank_does_not_fit(extent, tmp_path, make_node, make_model, rng):
    """Squeezing depends on a size that is told in the run: one branch cannot work at all."""
    then = graph_of([make_node("Squeeze", ["x", "last"], ["a"])], [], [info("a")])
    orelse = graph_of([make_node("Identity", ["x"], ["b"])], [], [info("b")])
    nodes = [
        make_node("Shape", ["x"], ["shape"], start=-1),
        make_node("Equal", ["shape", "one"], ["c"]),
        make_node("If", ["c"], ["chosen"], then_branch=then, else_branch=orelse),
        make_node("Gemm", ["chosen", "w"]),
    ]
    constants = {"last": np.array([-1]), "one": np.array([1])}
    constants["w"] = rng.standard_normal((3, 2)).astype("f4")
    x = rng.standard_normal((2, 3, extent)).astype("f4")
    model = make_model(nodes, {"x": x}, ["y"], constants)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    if extent == 1:
        assert_close(interpret(graph, {"x": x})["y"], x[..., 0] @ constants["w"], reduction=1024)
    else:
        told = r"takes the else branch of 'If_chosen', which was left out, as Gemm"
        with pytest.raises(UserError, match=told):
            interpret(graph, {"x": x})


def test_squeezing_a_size_that_turns_out_not_to_be_one(tmp_path, make_node, make_model, rng):
    model = make_model([make_node("Squeeze", ["x", "axes"])], {"x": X[:, None]}, ["y"], {})
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(interpret(graph, {"x": X[:, None]})["y"], X)
    for extent in (0, 2):
        with pytest.raises(UserError, match=r"axis 1 of .* is left out"):
            interpret(graph, {"x": np.zeros((3, extent), "f4")})


def nested_ifs(depth, values):
    """A model of so many ifs inside each other, after so many other nodes."""

    def branch(level, op):
        last = f"{op}{level}"
        if level == depth or op == "Neg":
            nodes = [helper.make_node(op, [f"v{values}"], [last])]
        else:
            inner = {f"{k}_branch": branch(level + 1, o) for k, o in BRANCHES}
            nodes = [helper.make_node("If", ["c"], [last], **inner)]
        return helper.make_graph(nodes, "branch", [], [info(last)])

    outside = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(values)]
    chosen = {f"{k}_branch": branch(1, o) for k, o in BRANCHES}
    node = helper.make_node("If", ["c"], ["y"], **chosen)
    inputs = [info("c", TensorProto.BOOL, ()), info("v0", shape=(3,))]
    graph = helper.make_graph([*outside, node], "net", inputs, [info("y", shape=(3,))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


BRANCHES = (("then", "Abs"), ("else", "Neg"))


def test_what_graphs_around_have_is_not_copied_into_each(tmp_path, monkeypatch):
    """That would take a time that grows with the square of the nodes."""
    onnx.save(nested_ifs(8, 100), tmp_path / "m.onnx")
    depths, gone_over = [], []

    class Watched(ChainMap):
        def __init__(self, *maps):
            super().__init__(*maps)
            depths.append(len(self.maps))

        def __iter__(self):
            gone_over.append(len(self.maps))
            return super().__iter__()

    monkeypatch.setattr(model, "Environment", Watched)
    graph = import_model(tmp_path / "m.onnx")
    assert sum(isinstance(n, If) for n in walk_nodes(graph.nodes)) == 8
    assert max(depths) == 9
    assert not gone_over
