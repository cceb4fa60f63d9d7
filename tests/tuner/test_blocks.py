"""Sums in blocks: of how many steps, where sums are kept meanwhile, and where it pays."""

from dataclasses import replace

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import (
    BlockReduction,
    MatrixTile,
    PrefetchBlock,
    Split,
    apply_schedule,
)
from rutc.tuner import choose
from rutc.tuner.analysis import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tiles import choose_tile
from tests.machines import TILES
from tests.tensor_ir.test_steps import kernel_of
from tests.tuner.subjects import product_of_bf16
from tests.tuner.test_schedules import lowered, tile_of

SMALL = x86.avx2(l2=512 << 10)


def blocks(choice: Choice) -> list[BlockReduction]:
    """The steps that make blocks."""
    return [s for s in choice.schedule if isinstance(s, BlockReduction)]


LINES_SHARED = """
graph "few pixels"
dims p = 49, ci = 320, co = 64
%x : f32{ci,p} = input "x" [ci, p]
%w : f32{ci,co} = input "w" [co, ci]
%y : f32{co,p} = sum{ci} %x[ci, p] * %w[ci, co]
output "y" [co, p] = %y
"""


@pytest.mark.parametrize(("ci", "blocked"), [(320, True), (32, False)])
def test_lines_that_tiles_share_stay_in_the_first_cache(ci: int, blocked: bool) -> None:
    """Of 64 bytes a tile of six pixels reads 24, in a line of each channel."""
    kernel, _ = lowered(LINES_SHARED.replace("ci = 320", f"ci = {ci}"))
    shape = analyse(kernel, frozenset({"w"}))
    tile = RegisterTile("co", 2, (("p", 6),), 0.0)
    choice = tile_of(kernel, shape, tile, x86.avx2())
    found = blocks(choice)
    assert bool(found) == blocked
    for s in found:
        assert all(b.name != s.output for b in kernel.args)
        assert s.factor * (64 * 2 + 20) < x86.avx2().l1 // 2
        apply_schedule(kernel, choice.schedule)


@pytest.mark.parametrize(("axes", "apart"), [("p, co", False), ("co, p", True)])
def test_sums_whose_lanes_lie_apart_are_stored_once(axes: str, apart: bool) -> None:
    """Blocks of panels that are used by few tiles pass sums on: in the result, or beside it."""
    text = LINES_SHARED.replace("[ci, p]\n", "[p, ci]\n").replace("[co, ci]\n", "[ci, co]\n")
    text = text.replace("ci = 320", "ci = 4096").replace('"y" [co, p]', f'"y" [{axes}]')
    kernel, _ = lowered(text)
    tile = RegisterTile("co", 2, (("p", 6),), 0.0)
    choice = tile_of(kernel, analyse(kernel, frozenset({"w"})), tile, x86.avx2())
    (found,) = blocks(choice)
    assert (found.output not in {b.name for b in kernel.args}) == apart
    apply_schedule(kernel, choice.schedule)


@pytest.mark.parametrize(
    ("symbols", "images", "blocked"),
    [("", "1", True), ("", "8", False), ("symbols batch = 1..64@1", "batch", False)],
)
def test_panels_of_many_tiles_are_not_taken_in_blocks(
    symbols: str, images: str, *, blocked: bool
) -> None:
    """Images whose number a run tells may be many."""
    kernel, constants = lowered(
        f"""
        graph "a small map"
        {symbols}
        dims b = {images}, ci = 512, co = 480, kx = 3, ky = 3, x = 7, xi = 9, y = 7, yi = 9
        %x : f32{{b,ci,xi,yi}} = input "x" [b, yi, xi, ci]
        %w : f32{{ci,co,kx,ky}} = input "w" [ky, kx, ci, co]
        %r : f32{{b,co,x,y}} = sum{{ci,kx,ky}} %x[b, ci, xi=x + kx, yi=y + ky] * %w[ci, co, kx, ky]
        output "r" [b, y, x, co] = %r
        """
    )
    choice = choose(kernel, x86.avx2(), constants)
    assert bool(blocks(choice)) == blocked


