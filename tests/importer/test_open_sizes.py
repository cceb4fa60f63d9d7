"""Sizes whose range nobody states, and what a model itself says of them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.emit.host_program.step_tables import MAX_SYMBOLS
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.importer.building.expressions import OperatorError
from rutc.importer.fitting import fitted
from rutc.importer.free_sizes.common_sizes import SIDE
from rutc.importer.free_sizes.inputs import Inputs
from rutc.importer.registry import OPERATORS
from rutc.runtime import ModelError
from rutc.tensor_ir import If
from rutc.tensor_ir.indices.ranges import COMMON_SIZE, common_sizes, without_common
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.onnx_files import i64

TABLE = np.arange(33 * 4, dtype="f4").reshape(33, 4)


def text_model(path, nodes, **constants):
    """A model of x{batch, seq, 4}, a table of 33 rows and constants."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 4])
    data = [numpy_helper.from_array(a, n) for n, a in {"table": TABLE, **constants}.items()]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], data)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


@pytest.fixture
def cut(tmp_path):
    """x plus the first rows of the table, as many as x has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"], name="plus"),
    ]
    return text_model(tmp_path / "m.onnx", nodes, zero=i64(0))


@pytest.fixture
def looked_up(tmp_path):
    """x plus the rows 0, 1, .. of the table, looked up one by one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["at"]),
        helper.make_node("Unsqueeze", ["at", "axes"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["rows"], name="look"),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "axes": i64(0)}
    return text_model(tmp_path / "m.onnx", nodes, **constants)


@pytest.mark.parametrize("model", ["cut", "looked_up"])
def test_a_table_limits_the_length(model, request):
    """No text is longer than the table: the size's range says so, and nothing is checked."""
    g = import_model(request.getfixturevalue(model))
    assert without_common(dict(g.symbols)) == {"batch": (0, 1 << 31), "seq": (0, 33)}
    x = np.ones((2, 9, 4), "f4")
    np.testing.assert_array_equal(interpret(g, {"x": x})["y"], x + TABLE[:9])


@pytest.mark.parametrize(
    ("model", "message"),
    [("cut", "plus: the sizes seq and .* differ"), ("looked_up", "look: the index 39 is out")],
)
def test_a_stated_range_stands(model, message, request):
    g = import_model(request.getfixturevalue(model), dims={"seq": (2, 100)})
    assert dict(g.symbols)["seq"] == (2, 100)
    x = np.ones((2, 33, 4), "f4")
    np.testing.assert_array_equal(interpret(g, {"x": x})["y"], x + TABLE)
    with pytest.raises(UserError, match=message):
        interpret(g, {"x": np.ones((2, 40, 4), "f4")})


@pytest.mark.parametrize(
    "dims", [{"seq": 40}, {"seq": 40, "batch": 2}, {"seq": 40, "batch": (1, 8)}]
)
def test_a_fixed_size_that_is_none_of_the_models_is_told(dims, cut):
    """What is wrong is the size that was given, not one that is open."""
    with pytest.raises(UserError) as refused:
        import_model(cut, dims=dims)
    said = str(refused.value)
    assert said.startswith("--dim seq=40 does not fit: the model takes 0..33: Add (node")
    assert "batch=" not in said
    assert "fixing the symbolic sizes" not in said


def test_other_errors_say_what_they_say_without_a_size(cut):
    with pytest.raises(UserError, match=r"^a size is given for 'n', which no input has"):
        import_model(cut, dims={"n": 40})


def test_a_branch_says_nothing_of_a_size(tmp_path):
    """Long texts are right where the other branch is taken."""
    then = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
            helper.make_node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
            helper.make_node("Add", ["x", "rows"], ["a"], name="plus"),
        ],
        "then",
        [],
        [onnx.ValueInfoProto(name="a")],
    )
    orelse = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "else", [], [onnx.ValueInfoProto(name="b")]
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["small"]),
        helper.make_node("If", ["small"], ["y"], then_branch=then, else_branch=orelse),
    ]
    path = text_model(tmp_path / "m.onnx", nodes, zero=i64(0), limit=np.array(2, "f4"))
    g = import_model(path)
    assert dict(g.symbols)["seq"] == (0, 1 << 31)
    x = np.full((1, 40, 4), 3, "f4")
    np.testing.assert_array_equal(interpret(g, {"x": x})["y"], -x)


