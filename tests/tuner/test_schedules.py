"""What the default schedule does with loops: which go outermost, which are unrolled."""

from dataclasses import replace
from math import prod

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir import Const, Nest
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Prefetch, Small, Stmt, Update
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import QUAD, Machine
from rutc.tensor_ir.statements import walk_loops, walk_stmts
from rutc.tensor_ir.steps import Fuse, Pack, PrefetchBlock, Prepare, Split, apply_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.access import Shape
from rutc.tuner.analysis import analyse
from rutc.tuner.arms import choosing_loops, turns
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces
from rutc.tuner.templates.pointwise import Form
from rutc.tuner.templates.rows import Lane, Rows, rows
from rutc.tuner.templates.tiled import tiled
from rutc.tuner.templates.tilings import default_tiling
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cost import costed
from rutc.tuner.tiles.tile_registers import product_registers
from rutc.tuner.tiles.tiles import choose_tile, even_tile
from tests.graph_opt.plans import plan_of
from tests.tensor_ir.test_steps import kernel_of

MACHINE = x86.avx512()


def lowered(text: str) -> tuple[Kernel, frozenset[str]]:
    """The kernel of a graph of one group, and the constants that it reads."""
    plan = plan_of(text)
    (group,) = plan.groups()
    constants = frozenset(n.out.name for n in walk_nodes(plan.graph.nodes) if isinstance(n, Const))
    extents = {d: plain(e) for d, e in plan.graph.dims}
    symbols = dict(plan.graph.symbols)
    return lower(group, plan.values, plan.layouts, extents, symbols), constants


def scheduled(text: str) -> Kernel:
    kernel, constants = lowered(text)
    return apply_schedule(kernel, choose(kernel, MACHINE, constants).schedule)


PRODUCTS = """
graph "products"
dims b = 6, i = 64, j = 96, k = 64
%x : f32{b,i,k} = input "x" [b, i, k]
%w : f32{b,j,k} = input "w" [b, k, j]
%y : f32{b,i,j} = sum{k} %x[b, i, k] * %w[b, j, k]
output "y" [b, i, j] = %y
"""


def tile_of(kernel: Kernel, shape: Shape, tile: RegisterTile, machine: Machine) -> Choice:
    return tiled(kernel, shape, default_tiling(kernel, shape, tile, machine), machine)


def test_the_loop_without_reuse_goes_outermost() -> None:
    outermost = scheduled(PRODUCTS).body[0]
    assert isinstance(outermost, Loop)
    assert outermost.var == "b"


def test_rows_are_split_for_the_cache_inside_of_the_loop_without_reuse() -> None:
    sizes = {"i = 64": "i = 2048", "j = 96": "j = 512", "k = 64": "k = 512"}
    text = PRODUCTS
    for old, new in sizes.items():
        text = text.replace(old, new)
    loops = [s.var for s in walk_loops(scheduled(text).body)]
    assert loops[:2] == ["b", "i.o"]


