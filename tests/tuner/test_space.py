"""The spaces of schedules: their points compute the same, and the default is one of them."""

import re
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.emit.targets import aarch64
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, print_schedule
from rutc.tuner import choose
from rutc.tuner.analysis import analyse
from rutc.tuner.heuristic import TEMPLATES, spaces, usual
from rutc.tuner.space import Space
from rutc.tuner.templates.matrix import MATRIX
from rutc.tuner.templates.pointwise import Form
from rutc.tuner.templates.pointwise_points import POINTWISE
from rutc.tuner.templates.rows import ROWS, Lane
from rutc.tuner.templates.scatter import SCATTER
from rutc.tuner.templates.tiled import Tiling
from rutc.tuner.templates.tilings import TILED
from rutc.tuner.templates.windows import WINDOWS
from tests.examples import examples
from tests.kernels import LONG, Case, cases
from tests.machines import V3, V4, runnable
from tests.tuner import points
from tests.tuner.subjects import (
    AMX,
    MACHINES,
    TEXTS,
    Subject,
    of_case,
    of_text,
    product_of_bytes,
    written,
)
from tests.tuner.test_schedules import PRODUCTS, lowered


def check(subject: Subject, machine: Machine, seed: int) -> set[str]:
    """Runs a point of each space of a kernel and one near it; the names of their templates."""
    rng = Random(seed)
    parts = rng.randint(1, 3) if runnable(machine) else None
    tried: set[str] = set()
    for space in spaces(subject.kernel, machine, subject.free):
        found = space.draw(rng)
        near = None if found is None else space.near(found[0], rng)
        for point in (found, near):
            if point is not None:
                subject.run(point[1], machine, parts)
                tried.add(space.template.name)
    return tried


@pytest.mark.parametrize("name", MACHINES)
@examples(60)
@given(case=cases(lengths=LONG, points=5_000), data=st.data())
def test_all_points_of_random_groups_compute_the_same(
    name: str, case: Case, data: st.DataObject
) -> None:
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = frozenset(data.draw(st.sets(st.sampled_from(reads))) if reads else ())
    check(of_case(case, free), MACHINES[name], data.draw(st.integers(0, 1 << 32)))


EXPECTED = {
    "windows": {"windows", "tiled", "rows"},
    "matrix": {"tiled", "rows"},
    "computed": {"tiled", "rows"},
    "blocks": {"pointwise"},
    "moved": {"pointwise"},
    "chosen": {"pointwise"},
    "running": {"running"},
    "scatter": {"scatter"},
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", MACHINES)
def test_all_points_of_a_kind_compute_the_same(name: str, kind: str) -> None:
    rng = Random(f"{name} {kind}")
    tried: set[str] = set()
    for seed in range(4):
        tried |= check(written(kind, rng), MACHINES[name], seed)
    assert tried == EXPECTED[kind] | _matrices(name, kind)


def _matrices(name: str, kind: str) -> set[str]:
    """The template that only machines with registers for matrices have."""
    return {"matrix"} if name == "amx" and kind in ("matrix", "computed") else set()


def test_all_templates_are_tried() -> None:
    assert set().union(*EXPECTED.values(), {"matrix"}) == {t.name for t in TEMPLATES}


def test_the_command_counts_points_and_shows_wrong_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["points", "--count", "24", "--kernels", "8", "--seed", "3"])
    assert points.main() == 0
    found = capsys.readouterr()
    (total,) = re.findall(r"^(\d+) points of 8 kernels, 0 wrong, seed 3$", found.out, re.MULTILINE)
    assert int(total) > 12

    def other(self: Subject, *_: object) -> None:
        assert self.kernel is None, "something else"

    monkeypatch.setattr(Subject, "run", other)
    assert points.main() == 1
    found = capsys.readouterr()
    assert f"{total} points of 8 kernels, {total} wrong, seed 3" in found.out
    assert "something else" in found.err


# -- the default --------------------------------------------------------------------------------
def check_default(kernel: Kernel, machine: Machine, constants: frozenset[str]) -> str:
    """Checks that the default schedule is that of a point; the name of its template."""
    chosen = choose(kernel, machine, constants)
    own = spaces(kernel, machine, constants)
    for space in own:
        assert space.default is not None
        space.choice(space.default.point)
        assert all(len(set(axis)) == len(axis) > 0 for axis in space.axes.values())
    found = usual(own)
    if found is None:
        assert chosen.schedule == ()
        return ""
    space, point = found
    assert space.choice(point) == chosen
    assert all(value in space.axes[name] for name, value in space.values(point).items())
    return space.template.name


