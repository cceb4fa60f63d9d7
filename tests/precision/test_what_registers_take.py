"""Products of bf16 are chosen only where registers for matrices take the kernels that result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper

from benchmarks.cases import CASES, Case
from benchmarks.layers import MODELS
from benchmarks.narrow import Case as Layered
from rutc.driver.parts.build import Builder
from rutc.driver.parts.compile_job import Draft
from rutc.driver.parts.launches import Pending
from rutc.driver.plans.planning import planned
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.factor_parts import ROUNDED, WHOLE
from rutc.graph_opt.alternatives.split_precision import SAID
from rutc.graph_opt.decide import decide
from rutc.graph_opt.leeway import Leeway
from rutc.importer import import_model
from rutc.tensor_ir import DType
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Kernel, Kind, Stmt, Update
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops, walk_stmts
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build, run
from tests.machines import TILES
from tests.precision.test_parts import ALWAYS, MACHINES, parted, save

pytestmark = pytest.mark.sampled(16)

MEASURED = replace(TILES, l1=48 << 10, l2=2 << 20, l2_bytes_per_cycle=48.0, divide_cycles=12.0)
"""As Sapphire Rapids was found to be."""

Timed = Case | Layered
Layer = tuple[Sequence[int | str], NodeProto, dict[str, np.ndarray]]


def random(*shape: int) -> np.ndarray:
    """Weights."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def windows(
    shape: Sequence[int | str], outputs: int, size: int, *, step: int = 1, apart: int = 1, pad: int
) -> Layer:
    """A convolution of images, or of rows, of this shape {n, c, ..}."""
    dims = len(shape) - 2
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[step] * dims,
        dilations=[apart] * dims,
        pads=[pad] * 2 * dims,
    )
    return shape, node, {"w": random(outputs, int(shape[1]), *[size] * dims)}


def across(rows: int, depth: int, columns: int) -> Layer:
    """A product of rows that lie across memory."""
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transA=1, transB=1)
    return (depth, rows), node, {"w": random(columns, depth)}


LAYERS = {
    "far apart": windows((1, 256, 16, 16), 256, 3, apart=12, pad=12),
    "farther than the map": windows((1, 256, 16, 16), 256, 3, apart=18, pad=18),
    "apart": windows((1, 128, 16, 16), 256, 3, apart=8, pad=8),
    "apart in one dim": windows((1, 96, 8, 16), 128, 3, apart=8, pad=8),
    "in steps": windows((1, 128, 28, 28), 256, 3, step=2, pad=1),
    "in long steps": windows((3, 256, 8, 2), 64, 1, step=3, pad=0),
    "a small map": windows((1, 512, 2, 2), 512, 3, pad=1),
    "a single place": windows((1, 512, 1, 1), 512, 3, pad=1),
    "few places of several images": windows((3, 96, 2), 16, 1, pad=0),
    "places of zeros around": windows((1, 32, 13), 17, 1, pad=1),
    "odd channels": windows((1, 251, 14, 14), 129, 3, pad=1),
    "few channels": windows((1, 3, 56, 56), 64, 7, step=2, pad=3),
    "any width": windows((1, 256, 14, "w"), 256, 3, apart=4, pad=4),
    "few rows": across(4, 768, 768),
    "rows that lie across": across(384, 30, 33),
    "columns of a single register": across(64, 768, 16),
}


def is_narrow(s: Stmt) -> bool:
    """Whether a statement sums products of bf16."""
    terms = terms_of(s.reducer, s.elements) if isinstance(s, Update) else None
    return any(r.dtype is DType.BF16 for pair in terms or () for r in pair)


def in_registers(kernel: Kernel) -> int:
    """How many sums of a scheduled kernel are in registers for matrices."""
    loops = (s for s in walk_loops(kernel.body) if s.kind is Kind.MATRIX)
    taken = (s for loop in loops for s in walk_stmts(loop.body) if isinstance(s, Update))
    return len({s.states[0].buffer for s in taken})