CHOICE = """
graph "choice"
dims c = 32, p = 3, t = 8, u = 12
%x : f32{c,t} = input "x" [t, c]
%y : f32{c,p,t,u} = select(index(p) == 0, %x[c, t], select(index(u % 4) == 1, %x[c, t] * 2.0, 0.0))
output "y" [u, p, t, c] = %y
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("min(55, max(0, i - 3))", (3, 58)),
        ("min((i + 107) % 110, 110 - (i + 107) % 110)", (3, 58)),
        ("(i + 53) % 56", (3, 59)),
        # Remainders that turn again and again are left alone.
        ("i % 2", ()),
        ("i // 2", ()),
    ],
)
def test_where_reads_turn(place: str, expected: tuple[int, ...]) -> None:
    kernel, _ = lowered(f"""
        graph "pad"
        dims i = 62, k = 56
        %x : f32{{k}} = input "x" [k]
        %y : f32{{i}} = %x[k={place}]
        output "y" [i] = %y
    """)
    assert turns(kernel, kernel.body[0].var, 62) == expected


def test_loops_that_choose_an_arm_are_found_with_their_period() -> None:
    kernel, _ = lowered(CHOICE)
    assert choosing_loops(kernel, {"c": 32, "p": 3, "t": 8, "u": 12}) == {"p": 3, "u": 4}
    assert choosing_loops(kernel, {"c": 32, "p": 17, "t": 8, "u": 12}) == {"u": 4}


def test_loops_that_choose_an_arm_are_unrolled_inside_of_the_vector() -> None:
    loops = {s.var: s for s in walk_loops(scheduled(CHOICE).body)}
    assert {v for v, s in loops.items() if s.kind is Kind.UNROLL} == {"p", "u.i"}
    (vector,) = (s for s in loops.values() if s.kind is Kind.VECTOR)
    inside = [s.var for s in walk_loops(vector.body)]
    assert inside == ["p", "u.i"]


FAR_ROWS = """
graph "pixels"
dims co = 64, p = 3136, ci = 256
%x : f32{ci,p} = input "x" [ci, p]
%w : f32{ci,co} = input "w" [co, ci]
%y : f32{co,p} = sum{ci} %x[ci, p] * %w[ci, co]
output "y" [co, p] = %y
"""


def test_the_next_panel_of_rows_that_lie_far_apart_is_asked_for() -> None:
    hints = [s for s in walk_stmts(scheduled(FAR_ROWS).body) if isinstance(s, Prefetch)]
    assert {(s.buffer, s.level) for s in hints if not s.write} == {("x", 1), ("x", 2)}


def test_the_lines_that_a_tile_stores_to_are_asked_for() -> None:
    hints = [s for s in walk_stmts(scheduled(FAR_ROWS).body) if isinstance(s, Prefetch)]
    assert {s.buffer for s in hints if s.write} == {"y"}


def test_nothing_is_asked_for_along_a_loop_in_which_nothing_else_is_read() -> None:
    """The matrix is the same in every iteration of i, by which the vector alone goes on."""
    kernel = kernel_of("""
        graph "weighted"
        dims i = 5, j = 9, k = 20
        %a : f64{i} = input "a" [i]
        %b : f64{j,k} = input "b" [j, k]
        %s : f64{j} = sum{i,k} %a[i] * %b[j, k]
        output "s" [j] = %s
    """)
    schedule = choose(kernel, MACHINE, frozenset("ab")).schedule
    found = walk_stmts(apply_schedule(kernel, schedule).body)
    assert not any(isinstance(s, Prefetch) for s in found)


def test_nothing_is_asked_for_where_rows_follow_each_other() -> None:
    text = FAR_ROWS.replace("p = 3136", "p = 128")
    hints = [s for s in walk_stmts(scheduled(text).body) if isinstance(s, Prefetch)]
    assert all(s.write for s in hints)


@pytest.mark.parametrize("k", [1024, 2048, 1024 + 16])
def test_no_more_rows_share_a_set_of_the_first_cache_than_it_holds(k: int) -> None:
    text = f"""
        graph "square"
        dims m = 1024, n = 512, k = {k}
        %x : f32{{k,m}} = input "x" [m, k]
        %w : f32{{k,n}} = input "w" [k, n]
        %y : f32{{m,n}} = sum{{k}} %x[k, m] * %w[k, n]
        output "y" [m, n] = %y
        """
    kernel, constants = lowered(text)
    tile = choose_tile(analyse(kernel, constants), MACHINE)
    assert tile is not None
    ((_, rows),) = tile.rows
    assert (rows <= MACHINE.l1 // MACHINE.l1_way_bytes) == (k % 1024 == 0)


@pytest.mark.parametrize(("machine", "most"), [(x86.avx2(), 16), (x86.avx512(), 32)])
def test_a_tile_and_its_operands_fit_the_registers(machine: Machine, most: int) -> None:
    kernel, constants = lowered(FAR_ROWS.replace("p = 3136", "p = 512"))
    tile = choose_tile(analyse(kernel, constants), machine)
    assert tile is not None
    assert most * 2 // 3 < tile.size + tile.vectors + 1 <= most


@pytest.mark.parametrize(("rows", "vectors", "room"), [(6, 2, True), (4, 3, True), (15, 1, False)])
def test_a_step_is_unrolled_where_its_operands_find_registers(
    rows: int, vectors: int, room: bool
) -> None:
    kernel, constants = lowered(FAR_ROWS)
    tile = RegisterTile("p", vectors, (("co", rows),), 0.0)
    choice = tile_of(kernel, analyse(kernel, constants), tile, x86.avx2())
    loops = walk_stmts(apply_schedule(kernel, choice.schedule).body)
    unrolled = {s.var for s in loops if isinstance(s, Loop) and s.kind is Kind.UNROLL}
    assert ("ci.i" in unrolled) == room


def test_the_longer_part_of_a_step_passes_the_one_that_registers_hold() -> None:
    """Three rows of four gates: twelve sums, and a row's three factors beside them, not four."""
    kernel, constants = lowered("""
        graph "gates"
        dims m = 8, g = 4, h = 128, k = 128
        %x : f32{k,m} = input "x" [m, k]
        %w : f32{g,h,k} = input "w" [k, g, h]
        %y : f32{g,h,m} = sum{k} %x[k, m] * %w[g, h, k]
        output "y" [m, g, h] = %y
    """)
    constants = constants | {"w"}
    tile = RegisterTile("h", 1, (("m", 3), ("g", 4)), 0.0)
    choice = tile_of(kernel, analyse(kernel, constants), tile, x86.avx2())
    loops = walk_stmts(apply_schedule(kernel, choice.schedule).body)
    unrolled = [s.var for s in loops if isinstance(s, Loop) and s.kind is Kind.UNROLL]
    assert unrolled[:2] == ["g", "m.i"]


def test_chains_of_multiply_adds_do_not_wait_for_each_other() -> None:
    """Eight sums, the latency times the units, leave no slack."""
    text = FAR_ROWS.replace("co = 64", "co = 32").replace("p = 3136", "p = 56")
    kernel, constants = lowered(text)
    tile = choose_tile(analyse(kernel, constants), x86.avx2())
    assert tile is not None
    assert tile.size > 8


def test_a_shorter_tile_at_the_edge_costs_what_it_takes() -> None:
    """One row more than whole tiles hold takes nearly as long as a tile of four."""

    def cost(rows: int) -> float:
        kernel, constants = lowered(FAR_ROWS.replace("co = 64", f"co = {rows}"))
        tile = RegisterTile("p", 3, (("co", 4),), 0.0)
        shape = analyse(kernel, constants)
        return rows * even_tile(shape, tile, "co", 4, x86.avx2()).cost

    assert cost(9) > cost(8) + 0.5 * (cost(12) - cost(8))
    # Three tiles of three rows and one of four wait for nothing.
    assert cost(13) < cost(12) + 0.5 * (cost(16) - cost(12))


