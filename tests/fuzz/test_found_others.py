"""Models of strings and of other domains that the generator found, and ends of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import erf, prod, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper, parser

from rutc.driver.compiler import compile_model
from rutc.driver.options import Options
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.fuzz.cases import Case, DataSet
from tests.fuzz.check import judge
from tests.fuzz.child import Child
from tests.fuzz.graph import RUNS
from tests.fuzz.test_found import gives, imported

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child(600.0)
    yield made
    made.close()


def guarded(
    child: Child,
    text: str,
    x: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    dims: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    """The model gives these outputs in every way, between inaccessible pages too."""
    model = parser.parse_model(HEADER + text).SerializeToString()
    case = Case(model, dims or {}, (DataSet(x, {name: (y,) * RUNS for name, y in want.items()}),))
    verdict = judge(case, child.answer(case))
    assert verdict.kind == "pass", verdict.reason


def test_strings_of_nothing_put_together() -> None:
    text = "g (string[2, 0] x, string[1] y) => (string[2, 0] z) { z = StringConcat (x, y) }"
    nothing, one = np.zeros((2, 0), object), np.array(["a"], object)
    gives(text, [nothing], opset=21, x=nothing, y=one)


@pytest.mark.parametrize("shape", ["1", "1, 1"])
def test_the_only_word_is_a_stop_word(shape: str) -> None:
    text = f"""
    g (string[{shape}] x) => (string[{shape}] y)
        {{ y = StringNormalizer <is_case_sensitive = 1, stopwords = ["b"]> (x) }}
    """
    x = np.full([1] * len(shape.split()), "b", object)
    gives(text, [np.full_like(x, "")], opset=16, x=x)


def test_pieces_of_no_strings() -> None:
    text = """
    g (string[n, 0] x) => (string[n, 0, k] y, int64[n, 0] z)
        { y, z = StringSplit <delimiter = " "> (x) }
    """
    x = np.zeros((3, 0), object)
    want = [np.zeros((3, 0, 0), object), np.zeros((3, 0), np.int64)]
    gives(text, want, opset=20, dims={"n": (1, 9)}, x=x)


@pytest.mark.parametrize("before", [0, 3, 5])
@pytest.mark.parametrize("element", ["float", "double", "uint8"])
def test_a_padded_matrix_that_is_transposed_ends_where_it_ends(
    child: Child, element: str, before: int
) -> None:
    kind = {"float": np.float32, "double": np.float64, "uint8": np.uint8}[element]
    x = np.arange(80).reshape(16, 5).astype(kind)
    text = f"""
    g ({element}[16, 5] x) => ({element}[10, 16] y)
        <int64[4] pads = {{0, {before}, 0, {5 - before}}}> {{
        wide = Pad (x, pads)
        y = Transpose (wide)
    }}
    """
    guarded(child, text, {"x": x}, {"y": np.pad(x, ((0, 0), (before, 5 - before))).T})


def test_halves_of_narrow_numbers_with_a_cancelling_gelu(child: Child) -> None:
    text = "g (float16[1, 16] x, float16[16] c) => (float16[1, 8] y)"
    text += " { y = com.microsoft.BiasSplitGelu (x, c) }"
    x, c = np.ones((1, 16), np.float16), np.zeros(16, np.float16)
    z = x[0, 8:] = np.arange(-3.5, -1.5, 0.25)
    want = np.array([[e * (1 + erf(e / sqrt(2))) / 2 for e in z]]).astype(np.float16)
    guarded(child, text, {"x": x, "c": c}, {"y": want})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_of_one_trip_that_collects_nothing(axis: int) -> None:
    text = f"""
    g (float[1, 0] x) => (float[0] y, float[k, l] z) <float[0] start = {{}}> {{
        y, z = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b
            (float[0] s, float[0] e) => (float[0] t, float[0] u)
            {{ t = Mul (s, e)  u = Identity (t) }}> (start, x)
    }}
    """
    nothing = np.zeros((1, 0), np.float32)
    gives(text, [nothing[0], nothing.T if axis else nothing], opset=17, x=nothing)


@pytest.mark.parametrize("element", ["float", "string"])
def test_nothing_reshaped_as_an_input_says(element: str) -> None:
    text = f"""
    g ({element}[2, 0, 3] x, int64[2] shape) => ({element}[k, l] y)
        {{ y = Reshape <allowzero = 1> (x, shape) }}
    """
    x = np.zeros((2, 0, 3), object if element == "string" else np.float32)
    gives(text, [x.reshape(4, 0)], opset=21, x=x, shape=np.array([4, 0]))


def test_the_distinct_positions_in_a_vector() -> None:
    text = """
    g (float[4] x) => (int64[k] y, int64[l] z) {
        at = NonZero (x)
        y = Unique (at)
        z = Squeeze (at)
    }
    """
    at = np.array([0, 3])
    gives(text, [at, at], opset=12, x=np.array([2, 0, 0, 1], np.float32))


def test_strings_combined_by_a_scatter_are_refused() -> None:
    text = """
    g (string[2] x, int64[1] at, string[1] u) => (string[2] y)
        { y = ScatterElements <reduction = "add"> (x, at, u) }
    """
    with pytest.raises(UserError, match="strings cannot be combined"):
        imported(text, {})


def test_a_matrix_times_its_transpose(child: Child) -> None:
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    text = """
    g (float[16, 16] x) => (float[16, 16] y) { t = Transpose (x)  y = Mul (x, t) }
    """
    guarded(child, text, {"x": x}, {"y": x * x.T})


def test_a_known_quotient_of_narrow_numbers() -> None:
    text = """
    g () => (bfloat16[3] y) <float[3] a = {7, 5, -3}, float[3] b = {2, 0, 4}>
        { x = Cast <to = 16> (a)  z = Cast <to = 16> (b)  y = Div (x, z) }
    """
    gives(text, [np.array([3.5, np.inf, -0.75], ml_dtypes.bfloat16)])


@pytest.mark.parametrize("known", [True, False])
def test_aligned_corners_are_the_elements_there(known: bool) -> None:
    given = ("", "<float[1] s = {3}>") if known else (", float[1] s", "")
    text = f"""
    g (float[8] x{given[0]}) => (float[24] y) {given[1]} {{
        y = Resize <coordinate_transformation_mode = "align_corners", mode = "nearest",
                    nearest_mode = "floor"> (x, "", s)
    }}
    """
    x = np.arange(8, dtype=np.float32)
    scales = {} if known else {"s": np.array([3], np.float32)}
    gives(text, [x[np.arange(24) * 7 // 23]], opset=19, x=x, **scales)


@pytest.mark.parametrize("rows", [3, 40])
def test_a_constant_that_is_multiplied_and_added(rows: int) -> None:
    text = f"""
    g (float[5, 5] x) => (float[{rows}, 5] y) <int64[2] shape = {{{rows}, 5}},
        int64 zero = {{0}}, int64 most = {{{5 * rows}}}, int64 by = {{1}}> {{
        numbers = Range (zero, most, by)
        floats = Cast <to = {int(TensorProto.FLOAT)}> (numbers)
        w = Reshape (floats, shape)
        p = MatMul (w, x)
        y = Add (p, w)
    }}
    """
    x = np.arange(25, dtype=np.float32).reshape(5, 5)
    w = np.arange(5 * rows, dtype=np.float32).reshape(rows, 5)
    gives(text, [w @ x + w], x=x)


def test_eight_bits_in_windows_that_reach_beyond_short_rows(child: Child) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 5, (1, 3, 11, 2)).astype(np.uint8)
    weights = rng.integers(-128, 128, (1, 3, 5, 5)).astype(np.int8)
    numbers = ", ".join(str(n) for n in image.reshape(-1))
    text = f"""
    g (int8[1, 3, 5, 5] w) => (int32[1, 1, 11, 2] y) <uint8[1, 3, 11, 2] x = {{{numbers}}}>
        {{ y = ConvInteger <auto_pad = "SAME_UPPER", kernel_shape = [5, 5]> (x, w) }}
    """
    wide = np.pad(image[0].astype(np.int32), ((0, 0), (2, 2), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (5, 5), (1, 2))
    want = np.einsum("cyxij,cij->yx", windows, weights[0].astype(np.int32))
    guarded(child, text, {"w": weights}, {"y": want[None, None]})


@pytest.mark.parametrize("op", ["Add", "Min", "Equal"])
@pytest.mark.parametrize("shapes", [("2", "3"), ("0, 2", "0, 3")])
def test_constants_that_do_not_fit_together_are_refused(op: str, shapes: tuple[str, str]) -> None:
    one, other = ([int(e) for e in s.split(", ")] for s in shapes)
    values = [", ".join("1" for _ in range(int(np.prod(s)))) for s in (one, other)]
    element = "bool" if op == "Equal" else "float"
    text = f"""
    g () => ({element}[n] y) <float[{shapes[0]}] a = {{{values[0]}}},
        float[{shapes[1]}] b = {{{values[1]}}}> {{ y = {op} (a, b) }}
    """
    with pytest.raises(UserError, match="do not broadcast"):
        imported(text, {})


@pytest.mark.parametrize("known", [False, True])
def test_quantised_windows_of_which_some_taps_are_beyond_the_image(known: bool) -> None:
    x = np.arange(77).reshape(1, 1, 7, 11).astype(np.int8)
    w = (np.arange(45) % 7 - 3).reshape(5, 1, 3, 3).astype(np.int8)
    numbers = ", ".join(map(str, x.reshape(-1)))
    held = f", int8[1, 1, 7, 11] x = {{{numbers}}}" if known else ""
    given = "" if known else "int8[1, 1, 7, 11] x, "
    text = f"""
    g ({given}int8[5, 1, 3, 3] w) => (int32[1, 5, 4, 11] y) <int8 four = {{-4}}{held}>
        {{ y = ConvInteger <pads = [0, 0, 2, 2], strides = [2, 1]> (x, w, four) }}
    """
    padded = np.pad(x.astype(np.int64) + 4, ((0, 0), (0, 0), (0, 2), (0, 2)))
    views = np.lib.stride_tricks.sliding_window_view(padded[0, 0], (3, 3))[::2]
    want = np.einsum("yxij,oij->oyx", views, w[:, 0].astype(np.int64))[None].astype(np.int32)
    gives(text, [want], **({} if known else {"x": x}), w=w)


@pytest.mark.parametrize("n", [1, 3, 7, 17, 33])
@pytest.mark.parametrize("element", ["float", "double"])
def test_sums_over_a_part_of_a_vector_end_where_the_operands_end(
    child: Child, element: str, n: int
) -> None:
    """LLVM 22 parts a masked load from the operation that it is folded into without its mask."""
    kind = {"float": np.float32, "double": np.float64}[element]
    text = f"g ({element}[1, n] x, {element}[6, n] w) => ({element}[1, 6] y)"
    text += " { y = Gemm <transB = 1> (x, w) }"
    x, w = (np.arange(k * n).reshape(k, n).astype(kind) % 5 for k in (1, 6))
    guarded(child, text, {"x": x, "w": w}, {"y": x @ w.T}, {"n": (1, 33)})


def test_a_size_of_a_branch_that_nothing_needs(child: Child) -> None:
    text = """
    g (float[0, 2, n] x, bool p, bool q, float[0, 2, 4] w) => (float[k, l, m] y) {
        y = If (q) <then_branch = a () => (float[0, 2, 4] t) { t = Add (w, w) },
            else_branch = b () => (float[0, 2, 4] r) {
                s = If (p) <then_branch = c () => (float[0, 2, 4] u) { u = Add (w, w) },
                    else_branch = d () => (float[0, 2, 4] v) { v = Mul (w, x) }>
                r = Neg (s)
            }>
    }
    """
    x, no = np.zeros((0, 2, 4), np.float32), np.array(False)
    guarded(child, text, {"x": x, "w": x, "p": no, "q": no}, {"y": x}, {"n": (4, 8)})


def test_an_empty_string_that_is_no_list_has_no_pieces(child: Child) -> None:
    text = "g (string x) => (string[k] y, int64 z) { y, z = StringSplit (x) }"
    x = np.array("", object)
    want = [np.zeros(0, object), np.array(0)]
    gives(text, want, opset=21, x=x)


def test_a_run_without_a_scale_for_each_block_ends(child: Child) -> None:
    text = "g (uint8[2, 33] x, float[2, n] s) => (float[2, 33] y)"
    text += " { y = DequantizeLinear <axis = 1, block_size = 2> (x, s) }"
    x = np.arange(66, dtype=np.uint8).reshape(2, 33)
    fits = np.arange(34, dtype=np.float32).reshape(2, 17)
    want = DataSet({"x": x, "s": fits}, {"y": (x * fits.repeat(2, 1)[:, :33],) * RUNS})
    others = tuple({"x": x, "s": np.ones((2, n), np.float32)} for n in (1, 16, 18))
    model = parser.parse_model(HEADER + text).SerializeToString()
    case = Case(model, {"n": (1, 20)}, (want,), others)
    verdict = judge(case, child.answer(case))
    assert verdict.kind == "pass", verdict.reason
    with pytest.raises(UserError, match="holds one element for each block"):
        gives(text, [x], opset=21, dims={"n": (1, 20)}, **others[0])


def test_rows_of_a_product_that_are_never_more_than_a_tile(child: Child) -> None:
    """Between n + 1 and 9 rows cut from 13: at most 4, for which a tile needs no loop around it."""
    text = """
    g (float[n] m, float[13, 8] x, float[8, 5] w) => (float[k, 5] y)
        <int64[1] end = {13}, int64[1] zero = {0}, int64[1] five = {5}> {
        n = Shape (m)
        start = Add (n, five)
        some = Slice (x, start, end, zero)
        y = MatMul (some, w)
    }
    """
    m, x, w = (np.arange(prod(s)).reshape(s) % 7.0 for s in ((4,), (13, 8), (8, 5)))
    feeds = {"m": m, "x": x, "w": w}
    feeds = {name: a.astype(np.float32) for name, a in feeds.items()}
    want = (x[9:] @ w).astype(np.float32)
    guarded(child, text, feeds, {"y": want}, {"n": (4, 8)})


def test_a_run_without_a_place_for_each_batch_ends(child: Child) -> None:
    text = "g (float[2, 4, 3] x, float[m, 1, 3] u, int64[n] at) => (float[2, 4, 3] y)"
    text += " { y = TensorScatter (x, u, at) }"
    x, u, at = np.zeros((2, 4, 3), np.float32), np.ones((2, 1, 3), np.float32), np.array([0, 3])
    y = x.copy()
    y[0, 0], y[1, 3] = 1, 1
    want = DataSet({"x": x, "u": u, "at": at}, {"y": (y,) * RUNS})
    others = [{"x": x, "u": u, "at": np.zeros(n, np.int64)} for n in (1, 5)]
    others += [{"x": x, "u": np.ones((n, 1, 3), np.float32), "at": at} for n in (1, 5)]
    header = HEADER.replace("21", "24")
    model = parser.parse_model(header + text).SerializeToString()
    case = Case(model, {"m": (1, 5), "n": (1, 5)}, (want,), tuple(others))
    verdict = judge(case, child.answer(case))
    assert verdict.kind == "pass", verdict.reason


def test_windows_in_planes_of_symbolic_size(child: Child) -> None:
    text = "g (float[2, 6, n, 7] x, float[6, 1, 2, 1] w) => (float[2, 2, m, 7] y)"
    text += " { y = ConvTranspose <group = 2, pads = [1, 0, 0, 0], strides = [2, 1]> (x, w) }"
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, (2, 6, 33, 7)).astype(np.float32)
    w = random.integers(-4, 5, (6, 1, 2, 1)).astype(np.float32)
    parts = np.einsum("bgchw,gck->bghkw", x.reshape(2, 2, 3, 33, 7), w.reshape(2, 3, 2))
    guarded(
        child, text, {"x": x, "w": w}, {"y": parts.reshape(2, 2, 66, 7)[:, :, 1:]}, {"n": (5, 33)}
    )


TOO_SHORT = "elements are read along an axis of"
SHORT = {
    "GatherElements": (
        "float[n, 2] x, int64[m, 2] at",
        "y = GatherElements <axis = 1> (x, at)",
        {"x": (3, 2), "at": (5, 2)},
        TOO_SHORT,
    ),
    "Attention": (
        "float[n, 1, 2, 4] q, float[m, 1, 2, 4] k",
        "y = Attention (q, k, k)",
        {"q": (7, 1, 2, 4), "k": (3, 1, 2, 4)},
        r"the shapes \[m\] and \[n\] do not broadcast: m and n differ",
    ),
    "RNN": (
        "float[3, n, 2] x, float[1, 4, 2] w, float[1, 4, 4] r, int32[m] length",
        "y, last = RNN <hidden_size = 4> (x, w, r, , length)",
        {"x": (3, 9, 2), "w": (1, 4, 2), "r": (1, 4, 4), "length": (2,)},
        TOO_SHORT,
    ),
    "GRU": (
        "float[3, 2, n] x, float[1, 12, m] w, float[1, 12, 4] r",
        "y, last = GRU <hidden_size = 4> (x, w, r)",
        {"x": (3, 2, 9), "w": (1, 12, 2), "r": (1, 12, 4)},
        "the sizes n and m differ",
    ),
    "ScatterElements": (
        "float[9, 2] x, int64[n, 2] at, float[m, 2] u",
        "y = ScatterElements (x, at, u)",
        {"x": (9, 2), "at": (9, 2), "u": (3, 2)},
        TOO_SHORT,
    ),
    "GatherElements of computed sizes": (
        "float[n] x, float[m] w",
        "p = NonZero (x) q = NonZero (w) at = Sub (q, q) g = GatherElements <axis = 0> (p, at)"
        " y = Cast <to = 1> (g)",
        {"x": (1,), "w": (9,)},
        TOO_SHORT,
    ),
    "RoiAlign": (
        "float[2, 1, 4, 4] x, float[n, 4] rois, int64[m] at",
        "y = RoiAlign (x, rois, at)",
        {"x": (2, 1, 4, 4), "rois": (9, 4), "at": (3,)},
        TOO_SHORT,
    ),
}
"""Models of two sizes that must be equal, and shapes in which they are not; what is said."""


@pytest.mark.parametrize("name", SHORT)
def test_a_run_with_an_operand_that_is_too_short_ends(child: Child, name: str) -> None:
    inputs, node, shapes, words = SHORT[name]
    text = f"g ({inputs}) => (float[] y) {{ {node} }}"
    model = parser.parse_model(HEADER.replace("21", "23") + text).SerializeToString()
    kinds = {"at": np.int64, "length": np.int32}
    feeds = {
        k: np.zeros(e, kinds[k]) if k in kinds else np.ones(e, np.float32)
        for k, e in shapes.items()
    }
    case = Case(model, {"n": (1, 9), "m": (1, 9)}, (), (feeds,))
    verdict = judge(case, child.answer(case))
    assert verdict.kind == "pass", verdict.reason
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        with pytest.raises(UserError, match=words):
            interpret(import_model(path, dims=case.dims), feeds)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_element_is_reflected_for_ever(child: Child, n: int) -> None:
    text = "g (float[2, n, 11] x) => (float[2, m, 11] y) <int64[6] p = {0, 0, 0, 0, 2, 0}>"
    text += ' { y = Pad <mode = "reflect"> (x, p) }'
    x = np.arange(22 * n, dtype=np.float32).reshape(2, n, 11)
    rows = [0, 0, 0] if n == 1 else [0, 1, 0, 1] if n == 2 else [0, 1, 2, 1, 0]
    guarded(child, text, {"x": x}, {"y": x[:, rows]}, {"n": (1, 3)})


def test_more_scales_than_columns_are_refused(tmp_path: Path) -> None:
    text = """
    g (uint8[3, 2] x, uint8[2, 1] w, float s, float[4] scales) => (float[3, 1] y)
        { y = com.microsoft.MatMulIntegerToFloat (x, w, s, scales) }
    """
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(HEADER + text).SerializeToString())
    with pytest.raises(UserError, match=r"scales columns: its shape should be \[1\]"):
        import_model(path)


def test_a_calibration_on_sizes_that_do_not_fit_is_the_users(tmp_path: Path) -> None:
    text = """
    g (float[m, 8] x, float[3, 8] y) => (float[a, b] z) {
        h = Slice (x, first, last, first, step)
        s = Add (h, y)
        z = MatMul (s, w)
    }
    """
    model = parser.parse_model(HEADER + text)
    w = np.linspace(-1, 1, 8 * 64, dtype=np.float32).reshape(8, 64)
    lists = {"first": np.array([0]), "last": np.array([99]), "step": np.array([2])}
    for name, array in {"w": w, **lists}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    options = Options(precision="int8", dims={"m": (4, 9)}, jobs=1)
    with pytest.raises(UserError, match="does not run on the inputs of its calibration"):
        compile_model(path, tmp_path / "m.so", options)
