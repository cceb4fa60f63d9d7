"""Transposing in registers: copies that change which dim is contiguous."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.emit.loads.lane_masks import pieces
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.expr import Lit, Read, apply, cast, point
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.indices.affine import Range, Size, plain
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.reducer import reducer
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import Mark, Reorder, Schedule, apply_schedule, parse_schedule
from rutc.tuner import choose
from tests.emit.run_kernel import run_kernel
from tests.machines import V3, V4, on_machines

pytestmark = pytest.mark.sampled(8)

SIZES = [
    (1, 1),
    (3, 5),
    (4, 4),
    (7, 16),
    (16, 16),
    (17, 33),
    (49, 35),
    (64, 8),
    (15, 130),
    (40, 1000),
    # Rows of few elements are stored element by element in turn.
    (16, 2),
    (70, 3),
    (1001, 3),
    (70, 4),
    (1001, 4),
]
DTYPES = [DType.F32, DType.I8, DType.F16, DType.I64, DType.F64, DType.BOOL]


def copy_kernel(
    x: Size,
    c: Size,
    dtype: DType,
    given: DType | None = None,
    symbols: Mapping[str, Range] | None = None,
) -> Kernel:
    """%a [c, x] copied to %b [x, c], from a `given` type; both stand in rows of two images."""
    extents: dict[str, Size] = {"n": 2, "c": c, "x": x}
    a, b = (
        Value(name, kind, ("c", "n", "x")) for name, kind in (("a", given or dtype), ("b", dtype))
    )
    read = Read("a", point(a.dims), a.dtype)
    body = read if given is None else cast(read, dtype)
    group = Group("copy", (Nest((b,), (), None, (body,)),), ("n", "c", "x"), ("b",))
    layouts = {"a": dense(("n", "c", "x"), extents), "b": dense(("n", "x", "c"), extents)}
    return lower(group, {"a": a, "b": b}, layouts, extents, symbols)


ACROSS = "reorder([n, c, x]); tile([c, x], [unroll, vector])"
"""Vectors that lie across the memory of what they are copied to."""


def masked_stores(kernel: Kernel, machine: Machine) -> int:
    """How many stores of vectors leave lanes out."""
    return emit_kernel(kernel, machine).text.count("call void @llvm.masked.store")


def uses_gathers(kernel: Kernel, machine: Machine) -> bool:
    """Whether the emitted code loads or stores vectors element by element."""
    text = emit_kernel(kernel, machine).text
    return "masked.gather" in text or "masked.scatter" in text


@on_machines
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_copies(machine: Machine, size: tuple[int, int], dtype: DType) -> None:
    kernel = copy_kernel(*size, dtype)
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    x, c = size
    values = np.random.default_rng(0).integers(0, 100, (2, c, x)).astype(dtype.numpy)
    out = np.zeros(values.size, dtype.numpy)
    run_kernel(scheduled, machine, {"a": values.reshape(-1), "b": out})
    np.testing.assert_array_equal(out.reshape(2, x, c), values.transpose(0, 2, 1))


@on_machines
@pytest.mark.parametrize("size", [(11, 3), (9, 2), (3, 11), (33, 17), (16, 13), (8, 7)], ids=str)
@pytest.mark.parametrize("dtype", [DType.U8, DType.I16], ids=str)
@pytest.mark.parametrize("given", [DType.I32, DType.I64], ids=str)
def test_truncated_copies_end_where_they_end(
    machine: Machine, size: tuple[int, int], dtype: DType, given: DType
) -> None:
    """LLVM 22 stores a truncated lane that is alone in a masked store in its full width."""
    kernel = copy_kernel(*size, dtype, given)
    values = np.random.default_rng(0).integers(-70_000, 70_000, (2, *size[::-1]))
    given_values = values.astype(given.numpy).reshape(-1)
    wanted = values.transpose(0, 2, 1).astype(dtype.numpy)
    for schedule in (choose(kernel, machine, frozenset()).schedule, parse_schedule(ACROSS)):
        out = np.zeros(values.size, dtype.numpy)
        run_kernel(apply_schedule(kernel, schedule), machine, {"a": given_values, "b": out})
        np.testing.assert_array_equal(out.reshape(2, *size), wanted)


def test_narrowed_lanes_are_stored_as_words_where_no_instruction_narrows_them() -> None:
    kernel = apply_schedule(copy_kernel(16, 5, DType.U8, DType.I32), parse_schedule(ACROSS))
    words = {m.name: emit_kernel(kernel, m).text.count("store i32") for m in (V3, V4)}
    assert words[V3.name] == 16
    assert words[V4.name] == 0


@on_machines
def test_squares_need_no_gathers(machine: Machine) -> None:
    kernel = copy_kernel(64, 32, DType.F32)
    assert uses_gathers(apply_schedule(kernel, choose_vector(kernel, "c")), machine), (
        "a plain vector loop crosses memory: the test would show nothing"
    )
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert not uses_gathers(scheduled, machine)


@on_machines
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.F64, DType.U8], ids=str)
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_short_rows_need_no_scatters(machine: Machine, channels: int, dtype: DType) -> None:
    """Nor do those of long elements, of whose vectors each takes several registers."""
    kernel = copy_kernel(100, channels, dtype)
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert not uses_gathers(scheduled, machine)


@on_machines
@pytest.mark.parametrize("dtype", [DType.U8, DType.F32, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("x", [83, 96])
@pytest.mark.parametrize(("channels", "pad"), [(2, 1), (2, 2), (3, 1)])
def test_short_rows_with_padding_need_no_scatters(
    machine: Machine, x: int, channels: int, pad: int, dtype: DType
) -> None:
    """Padding beside the rows keeps what it has. Few bytes that are left over are stored alone."""
    extents: dict[str, Size] = {"c": channels, "x": x}
    a, b = Value("a", DType.F32, ("c", "x")), Value("b", dtype, ("c", "x"))
    body = cast(Read("a", point(a.dims), a.dtype), dtype)
    group = Group("copy", (Nest((b,), (), None, (body,)),), ("c", "x"), ("b",))
    padded = dense(("x", "c"), extents, halo={"c": (0, pad)}, fill=Lit(0, dtype))
    layouts = {"a": dense(("c", "x"), extents), "b": padded}
    kernel = lower(group, {"a": a, "b": b}, layouts, extents)
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert x % 16 or not uses_gathers(scheduled, machine)
    values = np.random.default_rng(0).integers(0, 100, (channels, x)).astype(np.float32)
    out = np.full((x, channels + pad), 111, dtype.numpy)
    run_kernel(scheduled, machine, {"a": values.reshape(-1), "b": out.reshape(-1)})
    np.testing.assert_array_equal(out[:, :channels], values.T.astype(dtype.numpy))
    np.testing.assert_array_equal(out[:, channels:], np.full((x, pad), 111, dtype.numpy))


@on_machines
@pytest.mark.parametrize("symbolic", ["x", "c", "xc"])
def test_copies_of_symbolic_size_go_by_squares(machine: Machine, symbolic: str) -> None:
    """Squares at the ends lie over those before; where there are few rows, there is none."""
    symbols = {d.upper(): (0, 200) for d in symbolic}
    x, c = (Index.of(d.upper()) if d in symbolic else Index.of(35) for d in "xc")
    kernel = copy_kernel(plain(x), plain(c), DType.F32, symbols=symbols)
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert any(s.var.endswith(".few") for s in walk_loops(scheduled.body))
    for rows, columns in itertools.product((0, 1, 7, 16, 17, 33, 100), repeat=2):
        sizes = {"X": rows, "C": columns} if symbolic == "xc" else {symbolic.upper(): rows}
        shape = [sizes.get("C", 35), sizes.get("X", 35)]
        a = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
        out = np.zeros(a.size, np.float32)
        run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, sizes)
        np.testing.assert_array_equal(out.reshape(2, *shape[::-1]), a.transpose(0, 2, 1))


@on_machines
@pytest.mark.parametrize("symbolic", ["x", "c", "xc"])
def test_squares_of_symbolic_rows_need_no_gathers(machine: Machine, symbolic: str) -> None:
    """Lanes lie a row apart, whose length a run tells; there are enough rows and columns."""
    symbols = {d.upper(): (4, 12) for d in symbolic}
    x, c = (plain(Index.of(d.upper()) * 16) if d in symbolic else 64 for d in "xc")
    kernel = copy_kernel(x, c, DType.F32, symbols=symbols)
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert not uses_gathers(scheduled, machine)
    sizes = {d.upper(): 5 for d in symbolic}
    shape = [80 if d in symbolic else 64 for d in "cx"]
    a = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    out = np.zeros(a.size, np.float32)
    run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, sizes)
    np.testing.assert_array_equal(out.reshape(2, *shape[::-1]), a.transpose(0, 2, 1))


@on_machines
def test_squares_that_a_run_cuts_short_are_loaded_once(machine: Machine) -> None:
    """Each row of whole vectors and of both rests, though the columns before are stored by then.

    Ends tell that there are some lanes of the last vector, and all of those before it.
    """
    width = machine.width
    kernel = copy_kernel(width, plain(Index.of("C")), DType.F32, symbols={"C": (0, 500)})
    steps = f"""
        split(c, {2 * width}); reorder([n, c.o, x, c.i]); peel(c.o, [{width}]);
        mark(x, unroll); mark(c.i, vector)
    """
    scheduled = apply_schedule(kernel, parse_schedule(steps))
    text = emit_kernel(scheduled, machine).text
    assert text.count(f"load <{width} x float>") == (2 + 1 + 2) * width
    assert "@llvm.masked.load" not in text
    assert not uses_gathers(scheduled, machine)
    for rows in (0, 1, width - 1, width, width + 1, 2 * width, 5 * width - 1, 5 * width):
        a = np.random.default_rng(0).standard_normal((2, rows, width)).astype(np.float32)
        out = np.zeros(a.size, np.float32)
        run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, {"C": rows})
        np.testing.assert_array_equal(out.reshape(2, width, rows), a.transpose(0, 2, 1))


@on_machines
@pytest.mark.parametrize("most", [3, 4, 7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("other", [4, 16, 35])
def test_symbolic_sizes_about_as_large_as_a_square(machine: Machine, most: int, other: int) -> None:
    for x, c in ((plain(Index.of("N")), other), (other, plain(Index.of("N")))):
        kernel = copy_kernel(x, c, DType.F32, symbols={"N": (1, most)})
        scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
        for n in {1, most - 1, most}:
            shape = (2, other, n) if c == other else (2, n, other)
            a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            out = np.zeros(a.size, np.float32)
            run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, {"N": n})
            np.testing.assert_array_equal(
                out.reshape(a.transpose(0, 2, 1).shape), a.transpose(0, 2, 1)
            )


@on_machines
@pytest.mark.parametrize("rows", [17, 16])
def test_symbolic_sizes_that_are_always_a_square_need_no_short_loops(
    machine: Machine, rows: int
) -> None:
    """Of 17 * N rows, N in 2..5, there are 34 at least: a schedule names no loop of fewer."""
    kernel = copy_kernel(plain(Index.of("N") * rows), 16, DType.F32, symbols={"N": (2, 5)})
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    assert not any(".few" in s.var for s in walk_loops(scheduled.body))
    for n in (2, 3, 5):
        a = np.random.default_rng(0).standard_normal((2, 16, rows * n)).astype(np.float32)
        out = np.zeros(a.size, np.float32)
        run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, {"N": n})
        np.testing.assert_array_equal(out.reshape(2, rows * n, 16), a.transpose(0, 2, 1))


@on_machines
def test_short_rows_of_symbolic_length_need_no_scatters(machine: Machine) -> None:
    kernel = copy_kernel(plain(Index.of("X")), 3, DType.F32, symbols={"X": (0, 200)})
    scheduled = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    for x in (0, 1, 15, 16, 17, 40, 200):
        a = np.random.default_rng(0).standard_normal((2, 3, x)).astype(np.float32)
        out = np.zeros(a.size, np.float32)
        run_kernel(scheduled, machine, {"a": a.reshape(-1), "b": out}, {"X": x})
        np.testing.assert_array_equal(out.reshape(2, x, 3), a.transpose(0, 2, 1))


@pytest.mark.parametrize("size", [(5, 19), (23, 21), (293, 35)], ids=str)
def test_known_idle_lanes_take_no_masked_stores_without_masks(size: tuple[int, int]) -> None:
    kernel = copy_kernel(*size, DType.F32)
    scheduled = [
        apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
        for machine in (V3, V4)
    ]
    assert masked_stores(scheduled[1], V4)
    assert not masked_stores(scheduled[0], V3)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_pieces_are_powers_of_two_at_multiples_of_themselves(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for active in [[True] * n + [False] * (lanes - n) for n in range(lanes + 1)] + [
        [*map(bool, rng.integers(0, 2, lanes))] for _ in range(30)
    ]:
        found = pieces(active)
        held = [i for first, count in found for i in range(first, first + count)]
        assert held == [i for i, on in enumerate(active) if on]
        assert all(first % count == 0 and count.bit_count() == 1 for first, count in found)
    assert len(pieces([True] * lanes)) == 1


def choose_vector(kernel: Kernel, var: str) -> Schedule:
    """The schedule that makes vectors of one loop and does nothing else."""
    return (Reorder(("n", "x", "c")), Mark(var, Kind.VECTOR))


@on_machines
@pytest.mark.parametrize(("rows", "columns"), [(14, 32), (5, 16), (33, 50), (3, 64)])
def test_products_stored_across(machine: Machine, rows: int, columns: int) -> None:
    """The product's vectors run along columns, and its result's memory along rows."""
    extents = {"m": rows, "n": columns, "k": 9}
    f32 = DType.F32
    values = {
        v.name: v
        for v in (
            Value("a", f32, ("k", "m")),
            Value("w", f32, ("k", "n")),
            Value("s", f32, ("m", "n")),
            Value("o", f32, ("m", "n")),
        )
    }
    product = apply(
        "mul",
        Read("a", (("k", Index.of("k")), ("m", Index.of("m"))), f32),
        Read("w", (("k", Index.of("k")), ("n", Index.of("n"))), f32),
    )
    here = (("m", Index.of("m")), ("n", Index.of("n")))
    stages = (
        Nest((values["s"],), ("k",), reducer("sum", f32), (product,)),
        Nest((values["o"],), (), None, (apply("max", Read("s", here, f32), Lit(0.0, f32)),)),
    )
    layouts = {"a": dense(("m", "k"), extents), "w": dense(("k", "n"), extents)}
    layouts["o"] = dense(("n", "m"), extents)
    group = Group("product", stages, ("m", "n"), ("o",))
    kernel = lower(group, values, layouts, extents)
    text = "split(n, 16); reorder([n.o, m, n.i])"
    tile = f"{text}; peel(n.o); tile([m, n.i], [unroll, vector])" if rows < 20 else text
    scheduled = apply_schedule(kernel, parse_schedule(tile))
    rng = np.random.default_rng(1)
    a = rng.integers(-8, 8, (rows, 9)).astype(np.float32)
    w = rng.integers(-8, 8, (9, columns)).astype(np.float32)
    out = np.zeros(rows * columns, np.float32)
    run_kernel(scheduled, machine, {"a": a.reshape(-1), "w": w.reshape(-1), "o": out})
    np.testing.assert_array_equal(out.reshape(columns, rows), np.maximum(a @ w, 0).T)


@on_machines
@pytest.mark.parametrize("sizes", [(64, 384), (9, 21), (35, 8), (3, 130)])
def test_what_is_stored_along_and_across_goes_by_squares(
    machine: Machine, sizes: tuple[int, int]
) -> None:
    """%b, %d [c, x] and %t, %u [x, c] of %a [c, x]; a loop of one iteration tells nothing."""
    c, x = sizes
    extents: dict[str, Size] = {"n": 1, "c": c, "x": x}
    a, b, d, t, u = (Value(name, DType.F32, ("c", "n", "x")) for name in "abdtu")
    read = Read("a", point(a.dims), a.dtype)
    double = apply("add", read, read)
    nests = (
        Nest((b,), (), None, (double,)),
        *(Nest((v,), (), None, (Read("b", read.coords, DType.F32),)) for v in (d, t, u)),
    )
    group = Group("both", nests, ("n", "c", "x"), tuple("bdtu"))
    order = dict.fromkeys("abd", ("n", "c", "x")) | dict.fromkeys("tu", ("n", "x", "c"))
    layouts = {name: dense(dims, extents) for name, dims in order.items()}
    kernel = lower(group, {v.name: v for v in (a, b, d, t, u)}, layouts, extents)
    done = apply_schedule(kernel, choose(kernel, machine, frozenset()).schedule)
    loops = list(walk_loops(done.body))
    assert any(s.kind is Kind.VECTOR and str(s.hi - s.lo) != "1" for s in loops)
    if all(n % machine.width == 0 for n in sizes):
        assert not uses_gathers(done, machine)
    values = np.random.default_rng(0).standard_normal((c, x)).astype(np.float32)
    made = {name: np.zeros(c * x, np.float32) for name in "bdtu"}
    run_kernel(done, machine, {"a": values.reshape(-1), **made})
    for name in "bd":
        np.testing.assert_array_equal(made[name].reshape(c, x), 2 * values)
    for name in "tu":
        np.testing.assert_array_equal(made[name].reshape(x, c), 2 * values.T)