def test_rows_share_what_is_loaded_where_two_sums_of_pairs_are_added_up() -> None:
    """A step loads two vectors for each sum: one row took 1.06 to 1.2 times as long (Zen 4)."""
    kernel, _ = lowered("""
        graph "bytes"
        dims m = 14, n = 256, k = 1024
        %x : u8{k,m} = input "x" [m, k]
        %w : i8{k,n} = input "w" [k, n]
        %y : i32{m,n} = sum{k} i32(%x[k, m]) * i32(%w[k, n])
        output "y" [m, n] = %y
    """)
    small = Small(any_two=True, fours=("k",))
    args = tuple(replace(b, small=small) if b.name == "w" else b for b in kernel.args)
    shape = analyse(replace(kernel, args=args), frozenset({"w"}))
    square, row = (costed(shape, "n", *x, x86.avx2()).cost for x in ((2, (("m", 4),)), (5, ())))
    assert row > 1.05 * square


def test_fewer_rows_that_fit_a_chunk_of_packed_ones_take_more_vectors() -> None:
    kernel, constants = lowered(FAR_ROWS.replace("co = 64", "co = 256"))
    shape = analyse(kernel, constants)
    tile = RegisterTile("p", 2, (("co", 6),), 0.0)
    even = even_tile(shape, tile, "co", 128, x86.avx2())
    assert (even.vectors, even.rows) == (3, (("co", 4),))


def test_rows_lie_apart_by_a_distance_that_is_known() -> None:
    """The rows of a picture of any width begin at places that each need a computation."""
    kernel = scheduled(
        """
        graph "pointwise"
        symbols width = 16..1600
        dims y = 12, x = (width + 3) // 4, x2 = (width + 3) // 4 + 2, c = 240, k = 240
        %a : f32{c,x2,y} = input "a" [y, x2, c]
        %w : f32{c,k} = input "w" [c, k]
        %b : f32{k,x,y} = sum{c} %a[c, x2=x + 1, y] * %w[c, k]
        output "b" [y, x, k] = %b
        """
    )
    loops = list(walk_loops(kernel.body))
    rows = {s.var for s in loops if s.kind is Kind.UNROLL and s.var.startswith(("x", "y"))}
    assert rows == {"x.i"}


DEPTHWISE = """
graph "depthwise"
dims c = 384, xi = 14, yi = 14, kx = 3, ky = 3, x = 14, y = 14
%i : f32{c,xi,yi} = input "i" [yi, xi, c]
%w : f32{c,kx,ky} = input "w" [ky, kx, c]
%o : f32{c,x,y} = sum{kx,ky} %i[c, xi=x+kx-1, yi=y+ky-1 else 0] * %w[c, ky, kx]
output "o" [y, x, c] = %o
"""


def test_rows_lie_along_the_unrolled_window_whose_loads_they_share() -> None:
    plan = plan_of(DEPTHWISE)
    extents = {d: e.value for d, e in plan.graph.dims}
    kernels = [lower(g, plan.values, plan.layouts, extents) for g in plan.groups()]
    (kernel,) = (k for k in kernels if any(isinstance(s, Update) for s in walk_stmts(k.body)))
    scheduled_kernel = apply_schedule(kernel, choose(kernel, MACHINE, frozenset({"w"})).schedule)
    loops = {s.var: s for s in walk_loops(scheduled_kernel.body)}
    assert loops["x"].kind is Kind.UNROLL
    assert loops["kx"].kind is Kind.UNROLL
    assert loops["y"].kind is not Kind.UNROLL


def test_vectors_sorted_out_of_their_neighbours_are_avoided_where_that_takes_long() -> None:
    """Pixels two apart, or channels: the latter where sorting is slow."""
    text = """
        graph "every second pixel"
        dims p = 112, q = 224, c = 8, k = 64
        %x : f32{c,q} = input "x" [c, q]
        %w : f32{c,k} = input "w" [c, k]
        %y : f32{k,p} = sum{c} %x[c, q=2*p] * %w[c, k]
        output "y" [k, p] = %y
        """
    graph = parse(text)
    extents = graph.extents
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    layouts = {v: dense(tuple(d), extents) for v, d in (("x", "cq"), ("w", "ck"), ("y", "kp"))}
    group = Group("g", (nest,), ("k", "p"), ("y",))
    shape = analyse(lower(group, graph.values, layouts, extents), frozenset())
    pixels = choose_tile(shape, replace(MACHINE, sort_cycles=0.0))
    channels = choose_tile(shape, replace(MACHINE, sort_cycles=50.0))
    assert pixels is not None
    assert channels is not None
    assert (pixels.vector, channels.vector) == ("p", "k")


def test_tiles_of_short_sums_store_few_vectors_at_once_where_stores_are_not_hidden() -> None:
    """Those of long sums keep as many as registers hold."""
    vectors = {}
    for channels in (16, 128):
        kernel, constants = lowered(
            f"""
            graph "pixels"
            dims ci = {channels}, co = 96, p = 784
            %x : f32{{ci,p}} = input "x" [ci, p]
            %w : f32{{ci,co}} = input "w" [ci, co]
            %y : f32{{co,p}} = sum{{ci}} %x[ci, p] * %w[ci, co]
            output "y" [co, p] = %y
            """
        )
        shape = analyse(kernel, constants | {"w"})
        for cycles in (0.0, 4.0):
            tile = choose_tile(shape, replace(MACHINE, fma_per_cycle=1.0, store_cycles=cycles))
            assert tile is not None
            vectors[channels, cycles] = tile.size
    assert vectors[16, 4.0] <= MACHINE.hidden_stores < vectors[16, 0.0]
    assert vectors[128, 4.0] == vectors[128, 0.0]


