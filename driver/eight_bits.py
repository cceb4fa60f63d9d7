"""`--precision int8`: sums of products of a model as sums of 8-bit integers, where that is faster.

The graph is brought into normal form, run on calibration cases for the ranges of its values
(`driver.calibration`), and quantised (`graph_opt.quantise`). Which sums are is chosen by what the
plan of each choice takes, by the estimate of its kernels: all, those of many terms, or none.

`--precision auto` takes back as many as results need to be within the tolerance on the cases: first
those of which quantising changes most. How much that is a library tells that computes each sum in
both ways, from the same values. How far results are off tells a library of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.build import machine_of
from rutc.driver.calibration import Running, spans
from rutc.driver.estimates import Known, estimate_plan
from rutc.driver.options import Calibration
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.graph_opt.quantise import Site, Span, compared, normal, quantised, sites
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine
from rutc.verify.budget import relative_error

LEAST_TERMS = (0, 32, 128)
"""The least terms of sums of 8-bit integers, of which the best is chosen."""
MARGIN = 0.75
"""The share of a tolerance that is used up on calibration cases: others are further off."""


@record
class EightBits:
    """A graph some of whose sums are of 8-bit integers, which, and of how many.

    `ranges` are those of their values; `cases` says what they were found on.
    """

    graph: Graph
    chosen: tuple[Site, ...]
    sums: int
    ranges: dict[str, tuple[float, float]]
    cases: str

    def facts(self) -> dict[str, object]:
        """What the manifest says."""
        return {
            "sums": [s.nest for s in self.chosen],
            "of": self.sums,
            "ranges": self.ranges,
            "calibration": self.cases,
        }


def in_eight_bits(
    graph: Graph,
    machine: Machine,
    how: Calibration,
    tolerance: float | None = None,
    on_progress: Progress = nobody,
) -> EightBits:
    """An imported graph with sums of 8-bit integers, where it then takes less time.

    With a `tolerance` only as many as leave results within it.

    Raises:
        UserError: a calibration case does not fit the model, or the model does not run on it.
    """
    before = normal(graph, machine)
    found = sites(before)
    known, cases = spans(before, (s.value for s in found), how, on_progress)
    usable = tuple(s for s in found if s.value in known)
    estimated: Known = {}

    def cycles(chosen: tuple[Site, ...]) -> float:
        own = quantised(before, chosen, known, machine)
        version = versions(own, machine)[-1]
        plan = decide(version.graph, machine, version.assigned)
        return estimate_plan(plan, machine_of([plan], machine), known=estimated).cycles

    chosen = min(_choices(usable), key=lambda sums: (cycles(sums), len(sums)))
    if tolerance is not None and chosen:
        chosen = _Errors(before, known, machine, how).within(chosen, MARGIN * tolerance)
    result = quantised(before, chosen, known, machine) if chosen else graph
    ranges = {s.value: (known[s.value].low, known[s.value].high) for s in chosen}
    return EightBits(result, chosen, len(found), ranges, cases)


def _choices(usable: tuple[Site, ...]) -> Iterator[tuple[Site, ...]]:
    """All sums, fewer, and none, each choice once."""
    tried = [tuple(s for s in usable if s.terms >= least) for least in LEAST_TERMS]
    yield from dict.fromkeys([*tried, ()])


class _Errors:
    """How far results are off when sums of a graph in normal form are of 8-bit integers."""

    def __init__(
        self, graph: Graph, known: Mapping[str, Span], machine: Machine, how: Calibration
    ) -> None:
        self._graph, self._known, self._machine, self._how = graph, known, machine, how
        with Running(graph, how) as running:
            self._wanted = list(running.results())

    def within(self, chosen: tuple[Site, ...], tolerance: float) -> tuple[Site, ...]:
        """As many of some sums as leave results within a tolerance, those that change least."""
        if self.of(chosen) <= tolerance:
            return chosen
        changes = self.changes(chosen)
        order = sorted(chosen, key=lambda s: changes[s.nest])
        # So many are known to be within it, and so many not to be.
        within, beyond = 0, len(order)
        while beyond - within > 1:
            middle = (within + beyond) // 2
            if self.of(order[:middle]) <= tolerance:
                within = middle
            else:
                beyond = middle
        kept = {s.nest for s in order[:within]}
        return tuple(s for s in chosen if s.nest in kept)

    def of(self, chosen: Sequence[Site]) -> float:
        """The largest relative error of an output in any case."""
        own = quantised(self._graph, chosen, self._known, self._machine)
        with Running(own, self._how) as running:
            return max(
                relative_error(x, y)
                for ours, wanted in zip(running.results(), self._wanted, strict=True)
                for x, y in zip(ours, wanted, strict=True)
                if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
            )

    def changes(self, chosen: Sequence[Site]) -> dict[str, float]:
        """How much quantising each sum alone changes it, relative to it: the square of that."""
        totals = np.zeros((len(chosen), 2))
        with Running(compared(self._graph, chosen, self._known, self._machine), self._how) as found:
            for results in found.results():
                totals += np.reshape(np.array(results, np.float64), totals.shape)
        changed, whole = totals.T
        tiny = np.finfo(np.float64).tiny
        return dict(zip((s.nest for s in chosen), changed / np.maximum(whole, tiny), strict=True))
