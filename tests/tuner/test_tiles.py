"""The cheapest register tile: found without counting all of what the others cost."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir import Nest
from rutc.tensor_ir.facts.windows import Window, share_inside
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import ROW_REGISTERS, Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import Inside, PrefetchBlock, PrefetchResult, apply_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.access import Shape, Touch
from rutc.tuner.analysis import analyse
from rutc.tuner.templates.tiled import Tiling, tiled
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cost import lanes_cost
from rutc.tuner.tiles.tile_cycles import TileCosts
from rutc.tuner.tiles.tile_loads import _crammed, kept_places
from rutc.tuner.tiles.tile_prefetch import stays_until_used
from rutc.tuner.tiles.tiles import choose_tile, register_tiles
from tests.tuner.subjects import of_text
from tests.tuner.test_schedules import PRODUCTS, lowered

WINDOWS = """
graph "windows"
dims c = 24, ky = 3, kx = 3, o = 40, x = {x}, y = {y}, xi = {x}, yi = {y}
%i : f32{{c,xi,yi}} = input "i" [c, yi, xi]
%w : f32{{c,kx,ky,o}} = input "w" [o, c, ky, kx]
%o : f32{{o,x,y}} = sum{{c,ky,kx}} %i[c, xi=x+{step}*kx-{step}, yi=y+{step}*ky-{step} else 0] \
* %w[c, ky, kx, o]
output "o" [o, y, x] = %o
"""
OPEN = """
graph "open"
symbols n = 0..4096
dims i = n, j = 37, k = 64
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
PICKED = """
graph "picked"
dims n = 64, t = 96, k = 32, f = {features}
%x : f32{{f,n}} = input "x" [n, f]
%w : i64{{k,t}} = input "w" [t, k]
%y : f32{{n,t}} = sum{{k}} %x[f=%w[k, t], n]
output "y" [n, t] = %y
"""
NARROW_KEYS = """
graph "scores"
symbols past = 0..2047@512, seq = 1..512@128
dims h = 4, g = 3, i = seq, j = past + seq, d = 64
%q : f32{{h,g,i,d}} = input "q" [i, h, g, d]
%k : {dtype}{{d,h,j}} = input "k" [h, j, d]
%y : f32{{h,g,i,j}} = sum{{d}} %q[h, g, i, d] * f32(%k[d, h, j])
output "y" [h, i, g, j] = %y
"""
"""Queries times keys of a cache that stores them in few bits."""
COLUMNS = """
graph "columns"
dims m = 256, n = 256, k = 64
%x : f32{k,m} = input "x" [m, k]
%w : f32{k,n} = input "w" [k, n]
%y : f32{m,n} = sum{k} %x[k, m] * %w[k, n]
output "y" [n, m] = %y
"""
TEXTS = {
    "products": PRODUCTS,
    "one row": PRODUCTS.replace("i = 64", "i = 1"),
    "a prime": PRODUCTS.replace("j = 96", "j = 97").replace("i = 64", "i = 13"),
    "windows": WINDOWS.format(x=28, y=28, step=1),
    "mostly outside": WINDOWS.format(x=7, y=5, step=4),
    "open": OPEN,
}
MACHINES = (x86.avx2(), x86.avx512())


def kernel_of(text: str) -> Kernel:
    """The kernel of a graph's sum, values as they are: windows reach outside of memory."""
    graph = parse(text)
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    extents = {d: plain(e) for d, e in graph.dims}
    values = graph.values
    layouts = {v: dense(values[v].dims[::-1], extents) for v in values}
    group = Group("g", (nest,), nest.out.dims, (nest.out.name,))
    symbols = dict(graph.symbols)
    return lower(group, values, layouts, extents, symbols, frozenset({"w"}))


def shape_of(text: str) -> Shape:
    """What its kernel does, the weights being constants."""
    return analyse(kernel_of(text), frozenset({"w"}))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_it_is_the_first_of_the_cheapest(text: str, machine: Machine) -> None:
    every = list(register_tiles(shape_of(text), machine))
    assert choose_tile(shape_of(text), machine) == min(every, key=lambda t: t.cost)
    assert len(every) > 1


