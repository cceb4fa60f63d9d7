"""Values stored in 16 bits: the graph says what that means, and kernels compute that."""

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rutc.graph_opt.assignment import Slicing, Stored, parse_assignment
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import Neighbour, legal, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation, realise
from rutc.graph_opt.decide.stored_types import NARROW, holds, keeps, weights
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir import Const, Data, DType, Graph, Value
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import BF16_VECTORS, Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level
from tests.compiled import build, run
from tests.graph_opt.plan_runner import run_plan
from tests.kernels import assert_agree
from tests.machines import V3, V4, on_native_and_v3

CHAIN = """
graph "a product of an exponential"
dims k = 3, m = 2, n = 2
%x : f32{k,m} = input "x" [m, k]
%w : f32{k,n} = const [k, n] [0.5, 1.001, -3.0, 0.0, 2.0, 0.1]
%h : f32{k,m} = exp(%x[k, m])
%y : f32{m,n} = sum{k} %h[k, m] * %w[k, n]
%z : f32{m,n} = max(%y[m, n], 0.0)
output "z" [m, n] = %z
"""

STORED = """
graph "a product of an exponential"
dims k = 3, m = 2, n = 2
%x : f32{k,m} = input "x" [m, k]
%w : bf16{k,n} = const [k, n] [0.5, 1.0, -3.0, 0.0, 2.0, 0.10009765625]
%h : f16{k,m} = f16(exp(%x[k, m]))
%y.wide : f32{m,n} = sum{k} f32(%h[k, m]) * f32(%w[k, n])
%y : bf16{m,n} = bf16(%y.wide[m, n])
%z : f32{m,n} = max(f32(%y[m, n]), 0.0)
output "z" [m, n] = %z
"""

SAID = """
assignment "a product of an exponential"
store %w as bf16
store %h as f16
store %y as bf16
%h [m, k]
%y.wide [m, n]
%y [m, n]
group {m, n}: %y.wide, %y, %z
"""


def of(text: str) -> Graph:
    """The graph of a text."""
    graph = parse(text)
    verify(graph)
    return graph


def chosen(graph: Graph, machine: Machine = V4) -> Realisation:
    """What is chosen for a graph."""
    return greedy(prepare(graph), machine).realisation


def stored_as(found: Realisation, dtype: DType, *names: str) -> Realisation:
    """The same with values stored in a type, each by the change that does it."""
    for name in names:
        change = next(n for n in typed(found) if n.subject == name and said(n) is dtype)
        other = legal(found, change)
        assert other is not None, change
        found = other
    return found


def said(n: Neighbour) -> DType:
    """The type that a change gives to its value."""
    types = {s.value: s.dtype for s in n.assignment.types}
    return types.get(n.subject, DType.F32)


def typed(found: Realisation) -> list[Neighbour]:
    """The changes of types of what is stored."""
    return [n for n in neighbours(found) if n.kind == "type"]


