"""Kernels in sizes of their own compute what they did, and are equal where only sizes differ."""

import numpy as np
import pytest

from rutc.tensor_ir import Index, Nest
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Buffer, Kernel, Space
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, Slice, lower
from rutc.tensor_ir.own_sizes import OwnSizes, own_sizes
from rutc.tensor_ir.steps import parse_schedule
from rutc.tensor_ir.steps.step import apply_schedule
from rutc.tensor_ir.textual.parse import parse, parse_index

OPEN = "1..2147483648"
SCHEDULES = (
    "",
    "split(y, 3); even(y.o, 1); split(x, 8); peel(x.o); mark(x.i, vector)",
    "split(x, 4); mark(x.i, vector); split(y, 2); overlap([y.o])",
)


def kernel(
    y: str, x: str, steps: str = "", symbols: str = f"h = {OPEN}, w = {OPEN}", half: str = "y // 2"
) -> Kernel:
    """%c{y,x} = %a[y // 2] * %b[x], over so many y and x."""
    graph = parse(
        f"""
        graph "map"
        symbols {symbols}
        dims y = {y}, x = {x}, rows = ({y} + 1) // 2
        %a : f32{{rows}} = input "a" [rows]
        %b : f32{{x}} = input "b" [x]
        %c : f32{{y,x}} = %a[rows={half}] * %b[x]
        output "c" [y, x] = %c
        """
    )
    extents = {d: plain(e) for d, e in graph.dims}
    axes = {"a": ("rows",), "b": ("x",), "c": ("y", "x")}
    layouts = {v: dense(order, extents) for v, order in axes.items()}
    stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
    group = Group("map", stages, ("y", "x"), ("c",))
    made = lower(group, graph.values, layouts, extents, dict(graph.symbols))
    return apply_schedule(made, parse_schedule(steps)) if steps else made


def results(found: Kernel, sizes: dict[str, int]) -> np.ndarray:
    """What a kernel computes of counting numbers."""
    memory = {
        b.name: np.arange(1, int(Index.of(b.layout.size).evaluate(sizes)) + 1, dtype=np.float32)
        for b in found.args
    }
    memory["c"][:] = np.nan
    interpret_kernel(found, memory, sizes)
    return memory["c"]


def told(own: OwnSizes, sizes: dict[str, int]) -> dict[str, int]:
    """What a run's own sizes are."""
    names = [n for n, _ in own.kernel.symbols]
    return {n: int(x.evaluate(sizes)) for n, x in zip(names, own.sizes, strict=True)}


@pytest.mark.parametrize("steps", SCHEDULES)
@pytest.mark.parametrize(
    ("y", "x"),
    [("h", "w"), ("(h + 7) // 8", "(w + 7) // 8"), ("(h + 1) // 2", "w"), ("h // 3", "2*w + 1")],
)
def test_a_kernel_computes_the_same(y: str, x: str, steps: str) -> None:
    before = kernel(y, x, steps, "h = 0..2147483648, w = 0..2147483648")
    own = own_sizes(before)
    for h in (0, 1, 2, 7, 8, 9, 23, 41):
        for w in (0, 1, 3, 16, 17):
            sizes = {"h": h, "w": w}
            found = results(own.kernel, told(own, sizes))
            np.testing.assert_array_equal(found, results(before, sizes))


@pytest.mark.parametrize("steps", SCHEDULES)
def test_kernels_of_a_pyramid_are_equal(steps: str) -> None:
    levels = [
        own_sizes(kernel(f"(h + {k - 1}) // {k}", f"(w + {k - 1}) // {k}", steps))
        for k in (1, 2, 8, 32)
    ]
    assert {own.kernel for own in levels} == {levels[0].kernel}
    assert [str(own.sizes[0]) for own in levels] == ["h", "(h + 1) // 2", *(
        f"(h + {k - 1}) // {k}" for k in (8, 32)
    )]  # fmt: skip