SCORES = """
graph "scores of the keys that several heads share, of as many tokens as there are"
symbols s = 1..512, m = 1..2558@640
dims g = 4, h = 3, d = 64, s_i = s, e = m
%q : f32{d,g,h,s_i} = input "q" [s_i, g, h, d]
%r : f32{d,e,g} = input "r" [g, e, d]
%y : f32{e,g,h,s_i} = sum{d} %q[d, g, h, s_i] * %r[d, e, g]
output "y" [g, s_i, h, e] = %y
"""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_rows_of_which_there_may_be_one_are_not_the_only_ones(machine: Machine) -> None:
    """For a single token, too, lanes are filled, and what heads share is read once for all."""
    shape = shape_of(SCORES)
    heads, keys = (next(x.var for x in shape.shared if shape.extents[x.var] == n) for n in (3, 640))
    tile = choose_tile(shape, machine)
    assert tile is not None
    assert tile.vector == keys
    assert dict(tile.rows)[heads] == 3
    least = min(t.cost for t in register_tiles(shape, machine))
    assert tile.cost <= machine.coefficients.tiles.uneven * least


HEADS = """
graph "a product of as many rows as there are, commonly one, whose results are heads"
symbols b = 1..1000@1
dims d = {lanes}, k = 384, n = {heads}, r = b
%w : f32{{d,k,n}} = input "w" [n, k, d]
%x : f32{{k,r}} = input "x" [r, k]
%y : f32{{d,n,r}} = sum{{k}} %x[k, r] * %w[d, k, n]
output "y" [r, n, d] = %y
"""


@pytest.mark.parametrize(("heads", "lanes"), [(36, 32), (12, 64)])
@pytest.mark.parametrize("multiply_adds", [1, 2])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_rows_of_a_batch_share_weights_whose_results_are_heads(
    machine: Machine, multiply_adds: int, heads: int, lanes: int
) -> None:
    """Heads share numbers, not vectors: as rows they would read all weights for each of a batch."""
    machine = replace(machine, fma_per_cycle=multiply_adds, loads_per_cycle=multiply_adds)
    tile = choose_tile(shape_of(HEADS.format(heads=heads, lanes=lanes)), machine)
    assert tile is not None
    assert [v for v, _ in tile.rows] == ["r"]