def test_stores_of_narrow_numbers_are_a_part_of_whole_vectors() -> None:
    """A tile of bytes stores four times as many of them until arithmetic no longer hides it."""
    sizes = {}
    for kind in ("f32", "u8"):
        kernel, constants = lowered(
            f"""
            graph "pixels"
            dims ci = 16, co = 96, p = 784
            %x : f32{{ci,p}} = input "x" [ci, p]
            %w : f32{{ci,co}} = input "w" [ci, co]
            %s : f32{{co,p}} = sum{{ci}} %x[ci, p] * %w[ci, co]
            %y : {kind}{{co,p}} = {kind}(max(%s[co, p], 0.0))
            output "y" [co, p] = %y
            """
        )
        shape = analyse(kernel, constants | {"w"})
        tile = choose_tile(shape, replace(MACHINE, fma_per_cycle=1.0, store_cycles=4.0))
        assert tile is not None
        sizes[kind] = tile.size
    assert sizes["f32"] <= MACHINE.hidden_stores < sizes["u8"]


def test_operands_of_products_that_are_chosen_from_are_held_together() -> None:
    """Two vectors, a number in all lanes, and sums: they fit 16 registers."""
    graph = parse(
        """
        graph "real and imaginary"
        dims n = 98, m = 201, k = 400, p = 2
        %x : f32{k,n} = input "x" [n, k]
        %a : f32{k,m} = input "a" [m, k]
        %b : f32{k,m} = input "b" [m, k]
        %y : f32{m,n,p} = sum{k} select(index(p) == 0, %x[k, n] * %a[k, m], %x[k, n] * %b[k, m])
        output "y" [n, m, p] = %y
        """
    )
    extents = graph.extents
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    orders = {"x": "nk", "a": "mk", "b": "mk", "y": "nmp"}
    layouts = {v: dense(tuple(d), extents) for v, d in orders.items()}
    kernel = lower(Group("g", (nest,), ("n", "m", "p"), ("y",)), graph.values, layouts, extents)
    tile = choose_tile(analyse(kernel, frozenset({"a", "b"})), x86.avx2())
    assert tile is not None
    assert dict(tile.rows).get("p") == 2
    assert tile.size + 2 * tile.vectors + 1 <= x86.avx2().registers


def test_weights_of_chunks_of_rows_are_packed_by_tiles() -> None:
    """What a tile reads at one step of the reduction lies together."""
    text = FAR_ROWS.replace("co = 64", "co = 256").replace("p = 3136", "p = 196")
    kernel, _ = lowered(text.replace("ci = 256", "ci = 1024"))
    shape = analyse(kernel, frozenset({"w"}))
    tile = RegisterTile("p", 1, (("co", 26),), 1e9)
    choice = tile_of(kernel, shape, tile, MACHINE)
    (packed,) = (s for s in choice.schedule if isinstance(s, Pack))
    assert packed == Pack("w", ("co", "ci"), (("co", 8),))
    text = str(apply_schedule(kernel, choice.schedule))
    assert "for co.i.i in [0, 8) unroll" in text


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()])
def test_a_sum_over_nothing_has_a_schedule(machine: Machine) -> None:
    kernel, constants = lowered("""
        graph "sum over nothing"
        dims i = 3, j = 3
        %x : f32{i} = input "x" [i]
        %w : f32{i} = input "w" [i]
        %y : f32{i,j} = sum{} %x[i] * %w[i]
        output "y" [i, j] = %y
    """)
    apply_schedule(kernel, choose(kernel, machine, constants).schedule)


@pytest.mark.parametrize(("k", "parts"), [(1536, ("k.b",)), (96, ())])
@pytest.mark.parametrize("most", [4096, 1 << 31])
def test_rows_of_any_number_are_taken_in_chunks_that_share_what_is_loaded(
    k: int, parts: tuple[str, ...], most: int
) -> None:
    """A chunk's rows go over all panels, long sums part by part, before the next chunk's do."""
    kernel, _ = lowered(
        f"""
        graph "product of any number of rows"
        symbols rows = 1..{most}
        dims i = rows, j = 384, k = {k}
        %x : f32{{i,k}} = input "x" [i, k]
        %w : f32{{j,k}} = input "w" [k, j]
        %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
        output "y" [i, j] = %y
        """
    )
    schedule = choose(kernel, MACHINE, frozenset({"w"})).schedule
    parted = {s.var: s.factor for s in schedule if isinstance(s, Split)}
    assert parted["i.o"] >= 16
    kernel = apply_schedule(kernel, schedule)
    around: dict[str, tuple[str, ...]] = {}

    def visit(body: tuple[Stmt, ...], outer: tuple[str, ...]) -> None:
        for s in body:
            if isinstance(s, Loop):
                around[s.var] = outer
                visit(s.body, (*outer, s.var))
            elif isinstance(s, Branch):
                visit(s.then, outer)
                visit(s.orelse, outer)

    visit(kernel.body, ())
    assert around["i.o.i"] == ("i.o.o", "j.o", *parts)


