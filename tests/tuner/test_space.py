"""The space of tiled schedules: its points compute the same, and the default is one of them."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.emit.targets import aarch64
from rutc.tensor_ir.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, apply_schedule
from rutc.tuner import choose, partial_sums
from rutc.tuner.access import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import tiling_space
from rutc.tuner.space import TilingSpace
from rutc.tuner.tiled import REUSE, Tiling, default_tiling, tiled
from rutc.tuner.tiles import choose_tile
from tests.emit.run_kernel import run_kernel
from tests.examples import examples
from tests.kernels import LONG, Case, cases
from tests.machines import V3, V4, runnable
from tests.tuner.test_schedules import FAR_ROWS, PRODUCTS, lowered

SMALL = {m.name: replace(m, l1=4 << 10, l2=64 << 10) for m in (V3, V4, aarch64.neon())}
"""Machines with small caches: blocks and chunks then show in small kernels."""


def applied(case: Case, kernel: Kernel, choice: Choice) -> tuple[Kernel, dict[str, np.ndarray]]:
    """The scheduled kernel, its constants packed as it wants them, and its memory."""
    layouts = dict(case.layouts)
    for name, (order, blocks) in choice.packing.items():
        layouts[name] = dense(order, case.extents, blocks=blocks)
    args = tuple(replace(b, layout=layouts[b.name]) for b in kernel.args)
    _, scheduled = partial_sums(apply_schedule(replace(kernel, args=args), choice.schedule))
    return scheduled, case.memory(case.arrays(), layouts)


@pytest.mark.parametrize("name", SMALL)
@examples(100)
@given(case=cases(lengths=LONG, points=100_000), data=st.data())
def test_all_points_compute_the_same(name: str, case: Case, data: st.DataObject) -> None:
    machine = SMALL[name]
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = frozenset(data.draw(st.sets(st.sampled_from(reads))) if reads else ())
    kernel = case.kernel()
    space = tiling_space(kernel, machine, free)
    if space is None:
        return
    found = space.draw(Random(data.draw(st.integers(0, 1 << 32))))
    if found is None:
        return
    for point in (found, space.near(found[0], Random(data.draw(st.integers(0, 1 << 32))))):
        if point is None:
            continue
        scheduled, memory = applied(case, kernel, point[1])
        if runnable(machine):
            run_kernel(scheduled, machine, memory, parts=data.draw(st.integers(1, 3)))
        else:
            interpret_kernel(scheduled, memory)
        case.check(memory, case.arrays())


@pytest.mark.parametrize("text", [PRODUCTS, FAR_ROWS], ids=["products", "far rows"])
@pytest.mark.parametrize("machine", [V3, V4, aarch64.neon()], ids=lambda m: m.name)
def test_the_default_is_a_point(text: str, machine: Machine) -> None:
    kernel, constants = lowered(text)
    space = tiling_space(kernel, machine, constants)
    assert space is not None
    found = space.default()
    assert found is not None
    default, chosen = found
    assert chosen == choose(kernel, machine, constants)
    axes = space.axes
    assert default.tile in axes["tile"]
    for name in ("reuse", "prepare", "whole_rows", "parallel", "unroll", "prefetch"):
        assert getattr(default, name) in axes[name]
    assert default.holder in (*axes["holder"], "")


def test_points_are_many_and_listed_once() -> None:
    kernel, constants = lowered(PRODUCTS.replace("j = 96, k = 64", "j = 20, k = 32"))
    space = TilingSpace(kernel, analyse(kernel, constants), V3)
    assert len(space) > 10_000
    first = [point for point, _ in zip(space, range(500), strict=False)]
    assert all(isinstance(point, Tiling) for point in first)
    assert len(set(map(repr, first))) > 50
    assert {p.reuse for p in first if p.block is None} <= {REUSE}


WRONG = {
    "no such chunk": ({"chunk": ("i", 7)}, "no equal parts"),
    "a chunk of the vector": ({"chunk": ("j", 48)}, "no chunks"),
    "no block": ({"block": 64, "holder": "y"}, "no blocks of 64"),
    "no holder": ({"block": 16, "holder": "z"}, "'z' cannot hold"),
    "nothing to prepare": ({"prepare": "w"}, "nothing of w is the same"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_points_that_do_not_fit_are_told(kind: str) -> None:
    values, words = WRONG[kind]
    kernel, constants = lowered(PRODUCTS)
    shape = analyse(kernel, constants)
    tile = choose_tile(shape, V4)
    assert tile is not None
    assert tile.vector == "j"
    default = default_tiling(kernel, shape, tile, V4)
    with pytest.raises(NotApplicable, match=words):
        tiled(kernel, shape, replace(default, **values), V4)  # type: ignore[arg-type]