def cached(path, total):
    """A model of past{batch, past, 3}, new{batch, seq, 3} and a mask of `total` positions."""
    float_, int_ = TensorProto.FLOAT, TensorProto.INT64
    infos = [
        helper.make_tensor_value_info("past", float_, ["batch", "past", 3]),
        helper.make_tensor_value_info("new", float_, ["batch", "seq", 3]),
        helper.make_tensor_value_info("mask", int_, ["batch", total]),
    ]
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["all"], axis=1),
        helper.make_node("Cast", ["mask"], ["m"], to=float_),
        helper.make_node("Unsqueeze", ["m", "last"], ["column"]),
        helper.make_node("Mul", ["all", "column"], ["y"], name="times"),
    ]
    data = [numpy_helper.from_array(i64(2), "last")]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], data)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


@pytest.mark.parametrize("total", ["past + seq", "past+seq", "total"])
def test_a_size_may_be_a_formula_of_others(total, tmp_path, rng):
    """Then it is known to fit; a name for it does as well, and is checked in the run."""
    path = cached(tmp_path / "m.onnx", total)
    g = import_model(path, dims={"past": (0, 64)})
    symbols = ["batch", "past", "seq"]
    assert [s for s, _ in g.symbols][: len(symbols)] == symbols
    assert (len(g.symbols) == len(symbols)) == (total != "total")
    feed = {n: rng.standard_normal((2, k, 3)).astype("f4") for n, k in (("past", 5), ("new", 2))}
    whole = np.concatenate([feed["past"], feed["new"]], 1)
    mask = rng.integers(0, 2, (2, 7))
    y = interpret(g, {**feed, "mask": mask})["y"]
    np.testing.assert_array_equal(y, whole * mask[..., None])


def test_a_run_with_another_size_than_the_formula_says_fails(tmp_path):
    path = cached(tmp_path / "m.onnx", "past + seq")
    rutc.compile(path, tmp_path / "m.so")
    with rutc.load(tmp_path / "m.so") as session:
        feed = {"past": np.ones((1, 4, 3), "f4"), "new": np.ones((1, 2, 3), "f4")}
        assert session.run(None, {**feed, "mask": np.ones((1, 6), "i8")})[0].sum() == 18
        with pytest.raises(ModelError, match=r"mask.*\[1, 6\].*\[1, 5\]"):
            session.run(None, {**feed, "mask": np.ones((1, 5), "i8")})


def two(path, name):
    """A model of x[n] and y of a size of this name, each doubled."""
    infos = [
        helper.make_tensor_value_info(i, TensorProto.FLOAT, [s])
        for i, s in (("x", "n"), ("y", name))
    ]
    nodes = [helper.make_node("Add", [i, i], [o]) for i, o in ("xa", "yb")]
    results = [onnx.ValueInfoProto(name=o) for o in "ab"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos, results)), path)
    return path


@pytest.mark.parametrize("name", ["n + 1.5", "n+" + "9" * 5000, "n*1e3", "n + m"])
def test_a_name_that_is_no_formula_is_a_size_of_its_own(name, tmp_path):
    g = import_model(two(tmp_path / "m.onnx", name))
    assert len(g.symbols) == 2


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("n-5", {"n": 2}, "input 'y': .* -3, which is negative"),
        ("n-5", {"n": (1, 4)}, "input 'y': .* n - 5, which is negative"),
        ("n", {"n": (1, 1 << 63)}, "'n': 1..9223372036854775808 are no sizes"),
        ("n", {"n": (-2, 4)}, "'n': -2..4 are no sizes"),
    ],
)
def test_sizes_that_no_axis_has(name, dims, message, tmp_path):
    path = two(tmp_path / "m.onnx", name)
    with pytest.raises(UserError, match=message):
        import_model(path, dims=dims)