def sums_of(path: Path, precision: str, machine: Machine) -> list[tuple[int, int]]:
    """(sums of products of bf16, those that are in registers) of every kernel that has any."""
    found = versions(import_model(path), machine, Leeway(bf16=precision == "bf16"))
    usual, others = planned(found, machine, precision)
    sums: list[tuple[int, int]] = []

    def note(pending: Pending, _made: object, draft: Draft) -> None:
        narrow = sum(is_narrow(s) for k in pending.job.kernels for s in walk_stmts(k.body))
        if narrow:
            sums.append((narrow, in_registers(draft.kernel)))

    for plan in (usual, *(a.plan for a in others)):
        builder = Builder(plan, machine, "model", 1, keep_subnormals=False, code=False)
        builder.on_draft = note
        builder.build()
    return sums


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_what_is_multiplied_in_bf16_is_so_in_registers(
    tmp_path: Path, layer: Layer, precision: str
) -> None:
    """On vectors that takes many times as long as products in float32."""
    shape, node, constants = layer
    save(tmp_path / "model.onnx", shape, [node], **constants)
    for narrow, taken in sums_of(tmp_path / "model.onnx", precision, MEASURED):
        assert taken >= narrow


@pytest.mark.parametrize(
    "model",
    [m for m in (*MODELS, *CASES) if m.name.startswith(("conv ", "product "))],
    ids=lambda m: m.name,
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_benchmarks(tmp_path: Path, model: Timed, precision: str) -> None:
    onnx.save(model.build(), tmp_path / "model.onnx")
    for narrow, taken in sums_of(tmp_path / "model.onnx", precision, MEASURED):
        assert taken >= narrow


def test_a_block_of_columns_is_enough_for_many_rows(tmp_path: Path) -> None:
    """To round them costs little; rows of large matrices that three parts are made of cost more."""
    shape, node, constants = windows((1, 32, 56, 56), 16, 1, pad=0)
    save(tmp_path / "model.onnx", shape, [node], **constants)
    assert sums_of(tmp_path / "model.onnx", "bf16", MEASURED) == [(1, 1)]
    assert sums_of(tmp_path / "model.onnx", "fp32", MEASURED) == []


@pytest.mark.parametrize(
    ("apart", "taken"), [(2, True), (4, True), (8, False), (12, False), (18, False)]
)
def test_parts_are_weighed_with_what_sums_in_f32_leave_out(
    tmp_path: Path, apart: int, taken: bool
) -> None:
    """Of windows that are mostly outside, sums in f32 leave out what registers would multiply."""
    shape, node, constants = windows((1, 256, 16, 16), 256, 3, apart=apart, pad=apart)
    path = tmp_path / "model.onnx"
    save(path, shape, [node], **constants)
    (found,) = versions(import_model(path), MEASURED)
    assert (("y", SAID) in found.assigned.algorithms) == taken


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("parts", [WHOLE, ROUNDED])
@pytest.mark.parametrize(
    "layer",
    [
        windows((1, 32, 16, 16), 32, 3, apart=12, pad=12),
        windows((2, 32, 9, 5), 17, 3, apart=4, pad=4),
        windows((1, 32, 16, 16), 32, 3, step=2, apart=7, pad=7),
        across(20, 30, 33),
    ],
    ids=["far apart", "small maps", "in steps", "rows that lie across"],
)
def test_windows_that_are_mostly_outside_agree(
    tmp_path: Path, layer: Layer, parts: int, machine: Machine
) -> None:
    shape, node, constants = layer
    path = tmp_path / "model.onnx"
    save(path, shape, [node], **constants)
    graph = parted(path, replace(ALWAYS, parts=parts))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    library = build(decide(graph, machine), machine, tmp_path)
    assert any(v.endswith(".hi") for v in graph.values)
    wanted = interpret(graph, {"x": x})["y"]
    for threads in (1, 2):
        assert_close(run(library, {"x": x}, threads)["y"], wanted, level=Level.KERNEL)