BYTES = """
graph "bytes"
dims i = 64, j = 96, k = {products}
%x : u8{{i,k}} = input "x" [i, k]
%w : i8{{j,k}} = input "w" [k, j]
%y : i32{{i,j}} = sum{{k}} i32(%x[i, k]) * i32(%w[j, k])
output "y" [i, j] = %y
"""
FLOATS = """
graph "floats"
dims i = 64, j = 96, k = 32
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""
VNNI = replace(x86.avx512(), features=x86.V4_FEATURES | {"avx512vnni"})


def test_products_of_bytes_cost_their_instructions() -> None:
    """What adds up four products takes a step, as one of f32 does: what follows weighs as much."""
    bytes_, floats = (
        {t.rows: t.cost for t in register_tiles(shape_of(text), VNNI) if t.vector == "j"}
        for text in (BYTES.format(products=128), FLOATS)
    )
    assert len(bytes_) > 10
    # Rows of bytes lie a little nearer.
    assert bytes_ == pytest.approx(floats, rel=0.01)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8"])
def test_what_all_lanes_share_takes_time_to_convert(machine: Machine, dtype: str) -> None:
    """Each narrow key by itself, as lanes along queries would: lanes along keys convert many."""
    shape = shape_of(NARROW_KEYS.format(dtype=dtype))
    tile = choose_tile(shape, machine)
    assert tile is not None
    assert tile.vector == "j"


def test_rows_side_by_side_are_as_good_as_packed_ones() -> None:
    """Rows of what all gates read share a vector of weights, and lie next to each other.

    A tile of one row of four gates has to load a vector for each product.
    """
    shape = shape_of("""
        graph "gates"
        dims t = 400, g = 4, h = 128, k = 64
        %x : u8{t,k} = input "x" [t, k]
        %w : i8{g,h,k} = input "w" [k, g, h]
        %y : i32{t,g,h} = sum{k} i32(%x[t, k]) * i32(%w[g, h, k])
        output "y" [t, g, h] = %y
        """)
    slow = replace(VNNI, fma_per_cycle=1.0, loads_per_cycle=1.0, load_cycles=0.0)
    tile = choose_tile(shape, slow)
    assert tile is not None
    assert dict(tile.rows).get("t", 1) > 1


def test_loops_inside_of_values_are_among_the_tiles() -> None:
    """Those of a window that is mostly outside cost less where they leave that out."""
    tile = choose_tile(shape_of(TEXTS["mostly outside"]), MACHINES[1])
    assert tile is not None
    assert tile.inside


@pytest.mark.parametrize(("channels", "asked"), [(128, True), (256, False)])
def test_panels_of_which_tiles_use_a_part_are_asked_for_where_two_fit(
    channels: int, *, asked: bool
) -> None:
    """What few tiles use leaves the second cache for what is asked for, and has to come again."""
    kernel = kernel_of(f"""
        graph "dilated"
        dims c = {channels}, o = 256, x = 16, y = 16, u = 16, v = 16, kx = 3, ky = 3
        %i : f32{{c,u,v}} = input "i" [c, u, v]
        %w : f32{{c,kx,ky,o}} = input "w" [o, c, ky, kx]
        %o : f32{{o,x,y}} = sum{{c,ky,kx}} %i[c, u=x+12*kx-12, v=y+12*ky-12 else 0] \
