"""Functions that a model brings along: attributes, nesting, overloads, their own opsets."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests.close import assert_close

DOMAIN = "own.functions"
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")


def referring(node, name, parameter, kind):
    """`node` with an attribute that takes a parameter of the function around it."""
    node.attribute.append(AttributeProto(name=name, ref_attr_name=parameter, type=kind))
    return node


def function(name, inputs, outputs, nodes, attributes=(), opset=21, defaults=(), overload=""):
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    made = helper.make_function(
        DOMAIN,
        name,
        inputs,
        outputs,
        nodes,
        imports,
        attributes=attributes,
        attribute_protos=defaults,
    )
    made.overload = overload
    return made


def model(nodes, functions, opset=21):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    graph = helper.make_graph(nodes, "test", [x], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def call(name, inputs, outputs=("y",), **attributes):
    title = f"{name}_{outputs[0]}"
    return helper.make_node(name, inputs, outputs, name=title, domain=DOMAIN, **attributes)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


@pytest.fixture
def check(tmp_path):
    """`check(model)`: the interpreted import against ONNX Runtime, or what is expected."""

    def run(made, expected=None):
        path = tmp_path / "model.onnx"
        onnx.save(made, path)
        graph = import_model(path)
        verify(graph)
        if expected is None:
            session = onnxruntime.InferenceSession(
                made.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            (expected,) = session.run(["y"], {"x": X})
        got = interpret(graph, {"x": X})["y"]
        assert_close(got, expected, reduction=1024)

    return run


def scaled():
    """`scaled(x; by, axis = 1)`: x * by, normalised along the axis."""
    return function(
        "Scaled",
        ["a"],
        ["c"],
        [
            referring(node("Constant", [], ["k"]), "value_float", "by", AttributeProto.FLOAT),
            node("Mul", ["a", "k"], ["b"]),
            referring(node("Softmax", ["b"], ["c"]), "axis", "axis", AttributeProto.INT),
        ],
        ["by"],
        defaults=[helper.make_attribute("axis", 1)],
    )


def test_attributes_and_their_defaults(check):
    first, second = call("Scaled", ["x"], ["z"], by=2.0), call("Scaled", ["z"], by=3.0, axis=-1)
    check(model([first, second], [scaled()]))


def test_functions_that_call_functions(check):
    outer = function(
        "Twice",
        ["a"],
        ["b"],
        [call("Scaled", ["a"], ["c"], by=0.5, axis=0), call("Scaled", ["c"], ["b"], by=1.5)],
    )
    check(model([call("Twice", ["x"], ["z"]), call("Twice", ["z"])], [outer, scaled()]))


def test_inputs_that_are_left_out(check):
    clip = function(
        "Bound", ["a", "low", "high"], ["b"], [node("Clip", ["a", "low", "high"], ["b"])]
    )
    limit = node("Constant", [], ["limit"], value_float=0.25)
    check(model([limit, call("Bound", ["x", "", "limit"])], [clip]))


def test_a_function_of_an_older_opset(check):
    old = function("Flat", ["a"], ["b"], [node("Softmax", ["a"], ["b"])], opset=12)
    # Before opset 13 Softmax takes all axes from the second on together.
    raised = np.exp(X)
    check(model([call("Flat", ["x"])], [old]), raised / raised.sum((1, 2), keepdims=True))


def test_a_function_of_an_older_opset_that_converts_what_it_computes(check):
    nodes = [node("Mul", ["a", "w"], ["c"]), node("ReduceSum", ["c"], ["b"], axes=[1])]
    old = function("Weighed", ["a", "w"], ["b"], nodes, opset=12)
    made = model([call("Weighed", ["x", "weights"])], [old])
    weights = np.arange(4, dtype=np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    check(made, (X * weights).sum(1, keepdims=True))


def test_a_model_of_an_older_opset(check):
    older = function("Shorter", ["a"], ["b"], [node("ReduceSum", ["a"], ["b"], axes=[1])], opset=12)
    check(model([call("Shorter", ["x"])], [older], opset=12))


def newer(opset):
    """`newer(a)`: the softmax along axis 1, which before opset 13 takes all axes from there on."""
    return function("Newer", ["a"], ["b"], [node("Softmax", ["a"], ["b"], axis=1)], opset=opset)


@pytest.mark.parametrize(("inside", "outside"), [(13, 12), (18, 11), (21, 7)])
def test_a_function_of_a_newer_opset(inside, outside, check):
    raised = np.exp(X)
    nodes = [call("Newer", ["x"], ["z"]), node("Transpose", ["z"], ["y"], perm=[2, 0, 1])]
    wanted = (raised / raised.sum(1, keepdims=True)).transpose(2, 0, 1)
    check(model(nodes, [newer(inside)], opset=outside), wanted)


@pytest.mark.parametrize("outside", ["", "ai.onnx"])
@pytest.mark.parametrize("inside", ["", "ai.onnx"])
@pytest.mark.parametrize("of_node", ["", "ai.onnx"])
@pytest.mark.parametrize("opsets", [(12, 13), (13, 12)])
def test_the_standard_s_domain_has_two_names(outside, inside, of_node, opsets, check):
    own = newer(opsets[0])
    own.node[0].domain = of_node
    made = model([call("Newer", ["x"])], [own], opset=opsets[1])
    for owner, name in ((made, outside), (made.functions[0], inside)):
        owner.opset_import[0].domain = name
    raised = np.exp(X)
    check(made, raised / raised.sum(1 if opsets[0] == 13 else (1, 2), keepdims=True))


def test_older_and_newer_functions_together(check):
    old = function("Flat", ["a"], ["b"], [node("Softmax", ["a"], ["b"])], opset=12)
    raised = np.exp(X)
    once = raised / raised.sum((1, 2), keepdims=True)
    wanted = np.exp(once) / np.exp(once).sum(1, keepdims=True)
    made = model([call("Flat", ["x"], ["z"]), call("Newer", ["z"])], [old, newer(18)], opset=16)
    check(made, wanted)


def test_a_function_of_an_opset_at_which_the_model_means_something_else(check):
    nodes = [call("Newer", ["x"], ["z"]), node("Softmax", ["z"], ["y"])]
    with pytest.raises(UserError, match=r"Newer is of opset 13, the model of opset 12, where Soft"):
        check(model(nodes, [newer(13)], opset=12))


def test_functions_in_branches(check):
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, X.shape)
    branches = {
        "then_branch": helper.make_graph([call("Scaled", ["x"], ["w"], by=2.0)], "a", [], [out]),
        "else_branch": helper.make_graph([node("Neg", ["x"], ["w"])], "b", [], [out]),
    }
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Constant", [], ["zero"], value_float=0.0),
        node("Less", ["zero", "sum"], ["positive"]),
        node("If", ["positive"], ["y"], **branches),
    ]
    check(model(nodes, [scaled()]))


def test_a_function_of_an_older_opset_whose_branches_read_its_values(check):
    """Conversion would ask for types that the branches find outside; nothing needs one."""
    inner = function("inner", ["a"], ["b"], [node("Exp", ["a"], ["b"])], opset=14)
    then = helper.make_graph(
        [node("Mul", ["twice", "twice"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")]
    )
    orelse = helper.make_graph(
        [call("inner", ["twice"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")]
    )
    nodes = [
        node("Add", ["a", "a"], ["twice"]),
        node("ReduceSum", ["a"], ["total"], keepdims=0),
        node("Less", ["total", "a0"], ["small"]),
        node("If", ["small"], ["b"], then_branch=then, else_branch=orelse),
    ]
    outer = function("outer", ["a", "a0"], ["b"], nodes, opset=16)
    zero = node("Constant", [], ["zero"], value_float=0.0)
    check(model([zero, call("outer", ["x", "zero"])], [inner, outer], opset=18))


def test_overloads(check):
    one = function("Change", ["a"], ["b"], [node("Neg", ["a"], ["b"])], overload="negated")
    two = function("Change", ["a"], ["b"], [node("Exp", ["a"], ["b"])], overload="raised")
    calls = [call("Change", ["x"], ["z"]), call("Change", ["z"])]
    calls[0].overload, calls[1].overload = "negated", "raised"
    check(model(calls, [one, two]))


def test_a_function_that_calls_itself_is_an_error(tmp_path):
    again = function("Again", ["a"], ["b"], [call("Again", ["a"], ["b"])])
    path = tmp_path / "model.onnx"
    onnx.save(model([call("Again", ["x"])], [again]), path)
    with pytest.raises(UserError, match="Again"):
        import_model(path)
