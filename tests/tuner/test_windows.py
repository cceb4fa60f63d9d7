"""What becomes of windows of bytes: written out, or multiplied in groups."""

from dataclasses import replace

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir import Nest
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.kernel import Kind, Loop
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import Pack, PrefetchBlock, apply_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces

DEPTHWISE = """
graph "bytes"
dims c = 24, y = 14, x = 14, p = 16, q = 16, ky = 3, kx = 3
%v : u8{c,p,q} = input "v" [c, p, q]
%w : i8{c,kx,ky} = input "w" [c, ky, kx]
%o : i32{c,x,y} = sum{ky,kx} i32(%v[c, p=y+ky, q=x+kx]) * i32(%w[c, kx, ky])
%r : u8{c,x,y} = u8(min(max(%o[c, x, y], 0), 255))
output "r" [c, y, x] = %r
"""


def loops_of(machine: Machine, text: str = DEPTHWISE, order: str = "cpq") -> list[Loop]:
    """The loops of a depthwise convolution, of bytes or what a text says."""
    graph = parse(text)
    result = order.replace("p", "y").replace("q", "x")
    orders = {"v": order, "w": ("c", "ky", "kx"), "r": result}
    layouts = {v: dense(tuple(d), graph.extents) for v, d in orders.items()}
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("g", nests, tuple(result), ("r",))
    kernel = lower(group, graph.values, layouts, graph.extents)
    made = apply_schedule(kernel, choose(kernel, machine, frozenset({"w"})).schedule)
    return list(walk_loops(made.body))


WITH_VNNI = replace(x86.avx2(), features=x86.avx2().features | {"avxvnni"})
SORTING = x86.with_costs(
    replace(x86.avx512(), features=x86.avx512().features | {"avx512vnni"}), "znver4"
)
"""To sort the elements of a vector takes time there."""


@pytest.mark.parametrize("machine", [x86.avx2(), WITH_VNNI], ids=["avx2", "vnni"])
def test_windows_of_bytes_are_written_out_where_lanes_are_neighbours(machine: Machine) -> None:
    """Of which no vector has idle lanes without registers for masks."""
    loops = loops_of(machine)
    assert {x.kind for x in loops if x.var in ("kx", "ky")} == {Kind.UNROLL}
    assert {(x.hi - x.lo).const for x in loops if x.kind is Kind.VECTOR} == {8}


@pytest.mark.parametrize(
    "machine", [x86.avx2(), WITH_VNNI, SORTING], ids=["avx2", "vnni", "sorting"]
)
def test_neighbours_are_multiplied_together_where_lanes_lie_apart(machine: Machine) -> None:
    """And lanes lie along rows, whose groups are loaded at once, not across channels."""
    apart = DEPTHWISE.replace("y = 14, x = 14, p = 16, q = 16", "y = 7, x = 7, p = 15, q = 15")
    apart = apart.replace("p=y+ky, q=x+kx", "p=2*y+ky, q=2*x+kx")
    loops = loops_of(machine, apart)
    assert any(x.kind is Kind.DOT for x in loops)
    assert all(x.var.startswith("x") for x in loops if x.kind is Kind.VECTOR)


def test_windows_over_a_single_row_are_written_out_too() -> None:
    """As those of a slice of one row are: rows of a tile lie along the other dim."""
    text = """
    graph "a row"
    dims c = 24, y = 1, x = 40, p = 5, q = 44, ky = 5, kx = 5
    %v : f32{c,p,q} = input "v" [p, q, c]
    %w : f32{c,kx,ky} = input "w" [ky, kx, c]
    %r : f32{c,x,y} = sum{ky,kx} %v[c, p=y+ky, q=x+kx] * %w[c, kx, ky]
    output "r" [y, x, c] = %r
    """
    graph = parse(text)
    orders = {"v": "pqc", "w": ("ky", "kx", "c"), "r": "yxc"}
    layouts = {v: dense(tuple(d), graph.extents) for v, d in orders.items()}
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    kernel = lower(Group("g", nests, ("y", "x", "c"), ("r",)), graph.values, layouts, graph.extents)
    made = apply_schedule(kernel, choose(kernel, x86.avx2(), frozenset({"w"})).schedule)
    loops = list(walk_loops(made.body))
    assert {s.kind for s in loops if s.var in ("kx", "ky")} == {Kind.UNROLL}
    assert {s.kind for s in loops if s.var == "x.i"} == {Kind.UNROLL}


