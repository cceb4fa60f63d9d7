"""Products of factors that are rounded to bf16 in the place of products in f32."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.decoder_models import Sizes, onnx_model, weights_of
from rutc.driver.parts.build import Builder, PlanVersion
from rutc.driver.parts.plan_ports import ports_of
from rutc.graph_opt import EXACT, optimize, versions
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives.factor_parts import ROUNDED, _reduced_along
from rutc.graph_opt.decide import decide
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.rewrite import Sweep
from rutc.graph_opt.rules.padded_products import PadProducts
from rutc.importer import import_model
from rutc.importer.declared_states import with_states
from rutc.runtime import InferenceSession
from rutc.tensor_ir import Graph, Index, Nest
from rutc.tensor_ir.graph import used
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, Space
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import TILES, TILES_V3, V3, needs
from tests.precision.test_parts import ALWAYS, MACHINES, convolution, parted, product, save

pytestmark = pytest.mark.sampled(16)

FIRST = replace(ALWAYS, parts=ROUNDED)


def rounds_factors(path: Path, machine: Machine, shape: tuple[int, ...]) -> None:
    """Sums of products of what factors are rounded to, and of nothing else."""
    graph = parted(path, FIRST)
    assert any(v.endswith(".hi") for v in graph.values)
    assert not any(v.endswith(".mid") for v in graph.values)
    library = build(decide(graph, machine), machine, path.parent)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    rounded = onnx.load(path)
    for constant in rounded.graph.initializer:
        w = numpy_helper.to_array(constant)
        if w.ndim > 1:
            exact = w.astype(ml_dtypes.bfloat16).astype(np.float32)
            constant.CopyFrom(numpy_helper.from_array(exact, constant.name))
    other = path.parent / "rounded.onnx"
    onnx.save(rounded, other)
    given = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    wanted = interpret(import_model(other), {"x": given})["y"]
    for threads in (1, 2):
        got = run(library, {"x": x}, threads)["y"]
        assert_close(got, wanted, level=Level.KERNEL, reduction=graph_terms(graph))


def graph_terms(graph: Graph) -> int:
    """The products of the longest sum."""
    sizes = dict(graph.dims)
    sums = (n for n in graph.nodes if isinstance(n, Nest) and n.bound)
    return max(prod(Index.of(sizes[d]).bounds({})[1] for d in n.bound) for n in sums)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [((16,), 32, 16), ((17,), 48, 33), ((131,), 44, 61), ((26, 3, 27), 176, 86)],
)
def test_products_of_rounded_factors(
    tmp_path: Path, rows: tuple[int, ...], depth: int, columns: int, machine: Machine
) -> None:
    path = tmp_path / "model.onnx"
    product(path, rows, depth, columns)
    rounds_factors(path, machine, (*rows, depth))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("shape", "outputs", "window", "stride"),
    [
        ((1, 32, 12, 9), 16, 1, 1),
        ((2, 16, 13, 11), 40, 3, 1),
        ((1, 64, 17, 23), 32, 3, 2),
        ((1, 64, 7, 7), 48, 3, 1),
        ((1, 32, 5, 4), 64, 1, 1),
    ],
)
def test_convolutions_of_rounded_factors(
    tmp_path: Path,
    shape: tuple[int, ...],
    outputs: int,
    window: int,
    stride: int,
    machine: Machine,
) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, shape, outputs, window, stride)
    rounds_factors(path, machine, shape)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("heads", "rows", "words", "depth", "width"),
    [(2, 32, 32, 32, 16), (3, 17, 48, 32, 40), (1, 197, 197, 64, 64), (12, 96, 128, 64, 32)],
)
def test_products_of_computed_factors(
    tmp_path: Path, heads: int, rows: int, words: int, depth: int, width: int, machine: Machine
) -> None:
    """Attention: what one product gives is a factor of the next."""
    n = Net()
    q, k, v = (n.input(heads, *s) for s in ((rows, depth), (words, depth), (words, width)))
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 2, 1]))
    graph = import_model(
        n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", n("Relu", scores)), v))
    )
    # Of 197 products registers take none at a time, of those with zeros 32.
    padding = Sweep("pad products", (PadProducts(TILES_V3),))
    graph = optimize(graph, pipeline=(*EXACT, FIRST, padding))
    assert sum(v.endswith(".hi") for v in graph.values) == 4
    plan = decide(graph, TILES_V3)
    packed = [v for v in plan.layouts if v.endswith(".columns")]
    assert len(packed) == 2
    for name in packed:
        assert [a.extent for a in plan.layouts[name].axes[-2:]] == [16, 2]
    texts: list[str] = []
    builder = Builder(plan, TILES_V3, "model", 1, keep_subnormals=False, code=False)
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    assert sum(text.count("call void @llvm.x86.tdpbf16ps(") > 0 for text in texts) == len(packed)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((heads, *s)).astype(np.float32)
        for name, s in ((q, (rows, depth)), (k, (words, depth)), (v, (words, width)))
    }
    (wanted,) = interpret(graph, inputs).values()
    library = build(plan if machine is TILES_V3 else decide(graph, machine), machine, tmp_path)
    for threads in (1, 2):
        (got,) = run(library, inputs, threads).values()
        # An exponential that lies between two numbers of bf16 may become either.
        assert_close(got, wanted, level=Level.REDUCED)


@needs(V3)
@pytest.mark.parametrize(("heads", "words", "packed"), [("n", 64, 2), (3, "n", 0)])
def test_products_of_computed_factors_of_any_number(
    tmp_path: Path, heads: int | str, words: int | str, packed: int
) -> None:
    """Columns lie in blocks of a known number of words; a run tells the number of heads."""
    n = Net()
    q, k, v = (n.input(heads, words, 32) for _ in range(3))
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 2, 1]))
    path = n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", scores), v))
    graph = optimize(import_model(path), pipeline=(*EXACT, FIRST))
    plan = decide(graph, TILES_V3)
    assert sum(v.endswith(".columns") for v in plan.layouts) == packed
    library = build(plan, TILES_V3, tmp_path)
    rng = np.random.default_rng(0)
    for number in (1, 2, 7, 33):
        shape = tuple(number if e == "n" else int(e) for e in (heads, words, 32))
        inputs = {x: rng.standard_normal(shape).astype(np.float32) for x in (q, k, v)}
        (wanted,) = interpret(graph, inputs).values()
        (got,) = run(library, inputs, 2).values()
        assert_close(got, wanted, level=Level.REDUCED)


@pytest.mark.parametrize("machine", MACHINES[1:])
@pytest.mark.parametrize(("heads", "depth", "width"), [(3, 64, 48), (1, 32, 16)])
def test_attention_of_any_length_is_in_registers(
    tmp_path: Path, heads: int, depth: int, width: int, machine: Machine
) -> None:
    """Where a run has many rows; nothing that lies behind a row is ever multiplied."""
    n = Net()
    q, k, v = n.input(heads, "r", depth), n.input(heads, "w", depth), n.input(heads, "w", width)
    scores = n("Relu", n("MatMul", q, n("Transpose", k, perm=[0, 2, 1])))
    path = n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", scores), v))
    graph = import_model(path, dims={"r": (0, 600), "w": (0, 600)})
    many, few = versions(graph, machine, Leeway(bf16=True))
    assert str(many.where) == "r // 12"
    assert not any(value.endswith(".hi") for value in few.graph.values)
    plan = decide(many.graph, machine)
    packed = [value for value in plan.layouts if value.endswith(".columns")]
    assert len(packed) == 2
    earlier = PlanVersion(plan, plain(Index.of(many.where)))
    library = build(decide(few.graph, machine), machine, tmp_path, earlier)
    rng = np.random.default_rng(0)

    def inputs(rows: int, words: int) -> dict[str, np.ndarray]:
        shapes = {q: (rows, depth), k: (words, depth), v: (words, width)}
        return {x: rng.standard_normal((heads, *s), np.float32) for x, s in shapes.items()}

    for threads in (1, 2):
        with InferenceSession(library, threads=threads) as session:
            for rows, words in ((16, 0), (12, 1), (13, 31), (33, 32), (40, 33), (97, 511), (11, 9)):
                for odd in (np.nan, np.inf):
                    # What the next run finds in memory.
                    session.run(None, {x: np.full_like(a, odd) for x, a in inputs(97, 600).items()})
                    given = inputs(rows, words)
                    (got,) = session.run(None, given)
                    (wanted,) = interpret((many if rows >= 12 else few).graph, given).values()
                    assert_close(got, wanted, level=Level.REDUCED)


@pytest.mark.parametrize("swapped", [False, True])
def test_columns_are_what_results_of_open_sizes_are_reduced_along(
    tmp_path: Path, swapped: bool
) -> None:
    """Slices of queries are of any size, so keys lie in columns, although there are more of them.

    They are so also where what is multiplied is the other way round.
    """
    n = Net()
    q, k, v = n.input(12, "r", 64), n.input(12, "w", 64), n.input(12, "w", 64)
    if swapped:
        turned = n("MatMul", k, n("Transpose", q, perm=[0, 2, 1]))
        scores = n("Add", n("Transpose", turned, perm=[0, 2, 1]), n.input("r", "w"))
    else:
        scores = n("Add", n("MatMul", q, n("Transpose", k, perm=[0, 2, 1])), n.input("r", "w"))
    path = n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", scores), v))
    graph = import_model(path, dims={"r": (0, 1 << 16), "w": (0, 1 << 20)})
    many, _ = versions(graph, TILES, Leeway(bf16=True))
    plan = decide(many.graph, TILES)
    packed = [layout for value, layout in plan.layouts.items() if value.endswith(".columns")]
    assert len(packed) == 2
    sizes = dict(plan.graph.dims)
    blocked = {str(sizes[a.dim]) for layout in packed for a in layout.axes if a.div > 1}
    assert "w" in blocked
    assert "r" not in blocked


def test_the_next_reduction_of_a_result_decides_its_columns() -> None:
    """Not one that comes later on another way, in whatever order names are met."""
    graph = parse(
        """
        graph "ways"
        dims i = 4, j = 5
        %x : f32{i,j} = input "x" [i, j]
        %s : f32{i,j} = exp(%x[i, j])
        %a : f32{i,j} = abs(%s[i, j])
        %b : f32{i,j} = sqrt(%a[i, j])
        %c : f32{i,j} = neg(%s[i, j])
        %d : f32{i,j} = floor(%s[i, j])
        %far : f32{j} = sum{i} %b[i, j]
        %near : f32{i} = sum{j} %c[i, j]
        output "far" [j] = %far
        output "near" [i] = %near
        output "d" [i, j] = %d
        """
    )
    assert _reduced_along("s", Editor(graph)) == {"j"}
    assert not _reduced_along("d", Editor(graph))


def test_prompts_of_a_decoder_are_in_registers_and_caches_stay_whole(tmp_path: Path) -> None:
    """A prompt has a plan of its own, whose states are those of the plan for single tokens."""
    sizes = Sizes(words=64, width=256, layers=1, heads=4, groups=2, hidden=64, longest=128)
    path = tmp_path / "model.onnx"
    onnx.save(onnx_model(sizes, weights_of(sizes), "f32"), path)
    dims = {"seq": (1, 64), "past": (0, 127), "total": "past+seq"}
    graph = with_states(import_model(path, dims=dims), {"past.*": "present.*"})
    many, few = versions(graph, TILES, Leeway(bf16=True))
    assert str(many.where) == "seq // 12"
    plans = [decide(v.graph, TILES) for v in (many, few)]
    packed = [[v for v in plan.layouts if v.endswith(".columns")] for plan in plans]
    assert [len(own) for own in packed] == [2, 0]
    states = [ports_of(plan).states for plan in plans]
    assert states[0] == states[1]
    assert all("in place" in str(state) for state in states[0])


def test_manifests_tell_up_to_which_size_products_of_computed_factors_are_finite(
    tmp_path: Path,
) -> None:
    n = Net()
    q, k = n.input(12, 256, 64), n.input(12, 256, 64)
    mask = np.triu(np.full((256, 256), -np.inf, np.float32), 1)
    scores = n("Add", n("MatMul", q, n("Transpose", k, perm=[0, 2, 1])), n.const(mask))
    path = n.save(tmp_path / "net.onnx", n("MatMul", n("Softmax", scores), k))
    told = Algorithms(TILES)
    versions(import_model(path), TILES, Leeway(bf16=True), on_step=told)
    assert len(told.found) == 2
    for fact, products in zip(
        json.loads(json.dumps(told.facts(), allow_nan=False)), (64, 256), strict=True
    ):
        most = np.float32(fact["largest"])
        assert np.isfinite(products * most * most)
        with np.errstate(over="ignore"):
            assert np.isinf(products * (most * most * np.float32(1.02)))


@pytest.mark.parametrize("odd", [np.inf, np.nan, 3.4e38, 2.0**-133, -0.0])
def test_rounded_factors_of_any_size(tmp_path: Path, odd: float) -> None:
    """What is too large for bf16 becomes an infinity, as a cast makes it."""
    path = tmp_path / "model.onnx"
    w = np.eye(64, dtype=np.float32)
    save(path, (16, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    x = np.ones((16, 64), np.float32)
    x[3] = odd
    graph = parted(path, FIRST)
    with np.errstate(all="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float32) @ w
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], wanted)
    got = run(build(decide(graph, V3), V3, tmp_path), {"x": x}, 1)["y"]
    np.testing.assert_array_equal(got, wanted)


@needs(V3)
@pytest.mark.parametrize(
    ("rows", "columns", "loops"),
    [
        # Panels of columns pass over as many steps of rows as the second cache holds.
        (512, 4096, ["d0.o.o.o", "d1.o.o", "d0.o.o.i"]),
        # It holds all rows.
        (64, 4096, ["d1.o.o", "d0.o.o"]),
        # It holds all columns, and results are many: whole rows of them are stored.
        (512, 64, ["d3.o.o.1", "d4.o.o.1"]),
        # Constants are fewer than rows and their results.
        (64, 64, ["d0.o.o", "d1.o.o"]),
    ],
)
def test_what_the_second_cache_holds_is_passed_over(
    tmp_path: Path, rows: int, columns: int, loops: list[str]
) -> None:
    path = tmp_path / "model.onnx"
    product(path, (rows,), 64, columns)
    machine = replace(TILES_V3, l2=48 << 10)
    (kernel,) = matrix_kernels(path, machine)
    assert [s.var for s in loops_of(kernel) if ".o.o" in s.var] == loops
    rounds_factors(path, machine, (rows, 64))


@needs(V3)
@pytest.mark.parametrize(
    ("rows", "columns", "directly"), [(64, 32, True), (33, 48, True), (64, 40, False)]
)
def test_whole_blocks_of_sums_are_stored_directly(
    tmp_path: Path, rows: int, columns: int, directly: bool
) -> None:
    path = tmp_path / "model.onnx"
    w = np.random.default_rng(0).standard_normal((64, columns)).astype(np.float32)
    save(path, (rows, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    (kernel,) = matrix_kernels(path, TILES_V3)
    assert all(b.space is Space.REGISTER for b in kernel.locals) == directly
    rounds_factors(path, TILES_V3, (rows, 64))


def matrix_kernels(path: Path, machine: Machine) -> list[Kernel]:
    """The kernels that multiply in matrix registers."""
    builder = Builder(
        decide(parted(path, FIRST), machine), machine, "model", 1, keep_subnormals=False, code=False
    )
    found: list[Kernel] = []
    builder.on_draft = lambda pending, made, draft: found.append(draft.kernel)
    builder.build()
    return [k for k in found if Kind.MATRIX in {s.kind for s in loops_of(k)}]


def loops_of(kernel: Kernel) -> list[Loop]:
    """All loops of a kernel, the outermost first."""
    return list(walk_loops(kernel.body))


@pytest.mark.parametrize("machine", MACHINES)
def test_what_else_reads_a_rounded_factor_reads_it_rounded(
    tmp_path: Path, machine: Machine
) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["q"]),
        helper.make_node("Add", ["q", "r"], ["y"]),
    ]
    path = tmp_path / "model.onnx"
    save(path, (33, 64), nodes, first=first, second=second)
    graph = parted(path, FIRST)
    readers = [n.out.name for n in graph.nodes if isinstance(n, Nest) and "r" in used(n)]
    assert readers == ["r.hi"]
    plan = decide(graph, machine)
    stored = {v for group in plan.groups() for v in group.stored}
    assert {"r", "r.hi"} & stored == {"r.hi"}
    x = rng.standard_normal((33, 64)).astype(np.float32)
    wanted = interpret(graph, {"x": x})["y"]
    got = run(build(plan, machine, tmp_path), {"x": x}, 2)["y"]
    assert_close(got, wanted, level=Level.REDUCED)


def test_angles_are_read_as_they_are(tmp_path: Path) -> None:
    """Rounded, an angle of a few hundred is another one."""
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["p"]),
        helper.make_node("MatMul", ["p", "second"], ["q"]),
        helper.make_node("Sin", ["p"], ["s"]),
        helper.make_node("Add", ["q", "s"], ["y"]),
    ]
    path = tmp_path / "model.onnx"
    save(path, (33, 64), nodes, first=weights, second=weights.T)
    graph = parted(path, FIRST)
    assert "p.hi" in graph.values
    (sine,) = [n for n in graph.nodes if isinstance(n, Nest) and "sin" in str(n.body[0])]
    assert "p" in used(sine)
