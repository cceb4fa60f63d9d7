"""What `--precision auto` thinks that sums gain and cost in bf16 is what they do when compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rutc.driver.options import Calibration
from rutc.driver.precision.calibration import Case, RunningLibrary, spans
from rutc.driver.precision.chosen_sums import ChosenSums
from rutc.driver.precision.within_tolerance import Mix, WithinTolerance
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.choices import offers
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.pipeline import rounded_by
from rutc.graph_opt.quantise import ROUNDED, WAYS, in_ways, normal, sites, ways_of
from rutc.importer import import_model
from rutc.tensor_ir import Graph
from rutc.verify.judging.compare import Value
from tests.graph_opt.networks import Net
from tests.machines import needs
from tests.precision.test_bf16_pairs import PAIRS

IN_BF16 = ChosenSums(())
"""Factors of all sums that gain by it are rounded, none is of integers."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Windows that are filtered in float32 and in bf16, then products that are no windows."""
    n = Net()
    x = n.input(1, 128, 26, 26)
    x = n("Conv", x, n.weight(128, 128, 3, 3), pads=[1, 1, 1, 1])
    x = n("Conv", n("Relu", x), n.weight(128, 128, 1, 1))
    path = n.save(tmp_path_factory.mktemp("windows") / "windows.onnx", x)
    return normal(import_model(path), PAIRS)


@pytest.fixture(scope="module")
def within(graph: Graph) -> WithinTolerance:
    """What chooses, of 16 inputs that are drawn."""
    cases: list[tuple[Case, list[Value]]] = []
    spans(graph, (), Calibration(), on_outputs=lambda *own: cases.append(own))
    return WithinTolerance(graph, {}, PAIRS, Calibration(), cases, USUAL_LEEWAY, lambda choice: 0.0)


def offered(graph: Graph, leeway: Leeway) -> dict[str, Offer]:
    """The algorithm of each sum that has one, with the cycles that it is estimated to take."""
    (version,) = versions(graph, PAIRS, leeway)
    own = version.assigned
    every = offers(graph, PAIRS, own)
    return {o.value: o for o in every if (o.value, o.algorithm) in own.algorithms}


def test_sums_save_what_they_take_less_than_filters_in_float32(
    graph: Graph, within: WithinTolerance
) -> None:
    window, other = (s.nest for s in sites(graph))
    usual, rounded = offered(graph, USUAL_LEEWAY), offered(graph, Leeway(bf16=True))
    assert usual[window].algorithm.startswith("filter")
    assert rounded_by(rounded[window].algorithm)
    assert other not in usual
    saved = within.saved(IN_BF16)
    assert saved[other] == rounded[other].direct - rounded[other].cost
    assert saved[window] == pytest.approx(usual[window].cost - rounded[window].cost, rel=1e-6)
    assert saved[window] < 0.5 * (rounded[window].direct - rounded[window].cost)


@needs(PAIRS)
def test_filters_in_bf16_lose_what_their_sums_are_told_to_cost(
    graph: Graph, within: WithinTolerance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mix does not filter: it is told how much more that loses.

    What it runs is code of this processor, which filters nothing where that has tiles.
    """
    pairs = replace(native_target(), machine=PAIRS)
    monkeypatch.setattr("rutc.driver.precision.calibration.native_target", lambda: pairs)
    every = tuple(s.nest for s in sites(graph))
    losses = within.losses(IN_BF16)
    assert set(losses) == {every[0]}
    ways = ways_of(every, ())
    with RunningLibrary(in_ways(graph, every, (), {}, PAIRS), Calibration()) as running:
        cases = list(running.cases())
        wanted = [running.run({**case, WAYS: np.zeros(2, np.int64)}) for case in cases]
        mix = Mix(running, ways, list(zip(cases, wanted, strict=True)), losses)
        mix.costs({name: {ROUNDED: 1.0} for name in every})
        for chosen in (every[:1], every[1:], every):
            told = mix.bound(dict.fromkeys(chosen, ROUNDED))
            assert told == pytest.approx(within.bound(ChosenSums((), only=chosen)), rel=0.2)