@pytest.mark.parametrize(("rows", "asked"), [(4, False), (17, True)])
def test_panels_are_asked_for_from_whatever_loop_goes_over_them(rows: int, asked: bool) -> None:
    """Weights by heads: the loop over heads goes from panel to panel."""
    kernel, _ = lowered(
        f"""
        graph "heads"
        dims i = {rows}, h = 12, j = 32, k = 384
        %x : f32{{i,k}} = input "x" [i, k]
        %w : f32{{h,j,k}} = input "w" [h, k, j]
        %y : f32{{h,i,j}} = sum{{k}} %x[i, k] * %w[h, j, k]
        output "y" [h, i, j] = %y
        """
    )
    steps = choose(kernel, MACHINE, frozenset({"w"})).schedule
    hints = [s for s in steps if isinstance(s, PrefetchBlock) and s.block == "h"]
    assert bool(hints) == asked


@pytest.mark.parametrize("weights", ["f16", "f32"])
@pytest.mark.parametrize("rows", ["1..512@128", "1"])
def test_single_rows_ask_for_what_they_convert_where_hints_bring_more(
    weights: str, rows: str
) -> None:
    counted = rows != "1"
    sizes = f"symbols rows = {rows}\ndims i = rows" if counted else "dims i = 1"
    kernel, _ = lowered(
        f"""
        graph "row"
        {sizes}, j = 2048, k = 768
        %x : f32{{i,k}} = input "x" [i, k]
        %w : {weights}{{j,k}} = input "w" [k, j]
        %y : f32{{i,j}} = sum{{k}} %x[i, k] * f32(%w[j, k])
        output "y" [i, j] = %y
        """.replace("f32(%w[j, k])", "%w[j, k]" if weights == "f32" else "f32(%w[j, k])")
    )

    def once(machine: Machine) -> list[PrefetchBlock]:
        """The hints that a single tile of rows gives."""
        schedule = choose(kernel, machine, frozenset({"w"})).schedule
        apply_schedule(kernel, schedule)
        assert any(isinstance(s, Prepare) for s in schedule) == (counted and weights == "f16")
        hints = (s for s in schedule if isinstance(s, PrefetchBlock) and s.buffer == "w")
        return [s for s in hints if s.rows == 1 or not counted]

    assert not once(MACHINE)
    hints = once(replace(MACHINE, hint_gain=1.5))
    assert [s.level for s in hints] == ([2] if weights == "f16" else [])


def test_rows_of_the_part_that_data_choose_lie_together() -> None:
    """Not each beside those of the other parts."""
    kernel, _ = lowered(
        """
        graph "one of four"
        dims j = 96, k = 640, z = 4
        %at : i64{} = input "at" []
        %x : f32{k} = input "x" [k]
        %w : f32{j,k,z} = input "w" [j, z, k]
        %y : f32{j} = sum{k} %x[k] * %w[z=%at, j, k]
        output "y" [j] = %y
        """
    )
    point = Rows(("j",), (Lane("k", 4),))
    choice = rows(kernel, analyse(kernel, frozenset({"w"})), point, MACHINE)
    assert Pack("w", ("z", "j", "k")) in choice.schedule


def test_panels_are_gone_over_in_the_order_of_their_memory() -> None:
    """Heads of more than a panel: its next one is the same head's, not another's."""
    kernel, _ = lowered(
        """
        graph "wide heads"
        dims i = 128, h = 12, j = 64, k = 768
        %x : f32{i,k} = input "x" [i, k]
        %w : f32{h,j,k} = input "w" [h, k, j]
        %y : f32{h,i,j} = sum{k} %x[i, k] * %w[h, j, k]
        output "y" [h, i, j] = %y
        """
    )
    choice = choose(kernel, MACHINE, frozenset({"w"}))
    (packed,) = (s for s in choice.schedule if isinstance(s, Pack))
    assert packed.order[:2] == ("h", "j")
    loops = [
        s.var
        for s in walk_stmts(apply_schedule(kernel, choice.schedule).body)
        if isinstance(s, Loop)
    ]
    assert loops[:2] == ["h", "j.o"]
    assert any(isinstance(s, PrefetchBlock) and s.block == "j.o" for s in choice.schedule)


@pytest.mark.parametrize(
    ("rows", "products", "columns", "whole"),
    [
        (4096, 20, 960, True),
        (16, 20, 960, False),  # all of them stay in the second cache
        (4096, 200, 960, False),  # the panels do not stay there
        (96, 5, 65536, True),  # nor do these, but tiles store more than they read of them
        (96, 20, 16384, False),
    ],
)
def test_whole_rows_are_stored_where_panels_come_quickly(
    rows: int, products: int, columns: int, *, whole: bool
) -> None:
    kernel, constants = lowered(
        f"""
        graph "rows"
        dims i = {rows}, j = {columns}, k = {products}
        %x : f32{{i,k}} = input "x" [i, k]
        %w : f32{{j,k}} = input "w" [k, j]
        %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
        output "y" [i, j] = %y
        """
    )
    found = apply_schedule(kernel, choose(kernel, x86.avx2(), constants | {"w"}).schedule)
    loops = [s.var for s in walk_loops(found.body)]
    blocks = [v for v in dict.fromkeys(loops) if v.startswith(("i", "j")) and v.endswith(".o")]
    assert (blocks[-1] == "j.o") == whole