@pytest.mark.parametrize(
    ("machine", "step", "asked"),
    [(x86.avx512(), 2, False), (x86.avx512(), 1, True), (x86.avx2(), 2, True)],
    ids=["halves of rows", "rows below each other", "short pieces"],
)
def test_rows_that_are_read_one_after_the_other_are_not_asked_for(
    machine: Machine, step: int, asked: bool
) -> None:
    text = f"""
    graph "pixels apart"
    dims c = 96, y = 56, x = 56, p = {56 * step + 2}, q = {56 * step + 2}, ky = 3, kx = 3
    %v : f32{{c,p,q}} = input "v" [c, p, q]
    %w : f32{{c,kx,ky}} = input "w" [c, ky, kx]
    %r : f32{{c,x,y}} = sum{{ky,kx}} %v[c, p={step}*y+ky, q={step}*x+kx] * %w[c, kx, ky]
    output "r" [c, y, x] = %r
    """
    graph = parse(text)
    extents = {d: plain(e) for d, e in graph.extents.items()}
    orders = {"v": "cpq", "w": ("c", "ky", "kx"), "r": "cyx"}
    layouts = {v: dense(tuple(d), extents) for v, d in orders.items()}
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    kernel = lower(Group("g", nests, ("c", "y", "x"), ("r",)), graph.values, layouts, extents)
    steps = choose(kernel, machine, frozenset({"w"})).schedule
    assert any(isinstance(s, PrefetchBlock) for s in steps) == asked


@pytest.mark.parametrize("images", [1, 4])
def test_the_next_image_is_asked_for_where_there_is_one(images: int) -> None:
    """A slice of a batch may be one image: what lies behind it is no part of the slice."""
    text = f"""
    graph "images"
    dims n = {images}, c = 256, y = 32, x = 32, p = 34, q = 34, ky = 3, kx = 3
    %v : f32{{n,c,p,q}} = input "v" [n, p, q, c]
    %w : f32{{c,kx,ky}} = input "w" [ky, kx, c]
    %r : f32{{n,c,x,y}} = sum{{ky,kx}} %v[n, c, p=y+ky, q=x+kx] * %w[c, kx, ky]
    output "r" [n, y, x, c] = %r
    """
    graph = parse(text)
    extents = {d: plain(e) for d, e in graph.extents.items()}
    orders = {"v": "npqc", "w": ("ky", "kx", "c"), "r": "nyxc"}
    layouts = {v: dense(tuple(d), extents) for v, d in orders.items()}
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    kernel = lower(Group("g", nests, tuple("nyxc"), ("r",)), graph.values, layouts, extents)
    steps = choose(kernel, x86.avx512(), frozenset({"w"})).schedule
    assert any(isinstance(s, PrefetchBlock) for s in steps) == (images > 1)


