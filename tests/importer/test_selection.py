"""Operators with outputs as long as the operands' elements say, and top-k, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.tensor_ir import Bind, Call
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close
from tests.reference import oracle


@pytest.mark.parametrize("kind", ["f4", "i8", "?", "u1"])
@pytest.mark.parametrize("shape", [(6,), (3, 1, 5), (2, 4)])
def test_nonzero(kind, shape, check, make_node, rng):
    graph = check(make_node("NonZero", ["x"]), {"x": rng.integers(0, 2, shape).astype(kind)})
    assert any(isinstance(n, Bind) for n in graph.nodes)


def test_nothing_is_nonzero(check, make_node):
    check(make_node("NonZero", ["x"]), {"x": np.zeros((2, 3), "f4")})


@pytest.mark.parametrize(("axis", "length"), [(None, 9), (0, 3), (1, 2), (-1, 4)])
def test_compress(axis, length, check, make_node, rng):
    inputs = {"x": rng.standard_normal((3, 4, 4)).astype("f4"), "c": rng.random(length) < 0.5}
    attributes = {} if axis is None else {"axis": axis}
    check(make_node("Compress", ["x", "c"], **attributes), inputs)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("sorted_", [0, 1])
def test_unique(axis, sorted_, check, make_node, rng):
    inputs = {"x": rng.integers(0, 2, (5, 2, 3)).astype("f4")}
    names = ("y", "first", "inverse", "counts")
    attributes = {"sorted": sorted_} | ({} if axis is None else {"axis": axis})
    check(make_node("Unique", ["x"], names, **attributes), inputs, outputs=names)


@pytest.mark.parametrize("centered", [0, 1])
@pytest.mark.parametrize("most", [0, 2, 50])
@pytest.mark.parametrize("threshold", [None, 0.4])
@pytest.mark.parametrize("fixed", [True, False])
def test_non_max_suppression(centered, most, threshold, fixed, check, make_node, rng):
    boxes = {"b": rng.random((2, 12, 4)).astype("f4"), "s": rng.random((2, 3, 12)).astype("f4")}
    limits = {"m": np.array([most]), "o": np.array([0.25], "f4")}
    if threshold is not None:
        limits["t"] = np.array([threshold], "f4")
    node = make_node("NonMaxSuppression", ["b", "s", *limits], center_point_box=centered)
    check(node, boxes if fixed else {**boxes, **limits}, limits if fixed else {}, opset=11)


def test_boxes_and_scores_whose_numbers_have_two_names(tmp_path, make_node, make_model, rng):
    x, scores = rng.random((2, 7, 4)).astype("f4"), rng.random((2, 2, 7)).astype("f4")
    inputs = {"x": x, "s": scores}
    # Boxes of which the run tells how many there are.
    nodes = [
        make_node("Slice", ["x", "zeros", "ends"], ["b"]),
        make_node("NonMaxSuppression", ["b", "s", "m", "o"]),
    ]
    constants = {"zeros": np.zeros(2, "i8"), "m": np.array([3]), "o": np.array([0.25], "f4")}
    ends = np.array([2, 7])
    model = make_model(nodes, {**inputs, "ends": ends}, ["y"], constants)
    for axis, name in enumerate(("batch", "classes", "boxes")):
        model.graph.input[1].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    (want,) = oracle(model.SerializeToString()).run(None, {**inputs, "ends": ends})
    assert interpret(graph, {**inputs, "ends": ends})["y"].tolist() == want.tolist()
    for other in ([1, 7], [2, 6]):
        with pytest.raises(UserError, match=r"the sizes .* differ"):
            interpret(graph, {**inputs, "ends": np.array(other)})


def test_boxes_and_scores_that_differ_in_number(tmp_path, make_node, make_model):
    inputs = {"b": np.zeros((1, 7, 4), "f4"), "s": np.zeros((1, 2, 5), "f4")}
    node = make_node("NonMaxSuppression", ["b", "s", "m"])
    onnx.save(make_model([node], inputs, ["y"], {"m": np.array([3])}), tmp_path / "m.onnx")
    with pytest.raises(UserError, match="differ in number"):
        import_model(tmp_path / "m.onnx")


def test_fewer_boxes_than_scores_end_the_run(tmp_path, make_node, make_model, rng):
    """Also where no size of the result is made of their number: no more than two are chosen."""
    inputs = {"b": rng.random((1, 3, 4)).astype("f4"), "s": rng.random((1, 1, 3)).astype("f4")}
    node = make_node("NonMaxSuppression", ["b", "s", "m"])
    model = make_model([node], inputs, ["y"], {"m": np.array([2])})
    model.graph.input[1].type.tensor_type.shape.dim[2].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx", dims={"n": (2, 8)})
    interpret(graph, inputs)
    for n in (2, 8):
        with pytest.raises(UserError, match=r"the sizes .* differ"):
            interpret(graph, {**inputs, "s": np.zeros((1, 1, n), "f4")})


@pytest.mark.parametrize("k", [0, 1, 4, 6])
def test_top_k_of_a_number_known_when_it_runs(k, check, make_node, rng):
    inputs = {"x": rng.integers(0, 3, (4, 6)).astype("f4"), "k": np.array([k])}
    check(make_node("TopK", ["x", "k"], ["y", "i"], axis=1), inputs, outputs=("y", "i"))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("kind", "reduced"), [("f4", (1,)), ("f2", (1,)), ("i4", (0, 1))])
def test_the_first_of_all_is_that_of_several(
    axis, largest, kind, reduced, tmp_path, make_node, make_model, rng
):
    x = rng.integers(0, 4, (3, 5, 7)).astype(kind)
    if kind != "i4":
        x[1, 2:4, 3:5], x[2, 0, 6], x[0, :, 1] = np.nan, np.inf, -np.inf
    found = []
    for k in (1, 2):
        node = make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)
        model = make_model([node], {"x": x}, ["v", "i"], {"k": np.array([k])})
        onnx.save(model, tmp_path / "m.onnx")
        graph = import_model(tmp_path / "m.onnx")
        if k == 1:
            assert any(isinstance(n, Call) for n in graph.nodes) == (largest not in reduced)
        found.append(interpret(graph, {"x": x}))
    one, two = found
    for name in ("v", "i"):
        np.testing.assert_array_equal(one[name], np.take(two[name], [0], axis), name)
    assert one["i"].dtype == np.int64


def test_a_routine_reads_an_input_with_axes_of_one_element_itself(check, make_node, rng):
    inputs = {"x": rng.standard_normal((1, 5, 1, 4)).astype("f4")}
    node = make_node("TopK", ["x", "k"], ["y", "i"], axis=1)
    graph = check(node, inputs, {"k": np.array([2])}, outputs=("y", "i"))
    assert [c.args for c in graph.nodes if isinstance(c, Call)] == [("x",)]


def test_sizes_outside_of_their_range_name_the_node(tmp_path, make_node, make_model):
    inputs = {"x": np.zeros((2, 3), "f4"), "k": np.array([4])}
    node = make_node("TopK", ["x", "k"], ["y", "i"])
    onnx.save(make_model([node], inputs, ["y"], {}), tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"TopK_y: the size k is 4, outside of 0\.\.3"):
        interpret(import_model(tmp_path / "m.onnx"), inputs)
    onnx.save(
        make_model([node], {"x": inputs["x"]}, ["y"], {"k": inputs["k"]}), tmp_path / "m.onnx"
    )
    with pytest.raises(UserError, match=r"the size k is 4, outside of 0\.\.3"):
        import_model(tmp_path / "m.onnx")


def test_what_follows_has_the_found_size(tmp_path, make_node, make_model, rng):
    x = rng.standard_normal((5, 4)).astype("f4")
    nodes = [
        make_node("Greater", ["x", "zero"], ["mask"]),
        make_node("NonZero", ["mask"], ["at"]),
        make_node("Transpose", ["at"], ["rows"]),
        make_node("GatherND", ["x", "rows"], ["found"]),
        make_node("Exp", ["found"], ["powers"]),
        make_node("ReduceSum", ["powers"], ["y"], keepdims=0),
    ]
    constants = {"zero": np.array(0, "f4"), "unused": np.array(1, "f4")}
    onnx.save(make_model(nodes, {"x": x}, ["y", "powers"], constants), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    for g in (graph, optimize(graph)):
        got = interpret(g, {"x": x})
        assert_close(got["powers"], np.exp(x[x > 0]), reduction=16)
        assert_close(got["y"], np.exp(x[x > 0]).sum(), reduction=1024)


def test_sizes_computed_apart_may_meet(check, make_node, rng):
    """Scores above a bound and their boxes: found twice, joined, multiplied."""
    x = rng.standard_normal((7, 3)).astype("f4")
    nodes = [
        make_node("Gather", ["x", "zero"], ["score"], axis=1),
        make_node("Greater", ["score", "bound"], ["mask"]),
        make_node("Compress", ["x", "mask"], ["rows"], axis=0),
        make_node("Compress", ["score", "mask"], ["top"]),
        make_node("Unsqueeze", ["top", "one"], ["column"]),
        make_node("Mul", ["rows", "column"], ["scaled"]),
        make_node("Add", ["scaled", "rows"], ["sum"]),
        make_node("Concat", ["sum", "column"], ["joined"], axis=1),
        make_node("Transpose", ["joined"], ["turned"]),
        make_node("MatMul", ["turned", "scaled"], ["y"]),
    ]
    constants = {"zero": np.array(0), "bound": np.array(-0.3, "f4"), "one": np.array([1])}
    check(nodes, {"x": x}, constants, outputs=("joined", "y"))


def test_sizes_that_differ_end_the_run(tmp_path, make_node, make_model):
    nodes = [
        make_node("NonZero", ["x"], ["a"]),
        make_node("NonZero", ["z"], ["b"]),
        make_node("Add", ["a", "b"], ["y"]),
    ]
    inputs = {"x": np.ones(3, "f4"), "z": np.array([1, 0, 1], "f4")}
    onnx.save(make_model(nodes, inputs, ["y"], {}), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"Add_y: the shapes .* do not broadcast: found"):
        interpret(graph, inputs)
    both = {"x": inputs["z"], "z": inputs["z"]}
    assert interpret(graph, both)["y"].tolist() == [[0, 4]]


def test_sizes_that_nothing_needs_are_not_computed(tmp_path, make_node, make_model):
    nodes = [
        make_node("NonZero", ["x"], ["at"]),
        make_node("Shape", ["x"], ["y"]),
        make_node("Add", ["x", "x"], ["z"]),
    ]
    model = make_model(nodes, {"x": np.zeros(3, "f4")}, ["y", "z"], {})
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert not any(isinstance(n, Bind) for n in walk_nodes(graph.nodes))
    assert graph.symbols == ()


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shape", [(12,), (3, 12)])
@pytest.mark.parametrize(("least", "longest", "skips"), [(1, 1, 3), (2, 2, 0), (1, 3, 2)])
def test_n_grams(mode, shape, least, longest, skips, check, make_node, rng):
    node = make_node(
        "TfIdfVectorizer",
        ["x"],
        mode=mode,
        min_gram_length=least,
        max_gram_length=longest,
        max_skip_count=skips,
        ngram_counts=[0, 3, 9],
        ngram_indexes=[4, 0, 2, 1, 3, 5, 6],
        pool_int64s=[1, 2, 3, 1, 2, 3, 3, 2, 1, 2, 2, 1],
        weights=[0.5, 2.0, 1.0, 3.0, 0.25, 1.5, 4.0],
    )
    check(node, {"x": rng.integers(1, 4, shape)})


@pytest.mark.parametrize("mode", ["TF", "TFIDF"])
def test_n_grams_of_one_column(mode, check, make_node):
    """ONNX Runtime adds up weights; the mode IDF has the last weight of those that it saw."""
    node = make_node(
        "TfIdfVectorizer",
        ["x"],
        mode=mode,
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 3],
        ngram_indexes=[1, 1, 0, 1, 2],
        pool_int64s=[7, 2, 1, 7, 2, 1, 1],
        weights=[10.0, 100.0, -1.0, 0.5, -3.0],
    )
    check(node, {"x": np.array([[7, 7, 2, 2, 2, 5], [1, 1, 5, 5, 7, 2]])})


def test_n_grams_of_text(tmp_path):
    node = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 1],
        ngram_indexes=[1, 0],
        pool_strings=["a", "a", "b"],
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    onnx.save(model, tmp_path / "m.onnx")
    words = np.array(["a", "b", "a", "c", "b", ""], object)
    assert interpret(import_model(tmp_path / "m.onnx"), {"x": words})["y"].tolist() == [2, 2]
