"""Results in fewer bits are compared: right ones pass, and faults are found that are planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from rutc.driver.options import AUTO, BF16, FP32, INT8, W4
from rutc.driver.parts.weights import Weights
from rutc.emit.dot import DotEmitter
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.llvm import ir
from rutc.graph_opt import quantise
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.tensor_ir import Const, DType
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.textual.parse import parse
from tests.fuzz.cases import Case, DataSet
from tests.fuzz.check import Verdict, beyond, differs, judge, within
from tests.fuzz.child import INTERPRETED, Answer, Child
from tests.fuzz.graph import RUNS, tensor
from tests.fuzz.oracles import evaluate
from tests.fuzz.rounded import Filter, Rounding, bounds, filters_of, rounding_of
from tests.machines import NATIVE, V3, V4, needs

PRECISIONS = (BF16, "fp16", "w8", W4, INT8, AUTO)
TARGETS = ("native", pytest.param(V3.name, marks=needs(V3)), pytest.param(V4.name, marks=needs(V4)))
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with planted faults are kept nowhere."""
    monkeypatch.setenv("RUTC_CACHE_MIB", "0")


def products(precision: str, rows: int = 3, *, special: bool = False) -> Case:
    """Two products with constants and a maximum between them, of prime sizes."""
    random = np.random.default_rng(7)
    x = random.standard_normal((rows, 67)).astype(np.float32)
    if special:
        x[0, 3], x[1, 5] = np.nan, np.inf
    weights = {
        "w": random.standard_normal((67, 53)).astype(np.float32),
        "v": random.standard_normal((53, 37)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    known = {n: (a,) * RUNS for n, a in {"x": x, **weights}.items()}
    for node in nodes:
        feeds = [{n: known[n][r] for n in node.input} for r in range(RUNS)]
        (known[node.output[0]],) = evaluate(node, 18, feeds)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 37])],
        [tensor(a, n) for n, a in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data = DataSet({"x": x}, {"y": known["y"]})
    return Case(made.SerializeToString(), {}, (data,), precision=precision, eager=True)


def windows(x: np.ndarray, precision: str) -> Case:
    """A sum over windows of 3 x 3, of which filters take less time."""
    w = np.random.default_rng(3).standard_normal((16, x.shape[1], 3, 3)).astype(x.dtype)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    (wanted,) = evaluate(node, 18, [{"x": x, "w": w}] * RUNS)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, wanted[0].shape)],
        [tensor(w, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data = DataSet({"x": x}, {"y": tuple(wanted)})
    return Case(
        made.SerializeToString(), {}, (data,), precision=precision, target=V3.name, eager=True
    )


def answered(case: Case) -> Answer:
    child = Child(60.0)
    try:
        return child.answer(case)
    finally:
        child.close()


def off(answer: Answer, case: Case) -> str:
    """In what a result is none in float32; "" where it is."""
    (data,) = case.sets
    return differs(answer.results[0]["1 threads"]["y"], data.expected["y"], 67)


@pytest.mark.parametrize("rows", [3, 61])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_in_fewer_bits_are_within_bounds(precision: str, target: str, rows: int) -> None:
    case = replace(products(precision, rows), target=target)
    answer = answered(case)
    assert judge(case, answer) == Verdict("pass")
    assert answer.bounds[0].keys() == {"model", "plan"}
    if precision != AUTO:
        assert off(answer, case), "nothing was rounded"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 17])
def test_infinities_and_nan_are_where_the_model_has_them(precision: str, rows: int) -> None:
    case = products(precision, max(rows, 2), special=True)
    answer = answered(case)
    assert judge(case, answer) == Verdict("pass")
    wrong = {way: dict(made) for way, made in answer.results[0].items()}
    wrong["1 threads"]["y"] = np.nan_to_num(np.asarray(wrong["1 threads"]["y"]))
    verdict = judge(case, replace(answer, results=[wrong]))
    assert verdict.kind == "wrong"


@pytest.mark.parametrize(("precision", "dtype"), [(FP32, np.float32), (BF16, np.float16)])
@needs(V3)
def test_what_filters_spoil_is_open_and_no_more(precision: str, dtype: type) -> None:
    """An infinity in the third row and column may spoil rows and columns 0 to 6."""
    x = np.random.default_rng(5).standard_normal((3, 16, 20, 11)).astype(dtype)
    x[0, 4, 2, 2] = np.inf
    case = windows(x, precision)
    answer = answered(case)
    made = np.asarray(answer.results[0]["1 threads"]["y"])
    assert np.isnan(made[0, :, :4, :4]).any(), "nothing was spoilt"
    assert judge(case, answer) == Verdict("pass")
    for row, kind in ((5, "pass"), (7, "wrong")):
        wrong = made.copy()
        wrong[0, 3, row, 2] = np.nan
        told = _beside(replace(answer, results=[{"1 threads": {"y": wrong}}]), "model")
        assert judge(case, told).kind == kind


