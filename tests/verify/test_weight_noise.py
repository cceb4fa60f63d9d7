"""What is allowed beside weights that are stored in fewer bits, and no more."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from rutc.driver.api import compile
from rutc.tensor_ir import Const, DType
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.compare import compare_values
from rutc.verify.judging.judge import judged
from rutc.verify.judging.tolerance import BLOCK_STEP, MULTIPLE, WEIGHT_STEP, Level, unit_roundoff
from rutc.verify.truth.weight_noise import moved_weights, roundoff_of, stored_type

NETWORK = """
graph "two constants"
dims k = 2, n = 3
%w : f32{k,n} = const [k, n] [0.1, 0.5, -0.3, 100.0, 0.7, 0.0]
%b : f32{n} = const [n] [0.1, 0.2, 0.3]
%i : i64{k,n} = const [k, n] [1, 2, 3, 4, 5, 6]
%y : f32{k,n} = %w[k, n] + %b[n]
output "y" [k, n] = %y
"""


@pytest.mark.parametrize(
    ("types", "found"),
    [
        ((), None),
        (("bf16",), DType.BF16),
        (("f16", "bf16"), DType.BF16),
        (("f16",), DType.F16),
        (("i8", "f16"), DType.I8),
        (("i8", "i4"), DType.I4),
    ],
)
def test_the_coarsest_type_of_an_artifact_counts(
    types: tuple[str, ...], found: DType | None
) -> None:
    assert stored_type({"stored": [{"type": t} for t in types]}) is found
    assert stored_type({"precision": "bf16"}) is None
    assert stored_type({"stored": "damaged"}) is None


def test_noise_moves_weights_by_roundings_of_their_type() -> None:
    graph = parse(NETWORK)
    w = np.float32([[0.1, 0.5, -0.3], [100.0, 0.7, 0.0]])
    for dtype in (DType.BF16, DType.F16, DType.I8, DType.I4):
        runs = []
        for seed in range(40):
            moved = {n.out.name: n for n in moved_weights(graph, dtype, seed).nodes}
            for name in ("b", "i"):
                assert moved[name] in graph.nodes, "it is no matrix of floats"
            n = moved["w"]
            assert isinstance(n, Const)
            runs.append(n.data.array - w)
        most = np.abs(runs).max(axis=0)
        limit = MULTIPLE * roundoff_of(dtype) * np.abs(w)
        if dtype in (DType.I8, DType.I4):
            # Steps are those of the row or of the column, whichever has the smaller elements.
            step = WEIGHT_STEP if dtype is DType.I8 else BLOCK_STEP
            limit = MULTIPLE * step * np.float32([[0.5, 0.5, 0.3], [100.0, 0.7, 0.3]])
        else:
            assert most[0, 1] == 0, "the type has 0.5"
            limit[w == w.astype(dtype.numpy).astype(np.float32)] = 0
        assert (most <= limit * 1.001).all()
        assert (most >= limit * 0.7).all()


def test_a_row_of_weights_is_moved_where_a_sum_goes_along_it() -> None:
    graph = parse("""
        graph "a product with a row"
        dims m = 2, k = 3
        %x : f32{m,k} = input "x" [m, k]
        %w : f32{k} = const [k] [0.1, -100.0, 0.0]
        %s : f32{m} = const [m] [0.3, 0.7]
        %y : f32{m} = sum{k} %x[m, k] * %w[k] * %s[m]
        output "y" [m] = %y
        """)
    before = {n.out.name: n for n in graph.nodes if isinstance(n, Const)}
    for dtype in (DType.BF16, DType.I8):
        runs = []
        for seed in range(40):
            moved = {n.out.name: n for n in moved_weights(graph, dtype, seed).nodes}
            assert moved["s"] == before["s"]
            n = moved["w"]
            assert isinstance(n, Const)
            runs.append(n.data.array - before["w"].data.array)
        most = np.abs(runs).max(axis=0)
        # All elements of the row have steps of one size.
        size = np.float32([100.0] * 3 if dtype is DType.I8 else [0.1, 0.0, 0.0])
        limit = MULTIPLE * roundoff_of(dtype) * size
        assert (most <= limit * 1.001).all()
        assert (most >= limit * 0.7).all()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8])
def test_weights_without_elements_stay(dtype: DType) -> None:
    graph = parse("""
        graph "no rows"
        dims m = 0, n = 3, k = 2
        %w : f32{k,m,n} = const [m, n, k] []
        output "y" [m, n, k] = %w
        """)
    assert moved_weights(graph, dtype, 0) == graph


@pytest.mark.parametrize("own", ["f16", "bf16"])
def test_weights_of_16_bits_are_moved_as_well(own: str) -> None:
    graph = parse(NETWORK.replace("f32", own).replace(", 0.0]", ", 0.001]"))
    before = {n.out.name: n for n in graph.nodes if isinstance(n, Const)}
    signs = set()
    for seed in range(8):
        after = {n.out.name: n for n in moved_weights(graph, DType.I8, seed).nodes}
        w = after["w"]
        assert isinstance(w, Const)
        assert w.data.array.dtype == before["w"].data.array.dtype
        assert (w.data.array != before["w"].data.array).any()
        assert after["b"] == before["b"]
        signs.add(float(np.sign(w.data.array[1, 2].astype(np.float32))))
    assert signs == {-1.0, 1.0}, "what is small beside others is of either sign"


def test_results_may_be_some_roundings_of_the_stored_type_off() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((4, 64))
    theirs = (truth * (1 + 1e-7)).astype(np.float32)

    def passes(error: float, roundoff: float) -> bool:
        ours = (truth + error * np.abs(truth).max() * rng.standard_normal(truth.shape)).astype("f4")
        (compared,) = compare_values("y", ours, theirs, Level.REDUCED)
        return judged(compared, ours, theirs, truth, lambda: [truth] * 8, roundoff).passed

    bf16 = unit_roundoff(DType.BF16.numpy)
    assert passes(1e-3, bf16)
    assert not passes(1e-3, 0.0)
    assert not passes(1e-3, roundoff_of(DType.F16) / 8)
    assert not passes(0.1, bf16)
    assert roundoff_of(None) == 0.0


def test_a_result_of_which_roundings_of_weights_leave_little_is_remarked() -> None:
    """As of a chaotic model: noise explains any result, which says nothing for this one."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((4, 64))
    theirs = truth.astype(np.float32)
    apart = [truth + rng.standard_normal(truth.shape) for _ in range(8)]

    def remark(error: float, roundoff: float) -> str:
        ours = (truth + error * np.abs(truth).max() * rng.uniform(-1, 1, truth.shape)).astype("f4")
        (compared,) = compare_values("y", ours, theirs, Level.REDUCED)
        found = judged(compared, ours, theirs, truth, lambda: apart, roundoff)
        assert found.passed
        return found.remark

    assert remark(0.5, roundoff_of(DType.I8)).startswith("off by 0.")
    assert not remark(0.1, roundoff_of(DType.I8))
    assert not remark(0.5, 0.0), "that all is in the model's own types"


def test_weights_that_constants_make_are_moved(tmp_path: Path) -> None:
    """Of 16 bits with a scale: an artifact that has them in 4 bits was told to be wrong."""
    text = (
        '<ir_version: 10, opset_import: ["" : 17]> g (float[1, 512] x) => (float[1, 1024] y)'
        " { c = Cast <to = 1> (q) w = Mul (c, s) y = MatMul (x, w) }"
    )
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    q = 300 * rng.standard_t(1.5, (512, 1024))
    s = rng.random(1024).astype(np.float32) + 1
    held = numpy_helper.from_array(q.clip(-32768, 32767).astype(np.int16), "q")
    model.graph.initializer.extend([held, numpy_helper.from_array(s, "s")])
    onnx.save(model, tmp_path / "m.onnx")
    made = compile(tmp_path / "m.onnx", tmp_path / "m.so", precision="w4")
    assert made.report.narrow_values == 1
    assert made.verification is not None
    assert made.verification.passed
