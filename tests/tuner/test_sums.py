"""Long sums are made of partial sums, so that they err little."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.emit.targets import x86
from rutc.runtime import load
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.indices.affine import ZERO
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kind, Loop
from rutc.tensor_ir.machine import BF16_VECTORS, Machine
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose, partial_sums
from rutc.tuner.sums import SUMMANDS, _extent
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.tuner.test_schedules import lowered

UNIT = 2.0**-24
V4 = x86.avx512()
IN_PAIRS = replace(V4, features=V4.features | {BF16_VECTORS})


def _steps(text: str, machine: Machine = V4) -> list[str]:
    """The steps that make the long sums of a graph's kernel in parts."""
    kernel, constants = lowered(text)
    scheduled = apply_schedule(kernel, choose(kernel, machine, constants).schedule)
    return [str(s) for s in partial_sums(scheduled)[0]]


PAIRS = """
graph "pairs"
dims i = 4, j = 16, k = {k}
%x : bf16{{i,k}} = input "x" [i, k]
%w : bf16{{j,k}} = input "w" [k, j]
%y : f32{{i,j}} = sum{{k}} f32(%x[i, k]) * f32(%w[j, k])
output "y" [i, j] = %y
"""


@pytest.mark.parametrize(("k", "parts"), [(512, 0), (8_190, 0), (16_384, 1)])
def test_sums_of_rounded_factors_are_longer(k: int, parts: int) -> None:
    assert len(_steps(PAIRS.format(k=k), IN_PAIRS)) == parts


PRODUCTS = """
graph "products"
dims j = 64, k = {k}
%x : f32{{k}} = input "x" [k]
%w : f32{{j,k}} = input "w" [k, j]
%y : f32{{j}} = sum{{k}} %x[k] * %w[j, k]
output "y" [j] = %y
"""


@pytest.mark.parametrize("k", [64, 257, 511])
def test_short_sums_are_made_in_order(k: int) -> None:
    assert _steps(PRODUCTS.format(k=k)) == []


@pytest.mark.parametrize(
    ("k", "wanted"),
    [
        (512, "partial_sums(k.o, 32)"),
        # No block near 256 divides a prime number: the last one is shorter.
        (1021, "partial_sums(k, 256)"),
        (720, "partial_sums(k.o, 30)"),
        # Many parts, as many as each has summands.
        (1_000_000, "partial_sums(k.o, 125)"),
    ],
)
def test_long_sums_are_made_in_parts(k: int, wanted: str) -> None:
    assert _steps(PRODUCTS.format(k=k)) == [wanted]


def test_iterations_of_an_outer_loop_are_parts_where_those_are_long() -> None:
    steps = _steps(
        """
        graph "rows"
        dims j = 64, k = 200, i = 6
        %x : f32{i,k} = input "x" [k, i]
        %w : f32{i,j,k} = input "w" [i, k, j]
        %y : f32{j} = sum{i, k} %x[i, k] * %w[i, j, k]
        output "y" [j] = %y
        """
    )
    assert steps == ["partial_sums(i, 1)"]


def test_parts_have_as_many_iterations_each_where_half_as_many_divide_the_loop() -> None:
    """A window's three columns of 128 channels: not two and one, whose ends each part tests."""
    steps = _steps(
        """
        graph "rows"
        dims j = 64, k = 128, i = 3, h = 3
        %x : f32{h,i,k} = input "x" [k, h, i]
        %w : f32{h,i,j,k} = input "w" [h, i, k, j]
        %y : f32{j} = sum{h, i, k} %x[h, i, k] * %w[h, i, j, k]
        output "y" [j] = %y
        """
    )
    assert steps == ["partial_sums(i, 1)"]


def test_sums_of_whole_numbers_and_extremes_stay_as_they_are() -> None:
    text = """
    graph "others"
    dims i = 8, k = 100000
    %x : {t}{{i,k}} = input "x" [i, k]
    %y : {t}{{i}} = {op}{{k}} %x[i, k]
    output "y" [i] = %y
    """
    assert not _steps(text.format(t=DType.I32.value, op="sum"))
    assert not _steps(text.format(t=DType.F32.value, op="max"))


ROWS = """
graph "rows"
symbols n = {range}
dims i = 2, k = n
%x : f32{{i,k}} = input "x" [i, k]
{nest}
output "y" [i] = %y
"""
NESTS = {
    "sum": "%y : f32{i} = sum{k} %x[i, k]",
    "moments": "%m : f32{i}, %y : f32{i} = moments{k} %x[i, k]",
}


