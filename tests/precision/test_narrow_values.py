"""Values between kernels: in bf16 with `--precision bf16` and `int8`, or added in 8 bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rutc.driver.options import Calibration
from rutc.driver.plans.narrow_values import with_narrow_values
from rutc.driver.plans.planning import planned
from rutc.driver.precision.eight_bits import in_eight_bits
from rutc.graph_opt import versions
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.exact_places import places
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.plan import InTurn
from rutc.importer import import_model
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import BF16_VECTORS, Machine
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import TILES, V4, runnable, weighing

PAIRS = replace(V4, features=V4.features | {BF16_VECTORS}, fma_per_cycle=1.0)
BYTES = replace(PAIRS, features=PAIRS.features | {"avx512vnni"})
"""A machine that adds up products of bytes, too."""
SMALL = replace(PAIRS, l2=16 << 10)
"""A machine whose second cache holds little."""
IMAGES = replace(PAIRS, l2=512 << 10)
"""One whose second cache holds what is computed of one image, but not of eight."""


def depthwise(folder: Path, *, side: int = 32, images: int = 1) -> Path:
    """Windows of a channel each between products of pixels: what lies between them is large."""
    n = Net()
    x = n("Relu", n("Conv", n.input(images, 16, side, side), n.weight(64, 16, 1, 1)))
    y = n("Conv", x, n.weight(64, 1, 3, 3), group=64, pads=[1] * 4, strides=[2, 2])
    return n.save(folder / "net.onnx", n("Conv", y, n.weight(16, 64, 1, 1)))


def stored(model: Path, machine: Machine, precision: str) -> list[DType]:
    """The types of what a plan stores in fewer bits."""
    graph = import_model(model)
    found = versions(graph, machine, Leeway(bf16=precision == "bf16"))
    plan, _ = planned(found, machine, precision)
    assert plan.assignment is not None
    return [s.dtype for s in plan.assignment.types]


def test_what_the_second_cache_does_not_hold_is_rounded(tmp_path: Path) -> None:
    model = depthwise(tmp_path)
    assert stored(model, SMALL, "bf16") == [DType.BF16]
    assert stored(model, PAIRS, "bf16") == []


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8"])
def test_other_precisions_keep_values(precision: str, tmp_path: Path) -> None:
    assert DType.BF16 not in stored(depthwise(tmp_path), SMALL, precision)


def test_so_it_is_beside_registers_for_matrices(tmp_path: Path) -> None:
    model = depthwise(tmp_path)
    assert stored(model, replace(TILES, l2=16 << 10), "bf16") == [DType.BF16]
    assert stored(model, TILES, "bf16") == []


def test_a_value_has_to_take_much_of_the_time(tmp_path: Path) -> None:
    """Unless beside sums of bytes, which are rounded far more."""
    found = greedy(prepare(import_model(depthwise(tmp_path))), SMALL).realisation
    slow = weighing(SMALL, "stored_types", least_moved=1e3)
    assert not with_narrow_values(found, slow).assignment.types
    assert with_narrow_values(found, slow, every=True).assignment.types


def test_what_kernels_in_turn_pass_on_stays_in_the_second_cache(tmp_path: Path) -> None:
    """One image of it does, of which a thread has no more at a time; all of them do not."""
    model = depthwise(tmp_path, images=8)
    found = greedy(prepare(import_model(model)), IMAGES).realisation
    (near,) = (s.near for s in found.plan.steps if isinstance(s, InTurn))
    assert near
    sizes = {x.value: int(found.plan.layouts[x.value].size) * DType.F32.bytes for x in near}
    assert max(sizes.values()) > IMAGES.l2
    narrow = with_narrow_values(found, IMAGES, every=True)
    assert sizes.keys().isdisjoint({s.value for s in narrow.assignment.types})


@pytest.mark.parametrize("repeating", [False, True])
def test_places_are_exact(repeating: bool, tmp_path: Path) -> None:
    """A large number that is rounded to 8 bits is another place, and another angle."""
    n = Net()
    x = n.input(1, 2, 64, 64)
    moved = n("Conv", x, n.weight(2, 2, 3, 3), pads=[1] * 4)
    if repeating:
        y = n("Sin", n("Add", moved, n("Transpose", moved, perm=[0, 1, 3, 2])))
    else:
        y = n("Add", moved, n.weight(1, 2, 64, 64))
        y = n("GridSample", x, n("Transpose", y, perm=[0, 2, 3, 1]))
    found = greedy(prepare(n.graph(y, dims={})), SMALL).realisation
    exact = places(found.plan.graph.nodes) & found.plan.layouts.keys()
    assert exact
    narrow = with_narrow_values(found, SMALL, every=True)
    assert not exact & {s.value for s in narrow.assignment.types}


@pytest.mark.parametrize(("side", "inner", "taken"), [(56, 32, True), (7, 512, False)])
def test_residuals_are_added_in_8_bits_where_kernels_wait_for_them(
    side: int, inner: int, taken: bool, tmp_path: Path
) -> None:
    """Not where most of the time goes into sums."""
    n = Net()
    x = n("Relu", n("Conv", n.input(1, 64, side, side), n.weight(256, 64, 1, 1), n.weight(256)))
    for _ in range(2):
        y = n("Relu", n("Conv", x, n.weight(inner, 256, 1, 1), n.weight(inner)))
        x = n("Relu", n("Add", n("Conv", y, n.weight(256, inner, 1, 1), n.weight(256)), x))
    path = n.save(tmp_path / "net.onnx", n("Conv", x, n.weight(16, 256, 1, 1)))
    found = in_eight_bits(import_model(path), BYTES, Calibration())
    assert len(found.chosen) == found.sums == 6
    assert bool(found.choice.added) == taken
    assert found.facts()["added"] == list(found.choice.added)


@pytest.mark.skipif(not runnable(PAIRS), reason="this processor does not round to bf16")
def test_rounded_values_are_near(tmp_path: Path) -> None:
    model = depthwise(tmp_path)
    graph = import_model(model)
    (version,) = versions(graph, SMALL, Leeway(bf16=True))
    plan, _ = planned((version,), SMALL, "bf16")
    library = build(plan, SMALL, tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 16, 32, 32)).astype(np.float32)
    (wanted,) = Reference(model, 1).run({"x0": x}).values()
    (got,) = run(library, {"x0": x}, 2).values()
    assert_close(got, np.asarray(wanted), level=Level.REDUCED)
