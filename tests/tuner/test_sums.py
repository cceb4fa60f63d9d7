"""Long sums are made of partial sums, so that they err little."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.emit.targets import x86
from rutc.runtime import load
from rutc.tensor_ir import DType
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose, partial_sums
from rutc.tuner.sums import SUMMANDS
from tests.tuner.test_schedules import lowered

UNIT = 2.0**-24


def _steps(text: str) -> list[str]:
    """The steps that make the long sums of a graph's kernel in parts."""
    kernel, constants = lowered(text)
    scheduled = apply_schedule(kernel, choose(kernel, x86.avx512(), constants).schedule)
    return [str(s) for s in partial_sums(scheduled)[0]]


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


CASES = {
    "products": ((33, 4099), "MatMul", 1),
    "one row of products": ((1, 20_000), "MatMul", 1),
    "rows": ((3, 1_000_003), "ReduceSum", 1),
    "columns": ((300_007, 3), "ReduceSum", 0),
    "columns of vectors": ((20_011, 40), "ReduceSum", 0),
    "planes": ((1, 2, 1001, 1003), "ReduceMean", (2, 3)),
}


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
    node = helper.make_node(op, ["x", "w"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(other, "w")]
    graph = helper.make_graph([node], "sums", [given], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    library = rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False).library
    with load(library, threads=1) as session:
        (found,) = session.run(None, {"x": x})
    count = x.size // found.size if op != "MatMul" else shape[1]
    truth = float(np.float64(x.flat[0])) * (1 if op == "ReduceMean" else count)
    in_order = max(2 * SUMMANDS, 2 * count**0.5)
    assert np.abs(found / truth - 1).max() < 2 * in_order * UNIT
