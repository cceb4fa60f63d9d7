"""Operands that say sizes and are inputs of the model, against ONNX Runtime."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.tensor_ir import Bind, Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.close import assert_close
from tests.onnx_files import i64

LOWEST = -1 << 63
WRAPPED = (1722007169, 630138255, 17, 1722007169, 630138255, 17)
"""Sizes whose product is 1 modulo 2^64."""


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 3, 5)).astype("f4")


@pytest.fixture
def computed(check):
    """As `check`, and the graph computes a size."""

    def run(*args, **options):
        graph = check(*args, **options)
        assert any(isinstance(n, Bind) for n in graph.nodes)
        return graph

    return run


@pytest.mark.parametrize("shape", [(12, 5), (0, -1), (2, 2, 1, 15), (-1,), (60, 1, 1, 1)])
def test_reshape(shape, x, computed, make_node):
    computed(make_node("Reshape", ["x", "s"]), {"x": x, "s": i64(*shape)})


def test_reshape_of_nothing(computed, make_node):
    inputs = {"x": np.zeros((0, 3), "f4"), "s": i64(3, 0)}
    computed(make_node("Reshape", ["x", "s"], allowzero=1), inputs)


@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 3, 1), (1,), (5, 2, 3, 4)])
def test_expand(shape, computed, make_node, rng):
    inputs = {"x": rng.standard_normal((3, 1)).astype("f4"), "s": i64(*shape)}
    computed(make_node("Expand", ["x", "s"]), inputs)


@pytest.mark.parametrize("shape", [(5, 1), (3, 0, 1), (0, 1)])
def test_a_shape_that_does_not_fit_ends_an_expansion(shape, tmp_path, make_node, make_model):
    feed = {"x": np.ones((3, 1), "f4"), "s": i64(*shape)}
    model = make_model([make_node("Expand", ["x", "s"])], feed, ["y"], {})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UserError, match="does not broadcast to the shape"):
        interpret(import_model(tmp_path / "m.onnx"), feed)


def test_expand_of_symbolic_sizes(tmp_path, make_node, rng):
    """An extent of 1 in the shape leaves the size that x has in the run."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1])
    s = helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([make_node("Expand", ["x", "s"])], "g", [x, s], [y])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
    made = import_model(tmp_path / "m.onnx")
    array = rng.standard_normal((3, 1)).astype("f4")
    for shape in (i64(2, 1, 6), i64(2, 3, 1), i64(1, 3, 4)):
        got = interpret(made, {"x": array, "s": shape})["y"]
        np.testing.assert_array_equal(got, array * np.ones(shape, "f4"))
    with pytest.raises(UserError, match="differ"):
        interpret(made, {"x": array, "s": i64(2, 4, 6)})


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [
        ((1, 0), (3, 9), (1, 2)),
        ((-3, -2), (-1, -9), (1, -1)),
        ((3, 4), (1, -6), (1, -3)),
        ((-99, 99), (99, -99), (2, -2)),
    ],
)
@pytest.mark.parametrize("fixed", ["", "a", "b"])
def test_slice(starts, ends, steps, fixed, x, computed, make_node):
    inputs = {"x": x, "a": i64(*starts), "b": i64(*ends)}
    constants = {"axes": i64(0, 2), "steps": i64(*steps)}
    if fixed:
        constants[fixed] = inputs.pop(fixed)
    computed(make_node("Slice", ["x", "a", "b", "axes", "steps"]), inputs, constants)


@pytest.mark.parametrize("parts", [(1, 2, 2), (5, 0, 0), (0, 4, 1)])
def test_split(parts, x, computed, make_node):
    node = make_node("Split", ["x", "s"], ["a", "b", "c"], axis=2)
    computed(node, {"x": x, "s": i64(*parts)}, outputs=("a", "b", "c"))


def test_tile(x, computed, make_node):
    computed(make_node("Tile", ["x", "r"]), {"x": x, "r": i64(2, 1, 3)})


@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()])
def test_constant_of_shape(shape, check, make_node):
    value = onnx.numpy_helper.from_array(np.array([7], "f4"))
    check(make_node("ConstantOfShape", ["s"], value=value), {"s": i64(*shape)})


