"""`python -m benchmarks.tuning`: how fast searches find schedules, with what was learned or not.

The largest kernel of each case is searched three times, with as many trials: at random, judged by
the analytic estimate, and judged by the learned model that rutc comes with. Every trial takes turns
with the default schedule, on one core. Results go to benchmarks/results/tuning.json and
docs/tuning_speed.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf, log
from random import Random
from statistics import geometric_mean, median

import numpy as np

from benchmarks import layout
from benchmarks.kernel_source import kernels
from benchmarks.machine import provenance
from benchmarks.protocol import Page, case_of, write
from benchmarks.store import Entry
from rutc.driver.trials import Bench, Reference
from rutc.driver.tuning import scheduled
from rutc.emit.targets import native_target
from rutc.errors import RutcError, UserError
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.access import analyse
from rutc.tuner.cost_model import CostModel
from rutc.tuner.heuristic import spaces
from rutc.tuner.nest_features import features
from rutc.tuner.search import Candidate, Judge, Judged, Search

CASES = (
    "product 512x512x512",
    "product 384x768x768",
    "product 16x3072x768",
    "conv 7x7/2 224x224 3->64",
    "conv 1x1 56x56 64->256",
    "conv 3x3/2 28x28 256->256",
    "conv 3x3 14x14 256->256, direct",
    "conv 1x1 14x14 384->96",
    "conv 1x1 7x7 960->160",
    "depthwise 3x3 112x112 32->32",
    "depthwise 3x3/2 56x56 144->144",
    "depthwise 3x3 14x14 384->384",
    "QDQ conv 3x3 28x28 128->128",
    "QDQ conv 1x1 14x14 256->1024",
    "QDQ depthwise 3x3 56x56 144->144",
    "dynamically quantised product 128x768x768",
)
TRIALS, BATCH = 48, 8
MARKS = (1, 8, 16, 24, 32, 48)
"""After so many trials a search is looked at."""


class Estimates:
    """The analytic estimate alone as a judge."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine."""
        self._machine = machine

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns the logarithm of the estimated cycles of each, and its features."""
        found = []
        for kernel in kernels:
            summary = summarise(kernel, self._machine)
            row = features(summary.regions, self._machine)
            cycles = estimate(summary, self._machine).cycles
            found.append(Judged(log(cycles), tuple(map(float, row))))
        return found


METHODS: dict[str, Callable[[Machine], Judge] | None] = {
    "random": None,
    "estimate": Estimates,
    "learned": CostModel,
}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case: the best of each search, in default schedules, by trials."""
    machine = native_target().machine.alone()
    kernel, constants = _largest(name, machine)
    entry: Entry = {"searches": {}, "size": 0}
    with Bench(native_target().machine) as bench:
        for method, judge in METHODS.items():
            own = spaces(kernel, machine, constants)
            search = Search(
                kernel, own, (judge or Estimates)(machine), scheduled, Random(f"{name} {method}")
            )
            found = _searched(search, bench, at_random=judge is None)
            entry["searches"][method] = [round(x, 4) for x in found]  # type: ignore[index]
            entry["size"] = min(search.size, 1e18)
    return {**entry, **asdict(provenance())}


def _largest(name: str, machine: Machine) -> tuple[Kernel, frozenset[str]]:
    """The kernel of a case that the estimate gives most cycles."""
    best: tuple[float, Kernel, frozenset[str]] | None = None
    for _, kernel, constants in kernels(name, native_target().machine):
        own = spaces(kernel, machine, constants)
        if not own or analyse(kernel, constants).symbolic:
            continue
        usual = next((s.preferred() for s in own if s.preferred() is not None), None)
        if usual is None:
            continue
        cycles = estimate(summarise(scheduled(kernel, usual), machine), machine).cycles
        if best is None or cycles > best[0]:
            best = cycles, kernel, constants
    if best is None:
        raise UserError(f"no kernel of {name} has a schedule to search")
    return best[1:]


def _searched(search: Search, bench: Bench, *, at_random: bool) -> list[float]:
    """How many times as fast as the default the best is, after each number of `MARKS`."""
    default = search.default
    assert default is not None
    outcome = bench.time(default.kernel)
    usual = outcome.cycles
    if usual is None or outcome.near is None or outcome.far is None:
        raise UserError(f"the default schedule: {outcome.status} {outcome.error}")
    reference = Reference(default.kernel, outcome.near.cycles, outcome.far.cycles)
    search.observe(default, usual)
    best: list[float] = [1.0]
    while len(best) < TRIALS:
        batch: list[Candidate] = []
        if at_random:
            drawn = search.drawn()
            batch = [] if drawn is None else [drawn]
        else:
            batch = search.propose(BATCH)
        if not batch:
            break
        for c in batch:
            try:
                cycles = bench.time(c.kernel, reference).cycles
            except RutcError:
                cycles = None
            search.observe(c, cycles)
            best.append(max(best[-1], usual / (cycles or inf)))
    best += [best[-1]] * (TRIALS - len(best))
    return [best[n - 1] for n in MARKS]


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.tuning`. The largest kernel of each case is searched",
        f"with {TRIALS} trials: at random, judged by the analytic estimate, and by the learned",
        "model that rutc comes with (docs/learned_cost.md says of which processors it knows).",
        "Numbers say how many times as fast as the default schedule the best is after so many",
        "trials, the default one among them; every trial takes turns with the default, on a core.",
    )
    return layout.page("How fast searches find schedules", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    known = [e for e in entries if "searches" in e]
    if not known:
        return []
    titles = " | ".join(f"{n}" for n in MARKS)
    lines = [
        f"Geometric means of {len(known)} kernels, by trials:",
        "",
        f"| judged | {titles} |",
        "|---|" + "---|" * len(MARKS),
    ]
    curves = {m: np.array([e["searches"][m] for e in known]) for m in METHODS}  # type: ignore[index]
    for method, rows in curves.items():
        means = " | ".join(f"{geometric_mean(rows[:, i]):.3f}" for i in range(len(MARKS)))
        lines.append(f"| {method} | {means} |")
    lines += ["", *_needed(curves), "", f"| kernel of | points | {' | '.join(METHODS)} |"]
    lines.append("|---|---|" + "---|" * len(METHODS))
    for e in known:
        last = " | ".join(f"{e['searches'][m][-1]:.3f}" for m in METHODS)  # type: ignore[index]
        lines.append(f"| {case_of(e)} | {float(str(e['size'])):.0e} | {last} |")
    return lines


def _needed(curves: dict[str, np.ndarray]) -> list[str]:
    """How many trials each search needs for 95 % of what the best of all found."""
    best = np.maximum.reduce([rows[:, -1] for rows in curves.values()])
    said = []
    for method, rows in curves.items():
        reached = rows >= 0.95 * best[:, None]
        trials = [MARKS[int(np.argmax(r))] if r.any() else inf for r in reached]
        middle = median(trials)
        needed = f"{middle:g}" if middle < inf else f"more than {TRIALS}"
        said.append(f"{method} {needed} ({sum(t < inf for t in trials)} kernels)")
    return [
        "Trials until 95 % of the best that any of the searches found, median, and how many got "
        f"there: {', '.join(said)}."
    ]


PAGE = Page(
    "tuning",
    __doc__,
    CASES,
    measure,
    case_of,
    lambda entries: write("tuning_speed", page(entries)),
    peers=(),
    prepare_s=50.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
