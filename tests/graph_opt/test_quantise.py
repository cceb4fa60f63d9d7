"""Sums of products in 8 bits: which may be, and that they compute what their definition says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest

from rutc.graph_opt import versions
from rutc.graph_opt.quantise import (
    COARSER,
    MOST,
    QUANTISED,
    ROUNDED,
    WAYS,
    Site,
    Span,
    added_values,
    in_ways,
    normal,
    quantised,
    sites,
    ways_of,
)
from rutc.tensor_ir import Apply, DType, Graph, Nest
from rutc.tensor_ir.expr import reads, walk
from rutc.tensor_ir.facts.products import SMALL, fours_are_small
from rutc.tensor_ir.graph import constants_of, used
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.graph_opt.networks import Net
from tests.machines import V3, V4

VNNI = replace(V4, features=V4.features | {"avx512vnni"})


def convolutions(n: Net) -> str:
    x = n.input(1, 3, 9, 7)
    x = n("Relu", n("Conv", x, n.weight(8, 3, 3, 3), n.weight(8), pads=[1, 1, 1, 1]))
    return n("Conv", x, n.weight(8, 2, 3, 3), n.weight(8), group=4, strides=[2, 2])


def products(n: Net) -> str:
    x = n.input(5, 24)
    x = n("Gemm", x, n.weight(17, 24), n.weight(17), transB=1)
    return n("MatMul", n("Tanh", x), n.weight(17, 9))


def transposed(n: Net) -> str:
    """Windows that step over results: a sum of its own for each phase of them."""
    x = n.input(1, 4, 5, 6)
    x = n("Relu", n("ConvTranspose", x, n.weight(4, 7, 2, 2), n.weight(7), strides=[2, 2]))
    return n("Conv", x, n.weight(5, 7, 3, 3), n.weight(5))


def shared(n: Net) -> str:
    """One table, multiplied along either of its axes."""
    x, table = n.input(4, 16), n.weight(16, 16)
    y = n("MatMul", x, table)
    return n("MatMul", y, n("Transpose", table, perm=[1, 0]))


def warped(n: Net) -> str:
    """A picture that is read where a sum says: that one stays exact, for it tells places."""
    x = n.input(1, 2, 12, 12)
    flow = n("Conv", n("Relu", n("Conv", x, n.weight(8, 2, 3, 3))), n.weight(2, 8, 1, 1))
    return n("GridSample", x, n("Transpose", flow, perm=[0, 2, 3, 1]))


def graph_of(make: Callable[[Net], str]) -> Graph:
    """The network in normal form."""
    n = Net()
    return normal(n.graph(make(n), dims={}), V3)


def spans_of(found: Graph, low: float = -2.0, high: float = 3.0) -> dict[str, Span]:
    return {s.value: Span(low, high) for s in sites(found)}


def stored(x: np.ndarray, span: Span) -> np.ndarray:
    """What a value is after it was stored in 8 bits."""
    q = np.clip(np.rint(x / np.float32(span.step)) + span.zero, 0, MOST)
    return ((q - span.zero) * np.float64(span.step)).astype(np.float64)


def steps_of(w: np.ndarray, kept: tuple[int, ...], largest: int) -> np.ndarray:
    """What weights are after they were, with a scale for each index of the axes that are kept."""
    others = tuple(k for k in range(w.ndim) if k not in kept)
    scale = (np.abs(w).max(axis=others, keepdims=True) / largest).astype(np.float32)
    return np.clip(np.rint(w / scale), -largest, largest) * scale.astype(np.float64)


def outputs(g: Graph, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    (found,) = interpret(g, inputs).values()
    return np.asarray(found, np.float64)


@pytest.mark.parametrize(("machine", "largest"), [(V3, SMALL), (VNNI, 127)])
def test_products_are_those_of_what_is_stored(machine: Machine, largest: int) -> None:
    n = Net()
    x = n.input(5, 24)
    # Few are large, so that four products of any fit 16 bits.
    w = n.const(n.rng.standard_normal((24, 9)) ** 7)
    g = normal(n.graph(n("MatMul", x, w), dims={}), machine)
    (site,) = sites(g)
    span = Span(-1.0, 2.0)
    q = quantised(g, (site,), {site.value: span}, machine)
    values = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)
    (weights,) = [d.array for d in constants_of(g).values() if d.array.size == 24 * 9]
    axis = next(k for k, extent in enumerate(weights.shape) if extent == 9)
    steps = steps_of(weights.astype(np.float64), (axis,), largest)
    wanted = stored(values, span) @ (steps if axis == 1 else steps.T)
    assert outputs(q, {"x0": values}) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("machine", [V3, VNNI])
@pytest.mark.parametrize("make", [convolutions, products, shared, transposed])
def test_rewriting_keeps_what_a_quantised_graph_computes(
    make: Callable[[Net], str], machine: Machine
) -> None:
    g = graph_of(make)
    found = sites(g)
    assert len(found) == 2
    q = quantised(g, found, spans_of(g), machine)
    (version,) = versions(q, machine)
    whole = [
        n
        for n in version.graph.nodes
        if isinstance(n, Nest) and n.bound and n.out.dtype is DType.I32
    ]
    assert len(whole) >= len(found)
    rng = np.random.default_rng(0)
    (x,) = q.inputs
    shape = [q.extent(d) for d in x.axes]
    values = rng.uniform(-3, 4, shape).astype(np.float32)
    before, after = (outputs(each, {"x0": values}) for each in (q, version.graph))
    scale = np.abs(before).max()
    # A value between two steps may go to either.
    assert np.abs(before - after).max() <= 0.02 * scale
    assert np.median(np.abs(before - after)) <= 1e-5 * scale


def test_scales_grow_where_more_products_fit_16_bits_then() -> None:
    """Where instructions add up pairs of products in 16 bits, and only if no scale doubles."""
    rng = np.random.default_rng(0)
    normal_weights = rng.standard_normal((64, 40)).astype(np.float32)
    flat = rng.choice(np.array([-1, 1], np.float32), (64, 40))
    for w, machine, grown in ((normal_weights, V3, True), (flat, V3, False), (flat, VNNI, False)):
        n = Net()
        g = normal(n.graph(n("MatMul", n.input(5, 64), n.const(w)), dims={}), machine)
        q = constants_of(quantised(g, sites(g), spans_of(g), machine))
        (steps,) = (d.array for d in q.values() if d.array.dtype == np.int8)
        (scale,) = (d.array for d in q.values() if d.array.shape == (40,))
        least = np.abs(w).max(axis=0) / (SMALL if machine is V3 else 127)
        assert (np.abs(scale * steps - w) <= scale * (0.5 + 1e-3)).all()
        assert fours_are_small(steps, 0) is grown
        assert (scale > least * 1.01).any() is np.bool_(grown)
        assert (scale <= COARSER * least * 1.01).all()


def test_a_table_gets_scales_along_the_axis_that_is_kept() -> None:
    g = graph_of(shared)
    first, second = sites(g)
    assert first.weights == second.weights or first.kept != second.kept
    q = quantised(g, (first, second), spans_of(g), V3)
    scales = [n for n in constants_of(q).values() if n.array.shape == (16,)]
    assert len(scales) == 2


def residual(n: Net, *, scaled: bool = False) -> str:
    """A value that a sum multiplies, and to which the result is added."""
    x = n("Relu", n("MatMul", n.input(5, 24), n.weight(24, 16)))
    y = n("Add", x, n("MatMul", n("Relu", n("MatMul", x, n.weight(16, 32))), n.weight(32, 16)))
    if scaled:
        y = n("Add", y, n("Mul", x, n("Sigmoid", y)))
    return n("MatMul", y, n.weight(16, 9))


def test_what_sums_multiply_is_added_as_they_have_it() -> None:
    g = graph_of(residual)
    found, spans = sites(g), spans_of(g)
    (added,) = added_values(g, found)
    assert added in {s.value for s in found}
    usual = quantised(g, found, spans, VNNI)
    other = quantised(g, found, spans, VNNI, (added,))
    reading = [{n.out.name for n in q.nodes if added in used(n)} for q in (usual, other)]
    assert len(reading[0]) == 2
    assert len(reading[1]) == 1
    values = np.random.default_rng(0).uniform(-1, 1, (5, 24)).astype(np.float32)
    apart = outputs(other, {"x0": values}) - outputs(usual, {"x0": values})
    assert 0 < np.linalg.norm(apart) < 0.05 * np.linalg.norm(outputs(usual, {"x0": values}))


def test_what_else_reads_a_value_keeps_it() -> None:
    """Another operation, an output, or a sum that is not chosen."""
    scaled = graph_of(partial(residual, scaled=True))
    assert added_values(scaled, sites(scaled)) == ()
    n = Net()
    y = residual(n)
    shown = normal(n.graph(y, dims={}), V3)
    (added,) = added_values(shown, sites(shown))
    rest = [s for s in sites(shown) if s.value != added]
    assert added_values(shown, rest) == ()
    outputs_too = replace(shown, outputs=(*shown.outputs, replace(shown.outputs[0], value=added)))
    assert added_values(outputs_too, sites(outputs_too)) == ()


def test_a_run_computes_each_sum_in_the_way_that_it_is_told() -> None:
    g = graph_of(products)
    found, spans = sites(g), spans_of(g)
    names = tuple(s.nest for s in found)
    values = np.random.default_rng(0).uniform(-2, 3, (5, 24)).astype(np.float32)
    usual = outputs(g, {"x0": values})
    # Of the first sum alone there is a rounded way: its number is that of the input all the same.
    made = in_ways(g, names[:1], found, spans, V3)
    assert ways_of(names[:1], found) == names
    for ways in product((0, QUANTISED), repeat=len(found)):
        wanted = quantised(g, [s for s, w in zip(found, ways, strict=True) if w], spans, V3)
        given = outputs(made, {"x0": values, WAYS: np.array(ways)})
        assert (given == outputs(wanted, {"x0": values})).all()
    last = outputs(made, {"x0": values, WAYS: np.array([ROUNDED, QUANTISED])})
    wanted = quantised(g, found[1:], spans, V3)
    apart = np.linalg.norm(last - outputs(wanted, {"x0": values}))
    # Both factors are off by up to a 256th of themselves.
    assert 1e-4 < apart / np.linalg.norm(usual) < 2**-7


def test_rounded_sums_differ_from_each_other() -> None:
    g = graph_of(products)
    names = tuple(s.nest for s in sites(g))
    values = np.random.default_rng(0).uniform(-2, 3, (5, 24)).astype(np.float32)
    made = in_ways(g, names, (), {}, V3)
    usual = outputs(g, {"x0": values})
    every = [(0, 0), (ROUNDED, 0), (0, ROUNDED), (ROUNDED, ROUNDED)]
    given = [outputs(made, {"x0": values, WAYS: np.array(ways)}) for ways in every]
    assert (given[0] == usual).all()
    for own in given[1:]:
        error = np.linalg.norm(own - usual) / np.linalg.norm(usual)
        assert 1e-4 < error < 2**-7
    assert not any((a == b).all() for a, b in combinations(given, 2))


def test_sums_that_tell_places_stay_exact() -> None:
    (site,) = sites(graph_of(warped))
    assert site.terms == 2 * 3 * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n("MatMul", n.input(4, 16), n.input(16, 5)),
        lambda n: n("ReduceSum", n.input(4, 16)),
        lambda n: n("MatMul", n.input(4, 16), n.const(np.full((16, 5), np.inf))),
    ],
    ids=["two values", "no product", "infinite weights"],
)
def test_other_sums_stay_as_they_are(make: Callable[[Net], str]) -> None:
    assert sites(graph_of(make)) == ()


def test_sums_that_are_not_chosen_stay_as_they_are() -> None:
    g = graph_of(products)
    assert quantised(g, (), {}, V3) == g
    first, second = sites(g)
    q = quantised(g, (second,), spans_of(g), V3)
    (kept,) = [n for n in q.nodes if isinstance(n, Nest) and n.out.name == first.nest]
    assert {r.value for r in reads(kept.body[0])} == {first.value, first.weights}
    assert isinstance(first, Site)


def test_nothing_is_divided_by_steps() -> None:
    """Scales of sums and the step of what is quantised next are one factor."""
    g = graph_of(convolutions)
    (version,) = versions(quantised(g, sites(g), spans_of(g), VNNI), VNNI)
    nests = [n for n in version.graph.nodes if isinstance(n, Nest)]
    operations = {x.op for n in nests for e in n.body for x in walk(e) if isinstance(x, Apply)}
    assert "round" in operations
    assert "div" not in operations
    (between,) = (
        e
        for n in nests
        if n.out.dtype is DType.U8
        for e in n.body
        if any(r.dtype is DType.I32 for r in reads(e))
    )
    assert sum(isinstance(x, Apply) and x.op == "mul" for x in walk(between)) == 1


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0.0, 2.55, 0), (-2.55, 0.0, 255), (-1.0, 1.0, 127), (3.0, 5.0, 0)]
)
def test_0_is_a_step_of_every_range(low: float, high: float, zero: int) -> None:
    span = Span(low, high)
    assert span.zero == zero
    assert 0 in (np.arange(MOST + 1) - span.zero) * span.step


@pytest.mark.parametrize("span", [Span(0.0, 0.0), Span(0.0, 1e-45), Span(-1e-42, 0.0)])
def test_ranges_of_nothing_have_a_step(span: Span) -> None:
    assert span.step == 1.0
    assert 0 <= span.zero <= MOST