@pytest.mark.parametrize(
    ("machine", "taps", "order", "vectors"),
    [
        (x86.avx512(), 7, "cpq", {4}),
        (x86.avx512(), 3, "cpq", {1}),
        (x86.avx2(), 7, "cpq", {1}),
        (x86.avx512(), 7, "pqc", {1}),
    ],
    ids=["few rows", "many rows", "few registers", "weights of each lane"],
)
def test_few_rows_of_long_windows_have_several_vectors(
    machine: Machine, taps: int, order: str, vectors: set[int]
) -> None:
    """Products of few sums would wait for each other; more sums take registers."""
    text = f"""
    graph "long windows"
    dims c = 96, y = 56, x = 56, p = {55 + taps}, q = {55 + taps}, ky = {taps}, kx = {taps}
    %v : f32{{c,p,q}} = input "v" [c, p, q]
    %w : f32{{c,kx,ky}} = input "w" [c, ky, kx]
    %r : f32{{c,x,y}} = sum{{ky,kx}} %v[c, p=y+ky, q=x+kx] * %w[c, kx, ky]
    output "r" [c, y, x] = %r
    """
    loops = loops_of(machine, text, order)
    lanes = {(s.hi - s.lo).const for s in loops if s.kind is Kind.VECTOR}
    assert {-(-n // machine.width) for n in lanes} == vectors


@pytest.mark.parametrize(("page", "innermost"), [(4 << 10, True), (1 << 20, False)])
def test_pixels_far_from_each_other_are_read_whole(page: int, *, innermost: bool) -> None:
    """Channels follow one another where the next pixel is farther away than hardware foresees.

    Nearer ones are passed along, a vector of channels at a time, so that windows find in the first
    cache what they have in common, which does not keep the pixels of all channels.
    """
    text = """
    graph "pixels"
    dims c = 384, y = 14, x = 14, p = 16, q = 16, ky = 3, kx = 3
    %v : f32{c,p,q} = input "v" [p, q, c]
    %w : f32{c,kx,ky} = input "w" [c, ky, kx]
    %r : f32{c,x,y} = sum{ky,kx} %v[c, p=y+ky, q=x+kx] * %w[c, kx, ky]
    output "r" [y, x, c] = %r
    """
    loops = loops_of(replace(x86.avx512(), page_bytes=page), text, "pqc")
    around = [s.var for s in loops if s.kind not in (Kind.UNROLL, Kind.VECTOR)]
    assert (around[-1] == "c.o") is innermost


@pytest.mark.parametrize(("size", "rows"), [(7, {7}), (14, {3}), (28, {3})])
def test_small_pictures_are_one_tile_of_long_windows(size: int, rows: set[int]) -> None:
    """Its code is there once: that of a tile with edges, three times."""
    text = f"""
    graph "small pictures"
    dims c = 96, y = {size}, x = {size}, p = {size}, q = {size}, ky = 7, kx = 7
    %v : f32{{c,p,q}} = input "v" [c, p, q]
    %w : f32{{c,kx,ky}} = input "w" [c, ky, kx]
    %r : f32{{c,x,y}} = sum{{ky,kx}} %v[c, p=y+ky-3, q=x+kx-3 else 0.0] * %w[c, kx, ky]
    output "r" [c, y, x] = %r
    """
    loops = [s for s in loops_of(x86.avx512(), text) if s.var in ("y", "y.i")]
    assert {max((s.hi - s.lo).const for s in loops if s.kind is Kind.UNROLL)} == rows


@pytest.mark.parametrize("constant", [True, False])
def test_a_value_that_lies_in_columns_is_not_packed(*, constant: bool) -> None:
    """It lies as a constant would, for registers for matrices, but schedules cannot say how."""
    text = """
    graph "scores"
    dims b = 2, e = 24, h = 3, i = 4, j = 6, k = 8
    %q : bf16{b,e,i} = input "q" [b, i, e]
    %k : bf16{b,h,j,k} = input "k" [h, b, j, k]
    %s : f32{b,h,i,j} = sum{k} f32(%q[b, e=8*h+k, i]) * f32(%k[b, h, j, k])
    output "s" [b, h, i, j] = %s
    """
    graph = parse(text)
    extents = graph.extents
    layouts = {v: dense(tuple(d), extents) for v, d in (("q", "bie"), ("s", "bhij"))}
    layouts["k"] = dense(tuple("hbjk"), extents, blocks={"j": 16, "k": 2})
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("g", nests, ("b", "h", "i", "j"), ("s",))
    kernel = lower(group, graph.values, layouts, extents)
    constants = frozenset({"q"} if constant else ())
    found = [
        {s.buffer for s in space.choice(space.default.point).schedule if isinstance(s, Pack)}
        for machine in (x86.avx2(), x86.avx512())
        for space in spaces(kernel, machine, constants)
        if space.default is not None
    ]
    assert found
    assert all(packed <= constants for packed in found)
    assert any(found) == constant