@pytest.mark.parametrize(("k", "blocked"), [(3072, True), (768, False)])
def test_sums_so_long_that_few_rows_stay_in_the_second_cache_are_taken_in_blocks(
    k: int, *, blocked: bool
) -> None:
    """Of 16 rows of 3072 numbers, each panel of constants comes from afar for three tiles."""
    kernel, constants = lowered(
        f"""
        graph "product"
        dims m = 384, k = {k}, n = 768
        %x : f32{{k,m}} = input "x" [m, k]
        %w : f32{{k,n}} = input "w" [k, n]
        %y : f32{{m,n}} = sum{{k}} %x[m, k] * %w[k, n]
        output "y" [m, n] = %y
        """
    )
    choice = choose(kernel, SMALL, constants | {"w"})
    found = blocks(choice)
    assert bool(found) == blocked
    for step in found:
        assert step.factor * 2 * SMALL.width * 4 <= SMALL.l1
        assert kernel.buffer("x").layout.size % step.factor == 0
    apply_schedule(kernel, choice.schedule)


def test_blocks_of_windows_read_pieces_of_several_lines() -> None:
    """Pixels that are far apart share few sets of the first cache, in which little stays."""
    kernel, constants = lowered(
        """
        graph "a strided window"
        dims ci = 512, co = 512, kx = 3, ky = 3, x = 7, xi = 15, y = 7, yi = 15
        %x : f32{ci,xi,yi} = input "x" [yi, xi, ci]
        %w : f32{ci,co,kx,ky} = input "w" [ky, kx, ci, co]
        %r : f32{co,x,y} = sum{ci,kx,ky} %x[ci, xi=2*x + kx, yi=2*y + ky] * %w[ci, co, kx, ky]
        output "r" [y, x, co] = %r
        """
    )
    (step,) = blocks(choose(kernel, SMALL, constants | {"w"}))
    assert step.factor * 4 >= 4 * SMALL.line_bytes


@pytest.mark.parametrize(("k", "parts"), [(1024, 1), (4096, 4)])
def test_counted_rows_keep_panels_in_the_second_cache(k: int, parts: int) -> None:
    """Arithmetic hides that they come from there, and sums are kept seldom or not at all.

    Rows are taken as many at a time as that cache holds, however many a run has.
    """
    machine = x86.avx512()
    kernel, constants = lowered(
        f"""
        graph "product"
        symbols rows = 1..8192@128
        dims m = rows, k = {k}, n = 4096
        %x : f32{{k,m}} = input "x" [m, k]
        %w : f32{{k,n}} = input "w" [k, n]
        %y : f32{{m,n}} = sum{{k}} %x[m, k] * %w[k, n]
        output "y" [m, n] = %y
        """
    )
    choice = choose(kernel, machine, constants | {"w"})
    found = blocks(choice)
    assert len(found) == (parts > 1)
    for s in found:
        assert s.factor == k // parts
    chunks = [s.factor for s in choice.schedule if isinstance(s, Split) and s.var == "m.o"]
    assert len(chunks) == 1
    apply_schedule(kernel, choice.schedule)