@pytest.mark.parametrize(
    ("most", "chunks"),
    [(2147483648, True), (16, False)],  # 16 rows stay in the second cache
)
def test_rows_that_a_run_counts_are_taken_a_few_tiles_at_a_time(most: int, *, chunks: bool) -> None:
    """A few rows read each panel once, and of many what is stored and read stays near."""
    kernel, constants = lowered(
        f"""
        graph "rows"
        symbols n = 0..{most}@1
        dims i = n, j = 960, k = 20
        %x : f32{{i,k}} = input "x" [i, k]
        %w : f32{{j,k}} = input "w" [k, j]
        %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
        output "y" [i, j] = %y
        """
    )
    found = apply_schedule(kernel, choose(kernel, x86.avx2(), constants | {"w"}).schedule)
    loops = list(dict.fromkeys(s.var for s in walk_loops(found.body)))
    panel, rows = loops.index("j.o"), [v for v in loops if v.startswith("i.o")]
    assert any(loops.index(v) > panel for v in rows)
    assert (len(rows) > 1 and loops.index(rows[0]) < panel) == chunks


@pytest.mark.parametrize(
    ("channels", "rows", "columns", "whole"),
    [
        (24, 128, 128, True),
        (24, 128, 8, False),
        (32, 64, 64, True),  # few sets have the lines of a column
        (32, 64, 63, False),
    ],
)
def test_rows_of_pixels_are_stored_whole_where_lines_do_not_stay(
    channels: int, rows: int, columns: int, *, whole: bool
) -> None:
    """Where operands are others for each column, what is stored beside a tile comes next."""
    kernel, constants = lowered(
        f"""
        graph "resized"
        dims i = 64, x = {columns}, y = {rows}, c = {channels}, k = 2
        %v : f32{{c,i,y}} = input "v" [i, y, c]
        %at : i64{{k,x}} = input "at" [x, k]
        %w : f32{{k,x}} = input "w" [x, k]
        %o : f32{{c,x,y}} = sum{{k}} %v[c, i=%at[k, x], y] * %w[k, x]
        output "o" [y, x, c] = %o
        """
    )
    tables = constants | {"at", "w"}
    found = apply_schedule(kernel, choose(kernel, x86.avx512(), tables).schedule)
    loops = [s.var for s in walk_loops(found.body)]
    assert (loops.index("y.o") < loops.index("x")) == whole


PACKED = """
graph "packed"
dims m = {m}, n = 96, g = 4, k = 128
%x : f32{{k,m}} = input "x" [m, k]
%w : u4{{k,n}} = input "w" [k, n]
%s : f32{{g,n}} = input "s" [g, n]
%y : f32{{m,n}} = sum{{k}} %x[k, m] * ((f32(%w[k, n]) - 8.0) * %s[g=k // 32, n])
output "y" [m, n] = %y
"""


@pytest.mark.parametrize(("m", "prepared"), [(1, False), (3, False), (40, True)])
@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()], ids=str)
def test_weights_of_many_tiles_are_computed_once(m: int, prepared: bool, machine: Machine) -> None:
    kernel = kernel_of(PACKED.format(m=m))
    schedule = choose(kernel, machine, frozenset(["w", "s"])).schedule
    assert any(isinstance(step, Prepare) for step in schedule) is prepared


@pytest.mark.parametrize("machine", [x86.avx2(), x86.avx512()], ids=str)
def test_weights_are_computed_once_for_more_rows_than_the_second_cache_holds(
    machine: Machine,
) -> None:
    rows = 2 * machine.l2 // (4096 * 4)
    text = PACKED.replace("g = 4, k = 128", "g = 128, k = 4096").format(m=rows)
    kernel = kernel_of(text.replace("n = 96", "n = 1024"))
    found = apply_schedule(kernel, choose(kernel, machine, frozenset(["w", "s"])).schedule)
    (columns,) = found.body
    assert isinstance(columns, Loop)
    assert columns.var == "n.o"
    assert any(b.name == "w.prepared" for b in found.locals)


@pytest.mark.parametrize(("l3", "once"), [(32 << 20, True), (1 << 20, False)])
def test_weights_are_computed_once_where_arithmetic_hides_that_rows_come_from_afar(
    l3: int, *, once: bool
) -> None:
    """Rows in parts would stay in the second cache; each would compute all weights anew."""
    kernel = kernel_of("""
        graph "packed"
        dims m = 64, n = 4096, d = 128, k = 4096, l = 32
        %x : f32{k,m} = input "x" [m, k]
        %w : u4{d,l,n} = input "w" [n, d, l]
        %s : f32{d,n} = input "s" [n, d]
        %y : f32{m,n} = sum{d,l} %x[k=32*d + l, m] * (f32(%w[d, l, n]) * %s[d, n])
        output "y" [m, n] = %y
    """)
    machine = replace(x86.avx2(l2=1 << 20), l3=l3)
    found = apply_schedule(kernel, choose(kernel, machine, frozenset(["w", "s"])).schedule)
    (outer,) = found.body
    assert isinstance(outer, Loop)
    assert (outer.var == "n.o") is once


@pytest.mark.parametrize("kind", ["f16", "i8"])
def test_weights_are_converted_for_several_rows(kind: str) -> None:
    """Where multiply-adds take a whole cycle, so does it to make numbers of what is stored."""
    machine = replace(x86.avx512(), fma_per_cycle=1.0)
    kernel = kernel_of(f"""
        graph "p"
        symbols rows = 1..512@1
        dims m = rows, n = 4096, k = 768
        %x : f32{{k,m}} = input "x" [m, k]
        %w : {kind}{{k,n}} = input "w" [k, n]
        %y : f32{{m,n}} = sum{{k}} %x[k, m] * f32(%w[k, n])
        output "y" [m, n] = %y
    """)
    tile = choose_tile(analyse(kernel, frozenset(["w"])), machine)
    assert tile is not None
    assert dict(tile.rows).get("m", 1) >= 4
    # Nor do the sums of a single row wait for each other: a vector takes two operations.
    assert 2 * tile.vectors >= machine.fma_latency