@pytest.mark.parametrize("step", [LOWEST, LOWEST + 1, -LOWEST - 1, -9, 9])
@pytest.mark.parametrize("given", ["nothing", "steps", "axes"])
def test_slice_by_steps_beyond_the_end(step, given, check, make_node):
    """One element, however far the step goes."""
    inputs = {"x": np.arange(8, dtype="f4"), "a": i64(7 if step < 0 else 0)}
    inputs |= {"b": i64(LOWEST if step < 0 else 8), "axes": i64(0), "steps": i64(step)}
    constants = {n: inputs.pop(n) for n in ("axes", "steps") if n != given}
    check(make_node("Slice", ["x", "a", "b", "axes", "steps"]), inputs, constants)


@pytest.mark.parametrize(
    ("start", "limit", "delta", "expected"),
    [
        (0, -5, LOWEST, [0]),
        (0, 5, -LOWEST - 1, [0]),
        (LOWEST, -LOWEST - 1, 1 << 62, [LOWEST, LOWEST // 2, 0, -LOWEST // 2]),
        (LOWEST, -LOWEST - 1, 1, None),
    ],
)
def test_range_over_all_integers(start, limit, delta, expected, tmp_path, make_node, make_model):
    feed = {n: np.array(v) for n, v in zip("abd", (start, limit, delta), strict=True)}
    onnx.save(make_model([make_node("Range", [*"abd"])], feed, ["y"], {}), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    if expected is None:
        with pytest.raises(UserError, match="the size count is 2147483648, outside"):
            interpret(graph, feed)
    else:
        assert interpret(graph, feed)["y"].tolist() == expected


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(1, 10, 3), (5, -4, -2), (3, 3, 1), (0, 5, -1), (1, 2.25, 0.5)]
)
@pytest.mark.parametrize("kind", ["f4", "f8", "i4", "i8"])
def test_range(start, limit, delta, kind, computed, make_node):
    if kind[0] == "i" and isinstance(delta, float):
        delta = 1
    inputs = {n: np.array(v, kind) for n, v in zip("abd", (start, limit, delta), strict=True)}
    computed(make_node("Range", ["a", "b", "d"]), inputs)


@pytest.mark.parametrize("depth", [1, 6])
def test_one_hot(depth, computed, make_node):
    inputs = {"x": i64(0, 3, -1), "d": np.array(depth), "v": np.array([0.5, 2], "f4")}
    computed(make_node("OneHot", ["x", "d", "v"], axis=0), inputs)


@pytest.mark.parametrize(
    ("node", "inputs", "message"),
    [
        (("Reshape", ["x", "s"]), {"s": i64(7, -1)}, r"Reshape_y: f32\[4, 3\] does not fit"),
        (("Reshape", ["x", "s"]), {"s": i64(-2, -6)}, "Reshape_y: the size extent is -2, outside"),
        (("Reshape", ["x", "s"]), {"s": i64(-1, 12, -1)}, r"f32\[4, 3\] does not fit"),
        (("Reshape", ["x", "s"]), {"s": i64(12, *WRAPPED)}, r"f32\[4, 3\] does not fit"),
        (("Split", ["x", "s"]), {"s": i64(1, 1)}, "the parts do not make up 4"),
        (("Tile", ["x", "s"]), {"s": i64(1, -1)}, "Tile_y: the size repeats2? is -1, outside"),
    ],
)
def test_sizes_that_contradict_end_the_run(node, inputs, message, tmp_path, make_node, make_model):
    op, operands = node
    names = ["y", "z"] if op == "Split" else ["y"]
    feed = {"x": np.zeros((4, 3), "f4"), **inputs}
    onnx.save(make_model([make_node(op, operands, names)], feed, names, {}), tmp_path / "m.onnx")
    with pytest.raises(UserError, match=message):
        interpret(import_model(tmp_path / "m.onnx"), feed)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 2, 1, 3), (1, -1, 0, 2), (-1, 0, -1, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("value", [True, False])
def test_pad(mode, pads, value, x, computed, make_node):
    if mode == "wrap" and min(pads) < 0:
        pytest.skip("ONNX Runtime reads outside of its operand")
    names = ["x", "p", "v" if value else "", "axes"]
    inputs = {"x": x, "p": i64(*pads)} | ({"v": np.array(3, "f4")} if value else {})
    node = make_node("Pad", names, mode=mode)
    computed(node, inputs, {"axes": i64(0, 2)})


def test_a_transposed_convolution_of_any_width_divides_nothing_in_its_sum(tmp_path, rng):
    """Its output's axes are split in pixels and taps, whatever the width is."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 3, "width"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    w = onnx.numpy_helper.from_array(rng.standard_normal((4, 6, 2, 2)).astype("f4"), "w")
    step = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    onnx.save(
        helper.make_model(
            helper.make_graph([step], "g", [x], [y], [w]),
            opset_imports=[helper.make_opsetid("", 20)],
            ir_version=9,
        ),
        tmp_path / "m.onnx",
    )
    graph = optimize(import_model(tmp_path / "m.onnx"))
    sums = [n for n in graph.nodes if isinstance(n, Nest) and n.reducer is not None]
    assert sums
    assert not any(r.fill for n in sums for e in n.body for r in reads(e))
    assert not any("//" in str(e) for n in sums for e in n.body)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for width in (1, 5, 8):
        fed = {"x": rng.standard_normal((1, 4, 3, width)).astype("f4")}
        want = session.run(None, fed)[0]
        assert_close(interpret(graph, fed)["y"], want, reduction=1024)


@pytest.mark.parametrize("block_known", [False, True])
@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 5), (1, 5), {}),
        ((5, 6), (3, 2), {"strides": [2, 2]}),
        ((5, 5), (2, 2), {"pads": [1, 0, 1, 2], "dilations": [1, 2]}),
    ],
)
def test_col2im(image, block, attributes, block_known, computed, make_node, rng):
    pads = attributes.get("pads", [0] * 4)
    dilations, strides = (attributes.get(n, [1, 1]) for n in ("dilations", "strides"))
    places = [
        (n + pads[i] + pads[i + 2] - (k - 1) * dilations[i] - 1) // strides[i] + 1
        for i, (n, k) in enumerate(zip(image, block, strict=True))
    ]
    x = rng.standard_normal((2, 3 * block[0] * block[1], places[0] * places[1])).astype("f4")
    inputs, constants = {"x": x, "i": i64(*image)}, {}
    (constants if block_known else inputs)["b"] = i64(*block)
    computed(make_node("Col2Im", ["x", "i", "b"], **attributes), inputs, constants)


def test_blocks_that_do_not_fit_the_image(tmp_path, make_node, make_model):
    inputs = {"x": np.ones((1, 4, 9), "f4"), "i": i64(4, 4), "b": i64(2, 2)}
    node = make_node("Col2Im", ["x", "i", "b"])
    onnx.save(make_model([node], inputs, ["y"], {}), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    assert interpret(graph, inputs)["y"].sum() == 36
    for wrong in ({"i": i64(4, 5)}, {"b": i64(3, 1)}, {"i": i64(1, 1)}):
        with pytest.raises(UserError, match="holds the blocks of an image"):
            interpret(graph, {**inputs, **wrong})


def test_max_unpool(computed, make_node):
    """The places are those of a 4 x 4 result, whatever the shape that is asked for."""
    x = np.array([[[[1, 2], [3, 4]]]], "f4")
    inputs = {"x": x, "at": i64(5, 7, 13, 15).reshape(x.shape), "s": i64(1, 1, 5, 6)}
    expected = np.zeros((1, 1, 5, 6), "f4")
    expected[0, 0, 1::2, 1:4:2] = x[0, 0]
    node = make_node("MaxUnpool", ["x", "at", "s"], kernel_shape=[2, 2], strides=[2, 2])
    graph = computed(node, inputs, expected=[expected])
    with pytest.raises(UserError, match="asks for"):
        interpret(graph, {**inputs, "s": i64(1, 1, 5, 3)})


RATIOS = [(8, 12), (2, 3), (3, 7), (1, 5)]


@pytest.mark.parametrize("size", RATIOS)
@pytest.mark.parametrize(
    "attributes", [{"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "exclude_outside": 1}]
)
@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_resize_with_a_widened_filter(size, attributes, by, computed, make_node, rng):
    """How far the filter reaches follows from a scale that is below 1."""
    x = rng.standard_normal((1, 2, 5, 6)).astype("f4")
    given = (
        i64(*size)
        if by == "sizes"
        else np.array([n / e for n, e in zip(size, (5, 6), strict=True)], "f4")
    )
    operands = ["x", "", "", "s"] if by == "sizes" else ["x", "", "s"]
    step = make_node("Resize", operands, antialias=1, axes=[2, 3], **attributes)
    computed(step, {"x": x, "s": given})


@pytest.mark.parametrize("size", RATIOS)
@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_resize_to_the_nearest_of_an_old_opset(size, by, computed, make_node, rng):
    x = rng.standard_normal((1, 2, 5, 6)).astype("f4")
    inputs = {"x": x, "s": i64(1, 2, *size), "none": np.zeros(0, "f4")}
    operands = ["x", "none", "none", "s"]
    if by == "scales":
        operands.pop()
        inputs["s"] = np.array([1, 1, size[0] / 5, size[1] / 6], "f4")
        operands[2] = "s"
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    constants = {"none": inputs.pop("none")}
    step = make_node("Resize", operands, mode="nearest", **attributes)
    computed(step, inputs, constants, opset=11)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resize_computes_places_along_all_axes_before_it_reads_elements(
    mode, computed, make_node, rng
):
    """What it makes along the first axis stays near where nothing runs before the second."""
    x = rng.standard_normal((1, 2, 5, 6)).astype("f4")
    step = make_node("Resize", ["x", "", "", "s"], axes=[2, 3], mode=mode)
    graph = computed(step, {"x": x, "s": i64(7, 3)})
    nests = [n for n in graph.nodes if isinstance(n, Nest)]
    first = next(i for i, n in enumerate(nests) if _reads(n, "x"))
    for before, after in itertools.pairwise(nests[first:]):
        assert any(_reads(after, v.name) for v in outs(before))
    assert len(nests) - first == 2


def _reads(nest, value):
    return any(r.value == value for e in nest.body for r in reads(e))


def test_paddings_that_keep_a_size_halved_are_known(check, make_node, rng):
    """What PyTorch exports of TensorFlow's padding: max((ceil(w / 2) - 1) * 2 + 3 - w, 0)."""
    floats = {"two": 2, "one": 1, "three": 3, "zero": 0}
    nodes = [
        make_node("Shape", ["x"], ["w"], start=3),
        make_node("Cast", ["w"], ["f"], to=1),
        make_node("Div", ["f", "two"], ["half"]),
        make_node("Ceil", ["half"], ["out"]),
        make_node("Sub", ["out", "one"], ["steps"]),
        make_node("Mul", ["steps", "two"], ["last"]),
        make_node("Add", ["last", "three"], ["end"]),
        make_node("Sub", ["end", "f"], ["beyond"]),
        make_node("Clip", ["beyond", "zero", ""], ["pad"]),
        make_node("Cast", ["pad"], ["right"], to=7),
        make_node("Concat", ["left", "right"], ["pads"], axis=0),
        make_node("Pad", ["x", "pads"], ["p"]),
        make_node("MaxPool", ["p"], ["y"], kernel_shape=[1, 3], strides=[1, 2]),
    ]
    constants = {n: np.array(v, "f4") for n, v in floats.items()}
    constants["left"] = np.zeros(7, np.int64)
    for width in (8, 9):
        # ONNX Runtime 1.30 takes the zeros around into the pool, where they are no elements.
        g = check(nodes, {"x": rng.random((1, 2, 3, width)).astype("f4")}, constants)
        assert not g.symbols


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_groups_of_channels_that_a_run_pads(more, tmp_path, make_node, make_model, computed, rng):
    nodes = [make_node("Pad", ["x", "pads"], ["p"]), make_node("Conv", ["p", "w"], group=2)]
    feed = {
        "x": rng.standard_normal((1, 4, 5, 5)).astype("f4"),
        "pads": i64(0, 0, 1, 0, 0, more, 0, 2),
    }
    constants = {"w": rng.standard_normal((6, 2, 3, 3)).astype("f4")}
    if not more:
        computed(nodes, feed, constants)
        return
    onnx.save(make_model(nodes, feed, ["y"], constants), tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"Conv_y: .* is convolved in 2 groups"):
        interpret(import_model(tmp_path / "m.onnx"), feed)


@pytest.mark.parametrize("whole", [False, True], ids=["a window", "all"])
def test_of_sizes_some_of_which_are_computed_the_others_are_known(whole, make_node, computed, rng):
    """`[1, 3, rows, columns]`: a picture of 3 channels, whose rows may be anything.

    The model takes it apart by its channels afterwards.
    """
    first = ["shape"] if whole else ["known"]
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Slice", ["shape", "zero", "two"], ["known"]),
        make_node("Cast", ["s"], ["rows"], to=onnx.TensorProto.INT64),
        make_node("Concat", [*first, "rows"], ["joined"], axis=0),
        make_node("Gather", ["joined", "places"], ["sizes"]),
        make_node("Resize", ["x", "", "", "sizes"], ["larger"], mode="linear"),
        make_node("Reshape", ["larger", "flat"], ["y"]),
    ]
    x = rng.standard_normal((1, 3, 2, 4)).astype("f4")
    places = [0, 1, 4, 5] if whole else [0, 1, 2, 3]
    constants = {"zero": i64(0), "two": i64(2), "places": i64(*places), "flat": i64(3, -1)}
    graph = computed(nodes, {"x": x, "s": np.array([5.0, 7.0], "f4")}, constants=constants)
    (y,) = [n for n in graph.nodes if any(v.name == "y" for v in getattr(n, "outs", ()))]
    assert 3 in [plain(graph.extents[d]) for d in y.out.dims]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("axes", [(2,), (0, 2)])