def test_numbers_that_overflow_in_filters_spoil_their_tiles() -> None:
    graph = parse("""
    graph "windows"
    dims d = 9, y = 7, k = 3
    %x : f32{d} = input "x" [d]
    %w : f32{k} = const [k] [0.125, 0.25, 0.5] @ "w"
    %y : f32{y} = sum{k} %x[d=y + k] * %w[k] @ "conv"
    output "y" [y] = %y
    """)
    x = np.ones(9, np.float32)
    x[1] = 1e37
    for largest, spoilt in ((1e36, range(5)), (1e38, range(0))):
        by = Filter(frozenset({"conv", "relu"}), 4, largest)
        (found,) = bounds(graph, [{"x": x}], Rounding(), [by]) or ()
        allowed = within(found["y"], (found["y"][0],) * RUNS)
        for at in range(7):
            got = found["y"][0].copy()
            got[at] = np.nan
            assert bool(differs(got, allowed, 3)) == (at not in spoilt)
    (found,) = bounds(graph, [{"x": x}], Rounding(), [Filter(frozenset({"relu"}), 4, 1e36)]) or ()
    assert np.isfinite(found["y"]).all()


def misplaced(patch: pytest.MonkeyPatch) -> None:
    """Constants are stored one place further on."""
    place = Weights.place

    def wrong(self: Weights, const: Const, layout: Layout) -> Ref:
        before = len(self.images)
        found = place(self, const, layout)
        self.images[before:] = [(at, np.roll(image, 1)) for at, image in self.images[before:]]
        return found

    patch.setattr(Weights, "place", wrong)


def one_product(patch: pytest.MonkeyPatch) -> None:
    """Of a pair of factors, one is taken twice."""

    def wrong(self: DotEmitter, old: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
        return pairs(self, old, q, q)

    pairs = DotEmitter._bf16_pairs
    patch.setattr(DotEmitter, "_bf16_pairs", wrong)


def scaled(patch: pytest.MonkeyPatch) -> None:
    """Weights are of so many steps, but not of these."""
    own = quantise._Quantised.scaled

    def wrong(self: quantise._Quantised, site: quantise.Site) -> tuple[np.ndarray, np.ndarray]:
        scale, steps = own(self, site)
        return scale * np.float32(1.5), steps

    patch.setattr(quantise._Quantised, "scaled", wrong)


@pytest.mark.parametrize(
    ("precision", "plant", "graph"),
    [
        *[(p, misplaced, "plan") for p in PRECISIONS if p != AUTO],
        pytest.param(
            BF16,
            one_product,
            "plan",
            marks=pytest.mark.skipif(not adds_pairs(NATIVE), reason="no pairs of bf16"),
        ),
        (INT8, scaled, "model"),
    ],
)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, precision: str, plant: Plant, graph: str
) -> None:
    plant(monkeypatch)
    # Pairs of factors in bf16 are multiplied where there are many.
    case = products(precision, 61 if plant is one_product else 3)
    answer = answered(case)
    verdict = judge(case, answer)
    assert verdict.kind == "wrong"
    assert f"beside the {graph}'s graph" in judge(case, _beside(answer, graph)).reason


def _beside(answer: Answer, graph: str) -> Answer:
    return replace(answer, bounds=[{graph: answer.bounds[0][graph]}])


def test_results_are_as_near_as_was_asked_for() -> None:
    case = products(AUTO)
    right = case.sets[0].expected["y"][0]
    loose = {"model": {"y": (right, right - 100, right + 100)}}
    for factor, kind in ((1.05, "pass"), (1.2, "wrong")):
        results = [{"1 threads": {"y": right * np.float32(factor)}}]
        assert judge(case, Answer("ran", "", "", results, [loose], 0.1)).kind == kind


def test_what_the_interpreter_gives_is_compared_with_the_oracles() -> None:
    case = products(BF16)
    answer = answered(case)
    answer.results[0][INTERPRETED] = answer.results[0]["1 threads"]
    assert judge(case, answer).kind == "wrong"


SUM = """
graph "sum"
dims k = 5, n = 3
%x : f32{k,n} = input "x" [k, n]
%y : f32{n} = sum{k} %x[k, n]
output "y" [n] = %y
"""


def test_bounds_are_a_few_roundings_wide() -> None:
    x = np.linspace(0.1, 0.9, 15, dtype=np.float32).reshape(5, 3)
    plain, narrow = (
        bounds(parse(SUM), [{"x": x}], rounding) for rounding in (Rounding(), Rounding(DType.BF16))
    )
    assert plain is not None
    assert narrow is not None
    widths = []
    for found in (plain, narrow):
        value, low, high = found[0]["y"]
        np.testing.assert_array_equal(value, x.sum(axis=0))
        assert np.all((low < value) & (value < high))
        widths.append(float((high - low).max()))
    assert widths[0] < float(np.finfo(np.float32).eps) * 64
    assert widths[0] * 64 < widths[1] < 0.1


def test_whole_numbers_are_exact() -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    (found,) = bounds(parse(SUM), [{"x": x}], Rounding(DType.BF16)) or ()
    for each in found["y"]:
        np.testing.assert_array_equal(each, x.sum(axis=0))


