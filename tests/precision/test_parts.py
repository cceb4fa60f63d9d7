"""Products of parts in bf16 in the place of products in f32."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks.capsules import Layer, spellings
from rutc.driver.compiler import Options, compile_model
from rutc.driver.parts.build import Builder
from rutc.driver.parts.compile_job import Draft
from rutc.graph_opt import EXACT, PIPELINE, optimize, pipeline_for
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.alternatives.factor_parts import HIGHEST, ROUNDED, WHOLE
from rutc.graph_opt.alternatives.split_precision import SAID, MultiplyParts
from rutc.graph_opt.bf16_parts import parts_of
from rutc.graph_opt.decide import decide
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.rewrite import Sweep
from rutc.graph_opt.rules.padded_products import PadProducts
from rutc.importer import import_model
from rutc.runtime import load
from rutc.tensor_ir import Const, DType, Graph
from rutc.tensor_ir.indices.ranges import without_common
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import MatrixTile, PartialSums, Step
from rutc.verify.judging.tolerance import Level, tolerance
from rutc.verify.reference import Reference
from tests.close import assert_close
from tests.compiled import build, run
from tests.machines import NATIVE, TILES, TILES_V3, V3, V4, needs
from tests.onnx_files import write_model

pytestmark = pytest.mark.sampled(16)

MATRICES = frozenset({"amx-tile", "amx-bf16"})
ALWAYS = MultiplyParts(free=1 << 40, least=-inf, saving=-inf)
MACHINES = [
    pytest.param(V3, id="x86-64-v3"),
    pytest.param(TILES_V3, id="tiles beside x86-64-v3", marks=needs(V3)),
    pytest.param(NATIVE if NATIVE.has_matrices(DType.BF16) else TILES, id="tiles", marks=needs(V4)),
]


def able() -> Machine:
    """A machine with registers for matrices."""
    return Machine(V4.name, V4.triple, V4.features | MATRICES, V4.vector_bits, V4.registers)


def save(
    path: Path, shape: Sequence[int | str], nodes: list[NodeProto], **constants: np.ndarray
) -> None:
    """A model of nodes from x to y."""
    write_model(path, nodes, {"x": shape}, {"y": None}, constants)


def product(path: Path, rows: Sequence[int | str], depth: int, columns: int) -> np.ndarray:
    """relu(x @ w + b) + relu(x @ w); the weights."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Relu", ["p"], ["s"]),
        helper.make_node("Add", ["r", "s"], ["y"]),
    ]
    save(path, (*rows, depth), nodes, w=w, b=rng.standard_normal(columns).astype(np.float32))
    return w


