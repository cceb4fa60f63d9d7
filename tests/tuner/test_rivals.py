"""Default schedules that estimates prefer to those that templates like: they compute the same."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.strided import FILTERED, POOLED, TURNED
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import NotApplicable, apply_schedule
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces, usual
from rutc.tuner.templates.pointwise import Form, Pointwise
from tests.machines import V3, V4, on_machines, runnable
from tests.tensor_ir.test_steps import kernel_of
from tests.tuner.subjects import Subject, of_text

BOXES = """
graph "boxes"
dims c = 3, p = 61, q = 61, y = 28, x = 28, ky = 7, kx = 7
%v : u8{c,p,q} = input "v" [c, p, q]
%o : i32{y,x} = sum{c,ky,kx} i32(%v[c, p=2*y+ky, q=2*x+kx])
output "o" [y, x] = %o
"""
"""Sums of short rows: of lanes along seven bytes most are idle."""
PLACES = """
graph "places"
dims i = 37, j = 53, c = 2
%v : f32{j,i,c} = input "v" [j, i, c]
%o : f32{i,j} = (%v[j, i, c=1] + 1.0) * 0.5
output "o" [i, j] = %o
"""
"""Every other number along memory, stored across it."""
SCORES = """
graph "scores"
dims g = {g}, i = {i}, j = {j}, d = {d}
%q : f32{{g,i,d}} = input "q" [i, g, d]
%k : {dtype}{{d,j}} = input "k" [j, d]
%y : f32{{g,i,j}} = sum{{d}} %q[g, i, d] * {key}
output "y" [i, g, j] = %y
"""
"""Queries times keys, which lie along what is summed."""
FAR = """
graph "far"
dims n = 64, c = 8, d = 8, h = 4, k = 12, z = 48
%v : f32{n,c,d,z} = input "v" [n, c, d, z]
%o : f32{n,c,d,h} = sum{k} %v[n, c, d, z=12*h+k] * %v[n, c, d, z=12*h+k]
output "o" [n, d, h, c] = %o
"""
"""No loop lies along memory, which rows of some lie much farther apart in than of others."""
EDGED = """
graph "edged"
dims i = 16, x = 300, o = 306
%v : {dtype}{{i,x}} = input "v" [i, x]
%o : {dtype}{{i,o}} = %v[i, x=o-3 else 0]
output "o" [i, o] = %o
"""
"""Rows with edges that are filled."""
ROTATED = """
graph "rotated"
dims n = 12, s = 28, i = 38, j = 19
%x : f32{n,s,i} = input "x" [n, s, i]
%c : f32{s,j} = input "c" [s, j]
%d : f32{s,j} = input "d" [s, j]
%o : f32{n,s,i} = select(index(i % 2 - 1) < 0, EVEN, ODD)
output "o" [n, s, i] = %o
"""
"""Pairs of neighbours, rotated: loads along the store are of few registers, whose lanes are known.

Along n only what it reads of one number for all lanes lies together.
"""
LEFT, RIGHT = (f"%x[n, s, i=2*(i // 2){shift}]" for shift in ("", " + 1"))
COS, SIN = (f"%{v}[s, j=i // 2]" for v in "cd")
ROTATED = ROTATED.replace("EVEN", f"{LEFT} * {COS} - {RIGHT} * {SIN}")
ROTATED = ROTATED.replace("ODD", f"{LEFT} * {SIN} + {RIGHT} * {COS}")

SAMPLED = """
graph "sampled"
dims c = {c}, h = 56, w = 56, y = 28, x = {x}
%v : f32{{c,h,w}} = input "v" [c, h, w]
%p : i64{{y,x}} = input "p" [y, x]
%q : i64{{y,x}} = input "q" [y, x]
%o : f32{{c,y,x}} = %v[c, h=%p[y, x], w=%q[y, x] else 0.0]
output "o" [c, y, x] = %o
"""
"""Elements of an image's channels at places that data tell, some of them outside."""


def subject(text: str) -> Subject:
    return of_text(text, frozenset(), Random(0))


def run(found: Subject, machine: Machine) -> None:
    choice = choose(found.kernel, machine, found.free)
    found.run(choice, machine, 1 if runnable(machine) else None)