CACHE = """
graph "scores"
symbols past = 0..2000@512, new = 1..100@1
dims h = 3, i = new, j = past, d = 64
%q : f32{d,h,i} = input "q" [i, h, d]
%k : f32{d,j} = input "k" [j, d]
%y : f32{h,i,j} = sum{d} %q[d, h, i] * %k[d, j]
output "y" [i, h, j] = %y
"""


def test_squares_are_transposed_whole_and_asked_for_in_time() -> None:
    """Vectors across rows of a cache, which few queries read: memory takes longest.

    What is asked for comes to the first cache where that has room for it.
    """
    machine = x86.avx512()
    schedule = choose(kernel_of(CACHE), machine, frozenset()).schedule
    assert Split("d", machine.width) in schedule
    assert PrefetchBlock("k", "j.o", 0, machine.line_bytes // 4, level=1) in schedule
    long = CACHE.replace("d = 64", "d = 256")
    far = choose(kernel_of(long), machine, frozenset()).schedule
    assert PrefetchBlock("k", "j.o", 0, machine.line_bytes // 4, level=2) in far
    turned = CACHE.replace('"k" [j, d]', '"k" [d, j]')
    other = choose(kernel_of(turned), machine, frozenset()).schedule
    assert Split("d", machine.width) not in other


HEADS = """
graph "scores"
symbols new = 1..100@1
dims h = 8, i = new, j = 1024, d = 16
%q : f32{d,h,i} = input "q" [i, h, d]
%k : f32{d,h,j} = input "k" [h, j, d]
%y : f32{h,i,j} = sum{d} %q[d, h, i] * %k[d, h, j]
output "y" [i, h, j] = %y
"""
BETWEEN = HEADS.replace("[h, j, d]", "[j, h, d]")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        pytest.param(HEADS, True, id="panels in one piece"),
        # With each panel of one head, those of all would come.
        pytest.param(BETWEEN, False, id="other heads between the rows"),
        # Nor is the next panel at a distance that is known before a run.
        pytest.param(
            BETWEEN.replace("symbols", "symbols heads = 1..100@8,").replace("h = 8", "h = heads"),
            False,
            id="as many heads as a run says",
        ),
        pytest.param(
            HEADS.replace("symbols", "symbols size = 1..100@16,").replace("d = 16", "d = size"),
            False,
            id="rows as long as a run says",
        ),
    ],
)
def test_panels_across_memory_are_asked_for_where_they_are_in_one_piece(
    text: str, asked: bool
) -> None:
    kernel = kernel_of(text)
    for machine in (x86.avx2(), x86.avx512()):
        schedule = choose(kernel, machine, frozenset()).schedule
        assert any(isinstance(s, PrefetchBlock) for s in schedule) == asked
        apply_schedule(kernel, schedule)


def test_squares_are_transposed_once_for_all_tiles() -> None:
    """Elements lie side by side then."""
    machine = x86.avx512()
    text = CACHE.replace("1..100@1", "1..100@64")
    schedule = choose(kernel_of(text), machine, frozenset()).schedule
    assert [s.buffer for s in schedule if isinstance(s, Prepare)] == ["k"]
    assert Split("d.p", machine.width) in schedule
    # What lies side by side is read from where it is.
    beside = text.replace('"k" [j, d]', '"k" [d, j]')
    other = choose(kernel_of(beside), machine, frozenset()).schedule
    assert not any(isinstance(s, Prepare) for s in other)


def test_weights_that_are_read_as_they_are_need_no_preparation() -> None:
    text = PACKED.format(m=40).replace("((f32(%w[k, n]) - 8.0) * %s[g=k // 32, n])", "%w[k, n]")
    kernel = kernel_of(text.replace("%w : u4", "%w : f32"))
    assert not any(
        isinstance(step, Prepare)
        for step in choose(kernel, MACHINE, frozenset(["w", "s"])).schedule
    )


BYTES = """
graph "bytes"
dims m = 64, n = 96, k = 128
%x : i16{k,m} = input "x" [m, k]
%w : i8{k,n} = input "w" [k, n]
%y : i32{m,n} = sum{k} i32(%x[k, m]) * i32(%w[k, n])
output "y" [m, n] = %y
"""


def test_tiles_of_pairs_leave_registers_for_products() -> None:
    machine = x86.avx2()
    shape = analyse(kernel_of(BYTES), frozenset(["w"]))
    tile = choose_tile(shape, machine)
    assert tile is not None
    # Sums, a vector of weights each, a pair of one row, and two products on their way.
    assert tile.size + tile.vectors + 1 + 2 <= machine.registers
    assert product_registers(shape.reductions[0], machine) == 2
    text = BYTES.replace("i16{", "u8{")
    # Those of small factors take one more, for the ones that sums of 16 bits are multiplied by.
    kernel = kernel_of(text)
    for known, registers in ((("n",), 2), (("k",), 3)):
        args = tuple(
            replace(b, small=Small(pairs=known)) if b.name == "w" else b for b in kernel.args
        )
        small = analyse(replace(kernel, args=args), frozenset(["w"]))
        assert product_registers(small.reductions[0], machine) == registers
    tile = choose_tile(small, machine)
    assert tile is not None
    assert tile.size + tile.vectors + 1 + 3 <= machine.registers
    able = replace(machine, features=machine.features | {"avxvnni"})
    assert product_registers(analyse(kernel_of(text), frozenset(["w"])).reductions[0], able) == 0


