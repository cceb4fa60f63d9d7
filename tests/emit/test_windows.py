"""Reductions over windows in machine code: sizes, strides and edges against the interpreter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.emit.kernel import emit_kernel
from rutc.emit.llvm.codegen import compile_assembly
from rutc.tensor_ir.expr import Read, walk
from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.kernel import Kernel, Kind, Loop
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import rewrite, walk_loops
from rutc.tensor_ir.steps import Inside, Part, Reorder, Schedule, Split
from rutc.tensor_ir.textual.parse import parse
from tests.emit.run_kernel import run_kernel
from tests.emit.test_kernels import tuned
from tests.examples import examples
from tests.kernels import Case
from tests.machines import RUNNABLE, V3, V4, on_machines

pytestmark = pytest.mark.sampled(4)

VECTOR_LOAD = re.compile(r"^\tv(?!broad)\w+\t-?\w*\((?!%rip)[^)]*\), .*%[yz]mm", re.MULTILINE)
PRODUCT = re.compile(r"^\tv(?:fmadd\w+|mul)ps\t", re.MULTILINE)
LEAST = {"f32": "-inf", "f64": "-inf", "i32": "-2147483648", "i16": "-32768", "i8": "-128"}


@dataclass(frozen=True)
class Axis:
    """A dim of pictures: its size, the window's, their steps, and the padding on both sides."""

    size: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        """The last input that the first window reads, padding counted."""
        return self.dilation * (self.taps - 1)

    @property
    def out(self) -> int:
        """The number of windows."""
        return (self.size + self.before + self.after - self.reach - 1) // self.stride + 1


def window(
    axes: Sequence[Axis],
    channels: int = 2,
    how: str = "sum",
    dtype: str = "f32",
    *,
    channels_last: bool = False,
    halo: bool | Sequence[int] = False,
    then: str | None = None,
) -> Case:
    """A reduction over windows of the axes, outermost first; sums are of products with weights.

    The products of `u8` with weights of `i8` are summed in `i32`. A function may follow: `then`.
    All axes have a `halo`, or none, or those numbered so.
    """
    numbers = range(len(axes))
    x, k, i = ([f"{letter}{n}" for n in numbers] for letter in "xki")
    sizes = {"c": channels}
    for n, a in enumerate(axes):
        sizes |= {i[n]: a.size, k[n]: a.taps, x[n]: a.out}
    at = [f"{i[n]}={a.stride}*{x[n]}+{a.dilation}*{k[n]}-{a.before}" for n, a in enumerate(axes)]
    fill = ("0.0" if dtype[0] == "f" else "0") if how == "sum" else LEAST[dtype]
    factor = f" * %w[{', '.join(['c', *k])}]" if how == "sum" else ""
    element = f"%v[{', '.join(['c', *at])} else {fill}]{factor}"
    weights, result = dtype, dtype
    if dtype == "u8":
        weights, result = "i8", "i32"
        element = " * ".join(f"i32({e})" for e in element.split(" * %w"))
        element = element.replace("i32([", "i32(%w[")
    out, stored = f"{{{','.join(sorted(['c', *x]))}}}", "o" if then is None else "r"
    following = f"%r : {result}{out} = {then}(%o[{', '.join(sorted(['c', *x]))}])" if then else ""
    graph = parse(f"""
        graph "windows"
        dims {", ".join(f"{d} = {n}" for d, n in sizes.items())}
        %v : {dtype}{{{",".join(sorted(["c", *i]))}}} = input "v" [{", ".join(["c", *i])}]
        %w : {weights}{{{",".join(sorted(["c", *k]))}}} = input "w" [{", ".join(["c", *k])}]
        %o : {result}{out} = {how}{{{",".join(k)}}} {element}
        {following}
        output "o" [{", ".join(["c", *x])}] = %{stored}
        """)
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    nest = nests[0]
    read = next(r for r in walk(nest.body[0]) if isinstance(r, Read) and r.value == "v")
    beyond = {
        i[n]: (a.before, max(a.stride * (a.out - 1) + a.reach - a.before - a.size + 1, 0))
        for n, a in enumerate(axes)
        if halo is True or (halo and n in halo)
    }

    def order(dims: list[str]) -> list[str]:
        return [*dims, "c"] if channels_last else ["c", *dims]

    layouts = {
        "v": dense(order(i), sizes, halo=beyond or None, fill=read.fill),
        "w": dense(["c", *k], sizes),
        stored: dense(order(x), sizes),
    }
    return Case(graph, Group("g", nests, tuple(order(x)), (stored,)), layouts, then is None, 0)