def test_axes_tell_how_many_starts_there_are(axes, count, x, tmp_path, make_node, make_model):
    nodes = [
        make_node("Slice", ["firsts", "zero", "count"], ["starts"]),
        make_node("Slice", ["x", "starts", "ends", "axes"], ["y"]),
    ]
    constants = {"zero": i64(0), "axes": i64(*axes), "ends": i64(*[4] * len(axes))}
    inputs = {"x": x, "firsts": i64(1, -3, 0), "count": i64(count)}
    model = make_model(nodes, inputs, ["y"], constants)
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    if count != len(axes):
        with pytest.raises(UserError, match="starts and axes differ in length"):
            interpret(graph, inputs)
        return
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, inputs)
    np.testing.assert_array_equal(interpret(graph, inputs)["y"], want)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("known_ends", [False, True])
def test_starts_of_no_named_axes_are_of_the_first_ones(
    known_ends, count, x, tmp_path, make_node, make_model
):
    nodes = [
        make_node("Slice", ["firsts", "zero", "count"], ["starts"]),
        make_node("Slice", ["lasts", "zero", "count"], ["ends"]),
        make_node("Slice", ["x", "starts", "four" if known_ends else "ends"], ["y"]),
    ]
    constants = {"zero": i64(0), "four": i64(4)}
    inputs = {"x": x, "firsts": i64(1, -3), "lasts": i64(2, 2), "count": i64(count)}
    model = make_model(nodes, inputs, ["y"], constants)
    onnx.save(model, tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx")
    if known_ends and count != 1:
        with pytest.raises(UserError, match="and axes differ in length"):
            interpret(graph, inputs)
        return
    places = [slice(1, 4 if known_ends else 2), slice(-3, 2)][:count]
    np.testing.assert_array_equal(interpret(graph, inputs)["y"], x[tuple(places)])


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (0, 1), (4, 4)])
def test_starts_and_ends_of_other_lengths_end_the_run(counts, x, tmp_path, make_node, make_model):
    nodes = [
        make_node("Slice", ["firsts", "zero", "m"], ["starts"]),
        make_node("Slice", ["lasts", "zero", "n"], ["ends"]),
        make_node("Slice", ["x", "starts", "ends"], ["y"]),
    ]
    places = {"firsts": i64(0, 0, 0, 0), "lasts": i64(2, 2, 2, 2)}
    inputs = {"x": x, **places, "m": i64(counts[0]), "n": i64(counts[1])}
    onnx.save(make_model(nodes, inputs, ["y"], {"zero": i64(0)}), tmp_path / "m.onnx")
    assert x.ndim == 3
    with pytest.raises(UserError, match="starts and ends differ in length, or are more than"):
        interpret(import_model(tmp_path / "m.onnx"), inputs)