def test_sums_of_short_rows_have_lanes_beside_each_other() -> None:
    found = subject(BOXES)
    own = spaces(found.kernel, V3, found.free)
    tiled, rows = own[-2:]
    assert tiled.default is not None
    assert rows.default is not None
    assert (tiled.default.liked, tiled.default.weighed) == (False, True)
    space, point = usual(own) or (None, None)
    assert (space, point) == (tiled, tiled.default.point)
    assert tiled.cycles(point) < rows.cycles(rows.default.point)
    # Where a schedule has to gain all that the other takes, none is preferred.
    plans = replace(V3.coefficients.plans, least_gain=1.0)
    strict = replace(V3, coefficients=replace(V3.coefficients, plans=plans))
    space, _ = usual(spaces(found.kernel, strict, found.free)) or (None, None)
    assert space is not None
    assert space.template.name == "rows"


@on_machines()
def test_lanes_lie_along_the_store_where_loads_take_few_registers(machine: Machine) -> None:
    found = subject(ROTATED)
    (space,) = spaces(found.kernel, machine, found.free)
    _, point = usual([space]) or (None, None)
    assert isinstance(point, Pointwise)
    assert point.form is Form.VECTORS
    loops = {x.var for x in walk_loops(found.kernel.body)}
    (store,) = (t for t in space.shape.touches if t.is_store)
    assert store.unit(point.order[-1])
    for v in loops - {point.order[-1]}:
        other = replace(point, order=(*(x for x in point.order if x != v), v))
        assert space.cycles(point) < space.cycles(other)
    run(found, machine)


def test_lanes_that_lie_apart_are_those_that_lie_near() -> None:
    """What they load is in a few lines, which they do not lose before the next step reads them."""
    found = subject(FAR)
    space, point = usual(spaces(found.kernel, V4, found.free)) or (None, None)
    assert space is not None
    assert space.template.name == "tiled"
    strides = [t.strides[point.tile.vector] for t in space.shape.touches if not t.is_store]
    assert set(strides) == {12}
    run(found, V4)


@on_machines
def test_sums_of_short_rows(machine: Machine) -> None:
    run(subject(BOXES), machine)


@on_machines
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_tiles_that_share_turned_vectors_are_as_large_as_of_vectors_side_by_side(
    machine: Machine, dtype: str
) -> None:
    """Of few vectors, each of which a tile would turn for itself, sums wait for each other."""
    key = "%k[d, j]" if dtype == "f32" else "f32(%k[d, j])"
    found = subject(SCORES.format(dtype=dtype, key=key, g=3, i=14, j=69, d=32))
    (space,) = (s for s in spaces(found.kernel, machine, found.free) if s.template.name == "tiled")
    assert space.default is not None
    larger = [x for x in space.default.rivals if x.prepare == "k"]
    assert larger
    sizes = [space.default.point.tile.size, *(x.tile.size for x in larger)]
    if machine is V3:
        # There are registers for twelve sums, and seven hide how long one takes.
        assert sizes[0] < machine.fma_latency * machine.fma_per_cycle <= max(sizes)
        chosen = usual((space,))
        assert chosen is not None
        assert chosen[1] in larger
    run(found, machine)


@on_machines
def test_loads_in_steps_are_turned_in_squares(machine: Machine) -> None:
    found = subject(PLACES)
    space, point = usual(spaces(found.kernel, machine, found.free)) or (None, None)
    assert space is not None
    assert space.default is not None
    assert space.default.point.form is Form.VECTORS
    assert isinstance(point, Pointwise)
    assert (point.form, point.order) == (Form.SQUARES, ("j", "i"))
    run(found, machine)


@on_machines
@pytest.mark.parametrize("dtype", ["f32", "u8"])
@pytest.mark.parametrize(
    ("c", "p"), [(1024, 196), (128, 196), (512, 196), (512, 50), (768, 100), (61, 37), (5, 1)]
)
def test_squares_follow_one_another_as_estimates_tell(
    machine: Machine, c: int, p: int, dtype: str
) -> None:
    """Those of words, and those of bytes."""
    found = subject(TURNED.format(c=c, p=p, dtype=dtype))
    (space,) = spaces(found.kernel, machine, found.free)
    assert space.default is not None
    chosen = usual((space,))
    assert chosen is not None
    first = space.cycles(space.default.point)
    least = (1 - machine.coefficients.plans.least_gain) * first
    clear = [r for r in space.default.rivals if space.cycles(r) < least]
    assert chosen[1] == (clear[0] if clear else space.default.point)
    if p == 196 and dtype == "f32":
        # Of registers of 8 words, lines that are left half-written would be fetched again; and
        # rows of 2048 bytes lie in two sets of the first cache, where stores wait for each other.
        assert (chosen[1] != space.default.point) == (machine is V3 or c == 512)
    if (c, p) == (768, 100) and dtype == "u8":
        # Lines of results are left half-written by all squares of a column.
        assert chosen[1] != space.default.point
    if space.default.point.form is Form.SQUARES:
        orders = [r.order[::-1] for r in space.default.rivals]
        assert orders == [space.default.point.order]
    run(found, machine)