def check(case: Case, machine: Machine, *, parts: int = 1, fence: str | None = None) -> None:
    free = frozenset({"w"} & set(case.group.external_reads()))
    kernel, _, memory, arrays = tuned(case, machine, free)
    run_kernel(kernel, machine, memory, parts=parts, fence=fence)
    case.check(memory, arrays)


@st.composite
def axes(draw: st.DrawFn, most: int, longest: int) -> tuple[Axis, ...]:
    found = []
    for _ in range(draw(st.integers(1, most))):
        taps, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        least = max(dilation * (taps - 1) + 1 - before - after, 1)
        size = draw(st.integers(least, max(longest, least)))
        found.append(Axis(size, taps, draw(st.integers(1, 5)), dilation, before, after))
    return tuple(found)


def check_small(case: Case, machine: Machine, data: st.DataObject) -> None:
    """Checks a case that the interpreter evaluates in little time, its loops cut into parts."""
    if prod(case.extents[d] for n in case.group.stages for d in n.dims) <= 60_000:
        check(case, machine, parts=data.draw(st.integers(1, 3)))


def drawn(
    data: st.DataObject,
    most: int = 3,
    *,
    how: str = "sum",
    dtype: str = "f32",
    then: str | None = None,
) -> Case:
    """Windows of up to `most` dims: any number of channels, order of dims, and halo or none."""
    return window(
        data.draw(axes(most, 22)),
        channels=data.draw(st.sampled_from([1, 2, 5, 17])),
        how=how,
        dtype=dtype,
        channels_last=data.draw(st.booleans()),
        halo=data.draw(st.booleans()),
        then=then,
    )


HOW = st.sampled_from(["sum", "max"])


@on_machines
@examples(60)
@given(data=st.data())
def test_windows(machine: Machine, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["f32", "f32", "f64", "i32", "i16", "i8"]))
    check_small(drawn(data, how=data.draw(HOW), dtype=dtype), machine, data)


@on_machines
@examples(40)
@given(data=st.data())
def test_windows_that_a_function_follows(machine: Machine, data: st.DataObject) -> None:
    check_small(drawn(data, how=data.draw(HOW), then="tanh"), machine, data)


@on_machines
@examples(20)
@given(data=st.data())
def test_windows_of_bytes_summed_in_words(machine: Machine, data: st.DataObject) -> None:
    check_small(drawn(data, 2, dtype="u8"), machine, data)


@on_machines
def test_lanes_of_a_register_of_which_all_are_outside_hold_the_fill(machine: Machine) -> None:
    """Whether others are outside is known in the run only, and LLVM read the first of them."""
    check(window([Axis(17, 1, after=1), Axis(4, 1, after=1)], 1, dtype="f64"), machine)