def test_the_graph_shows_what_is_widened_and_rounded() -> None:
    said = parse_assignment(SAID)
    assert parse_assignment(str(said)) == said
    plan = realise(prepare(of(CHAIN)), said, V4)
    assert plan.graph == of(STORED)
    x = np.float32([[0.1, -2.0, 1.0], [3.0, 0.0, -0.5]])
    wanted = interpret(of(STORED), {"x": x})["z"]
    np.testing.assert_array_equal(run_plan(plan, {"x": x})["z"], wanted)
    assert plan.layouts["w"].size * plan.values["w"].dtype.bytes == 12


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%w as bf16", "%w as i32", "%w cannot be stored as i32"),
        ("%w as bf16", "%w as i8 by {m}", "%w has no dim m"),
        ("%h as f16", "%h as i8 by {m}", "%h is no constant"),
        ("%w as bf16", "%w as f64", "%w cannot be stored as f64"),
        ("%w as bf16", "%v as bf16", "no value %v is there to be stored as bf16"),
        ("%w as bf16", "%x as bf16", "%x lies in memory as the interface says"),
        ("%w as bf16", "%z as bf16", "%z is an output, which has the model's type"),
        ("%y.wide [m, n]\n", "", "nothing says how %y.wide lies in memory"),
        ("%h [m, k]", "%h [m, k(+1+1)] fill 0.0:f32", "the fill is no f16"),
    ],
)
def test_what_cannot_be_stored_so_says_why(old: str, new: str, reason: str) -> None:
    assert old in SAID
    with pytest.raises(Illegal, match=re.escape(reason)):
        realise(prepare(of(CHAIN)), parse_assignment(SAID.replace(old, new)), V4)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("%v : i64{k} = i64(%a[k])\n%b : f32{k} = f32(%v[k])", "%v is of i64, and not of f32"),
        ("%v : f32{k} = -%a[k]\n%b : f32{k} = %v[k=k+1 else 1.001]", "1.001"),
        ("%v : f32{k} = const [k] [1e5, 1.0, 2.0]\n%b : f32{k} = %v[k] * %a[k]", "up to 100000"),
        (
            "%v : f32{k} = -%a[k]\n%c : f32{k} = %a[k] + 1.0\n"
            "%b : f32{k} = scatter{k} %c[k=k] sum= %v[k]",
            "%v is read by what is no loop nest",
        ),
        (
            "%v : f32{k} = -%a[k]\n%v.wide : f32{k} = %a[k] + 1.0\n"
            "%s : f32{} = max{k} %v[k]\n%b : f32{k} = %s[] + %v.wide[k]",
            "",
        ),
    ],
)
def test_what_else_decides_about_a_type_is_told(nodes: str, reason: str) -> None:
    graph = of(
        f'graph "g"\ndims k = 3\n%a : f32{{k}} = input "a" [k]\n{nodes}\noutput "b" [k] = %b\n'
    )
    found = chosen(graph)
    types = (Stored("v", DType.F16),)
    other = found.but(replace(found.assignment, types=types))
    if not reason:
        assert other.plan.values["v"].dtype is DType.F16
        return
    with pytest.raises(Illegal, match=re.escape(reason)):
        other.plan  # noqa: B018


def test_the_name_of_what_is_rounded_is_no_other_value() -> None:
    graph = of(
        'graph "g"\ndims k = 3\n%a : f32{k} = input "a" [k]\n%v : f32{} = max{k} %a[k]\n'
        '%v.wide : f32{k} = %a[k] + %v[]\noutput "b" [k] = %v.wide\n'
    )
    found = chosen(graph)
    with pytest.raises(Illegal, match=r"%v[.]wide is another value"):
        found.but(replace(found.assignment, types=(Stored("v", DType.BF16),))).plan  # noqa: B018


COUNTED = """
graph "a product of an exponential"
dims k = 3, m = 2, n = 2
%x : f32{k,m} = input "x" [m, k]
%w : i8{k,n} = const [k, n] [21, 127, -127, 0, 85, 13]
%w.steps : f32{n} = const [n] [0.023622047, 0.00788189]
%h : f32{k,m} = exp(%x[k, m])
%y.wide : f32{m,n} = sum{k} %h[k, m] * f32(%w[k, n])
%y : f32{m,n} = %y.wide[m, n] * %w.steps[n]
%z : f32{m,n} = max(%y[m, n], 0.0)
output "z" [m, n] = %z
"""


def test_integers_count_steps_of_a_size_for_each_index() -> None:
    found = chosen(of(CHAIN))
    other = stored_as(found, DType.I8, "w")
    assert other.assignment.types == (Stored("w", DType.I8, ("n",)),)
    assert "store %w as i8 by {n}\n" in str(other.assignment)
    assert parse_assignment(str(other.assignment)) == other.assignment
    assert other.plan.graph == of(COUNTED)
    assert len(list(other.plan.groups())) == len(list(found.plan.groups()))
    x = np.float32([[0.1, -2.0, 1.0], [3.0, 0.0, -0.5]])
    wanted = interpret(of(COUNTED), {"x": x})["z"]
    np.testing.assert_array_equal(run_plan(other.plan, {"x": x})["z"], wanted)
    usual = interpret(of(CHAIN), {"x": x})["z"]
    assert_agree("z", wanted, usual, exact=False, level=Level.REDUCED)
    # Where steps differ among what is summed, they are factors of the summands.
    inside = found.but(replace(found.assignment, types=(Stored("w", DType.I8, ("k",)),)))
    assert "%y : f32{m,n} = sum{k} %h[k, m] * (f32(%w[k, n]) * %w.steps[k])" in str(inside.graph)
    got = run_plan(inside.plan, {"x": x})["z"]
    assert_agree("z", got, usual, exact=False, level=Level.REDUCED)