def test_tiles_leave_registers_for_signs_that_rows_share() -> None:
    """Five rows of two vectors would load them for each product: ten of one vector do not."""
    text = BYTES.replace("i16{", "i8{").replace("w : i8", "w : u8").replace("m = 64", "m = 10")
    text = text.replace("k = 128", "k = 256").replace("n = 96", "n = 256")
    text = text.replace("i32(%x[k, m])", "i32(%x[k, m] ^ %s[k, n])")
    kernel = kernel_of(text.replace("%y :", '%s : i8{k,n} = input "s" [k, n]\n%y :'))
    args = tuple(replace(b, small=Small(any_two=True)) if b.name == "w" else b for b in kernel.args)
    machine = x86.avx2()
    shape = analyse(replace(kernel, args=args), frozenset(["w", "s"]))
    assert shape.reductions[0].together(machine) == QUAD
    tile = choose_tile(shape, machine)
    assert tile is not None
    assert machine.holds_signs(tile.size, tile.vectors)


def test_bytes_that_are_widened_in_the_loop_are_shared_by_more_rows() -> None:
    features = MACHINE.features | {"avx512vnni"}
    slow = replace(MACHINE, features=features, fma_per_cycle=1.0, loads_per_cycle=1.0)
    machine = x86.with_costs(slow, "znver4")
    rows = {}
    for dtype in ("i8", "i16"):
        text = BYTES.replace("%w : i8", f"%w : {dtype}").replace("n = 96", "n = 1024")
        tile = choose_tile(analyse(kernel_of(text), frozenset(["w"])), machine)
        assert tile is not None
        rows[dtype] = prod(f for _, f in tile.rows)
    assert rows["i8"] > rows["i16"]


ONE_ROW = """
graph "one row"
dims t = 4096, j = 1000, k = 768
%x : f32{k,t} = input "x" [t, k]
%y : f32{j} = sum{k} %x[k, t=3] * 0.0
output "y" [j] = %y
"""


def test_a_large_operand_may_pass_by_where_none_depends_on_the_vector() -> None:
    """As weights of zeros leave of a product: nothing is streamed, and no rows are split."""
    loops = [s.var for s in walk_loops(scheduled(ONE_ROW).body)]
    assert {v.partition(".")[0] for v in loops} == {"j", "k"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("y, x, c", "c, y, x"), ("c, y, x", "y, x, c")],
    ids=["colours to the front", "to the end"],
)
def test_vectors_take_turns_over_a_short_loop_that_either_operand_lies_along(
    given: str, wanted: str
) -> None:
    """All three colours of a line are used before the next line is loaded, or stored."""
    kernel, constants = lowered(f"""
        graph "colours"
        dims c = 3, x = 64, y = 8
        %i : f32{{c,x,y}} = input "i" [{given}]
        %o : f32{{c,x,y}} = %i[c, x, y]
        output "o" [{wanted}] = %o
        """)
    (space,) = spaces(kernel, MACHINE, constants)
    assert space.default is not None
    point = space.default.point
    assert point.form is Form.TURNS
    assert point.order == ("y", "c", "x")
    assert space.choice(point) == choose(kernel, MACHINE, constants)


@pytest.mark.parametrize(
    ("columns", "value", "fused"),
    [
        ("161", "select(index(b - a) > 0, %x[a, b], -1.0)", False),
        ("160", "select(index(b - a) > 0, %x[a, b], -1.0)", True),
        ("7", "select(index(b - a) > 0, %x[a, b], -1.0)", True),
        ("n", "select(index(b - a) > 0, %x[a, b], -1.0)", False),
        ("161", "select(%x[a, b] > 0.0, %x[a, b], -1.0)", True),
        ("n", "select(%x[a, b] > 0.0, %x[a, b], -1.0)", True),
    ],
)
def test_loops_whose_places_are_asked_for_become_one_where_no_lane_divides(
    columns: str, value: str, fused: bool
) -> None:
    kernel, _ = lowered(
        f"""
        graph "triangle"
        symbols n = 1..4096@160
        dims a = 9, b = {columns}
        %x : f32{{a,b}} = input "x" [a, b]
        %y : f32{{a,b}} = {value}
        output "y" [a, b] = %y
        """
    )
    schedule = choose(kernel, MACHINE, frozenset()).schedule
    assert any(isinstance(s, Fuse) for s in schedule) == fused


@pytest.mark.parametrize(
    ("limits", "exceeded", "varied"),
    [
        ("1..6@6", False, False),
        ("1..6@1", False, True),  # most runs have fewer rows than the tile
        ("1..5@5", False, False),
        ("1..7@6", True, True),
        ("0..2147483648@6", True, True),
    ],
)
def test_rows_of_a_known_number_at_most(limits: str, exceeded: bool, varied: bool) -> None:
    kernel, constants = lowered(
        f"""
        graph "few rows"
        symbols n = {limits}
        dims i = n, j = 48, k = 32
        %x : f32{{i,k}} = input "x" [i, k]
        %w : f32{{j,k}} = input "w" [k, j]
        %y : f32{{i,j}} = sum{{k}} %x[i, k] * %w[j, k]
        output "y" [i, j] = %y
        """
    )
    shape = analyse(kernel, constants)
    assert (shape.may_exceed("i", 6), shape.varies("i", 6)) == (exceeded, varied)
    assert not shape.may_exceed("j", 6)
    assert not shape.varies("j", 6)