@pytest.mark.parametrize("how", NESTS)
def test_whole_blocks_of_symbolic_sums_alone_are_made_in_parts(how: str) -> None:
    """What they leave over is less than a block."""
    text = ROWS.format(range="1..100000", nest=NESTS[how])
    kernel, _ = lowered(text)
    scheduled = apply_schedule(kernel, choose(kernel, x86.avx512(), frozenset()).schedule)
    steps, made = partial_sums(scheduled)
    assert [str(s) for s in steps] == ["partial_sums(k.o, 256)"]
    rng = np.random.default_rng(4)
    for n in (1, 64, 130, 1000):
        x = rng.standard_normal((2, n)).astype(np.float32)
        memory = {b.name: np.zeros(b.layout.at({"n": n}).elements, np.float32) for b in made.args}
        memory["x"][:] = x.reshape(-1)
        interpret_kernel(made, memory, {"n": n})
        wanted = {"sum": x.sum(1), "moments": x.var(1)}
        assert_close(memory["y"], wanted[how], level=Level.MODEL)


@pytest.mark.parametrize(
    ("size", "most"),
    [
        ((Index.of("n") + 63) // 64 - Index.of("n") // 64, 1),
        ((Index.of("n") + 191) // 64 - Index.of("n") // 64, 3),
        ((Index.of("n") + 5) // 64 - (Index.of("n") + 64) // 64 + 2, 2),
        ((Index.of("n") + 63) // 64 - Index.of("n") // 32, inf),
        (Index.of("n") // 64, inf),
    ],
)
def test_what_blocks_leave_over_is_bounded(size: Index, most: float) -> None:
    loop = Loop("k", ZERO, size, Kind.SERIAL, ())
    assert _extent(loop, {}) == most
    if most < inf:
        assert max(int(size.evaluate({"n": n})) for n in range(1000)) <= most


CASES = {
    "products": ((33, 4099), "MatMul", 1),
    "one row of products": ((1, 20_000), "MatMul", 1),
    "rows": ((3, 1_000_003), "ReduceSum", 1),
    "columns": ((300_007, 3), "ReduceSum", 0),
    "columns of vectors": ((20_011, 40), "ReduceSum", 0),
    "planes": ((1, 2, 1001, 1003), "ReduceMean", (2, 3)),
}


def _computed(
    op: str, x: np.ndarray, w: np.ndarray, sizes: Sequence[int | str], folder: Path
) -> np.ndarray:
    """op(x, w) as it is compiled, for an `x` of these sizes and a constant `w`."""
    node = helper.make_node(op, ["x", "w"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "sums", [given], [made], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    library = rutc.compile(folder / "m.onnx", folder / "m.so", verify=False).library
    with load(library, threads=1) as session:
        (found,) = session.run(None, {"x": x})
    return np.asarray(found)


@pytest.mark.parametrize("free", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_long_sums_of_equal_numbers_err_little(name: str, free: bool, tmp_path: Path) -> None:
    """Equal numbers are all rounded alike: one after another they would err by a hundredth."""
    shape, op, axes = CASES[name]
    sizes = [f"n{k}" if free else n for k, n in enumerate(shape)]
    x = np.full(shape, 0.4873, np.float32)
    other = np.ones((shape[1], 5), np.float32) if op == "MatMul" else np.atleast_1d(np.int64(axes))
    if op == "MatMul":
        sizes[1] = shape[1]
    found = _computed(op, x, other, sizes, tmp_path)
    count = x.size // found.size if op != "MatMul" else shape[1]
    truth = float(np.float64(x.flat[0])) * (1 if op == "ReduceMean" else count)
    in_order = max(2 * SUMMANDS, 2 * count**0.5)
    assert np.abs(found / truth - 1).max() < 2 * in_order * UNIT


def test_the_moments_of_a_long_row_err_little(tmp_path: Path) -> None:
    count = 1 << 20
    x = np.where(np.arange(count) % 3 == 0, np.float32(0.4873), np.float32(-0.1111))
    x = x.reshape(1, count)
    scale = np.ones(count, np.float32)
    found = _computed("LayerNormalization", x, scale, x.shape, tmp_path)
    wide = x.astype(np.float64)
    truth = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    worst = np.abs(found / truth - 1).max()
    assert worst < 16 * UNIT, worst / UNIT