SMALL_POOL = POOLED.format(size=57, rows=28, c=67, taps=3)


@on_machines
@pytest.mark.parametrize(
    ("text", "template"),
    [(SMALL_POOL, "windows"), (POOLED.format(size=112, rows=56, c=64, taps=2), "tiled")],
)
def test_windows_without_weights_are_weighed_against_tiles(
    machine: Machine, text: str, template: str
) -> None:
    found = subject(text)
    own = spaces(found.kernel, machine, found.free)
    first = next(s for s in own if s.default is not None and s.default.liked)
    assert first.default is not None
    assert (first.template.name, first.default.weighed) == ("windows", True)
    chosen = usual(own)
    assert chosen is not None
    assert chosen[0].template.name == template
    run(found, machine)


GROUPS = """
graph "groups"
dims y = 14, x = 14, g = 4, o = 34, i = {i}, c = {c}
%v : f32{{y,x,c}} = input "v" [y, x, c]
%w : f32{{g,o,i}} = input "w" [g, o, i]
%r : f32{{y,x,g,o}} = sum{{i}} %v[y, x, c={i}*g+i] * %w[g, o, i]
output "r" [y, x, g, o] = %r
"""
"""Products in groups of channels: read as windows that pass from group to group."""


@on_machines
@pytest.mark.parametrize("size", [1, 2, 7, 34])
def test_windows_that_do_not_overlap_are_weighed_against_tiles(machine: Machine, size: int) -> None:
    found = of_text(GROUPS.format(i=size, c=4 * size), frozenset({"w"}), Random(0))
    own = spaces(found.kernel, machine, found.free)
    windows = [s for s in own if s.template.name == "windows" and s.default is not None]
    if size == 34:
        assert windows
        assert windows[0].default is not None
        assert (windows[0].default.liked, windows[0].default.weighed) == (True, True)
        assert (usual(own) or own)[0].template.name == "tiled"
    run(found, machine)


HEADS = """
graph "heads"
symbols t = 1..1500@500
dims i = t, j = t, h = 4, k = 36, c = 144
%q : f32{c,i} = input "q" [i, c]
%p : f32{c,j} = input "p" [c, j]
%r : f32{h,i,j} = sum{k} %q[c=36*h + k, i] * %p[c=36*h + k, j]
output "r" [h, i, j] = %r
"""
"""Products in groups whose rows and columns a run counts, as scores of heads are."""


@on_machines
def test_windows_that_do_not_overlap_are_weighed_whatever_the_size(machine: Machine) -> None:
    space, _ = usual(spaces(kernel_of(HEADS), machine, frozenset())) or (None, None)
    assert space is not None
    assert space.template.name == "tiled"