SHAPES = {
    "whole rows": [Axis(7, 3, before=1, after=1)] * 2,
    "rows of one and a half vectors": [Axis(24, 3, before=1, after=1)] * 2,
    "rows of many vectors": [Axis(16, 3, before=1, after=1), Axis(112, 3, before=1, after=1)],
    "every other element": [Axis(14, 3, 2, before=1, after=1), Axis(66, 3, 2, before=1, after=1)],
    "every other of few": [Axis(9, 3, 2, before=1, after=1)] * 2,
    "every third": [Axis(31, 2, 3), Axis(100, 2, 3, before=1)],
    "every fifth": [Axis(31, 5, 5), Axis(100, 5, 5)],
    "far taps": [Axis(20, 3, dilation=4, before=4, after=4)] * 2,
    "a large window": [Axis(20, 7, before=3, after=3)] * 2,
    "a window as large as the picture": [Axis(5, 5, before=4, after=4)] * 2,
    "more padding than picture": [Axis(3, 2, before=6, after=7), Axis(4, 2, before=9, after=8)],
    "an odd number of rows": [Axis(13, 3, before=1, after=1), Axis(37, 3, before=1, after=1)],
    "a row only": [Axis(1, 1), Axis(100, 4, before=3)],
}


@on_machines
@pytest.mark.parametrize(
    ("how", "dtype", "fence"),
    [("sum", "f32", "begin"), ("max", "f32", "end"), ("max", "i8", "end")],
)
@pytest.mark.parametrize("name", SHAPES)
def test_nothing_beyond_the_operands_is_read(
    machine: Machine, name: str, how: str, dtype: str, fence: str
) -> None:
    check(window(SHAPES[name], how=how, dtype=dtype), machine, fence=fence)


def _loops(kernel: Kernel, var: str) -> list[Loop]:
    return [s for s in walk_loops(kernel.body) if s.var == var]


def test_rows_share_what_their_windows_overlap_in() -> None:
    kernel = tuned(window(SHAPES["whole rows"]), V4, frozenset({"w"}))[0]
    chain = next(s for s in kernel.body[0].body if isinstance(s, Loop) and s.var == "k1")
    order = [chain.var]
    while isinstance(chain.body[0], Loop):
        chain = chain.body[0]
        order.append(chain.var)
    assert order == ["k1", "x0", "k0", "x1"]
    assert [_loops(kernel, v)[0].kind for v in order] == [Kind.UNROLL] * 3 + [Kind.VECTOR]


LONG = {
    "nearly all padding": [Axis(12, 11, before=5, after=5)] * 2,
    "longer than the picture": [Axis(9, 17, before=8, after=8), Axis(21, 17, before=8, after=8)],
    "high": [Axis(19, 21, before=10, after=10), Axis(33, 4, before=2, after=1)],
    "wide": [Axis(11, 3, before=1, after=1), Axis(40, 31, before=15, after=15)],
    "dilated": [Axis(20, 9, dilation=2, before=8, after=8), Axis(35, 9, before=4, after=4)],
    "in steps of two": [Axis(25, 9, 2, before=4, after=4)] * 2,
    "rows in steps of two": [Axis(25, 9, 2, before=4, after=4), Axis(18, 9, before=4, after=4)],
    "of three dims": [Axis(5, 5, before=2, after=2)] * 2 + [Axis(17, 5, before=2, after=2)],
}


@on_machines
@pytest.mark.parametrize("how", ["sum", "max"])
@pytest.mark.parametrize("name", LONG)
def test_long_windows(machine: Machine, name: str, how: str) -> None:
    shape = LONG[name]
    check(window(shape, how=how, halo=[len(shape) - 1]), machine, parts=2)
    check(window(shape, how=how, halo=True), machine)


@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
def test_all_rows_of_a_tile_take_a_tap_of_a_long_window_together(machine: Machine) -> None:
    """Of 31 x 31 a column is written out, whose rows share what they read; columns are a loop."""
    case = window([Axis(32, 31, before=15, after=15)] * 2, halo=[1])
    kernel, schedule, *_ = tuned(case, machine, frozenset({"w"}))
    loops = [s for s in walk_loops(kernel.body) if s.var in ("k0", "k1")]
    assert {(s.var, s.kind) for s in loops} == {("k1", Kind.SERIAL), ("k0", Kind.UNROLL)}
    assert Reorder(("k1", "k0", "x0.i", "x1.i")) in schedule
    (rows,) = (s.factor for s in schedule if isinstance(s, Split) and s.var == "x0")
    assert machine.fma_latency * machine.fma_per_cycle <= rows <= machine.registers // 2