def chain(path, length):
    """A model of x[n] whose output has a size that follows from n in so many steps."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    for k in range(length):
        nodes += [
            helper.make_node("Mul", [f"s{k}", "three"], [f"a{k}"]),
            helper.make_node("Add", [f"a{k}", "one"], [f"b{k}"]),
            helper.make_node("Div", [f"b{k}", "four"], [f"s{k + 1}"]),
        ]
    nodes.append(helper.make_node("ConstantOfShape", [f"s{length}"], ["y"]))
    return told(path, nodes, {"x": ["n"]}, one=i64(1), three=i64(3), four=i64(4))


def test_a_size_may_follow_from_another_in_many_steps(tmp_path):
    path = chain(tmp_path / "m.onnx", 64)
    rutc.compile(path, tmp_path / "m.so", verify=False)
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": np.zeros(9999, "f4")})
    with rutc.load(tmp_path / "m.so") as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.zeros(9999, "f4")})[0], want)


@pytest.mark.parametrize("length", [65, 450])
def test_a_size_may_not_follow_from_another_in_any_number_of_steps(length, tmp_path):
    with pytest.raises(UserError, match=r"Div \(node 's65'\).*more than 64 steps.*--dim"):
        import_model(chain(tmp_path / "m.onnx", length))


def test_sizes_that_no_recursion_reaches(tmp_path, monkeypatch):
    def deep(*_):
        raise RecursionError

    monkeypatch.setitem(OPERATORS, ("", "Exp"), deep)
    path = told(
        tmp_path / "m.onnx", [helper.make_node("Exp", ["x"], ["y"], name="e")], {"x": ["n"]}
    )
    with pytest.raises(UserError, match=r"Exp \(node 'e'\).*too many steps"):
        import_model(path)


EVEN_SIDES = [
    helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Resize", ["half", "", "twice"], ["again"]),
    helper.make_node("Concat", ["x", "again"], ["y"], axis=1),
]
FACTORS = np.array([1, 1, 2, 2], "f4")


@pytest.mark.parametrize("error", [OperatorError, KeyboardInterrupt])
def test_what_fails_at_some_sizes_is_imported_again_without_them_and_what_ends_is_not(
    error, tmp_path, monkeypatch
):
    concat = OPERATORS["", "Concat"]

    def ended(b, *args, **attributes):
        made = concat(b, *args, **attributes)
        if b.told:
            raise error
        return made

    monkeypatch.setitem(OPERATORS, ("", "Concat"), ended)
    path = told(tmp_path / "m.onnx", EVEN_SIDES, {"x": ["n", "c", "h", "w"]}, twice=FACTORS)
    if error is OperatorError:
        assert [s for s, _ in import_model(path).symbols] == ["n", "c", "h/2", "w/2"]
    else:
        with pytest.raises(error):
            import_model(path)


def test_many_symbolic_elements(tmp_path):
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Concat", [f"s{k}"] * 2, [f"s{k + 1}"], axis=0) for k in range(11)]
    nodes.append(helper.make_node("Add", ["s11", "places"], ["y"]))
    path = told(tmp_path / "m.onnx", nodes, {"x": ["n"]}, places=np.arange(2048))
    rutc.compile(path, tmp_path / "m.so", verify=False)
    with rutc.load(tmp_path / "m.so") as session:
        (y,) = session.run(None, {"x": np.zeros(7, "f4")})
    np.testing.assert_array_equal(y, 7 + np.arange(2048))


def told(path, nodes, shapes, opset=17, **constants):
    """A model of inputs with symbolic sizes."""
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()
    ]
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name="y")], data)
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def test_a_node_tells_of_several_sizes_at_once(tmp_path, monkeypatch):
    """Both sides of a picture are even: the import begins again once, not for each."""
    path = told(tmp_path / "m.onnx", EVEN_SIDES, {"x": ["n", "c", "h", "w"]}, twice=FACTORS)
    learned = []
    learn = Inputs.learn
    monkeypatch.setattr(
        Inputs, "learn", lambda self, found: learned.append(learn(self, found)) or learned[-1]
    )
    g = import_model(path)
    even = (2, 1 << 31, 2)
    assert learned[-1] == {"h": even, "w": even}
    assert all(of.keys() == {"h", "w"} for of in learned)
    assert [s for s, _ in g.symbols] == ["n", "c", "h/2", "w/2"]


OPEN = (0, 1 << 31)
TOLD = {
    "channels of a convolution": (
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        {"x": ["n", "c", "h", 5]},
        {"w": np.ones((4, 3, 2, 2), "f4")},
        {"n": OPEN, "h": (2, 1 << 31)},
        {"x": (2, 3, 5, 5)},
    ),
    "windows of windows": (
        [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[4, 4], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["a", "v"], ["y"], strides=[8, 8]),
        ],
        {"x": ["n", 3, "h", 40]},
        {"w": np.ones((4, 3, 3, 3), "f4"), "v": np.ones((2, 4, 8, 8), "f4")},
        {"n": OPEN, "h": (29, 1 << 31)},
        {"x": (2, 3, 31, 40)},
    ),
    "windows of a pool": (
        [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
            helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], strides=[2, 2]),
            helper.make_node("AveragePool", ["b"], ["y"], kernel_shape=[2, 1]),
        ],
        {"x": ["n", 3, "h", 40]},
        {"w": np.ones((4, 3, 5, 5), "f4")},
        {"n": OPEN, "h": (13, 1 << 31)},
        {"x": (2, 3, 13, 40)},
    ),
    "windows of integers": (
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("ConvInteger", ["q", "w", "z"], ["i"], strides=[2, 2]),
            helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ["n", 3, "h", 40]},
        {"w": np.ones((4, 3, 5, 5), "u1")},
        {"n": OPEN, "h": (5, 1 << 31)},
        {"x": (2, 3, 7, 40)},
    ),
    "kernel of a convolution": (
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[2, 3])],
        {"x": ["n", "c", "h", 5], "w": ["o", "k", "a", "b"]},
        {},
        {"n": OPEN, "c": OPEN, "h": (2, 1 << 31), "o": OPEN},
        {"x": (2, 3, 5, 5), "w": (4, 3, 2, 3)},
    ),
    "parts of a split": (
        [
            helper.make_node("Split", ["x", "parts"], ["a", "b"], axis=1),
            helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
        ],
        {"x": ["n", "m"]},
        {"parts": i64(2, 3)},
        {"n": OPEN},
        {"x": (2, 5)},
    ),
    "inner size of a product": (
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["n", "k"], "w": ["j", 7]},
        {},
        {"n": OPEN, "k": OPEN},
        {"x": (2, 5), "w": (5, 7)},
    ),
    "rows of a reshape, whatever the batch": (
        [
            helper.make_node("Shape", ["x"], ["b"], start=1, end=2),
            helper.make_node("Concat", ["rows", "b", "width"], ["s"], axis=0),
            helper.make_node("Reshape", ["x", "s"], ["y"]),
        ],
        {"x": ["n", "b", 6]},
        {"rows": i64(10), "width": i64(6)},
        {"b": OPEN},
        {"x": (10, 3, 6)},
    ),
    "hidden size": (
        [helper.make_node("RNN", ["x", "w", "r"], ["", "y"], hidden_size=3)],
        {"x": ["t", "n", "f"], "w": [1, "a", "g"], "r": [1, "b", "h"]},
        {},
        {"t": OPEN, "n": OPEN, "f": OPEN},
        {"x": (4, 2, 5), "w": (1, 3, 5), "r": (1, 3, 3)},
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_operators_tell_sizes(case, tmp_path, rng):
    nodes, shapes, constants, expected, sizes = TOLD[case]
    path = told(tmp_path / "m.onnx", nodes, shapes, **constants)
    g = import_model(path)
    assert without_common(dict(g.symbols)) == expected
    feed = {n: rng.standard_normal(s).astype("f4") for n, s in sizes.items()}
    (want,) = onnxruntime.InferenceSession(path).run(None, feed)
    assert_close(interpret(g, feed)["y"], want, level=Level.MODEL)


def test_a_reshape_that_may_not_fit_is_checked_in_the_run(tmp_path, rng):
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], name="turn")]
    path = told(tmp_path / "m.onnx", nodes, {"x": ["a", "b"]}, s=i64(2, 3, 5))
    rutc.compile(path, tmp_path / "m.so", verify=False)
    with rutc.load(tmp_path / "m.so") as session:
        for shape in ((6, 5), (30, 1), (2, 15)):
            x = rng.standard_normal(shape).astype("f4")
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(2, 3, 5))
        with pytest.raises(ModelError, match=r"turn: f32\[a, b\] cannot be reshaped to \[2, 3, 5"):
            session.run(None, {"x": np.zeros((7, 5), "f4")})


def test_a_check_copies_nothing_but_a_bias(tmp_path, rng):
    """Keys of an encoder, whose number of texts is another size than a decoder's."""
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["keys"]),
        helper.make_node("Shape", ["z"], ["texts"], end=1),
        helper.make_node("Concat", ["texts", "rest"], ["s"], axis=0),
        helper.make_node("Reshape", ["keys", "s"], ["split"], name="turn"),
        helper.make_node("Transpose", ["split"], ["y"], perm=[0, 2, 1, 3]),
    ]
    bias = rng.standard_normal(8).astype("f4")
    shapes = {"x": ["a", "b", 8], "z": ["n", 1]}
    path = told(tmp_path / "m.onnx", nodes, shapes, bias=bias, rest=i64(-1, 2, 4))
    rutc.compile(path, tmp_path / "m.so", verify=False)
    with rutc.load(tmp_path / "m.so") as session:
        for a, b, texts in ((2, 5, 2), (1, 3, 1), (2, 5, 5), (3, 4, 2)):
            x = rng.standard_normal((a, b, 8)).astype("f4")
            z = np.zeros((texts, 1), "f4")
            wanted = (x + bias).reshape(texts, -1, 2, 4).transpose(0, 2, 1, 3)
            np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], wanted)
        with pytest.raises(ModelError, match=r"turn: f32\[a, b, 8\] cannot be reshaped to"):
            session.run(None, {"x": np.zeros((2, 5, 8), "f4"), "z": np.zeros((3, 1), "f4")})
    (check,) = (n for n in optimize(import_model(path)).nodes if isinstance(n, If))
    assert len(check.outs[0].dims) == 1