def orders(text: str, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """The loop of a tile's rows, and the loops around, of the windows that templates like."""
    found = of_text(text, frozenset({"w"}), Random(0))
    own = spaces(found.kernel, machine, found.free)
    space = next(s for s in own if s.template.name == "windows")
    assert space.default is not None
    point = space.default.point
    run(found, machine)
    assert point.rows is not None
    return point.rows[0], point.order


def test_tiles_of_rows_follow_one_another_as_they_lie_in_memory() -> None:
    """Of an image whose channels lie side by side, rows are outside of columns."""
    assert orders(SMALL_POOL, V4) == ("y", ("y", "x", "c"))


PLANES = """
graph "planes"
dims p = {size}, q = {size}, y = 14, x = 14, c = {c}, i = 3, j = 3
%v : f32{{c,p,q}} = input "v" [p, q, c]
%w : f32{{c,i,j}} = input "w" [i, j, c]
%o : f32{{c,y,x}} = sum{{i,j}} %v[c, p={step}*y+{far}*i, q={step}*x+{far}*j] * %w[c, i, j]
output "o" [y, x, c] = %o
"""
"""Depthwise sums of images whose channels lie side by side."""


@on_machines
@pytest.mark.parametrize(
    ("c", "step", "far"),
    [(43, 1, 1), (400, 1, 1), (400, 1, 2), (400, 2, 1), (392, 1, 1), (400, 3, 1)],
)
def test_vectors_are_outside_of_columns_that_the_first_cache_loses(
    machine: Machine, c: int, step: int, far: int
) -> None:
    """Not where it keeps a column of all channels, nor where columns have nothing in common.

    Nor where vectors share lines, as those of half a line do, nor where the next pixel is farther
    away than the hardware foresees: with the machine's own pages, of all with many channels.
    """
    size = 13 * step + 2 * far + 1
    found = of_text(PLANES.format(c=c, step=step, far=far, size=size), frozenset({"w"}), Random(0))

    def order(machine: Machine) -> tuple[str, ...]:
        own = spaces(found.kernel, machine, found.free)
        (space,) = [s for s in own if s.template.name == "windows"]
        assert space.default is not None
        assert space.default.point.rows[0] == "y"
        return tuple(space.default.point.order)

    as_stored, in_columns = ("y", "x", "c"), ("y", "c", "x")
    lost = machine is V4 and c == 400 and step < 3
    foreseen = replace(machine, page_bytes=1 << 20)
    assert order(foreseen) == (in_columns if lost else as_stored)
    assert order(replace(foreseen, l1=8 * machine.l1)) == as_stored
    assert order(machine) == as_stored
    run(found, foreseen)


IMAGES = """
graph "images"
dims p = {p}, q = {x}, y = {y}, x = {x}, c = {c}, i = 3, j = 3
%v : f32{{c,p,q}} = input "v" [p, q, c]
%w : f32{{c,i,j}} = input "w" [i, j, c]
%o : f32{{c,y,x}} = sum{{i,j}} %v[c, p={step}*y+i-1, q=x+j-1 else 0.0] * %w[c, i, j]
output "o" [y, x, c] = %o
"""
"""Depthwise sums of images of any size whose channels lie side by side."""


@pytest.mark.parametrize(("step", "order"), [(1, ("x", "y", "c")), (3, ("y", "x", "c"))])
def test_tiles_along_columns_are_outside_of_an_images_rows(
    step: int, order: tuple[str, ...]
) -> None:
    """So what windows have in common from row to row of the image is read again soon."""
    assert orders(IMAGES.format(p=3 * step, y=3, x=28, c=24, step=step), V4) == ("x", order)


@pytest.mark.parametrize(("c", "order"), [(32, ("x", "y", "c")), (40, ("y", "x", "c"))])
def test_rows_in_the_same_sets_of_the_first_cache_are_no_tile(
    c: int, order: tuple[str, ...]
) -> None:
    """Rows of the image that are a multiple of a way apart lose each other there, if many.

    Those along its columns cost as much otherwise.
    """
    text = IMAGES.format(p=32, y=32, x=32, c=c, step=1)
    assert orders(text, V4) == (order[0], order)
    assert orders(text, replace(V4, l1=4 * V4.l1))[0] == "y"


ROWS = """
graph "rows"
dims c = {c}, y = 5, x = {x}, k = 5
%v : f32{{c,y,x}} = input "v" [c, y, x]
%o : f32{{c,y,x}} = max{{k}} %v[c, y, x=x + k - 2 else -inf]
output "o" [c, y, x] = %o
"""
"""Windows along rows, whose loops become one: where a vector ends within a row, each lane asks in
which one it is."""


@on_machines
@pytest.mark.parametrize(("c", "x"), [(64, 20), (31, 20), (64, 28), (3, 7), (1, 1), (64, 19)])
def test_tiles_of_whole_rows_are_weighed(machine: Machine, c: int, x: int) -> None:
    found = subject(ROWS.format(c=c, x=x))
    own = spaces(found.kernel, machine, found.free)
    space, point = usual(own) or (None, None)
    assert space is not None
    if (c, x) == (64, 20):
        assert space.template.name == "tiled"
        assert point.tile.vectors * machine.width % x == 0
    run(found, machine)


APART = """
graph "apart"
dims c = 24, y = 28, x = 28, p = 56, q = 56, ky = {taps}, kx = {taps}
%v : f32{{c,p,q}} = input "v" [c, p, q]
%w : f32{{c,kx,ky}} = input "w" [c, ky, kx]
%o : f32{{c,x,y}} = sum{{ky,kx}} %v[c, p=2*y+ky-3, q=2*x+kx-3 else 0.0] * %w[c, kx, ky]
output "o" [c, y, x] = %o
"""
"""Windows whose neighbouring lanes are two elements apart."""


@pytest.mark.parametrize(("taps", "rows"), [(7, 2), (3, 4)])
def test_two_rows_of_long_windows_whose_lanes_are_apart_are_weighed(taps: int, rows: int) -> None:
    """Their code is long, but they share what they sort out of memory."""
    found = subject(APART.format(taps=taps))
    own = spaces(found.kernel, V4, found.free)
    space, point = usual(own) or (None, None)
    assert space is not None
    assert space.template.name == "windows"
    assert point.rows == ("y", rows)
    run(found, V4)


COLUMNS = ROWS.replace("c, y, x=x + k - 2 else", "c, x, y=y + k - 2 else")
"""The same across rows: which lanes are outside differs from vector to vector."""


@on_machines
def test_lanes_that_are_outside_in_other_rows_ask_in_any_tile(machine: Machine) -> None:
    found = subject(COLUMNS.format(c=64, x=20))
    own = spaces(found.kernel, machine, found.free)
    tiled = [s for s in own if s.template.name == "tiled" and s.default is not None]
    assert tiled
    assert not any(s.default.rivals for s in tiled)
    run(found, machine)


LAST = """
graph "last"
dims i = 64, j = 56, k = 96
%v : f32{i,j,k} = input "v" [i, j, k]
%o : f32{i,j} = max{k} %v[i, j, k]
output "o" [i, j] = %o
"""


@on_machines
def test_rows_of_which_no_lane_is_outside_make_no_tile_better(machine: Machine) -> None:
    found = subject(LAST)
    tiled = [s for s in spaces(found.kernel, machine, found.free) if s.template.name == "tiled"]
    assert tiled
    assert not any(s.default.rivals for s in tiled if s.default is not None)


ALTERNATING = """
graph "alternating"
dims c = 32, y = 11, x = 55, p = 6, q = 28
%v : f32{c,p,q} = input "v" [c, p, q]
%o : f32{c,x,y} = select(index(x % 2) == 0, {value}, 0.0)
output "o" [c, y, x] = %o
"""
"""Every other number of every other row, between zeros: lanes that choose alike lie rows apart."""


@on_machines
def test_lanes_of_rows_may_choose_each_for_itself(machine: Machine) -> None:
    value = "select(index(y % 2) == 0, %v[c, p=y // 2, q=x // 2], 0.0)"
    found = of_text(ALTERNATING.replace("{value}", value), frozenset(), Random(0))
    (space,) = spaces(found.kernel, machine, found.free)
    assert space.default is not None
    assert space.default.point.form is Form.ARMS
    chosen = usual((space,))
    assert chosen is not None
    assert (chosen[1].form, chosen[1].order[-1]) == (Form.VECTORS, "x")
    found.run(choose(found.kernel, machine, found.free), machine, 1 if runnable(machine) else None)


@on_machines
@pytest.mark.parametrize(("c", "y", "x"), [(32, 32, 32), (40, 8, 128), (36, 31, 31), (128, 16, 16)])
def test_columns_of_arms_fill_lines_that_share_sets(
    machine: Machine, c: int, y: int, x: int
) -> None:
    """Where lanes are stored 4096 bytes apart, as many are in a column as a set has lines."""
    found = subject(FILTERED.format(c=c, y=y, x=x, q=-(-x // 2)))
    (space,) = spaces(found.kernel, machine, found.free)
    assert space.default is not None
    point = space.default.point
    assert (point.form, point.order) == (Form.ARMS, ("y", "x", "c"))
    columns = replace(point, form=Form.ARMS_IN_COLUMNS)
    crowded = x * y % 1024 == 0
    assert (columns in space.default.rivals) == (crowded or machine is V4)
    chosen = usual((space,))
    assert chosen is not None
    # Squares fill lines as well, with stores of whole vectors: these wait less often.
    squares = next(r for r in space.default.rivals if r.form is Form.SQUARES)
    assert chosen[1] == squares
    assert not crowded or space.cycles(columns) < space.cycles(point)
    choice = space.choice(columns)
    done = apply_schedule(found.kernel, choice.schedule)
    loops = tuple(walk_loops(done.body))
    assert [loop.var for loop in loops[:3]] == ["c.o", "y", "x.o"]
    lanes = next(loop.hi.value for loop in loops if loop.var == "c.i")
    assert lanes == (min(machine.width, 8) if crowded else machine.width)
    found.run(choice, machine, 1 if runnable(machine) else None)
    found.run(space.choice(squares), machine, 1 if runnable(machine) else None)


def test_arms_of_a_single_vector_have_no_columns() -> None:
    found = subject(FILTERED.format(c=8, y=32, x=32, q=16))
    (space,) = spaces(found.kernel, V4, found.free)
    assert space.default is not None
    with pytest.raises(NotApplicable, match="no columns"):
        space.choice(space.default.rivals[0])
    assert usual((space,)) is not None


@on_machines
@pytest.mark.parametrize("dtype", ["u8", "i16"])
def test_rows_are_apart_from_their_edges(machine: Machine, dtype: str) -> None:
    """Without registers for masks, vectors of narrow elements are loaded whole or lane by lane."""
    found = subject(EDGED.format(dtype=dtype))
    space, point = usual(spaces(found.kernel, machine, found.free)) or (None, None)
    assert space is not None
    assert isinstance(point, Pointwise)
    if machine is V3:
        assert (point.form, point.parts) == (Form.PIECES, ("o",))
    run(found, machine)


@on_machines
@pytest.mark.parametrize(("c", "x"), [(64, 28), (13, 28), (6, 19), (3, 28)])
def test_channels_are_sampled_in_turn_at_places_that_they_share(
    machine: Machine, c: int, x: int
) -> None:
    """A vector of places is found anew for each channel, and its lanes are loaded one by one."""
    found = subject(SAMPLED.format(c=c, x=x))
    space, point = usual(spaces(found.kernel, machine, found.free)) or (None, None)
    assert space is not None
    assert isinstance(point, Pointwise)
    assert (point.form, point.order) == (Form.ELEMENTS, ("c", "y", "x"))
    assert space.default is not None
    assert space.cycles(point) < space.cycles(space.default.point)
    run(found, machine)


@on_machines
@pytest.mark.parametrize(
    ("count", "dtype", "form"),
    [
        (2, "f32", Form.TURNS),
        (3, "i64", Form.TURNS),
        (3, "u8", Form.TURNS),
        (4, "u8", Form.TURNS),
        (4, "f32", Form.TURNS),
        (7, "f32", Form.SQUARES),
        (8, "i64", Form.SQUARES),
    ],
)
def test_planes_are_stacked_as_vectors_of_each(
    machine: Machine, count: int, dtype: str, form: Form
) -> None:
    """Pieces of one element each would be loaded and stored one by one."""
    inputs = "".join(f'%p{i} : {dtype}{{y,x}} = input "p{i}" [y, x]\n' for i in range(count))
    value = f"%p{count - 1}[y, x]"
    for i in reversed(range(count - 1)):
        value = f"select(index(c - {i + 1}) < 0, %p{i}[y, x], {value})"
    dims = f"dims y = 25, x = 39, c = {count}"
    text = f"{inputs}%o : {dtype}{{y,x,c}} = {value}\n"
    found = subject(f'graph "stack"\n{dims}\n{text}output "o" [y, x, c] = %o\n')
    space, point = usual(spaces(found.kernel, machine, found.free)) or (None, None)
    assert space is not None
    assert isinstance(point, Pointwise)
    assert (point.form, point.order) == (form, ("y", "c", "x"))
    assert space.default is not None
    assert space.default.point.form is Form.PIECES
    run(found, machine)


def test_elements_in_turn_need_turns_and_a_loop_whose_length_is_known() -> None:
    found = subject(SAMPLED.format(c=8, x=28))
    (space,) = spaces(found.kernel, V4, found.free)
    point = Pointwise(Form.ELEMENTS, ("c", "y", "x"), 4)
    assert [str(s) for s in space.choice(point).schedule][:2] == [
        "split(c, 4)",
        "reorder([c.o, y, x, c.i])",
    ]
    with pytest.raises(NotApplicable, match="c has no turns"):
        space.choice(replace(point, vectors=1))