def convolution(
    path: Path, shape: Sequence[int | str], outputs: int, window: int, stride: int
) -> None:
    """conv(relu(x)) + 1."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((outputs, shape[1], window, window)).astype(np.float32)
    attributes = {"strides": [stride, stride], "pads": [window // 2] * 4}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["c"], **attributes),
        helper.make_node("Add", ["c", "one"], ["y"]),
    ]
    save(path, shape, nodes, w=w, one=np.ones((), np.float32))


def parted(path: Path, step: MultiplyParts = ALWAYS) -> Graph:
    """The optimized graph, with parts, of sizes of which nothing says what they commonly are."""
    graph = import_model(path)
    symbols = tuple(without_common(dict(graph.symbols)).items())
    return optimize(replace(graph, symbols=symbols), pipeline=(*EXACT, step))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("top", [1.0, HIGHEST, 3.4e38, float(np.finfo(np.float32).max)])
def test_parts_of_finite_numbers_are_finite(tmp_path: Path, top: float, machine: Machine) -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((32, 16)) * 1e-3).astype(np.float32)
    path = tmp_path / "model.onnx"
    save(path, (16, 32), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=weights)
    graph = parted(path)
    assert any(v.endswith(".mid") for v in graph.values)
    x = (rng.uniform(0.9, 1.0, (16, 32)) * top).astype(np.float32)
    x[::2, ::3] = -top
    x[3] = rng.standard_normal(32)
    exact = x.astype(float) @ weights.astype(float)
    allowed = 32 * 2.0**-24 * (np.abs(x).astype(float) @ np.abs(weights).astype(float))
    for y in (
        interpret(graph, {"x": x})["y"],
        run(build(decide(graph, machine), machine, tmp_path), {"x": x}, 1)["y"],
    ):
        assert (np.abs(y - exact) <= allowed).all()


def agrees(path: Path, graph: Graph, machine: Machine, shape: tuple[int, ...], terms: int) -> None:
    library = build(decide(graph, machine), machine, path.parent)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (wanted,) = Reference(path, 1).run({"x": x}).values()
    wanted = np.asarray(wanted, np.float64)
    allowed = tolerance(Level.KERNEL, np.float32, terms)
    for threads in (1, 2):
        got = run(library, {"x": x}, threads)["y"]
        assert got.shape == wanted.shape
        assert (np.abs(got - wanted) <= allowed.allowed(wanted)).all()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        ((16,), 32, 16),
        ((17,), 48, 33),
        ((8,), 16, 100),
        ((131,), 44, 61),
        ((2, 5, 9), 64, 48),
        ((26, 3, 27), 176, 86),
    ],
)
def test_products_agree(
    tmp_path: Path, rows: tuple[int, ...], depth: int, columns: int, machine: Machine
) -> None:
    path = tmp_path / "model.onnx"
    product(path, rows, depth, columns)
    graph = parted(path)
    assert any(v.endswith(".mid") for v in graph.values)
    agrees(path, graph, machine, (*rows, depth), depth)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("shape", "outputs", "window", "stride"),
    [
        ((1, 32, 12, 9), 16, 1, 1),
        ((2, 16, 13, 11), 40, 3, 1),
        ((1, 64, 17, 23), 32, 3, 2),
        ((1, 32, 18, 18), 64, 1, 2),
        ((1, 48, 20, 20), 50, 1, 1),
        ((3, 16, 28, 28), 32, 5, 3),
    ],
)
def test_convolutions_agree(
    tmp_path: Path,
    shape: tuple[int, ...],
    outputs: int,
    window: int,
    stride: int,
    machine: Machine,
) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, shape, outputs, window, stride)
    graph = parted(path)
    assert any(v.endswith(".mid") for v in graph.values)
    agrees(path, graph, machine, shape, shape[1] * window * window)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dims", [("n",), ("batch", "n"), (3, "n")])
@pytest.mark.parametrize(("depth", "columns"), [(96, 64), (40, 33), (768, 128)])
def test_products_of_any_number_of_rows_agree(
    tmp_path: Path, machine: Machine, dims: tuple[int | str, ...], depth: int, columns: int
) -> None:
    path = tmp_path / "model.onnx"
    product(path, dims, depth, columns)
    graph = parted(path)
    assert any(v.endswith(".mid") for v in graph.values)
    for rows in (1, 2, 15, 16, 17, 31, 33, 100):
        agrees(path, graph, machine, (*[3] * (len(dims) - 1), rows, depth), depth)


def test_an_artifact_multiplies_parts_where_there_are_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    w = product(path, ("n",), 256, 320)
    bias = onnx.load(path).graph.initializer[1]
    b = numpy_helper.to_array(bias)
    compile_model(path, tmp_path / "model.so", Options(dims={"n": (0, 500)}))
    rng = np.random.default_rng(0)
    with load(tmp_path / "model.so", profile=True) as session:
        assert len(session.manifest.get("versions", ())) == NATIVE.has_matrices(DType.BF16)
        for rows in (0, 1, 63, 64, 65, 500):
            x = rng.standard_normal((rows, 256)).astype(np.float32)
            (got,) = session.run(None, {"x": x})
            p = x.astype(np.float64) @ w
            assert_close(got, np.maximum(p + b, 0) + np.maximum(p, 0), level=Level.MODEL)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [64, 40])
def test_results_that_lie_along_rows_of_any_number_agree(
    tmp_path: Path, machine: Machine, columns: int
) -> None:
    """Squares of the sums are transposed on their way to memory."""
    path = tmp_path / "model.onnx"
    w = np.random.default_rng(0).standard_normal((96, columns)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Transpose", ["p"], ["y"], perm=[0, 2, 1]),
    ]
    save(path, ("batch", "n", 96), nodes, w=w)
    graph = parted(path)
    for rows in (1, 7, 16, 17, 33, 100):
        agrees(path, graph, machine, (2, rows, 96), 96)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("window", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (5, 1)])
def test_convolutions_of_any_width_agree(
    tmp_path: Path, machine: Machine, window: int, stride: int
) -> None:
    path = tmp_path / "model.onnx"
    convolution(path, (2, 32, 7, "w"), 48, window, stride)
    graph = parted(path)
    for width in (1, 5, 16, 17, 33, 70):
        agrees(path, graph, machine, (2, 32, 7, width), 32 * window * window)


def test_parts_are_as_exact_as_sums_in_f32(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, 64)).astype(np.float32)
    save(path, (32, 512), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    x = rng.standard_normal((32, 512)).astype(np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    errors = {}
    for name, graph in (("parts", parted(path)), ("f32", optimize(import_model(path)))):
        folder = tmp_path / name
        folder.mkdir()
        got = run(build(decide(graph, V3), V3, folder), {"x": x}, 1)["y"]
        errors[name] = float(np.abs(got - exact).mean())
    # Products of parts are exact. On this machine they are added one by one, as those of f32 are.
    assert errors["parts"] < 2 * errors["f32"]
    assert errors["parts"] < 1e-6 * float(np.abs(exact).mean())


def test_constants_that_gain_most_grow_within_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    rng = np.random.default_rng(0)
    first = rng.standard_normal((256, 256)).astype(np.float32)
    second = rng.standard_normal((256, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["p"]),
        helper.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    save(path, (512, 256), nodes, v=first, w=second)

    def parts(free: int) -> list[int]:
        graph = parted(path, MultiplyParts(share=0.0, free=free, least=-inf, saving=-inf))
        narrow = [n for n in graph.nodes if isinstance(n, Const) and n.out.dtype is DType.BF16]
        return sorted(n.data.array.size for n in narrow)

    assert parts(first.nbytes // 2 + second.nbytes // 2) == [second.size] * 3 + [first.size] * 3
    assert parts(first.nbytes // 2) == [first.size] * 3
    assert parts(second.nbytes // 2) == [second.size] * 3
    assert parts(second.nbytes // 2 - 1) == []


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (129, 255)])
def test_parts_are_rounded_rests(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-25, 38, shape), np.float32)
    x.reshape(-1)[:4] = [0.0, -0.0, 1 + 2.0**-8, 3.3e38][: x.size]
    rest = x
    for part in parts_of(x, WHOLE):
        wanted = rest.astype(ml_dtypes.bfloat16)
        assert part.dtype == wanted.dtype
        np.testing.assert_array_equal(part.view(np.uint16), wanted.view(np.uint16))
        rest = rest - wanted.astype(np.float32)
    assert (np.abs(rest) <= np.abs(x) * 2.0**-24).all()


@pytest.mark.parametrize("odd", [np.inf, np.nan, -3.4e38])
def test_weights_whose_parts_are_not_finite_stay_whole(tmp_path: Path, odd: float) -> None:
    path = tmp_path / "model.onnx"
    w = np.ones((64, 64), np.float32)
    w[3, 5] = odd
    save(path, (512, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    assert not any(v.endswith(".mid") for v in parted(path).values)
    assigned = Assigned((("y", SAID),))
    graph = import_model(path)
    assert graph.values.keys() == with_algorithms(graph, able(), assigned).values.keys()
    assert not offers(graph, able(), assigned)


def test_small_products_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    w = np.ones((64, 64), np.float32)
    save(path, (16, 64), [helper.make_node("MatMul", ["x", "w"], ["y"])], w=w)
    assert not any(v.endswith(".mid") for v in parted(path, MultiplyParts()).values)


def test_machines_with_matrices_of_bf16_multiply_parts() -> None:
    plain, common = pipeline_for(V4), [step.name for step in PIPELINE]
    known = [step.name for step in plain]
    assert [name for name in known if name in common] == common
    assert not any(isinstance(step, MultiplyParts) for step in plain)
    parts = [step for step in pipeline_for(able()) if step.name not in known]
    padding = Sweep("pad products", (PadProducts(able()),))
    assert parts == [MultiplyParts(machine=able()), padding]
    assert [step.name for step in pipeline_for(able().without_bf16())] == known
    rounding = [step for step in pipeline_for(able(), Leeway(bf16=True)) if step.name not in known]
    rounded = MultiplyParts(parts=ROUNDED, machine=able())
    assert rounding == [rounded, MultiplyParts(machine=able()), padding]
    assert pipeline_for(V4, Leeway(bf16=True)) == plain
    exact = Leeway(exact=True)
    assert pipeline_for(able(), replace(exact, bf16=True)) == pipeline_for(able(), exact)


@pytest.mark.parametrize(
    ("shape", "outputs", "window", "stride"),
    [
        ((1, 64, 28, 28), 128, 1, 1),
        ((1, 128, 28, 28), 128, 3, 2),
        ((4, 64, 19, 19), 96, 1, 2),
        ((1, 64, 28, "w"), 128, 1, 1),
        ((1, 128, 12, "w"), 128, 3, 1),
    ],
)
def test_what_has_parts_goes_into_matrix_registers(
    tmp_path: Path, shape: tuple[int | str, ...], outputs: int, window: int, stride: int
) -> None:
    """A sum of products of parts by other instructions would take several times as long."""
    path = tmp_path / "model.onnx"
    convolution(path, shape, outputs, window, stride)
    graph = parted(path)
    assert any(v.endswith(".mid") for v in graph.values)
    builder = Builder(decide(graph, able()), able(), "model", 1, keep_subnormals=False)
    kernels: list[str] = []
    builder.on_draft = lambda pending, made, draft: kernels.append(str(draft.kernel))
    builder.build()
    assert sum(" matrix {" in kernel for kernel in kernels) == 1


@pytest.mark.skipif(
    not NATIVE.has_matrices(DType.BF16),
    reason="this processor has no registers for matrices of bf16",
)
def test_options_that_ask_for_more_leave_parts_out(tmp_path: Path) -> None:
    path, library = tmp_path / "model.onnx", tmp_path / "model.so"
    product(path, (512,), 256, 256)
    for options, parts in (
        (Options(), True),
        (Options(exact_algorithms=True), False),
        (Options(keep_subnormals=True), False),
    ):
        compile_model(path, library, options)
        features = load(str(library)).manifest["features"]
        assert isinstance(features, list)
        assert ("amx-bf16" in features) == parts, options


@pytest.mark.parametrize("machine", MACHINES)
def test_bf16_rounds_to_nearest(tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "model.onnx"
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 999, np.uint32)
    bits[:6] = 0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7F7FFFFF, 0xFF800000
    x = bits.view(np.float32)
    normal = ~(np.abs(x) < np.finfo(np.float32).tiny)
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    save(path, (999,), nodes)
    library = build(decide(optimize(import_model(path)), machine), machine, tmp_path)
    got = run(library, {"x": x}, 1)["y"]
    with np.errstate(invalid="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got[normal], wanted[normal])


def capsules(path: Path, layer: Layer) -> Graph:
    """The graph of a capsule layer in parts."""
    onnx.save(spellings(layer)["product"], path)
    return parted(path)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "layer",
    [
        Layer(batch=2, size=8, inputs=16),
        Layer(batch=3, size=9, inputs=32, outputs=16),
        Layer(batch=8, size=7, inputs=16, window=2, pose=3),
        Layer(batch=1, size=10, inputs=24, outputs=17, stride=3),
        Layer(batch=2, size=6, inputs=16, outputs=16, pose=2, stride=1),
    ],
)
def test_capsule_layers_agree(tmp_path: Path, layer: Layer, machine: Machine) -> None:
    path = tmp_path / "model.onnx"
    graph = capsules(path, layer)
    assert any(v.endswith(".mid") for v in graph.values)
    agrees(path, graph, machine, layer.shape, layer.reduction)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("size", [8, 9, 11])
def test_windows_beyond_the_edges_agree_with_rows_of_two_loops(
    tmp_path: Path, size: int, machine: Machine
) -> None:
    """Rows lie along two dims, the outer one read in steps of two and with zeros around it."""
    path = tmp_path / "model.onnx"
    w = np.random.default_rng(0).standard_normal((32, 16, 3, 3, 1)).astype(np.float32)
    attributes = {"strides": [1, 2, 1], "pads": [1, 1, 0, 1, 1, 0]}
    shape = (1, 16, 3, size, 5)
    save(path, shape, [helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], w=w)
    graph = parted(path)
    # Places outside of the value must lie outside of its phases, too.
    assert any(".phase" in d for d, _ in graph.dims) == (size % 2 == 0)
    agrees(path, graph, machine, shape, 16 * 9)


@pytest.mark.parametrize(
    ("layer", "rows", "bytes_"),
    [
        (Layer(), 14, 6 * 16 * 16 * 16 * 32),
        (Layer(size=17), 16, 6 * 17 * 18 * 16 * 32),
        (Layer(size=18, stride=3), 12, 6 * 18 * 18 * 16 * 32),
        (Layer(batch=16), 14, 6 * 16 * 16 * 16 * 32),
    ],
)
def test_registers_hold_rows_of_two_loops_one_image_at_a_time(
    tmp_path: Path, layer: Layer, rows: int, bytes_: int
) -> None:
    """Places along an image times rows of a pose; the image's parts stay near."""
    path = tmp_path / "model.onnx"
    onnx.save(spellings(layer)["product"], path)
    plan = decide(optimize(import_model(path), pipeline=pipeline_for(able())), able())
    assert plan.arena_bytes == bytes_
    builder = Builder(plan, able(), "model", 1, keep_subnormals=False)
    kernels: list[str] = []
    builder.on_draft = lambda pending, made, draft: kernels.append(str(draft.kernel))
    builder.build()
    (kernel,) = kernels
    assert f" in [0, {rows}) matrix {{" in kernel
    assert "parallel" in kernel


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        # Neighbours in memory lie along the rows, along the columns, along neither.
        (helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4), Kind.UNROLL),
        (helper.make_node("Einsum", ["x", "w"], ["y"], equation="acpq,ocij->apqo"), Kind.SERIAL),
        (helper.make_node("Einsum", ["x", "w"], ["y"], equation="acpq,ocij->aopqj"), Kind.VECTOR),
    ],
)
def test_results_go_along_memory(tmp_path: Path, layer: NodeProto, kind: Kind) -> None:
    path = tmp_path / "model.onnx"
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    save(path, (1, 64, 28, 28), [layer], w=w)
    builder = Builder(decide(parted(path), able()), able(), "model", 1, keep_subnormals=False)
    kinds: list[Kind] = []

    def note(_pending: object, _made: object, draft: Draft) -> None:
        kinds.extend(s.results for s in draft.schedule if isinstance(s, MatrixTile))

    builder.on_draft = note
    builder.build()
    assert kinds == [kind]


def test_long_sums_in_matrix_registers_are_one(tmp_path: Path) -> None:
    """Their instructions add to what the registers hold: there is no part to begin."""
    path = tmp_path / "model.onnx"
    product(path, (64,), 4096, 64)
    builder = Builder(decide(parted(path), able()), able(), "model", 1, keep_subnormals=False)
    found: list[type[Step]] = []

    def note(_pending: object, _made: object, draft: Draft) -> None:
        found.extend(map(type, draft.schedule))

    builder.on_draft = note
    builder.build()
    assert MatrixTile in found
    assert PartialSums not in found


def test_sums_of_any_number_of_rows_take_memory_with_a_bound(tmp_path: Path) -> None:
    """Blocks of a reduction would keep the sums of all rows between them."""
    convolution(tmp_path / "model.onnx", (1, 512, 20, "w"), 64, 1, 3)
    compile_model(tmp_path / "model.onnx", tmp_path / "model.so", Options(target="x86-64-v3"))
    with load(tmp_path / "model.so") as session:
        x = np.ones((1, 512, 20, 40), np.float32)
        assert session.run(None, {"x": x})[0].shape == (1, 64, 7, 14)
