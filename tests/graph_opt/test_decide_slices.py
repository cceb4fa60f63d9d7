"""Chains of kernels over slices of a dim: when they are made, and that they compute the same."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.frame import MOST_KNOWN_BYTES, MOST_STACK_BYTES
from rutc.emit.targets import target_named
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.chains import Chain, Member
from rutc.graph_opt.decide.slice_sizes import FEWEST_SLICES
from rutc.graph_opt.plan import Illegal, Plan, Repeat
from rutc.runtime import InferenceSession
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.compiled import build, run
from tests.graph_opt.plan_runner import run_plan
from tests.graph_opt.plans import assigned
from tests.kernels import assert_agree
from tests.machines import V3, V4
from tests.strategies import random_inputs

pytestmark = pytest.mark.sampled(16, whole=True)

PRODUCTS = """
graph "two products, a row at a time"
dims h = 6, k = 16, n = 16, s = 16, t = 16
%q : f32{h,k,s} = input "q" [h, s, k]
%r : f32{h,k,t} = input "r" [h, t, k]
%v : f32{h,n,t} = input "v" [h, t, n]
%scores : f32{h,s,t} = sum{k} %q[h, k, s] * %r[h, k, t]
%y : f32{h,n,s} = sum{t} %scores[h, s, t] * %v[h, n, t]
output "y" [h, s, n] = %y
"""

SIZES = "h = 6, k = 16, n = 16, s = 16, t = 16"

TILES = """
graph "each output reads the tile that it lies in"
dims c = 16, d = 16, o = 16, t = 6, u = 3, x = 18, z = 18
%x : f32{c,x} = input "x" [x, c]
%tiles : f32{c,t,u} = %x[c, x=3*t + u]
%w : f32{c,d} = input "w" [c, d]
%sums : f32{d,t,u} = sum{c} %tiles[c, t, u] * %w[c, d]
%y : f32{d,z} = select(index(z % 3) == 0, %sums[d, t=z // 3, u=0], %sums[d, t=z // 3, u=2])
output "y" [z, d] = %y
"""


HEADS = """
%q : f32{b,h,k,s} = input "q" [b, s, h, k]
%r : f32{b,h,k,t} = input "r" [b, t, h, k]
%v : f32{b,h,n,t} = input "v" [b, t, h, n]
%p : f32{b,h,s,t} = sum{k} %q[b, h, k, s] * %r[b, h, k, t]
%a : f32{b,h,s} = max{t} %p[b, h, s, t]
%e : f32{b,h,s,t} = exp(%p[b, h, s, t] - %a[b, h, s])
%z : f32{b,h,s} = sum{t} %e[b, h, s, t]
%w : f32{b,h,s,t} = %e[b, h, s, t] / %z[b, h, s]
%u : f32{b,h,n,s} = sum{t} %w[b, h, s, t] * %v[b, h, n, t]
"""
"""Of heads: what follows the sizes of its dims."""

SOFTMAX = """
graph "queries look for values: softmax(q r + mask) v"
dims h = {h}, k = {k}, n = {n}, s = {s}, t = {t}
%q : f32{{h,k,s}} = input "q" [h, s, k]
%r : f32{{h,k,t}} = input "r" [h, t, k]
%v : f32{{h,n,t}} = input "v" [h, t, n]
%mask : f32{{s,t}} = input "mask" [s, t]
%p : f32{{h,s,t}} = sum{{k}} %q[h, k, s] * %r[h, k, t]
%m : f32{{h,s,t}} = %p[h, s, t] + %mask[s, t]
%a : f32{{h,s}} = max{{t}} %m[h, s, t]
%e : f32{{h,s,t}} = exp(%m[h, s, t] - %a[h, s])
%z : f32{{h,s}} = sum{{t}} %e[h, s, t]
%u : f32{{h,n,s}} = sum{{t}} %e[h, s, t] * %v[h, n, t]
%y : f32{{h,n,s}} = %u[h, n, s] / %z[h, s]
output "y" [h, s, n] = %y
"""


SMALL = replace(V4, l2=4096)
"""A machine with a small second cache: what passes between kernels does not stay near."""


def repeats(plan: Plan) -> list[Repeat]:
    return [s for s in plan.steps if isinstance(s, Repeat)]


def slices_of(plan: Plan) -> list[dict[str, tuple[int, int]]]:
    """(size, first index) of the slices of every dim, for each group with slices."""
    found = ({s.dim: (s.size, s.first) for s in g.slices} for g in plan.groups())
    return [sliced for sliced in found if sliced]


def in_part(plan: Plan, value: str) -> bool:
    """Whether the value is stored for one slice at a time."""
    return any(not a.whole for a in plan.layouts[value].axes)


def check(
    text: str,
    folder: Path,
    *lines: str,
    machine: Machine = V4,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> Plan:
    """The graph's plan, which computes what the graph says: interpreted and compiled.

    The `lines` are assigned beside what is chosen.
    """
    graph = parse(text)
    verify(graph)
    if inputs is None:
        inputs = random_inputs(graph, 0)
    wanted = interpret(graph, inputs)
    plan = assigned(text, *lines, machine=machine) if lines else decide(graph, machine)
    got = run_plan(plan, inputs)
    library = build(plan, target_named("native").machine, folder)
    for threads in (1, 2):
        compiled = run(library, inputs, threads)
        for name, array in wanted.items():
            assert_agree(name, got[name], array, exact=False, reduction=64)
            assert_agree(name, compiled[name], array, exact=False, reduction=64)
    return plan


def test_a_value_between_two_products_is_stored_for_one_slice(tmp_path: Path) -> None:
    plan = check(PRODUCTS, tmp_path, machine=SMALL)
    (repeat,) = repeats(plan)
    assert repeat.trips == 6
    assert in_part(plan, "scores")
    assert plan.places["scores"].bytes == 16 * 16 * 4


def test_threads_have_scratch_of_their_own(tmp_path: Path) -> None:
    text = PRODUCTS.replace("s = 16", f"s = {MOST_STACK_BYTES // 32}")
    plan = check(text, tmp_path, "slices {h} by 1: %scores .. %y")
    assert in_part(plan, "scores")
    assert int(plan.places["scores"].bytes) > MOST_STACK_BYTES


def test_short_vectors_are_not_cut_into_slices(tmp_path: Path) -> None:
    text = PRODUCTS.replace("h = 6", "h = 1").replace("s = 16", "s = 1").replace("t = 16", "t = 64")
    plan = check(text, tmp_path, machine=replace(V4, l2=128))
    inner = {plan.layouts[v].axes[-1].dim for g in plan.groups() for v in g.stored}
    assert not inner & {s.dim for g in plan.groups() for s in g.slices}


def test_where_one_index_is_too_much_slices_are_blocks_of_another_dim() -> None:
    plan = decide(parse(SOFTMAX.format(h=12, k=64, n=64, s=1024, t=1024)), V4)
    (repeat,) = repeats(plan)
    (inner,) = repeat.steps
    assert isinstance(inner, Repeat)
    assert (repeat.trips, inner.trips) == (12, 16)
    assert slices_of(plan) == [{"h": (1, 0), "s": (64, 0)}] * len(slices_of(plan))
    assert plan.places["m"].bytes == 64 * 1024 * 4


def test_chains_go_on_beyond_what_could_take_turns() -> None:
    """The first two kernels could take turns over h, and slices of h would hold them, too."""
    plan = decide(parse(PRODUCTS.replace(SIZES, "h = 12, k = 64, n = 64, s = 1024, t = 1024")), V4)
    assert plan.assignment is not None
    (slicing,) = plan.assignment.slices
    assert slicing.kernels == ("q.packed", "scores", "y")
    assert (slicing.dims, slicing.size) == (("h", "s"), 64)


def test_threads_share_whole_slices_evenly() -> None:
    """A slice more, of an index less, leaves no thread without one."""
    graph, machine = parse(PRODUCTS.replace("h = 6", "h = 56")), replace(V4, l2=32 << 10)
    (slicing,) = decide(graph, machine.alone()).assignment.slices
    assert (slicing.dims, slicing.size) == (("h",), 8)
    (slicing,) = decide(graph, machine).assignment.slices
    assert (slicing.dims, slicing.size) == (("h",), 7)


def test_blocks_of_another_dim_compute_the_same(tmp_path: Path) -> None:
    text = PRODUCTS.replace("s = 16", "s = 48")
    plan = check(text, tmp_path, "slices {h, s} by 16: %scores .. %y")
    (repeat,) = repeats(plan)
    (inner,) = repeat.steps
    assert isinstance(inner, Repeat)
    assert (repeat.trips, inner.trips) == (6, 3)


def test_what_blocks_leave_over_is_a_repeat_of_its_own(tmp_path: Path) -> None:
    text = PRODUCTS.replace("s = 16", "s = 37")
    plan = check(text, tmp_path, "slices {h, s} by 13: %scores .. %y")
    whole, rest = repeats(plan)
    assert whole.parts == rest.parts == ("y",)
    assert {d["s"] for d in slices_of(plan)} == {(13, 0), (11, 26)}
    assert plan.places["scores"].bytes == 13 * 16 * 4


def test_vectors_are_cut_at_lines(tmp_path: Path) -> None:
    text = PRODUCTS.replace("h = 6", "h = 1").replace("s = 16", "s = 80")
    text = text.replace('"q" [h, s, k]', '"q" [h, k, s]')
    plan = check(text, tmp_path, "slices {s} by 16: %scores .. %y")
    inner = {plan.layouts[v].axes[-1].dim for g in plan.groups() for v in g.stored}
    assert "s" in inner
    assert {d["s"] for d in slices_of(plan)} == {(16, 0)}
    with pytest.raises(Illegal, match="a slice ends within a line of memory"):
        assigned(text, "slices {s} by 20: %scores .. %y")


@pytest.mark.parametrize(
    ("h", "s", "t", "k", "n"),
    [
        (1, 70, 12, 3, 5),
        (2, 33, 17, 4, 1),
        (2, 37, 10, 2, 17),
        (2, 16, 50, 4, 4),
        (3, 32, 9, 1, 4),
    ],
)
def test_softmax_between_products_in_blocks(
    h: int, s: int, t: int, k: int, n: int, tmp_path: Path
) -> None:
    text = SOFTMAX.format(h=h, s=s, t=t, k=k, n=n)
    rng = np.random.default_rng(0)
    shapes = {"q": (h, s, k), "r": (h, t, k), "v": (h, t, n), "mask": (s, t)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    line = f"slices {{{'h, s' if h > 1 else 's'}}} by 16: %p .. %y"
    plan = check(text, tmp_path, line, inputs=inputs)
    assert in_part(plan, "m")
    # What one row holds stays in that row.
    inputs["q"][0, 0] = np.nan
    inputs["mask"][s // 2] = -np.inf
    inputs["mask"][-1, : t // 2] = -np.inf
    inputs["v"][0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        check(text, tmp_path, line, inputs=inputs)


SYMBOLIC = SOFTMAX.replace("dims h", "symbols batch = 1..3, m = 1..50, rows = 1..70\ndims h")


@pytest.mark.parametrize(
    ("s", "t"), [(1, 1), (16, 7), (17, 16), (32, 50), (33, 2), (47, 9), (70, 13)]
)
def test_slices_of_a_dim_of_any_size(s: int, t: int, tmp_path: Path) -> None:
    """Blocks have one size, and the last one does some rows again."""
    rng = np.random.default_rng(0)
    shapes = {"q": (4, s, 3), "r": (4, t, 3), "v": (4, t, 5), "mask": (s, t)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    text = SYMBOLIC.replace("batch = 1..3, ", "").format(h=4, s="rows", t="m", k=3, n=5)
    plan = check(text, tmp_path, "slices {h, s} by 16: %p .. %y", inputs=inputs)
    assert in_part(plan, "e")
    assert all(isinstance(s.end, Index) for g in plan.groups() for s in g.slices if s.dim == "s")


def test_slices_of_nothing_take_no_memory() -> None:
    text = SYMBOLIC.replace("batch = 1..3, ", "").replace("rows = 1", "rows = 0")
    text = text.format(h=4, s="rows", t="m", k=3, n=5)
    plan = assigned(text, "slices {h, s} by 16: %p .. %y")
    sliced = [s for g in plan.groups() for s in g.slices if s.dim == "s"]
    assert sliced
    assert all(Index.of(s.size).evaluate({"rows": 0, "m": 1}) == 0 for s in sliced)
    assert Index.of(plan.arena_bytes).evaluate({"rows": 0, "m": 1}) >= 0


@pytest.mark.parametrize(("b", "s"), [(1, 20), (2, 33), (3, 70)])
def test_slices_of_one_index_of_two_dims_and_a_block_of_a_third(
    b: int, s: int, tmp_path: Path
) -> None:
    text = SYMBOLIC.replace("m = 1..50, ", "").format(h=4, s="rows", t="rows", k=3, n=5)
    text = text.replace("\ndims h", "\ndims b = batch, h")
    for old in ("f32{h", "[h"):
        text = text.replace(old, old.replace("h", "b,h" if "{" in old else "b, h"))
    rng = np.random.default_rng(0)
    shapes = {"q": (b, 4, s, 3), "r": (b, 4, s, 3), "v": (b, 4, s, 5), "mask": (s, s)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    plan = check(text, tmp_path, "slices {b, h, s} by 16: %p .. %y", inputs=inputs)
    assert in_part(plan, "e")
    assert {len(g.slices) for g in plan.groups() if g.slices} == {3}


def test_slices_of_one_index_of_a_dim_of_any_size(tmp_path: Path) -> None:
    """The last dim is cut as the outer one is, one index at a time."""
    text = SYMBOLIC.replace("batch = 1..3, ", "").format(h=4, s="rows", t="m", k=3, n=5)
    shapes = {"q": (4, 17, 3), "r": (4, 7, 3), "v": (4, 7, 5), "mask": (17, 7)}
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    plan = check(text, tmp_path, "slices {h, s} by 1: %p .. %y", inputs=inputs)
    assert in_part(plan, "e")
    assert {(s.size, s.end is None) for g in plan.groups() for s in g.slices if s.dim == "h"} == {
        (1, True)
    }
    assert {s.size for g in plan.groups() for s in g.slices if s.dim == "s"} == {1}


@pytest.mark.parametrize("s", range(1, 10))
def test_what_slices_pass_on_has_room_for_any_number_of_rows(s: int, tmp_path: Path) -> None:
    """Code for each number of rows of a tile comes first to what passes between the kernels."""
    text = """
    graph "heads side by side"
    symbols s = 1..9
    dims h = 2, k = 8, n = 4, s_i = s, t = 5
    %a : f32{h,s_i,t} = input "a" [h, s_i, t]
    %b : f32{h,n,t} = input "b" [h, t, n]
    %p : f32{h,n,s_i} = sum{t} %a[h, s_i, t] * %b[h, n, t]
    %y : f32{k,s_i} = abs(%p[h=k // 4, n=k % 4, s_i])
    output "y" [k, s_i] = %y
    """
    rng = np.random.default_rng(0)
    shapes = {"a": (2, s, 5), "b": (2, 5, 4)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    plan = check(text, tmp_path, "slices {h} by 1: %p .. %y", machine=V3, inputs=inputs)
    assert in_part(plan, "p")


@pytest.mark.parametrize("n", [65, 66, 96, 97, 300])
def test_slices_of_a_dim_of_any_size_that_is_read_several_times(n: int, tmp_path: Path) -> None:
    """The last slice begins early, so that places in it are no remainders."""
    text = """
    graph "upsampled"
    symbols n = 65..300
    dims c = 16, d = 16, t = n, z = 2*n
    %x : f32{c,t} = input "x" [t, c]
    %w : f32{c,d} = input "w" [c, d]
    %sums : f32{d,t} = sum{c} %x[c, t] * %w[c, d]
    %y : f32{d,z} = abs(%sums[d, t=z // 2])
    output "y" [z, d] = %y
    """
    rng = np.random.default_rng(0)
    shapes = {"x": (n, 16), "w": (16, 16)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    line = "slices {t} by 13: %sums .. %y"
    assert in_part(check(text, tmp_path, line, inputs=inputs), "sums")


IMAGES = """
graph "two kernels over images of any size"
symbols h = 1..40, w = 1..40
dims c = 16, d = 16, kx = 3, ky = 3, x = w, x2 = w, y = h, y2 = h
%x : f32{c,x,y} = input "x" [y, x, c]
%w : f32{c,d} = input "w" [c, d]
%p : f32{c,x2,y2} = sum{kx,ky} %x[c, x=x2 + kx - 1, y=y2 + ky - 1 else 0.0]
%z : f32{d,x2,y2} = sum{c} %p[c, x2, y2] * %w[c, d]
output "z" [y2, x2, d] = %z
"""


def test_a_run_tells_how_long_slices_are() -> None:
    """As many rows as take no more than they may, but some slices; one row if that is too much."""
    machine = replace(V4, l2=8 << 10)
    plan = decide(parse(IMAGES), machine)
    assert plan.assignment is not None
    (slicing,) = plan.assignment.slices
    within = int(machine.coefficients.slices.ring * machine.l2)
    assert (slicing.dims, slicing.within) == (("y2",), within)
    assert in_part(plan, "p")
    (repeat,) = repeats(plan)
    (size,) = {s.size for g in plan.groups() for s in g.slices}
    for h, w in ((1, 1), (9, 8), (32, 32), (40, 40), (40, 1), (2, 40)):
        sizes = {"h": h, "w": w}
        rows, trips = (int(Index.of(n).evaluate(sizes)) for n in (size, repeat.trips))
        assert (trips - 1) * rows < h <= trips * rows
        assert trips >= min(FEWEST_SLICES, h)
        assert rows == 1 or rows * w * 16 * 4 <= within
    bounds = Index.of(plan.places["p"].bytes).bounds({"h": (1, 40), "w": (1, 40)})
    assert bounds is not None
    assert bounds[1] <= within


@pytest.mark.parametrize(("h", "w"), [(1, 1), (3, 20), (7, 13), (6, 40), (33, 5), (9, 24)])
def test_slices_that_a_run_makes_longer_compute_the_same(h: int, w: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (h, w, 16), "w": (16, 16)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    machine = replace(V3, l2=8 << 10)
    assert in_part(check(IMAGES, tmp_path, machine=machine, inputs=inputs), "p")


@pytest.mark.parametrize("h", [0, 1, 7, 33])
def test_slices_of_images_whose_size_the_program_computes(h: int, tmp_path: Path) -> None:
    """What the last kernel stores has its memory before the chain begins."""
    text = """
    graph "two kernels over as many rows as the program tells, and one that reads other rows"
    symbols h = 0..40, w = 1..40
    dims c = 16, d = 16, kx = 3, ky = 3, x = w, x2 = w, y = 40, y2 = h
    %x : f32{c,x,y} = input "x" [y, x, c]
    %w : f32{c,d} = input "w" [c, d]
    %n : i64{} = input "n" []
    %size : i64{} = bind h = %n
    %p : f32{c,x2,y2} = sum{kx,ky} %x[c, x=x2 + kx - 1, y=y2 + ky - 1 else 0.0]
    %z : f32{d,x2,y2} = sum{c} %p[c, x2, y2] * %w[c, d]
    %r : f32{d,x2,y2} = abs(%z[d, x2, y2=h - y2 - 1])
    output "r" [y2, x2, d] = %r
    """
    rng = np.random.default_rng(0)
    shapes = {"x": (40, 20, 16), "w": (16, 16)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    inputs["n"] = np.array(h, np.int64)
    machine = replace(V3, l2=8 << 10)
    plan = check(text, tmp_path, machine=machine, inputs=inputs)
    assert in_part(plan, "p")


def test_slices_of_images_without_pixels() -> None:
    text = IMAGES.replace("1..40", "0..40")
    plan = decide(parse(text), replace(V4, l2=8 << 10))
    sliced = [s for g in plan.groups() for s in g.slices]
    assert sliced
    for h, w in ((0, 0), (0, 7), (7, 0)):
        for s in sliced:
            assert Index.of(s.size).evaluate({"h": h, "w": w}) >= 0
    for r in repeats(plan):
        assert Index.of(r.trips).evaluate({"h": 0, "w": 3}) == 0


def test_a_thread_has_room_for_one_index_of_any_size(tmp_path: Path) -> None:
    """Scratch grows with the rows of a run where they may be of any length, and serves others."""
    text = IMAGES.replace("1..40", "0..2147483647").replace(
        'output "z" [y2, x2, d] = %z',
        '%u : f32{c,d} = input "u" [d, c]\n'
        "%y : f32{c,x2,y2} = sum{d} %z[d, x2, y2] * %u[c, d]\n"
        'output "y" [y2, x2, c] = %y',
    )
    graph = parse(text)
    verify(graph)
    plan = decide(graph, replace(V3, l2=32 << 10))
    assert in_part(plan, "p")
    assert in_part(plan, "z")
    library = build(plan, target_named("native").machine, tmp_path)
    rng = np.random.default_rng(0)
    w, u = (rng.standard_normal((16, 16)).astype(np.float32) for _ in "wu")
    long = MOST_KNOWN_BYTES // 64 + 5
    for threads in (1, 2):
        with InferenceSession(library, threads=threads) as session:
            for rows, columns in ((3, 5), (2, long), (5, 13), (0, 7), (7, 0), (13, 97), (1, long)):
                x = rng.standard_normal((rows, columns, 16)).astype(np.float32)
                (got,) = session.run(None, {"x": x, "w": w, "u": u})
                padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
                parts = [padded[a : a + rows, b : b + columns] for a in range(3) for b in range(3)]
                assert_agree("y", got, sum(parts) @ w @ u, exact=False, reduction=64)


def test_what_each_slice_reads_again_stays_near_where_there_are_few() -> None:
    """One slice is one thread's work: the least sizes must not leave it all of large weights."""
    machine = replace(V4, l2=8 << 10)
    text = IMAGES.replace("d = 16", "d = 1024")
    assert not repeats(decide(parse(text), machine))


def test_chains_of_dims_of_any_size_pay_at_common_sizes() -> None:
    """The values may be larger than the second cache, but commonly are not."""
    text = SYMBOLIC.replace("batch = 1..3, m = 1..50, ", "")
    text = text.format(h=64, s="rows", t=64, k=3, n=5)
    large, small = (text.replace("1..70", sizes) for sizes in ("1..640", "1..640@8"))
    machine = replace(V4, l2=160 << 10)
    assert repeats(decide(parse(large), machine))
    assert not repeats(decide(parse(small), machine))


@pytest.mark.parametrize("w", [1, 7, 8, 13, 40])
def test_windows_over_parts_of_a_row_of_any_length(w: int, tmp_path: Path) -> None:
    text = """
    graph "windows, and products of what they give"
    symbols w = 1..50
    dims c = 16, d = 16, y = 6, x = w, p = 6, q = w, ky = 5, kx = 5
    %v : f32{c,p,q} = input "v" [p, q, c]
    %k : f32{c,kx,ky} = input "k" [ky, kx, c]
    %m : f32{c,d} = input "m" [c, d]
    %s : f32{c,x,y} = sum{ky,kx} %v[c, p=y+ky-2, q=x+kx-2 else 0.0] * %k[c, kx, ky]
    %z : f32{d,x,y} = sum{c} %s[c, x, y] * %m[c, d]
    output "z" [y, x, d] = %z
    """
    inputs = random_inputs(parse(text), 0, {"w": w})
    plan = check(text, tmp_path, "slices {y, x} by 8: %s .. %z", machine=V3, inputs=inputs)
    assert in_part(plan, "s")


def test_of_chains_that_save_as_much_the_slices_of_one_share_least() -> None:
    """One head's keys and values stay near for any number of them, all heads' do not."""
    text = """
    graph "attention to any number of keys"
    symbols batch = 0..1000@1, rows = 0..512
    dims b = batch, h = 12, k = 32, n = 32, s = rows, t = rows
    %q : f32{b,h,k,s} = input "q" [b, s, h, k]
    %r : f32{b,h,k,t} = input "r" [b, h, k, t]
    %v : f32{b,h,n,t} = input "v" [b, t, h, n]
    %mask : f32{b,s,t} = input "mask" [b, s, t]
    %p : f32{b,h,s,t} = sum{k} %q[b, h, k, s] * %r[b, h, k, t]
    %m : f32{b,h,s,t} = %p[b, h, s, t] + %mask[b, s, t]
    %a : f32{b,h,s} = max{t} %m[b, h, s, t]
    %e : f32{b,h,s,t} = exp(%m[b, h, s, t] - %a[b, h, s])
    %z : f32{b,h,s} = sum{t} %e[b, h, s, t]
    %w : f32{b,h,s,t} = %e[b, h, s, t] / %z[b, h, s]
    %u : f32{b,h,n,s} = sum{t} %w[b, h, s, t] * %v[b, h, n, t]
    output "u" [b, h, s, n] = %u
    """
    (slicing,) = decide(parse(text), replace(V3, l2=512 << 10)).assignment.slices
    assert slicing.dims == ("b", "h", "s")


def test_heads_are_slices_however_few_queries_there_are() -> None:
    """Slices of a few queries each would fill a part of a vector, and read all keys again."""
    head = """
    graph "attention of a few queries to many keys"
    symbols batch = 0..1000@1, few = 0..2147483648, many = 0..2147483648
    dims b = batch, h = 6, k = 64, n = 64, s = few, t = many
    """
    text = f'{head}{HEADS}output "u" [b, s, h, n] = %u\n'
    (slicing,) = decide(parse(text), replace(V3, l2=1 << 20)).assignment.slices
    assert slicing.dims == ("b", "h", "s")


SHARED = """
graph "heads of queries that share keys and values"
symbols few = 1..512, many = 1..2558@640
dims g = 4, h = 3, k = 64, n = 64, s = few, t = many
%q : f32{g,h,k,s} = input "q" [s, g, h, k]
%r : f32{g,k,t} = input "r" [g, t, k]
%v : f32{g,n,t} = input "v" [g, t, n]
%p : f32{g,h,s,t} = sum{k} %q[g, h, k, s] * %r[g, k, t]
%a : f32{g,h,s} = max{t} %p[g, h, s, t]
%e : f32{g,h,s,t} = exp(%p[g, h, s, t] - %a[g, h, s])
%z : f32{g,h,s} = sum{t} %e[g, h, s, t]
%w : f32{g,h,s,t} = %e[g, h, s, t] / %z[g, h, s]
%u : f32{g,h,n,s} = sum{t} %w[g, h, s, t] * %v[g, n, t]
output "u" [s, g, h, n] = %u
"""


def test_a_slice_has_all_heads_that_share_values() -> None:
    """Slices of one head each would read the values of all tokens again, also for one query."""
    (slicing,) = decide(parse(SHARED), replace(V4, l2=1 << 20)).assignment.slices
    assert slicing.dims == ("g", "s")


@pytest.mark.parametrize(("few", "many"), [(1, 1), (1, 71), (5, 38)])
@pytest.mark.parametrize("machine", [V3, V4], ids=lambda m: m.name)
def test_heads_that_share_values_compute_the_same(
    few: int, many: int, machine: Machine, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"q": (few, 4, 3, 64), "r": (4, many, 64), "v": (4, many, 64)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    inputs["v"][2, many // 2, 5] = np.nan
    inputs["v"][1, many // 2, 7] = np.inf
    check(SHARED, tmp_path, machine=machine, inputs=inputs)


BATCH = """
graph "two products of each pixel of any number of images"
symbols batch = 0..2147483648@1
dims b = batch, c = 64, d = 64, e = 64, x = 56, y = 16
%x : f32{b,c,x,y} = input "x" [b, y, x, c]
%v : f32{c,d} = const [c, d] %WEIGHTS%
%w : f32{d,e} = const [d, e] %WEIGHTS%
%s : f32{b,d,x,y} = sum{c} %x[b, c, x, y] * %v[c, d]
%u : f32{b,e,x,y} = sum{d} %s[b, d, x, y] * %w[d, e]
output "u" [b, y, x, e] = %u
""".replace("%WEIGHTS%", str((np.arange(64 * 64).reshape(64, 64) % 7 - 3).tolist()))
"""An image is too much for the second cache, and so is a pixel of all images that there may be."""


@pytest.mark.parametrize("b", [0, 1, 3, 70])
def test_slices_are_parts_of_an_image_however_many_images_there_are(b: int, tmp_path: Path) -> None:
    """Slices of a pixel of all images would use what they load of the weights once for an image."""
    graph = parse(BATCH)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.integers(-3, 4, (b, 16, 56, 64)).astype(np.float32)}
    plan = decide(graph, replace(V4, l2=64 << 10))
    assert plan.assignment is not None
    (slicing,) = plan.assignment.slices
    assert (slicing.dims, slicing.size) == (("b", "x"), 14)
    library = build(plan, target_named("native").machine, tmp_path)
    wanted = interpret(graph, inputs)["u"]
    for threads in (1, 2):
        got = run(library, inputs, threads)["u"]
        assert_agree("u", got, wanted, exact=False, reduction=64)


def test_blocks_of_few_indices_have_many_rows() -> None:
    """What a row of pixels loads of the weights is used as often as by a block of queries."""
    text = BATCH.replace("symbols batch = 0..2147483648@1\n", "").replace("b = batch", "b = 8")
    (slicing,) = decide(parse(text), replace(V4, l2=64 << 10)).assignment.slices
    assert len(slicing.dims) == 2
    text = text.replace("x = 56", "x = 2").replace("y = 16", "y = 60").replace("b = 8", "b = 64")
    (slicing,) = decide(parse(text), replace(V4, l2=32 << 10)).assignment.slices
    assert slicing.dims == ("x", "y")


PIXELS = """
graph "two products of each pixel"
dims y = 8, x = {x}, c = 16, d = 64, e = 16
%i : f32{{c,x,y}} = input "i" [y, x, c]
%v : f32{{c,d}} = input "v" [c, d]
%w : f32{{d,e}} = input "w" [d, e]
%a : f32{{d,x,y}} = sum{{c}} %i[c, x, y] * %v[c, d]
%b : f32{{e,x,y}} = sum{{d}} %a[d, x, y] * %w[d, e]
output "b" [y, x, e] = %b
"""


@pytest.mark.parametrize("x", [40, 37])
def test_an_index_that_is_too_much_is_cut_into_few_rows(x: int, tmp_path: Path) -> None:
    """What all of them read again stays near, and what a whole index passes on does not."""
    machine = replace(V4, l2=14 << 10)
    plan = check(PIXELS.format(x=x), tmp_path, machine=machine)
    (slicing,) = plan.assignment.slices
    assert slicing.dims == ("y", "x")
    assert slicing.size * 64 * 4 <= 0.625 * machine.l2


def test_a_chain_that_begins_later_goes_first_where_it_is_cut_into_blocks_or_saves_more() -> None:
    first, second, third = (Member(n, Group(f"g{n}", (), (), ()), ("h",), (1,)) for n in range(3))
    crowded = Chain((first, second, third), 1, None, 10.0, 0.0, False, True)
    roomy = replace(crowded, crowded=False)
    later = Chain((second, third), 16, None, 5.0, 0.0, True, False)
    assert crowded.gives_way_to(later)
    assert not roomy.gives_way_to(later)
    assert not crowded.gives_way_to(replace(later, blocks=False))
    assert not crowded.gives_way_to(replace(later, members=(second,)))
    assert roomy.gives_way_to(replace(later, gain=11.0))
    assert not crowded.gives_way_to(None)


def test_a_slice_of_tiles_is_a_longer_slice_of_outputs(tmp_path: Path) -> None:
    plan = check(TILES, tmp_path, "slices {t} by 3: %sums .. %y")
    (repeat,) = repeats(plan)
    sizes = {s.dim: s.size for g in plan.groups() for s in g.slices}
    assert sizes == {"t": 3, "z": 9}
    assert repeat.parts == ("y",)


def test_a_value_that_others_read_stays_whole() -> None:
    text = PRODUCTS.replace("output", 'output "scores" [h, s, t] = %scores\noutput')
    with pytest.raises(Illegal, match="nothing is passed between these kernels alone"):
        assigned(text, "slices {h} by 1: %scores .. %y")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%scores[h, s, t] * %v", "%scores[h, s=15 - s, t] * %scores[h=0, s, t] * %v"),
        ("%scores[h, s, t] * %v", "%scores[h=5 - h, s=15 - s, t] * %v"),
    ],
    ids=["the first slice again", "backwards"],
)
def test_reads_of_other_slices_make_no_chain(old: str, new: str) -> None:
    text = PRODUCTS.replace(old, new)
    assert not in_part(decide(parse(text), SMALL), "scores")
    with pytest.raises(Illegal, match="the kernel of %y reads other slices than its own"):
        assigned(text, "slices {h} by 1: %scores .. %y")


def test_what_fits_stays_whole() -> None:
    assert not repeats(decide(parse(PRODUCTS), V4))
    assert repeats(decide(parse(PRODUCTS), SMALL))


def test_reading_much_again_does_not_pay() -> None:
    """Each slice reads all of %r and %v: little, then more than the second cache holds."""
    text = PRODUCTS.replace("%r[h, k, t]", "%r[k, t]").replace("%v[h, n, t]", "%v[n, t]")
    text = text.replace("f32{h,k,t}", "f32{k,t}").replace("f32{h,n,t}", "f32{n,t}")
    text = text.replace('"r" [h, t, k]', '"r" [t, k]').replace('"v" [h, t, n]', '"v" [t, n]')
    assert repeats(decide(parse(text), SMALL))
    assert not repeats(decide(parse(text.replace("n = 16", "n = 160")), SMALL))


@pytest.mark.parametrize("h", [1, 3, 8])
def test_a_single_slice_of_symbolic_size(h: int, tmp_path: Path) -> None:
    """No kernel asks which of the slices it is: there is one."""
    text = IMAGES.replace("1..40", "1..8")
    rng = np.random.default_rng(0)
    shapes = {"x": (h, 5, 16), "w": (16, 16)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    plan = check(text, tmp_path, "slices {y2} by 8: %p, %z", inputs=inputs, machine=V3)
    (repeat,) = repeats(plan)
    assert Index.of(repeat.trips).bounds({"h": (1, 8), "w": (1, 8)}) == (1, 1)