@pytest.mark.parametrize(
    ("m", "n", "k", "rows"),
    [(2048, 2048, 2048, 256), (384, 768, 3072, 192), (384, 3072, 768, 384)],
)
def test_registers_for_matrices_take_rows_that_fit_beside_panels(
    m: int, n: int, k: int, rows: int
) -> None:
    """While a panel of weights goes over them, the second cache holds it and the next one, too."""
    machine = replace(TILES, l2=2 << 20)
    kernel, constants = lowered(product_of_bf16(m, n, k))
    choice = choose(kernel, machine, constants | {"w"})
    assert any(isinstance(s, MatrixTile) for s in choice.schedule)
    chunks = [s.factor for s in choice.schedule if isinstance(s, Split) and s.var == "m.o.o"]
    # A step is of two blocks of 16 rows.
    assert chunks == ([rows // 32] if rows < m else [])
    held = rows * (2 * k + 32 * 4) + 2 * 32 * 2 * k
    assert held <= machine.l2 < held + rows * (2 * k + 32 * 4) or rows == m
    apply_schedule(kernel, choice.schedule)


SCALED = """
graph "weights of which 32 share a scale"
symbols rows = 1..512@128
dims r = rows, b = 64, k = 32, n = 768
%x : i8{b,k,r} = input "x" [r, b, k]
%w : u8{b,k,n} = input "w" [n, b, k]
%z : f32{b,r} = input "z" [r, b]
%s : f32{b,n} = input "s" [n, b]
%y : f32{n,r} = sum{b,k} (f32(i32(%x[r, b, k]) * i32(%w[n, b, k])) + %z[r, b]) * %s[n, b]
output "y" [r, n] = %y
"""


@pytest.mark.parametrize(("parts", "factors"), [(64, []), (512, [128])])
def test_weights_that_share_a_scale_are_in_one_block(parts: int, factors: list[int]) -> None:
    """Blocks of each part would scale it several times, and a scale is read once for its part."""
    kernel = kernel_of(SCALED.replace("b = 64", f"b = {parts}"))
    plain = x86.avx512()
    able = plain.features | {"avx512vnni"}
    machine = replace(plain, features=able, fma_per_cycle=1.0)
    shape = analyse(kernel, frozenset({"w", "s"}))
    tile = RegisterTile("n", 3, (("r", 8),), 0.0)
    choice = tile_of(kernel, shape, tile, machine)
    found = blocks(choice)
    assert [s.factor for s in found] == factors
    assert {s.var for s in found} <= {"b"}
    apply_schedule(kernel, choice.schedule)


@pytest.mark.parametrize(
    ("sizes", "machine", "asked"),
    [
        ("dims m = 1, k = 4096", SMALL, False),
        ("dims m = 4, k = 4096", SMALL, False),
        ("dims m = 48, k = 4096", SMALL, True),
        # One tile has all rows, and computes for as long as memory takes.
        ("dims m = 16, k = 768", x86.avx512(), True),
        # A run of a single block of rows asks for nothing.
        ("symbols rows = 1..64@1\ndims m = rows, k = 256", SMALL, True),
    ],
)
def test_constants_that_are_read_once_are_not_asked_for(
    sizes: str, machine: Machine, *, asked: bool
) -> None:
    """The hardware foresees a single stream: hints beside it take a tenth of the time or more."""
    kernel, constants = lowered(
        f"""
        graph "product"
        {sizes}, n = 4096
        %x : f32{{k,m}} = input "x" [m, k]
        %w : f32{{k,n}} = input "w" [k, n]
        %y : f32{{m,n}} = sum{{k}} %x[m, k] * %w[k, n]
        output "y" [m, n] = %y
        """
    )
    schedule = choose(kernel, machine, constants | {"w"}).schedule
    assert any(isinstance(s, PrefetchBlock) for s in schedule) == asked


def test_vectors_whose_distance_only_a_run_tells_serve_several_rows() -> None:
    """They may share few sets of the first cache, so that each tile reads them from the second.

    Even where a cycle has time for a load beside each multiply-add.
    """
    costs = {"fma_per_cycle": 1.0, "loads_per_cycle": 1.0, "load_cycles": 0.0}
    machine = replace(x86.avx512(), **costs)
    kernel, constants = lowered(
        """
        graph "scores"
        symbols n = 1..512@128
        dims h = 12, d = 32, q = n, k = n
        %x : f32{d,h,q} = input "x" [q, h, d]
        %y : f32{d,h,k} = input "y" [h, d, k]
        %s : f32{h,k,q} = sum{d} %x[h, q, d] * %y[h, k, d]
        output "s" [h, q, k] = %s
        """
    )
    tile = choose_tile(analyse(kernel, constants), machine)
    assert tile is not None
    assert dict(tile.rows)["q"] > 1