def test_rows_of_which_lanes_are_apart_follow_each_other() -> None:
    kernel = tuned(window(SHAPES["every other element"]), V4, frozenset({"w"}))[0]
    row = _loops(kernel, "x0.i")[0]
    assert row.kind is Kind.UNROLL
    # A row is stored before the next one begins.
    assert [type(s) for s in row.body] == [Loop, Loop, Loop]
    (chain,) = [s for s in row.body if isinstance(s, Loop) and s.var == "k0"]
    order = [chain.var]
    while isinstance(chain.body[0], Loop):
        chain = chain.body[0]
        order.append(chain.var)
    assert order == ["k0", "k1", "x1"]


@pytest.mark.parametrize(("taps", "stride", "loads"), [(3, 2, 4), (5, 2, 4), (5, 3, 6), (7, 4, 7)])
def test_taps_of_which_lanes_are_apart_share_their_loads(
    taps: int, stride: int, loads: int
) -> None:
    before = taps // 2
    axis = Axis(28 * stride, taps, stride, before=before, after=before)
    case = window([axis], channels=1)
    for machine in RUNNABLE.values():
        check(case, machine)
    kernel = tuned(case, V4, frozenset({"w"}))[0]
    assembly = compile_assembly(emit_kernel(kernel, V4).text, V4)
    assert len(VECTOR_LOAD.findall(assembly)) == loads


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("halo", [False, True])
@pytest.mark.parametrize("tested", [True, False])
def test_taps_that_are_outside_are_not_multiplied(
    *, tested: bool, halo: bool, finite: bool
) -> None:
    """Of rows of a window that lie outside of a picture, where weights are finite numbers.

    It is the same whether memory has something there, and whether reads would test for it.
    """
    case = window([Axis(5, 5, before=2, after=2), Axis(16, 1)], channels=1, halo=halo)
    kernel = tuned(case, V4, frozenset({"w"}))[0]
    known = tuple(replace(b, finite=finite and b.name == "w") for b in kernel.args)
    body = kernel.body
    if halo and not tested:
        body = rewrite(body, read=lambda r: replace(r, fill=None))
    text = emit_kernel(replace(kernel, args=known, body=body), V4).text
    inside, products = 3 + 4 + 5 + 4 + 3, len(PRODUCT.findall(compile_assembly(text, V4)))
    assert products == inside if finite else products > inside


def test_only_the_edges_have_tests() -> None:
    schedule = tuned(window([Axis(70, 3, before=1, after=1)] * 2), V4, frozenset({"w"}))[1]
    assert {s for s in schedule if isinstance(s, Part)} == {
        Part("x0.o", (1, 4)),
        Part("x1.o", (1, 4)),
    }


def test_rows_of_windows_stay_a_loop_where_a_long_function_follows() -> None:
    """Then only the edges along the tile's rows have code of their own, and copies of it."""
    pictures = [Axis(32, 3, before=1, after=1)] * 2

    def schedule(then: str | None) -> Schedule:
        case = window(pictures, 16, channels_last=True, then=then)
        return tuned(case, V3, frozenset({"w"}))[1]

    assert Inside(("k1",)) in schedule("erf")
    assert {s.var for s in schedule("erf") if isinstance(s, Part)} == {"x0.o"}
    for short in (None, "sqrt"):
        assert not [s for s in schedule(short) if isinstance(s, Inside)]
        assert {s.var for s in schedule(short) if isinstance(s, Part)} == {"x0.o", "x1"}


def test_what_a_halo_holds_needs_no_tests() -> None:
    case = window([Axis(64, 3, before=1, after=1)] * 2, halo=True)
    schedule = tuned(case, V4, frozenset({"w"}))[1]
    assert not [s for s in schedule if isinstance(s, Part) and s.var == "x1.o"]
