"""`--precision int8`: sums of products of a model as sums of 8-bit integers, where that is faster.

The graph is brought into normal form, run on calibration cases for the ranges of its values
(`driver.calibration`), and quantised (`graph_opt.quantise`). Which sums are is chosen by what the
plan of each choice takes, by the estimate of its kernels: all, those of many terms, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.build import machine_of
from rutc.driver.calibration import spans
from rutc.driver.estimates import Known, estimate_plan
from rutc.driver.options import Calibration
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.graph_opt.quantise import Site, normal, quantised, sites
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine

LEAST_TERMS = (0, 32, 128)
"""The least terms of sums of 8-bit integers, of which the best is chosen."""


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
    graph: Graph, machine: Machine, how: Calibration, on_progress: Progress = nobody
) -> EightBits:
    """An imported graph with sums of 8-bit integers, where it then takes less time.

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

    chosen = min(_choices(usable), key=_once(cycles))
    result = quantised(before, chosen, known, machine) if chosen else graph
    ranges = {s.value: (known[s.value].low, known[s.value].high) for s in chosen}
    return EightBits(result, chosen, len(found), ranges, cases)


def _choices(usable: tuple[Site, ...]) -> Iterator[tuple[Site, ...]]:
    """All sums, fewer, and none, each choice once."""
    tried = [tuple(s for s in usable if s.terms >= least) for least in LEAST_TERMS]
    yield from dict.fromkeys([*tried, ()])


def _once(
    cycles: Callable[[tuple[Site, ...]], float],
) -> Callable[[tuple[Site, ...]], tuple[float, int]]:
    """What orders choices: by cycles, and of equal ones that of fewer sums."""
    return lambda chosen: (cycles(chosen), len(chosen))