@pytest.mark.parametrize("name", MACHINES)
@examples(100)
@given(case=cases(lengths=LONG, points=100_000), data=st.data())
def test_the_default_of_random_groups_is_a_point(
    name: str, case: Case, data: st.DataObject
) -> None:
    reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
    free = frozenset(data.draw(st.sets(st.sampled_from(reads))) if reads else ())
    check_default(case.kernel(), MACHINES[name], free)


USUAL = {m.name: m for m in (V3, V4, aarch64.neon())} | {"amx": AMX}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", MACHINES)
def test_the_default_of_a_kind_is_a_point(name: str, kind: str) -> None:
    """In small caches and usual ones, of one processor among others and alone."""
    rng = Random(f"{name} {kind}")
    found: set[str] = set()
    for _ in range(5):
        subject = written(kind, rng)
        for machine in (MACHINES[name], USUAL[name], USUAL[name].alone()):
            found.add(check_default(subject.kernel, machine, subject.free))
    assert found <= EXPECTED[kind] | _matrices(name, kind) | {""}
    assert found >= _matrices(name, kind)


COLUMNS_TEXT = """
graph "columns"
dims {batch}m = 8, n = 96, k = 16
%x : bf16{{{b}k,m}} = input "x" [{b}m, k]
%w : bf16{{{b}k,n}} = input "w" [{b}n, k]
%s : f32{{{b}m,n}} = sum{{k}} f32(%x[{b}k, m]) * f32(%w[{b}k, n])
output "s" [{b}m, n] = %s
"""
"""Products with a computed operand, which lies in columns of 16 pairs."""


@pytest.mark.parametrize("batch", ["b = 3, ", ""])
@pytest.mark.parametrize(("vectors", "asked"), [(2, False), (3, False), (4, True), (8, True)])
def test_panels_are_asked_for_where_they_are_whole_columns(
    batch: str, vectors: int, *, asked: bool
) -> None:
    """Others begin inside of what lies in one piece: 12 columns of 16 on NEON."""
    text = COLUMNS_TEXT.format(batch=batch, b="b, " if batch else "")
    subject = of_text(text, frozenset(), Random(0), {"w": {"n": 16, "k": 2}})
    machine = replace(aarch64.neon(), l1=1 << 10, l2=1 << 11).alone()
    (space,) = (s for s in spaces(subject.kernel, machine, subject.free) if s.template is TILED)
    assert space.default is not None
    tile = replace(space.default.point.tile, vector="n", vectors=vectors, rows=(("m", 2),))
    point = replace(space.default.point, tile=tile, block=None, chunk=None, prefetch=True)
    found = space.choice(point)
    assert ("prefetch_block(w, n.o" in print_schedule(found.schedule)) is asked
    subject.run(found, machine, None)


# -- points -------------------------------------------------------------------------------------
def test_points_are_many_and_listed_once() -> None:
    kernel, constants = lowered(PRODUCTS.replace("j = 96, k = 64", "j = 20, k = 32"))
    space = Space(TILED, kernel, analyse(kernel, constants), V3)
    assert len(space) > 10_000
    first = [point for point, _ in zip(space, range(500), strict=False)]
    assert all(isinstance(point, Tiling) for point in first)
    assert len(set(map(repr, first))) > 50
    assert {p.reuse for p in first if p.block is None} == {0}


FAR = """
graph "far"
dims m = 96, k = 64, n = 40
%x : f32{k,m} = input "x" [k, m]
%w : f32{k,n} = input "w" [k, n]
%y : f32{m,n} = sum{k} %x[k, m] * %w[k, n]
output "y" [n, m] = %y
"""


def test_blocks_of_operands_that_lie_far_apart() -> None:
    """Lines are asked for from a panel to the next, among loops that are split for blocks."""
    kernel, constants = lowered(FAR)
    machine = replace(V3, l2=1 << 12, page_bytes=256).alone()
    space = Space(TILED, kernel, analyse(kernel, constants), machine)
    rng = Random(0)
    drawn = [space.draw(rng) for _ in range(300)]
    texts = [print_schedule(d[1].schedule) for d in drawn if d is not None]
    assert any("prefetch_later" in t and "block_reduction" in t for t in texts)