* %w[c, ky, kx, o]
        output "o" [o, x, y] = %o
        """)
    schedule = choose(kernel, MACHINES[1], frozenset({"w"})).schedule
    assert any(isinstance(s, Inside) for s in schedule)
    assert any(isinstance(s, PrefetchBlock) for s in schedule) == asked


@pytest.mark.parametrize(("taps", "inside"), [(31, ("ky",)), (13, ())])
def test_loops_around_long_ones_are_inside_though_all_are_of_windows(
    taps: int, inside: tuple[str, ...]
) -> None:
    """Loops whose ends are not known pay where they go around one that is not written out."""
    shape = shape_of(f"""
        graph "depthwise"
        dims c = 32, x = 28, y = 28, ky = {taps}, kx = {taps}
        %i : f32{{c,x,y}} = input "i" [y, x, c]
        %w : f32{{c,kx,ky}} = input "w" [c, ky, kx]
        %o : f32{{c,x,y}} = sum{{ky,kx}} %i[c, x=x+kx-{taps // 2}, y=y+ky-{taps // 2} else 0] \
* %w[c, ky, kx]
        output "o" [y, x, c] = %o
        """)
    tile = choose_tile(shape, MACHINES[1])
    assert tile is not None
    assert tile.inside == inside


@pytest.mark.parametrize(("rows", "tiles"), [(49, {6, 5}), (48, {6}), (53, {6, 5})])
def test_the_rows_of_the_last_tiles_are_about_as_many(rows: int, tiles: set[int]) -> None:
    """A tile of one row would wait for its sums: 49 rows are four tiles of six and five of five."""
    kernel, constants = lowered(OPEN.replace("i = n", f"i = {rows}").replace("j = 37", "j = 96"))
    made = apply_schedule(kernel, choose(kernel, MACHINES[0], constants).schedule)
    loops = [s.hi.value for s in walk_loops(made.body) if s.var == "i.i"]
    assert set(loops) == tiles


def test_a_last_row_leaves_out_no_more_than_its_part() -> None:
    """Seven rows are a tile: six of them, and one that reads outside, take no fewer taps.

    Of the seven lines that are tiles of their own, two take one of three rows of taps less.
    """
    text = WINDOWS.format(x=7, y=7, step=1)
    text = text.replace("c = 24", "c = 512").replace("o = 40", "o = 512")
    tile = choose_tile(shape_of(text), MACHINES[1])
    assert tile is not None
    assert (dict(tile.rows), tile.inside) == ({"x": 7}, ("ky",))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize(("size", "inside"), [(7, ("ky",)), (28, ())])
def test_windows_leave_out_few_taps_where_maps_are_small(
    size: int, inside: tuple[str, ...], machine: Machine
) -> None:
    """A line of seven that takes two of three rows of taps is a 20th of all, one of 28 nothing."""
    text = WINDOWS.format(x=size, y=size, step=1).replace("c = 24", "c = 512")
    text = text.replace(f"xi = {size}, yi = {size}", f"xi = {2 * size}, yi = {2 * size}")
    text = text.replace("xi=x+1*kx-1, yi=y+1*ky-1", "xi=2*x+kx-1, yi=2*y+ky-1")
    tile = choose_tile(shape_of(text.replace("o = 40", "o = 512")), machine)
    assert tile is not None
    assert tile.inside == inside


@pytest.mark.parametrize(
    ("rows", "tile", "taps"),
    [(7, 1, 2 + 5 * 3 + 2), (7, 7, 7 * 3), (7, 6, 6 * 3 + 2), (14, 13, 13 * 3 + 2), (5, 2, 14)],
)
def test_shorter_tiles_count_as_much_less(rows: int, tile: int, taps: int) -> None:
    w = Window("k", 1, "i", 1, -1, rows)
    assert share_inside(w, 3, rows, tile) == taps / (3 * rows)


def kept(rows: int, step: int, taps: int) -> int:
    """The most places that wait at one time to be read again in a later step, one by one."""
    reads = [(k, i + step * k) for k in range(taps) for i in range(rows)]
    return max(
        len({p for _, p in reads[: n + 1]} & {p for k, p in reads[n + 1 :] if k > now})
        for n, (now, _) in enumerate(reads)
    )


@pytest.mark.parametrize(("rows", "step"), [(12, 1), (12, 2), (6, 3), (6, 5), (3, 3), (3, 4)])
def test_places_that_dilated_windows_read_again_are_counted(rows: int, step: int) -> None:
    (reduction,) = shape_of(WINDOWS.format(x=28, y=28, step=step)).reductions
    most, waiting = kept_places(reduction, (("x", rows),), "kx", 3), kept(rows, step, 3)
    assert waiting <= most <= waiting + 1
    assert (most == 0) == (waiting == 0)


def test_what_follows_the_sums_of_dear_tiles_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = 0
    cycles = TileCosts._cycles

    def counting(self: TileCosts, vectors: int, rows: tuple[tuple[str, int], ...]) -> float:
        nonlocal counted
        counted += 1
        return cycles(self, vectors, rows)

    monkeypatch.setattr(TileCosts, "_cycles", counting)
    every = list(register_tiles(shape_of(TEXTS["windows"]), MACHINES[1]))
    whole, counted = counted, 0
    choose_tile(shape_of(TEXTS["windows"]), MACHINES[1])
    assert counted < whole / 2
    assert len(every) <= whole


def crammed(steps: tuple[tuple[int, int], ...], line: int, way: int, room: int) -> int:
    """Lines in sets that overflow, told of all places one by one."""
    places = [0]
    for f, step in steps:
        places = [p + i * step for p in places for i in range(f)]
    sets = Counter(x % (way // line) for x in {p // line for p in places})
    return sum(n for n in sets.values() if n > room)


def test_lines_in_sets_that_overflow() -> None:
    rng = Random(3)
    found = 0
    for _ in range(300):
        steps = tuple(
            (rng.randint(1, 7), rng.choice((4, 12, 64, 100, 128, 4096, 4100, -4096, 12544, -68)))
            for _ in range(rng.randint(0, 3))
        )
        room = rng.randint(1, 8)
        assert _crammed(steps, 64, 4096, room) == crammed(steps, 64, 4096, room)
        found += bool(crammed(steps, 64, 4096, room))
    assert 20 < found < 300


@pytest.mark.parametrize("machine", MACHINES, ids=["avx2", "avx512"])
def test_what_data_choose_among_few_is_picked_in_registers(machine: Machine) -> None:
    """Tiles and lanes of partial sums cost less than where each lane is loaded by itself."""
    most = ROW_REGISTERS * machine.width
    few, many = (shape_of(PICKED.format(features=n)) for n in (most, most + 1))
    tiles = [choose_tile(shape, machine) for shape in (few, many)]
    assert tiles[0] is not None
    assert tiles[1] is not None
    assert tiles[0].vector == "t"
    assert tiles[0].cost < tiles[1].cost
    assert lanes_cost(few, machine) < lanes_cost(many, machine)


COUNTED = """
graph "counted"
symbols n = 0..4096@{common}
dims i = n, j = 512, k = 9216
%x : f32{{i,k}} = input "x" [i, k]
%w : f32{{j,k}} = input "w" [k, j]
%y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""


def test_a_single_row_passes_by_what_fills_up_the_last_panel() -> None:
    """Nothing is computed meanwhile: 512 columns are panels of 4 vectors, not of 3 or 5."""
    machine = x86.avx512()
    one, eight = (choose_tile(shape_of(COUNTED.format(common=n)), machine) for n in (1, 8))
    assert one is not None
    assert eight is not None
    assert 512 % (one.vectors * machine.width) == 0
    assert 512 % (eight.vectors * machine.width) != 0


@pytest.mark.parametrize("chunk", [None, ("m", 32)])
def test_results_that_lie_along_rows_are_asked_for_in_chunks_of_rows_too(
    chunk: tuple[str, int] | None,
) -> None:
    kernel = of_text(COLUMNS, frozenset(), Random(0)).kernel
    tiling = Tiling(RegisterTile("n", 1, (("m", 4),), 0.0), chunk=chunk)
    steps = tiled(kernel, analyse(kernel, frozenset()), tiling, x86.avx512()).schedule
    assert PrefetchResult("y", 16) in steps


@pytest.mark.parametrize(
    ("rows", "order", "k", "stays"),
    [
        # All rows of a chunk, 16 columns and 64 steps: 1 MiB.
        ("m.i", ("m.o", "n.o", "m.i.o"), 64, False),
        ("m.i", ("m.o", "n.o", "m.i.o"), 16, True),
        # The rows of a tile: 16 KiB, 1 MiB and 256 KiB.
        ("m.i", ("m.o", "m.i.o", "n.o"), 64, True),
        ("m.i", ("m.o", "m.i.o", "n.o"), 4096, False),
        ("m.i", ("m.o", "m.i.o", "n.o"), 1024, True),
        ("m", ("m.o", "n.o"), 4096, False),
        ("m", ("m.o", "n.o"), 1024, True),
        # All rows: 4 MiB.
        ("m.i", ("n.o", "m.o", "m.i.o"), 64, False),
        ("m", ("n.o", "m.o"), 64, False),
    ],
)
def test_what_stays_until_it_is_used_is_counted_in_rows_of_chunks(
    rows: str, order: tuple[str, ...], k: int, stays: bool
) -> None:
    machine = replace(x86.avx512(), l2=1 << 20)
    names = ("m", "n", "k")
    weights = Touch("w", False, dict.fromkeys(names, 1), names, True, 4, 1 << 24)
    tile = RegisterTile("n", 1, ((rows, 4),), 0.0, ("kx",))
    extents = {"m": 1024, "n": 1024, "k": k, "m.o": 4, "n.o": 64}
    if rows == "m.i":
        extents |= {"m.i": 256, "m.i.o": 64}
    assert stays_until_used(weights, "n.o", order, extents, tile, machine) == stays
