"""Products of factors rounded to bf16, pairs of which vectors add up: `vdpbf16ps`."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rutc.driver.compiler import compile_model
from rutc.driver.options import Options
from rutc.driver.parts.build import Builder
from rutc.driver.plans.planning import versions_for
from rutc.emit.llvm.codegen import compile_assembly
from rutc.graph_opt import EXACT, optimize, pipeline_for
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.alternatives.factor_parts import ROUNDED
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16, MinimalFiltering
from rutc.graph_opt.alternatives.split_precision import SAID_ROUNDED, MultiplyParts
from rutc.graph_opt.decide import decide
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.rewrite import Sweep
from rutc.importer import import_model
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import PAIR, Machine
from rutc.verify.judging.tolerance import Level
from rutc.verify.truth.weight_noise import stored_type
from rutc.verify.verify import verify_model
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import TILES, V4, runnable
from tests.precision.test_parts import convolution, parted, product, save
from tests.precision.test_rounded_factors import graph_terms

pytestmark = pytest.mark.sampled(16)

PAIRS = replace(V4, features=V4.features | {"avx512bf16"}, fma_per_cycle=1.0)
"""A machine whose vectors add up pairs of products of bf16 as fast as they add single products."""
ALWAYS = MultiplyParts(least=-inf, saving=-inf, parts=ROUNDED, machine=PAIRS)
INSTRUCTION = "vdpbf16ps"


def assembly(graph: Graph, machine: Machine = PAIRS) -> str:
    """The code of all kernels of a graph."""
    texts: list[str] = []
    builder = Builder(
        decide(graph, machine), machine, "model", 1, keep_subnormals=False, code=False
    )
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    return "\n".join(compile_assembly(text, machine) for text in texts)


def agrees(path: Path, graph: Graph, shape: tuple[int, ...], wanted: np.ndarray | None) -> None:
    """Code has the instruction, and gives what is wanted of standard numbers where it can run."""
    assert INSTRUCTION in assembly(graph)
    if not runnable(PAIRS):
        return
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if wanted is None:
        (wanted,) = interpret(graph, {"x": x}).values()
    library = build(decide(graph, PAIRS), PAIRS, path.parent)
    for threads in (1, 2):
        got = run(library, {"x": x}, threads)["y"]
        assert_close(got, wanted, level=Level.KERNEL, reduction=graph_terms(graph))


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        ((1,), 64, 64),
        ((16,), 2, 16),
        ((7,), 13, 17),
        ((1,), 1031, 131),
        ((131,), 47, 61),
        ((26, 3, 27), 176, 86),
    ],
)
def test_products(tmp_path: Path, rows: tuple[int, ...], depth: int, columns: int) -> None:
    """As many products as pairs hold, one more, and rows of any number."""
    path = tmp_path / "model.onnx"
    w = product(path, rows, depth, columns)
    graph = parted(path, ALWAYS)
    assert {v for v in graph.values if v.endswith(".hi")} == {"w.hi", "x.hi"}
    (b,) = (numpy_helper.to_array(c) for c in onnx.load(path).graph.initializer if c.name == "b")
    x = np.random.default_rng(1).standard_normal((*rows, depth)).astype(np.float32)
    high, low = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (x, w))
    wanted = np.maximum(high @ low + b, 0) + np.maximum(high @ low, 0)
    agrees(path, graph, (*rows, depth), wanted.astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "outputs", "window", "stride"),
    [
        ((1, 32, 12, 9), 16, 1, 1),
        ((2, 17, 13, 11), 40, 3, 1),
        ((1, 64, 17, 23), 32, 3, 2),
        ((1, 61, 7, 7), 53, 3, 1),
        ((3, 3, 19, 21), 32, 7, 2),
        ((1, 2, 9, 9), 16, 5, 1),
    ],
)
def test_convolutions(
    tmp_path: Path, shape: tuple[int, ...], outputs: int, window: int, stride: int
) -> None:
    """Few channels are laid side by side, tap after tap."""
    path = tmp_path / "model.onnx"
    convolution(path, shape, outputs, window, stride)
    graph = parted(path, ALWAYS)
    assert any(v.endswith(".hi") for v in graph.values)
    agrees(path, graph, shape, None)


@pytest.mark.parametrize(
    ("heads", "rows", "words", "depth", "width"),
    [(2, 32, 32, 32, 16), (3, 17, 48, 32, 40), (1, 97, 197, 61, 64), (12, 96, 128, 64, 32)],
)
def test_attention(
    tmp_path: Path, heads: int, rows: int, words: int, depth: int, width: int
) -> None:
    """Factors that are both computed: one of each product is copied into columns of pairs."""
    n = Net()
    q, k, v = (n.input(heads, *s) for s in ((rows, depth), (words, depth), (words, width)))
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 2, 1]))
    path = n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", n("Relu", scores)), v))
    graph = optimize(import_model(path), pipeline=(*EXACT, ALWAYS))
    plan = decide(graph, PAIRS)
    packed = [v for v in plan.layouts if v.endswith(".columns")]
    assert len(packed) == 2
    for name in packed:
        assert [a.extent for a in plan.layouts[name].axes[-2:]] == [16, PAIR]
    assert INSTRUCTION in assembly(graph)
    if not runnable(PAIRS):
        return
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((heads, *s)).astype(np.float32)
        for name, s in ((q, (rows, depth)), (k, (words, depth)), (v, (words, width)))
    }
    (wanted,) = interpret(graph, inputs).values()
    library = build(plan, PAIRS, tmp_path)
    for threads in (1, 2):
        (got,) = run(library, inputs, threads).values()
        # An exponential that lies between two numbers of bf16 may become either.
        assert_close(got, wanted, level=Level.REDUCED)


def test_sizes_that_a_run_tells(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    product(path, ("n",), 47, 61)
    graph = parted(path, ALWAYS)
    assert INSTRUCTION in assembly(graph)
    if not runnable(PAIRS):
        return
    library = build(decide(graph, PAIRS), PAIRS, tmp_path)
    rng = np.random.default_rng(0)
    for number in (0, 1, 2, 7, 33, 257):
        x = rng.standard_normal((number, 47)).astype(np.float32)
        (wanted,) = interpret(graph, {"x": x}).values()
        got = run(library, {"x": x}, 2)["y"]
        assert_close(got, wanted, level=Level.KERNEL, reduction=47)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3.4e38, 2.0**-133, -0.0])
def test_factors_of_any_size(tmp_path: Path, odd: float) -> None:
    """What is too large becomes an infinity, and what is subnormal zero; neighbours are as ever."""
    path = tmp_path / "model.onnx"
    w = np.eye(63, dtype=np.float32)
    save(path, (16, 63), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    x = np.ones((16, 63), np.float32)
    x[3] = odd
    graph = parted(path, ALWAYS)
    with np.errstate(all="ignore"):
        wanted = interpret(graph, {"x": x})["y"]
    assert INSTRUCTION in assembly(graph)
    if runnable(PAIRS):
        got = run(build(decide(graph, PAIRS), PAIRS, tmp_path), {"x": x}, 1)["y"]
        if abs(odd) < np.finfo(np.float32).tiny:
            wanted[3] = 0
        np.testing.assert_array_equal(got, wanted)


def test_factors_are_rounded_only_where_a_precision_says_so() -> None:
    for steps in (pipeline_for(PAIRS), pipeline_for(V4, Leeway(bf16=True))):
        assert not any(isinstance(step, MultiplyParts) for step in steps)
        assert not any(f.rounded for f in _filters(steps))
    steps = pipeline_for(PAIRS, Leeway(bf16=True))
    assert [step.parts for step in steps if isinstance(step, MultiplyParts)] == [ROUNDED]
    assert all(f.rounded for f in _filters(steps))
    subnormals = PAIRS.without_bf16()
    assert pipeline_for(subnormals, Leeway(bf16=True)) == pipeline_for(subnormals)
    assert not any(f.rounded for f in _filters(pipeline_for(TILES, Leeway(bf16=True))))


def _filters(steps: tuple[object, ...]) -> list[MinimalFiltering]:
    rules = [rule for step in steps if isinstance(step, Sweep) for rule in step.rules]
    return [rule for rule in rules if isinstance(rule, MinimalFiltering)]


def test_windows_are_filtered_where_that_is_faster_and_rounded_then(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, (1, 64, 28, 28), 64, 3, 1)
    told = Algorithms(PAIRS, Leeway(bf16=True))
    (version,) = versions_for(import_model(path), PAIRS, Options(precision="bf16"), on_step=told)
    (fact,) = told.found.values()
    assert (fact.name, fact.outputs) == ("minimal filtering" + SAID_IN_BF16, (2, 2))
    assert version.assigned.algorithms == ((fact.sum, f"filter kx by 2, ky by 2{SAID_IN_BF16}"),)
    values = version.graph.values
    rounded = [n for n, v in values.items() if v.dtype is DType.BF16]
    assert sorted(n.partition(".")[2] for n in rounded) == ["points", "points"]
    # What is assigned is made again, by the same names.
    assert with_algorithms(import_model(path), PAIRS, version.assigned) == version.graph
    offered = offers(import_model(path), PAIRS, Assigned(((fact.sum, SAID_ROUNDED),)))
    assert SAID_ROUNDED in {o.algorithm for o in offered}
    agrees(path, version.graph, (1, 64, 28, 28), None)


def test_windows_that_are_not_filtered_are_multiplied_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, (1, 64, 28, 28), 64, 3, 2)
    told = Algorithms(PAIRS, Leeway(bf16=True))
    versions_for(import_model(path), PAIRS, Options(precision="bf16"), on_step=told)
    assert [a.name for a in told.found.values()] == ["factors in bf16"]


def test_what_is_filtered_reads_values_as_they_are(tmp_path: Path) -> None:
    """Beside a product that rounds the same value, as a branch of a residual block has."""
    n = Net()
    x = n("Relu", n.input(1, 64, 28, 28))
    rng = np.random.default_rng(0)
    three, one = (n.const(rng.standard_normal((64, 64, k, k)).astype(np.float32)) for k in (3, 1))
    sums = n("Conv", x, three, pads=[1, 1, 1, 1]), n("Conv", x, one)
    path = n.save(tmp_path / "net.onnx", n("Add", *sums))
    (version,) = versions_for(import_model(path), PAIRS, Options(precision="bf16"))
    algorithms = sorted(a for _, a in version.assigned.algorithms)
    assert algorithms == [f"filter kx by 2, ky by 2{SAID_IN_BF16}", SAID_ROUNDED]


def test_a_pair_for_all_lanes_is_an_operand_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    product(path, (512,), 256, 16)
    text = assembly(parted(path, ALWAYS))
    lines = [line for line in text.splitlines() if INSTRUCTION in line]
    shared = [line for line in lines if re.search(r"\{1to16\}", line)]
    assert len(shared) > len(lines) / 2


def test_verification_knows_of_factors_that_only_filters_round(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, (1, 64, 28, 28), 64, 3, 1)
    told = Algorithms(PAIRS, Leeway(bf16=True))
    versions_for(import_model(path), PAIRS, Options(precision="bf16"), on_step=told)
    assert stored_type({"algorithms": told.facts()}) is DType.BF16
    if not runnable(PAIRS):
        return
    done = compile_model(path, tmp_path / "model.so", Options(precision="bf16"))
    assert verify_model(path, done.library).passed