ROWS_TEXT = """
graph "rows"
dims i = 8, j = 2000
%x : f32{i,j} = input "x" [i, j]
%t : f32{i} = max{j} %x[i, j]
output "t" [i] = %t
"""
WINDOWS_TEXT = """
graph "pooling"
dims c = 6, y = 8, x = 20, p = 9, q = 21, ky = 2, kx = 2
%v : f32{c,p,q} = input "v" [c, p, q]
%o : f32{c,x,y} = max{ky,kx} %v[c, p=y+ky, q=x+kx]
output "o" [c, y, x] = %o
"""
MATRIX_TEXT = product_of_bytes(40, 48, 64)


@pytest.mark.parametrize(
    ("rows", "depth", "steps"), [(384, 12288, 3), (384, 6144, 6), (384, 3072, 0), (64, 64, 0)]
)
def test_the_second_cache_holds_rows_beside_two_panels(rows: int, depth: int, steps: int) -> None:
    """A step is 32 rows of so many bytes, of 12 or 2; panels are of 32 columns. 0: it holds all."""
    found = re.search(r"split\(m\.o\.o, (\d+)\)", blocks_of(rows, 512, depth))
    assert (int(found[1]) if found else 0) == steps


SQUARE_TEXT = """
graph "square"
dims x = 32, y = 32, xi = 34, yi = 34, kx = 3, ky = 3, c = 64, o = 32
%x : u8{{c,xi,yi}} = input "x" [{axes}, c]
%w : i8{{c,kx,ky,o}} = input "w" [ky, kx, c, o]
%s : i32{{o,x,y}} = sum{{c,kx,ky}} i32(%x[c, xi=x+kx, yi=y+ky]) * i32(%w[c, kx, ky, o])
output "s" [{stored}, o] = %s
"""


@pytest.mark.parametrize(
    ("axes", "stored", "near"), [("yi, xi", "y, x", "x"), ("xi, yi", "x, y", "y")]
)
def test_rows_of_blocks_lie_near_each_other(axes: str, stored: str, near: str) -> None:
    """Of a square picture both loops fill registers alike."""
    assert f"balance({near}, 16, 2)" in blocks_of_text(SQUARE_TEXT.format(axes=axes, stored=stored))


def blocks_of(rows: int, columns: int, depth: int) -> str:
    """The default schedule in matrix registers, beside a second cache of 2 MiB."""
    return blocks_of_text(product_of_bytes(rows, columns, depth))


def blocks_of_text(text: str) -> str:
    """The same of a graph."""
    subject = of_text(text, frozenset("w"), Random(0))
    machine = replace(MACHINES["amx"], l2=1 << 21)
    own = {s.template.name: s for s in spaces(subject.kernel, machine, subject.free)}
    space = own[MATRIX.name]
    assert space.default is not None
    return print_schedule(space.choice(space.default.point).schedule)


