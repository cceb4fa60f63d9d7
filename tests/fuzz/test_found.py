"""Models that the generator found, which once failed: by name what was wrong."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, parser

from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import ModelError
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.compiled import build, run
from tests.machines import NATIVE

HEADER = '<ir_version: {}, opset_import: ["" : {}]> '
IR_VERSIONS = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7}

Dims = dict[str, tuple[int, int]]


def gives(
    text: str, want: list[np.ndarray], opset: int = 18, dims: Dims | None = None, **x: np.ndarray
) -> None:
    """The model, interpreted and compiled, gives these outputs."""
    header = HEADER.format(IR_VERSIONS.get(opset, 10), opset)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(parser.parse_model(header + text).SerializeToString())
        graph = import_model(path, dims=dims or {})
        library = build(decide(optimize(graph), NATIVE), NATIVE, Path(folder))
        for found in (interpret(graph, x), run(library, x, 1), run(library, x, 2)):
            for got, right in zip(found.values(), want, strict=True):
                assert got.dtype == right.dtype
                np.testing.assert_array_equal(got, right)


def test_whole_numbers_shrink_by_fractions() -> None:
    x = np.array([3, 1, 0, 255], np.uint8)
    text = "g (uint8[4] x) => (uint8[4] y) { y = Shrink <lambd = 1.5, bias = 0.5> (x) }"
    gives(text, [np.array([2, 0, 0, 254], np.uint8)], x=x)


def test_erf_of_whole_numbers() -> None:
    x = np.array([-5, -1, 0, 5], np.int32)
    want = np.array([-1, 0, 0, 1], np.int32)
    gives("g (int32[4] x) => (int32[4] y) { y = Erf (x) }", [want], opset=13, x=x)


@pytest.mark.parametrize("op", ["ReduceLogSumExp", "ReduceLogSum"])
def test_logarithms_of_whole_numbers(op: str) -> None:
    x = np.array([[3, 0], [1, 6]], np.int64)
    want = {"ReduceLogSumExp": [3, 6], "ReduceLogSum": [1, 1]}[op]
    text = f"""
    g (int64[2, 2] x) => (int64[2] y) <int64[1] axes = {{1}}>
        {{ y = {op} <keepdims = 0> (x, axes) }}
    """
    gives(text, [np.array(want, np.int64)], x=x)


def test_an_unsigned_number_less_another() -> None:
    x = np.array([2, 0, 1 << 63], np.uint64)
    text = "g (uint64[3] x) => (uint64[3] y) <uint64 zero = {0}> { y = Sub (zero, x) }"
    gives(text, [np.zeros(3, np.uint64) - x], x=x)


def test_a_table_of_integers_over_all_their_range() -> None:
    rows = np.array([[3, -(1 << 63)], [(1 << 63) - 1, 2]], np.int64)
    text = """
    g (int64[2, 2] x) => (int64[2, 2] y) <int64[2, 2] t =
        {3, -9223372036854775808, 9223372036854775807, 2}> { y = Add (t, x) }
    """
    gives(text, [rows], x=np.zeros((2, 2), np.int64))


def test_compress_of_nothing() -> None:
    text = """
    g () => (int64[n] y) <int64[0] x = {}, bool[0] c = {}> { y = Compress <axis = 0> (x, c) }
    """
    gives(text, [np.zeros(0, np.int64)])


def test_compress_of_all_of_an_empty_tensor() -> None:
    text = """
    g (double[0, n, 17] x, bool[0] c) => (double[m] y, double[k] z) {
        y = Compress (x, c)
        z = ReduceSumSquare <axes = [0]> (y)
    }
    """
    x = {"x": np.zeros((0, 3, 17)), "c": np.zeros(0, bool)}
    gives(text, [np.zeros(0), np.zeros(1)], opset=10, dims={"n": (1, 8)}, **x)


@pytest.mark.parametrize("node", ["Compress <axis = 0> (x, none)", "Unique (x)"])
def test_nothing_that_was_chosen_is_repeated(node: str) -> None:
    text = "m (float[0] x, int64[0] none) => (float[] y) <int64[1] r = {3}> "
    if "none" in node:
        text = text.replace("int64[0] none", "bool[0] none")
    x, none = np.zeros(0, np.float32), np.zeros(0, bool if "none" in node else np.int64)
    gives(text + f"{{ c = {node} y = Tile (c, r) }}", [x], x=x, none=none)


def test_a_scatter_into_nothing() -> None:
    text = """
    g (uint32[1, 3, 0] x, int64[1, 1] at) => (uint32[1, 3, 0] y) { y = ScatterND (x, at, x) }
    """
    x = np.zeros((1, 3, 0), np.uint32)
    gives(text, [x], opset=12, x=x, at=np.zeros((1, 1), np.int64))


def test_a_known_remainder_of_the_dividend_s_sign() -> None:
    text = """
    g () => (float[3] y) <float[3] a = {-4, 2, -2}, float[3] b = {-3, -3, -1}>
        { y = Mod <fmod = 1> (a, b) }
    """
    gives(text, [np.array([-1, 2, -0.0], np.float32)])


def test_a_known_quotient_with_one_divisor_of_zero() -> None:
    text = """
    g () => (int64[4] y) <int64[4] a = {7, -7, 3, -9}, int64[4] b = {2, 2, 0, -3}>
        { y = Div (a, b) }
    """
    gives(text, [np.array([3, -3, 0, 3])])


def test_a_known_quotient_of_narrow_zeros() -> None:
    text = "g () => (bfloat16 y) <bfloat16 zero = {0}> { q = Div (zero, zero)  y = IsNaN (q) }"
    gives(text.replace("(bfloat16 y)", "(bool y)"), [np.array(True)], opset=20)


def test_a_known_sum_of_many_narrow_numbers() -> None:
    text = f"""
    g () => (bfloat16 y) <int64[1] size = {{3000}}, float one = {{1}}> {{
        narrow = Cast <to = {int(TensorProto.BFLOAT16)}> (one)
        ones = Expand (narrow, size)
        y = ReduceSum <keepdims = 0> (ones)
    }}
    """
    gives(text, [np.array(3000, ml_dtypes.bfloat16)])


@pytest.mark.parametrize("element", ["bfloat16", "float16", "float"])
def test_a_known_range_of_numbers(element: str) -> None:
    kind = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float": np.float32}[element]
    to = getattr(TensorProto, element.upper())
    text = f"""
    g () => ({element}[n] y) <float low = {{-3}}, float most = {{704}}, float by = {{2}}> {{
        a = Cast <to = {to}> (low)
        b = Cast <to = {to}> (most)
        c = Cast <to = {to}> (by)
        y = Range (a, b, c)
    }}
    """
    gives(text, [np.arange(-3, 704, 2, np.float32).astype(kind)], opset=27)


@pytest.mark.parametrize("bounds", [(0, 3, np.nan), (np.nan, 3, 1), (np.inf, 0, 1)])
def test_a_known_range_of_no_numbers(bounds: tuple[float, float, float]) -> None:
    low, most, by = bounds
    given = f"float low = {{{low}}}, float most = {{{most}}}, float by = {{{by}}}"
    text = f"g () => (float[n] y) <{given}> {{ y = Range (low, most, by) }}"
    gives(text, [np.zeros(0, np.float32)])


@pytest.mark.parametrize("op", ["GlobalLpPool", "LpPool <kernel_shape = [2], p = 2>"])
def test_squares_beyond_a_narrow_type(op: str) -> None:
    x = np.array([[[3000, 4000]]], np.float16)
    text = f"g (float16[1, 1, 2] x) => (float16[1, 1, 1] y) {{ y = {op} (x) }}"
    gives(text, [np.array([[[5000]]], np.float16)], opset=22, x=x)


def test_a_vector_of_at_most_one_distinct_number() -> None:
    text = "g (float[1, 1] x) => (float[1, n] y) { y = Unique <axis = 1> (x) }"
    x = np.array([[2.5]], np.float32)
    gives(text, [x], opset=15, x=x)


def test_parts_of_a_constant_that_lie_apart() -> None:
    data = np.array([[3, 1, 0], [-2, -2, -4], [-4, -4, -3], [3, 1, 4]], np.float32)
    numbers = ", ".join(str(int(n)) for n in data.reshape(-1))
    text = f"""
    g () => (seq(float) y) <float[4, 3] w = {{{numbers}}}>
        {{ y = SplitToSequence <axis = 1> (w) }}
    """
    gives(text, [data[:, k : k + 1] for k in range(3)])


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_truth_values_combined_by_a_scatter(reduction: str) -> None:
    text = f"""
    g (bool[4] x, int64[4] at, bool[4] u) => (bool[4] y)
        {{ y = ScatterElements <reduction = "{reduction}"> (x, at, u) }}
    """
    x = np.array([True, True, False, False])
    u = np.array([True, False, True, False])
    want = x | u if reduction in ("add", "max") else x & u
    gives(text, [want], x=x, u=u, at=np.arange(4))


def test_a_strided_part_of_a_constant() -> None:
    table = ", ".join(str(n % 2) for n in range(12))
    text = f"""
    g (float[6] x) => (float[6] y) <float[6, 2] t = {{{table}}}, int64[2] parts = {{1, 1}}> {{
        a, b = Split <axis = 1> (t, parts)
        flat = Flatten <axis = 0> (b)
        one = Squeeze (flat)
        y = Add (one, x)
    }}
    """
    x = np.arange(6, dtype=np.float32)
    gives(text, [x + 1], x=x)


def test_an_integer_product_over_less_than_a_group() -> None:
    text = """
    g (uint8[31, 2] x) => (int32[31, 3] y) <int8[2, 3] w = {127, 4, -4, -1, -2, 0}>
        { y = MatMulInteger (x, w) }
    """
    x = np.arange(62, dtype=np.uint8).reshape(31, 2)
    w = np.array([[127, 4, -4], [-1, -2, 0]])
    gives(text, [(x.astype(np.int64) @ w).astype(np.int32)], x=x)


@pytest.mark.parametrize("depth", [2, 3])
def test_an_integer_product_over_less_than_a_group_of_operands_that_both_vary(depth: int) -> None:
    text = f"""
    g (uint8[64, 1, 4] a, int8[64, 4, 1] b) => (int32[64, 1, 1] y)
        <int64[1] zero = {{0}}, int64[1] end = {{{depth}}}, int64[1] one = {{1}},
         int64[1] two = {{2}}> {{
        p = Slice (a, zero, end, two)
        q = Slice (b, zero, end, one)
        y = MatMulInteger (p, q)
    }}
    """
    a = np.arange(256, dtype=np.uint8).reshape(64, 1, 4)
    b = np.arange(256, dtype=np.uint8).view(np.int8).reshape(64, 4, 1)
    sums = a[:, :, :depth].astype(np.int32) @ b[:, :depth].astype(np.int32)
    gives(text, [sums], a=a, b=b)


def test_slopes_as_many_as_columns_belong_to_columns_though_channels_are_as_many() -> None:
    x = np.arange(-18, 18, dtype=np.float32).reshape(1, 3, 4, 3)
    slope = np.array([2, 3, 5], np.float32)
    text = "g (float[1, 3, h, w] x, float[3] slope) => (float[] y) { y = PRelu (x, slope) }"
    gives(text, [np.where(x < 0, slope * x, x)], dims={"w": (1, 9), "h": (1, 9)}, x=x, slope=slope)


def imported(text: str, dims: Dims, opset: int = 18) -> Graph:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(parser.parse_model(HEADER.format(8, opset) + text).SerializeToString())
        return import_model(path, dims=dims)


def test_sizes_beyond_the_operand_that_they_read_are_refused() -> None:
    text = """
    g (float[2, 3, 5] x, int64[n, 5] t) => (float[] y)
        { y = NegativeLogLikelihoodLoss (x, t) }
    """
    assert tuple(dict(imported(text, {"n": (1, 20)}).symbols)["n"]) == (1, 2)
    with pytest.raises(UserError, match="needs at most 2 as size n, which is in 3"):
        imported(text, {"n": (3, 20)})


def test_sizes_beyond_a_list_of_scales_are_refused() -> None:
    text = """
    g (float[n] x, float[5] scale, int8[n] zero) => (int8[n] y)
        { y = QuantizeLinear <axis = 0> (x, scale, zero) }
    """
    with TemporaryDirectory() as folder:
        plan = decide(optimize(imported(text, {"n": (1, 20)})), NATIVE)
        library = build(plan, NATIVE, Path(folder))
        for n in (3, 20):
            x: dict[str, np.ndarray] = {"x": np.ones(n, "f4"), "zero": np.zeros(n, np.int8)}
            with pytest.raises(ModelError, match=f"5 and n|n is {n}|n = {n}"):
                run(library, {**x, "scale": np.ones(5, np.float32)}, 1)


def test_a_size_of_which_only_one_is_possible_is_a_number() -> None:
    text = """
    g (float[2, 3, 5] p, int64[n, 5] t, uint8[n, 1, 3, 3] x, uint8[n, 1, 3, 3] w)
        => (int32[n, n, 1, 1] y, float[n, 5] z) {
        y = ConvInteger (x, w)
        z = NegativeLogLikelihoodLoss <reduction = "none"> (p, t)
    }
    """
    assert imported(text, {"n": (2, 20)}).symbols == ()
    p, x = np.ones((2, 3, 5), np.float32), np.arange(18, dtype=np.uint8).reshape(2, 1, 3, 3)
    y = np.einsum("ncyx,ocyx->no", x.astype(np.int32), x.astype(np.int32))
    t = np.zeros((2, 5), np.int64)
    gives(text, [y[:, :, None, None], -p[:, 0]], dims={"n": (2, 20)}, p=p, t=t, x=x, w=x)


def test_a_size_of_one_that_would_change_a_rank_is_refused() -> None:
    text = "g (float[n, 1, 4] x) => (float[m, 4] y) { y = Squeeze (x) }"
    assert tuple(dict(imported(text, {"n": (1, 20)}).symbols)["n"]) == (2, 20)


def test_an_output_of_less_than_no_extent_is_refused() -> None:
    text = """
    g (uint8[1, 1, n] x, uint8[1, 1, 5] w) => (int32[1, 1, m] y) { y = ConvInteger (x, w) }
    """
    with TemporaryDirectory() as folder:
        plan = decide(optimize(imported(text, {"n": (1, 20)})), NATIVE)
        library = build(plan, NATIVE, Path(folder))
        x = {"x": np.ones((1, 1, 2), np.uint8), "w": np.ones((1, 1, 5), np.uint8)}
        with pytest.raises(ModelError, match="'y' has no shape for these inputs"):
            run(library, x, 1)


def test_whole_numbers_at_both_ends_of_their_range() -> None:
    text = """
    g () => (int64[2] y) <int64[2] x = {-4611686018427387904, 9223372036854775807}>
        { y = BitwiseAnd (x, x) }
    """
    gives(text, [np.array([-4611686018427387904, 9223372036854775807])])


def test_the_only_part_of_the_only_number() -> None:
    text = """
    g (float[1] x) => (float[1] a, int64[1] b, int64[] y) <int64 zero = {0}> {
        a, b, at, count = Unique (x)
        parts = SplitToSequence <keepdims = 0> (at)
        y = SequenceAt (parts, zero)
    }
    """
    x = np.array([2.5], np.float32)
    gives(text, [x, np.array([0]), np.array(0)], x=x)


def test_sizes_beyond_the_updates_of_a_scatter_are_refused() -> None:
    text = """
    g (float[4, n] x, int64[4, n] at, float[4, 7] u) => (float[4, n] y)
        { y = ScatterElements <axis = -1> (x, at, u) }
    """
    assert dict(imported(text, {"n": (2, 17)}).symbols)["n"] == (2, 7)


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_updates_of_another_length_end_the_run(op: str) -> None:
    at = "int64[n, 1] at" if op == "ScatterND" else "int64[n] at"
    text = f"g (float[10] x, {at}, float[m] u) => (float[10] y) {{ y = {op} (x, at, u) }}"
    graph = imported(text, {})
    x, u = np.zeros(10, np.float32), np.ones(3, np.float32)
    at_ = np.array([4, 0, 2]).reshape((3, 1) if op == "ScatterND" else 3)
    y = interpret(graph, {"x": x, "at": at_, "u": u})["y"]
    np.testing.assert_array_equal(y, np.isin(np.arange(10), at_))
    for short, shorter in ((at_[:2], u), (at_, u[:2])):
        with pytest.raises(UserError):
            interpret(graph, {"x": x, "at": short, "u": shorter})


def test_a_rotation_needs_rows_of_its_cache() -> None:
    text = """
    g (float[1, 2, s, 4] x, float[m, 2] cos, float[m, 2] sin, int64[1, s] at) => (float[] y)
        { y = RotaryEmbedding (x, cos, sin, at) }
    """
    graph = imported(text, {"m": (0, 9), "s": (0, 9)}, 23)

    def rotated(rows: int, places: int) -> np.ndarray:
        cos, sin = (np.full((rows, 2), v, np.float32) for v in (0, 1))
        x = np.ones((1, 2, places, 4), np.float32)
        at = np.zeros((1, places), np.int64)
        return interpret(graph, {"x": x, "cos": cos, "sin": sin, "at": at})["y"]

    np.testing.assert_array_equal(rotated(1, 3)[0, 0], [[-1, -1, 1, 1]] * 3)
    assert rotated(0, 0).size == 0
    with pytest.raises(UserError, match="has no rows"):
        rotated(0, 3)


def test_updates_of_another_shape_are_refused() -> None:
    text = "g ({}) => (float[5, 7] y) {{ y = {} (x, at, u) }}"
    wide = text.format("float[5, 7] x, int64[4, 1] at, float[4, 1] u", "ScatterND")
    with pytest.raises(UserError, match=r"f32\[4, 1\].* its shape should be \[4, 7\]"):
        imported(wide, {})
    flat = text.format("float[5, 7] x, int64[5, 3] at, float[5, 2] u", "ScatterElements")
    with pytest.raises(UserError, match=r"its shape should be \[5, 3\]"):
        imported(flat, {})


@pytest.mark.parametrize("operand", ["bias", "peepholes"])
def test_weights_of_a_layer_that_do_not_fit_are_refused(operand: str) -> None:
    given = {"bias": 'v, "", "", "", ""', "peepholes": '"", "", "", "", v'}[operand]
    text = f"""
    g (float[1, 1, 1] x, float[2, 16, 1] w, float[2, 16, 4] r, float[2, 3] v) => (float[] y) {{
        y = LSTM <direction = "bidirectional", hidden_size = 4> (x, w, r, {given})
    }}
    """
    with pytest.raises(UserError, match=f"an extent of the {operand}.* is 3, not"):
        imported(text, {})


@pytest.mark.parametrize(
    "node",
    [
        "RoiAlign (x, r, i)",
        "MaxRoiPool <pooled_shape = [2, 2]> (x, r)",
        "GridSample (x, g)",
        "NonMaxSuppression (h, s)",
    ],
)
def test_positions_of_more_coordinates_are_refused(node: str) -> None:
    text = f"""
    g (float[1, 1, 7, 8] x, float[3, 33] r, int64[3] i, float[1, 2, 2, 33] g, float[1, 3, 33] h,
        float[1, 1, 3] s) => (float[] y) {{ y = {node} }}
    """
    with pytest.raises(UserError, match=r"the number of coordinates of a .* is 33, not"):
        imported(text, {})


def test_queries_for_other_batches_are_refused() -> None:
    text = """g (float[n, 3, 4] q, float[1, 3, 4] k) => (float[] y, float[] s) {
        y, s = LinearAttention <kv_num_heads = 2, q_num_heads = 2, update_rule = "linear"> (q, k, k)
    }"""
    header = HEADER.format(10, 27)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(parser.parse_model(header + text).SerializeToString())
        graph = import_model(path, dims={"n": (1, 7)})
    k = np.ones((1, 3, 4), np.float32)
    assert interpret(graph, {"q": k, "k": k})["y"].shape == (1, 3, 4)
    with pytest.raises(UserError, match=r"goes with the keys .*its shape should be \[1, 3, 4\]"):
        interpret(graph, {"q": np.ones((7, 3, 4), np.float32), "k": k})


def test_coordinates_for_other_batches_are_refused() -> None:
    text = "g (float[8, 2, 2] x, int64[1, 16, 1] at) => (float[] y) "
    with pytest.raises(UserError, match=r"its shape should be \[8, 16, 1\]"):
        imported(text + "{ y = GatherND <batch_dims = 1> (x, at) }", {})


@pytest.mark.parametrize("element", ["float16", "float", "double"])
@pytest.mark.parametrize("bounds", [{}, {"min": -2.0}, {"max": 1.0}])
def test_bounds_of_old_clips_are_finite_floats(element: str, bounds: dict[str, float]) -> None:
    kind = {"float16": np.float16, "float": np.float32, "double": np.float64}[element]
    x = np.array([-np.inf, np.inf, np.nan, 3], kind)
    most = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        low, high = (
            np.array(b).astype(kind) for b in (bounds.get("min", -most), bounds.get("max", most))
        )
    given = ", ".join(f"{name} = {value}" for name, value in bounds.items())
    attributes = f"<{given}>" if given else ""
    text = f"g ({element}[4] x) => ({element}[4] y) {{ y = Clip {attributes} (x) }}"
    gives(text, [np.clip(x, low, high)], opset=10, x=x)


def test_a_loop_that_broadcasts_its_state_to_a_size_in_every_trip() -> None:
    text = """
    g (int64 trips, float[n] x, float[m] y) => (float[k] z) {
        z = Loop (trips, "", x) <body = b (int64 i, bool going, float[j] s)
            => (bool on, float[l] t) { on = Identity (going)  t = Add (s, y) }>
    }
    """
    sizes = {"n": (0, 9), "m": (0, 9)}
    one, three = np.ones(1, np.float32), np.arange(3, dtype=np.float32)
    gives(text, [one + 10 * three], dims=sizes, x=one, y=three, trips=np.array(10))
    gives(text, [three + 2 * one], dims=sizes, x=three, y=one, trips=np.array(2))


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_a_loop_of_growing_states_whose_condition_is_known_to_end(trips: int) -> None:
    text = """
    g (int64 trips, float[2] x) => (float[k] y) {
        y = Loop (trips, "", x) <body = b (int64 i, bool going, float[j] s)
            => (bool on, float[l] t) <int64 two = {2}>
            { on = Less (i, two)  t = Concat <axis = 0> (s, s) }>
    }
    """
    x = np.array([2, 3], np.float32)
    gives(text, [np.tile(x, 2 ** min(trips, 3))], x=x, trips=np.array(trips))


@pytest.mark.parametrize("size", [1, 4, 5, 9, 11])
@pytest.mark.parametrize("symbolic", [False, True])
def test_more_parts_than_there_are_elements_for(size: int, symbolic: bool) -> None:
    extent = "n" if symbolic else str(size)
    text = f"""
    g (float[{extent}] x) => (float[i] a, float[j] b, float[k] c, float[l] d)
        {{ a, b, c, d = Split <num_outputs = 4> (x) }}
    """
    x = np.arange(size, dtype=np.float32)
    part = -(-size // 4)
    parts = [x[i * part : (i + 1) * part] for i in range(4)]
    gives(text, parts, dims={"n": (1, 11)} if symbolic else {}, x=x)


def test_a_negative_zero_passes_an_elu_as_it_is() -> None:
    x = np.array([-0.0, 0.0, np.nan, 2.0], np.float32)
    text = "m (float[4] x) => (float[4] y, float[4] z) { y = Elu (x)  z = Reciprocal (y) }"
    gives(text, [x, np.array([-np.inf, np.inf, np.nan, 0.5], np.float32)], x=x)
