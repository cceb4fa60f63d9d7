"""`--precision w4`: weights in 4 bits with a scale for each block, where that is faster."""

from pathlib import Path

import numpy as np
import pytest

import rutc
from rutc.driver.options import Options
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.four_bits import candidates, in_blocks, in_blocks_of_four_bits
from rutc.report.explain import explain
from rutc.runtime import load
from rutc.tensor_ir import Const, Data, DType
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.verify import verify_model
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import NATIVE


# -- numbers and scales -------------------------------------------------------------------------
def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def widened(numbers: np.ndarray, scales: np.ndarray, axis: int, length: int) -> np.ndarray:
    """The weights that numbers stand for."""
    each = np.repeat(scales, length, axis=axis)
    kept = np.take(each, np.arange(numbers.shape[axis]), axis=axis)
    found: np.ndarray = numbers.astype(np.float32) * kept
    return found


@pytest.mark.parametrize("shape", [(64, 5), (75, 3), (31, 2), (1, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_have_scales_of_their_own(shape: tuple[int, int], axis: int) -> None:
    w = weights(*shape) * np.logspace(-3, 3, shape[0], dtype=np.float32)[:, None]
    w = w if axis == 0 else np.ascontiguousarray(w.T)
    numbers, scales = in_blocks(w, axis, 32)
    assert numbers.dtype == DType.I4.numpy
    assert numbers.shape == w.shape
    assert scales.shape[axis] == -(-shape[0] // 32)
    off = np.moveaxis(np.abs(widened(numbers, scales, axis, 32) - w), axis, 0)
    moved = np.moveaxis(np.abs(w), axis, 0)
    for start in range(0, len(moved), 32):
        largest = moved[start : start + 32].max(axis=0)
        assert (off[start : start + 32] <= largest / 7).all()


def test_blocks_use_the_sign_of_their_largest_weight() -> None:
    w = np.float32([[8, -1, 3, -7], [-8, 1, -3, 7], [7, -7, 1, 0], [0, 0, 0, 0]]) / 4
    numbers, scales = in_blocks(w, 1, 4)
    assert (widened(numbers, scales, 1, 4) == w).all()
    assert (numbers[0].astype(int) == [-8, 1, -3, 7]).all()


def test_steps_are_those_of_least_squares() -> None:
    w = weights(32 * 200).reshape(200, 32)
    numbers, scales = in_blocks(w, 1, 32)
    error = np.linalg.norm(widened(numbers, scales, 1, 32) - w)
    largest = np.abs(w).max(axis=1, keepdims=True) / 7
    plain = np.clip(np.rint(w / largest), -8, 7) * largest
    assert error < 0.93 * np.linalg.norm(plain - w)
    slopes = ((widened(numbers, scales, 1, 32) - w) * numbers.astype(np.float32)).sum(axis=1)
    assert np.abs(slopes).max() < 1e-3, "no other step of these numbers is nearer"


# -- graphs -------------------------------------------------------------------------------------
SHARED = """
graph "shared"
dims m = 2, k = {k}, n = 1001, i = 3
%x : f32{{k,m}} = input "x" [m, k]
%j : i64{{i}} = input "j" [i]
%w : f32{{k,n}} = const [k, n] data "{w}"
%y : f32{{m,n}} = sum{{k}} %x[k, m] * %w[k, n]
%z : f32{{i,k}} = %w[k, n=%j[i]]
output "y" [m, n] = %y
output "z" [i, k] = %z
"""


@pytest.mark.parametrize("k", [64, 75, 7])
def test_sums_read_blocks_and_others_the_constant(k: int, tmp_path: Path) -> None:
    data = Data(weights(k, 1001))
    graph = parse(SHARED.format(k=k, w=data.digest), {data.digest: data})
    (found,) = candidates(graph)
    assert (found.value, found.dim, found.length) == ("w", "k", min(k, 32))
    assert found.sums == ("y",)
    assert found.keep
    made = in_blocks_of_four_bits(graph, (found,))
    x, j = weights(2, k), np.array([1000, 0, 7])
    wanted = interpret(made, {"x": x, "j": j})
    assert (wanted["z"] == data.array[:, j].T).all()
    numbers, scales = in_blocks(data.array, 0, found.length)
    product = x @ widened(numbers, scales, 0, found.length)
    assert_close(wanted["y"], product, reduction=k)
    plan = decide(optimize(made), NATIVE)
    packed = [
        n.out.name
        for n in plan.graph.nodes
        if isinstance(n, Const) and plan.layouts[n.out.name].nibbles
    ]
    assert len(packed) == (k > 7), "what is small is widened while compiling"
    got = run(build(plan, NATIVE, tmp_path), {"x": x, "j": j}, 1)
    assert_close(got["y"], wanted["y"], reduction=k)
    assert (got["z"] == wanted["z"]).all()


# -- libraries ----------------------------------------------------------------------------------
def network(folder: Path, name: str, rows: int, seed: int = 0) -> Path:
    """The file of two products of a few rows; the seed changes signs of the first one's weights."""
    n = Net()
    x, w = n.input(rows, 512), n.rng.standard_normal((512, 512)) / 2
    w *= np.where(np.random.default_rng(seed).random(w.shape) < seed / 2, -1, 1)
    y = n("MatMul", n("Relu", n("MatMul", x, n.const(w))), n.weight(512, 384))
    return n.save(folder / f"{name}.onnx", y)


def test_weights_of_few_rows_take_an_eighth_and_their_scales(tmp_path: Path) -> None:
    model = network(tmp_path, "few", 1)
    usual = rutc.compile(model, tmp_path / "usual.so", target="x86-64-v3")
    made = rutc.compile(model, tmp_path / "made.so", target="x86-64-v3", precision="w4")
    assert made.verification is not None
    assert made.verification.passed
    assert made.verification.level is Level.REDUCED
    (output,) = made.verification.outputs
    assert output.error is not None
    assert output.error > 1e-3, "weights are rounded"
    elements = 512 * (512 + 384)
    assert made.report.narrow_values == 2
    assert made.report.narrow_bytes == elements // 2 + elements // 32 * 4
    assert made.report.narrow_saved == 4 * elements - made.report.narrow_bytes
    assert usual.report.weight_bytes - made.report.weight_bytes >= 0.98 * made.report.narrow_saved
    with load(made.library, threads=1) as session:
        stored = session.manifest["stored"]
    assert isinstance(stored, list)
    assert {s["type"] for s in stored} == {"i4"}


def test_many_rows_keep_float32(tmp_path: Path) -> None:
    made = rutc.compile(
        network(tmp_path, "many", 256), tmp_path / "many.so", precision="w4", target="x86-64-v3"
    )
    assert made.report.narrow_values == 0
    assert made.verification is not None
    assert made.verification.level is Level.MODEL


def test_other_weights_are_found_out(tmp_path: Path) -> None:
    model = network(tmp_path, "model", 1)
    made = rutc.compile(
        model, tmp_path / "model.so", precision="w4", target="x86-64-v3", verify=False
    )
    assert verify_model(model, made.library).passed
    other = network(tmp_path, "other", 1, seed=1)
    assert not verify_model(other, made.library).passed


def test_explained_nodes_read_numbers_of_4_bits(tmp_path: Path) -> None:
    model = network(tmp_path, "few", 1)
    for precision, there in (("w4", True), ("fp32", False)):
        found = explain(model, "v0", Options(target="x86-64-v3", precision=precision))
        assert any(".q" in part.text for part in found.parts) is there