MOVED_TEXT = """
graph "moved"
dims a = 12, b = 20
%x : f32{a,b} = input "x" [a, b]
%y : f32{a,b} = %x[a, b]
output "y" [b, a] = %y
"""
PUT_TEXT = """
graph "put"
dims m = 8, n = 20, k = 5
%x : f32{m,n} = input "x" [m, n]
%at : i64{k} = input "at" [k]
%u : f32{k,n} = input "u" [k, n]
%y : f32{m,n} = scatter{k,n} %x[m=%at[k], n=n] set= %u[k, n]
output "y" [m, n] = %y
"""
WRONG: dict[str, tuple[Any, str, dict[str, object], str]] = {
    "no such chunk": (TILED, PRODUCTS, {"chunk": ("i", 7)}, "no equal parts"),
    "a chunk of the vector": (TILED, PRODUCTS, {"chunk": ("j", 48)}, "no chunks"),
    "no block": (TILED, PRODUCTS, {"block": 64, "holder": "y"}, "no blocks of 64"),
    "no holder": (TILED, PRODUCTS, {"block": 16, "holder": "z", "reuse": 8}, "cannot hold"),
    "nothing to prepare": (TILED, PRODUCTS, {"prepare": "w"}, "nothing of w is the same"),
    "other loops": (ROWS, ROWS_TEXT, {"order": ("j",)}, "the loops around are i"),
    "long lanes": (ROWS, ROWS_TEXT, {"lanes": (Lane("j", 1, True),)}, "j is too long"),
    "no vector": (WINDOWS, WINDOWS_TEXT, {"vector": "y"}, "memory does not lie along y"),
    "no rows": (WINDOWS, WINDOWS_TEXT, {"rows": ("x", 2)}, "x has no rows"),
    "no single row": (WINDOWS, WINDOWS_TEXT, {"rows": None, "together": True}, "a single row"),
    "no such taps": (WINDOWS, WINDOWS_TEXT, {"taps": ("ky",)}, "loops over the window"),
    "no idle lanes": (WINDOWS, WINDOWS_TEXT, {"vectors": 4, "overlap": True}, "has idle lanes"),
    "no edges": (WINDOWS, WINDOWS_TEXT, {"parts": ("y",)}, "some parts have no edges"),
    "long loops": (WINDOWS, WINDOWS_TEXT, {"looped": ("kx",)}, "are written out"),
    "no such block": (MATRIX, MATRIX_TEXT, {"row": "n"}, "no blocks of n by n by k"),
    "odd products": (MATRIX, MATRIX_TEXT, {"length": 48}, "no whole number of 48"),
    "odd columns": (MATRIX, MATRIX_TEXT, {"wide": 2}, "no 2 blocks"),
    "nothing beside": (MATRIX, MATRIX_TEXT, {"beside": "m", "wide": 1}, "do not lie beside"),
    "no arms": (POINTWISE, MOVED_TEXT, {"form": Form.ARMS}, "no loop decides"),
    "no pieces": (POINTWISE, MOVED_TEXT, {"form": Form.PIECES}, "nothing changes its course"),
    "no squares": (POINTWISE, MOVED_TEXT, {"order": ("b",)}, "the loops are"),
    "no turns": (POINTWISE, MOVED_TEXT, {"form": Form.TURNS}, "is not short"),
    "no chunks": (POINTWISE, MOVED_TEXT, {"form": Form.VECTORS, "chunks": 64}, "no 64 equal"),
    "order of puts": (SCATTER, PUT_TEXT, {"order": ("n",)}, "the loops are k, n"),
    "no lanes": (SCATTER, PUT_TEXT, {"order": ("n", "k")}, "elements do not lie along"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_points_that_do_not_fit_are_told(kind: str) -> None:
    template, text, values, words = WRONG[kind]
    machine = MACHINES["amx"] if template is MATRIX else V4
    subject = of_text(text, frozenset("w"), Random(0))
    own = {s.template.name: s for s in spaces(subject.kernel, machine, subject.free)}
    space = own[template.name]
    assert space.default is not None
    point = replace(space.default.point, **values)
    with pytest.raises(NotApplicable, match=words):
        space.choice(point)


@pytest.mark.parametrize("machine", [V3, aarch64.neon()], ids=lambda m: m.name)
def test_only_some_processors_have_matrices(machine: Machine) -> None:
    subject = of_text(MATRIX_TEXT, frozenset("w"), Random(0))
    names = [s.template.name for s in spaces(subject.kernel, machine, subject.free)]
    assert names == ["tiled", "rows"]


def test_spaces_of_many_reductions_have_a_length() -> None:
    """Of more points than a length can be."""
    nests = [f"%t{k} : f32{{i}} = max{{j,l}} %x[i, j, l] + {k}" for k in range(16)]
    total = " + ".join(f"%t{k}[i]" for k in range(16))
    text = f"""
graph "rows"
dims i = 8, j = 20, l = 30
%x : f32{{i,j,l}} = input "x" [i, l, j]
{chr(10).join(nests)}
%y : f32{{i}} = {total}
output "y" [i] = %y
"""
    subject = of_text(text, frozenset(), Random(0))
    own = {s.template.name: s for s in spaces(subject.kernel, V4, frozenset())}
    assert len(own["rows"]) == sys.maxsize
    found = own["rows"].draw(Random(0))
    assert found is not None
    subject.run(found[1], V4, None)
