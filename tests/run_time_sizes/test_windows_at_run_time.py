"""Windows that pass along sizes of the run, in tiles of rows."""

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.tensor_ir import Graph
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.lower import lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Peel, Tile
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces, usual
from rutc.tuner.templates.windows import WINDOWS
from tests.compiled import build, run
from tests.conformance.guarded import guarded_copy
from tests.examples import examples
from tests.graph_opt.networks import Net
from tests.machines import NATIVE, V3, V4, on_native_and_v3

HIGH, CHANNELS = 13, 45
SOURCE = f"""
graph "windows of any width"
symbols n = 1..3, m = 0..40
dims b = n, h = {HIGH}, w = m, c = {CHANNELS}, i = SIDE, j = SIDE
%x : f32{{b,c,h,w}} = input "x" [b, h, w, c]
%k : f32{{c,i,j}} = input "k" [i, j, c]
%u : f32{{b,c,h,w}} = %x[b, c, h, w] * 2.0
%y : f32{{b,c,h,w}} = sum{{i,j}} %u[b, c, h=h+i-REACH, w=w+j-REACH else 0.0] * %k[c, i, j]
output "y" [b, h, w, c] = %y
"""


@on_native_and_v3
@pytest.mark.parametrize("side", [3, 5])
def test_every_window_is_summed_whatever_the_width(
    side: int, machine: Machine, tmp_path: Path
) -> None:
    source = SOURCE.replace("SIDE", str(side)).replace("REACH", str(side // 2))
    library = build(decide(optimize(parse(source)), machine), machine, tmp_path)
    rng = np.random.default_rng(0)
    k = rng.integers(-4, 5, (side, side, CHANNELS)).astype(np.float32)
    for n, m in ((1, 0), (1, 1), (2, 2), (1, 4), (3, 5), (1, 17), (2, 40)):
        x = rng.integers(-4, 5, (n, HIGH, m, CHANNELS)).astype(np.float32)
        padded = np.pad(2 * x, ((0, 0), *[(side // 2, side // 2)] * 2, (0, 0)))
        expected = np.zeros_like(x)
        for i, j in np.ndindex(side, side):
            expected += padded[:, i : i + HIGH, j : j + m] * k[i, j]
        for threads in (1, 2):
            got = run(library, {"x": x, "k": k}, threads)["y"]
            np.testing.assert_array_equal(got, expected)


PICTURES = """
graph "pictures of any size"
symbols n = 1..2, p = 0..300, q = 0..300
dims b = n, h = p, w = q, y = (p+MORE)//STRIDE, x = (q+MORE)//STRIDE, c = COUNT, i = SIDE, j = SIDE
%a : f32{b,c,h,w} = input "a" [b, h, w, c]
%k : f32{c,i,j} = input "k" [i, j, c]
%u : f32{b,c,h,w} = %a[b, c, h, w] * 2.0
%o : f32{b,c,x,y} = sum{i,j} %u[b, c, h=STRIDE*y+i-REACH, w=STRIDE*x+j-REACH else 0.0] * %k[c, i, j]
output "o" [b, y, x, c] = %o
"""


def pictures(side: int, stride: int, channels: int = 36) -> Graph:
    """Depthwise windows of pictures, of which only the run knows both sides."""
    words = {"SIDE": side, "STRIDE": stride, "MORE": stride - 1, "REACH": side // 2}
    words["COUNT"] = channels
    source = PICTURES
    for word, number in words.items():
        source = source.replace(word, str(number))
    return optimize(parse(source))


def summed(plan: Plan) -> Kernel:
    """The kernel of the windows of pictures."""
    (group,) = (g for g in plan.groups() if "o" in g.stored)
    sizes = dict(plan.graph.extents), dict(plan.graph.symbols)
    return lower(group, plan.values, plan.layouts, *sizes)


PASSES = ((3, 1), (3, 2), (5, 2))
SIZES = ((1, 0, 5), (1, 3, 0), (1, 1, 1), (2, 2, 7), (1, 13, 4), (2, 17, 31), (1, 5, 61))


def check_pictures(library: Path, side: int, stride: int, channels: int = 36) -> None:
    rng = np.random.default_rng(0)
    reach = side // 2
    k = rng.integers(-4, 5, (side, side, channels)).astype(np.float32)
    for n, p, q in SIZES:
        a = rng.integers(-4, 5, (n, p, q, channels)).astype(np.float32)
        padded = np.pad(2 * a, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
        expected = np.zeros((n, -(-p // stride), -(-q // stride), channels), np.float32)
        for i, j in np.ndindex(side, side):
            expected += padded[:, i : i + p : stride, j : j + q : stride] * k[i, j]
        for threads in (1, 2):
            got = run(library, {"a": a, "k": k}, threads)["o"]
            np.testing.assert_array_equal(got, expected)


@on_native_and_v3
@pytest.mark.parametrize(("side", "stride"), PASSES)
def test_windows_pass_along_both_sides(
    side: int, stride: int, machine: Machine, tmp_path: Path
) -> None:
    plan = decide(pictures(side, stride), machine)
    check_pictures(build(plan, machine, tmp_path), side, stride)


@on_native_and_v3
def test_vectors_are_outside_of_loops_of_any_length(machine: Machine, tmp_path: Path) -> None:
    """Where a vector is a line, and the first cache would lose what windows have in common.

    The hardware knows the next pixel, here in a large page.
    """
    small = replace(machine, l1=machine.l1_way_bytes, page_bytes=1 << 20)
    plan = decide(pictures(3, 1, 32), small)
    kernel = summed(plan)
    orders = []
    for own in (machine, small):
        space, point = usual(spaces(kernel, own, frozenset())) or (None, None)
        assert space is not None
        assert space.template is WINDOWS
        orders.append(point.order)
    whole = machine.vector_bits == 8 * machine.line_bytes
    usual_order = ("b", "x", "y", "c")
    assert orders == [usual_order, ("b", "x", "c", "y") if whole else usual_order]
    check_pictures(build(plan, small, tmp_path), 3, 1, 32)


@on_native_and_v3
def test_windows_that_never_fit_read_nothing(machine: Machine, tmp_path: Path) -> None:
    """A single tile holds all rows that there ever are, and none where no window fits."""
    net = Net()
    x = net.input(1, 1, "n", 5)
    path = net.save(tmp_path / "net.onnx", net("AveragePool", x, kernel_shape=[3, 1]))
    graph = optimize(import_model(path, dims={"n": (1, 4)}))
    library = build(decide(graph, machine), machine, tmp_path)
    for n in (2, 3, 4):
        values = np.ones((1, 1, n, 5), np.float32)
        (got,) = run(library, {x: guarded_copy(values)}, 1).values()
        np.testing.assert_array_equal(got, np.ones((1, 1, n - 2, 5), np.float32))


def test_rows_of_any_number_share_what_their_windows_overlap_in() -> None:
    """They lie along the loop whose step in memory is known; whole tiles have code of their own."""
    schedule = choose(summed(decide(pictures(3, 1), V3)), V3, frozenset()).schedule
    assert Peel("x.o") in schedule
    assert {Mark(v, Kind.UNROLL) for v in "ij"} <= set(schedule)
    assert Tile(("x.i", "c.i"), (Kind.UNROLL, Kind.VECTOR)) in schedule


def test_rows_lie_along_what_is_known_to_be_long_enough() -> None:
    """However far apart in memory they are: few rows of long windows wait for each other's sums."""
    source = SOURCE.replace("SIDE", "5").replace("REACH", "2")
    plan = decide(optimize(parse(source)), V4)
    (group,) = (g for g in plan.groups() if "y" in g.stored)
    sizes = dict(plan.graph.extents), dict(plan.graph.symbols)
    kernel = lower(group, plan.values, plan.layouts, *sizes)
    found = usual(spaces(kernel, V4, frozenset({"k"})))
    assert found is not None
    space, point = found
    assert space.template is WINDOWS
    assert point.rows == ("h", HIGH)


ALONG = f"""
graph "memory that runs along any width"
symbols m = 0..70@30
dims c = 5, h = {HIGH}, w = m, i = SIDE, j = SIDE
%x : f32{{c,h,w}} = input "x" [c, h, w]
%k : f32{{c,i,j}} = input "k" [c, i, j]
%u : f32{{c,h,w}} = %x[c, h, w] * 2.0
%y : f32{{c,h,w}} = sum{{i,j}} %u[c, h=h+i-REACH, w=w+j-REACH else 0.0] * %k[c, i, j]
output "y" [c, h, w] = %y
"""


def along(side: int) -> Graph:
    """Depthwise windows whose memory runs along a dim of which only the run knows the size."""
    return optimize(parse(ALONG.replace("SIDE", str(side)).replace("REACH", str(side // 2))))


def check_along(library: Path, side: int) -> None:
    rng = np.random.default_rng(0)
    k = rng.integers(-4, 5, (5, side, side)).astype(np.float32)
    for m in (0, 1, 2, 7, 15, 16, 17, 30, 33, 61, 70):
        x = rng.integers(-4, 5, (5, HIGH, m)).astype(np.float32)
        if m > 2:
            x[1, 4, m // 2], x[2, 0, 0], x[3, HIGH - 1, m - 1] = np.nan, np.inf, -np.inf
        padded = np.pad(2 * x, ((0, 0), *[(side // 2, side // 2)] * 2))
        expected = np.zeros_like(x)
        with np.errstate(invalid="ignore"):
            for i, j in np.ndindex(side, side):
                expected += padded[:, i : i + HIGH, j : j + m] * k[:, i, j, None, None]
        for threads in (1, 2):
            (got,) = run(library, {"x": guarded_copy(x), "k": guarded_copy(k)}, threads).values()
            np.testing.assert_array_equal(got, expected)


@on_native_and_v3
@pytest.mark.parametrize("side", [3, 5])
def test_vectors_lie_along_what_a_run_makes_long(
    side: int, machine: Machine, tmp_path: Path
) -> None:
    """Where memory has a halo along it: nothing asks for edges."""
    plan = decide(along(side), machine)
    (group,) = (g for g in plan.groups() if "y" in g.stored)
    kernel = lower(
        group, plan.values, plan.layouts, dict(plan.graph.extents), dict(plan.graph.symbols)
    )
    space, point = usual(spaces(kernel, machine, frozenset({"k"}))) or (None, None)
    assert space is not None
    assert space.template is WINDOWS
    assert (point.vector, point.rows[0]) == ("w", "h")
    assert Peel("w.o") in space.choice(point).schedule
    check_along(build(plan, machine, tmp_path), side)


@examples(6)
@given(seed=st.integers(0, 1 << 32))
def test_all_schedules_of_such_windows_compute_the_same(seed: int) -> None:
    rng, tried = Random(seed), set[str]()

    def chooser(kernel: Kernel, constants: frozenset[str], machine: Machine) -> Choice | None:
        for space in spaces(kernel, machine, constants):
            found = space.draw(rng) if space.template is WINDOWS else None
            if found is not None:
                tried.add(str(found[0]))
                return found[1]
        return None

    side, stride = rng.choice(PASSES)
    with TemporaryDirectory() as folder:
        plan = decide(pictures(side, stride), NATIVE)
        check_pictures(build(plan, NATIVE, Path(folder), chooser=chooser), side, stride)
        plan = decide(along(side), NATIVE)
        check_along(build(plan, NATIVE, Path(folder), chooser=chooser), side)
    assert tried
