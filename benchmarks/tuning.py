"""`python -m benchmarks.tuning`: how fast searches find schedules, with what was learned or not.

The largest kernel of each case is searched three times, with as many trials: at random, judged by
the analytic estimate, and judged by the learned model that rutc comes with. Every trial takes turns
with the default schedule, on one core. Results go to benchmarks/results/tuning.json and
docs/tuning_speed.md.

`python -m benchmarks.tuning --transfer` measures what it saves to know other kernels: see
`benchmarks.transfer`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf, log
from random import Random
from statistics import geometric_mean, median

import numpy as np

from benchmarks import layout, store, transfer
from benchmarks.kernel_source import largest
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.store import Entry, case_of
from benchmarks.timer import KernelBench, ReferenceKernel
from rutc.driver.timing.trials import Outcome
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.errors import RutcError, UserError
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.nest_features import features
from rutc.tuner.search.search import Candidate, Judge, Judged, Search

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
    kernel, constants = largest(name, machine)
    entry: Entry = {"searches": {}, "size": 0}
    with KernelBench(native_target().machine) as bench:
        for method, judge in METHODS.items():
            own = spaces(kernel, machine, constants)
            search = Search(
                kernel, own, (judge or Estimates)(machine), kernel_after, Random(f"{name} {method}")
            )
            found = _searched(search, bench, at_random=judge is None)
            entry["searches"][method] = [round(x, 4) for x in found]  # type: ignore[index]
            entry["size"] = min(search.size, 1e18)
    return {**entry, **asdict(provenance())}


class Turns:
    """A search, each trial of which takes turns with the default schedule.

    The `best` are how many times as fast as the default the best is, after each trial.
    """

    def __init__(self, search: Search, bench: KernelBench) -> None:
        """Time the default schedule.

        Raises:
            UserError: it does not run.
        """
        default = search.default
        assert default is not None
        outcome = bench.time(default.kernel)
        usual = outcome.cycles
        if usual is None or outcome.near is None or outcome.far is None:
            raise UserError(f"the default schedule: {outcome.status} {outcome.error}")
        self._search, self._bench = search, bench
        self._reference = ReferenceKernel(default.kernel, outcome.near.cycles, outcome.far.cycles)
        self._usual = usual
        search.observe(default, usual)
        self.best: list[float] = [1.0]

    def time(self, batch: Sequence[Candidate]) -> None:
        """Time some candidates."""
        for c in batch:
            try:
                outcome = self._bench.time(c.kernel, self._reference)
            except RutcError as error:
                outcome = Outcome("failed", error=str(error).splitlines()[0])
            self._search.observe(c, outcome.cycles)
            self.best.append(max(self.best[-1], self._usual / (outcome.cycles or inf)))

    def at(self, marks: Sequence[int]) -> list[float]:
        """The best after each number of trials; of those that there were."""
        return [self.best[min(n, len(self.best)) - 1] for n in marks]


def _searched(search: Search, bench: KernelBench, *, at_random: bool) -> list[float]:
    """How many times as fast as the default the best is, after each number of `MARKS`."""
    turns = Turns(search, bench)
    while len(turns.best) < TRIALS:
        drawn = search.drawn() if at_random else None
        batch = search.propose(BATCH) if not at_random else [drawn] if drawn else []
        if not batch:
            break
        turns.time(batch)
    return turns.at(MARKS)


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


def _write(entries: Sequence[Entry]) -> None:
    """Writes the page of all that is known."""
    searched, transferred = (store.load(p.results) for p in (PAGE, TRANSFER))
    lines = [page(searched).rstrip(), *transfer.section(transferred)]
    write("tuning_speed", "\n".join(lines) + "\n")


PAGE = Page(
    "tuning",
    __doc__,
    CASES,
    measure,
    case_of,
    _write,
    peers=(),
    prepare_s=50.0,
    seconds=None,
)

TRANSFER = Page(
    transfer.RESULTS.stem,
    transfer.__doc__,
    transfer.CASES,
    transfer.measure,
    case_of,
    _write,
    peers=(),
    prepare_s=100.0,
    seconds=None,
)

if __name__ == "__main__":
    wanted = TRANSFER if "--transfer" in sys.argv else PAGE
    sys.argv = [a for a in sys.argv if a != "--transfer"]
    wanted.main()