def test_old_broadcasts_of_symbolic_sizes(tmp_path, rng):
    """Opset 6: a row is added along the last axis."""
    nodes = [helper.make_node("Add", ["x", "c"], ["y"], broadcast=1, axis=2)]
    shapes = {"x": ["n", "m", "k"], "c": ["k"]}
    g = import_model(told(tmp_path / "m.onnx", nodes, shapes, opset=6))
    assert [s for s, _ in g.symbols] == ["n", "m", "k"]
    x, c = rng.standard_normal((2, 3, 4)).astype("f4"), rng.standard_normal(4).astype("f4")
    np.testing.assert_array_equal(interpret(g, {"x": x, "c": c})["y"], x + c)


ROWS = [
    helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[48, 1], strides=[48, 1]),
    helper.make_node("Reshape", ["p", "s"], ["y"]),
]
HALVED = [
    helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 1], strides=[2, 1]),
    helper.make_node("Resize", ["p", "", "by"], ["q"], mode="nearest"),
    helper.make_node("Concat", ["x", "q"], ["y"], axis=1),
]
TWICE = [
    helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 1], strides=[2, 1]),
    helper.make_node("MaxPool", ["p"], ["r"], kernel_shape=[2, 1], strides=[2, 1]),
    helper.make_node("Resize", ["r", "", "by"], ["q"], mode="nearest"),
    helper.make_node("Concat", ["p", "q"], ["s"], axis=1),
    helper.make_node("Resize", ["s", "", "by"], ["u"], mode="nearest"),
    helper.make_node("Concat", ["x", "u"], ["y"], axis=1),
]
SOLVED = {
    "a range": (ROWS, {"s": i64(3, 5)}, {"h": (48, 95)}, 64),
    "a step": (HALVED, {"by": np.array([1, 1, 2, 1], "f4")}, {"h/2": (1, 1 << 30)}, 6),
    "two steps": (TWICE, {"by": np.array([1, 1, 2, 1], "f4")}, {"h/4": (1, 1 << 29)}, 12),
}


