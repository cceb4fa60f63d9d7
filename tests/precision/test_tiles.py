"""The functions that do what instructions on tiles do, and that code calls them."""

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike
from onnx import TensorProto

from rutc.driver.parts.build import Builder
from rutc.emit.targets import x86
from rutc.graph_opt import optimize
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.alternatives.split_precision import SAID, SAID_ROUNDED
from rutc.graph_opt.decide import decide
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.pipeline import pipeline_for
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.textual.parse import parse
from tests.byte_products import with_weights
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import TILES, V3, needs
from tests.tiles import calling_functions, load

AMX = replace(x86.avx512(), features=x86.V4_FEATURES | x86.OPTIONAL_FEATURES)
ROWS, COLUMNS = 5, 12


def calls(plan: Plan, name: str) -> int:
    """How many calls of an intrinsic a plan's code for tiles has."""
    texts: list[str] = []
    builder = Builder(plan, TILES, "model", 1, keep_subnormals=True, code=False)
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    return sum(text.count(f"call void @llvm.x86.{name}(") for text in texts)


def multiplied(name: str, a: np.ndarray, b: np.ndarray, kind: DTypeLike) -> np.ndarray:
    """a @ b by the function of that name, b's rows grouped as in tiles."""
    group = 4 // a.itemsize
    columns = b.shape[1]
    grouped = b.reshape(-1, group, columns).transpose(0, 2, 1).reshape(-1, columns * group).copy()
    functions = load()
    table = np.zeros(64, np.uint8)
    table[0] = 1
    shapes = [(len(a), 4 * columns), (len(a), a.shape[1] * a.itemsize), (len(grouped), 4 * columns)]
    for tile, (rows, bytes_) in enumerate(shapes):
        table[48 + tile], table[16 + 2 * tile] = rows, bytes_
    out = np.empty((len(a), columns), kind)

    def at(array: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
        return ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.strides[0])

    functions.tiles_ldtilecfg(ctypes.c_void_p(table.ctypes.data))
    functions.tiles_tilezero(0)
    functions.tiles_tileloadd64(1, *at(a))
    functions.tiles_tileloadd64(2, *at(grouped))
    functions[f"tiles_{name}"](0, 1, 2)
    functions[f"tiles_{name}"](0, 1, 2)
    functions.tiles_tilestored64(0, *at(out))
    functions.tiles_tilerelease()
    return out


@needs(V3)
@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("tdpbf16ps", ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        ("tdpbssd", np.int8, np.int8),
        ("tdpbsud", np.int8, np.uint8),
        ("tdpbusd", np.uint8, np.int8),
        ("tdpbuud", np.uint8, np.uint8),
    ],
)
def test_products_of_tiles(name: str, left: DTypeLike, right: DTypeLike) -> None:
    rng = np.random.default_rng(0)
    depth = 64 // np.dtype(left).itemsize

    def numbers(shape: tuple[int, int], dtype: DTypeLike) -> np.ndarray:
        low = 0 if dtype is np.uint8 else -128
        return rng.integers(low, low + 256, shape).astype(dtype)

    a, b = numbers((ROWS, depth), left), numbers((depth, COLUMNS), right)
    floats = name == "tdpbf16ps"
    got = multiplied(name, a, b, np.float32 if floats else np.int32)
    # Numbers of 8 bits: all sums are exact.
    wanted = 2 * (a.astype(np.int64) @ b.astype(np.int64))
    np.testing.assert_array_equal(got.astype(np.int64), wanted)


