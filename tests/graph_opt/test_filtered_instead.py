"""Filters in bf16 instead of sums in 8 bits: what they are weighed by, and what they lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16
from rutc.graph_opt.filtered_instead import filtered_instead, no_less_accurate
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.quantise import Span, lost_in_eight_bits, normal, sites
from rutc.graph_opt.rounded_filters import RoundedFilter
from rutc.graph_opt.versions import versions
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import Const, Output
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.graph_opt.networks import Net
from tests.machines import V3, V4

PAIRS = replace(V4, features=V4.features | {"avx512bf16", "avx512vnni"}, fma_per_cycle=1.0)
"""A machine that adds up products of bytes, and pairs of bf16, as fast as single products."""
BOTH = "filter kx by 4, ky by 4" + SAID_IN_BF16
TWICE = 2.0
"""How far an estimate of squares may be off."""


def graph_of(channels: int, size: int, outputs: int, window: int = 3, stride: int = 1) -> Graph:
    """A convolution of a value {1, channels, size, size} in normal form."""
    n = Net()
    x = n.input(1, channels, size, size)
    pads = [window // 2] * 4
    w = n.weight(outputs, channels, window, window)
    y = n("Conv", n("Relu", x), w, pads=pads, strides=[stride, stride])
    return normal(n.graph(y, dims={}), PAIRS)


def found(
    graph: Graph, machine: Machine = PAIRS, spread: tuple[str, ...] = ()
) -> list[RoundedFilter]:
    return list(filtered_instead(graph, sites(graph), machine, spread))


def test_what_is_faster_by_a_filter() -> None:
    own = found(graph_of(128, 28, 128))
    assert own[0].algorithm[1] == BOTH
    # That with fewer outputs a tile loses less, and may be taken if the first one may not.
    assert all("in bf16" in i.algorithm[1] for i in own)


@pytest.mark.parametrize(
    ("graph", "machine"),
    [
        pytest.param(graph_of(128, 28, 128), V3, id="a machine without products of bf16"),
        pytest.param(graph_of(128, 28, 128), V4, id="nor with longer vectors"),
        pytest.param(graph_of(128, 28, 128, 1), PAIRS, id="no window"),
        pytest.param(graph_of(128, 28, 128, 3, 2), PAIRS, id="windows two apart"),
        pytest.param(graph_of(3, 28, 128), PAIRS, id="more to transform than to multiply"),
        pytest.param(graph_of(512, 7, 512), PAIRS, id="more weights than the cache has"),
    ],
)
def test_what_is_not(graph: Graph, machine: Machine) -> None:
    assert not found(graph, machine)


def test_inputs_that_are_spread_are_not_filtered() -> None:
    graph = graph_of(128, 28, 128)
    ((site),) = sites(graph)
    assert not found(graph, spread=(site.nest,))


def noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Neighbours that have nothing in common."""
    return rng.standard_normal((1, 64, size, size))


def slopes(rng: np.random.Generator, size: int) -> np.ndarray:
    """Neighbours that are alike."""
    at = np.linspace(0, 3, size)
    return np.sin(rng.uniform(0, 6, (1, 64, 1, 1)) + at[:, None] + at) + 1


def spikes(rng: np.random.Generator, size: int) -> np.ndarray:
    """Few that are not zero."""
    return noise(rng, size) * (rng.uniform(size=(1, 64, size, size)) < 0.02)


@pytest.mark.parametrize("make", [noise, slopes, spikes])
@pytest.mark.parametrize("size", [28, 31])
def test_losses_are_those_of_sums(
    make: Callable[[np.random.Generator, int], np.ndarray], size: int
) -> None:
    """Estimated from one case, they are about what sums lose: of other weights, on average."""
    graph = graph_of(64, size, 64)
    (site,) = sites(graph)
    x = make(np.random.default_rng(0), size).astype(np.float32)
    (instead,) = (i for i in found(graph) if BOTH in i.algorithm)
    seen = replace(graph, outputs=(Output("value", site.value, instead.dims),))
    value = interpret(seen, {"x0": x})["value"]
    estimated = instead.lost(instead.energies(value))
    (wanted,) = interpret(graph, {"x0": x}).values()
    (version,) = versions(graph, PAIRS, Leeway(bf16=True, looser=(instead.algorithm,)))
    assert instead.algorithm in version.assigned.algorithms
    assert with_algorithms(graph, PAIRS, version.assigned) == version.graph
    (got,) = interpret(version.graph, {"x0": x}).values()
    lost = float(np.square(got - wanted, dtype=np.float64).mean())
    lost /= (
        site.terms * np.square(value, dtype=np.float64).mean() * np.square(weights(graph)).mean()
    )
    assert lost / TWICE < estimated < lost * TWICE


def weights(graph: Graph) -> np.ndarray:
    """The weights of a convolution."""
    (site,) = sites(graph)
    nodes = (n for n in graph.nodes if isinstance(n, Const))
    (array,) = (n.data.array for n in nodes if n.out.name == site.weights)
    return array


def test_the_first_is_taken_that_loses_no_more_than_8_bits() -> None:
    graph = graph_of(64, 28, 64)
    (site,) = sites(graph)
    every = found(graph)
    value = np.maximum(noise(np.random.default_rng(0), 28), 0).astype(np.float32)[0]
    energies = {i.algorithm: i.energies(value) for i in every}
    chosen = []
    for lost in (1.0, 0.0):
        spans = {site.value: Span(0.0, 4.0, lost)}
        assert lost_in_eight_bits(graph, site, spans[site.value], PAIRS) > lost
        chosen.append(dict(no_less_accurate(every, energies, graph, spans, PAIRS)))
    assert chosen[0] == {site.nest: every[0].algorithm[1]}
    assert chosen[1].get(site.nest) != chosen[0][site.nest]
    # Nothing is known of values that are not finite.
    assert not no_less_accurate(every, {}, graph, spans, PAIRS)


def test_a_value_of_zeros_loses_nothing() -> None:
    instead = found(graph_of(64, 28, 64))[0]
    assert instead.lost(instead.energies(np.zeros((64, 28, 28), np.float32))) == 0.0


def test_tiles_may_be_larger_than_the_value() -> None:
    instead = found(graph_of(64, 28, 64))[0]
    sizes = [5 if d in {w.along for w in instead.form.filters} else 64 for d in instead.dims]
    energies = instead.energies(np.ones(sizes, np.float32))
    assert energies.shape == (6, 6)
    assert np.isfinite(energies).all()