def test_a_size_that_is_read_by_itself_stays() -> None:
    own = own_sizes(kernel("(h + 3) // 4", "h"))
    assert own.sizes == (Index.of("h"),)
    assert own.kernel.body == kernel("(h + 3) // 4", "h").body


def test_quotients_that_do_not_tell_each_other_stay() -> None:
    before = kernel("(h + 3) // 4", "(h + 1) // 4")
    own = own_sizes(before)
    assert own.sizes == (Index.of("h"),)
    assert own.kernel.body == before.body


def test_small_sizes_keep_their_range() -> None:
    own = own_sizes(kernel("(h + 3) // 4", "w", symbols="h = 5..900, w = 9..99999"))
    assert own.kernel.symbols == (("h", (2, 225)), ("w", (1, 1 << 31)))


def test_what_loops_count_is_no_size() -> None:
    before = kernel("h // 4", "w", symbols="h = 0..8, w = 1..9")
    own = own_sizes(before, counters=frozenset({"h"}))
    assert own.kernel.body == before.body
    assert own.sizes == (Index.of("h"), Index.of("w"))


def test_lengths_have_names_and_buffers_know_how_large_they_are() -> None:
    """What a slice holds is known of its formula, not of a name for it."""
    symbols = {"h": (1, 1 << 31), "w": (1, 1 << 31), "t": (0, 1 << 31)}
    length = parse_index("min((h + 2) // 3, 4096 // w)")
    graph = parse(
        """
        graph "slice"
        symbols h = 1..2147483648, w = 1..2147483648
        dims y = h, x = w
        %a : f32{y,x} = input "a" [x, y]
        %c : f32{y,x} = %a[x, y]
        output "c" [y, x] = %c
        """
    )
    extents = {d: plain(e) for d, e in graph.dims}
    layouts = {"a": dense(("x", "y"), extents), "c": dense(("y", "x"), extents)}
    stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
    part = Slice("y", "t", length, end=Index.of("h"))
    group = Group("slice", stages, ("y", "x"), ("c",), (part,))
    before = lower(group, graph.values, layouts, extents, symbols)
    rows = dense(("y", "x"), {"y": length, "x": Index.of("w")})
    local = Buffer("near", DType.F32, rows, Space.STACK)
    before = Kernel("slice", before.args, (local,), before.body, (), before.symbols)
    own = own_sizes(before, frozenset({"t"}), (length,))
    assert "4096 //" not in str(own.kernel)
    assert dict(zip((n for n, _ in own.kernel.symbols), own.sizes, strict=True))["n0"] == length
    (moved,) = own.kernel.locals
    known = local.most_elements(dict(before.symbols))
    assert known is not None
    assert moved.most_elements(dict(own.kernel.symbols)) == known
    assert f"of {known} at most" in str(own.kernel)
    for h, w, t in ((11, 1000, 2), (1, 3, 0), (7, 999, 1)):
        sizes = {"h": h, "w": w, "t": t}
        found, wanted = results(own.kernel, told(own, sizes)), results(before, sizes)
        np.testing.assert_array_equal(found, wanted)


def test_buffers_know_how_large_they_are_where_nothing_but_ranges_is_another() -> None:
    """Of any size, (h - 4 + 63) // 64 slices may be none, among which no rows are shared out."""
    before = kernel("h - 4", "w", symbols=f"h = 7..{1 << 31}, w = 1..8")
    length = parse_index("min((h - 5) // ((h + 59) // 64) + 1, 64)")
    local = Buffer("near", DType.F32, dense(("y",), {"y": length}), Space.STACK)
    before = Kernel("slice", before.args, (local,), before.body, (), before.symbols)
    assert local.most_elements(dict(before.symbols)) == 64
    own = own_sizes(before)
    assert dict(own.kernel.symbols)["h"] == (1, 1 << 31)
    (moved,) = own.kernel.locals
    assert moved.most_elements(dict(own.kernel.symbols)) == 64