def test_steps_are_of_a_range() -> None:
    x = np.full((5, 3), 0.3, np.float32)
    x[0, 0] = 255.0
    (found,) = bounds(parse(SUM), [{"x": x}], Rounding(DType.BF16, None, steps=True)) or ()
    value, low, high = found["y"]
    assert np.all((high - low)[1:] > 0.5)
    assert np.all(value[1:] < 2)


@pytest.mark.parametrize(("largest", "is_open"), [(3.395e38, True), (1e38, False)])
def test_what_noise_makes_infinite_is_open(largest: float, is_open: bool) -> None:
    x = np.zeros((5, 3), np.float32)
    x[2] = largest
    (found,) = bounds(parse(SUM), [{"x": x}], Rounding(DType.BF16)) or ()
    allowed = within(found["y"], (found["y"][0],) * RUNS)
    assert not differs(x[2], allowed, 5)
    assert is_open == (not differs(np.full(3, np.inf, np.float32), allowed, 5))


def test_weights_that_constants_make_are_rounded_as_others_are() -> None:
    """Of 2 bits with a scale: w8 has 127 steps for two of theirs, and none for a single one."""
    graph = parse("""
    graph "weights of a few bits"
    dims m = 2, k = 7, n = 2
    %x : f32{k,m} = input "x" [m, k]
    %q : i2{k,n} = const [k, n] [[-2, -1], [-1, -2], [0, 1], [1, 0], [-2, -1], [-1, 1], [1, -1]]
    %s : f32{n} = const [n] [0.9661944, 0.4522521]
    %w : f32{k,n} = f32(%q[k, n]) * %s[n]
    %y : f32{m,n} = sum{k} %x[k, m] * %w[k, n]
    output "y" [m, n] = %y
    """)
    x = np.arange(-7, 7, dtype=np.float32).reshape(2, 7)
    q = np.array([[-2, -1], [-1, -2], [0, 1], [1, 0], [-2, -1], [-1, 1], [1, -1]])
    step = np.array([0.9661944, 0.4522521]) * 2 / 127
    rounded = (x @ (np.round(q * 63.5) * step)).astype(np.float32)
    (found,) = bounds(graph, [{"x": x}], Rounding(None, DType.I8)) or ()
    allowed = within(found["y"], (found["y"][0],) * RUNS)
    assert differs(rounded, (found["y"][0],) * RUNS, 7)
    assert not differs(rounded, allowed, 7)
    assert differs(1.5 * rounded, allowed, 7)


def test_subnormal_numbers_may_be_zeros() -> None:
    graph = parse(SUM.replace("%x[k, n]\n", "(%x[k, n] * 1e30)\n"))
    x = np.full((5, 3), 1e-39, np.float32)
    (found,) = bounds(graph, [{"x": x}]) or ()
    allowed = within(found["y"], (found["y"][0],) * RUNS)
    assert not differs(np.zeros(3, np.float32), allowed, 5)
    (normal,) = bounds(graph, [{"x": np.full((5, 3), 1e-37, np.float32)}]) or ()
    allowed = within(normal["y"], (normal["y"][0],) * RUNS)
    assert differs(np.zeros(3, np.float32), allowed, 5)


def test_a_budget_asks_nothing_of_subnormal_numbers() -> None:
    x = np.full((5, 3), 1e-39, np.float32)
    (found,) = bounds(parse(SUM), [{"x": x}]) or ()
    assert not beyond(0.1, np.zeros(3, np.float32), found["y"])
    assert beyond(0.1, np.ones(3, np.float32), found["y"])
    of_zeros = SUM.replace("%x[k, n]\n", "(%x[k, n] / %x[k, n])\n")
    (found,) = bounds(parse(of_zeros), [{"x": x}]) or ()
    assert not beyond(0.1, np.full(3, np.nan, np.float32), found["y"])


def test_a_manifest_says_what_is_filtered() -> None:
    parts = {"origin": ["a"], "outputs": [], "largest": 1e30}
    by = {"origin": ["a", "b"], "outputs": [2, 4], "largest": 1e34}
    assert filters_of({"algorithms": [parts, by]}) == (Filter(frozenset("ab"), 4, 1e34),)
    assert filters_of({}) == ()


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        ({}, Rounding()),
        ({"stored": [{"type": "f16"}]}, Rounding(DType.F16)),
        ({"stored": [{"type": "i4"}]}, Rounding(None, DType.I4)),
        ({"algorithms": [{"factors": "bf16"}]}, Rounding(DType.BF16)),
        ({"algorithms": [{"factors": "f32"}], "eight_bits": {"sums": []}}, Rounding()),
        ({"eight_bits": {"sums": ["y"]}}, Rounding(DType.BF16, DType.I8, steps=True)),
    ],
)
def test_a_manifest_says_what_is_rounded(manifest: dict[str, object], wanted: Rounding) -> None:
    assert rounding_of(manifest) == wanted
    assert bool(wanted) == (wanted != Rounding())


def test_a_run_in_single_precision_has_no_bounds() -> None:
    answer = answered(replace(products(FP32), eager=False))
    assert answer.bounds == [{}]