def test_what_is_counted_may_be_rounded_as_well() -> None:
    found = chosen(of(CHAIN))
    for names in (("w", "y"), ("y", "w")):
        other = found
        for name in names:
            other = stored_as(other, DType.I8 if name == "w" else DType.F16, name)
        assert "%y : f16{m,n} = f16(%y.wide[m, n] * %w.steps[n])" in str(other.plan.graph)
        assert other.assignment.groups == stored_as(found, DType.F16, "y").assignment.groups
        for name in names:
            other = stored_as(other, DType.F32, name)
        assert other.plan.graph == found.plan.graph
        assert {g.nests for g in other.assignment.groups} == {
            g.nests for g in found.assignment.groups
        }


def test_chains_are_led_by_the_reduction() -> None:
    """Kernels over slices keep their places where another nest makes what the first one gave."""
    graph = of(
        'graph "g"\ndims k = 8, m = 6, n = 16, o = 4\n%x : f32{k,m} = input "x" [m, k]\n'
        f"%w : f32{{k,n}} = const [k, n] {[0.01 * i for i in range(128)]}\n"
        f"%v : f32{{n,o}} = const [n, o] {[0.02 * i for i in range(64)]}\n"
        "%p : f32{m,n} = sum{k} %x[k, m] * %w[k, n]\n"
        "%q : f32{m,o} = sum{n} %p[m, n] * %v[n, o]\n"
        'output "q" [m, o] = %q\n'
    )
    found = chosen(graph)
    sliced = found.but(
        replace(found.assignment, slices=(Slicing(("p", "q"), ("m",), 2),), turns=())
    )
    assert sliced.plan
    other = stored_as(sliced, DType.I8, "w", "v")
    assert other.assignment.slices == (Slicing(("p.wide", "q.wide"), ("m",), 2),)
    inputs = {"x": np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)}
    got = run_plan(other.plan, inputs)["q"]
    assert_agree("q", got, interpret(other.graph, inputs)["q"], exact=False, reduction=16)
    back = stored_as(other, DType.F32, "w", "v")
    assert back.assignment.slices == sliced.assignment.slices
    assert back.plan.graph == found.plan.graph


def test_constants_of_integers_are_finite_and_have_no_outliers() -> None:
    array = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    stored = Stored("w", DType.I8, ("n",))

    def const(array: np.ndarray) -> Const:
        return Const(Value("w", DType.F32, ("k", "n")), ("k", "n"), Data(array))

    usual = const(array)
    assert holds(stored, usual)
    assert keeps(stored, usual)
    numbers, steps = usual.data.in_steps((1,))
    assert numbers.array.dtype == np.int8
    assert (np.abs(numbers.array).max(axis=0) == 127).all()
    assert np.abs(numbers.array * steps.array - array).max() <= 0.5001 * steps.array.max()
    for value in (np.inf, np.nan):
        other = array.copy()
        other[3, 4] = value
        assert not holds(stored, const(other))
    large = array.copy()
    large[5] *= 50
    assert not keeps(stored, const(large)), "a row is much larger than the others"
    assert keeps(Stored("w", DType.I8, ("k",)), const(large))
    assert not keeps(stored, const(array * np.float32(1e-37)))
    zero = const(np.zeros((2, 3), np.float32))
    assert zero.data.in_steps((1,))[1].array.tolist() == [1.0, 1.0, 1.0]
    assert keeps(stored, zero)


def test_a_type_can_be_taken_back() -> None:
    found = chosen(of(CHAIN))
    for name in ("h", "y", "w"):
        for dtype in (*NARROW, *([DType.I8] if name == "w" else [])):
            other = stored_as(found, dtype, name)
            by = ("n",) if dtype is DType.I8 else ()
            assert other.assignment.types == (Stored(name, dtype, by),)
            back = stored_as(other, DType.F32, name)
            assert back.plan.graph == found.plan.graph
            assert back.plan.places == found.plan.places
    changed = {n.subject for n in typed(found)}
    assert changed == {"h", "y", "w"}, "inputs and outputs keep the model's types"


