"""Filters in bf16 that lose more bits than any may, but not of the values at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.larger_filters import larger_filters, within_bits
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.quantise import normal, sites
from rutc.graph_opt.rounded_filters import RoundedFilter, lost_by_rounding
from rutc.graph_opt.versions import versions
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.graph_opt.networks import Net
from tests.graph_opt.test_filtered_instead import BOTH, PAIRS, TWICE, graph_of, noise, slopes
from tests.machines import V3, V4


def found(
    graph: Graph, machine: Machine = PAIRS, spread: tuple[str, ...] = ()
) -> tuple[RoundedFilter, ...]:
    return larger_filters(graph, sites(graph), machine, spread)


@pytest.mark.parametrize(
    ("graph", "machine"),
    [
        pytest.param(graph_of(64, 28, 64), V3, id="a machine without products of bf16"),
        pytest.param(graph_of(64, 28, 64), V4, id="nor with longer vectors"),
        pytest.param(graph_of(64, 28, 64, 1), PAIRS, id="no window"),
        pytest.param(graph_of(64, 28, 64, 3, 2), PAIRS, id="windows two apart"),
        pytest.param(graph_of(512, 7, 512), PAIRS, id="more weights than the cache has"),
    ],
)
def test_what_is_not_faster(graph: Graph, machine: Machine) -> None:
    assert not found(graph, machine)


def test_those_are_looked_at_that_lose_more_than_any_may() -> None:
    own = found(graph_of(61, 29, 127))
    assert [BOTH in f.algorithm for f in own] == [True, False, False]
    (usual,) = versions(graph_of(61, 29, 127), PAIRS, Leeway(bf16=True))
    assert not {f.algorithm for f in own} & set(usual.assigned.algorithms)


def test_inputs_that_are_spread_are_filtered_as_others_are() -> None:
    graph = graph_of(64, 28, 64)
    (site,) = sites(graph)
    assert not found(graph, spread=(site.nest,))


def measured(own: tuple[RoundedFilter, ...], x: np.ndarray) -> tuple[tuple[str, str], ...]:
    """What may be used of a value {1, channels, y, x}."""
    array = np.maximum(x, 0).astype(np.float32)[0]
    rounded = {f.site.value: lost_by_rounding(array) for f in own}
    return within_bits(own, {f.algorithm: f.energies(array) for f in own}, rounded)


def test_neighbours_that_are_alike_lose_less() -> None:
    rng = np.random.default_rng(0)
    own = found(graph_of(64, 31, 67))
    assert set(measured(own, slopes(rng, 31))) == {f.algorithm for f in own}
    assert not measured(own, noise(rng, 31))
    # Nothing is known of values that are not finite.
    assert not within_bits(own, {}, {})


@pytest.mark.parametrize("make", [noise, slopes])
@pytest.mark.parametrize("size", [28, 31])
def test_what_may_be_used_errs_by_a_bit_more_at_most(
    make: Callable[[np.random.Generator, int], np.ndarray], size: int
) -> None:
    """Beside sums of rounded factors as they stand; what may not be used errs by more."""
    graph = graph_of(64, size, 64)
    x = make(np.random.default_rng(0), size).astype(np.float32)
    own = found(graph)
    (wanted,) = interpret(graph, {"x0": x}).values()
    (site,) = sites(graph)
    array = np.maximum(x, 0)[0]
    (weights,) = {id(f.form.const): f.form.const.data.array for f in own}.values()
    direct = lost_by_rounding(array) + lost_by_rounding(weights)
    direct *= site.terms * float(np.square(array).mean() * np.square(weights).mean())
    most = direct * 4.0 ** MinimalFiltering().most_bits
    may = measured(own, x)
    for f in own:
        (version,) = versions(graph, PAIRS, Leeway(bf16=True, looser=(f.algorithm,)))
        assert f.algorithm in version.assigned.algorithms
        (got,) = interpret(version.graph, {"x0": x}).values()
        lost = float(np.square(got - wanted, dtype=np.float64).mean())
        assert lost < TWICE * most if f.algorithm in may else lost > most / TWICE


@pytest.mark.parametrize(("channels", "size", "outputs"), [(8, 14, 64), (8, 28, 16)])
def test_what_only_a_looser_filter_makes_faster_is_replayed(
    channels: int, size: int, outputs: int
) -> None:
    """Beside a sum of rounded factors, the filter reads the value itself, assigned or chosen."""
    n = Net()
    x = n("Relu", n.input(1, channels, size, size))
    beside = n("Conv", x, n.weight(outputs, channels, 1, 1))
    windows = n("Conv", x, n.weight(outputs, channels, 3, 3), pads=[1] * 4)
    graph = normal(n.graph(n("Add", beside, windows), dims={}), PAIRS)
    looser = next(i.algorithm for i in found(graph) if BOTH in i.algorithm)
    (usual,) = versions(graph, PAIRS, Leeway(bf16=True))
    assert looser[0] not in dict(f for f in usual.assigned.algorithms if "filter" in f[1])
    (version,) = versions(graph, PAIRS, Leeway(bf16=True, looser=(looser,)))
    assert looser in version.assigned.algorithms
    assert with_algorithms(graph, PAIRS, version.assigned) == version.graph
