"""Loads of elements near each other in another order, and of places that gradual tables give."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.facts.gradual import gradual_tables
from rutc.tensor_ir.graph import Const, Data, Nest, Value
from rutc.tensor_ir.indices.affine import floordiv, mod
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.reducer import reducer
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from tests.emit.run_kernel import run_kernel
from tests.emit.test_transpose import uses_gathers
from tests.machines import V4, on_machines

pytestmark = pytest.mark.sampled(8)

ROWS = 3
X = Index.of("x")

PLACES: dict[str, tuple[int, Callable[[int], Index]]] = {
    "each twice": (1, lambda n: floordiv(X, Index.of(2), {"x": (0, n - 1)})),
    "each three times": (1, lambda n: floordiv(X + 1, Index.of(3), {"x": (0, n - 1)})),
    "backward": (1, lambda n: Index.of(n - 1) - X),
    "every other backward": (2, lambda n: Index.of(2 * n - 2) - 2 * X),
    "eights far apart": (8, lambda n: X + 40 * floordiv(X, Index.of(8), {"x": (0, n - 1)})),
    "two by two": (3, lambda n: X + floordiv(X, Index.of(2), {"x": (0, n - 1)})),
    "threes in turn": (1, lambda n: mod(X, Index.of(3), {"x": (0, n - 1)})),
    "every third": (3, lambda _: 3 * X),
}
"""Which element lane x reads, and how many times as many as lanes there are at most."""


def gather_kernel(n: int, given: int, place: Index, dtype: DType) -> Kernel:
    """%b [r, x] = %a [r, place]; rows of `given` elements become rows of n."""
    extents = {"r": ROWS, "x": n, "y": given}
    a, b = Value("a", dtype, ("r", "y")), Value("b", dtype, ("r", "x"))
    read = Read("a", (("r", Index.of("r")), ("y", place)), dtype)
    group = Group("gather", (Nest((b,), (), None, (read,)),), ("r", "x"), ("b",))
    layouts = {v.name: dense(v.dims, extents) for v in (a, b)}
    return lower(group, {"a": a, "b": b}, layouts, extents)


@on_machines
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("n", [2, 7, 8, 16, 19, 32, 61])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.U8, DType.F16], ids=str)
@pytest.mark.parametrize("fence", ["begin", "end"])
def test_elements_at_known_distances(
    machine: Machine, name: str, n: int, dtype: DType, fence: str
) -> None:
    place = PLACES[name][1](n)
    chosen = [int(place.evaluate({"x": x})) for x in range(n)]
    kernel = gather_kernel(n, max(chosen) + 1, place, dtype)
    scheduled = apply_schedule(kernel, parse_schedule("mark(x, vector)"))
    values = np.random.default_rng(0).integers(0, 100, (ROWS, max(chosen) + 1))
    values = values.astype(dtype.numpy)
    out = np.zeros(ROWS * n, dtype.numpy)
    run_kernel(scheduled, machine, {"a": values.reshape(-1), "b": out}, fence=fence)
    np.testing.assert_array_equal(out.reshape(ROWS, n), values[:, chosen])


@on_machines
@pytest.mark.parametrize("name", PLACES)
def test_what_lies_near_needs_no_gathers(machine: Machine, name: str) -> None:
    place = PLACES[name][1](64)
    given = max(int(place.evaluate({"x": x})) for x in range(64)) + 1
    kernel = gather_kernel(64, given, place, DType.F32)
    assert not uses_gathers(apply_schedule(kernel, parse_schedule("mark(x, vector)")), machine)


@on_machines
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("n", [2, 19, 40, 61])
@pytest.mark.parametrize("fence", ["begin", "end"])
def test_elements_of_loops_that_a_run_ends(machine: Machine, name: str, n: int, fence: str) -> None:
    place = PLACES[name][1](n)
    chosen = [int(place.evaluate({"x": x})) for x in range(n)]
    kernel = gather_kernel(n, max(chosen) + 1, place, DType.F32)
    scheduled = apply_schedule(kernel, parse_schedule("split(x, 32); mark(x.i, vector)"))
    values = np.random.default_rng(0).standard_normal((ROWS, max(chosen) + 1)).astype(np.float32)
    values[1, 0] = np.nan
    out = np.zeros(ROWS * n, np.float32)
    run_kernel(scheduled, machine, {"a": values.reshape(-1), "b": out}, fence=fence)
    np.testing.assert_array_equal(out.reshape(ROWS, n), values[:, chosen])


@on_machines
def test_whole_vectors_of_a_loop_that_a_run_ends_are_not_gathered(machine: Machine) -> None:
    kernel = gather_kernel(61, 31, PLACES["each twice"][1](61), DType.F32)
    scheduled = apply_schedule(kernel, parse_schedule("split(x, 32); mark(x.i, vector)"))
    blocks = re.split(r"^(?=\S+:$)", emit_kernel(scheduled, machine).text, flags=re.MULTILINE)
    gathers = [b.partition(":")[0] for b in blocks if "call <" in b and "masked.gather" in b]
    assert gathers
    assert all(label.startswith("end.slow") for label in gathers)


def test_what_lies_far_apart_is_gathered() -> None:
    kernel = gather_kernel(64, 64 * 7, 7 * X, DType.F32)
    assert uses_gathers(apply_schedule(kernel, parse_schedule("mark(x, vector)")), V4)


def table_kernel(table: np.ndarray, given: int, *, told: bool = True) -> Kernel:
    """%b [r, x] = sum over k of %a [r, %t[k, x]], a table of places [k, x]."""
    count, n = table.shape
    extents = {"r": ROWS, "x": n, "y": given, "k": count}
    a, b, t = (
        Value("a", DType.F32, ("r", "y")),
        Value("b", DType.F32, ("r", "x")),
        Value("t", DType.I64, ("k", "x")),
    )
    place = Read("t", (("k", Index.of("k")), ("x", X)), DType.I64)
    read = Read("a", (("r", Index.of("r")), ("y", place)), DType.F32)
    nest = Nest((b,), ("k",), reducer("sum", DType.F32), (read,))
    group = Group("gather", (nest,), ("r", "x"), ("b",))
    layouts = {v.name: dense(v.dims, extents) for v in (a, b, t)}
    constants = {"t": Const(t, t.dims, Data(table))}
    gradual = gradual_tables(group.stages, constants, extents) if told else {}
    return lower(group, {v.name: v for v in (a, b, t)}, layouts, extents, gradual=gradual)


def larger(given: int, n: int) -> np.ndarray:
    """Places of two neighbours for each of n places of a row that is made larger."""
    first = np.arange(n) * given // n
    return np.stack([first, np.minimum(first + 1, given - 1)]).astype(np.int64)


@on_machines
@pytest.mark.parametrize(
    ("given", "n"), [(1, 5), (3, 8), (7, 16), (8, 19), (9, 33), (16, 16), (17, 40), (31, 90)]
)
@pytest.mark.parametrize("fence", ["begin", "end"])
def test_places_of_gradual_tables(machine: Machine, given: int, n: int, fence: str) -> None:
    table = larger(given, n)
    kernel = table_kernel(table, given)
    assert kernel.args[1].gradual or kernel.args[0].gradual or given == 1
    scheduled = apply_schedule(kernel, parse_schedule("tile([x], [vector]); mark(k, unroll)"))
    assert not uses_gathers(scheduled, machine) or given == 1 or n < machine.width
    values = np.random.default_rng(0).standard_normal((ROWS, given)).astype(np.float32)
    out = np.zeros(ROWS * n, np.float32)
    memory = {"a": values.reshape(-1), "t": table.reshape(-1).copy(), "b": out}
    run_kernel(scheduled, machine, memory, fence=fence)
    wanted = values[:, table[0]] + values[:, table[1]]
    np.testing.assert_array_equal(out.reshape(ROWS, n), wanted)


def known(table: np.ndarray, given: int) -> tuple[str, ...]:
    """The dims along which a table of places is said to be gradual."""
    return next(b.gradual for b in table_kernel(table, given).args if b.name == "t")


def test_tables_that_are_gradual() -> None:
    assert known(larger(16, 40), 16) == ("k", "x")
    # From one place to the next but one.
    assert known(larger(80, 40), 80) == ("k",)
    falling = larger(16, 40)[:, ::-1].copy()
    assert known(falling, 16) == ("k",)
    # A single element follows none.
    assert known(np.array([[3]]), 8) == ()


def test_tables_of_places_outside_are_not() -> None:
    table = larger(16, 40)
    assert known(table, 15) == ()
    assert known(table - 1, 16) == ()


def test_a_table_that_is_not_known_is_gathered() -> None:
    kernel = table_kernel(larger(100, 128), 100, told=False)
    assert uses_gathers(apply_schedule(kernel, parse_schedule("mark(x, vector)")), V4)