def test_copies_and_halos_may_have_types() -> None:
    graph = of(
        'graph "g"\ndims c = 4, k = 3, n = 9\n%a : f32{c,n} = input "a" [c, n]\n'
        "%w : f32{c,k} = const [c, k] [" + ", ".join(f"0.{i}" for i in range(12)) + "]\n"
        "%v : f32{c,n} = -%a[c, n]\n"
        "%b : f32{n} = sum{c,k} %v[c, n=n+k-1 else 0.0] * %w[c, k]\n"
        'output "b" [n] = %b\n'
    )
    found = chosen(graph)
    arranged = found.assignment.arrangements
    assert [v for v, a in arranged.items() if a.halo] == ["v"]
    inputs = {"a": np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)}
    exact = run_plan(found.plan, inputs)["b"]
    other = stored_as(found, DType.F16, "v", "w")
    fill = other.assignment.arrangements["v"].fill
    assert fill is not None
    assert fill.dtype is DType.F16
    got, wanted = run_plan(other.plan, inputs)["b"], interpret(other.graph, inputs)["b"]
    assert_agree("b", got, wanted, exact=False, reduction=12)
    copied = next(
        x
        for n in neighbours(found)
        if n.kind == "operands" and "copy" in n.change and (x := legal(found, n)) is not None
    )
    (copy,) = copied.assignment.copies
    both = stored_as(copied, DType.F16, copy.name)
    assert both.plan.values[copy.name].dtype is DType.F16
    assert both.plan.values[copy.value].dtype is DType.F32
    got = run_plan(both.plan, inputs)["b"]
    assert not (got == exact).all()
    assert_agree("b", got, exact, exact=False, level=Level.HALF)


SPECIAL = np.array(
    [
        0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0, 65519.99, 65520.0, -65520.0, 1e5,
        3.3895e38, 3.4e38, -3.4028235e38, 6.1e-5, 6e-5, 5.96e-8, 2.98e-8, 2.99e-8, 1e-10, 1.2e-38,
        1e-39, -1e-40, 1.4e-45, 1.00390625, 1.001953125, 1.005859375, 1.00048828125, 0.1, -3.14159,
    ],
    np.float32,
)  # fmt: skip
"""What types of 16 bits have at their ends, and numbers half way between two of theirs."""


@on_native_and_v3
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("constant", [False, True])
def test_extremes_are_rounded_to_the_nearest(
    machine: Machine, dtype: DType, constant: bool, tmp_path: Path
) -> None:
    """A value, or a constant, stored in 16 bits and read again. Odd extents leave rests."""
    n = len(SPECIAL)
    with np.errstate(over="ignore"):
        wanted = SPECIAL.astype(dtype.numpy).astype(np.float32)
    own = "const [k] " + str([0.0] * n) if constant else "%a[k]"
    graph = of(
        f'graph "g"\ndims k = {n}\n%a : f32{{k}} = input "a" [k]\n%v : f32{{k}} = {own}\n'
        "%s : f32{} = max{k} abs(%a[k])\n%b : f32{k} = select(%s[] < 0.0, %s[], %v[k])\n"
        'output "b" [k] = %b\n'
    )
    if constant:
        # Finite elements of constants stay finite.
        lost = np.isinf(wanted) & np.isfinite(SPECIAL)
        array, wanted = (np.where(lost, np.float32(1), x) for x in (SPECIAL, wanted))
        nodes = (replace(x, data=Data(array)) if isinstance(x, Const) else x for x in graph.nodes)
        graph = replace(graph, nodes=tuple(nodes))
    found = chosen(graph, machine)
    types = (Stored("v", dtype),)
    found = found.but(replace(found.assignment, types=types, groups=()))
    got = run_plan(found.plan, {"a": SPECIAL})["b"]
    np.testing.assert_array_equal(got, wanted)
    library = build(found.plan, machine, tmp_path)
    compiled = run(library, {"a": SPECIAL}, 1)["b"]
    if dtype is DType.BF16 and not constant and BF16_VECTORS in machine.features:
        # The instruction that rounds takes subnormal numbers for zeros.
        subnormal = np.abs(SPECIAL) < np.finfo(np.float32).tiny
        wanted = np.where(subnormal, np.copysign(np.float32(0), SPECIAL), wanted)
    np.testing.assert_array_equal(compiled, wanted)
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(compiled[there]), np.signbit(wanted[there]))