@needs(TILES)
@pytest.mark.parametrize("products", [37, 197])
def test_zeros_fill_what_no_divisor_does(products: int, tmp_path: Path) -> None:
    """What is not finite in a row stays in its own sums."""
    rows, columns = 19, 40
    n = Net()
    x, z = n.input(rows, products), n.input(products, columns)
    graph = n.graph(n("MatMul", x, z), dims={})
    steps = pipeline_for(TILES, Leeway(bf16=True), assigned=Assigned((("v0", SAID_ROUNDED),)))
    plan = decide(optimize(graph, pipeline=steps), TILES)
    assert calls(plan, "tdpbf16ps") > 0
    assert str(plan).count("fill the halo") == 1, "the columns have zeros of their own"
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, (rows, products)).astype(np.float32)
    b = rng.integers(-9, 9, (products, columns)).astype(np.float32)
    a[4], a[7] = np.inf, np.nan
    b[:, 3] = np.nan
    got = run(build(plan, TILES, tmp_path), {"x0": a, "x1": b}, 2)["v0"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, a @ b)


@needs(TILES)
@pytest.mark.parametrize("products", [37, 197])
def test_zeros_fill_bytes(products: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (19, products)).astype(np.uint8)
    b = rng.integers(-128, 128, (products, 40)).astype(np.int8)
    n = Net()
    x = n.input(*a.shape, type_=TensorProto.UINT8)
    graph = n.graph(n("MatMulInteger", x, n.const(b, np.int8)), dims={})
    plan = decide(optimize(graph, pipeline=pipeline_for(TILES)), TILES)
    assert calls(plan, "tdpbusd") > 0
    got = run(build(plan, TILES, tmp_path), {"x0": a}, 2)["v0"]
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@needs(V3)
def test_shapes_that_do_not_fit_end_the_process() -> None:
    program = (
        "import numpy as np; from tests.precision.test_tiles import multiplied; "
        "multiplied('tdpbssd', np.ones((5, 60), np.int8), np.ones((64, 12), np.int8), np.int32)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False)
    assert done.returncode == -6


@needs(TILES)
def test_code_calls_the_functions(tmp_path: Path) -> None:
    n = Net()
    x = n.input(32, 64)
    graph = n.graph(n("MatMul", x, n.weight(64, 48)), dims={})
    plan = decide(with_algorithms(graph, TILES, Assigned((("v0", SAID),))), TILES)
    texts: list[str] = []
    builder = Builder(plan, TILES, "model", 1, keep_subnormals=True, code=False)
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    assert sum("call void @llvm.x86.tdpbf16ps(" in text for text in texts) == 1
    for text in map(calling_functions, texts):
        assert "@llvm.x86.t" not in text
        assert ("call void @tiles_tdpbf16ps(" in text) == ("@tiles_ldtilecfg" in text)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 64), np.float32)
    got = run(build(plan, TILES, tmp_path), {"x0": x}, 2)["v0"]
    direct = run(build(decide(optimize(graph), V3), V3, tmp_path), {"x0": x}, 2)["v0"]
    assert not np.array_equal(got, direct)
    bound = 64 * np.abs(x).max() * 2.0**-20
    np.testing.assert_array_less(np.abs(got - direct), bound)


@pytest.mark.parametrize(("dtype", "feature"), [("bf16", "amx-bf16"), ("i8", "amx-int8")])
def test_only_registers_that_are_used_are_needed(dtype: str, feature: str) -> None:
    """A processor may have one kind, and what was compiled where there are both runs there."""
    sums = "f32" if dtype == "bf16" else "i32"
    graph = parse(f"""
graph "product"
dims m = 64, n = 64, k = 128
%a : {dtype}{{k,m}} = input "a" [m, k]
%w : {dtype}{{k,n}} = input "w" [k, n]
%y : {sums}{{m,n}} = sum{{k}} {sums}(%a[k, m]) * {sums}(%w[k, n])
output "y" [m, n] = %y
""")
    elements = ml_dtypes.bfloat16 if dtype == "bf16" else np.int8
    constant = with_weights(graph, np.ones((128, 64), elements))
    built = Builder(decide(constant, AMX), AMX, "model", 1, keep_subnormals=False).build()
    amx = {name for name in built.program.features if name.startswith("amx-")}
    assert amx == {"amx-tile", feature}
