"""What becomes of windows of bytes: written out, or multiplied in groups."""

from dataclasses import replace

from rutc.emit.targets import x86
from rutc.tensor_ir import Nest
from rutc.tensor_ir.kernel import Kind, Loop, walk_stmts
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.steps import apply_schedule
from rutc.tuner import choose

DEPTHWISE = """
graph "bytes"
dims c = 24, y = 14, x = 14, p = 16, q = 16, ky = 3, kx = 3
%v : u8{c,p,q} = input "v" [c, p, q]
%w : i8{c,kx,ky} = input "w" [c, ky, kx]
%o : i32{c,x,y} = sum{ky,kx} i32(%v[c, p=y+ky, q=x+kx]) * i32(%w[c, kx, ky])
%r : u8{c,x,y} = u8(min(max(%o[c, x, y], 0), 255))
output "r" [c, y, x] = %r
"""


def loops_of(machine: Machine, text: str = DEPTHWISE) -> list[Loop]:
    """The loops of a depthwise convolution of bytes."""
    graph = parse(text)
    orders = {"v": "cpq", "w": ("c", "ky", "kx"), "r": "cyx"}
    layouts = {v: dense(tuple(d), graph.extents) for v, d in orders.items()}
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("g", nests, ("c", "y", "x"), ("r",))
    kernel = lower(group, graph.values, layouts, graph.extents)
    made = apply_schedule(kernel, choose(kernel, machine, frozenset({"w"})).schedule)
    return [s for s in walk_stmts(made.body) if isinstance(s, Loop)]


def test_windows_of_bytes_are_written_out_where_no_instruction_adds_products() -> None:
    """Of which no vector has idle lanes without registers for masks."""
    loops = loops_of(x86.avx2())
    assert {x.kind for x in loops if x.var in ("kx", "ky")} == {Kind.UNROLL}
    assert {(x.hi - x.lo).const for x in loops if x.kind is Kind.VECTOR} == {8}


def test_neighbours_are_multiplied_together_where_an_instruction_adds_them() -> None:
    with_vnni = replace(x86.avx2(), features=x86.avx2().features | {"avxvnni"})
    assert any(x.kind is Kind.DOT for x in loops_of(with_vnni))
    apart = DEPTHWISE.replace("p = 16, q = 16", "p = 29, q = 29")
    apart = apart.replace("p=y+ky, q=x+kx", "p=2*y+ky, q=2*x+kx")
    assert any(x.kind is Kind.DOT for x in loops_of(x86.avx2(), apart))


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
    loops = [s for s in walk_stmts(made.body) if isinstance(s, Loop)]
    assert {s.kind for s in loops if s.var in ("kx", "ky")} == {Kind.UNROLL}
    assert {s.kind for s in loops if s.var == "x.i"} == {Kind.UNROLL}