@on_native_and_v3
@pytest.mark.parametrize("dtype", [*NARROW, DType.I8])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 67, 129), (2, 33, 7), (5, 130, 31), (13, 40, 65), (1, 513, 8)]
)
def test_products_of_any_shape_widen_their_weights(
    machine: Machine, dtype: DType, m: int, k: int, n: int, tmp_path: Path
) -> None:
    graph = of(
        f'graph "g"\ndims k = {k}, m = {m}, n = {n}\n%x : f32{{k,m}} = input "x" [m, k]\n'
        f"%w : f32{{k,n}} = const [k, n] {[0.0] * (k * n)}\n"
        "%y : f32{m,n} = sum{k} %x[k, m] * %w[k, n]\n"
        '%z : f32{m,n} = max(%y[m, n], 0.0)\noutput "z" [m, n] = %z\n'
    )
    rng = np.random.default_rng(k)
    w = Data(rng.standard_normal((k, n)).astype(np.float32))
    nodes = (replace(x, data=w) if isinstance(x, Const) else x for x in graph.nodes)
    found = stored_as(chosen(replace(graph, nodes=tuple(nodes)), machine), dtype, "w")
    # Of whole numbers and rounded weights sums are exact in f64, and in f32 to some roundings.
    x = rng.integers(-8, 9, (m, k)).astype(np.float32)
    if dtype is DType.I8:
        numbers, steps = w.in_steps((1,))
        stored = numbers.array * steps.array.astype(np.float64)
    else:
        stored = w.array.astype(dtype.numpy).astype(np.float64)
    wanted = np.maximum(x.astype(np.float64) @ stored, 0)
    size = float((np.abs(x).astype(np.float64) @ np.abs(w.array)).max())
    for got in (
        run_plan(found.plan, {"x": x})["z"],
        run(build(found.plan, machine, tmp_path), {"x": x}, 2)["z"],
    ):
        assert np.abs(got - wanted).max() <= 1e-6 * size


def test_constants_that_a_type_has_not_are_told() -> None:
    def const(*rows: list[float]) -> Const:
        return Const(Value("w", DType.F32, ("k", "n")), ("k", "n"), Data(np.float32(rows)))

    bf16, f16 = (Stored("w", t) for t in NARROW)
    i8 = Stored("w", DType.I8, ("n",))
    usual = const([1.0, -2.0], [0.5, 0.0])
    assert all(holds(t, usual) and keeps(t, usual) for t in (bf16, f16, i8))
    large = const([1.0, -65520.0], [0.5, 0.0])
    assert (holds(bf16, large), holds(f16, large)) == (True, False)
    assert holds(f16, const([1.0, 65519.0], [np.inf, np.nan]))
    # A column of numbers that are no normal ones in f16 loses its digits; beside others they count
    # for nothing.
    small = const([1.0, 1e-6], [2.0, -2e-6])
    assert (keeps(bf16, small), keeps(f16, small)) == (True, False)
    assert keeps(f16, const([1.0, 1e-6], [2.0, 1.0]))
    assert keeps(f16, const([1.0, 0.0], [2.0, 0.0]))
    assert not keeps(bf16, const([1e-40, 1.0], [2e-40, 1.0]))


def test_weights_are_factors_of_sums_of_products() -> None:
    graph = of(
        CHAIN.replace(
            "%z : f32{m,n} = max(%y[m, n], 0.0)",
            "%c : f32{n} = const [n] [1.0, 2.0]\n%z : f32{m,n} = %y[m, n] + %c[n]",
        )
    )
    assert [n.out.name for n in weights(prepare(graph))] == ["w"]
    assert {n.out.name for n in walk_nodes(graph.nodes) if isinstance(n, Const)} == {"w", "c"}
    assert ml_dtypes.bfloat16 is DType.BF16.numpy.type
    assert prepare(graph).graph.constants["w"].data.rounded(DType.BF16.numpy).is_finite


@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
def test_what_is_kept_of_a_realisation_is_what_types_leave(machine: Machine) -> None:
    found = chosen(of(CHAIN), machine)
    assert found.plan
    other = found.but(replace(found.assignment, types=(Stored("w", DType.BF16),)))
    assert other.copied is found.copied
    assert other.plan == realise(found.prepared, other.assignment, machine)