@pytest.mark.parametrize("case", SOLVED)
def test_equal_extents_tell_which_sizes_a_model_takes(case, tmp_path, rng):
    nodes, constants, expected, h = SOLVED[case]
    path = told(tmp_path / "m.onnx", nodes, {"x": [1, 3, "h", 5]}, **constants)
    g = import_model(path)
    assert without_common(dict(g.symbols)) == expected
    feed = {"x": rng.standard_normal((1, 3, h, 5)).astype("f4")}
    (want,) = onnxruntime.InferenceSession(path).run(None, feed)
    np.testing.assert_array_equal(interpret(g, feed)["y"], want)


def test_a_learned_step_leaves_what_sizes_commonly_are(tmp_path):
    nodes, constants, *_ = SOLVED["two steps"]
    path = told(tmp_path / "m.onnx", nodes, {"x": [1, 3, "h", 5]}, **constants)
    assert common_sizes(dict(import_model(path).symbols)) == {"h/4": COMMON_SIZE // 4}
    path = told(tmp_path / "m.onnx", nodes, {"x": [1, 3, "h", "w"]}, **constants)
    assert common_sizes(dict(import_model(path).symbols)) == {"h/4": SIDE // 4, "w": SIDE}


def test_a_row_of_more_parts_than_a_kernel_can_be_told_sizes(tmp_path, rng):
    """As detectors join what they found of each class."""
    count = MAX_SYMBOLS + 6
    nodes = [helper.make_node("Split", ["x"], [f"x{i}" for i in range(count)], num_outputs=count)]
    for i in range(count):
        nodes.append(helper.make_node("NonZero", [f"x{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Cast", [f"p{i}"], [f"q{i}"], to=TensorProto.FLOAT))
    for part, name in (("p", "y"), ("q", "z")):
        parts = [f"{part}{i}" for i in range(count)]
        nodes.append(helper.make_node("Concat", parts, [name], axis=1))
    nodes.append(helper.make_node("Cast", ["y"], ["r"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Add", ["r", "z"], ["s"]))
    path = told(tmp_path / "m.onnx", nodes, {"x": [count, 7]}, opset=18)
    model = onnx.load(path)
    model.graph.output[0].name = "s"
    onnx.save(model, path)
    rutc.compile(path, tmp_path / "m.so", verify=False)
    x = (rng.random((count, 7)) < 0.5).astype("f4")
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    with rutc.load(tmp_path / "m.so") as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


def test_room_that_divides_by_a_size_tells_no_range_of_it() -> None:
    """What is left behind the last row that is read is no multiple of the size and a number."""
    graph = parse("""
    graph "a quotient of the size"
    symbols s = 0..100, t = 0..100
    dims a = 2*s + 100 // s, b = 2*t, i = s, k = t
    %x : f32{a} = input "x" [a]
    %z : f32{b} = input "z" [b]
    %y : f32{i} = %x[a=i+3]
    %u : f32{k} = %z[b=k+3]
    output "y" [i] = %y
    output "u" [k] = %u
    """)
    found = fitted(graph.nodes, graph.extents, dict(graph.symbols))
    assert found == {"s": (0, 100), "t": (3, 100)}


@pytest.mark.parametrize(
    ("node", "shapes", "why"),
    [
        (("Add", "x", "w"), {"x": ["n", 3], "w": [4]}, r"\[n, 3\] and \[4\] do not broadcast"),
        (("MatMul", "x", "w"), {"x": ["n", 3], "w": [4, 5]}, "cannot be multiplied"),
        (("Gemm", "x", "w"), {"x": ["n", 3], "w": [4, 5]}, "cannot be multiplied"),
        (("Concat", "x", "w"), {"x": ["n", 3], "w": [4, 5]}, "do not fit along axis 0"),
        (
            ("Conv", "x", "w"),
            {"x": ["n", 3, 8, 8], "w": [4, 5, 3, 3]},
            "the weights take 5 channels, and the operand has 3",
        ),
    ],
)
def test_known_sizes_that_clash_do_so_whatever_the_open_ones_are(tmp_path, node, shapes, why):
    operator, *inputs = node
    attributes = {"axis": 0} if operator == "Concat" else {}
    made = helper.make_node(operator, inputs, ["y"], name="clash", **attributes)
    with pytest.raises(UserError, match=rf"^{operator} \(node 'clash'\).*{why}") as refused:
        import_model(told(tmp_path / "m.onnx", [made], shapes, opset=21))
    assert "symbolic sizes" not in str(refused.value)


def test_open_sizes_that_may_be_at_fault_are_named(tmp_path):
    conv = helper.make_node("Conv", ["x", "w"], ["y"], group=2)
    path = told(tmp_path / "m.onnx", [conv], {"x": ["n", 4, 8, 8], "w": ["m", "c", 3, 3]})
    with pytest.raises(UserError, match=r"fixing the symbolic sizes \(c, m, n\) may help"):
        import_model(path)
