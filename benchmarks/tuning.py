"""`python -m benchmarks.tuning`: how fast searches find schedules, with what was learned or not.

The largest kernel of each case is searched three times, with as many trials: at random, judged by
the analytic estimate, and judged by the learned model that rutc comes with. Every trial takes turns
with the default schedule, on one core. Results go to benchmarks/results/tuning.json and
docs/tuning_speed.md.

`python -m benchmarks.tuning --seeds` measures what records of other kernels save: all of its cases
are searched and recorded first; then each is searched twice in turns, as if nothing was known of
it, with seeds from the records of the other cases and without. Results go to
benchmarks/results/tuning_seeds.json and the same page.

`python -m benchmarks.tuning --transfer` measures what it saves to know other kernels: see
`benchmarks.transfer`.
"""

import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf, log
from pathlib import Path
from random import Random
from statistics import geometric_mean, median

import numpy as np

from benchmarks import layout, store, transfer
from benchmarks.kernel_source import largest
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.store import Entry, case_of
from benchmarks.timer import KernelBench, ReferenceKernel
from rutc.driver.timing.model_bench import Subject
from rutc.driver.timing.trials import Outcome
from rutc.driver.tuning.schedule_search import Tried, kernel_after
from rutc.driver.tuning.tuning_records import origin_of, rows_of, seeds_in, task_of
from rutc.emit.targets import native_target
from rutc.errors import RutcError, UserError
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.cost_model import CostModel
from rutc.tuner.database import Database
from rutc.tuner.heuristic import spaces
from rutc.tuner.nest_features import features
from rutc.tuner.search import Candidate, Judge, Judged, Search
from rutc.tuner.seeds import Seed, first_proposals
from rutc.tuner.trial import State

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


SEEDED_CASES = (
    "product 512x512x512",
    "product 384x768x768",
    "product 16x3072x768",
    "conv 3x3/2 28x28 256->256",
    "conv 7x7/2 224x224 3->64",
    "conv 1x1 14x14 384->96",
    "depthwise 3x3/2 56x56 144->144",
    "depthwise 3x3 14x14 384->384",
)
"""Kernels of few kinds and of several sizes each."""
SEEDED_TRIALS = 12
SEEDED_MARKS = (1, 2, 3, 4, 5, 6, 8, 10, 12)


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


OnTrial = Callable[[Candidate, Outcome, Candidate], None]
"""What is told of each trial: the candidate, what became of it, and the default one."""


class Turns:
    """A search, each trial of which takes turns with the default schedule.

    The `best` are how many times as fast as the default the best is, after each trial.
    """

    def __init__(
        self, search: Search, bench: KernelBench, on_trial: OnTrial = lambda *told: None
    ) -> None:
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
        self._search, self._bench, self._on_trial = search, bench, on_trial
        self._reference = ReferenceKernel(default.kernel, outcome.near.cycles, outcome.far.cycles)
        self._usual = usual
        search.observe(default, usual)
        on_trial(default, outcome, default)
        self.best: list[float] = [1.0]

    def time(self, batch: Sequence[Candidate]) -> None:
        """Time some candidates."""
        default = self._search.default
        assert default is not None
        for c in batch:
            try:
                outcome = self._bench.time(c.kernel, self._reference)
            except RutcError as error:
                outcome = Outcome("failed", error=str(error).splitlines()[0])
            self._search.observe(c, outcome.cycles)
            self._on_trial(c, outcome, default)
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


# -- seeds --------------------------------------------------------------------------------------
def _search_of(name: str) -> tuple[Search, Subject]:
    """A search of the largest kernel of a case, as if nothing was known of it."""
    machine = native_target().machine.alone()
    kernel, constants = largest(name, machine)
    own = spaces(kernel, machine, constants)
    search = Search(kernel, own, CostModel(machine), kernel_after, Random(name))
    return search, Subject(kernel, constants, machine)


@functools.cache
def _records() -> tuple[Seed, ...]:
    """What searches of all cases find, as the seeds of others."""
    machine = native_target().machine
    origin = origin_of(machine)
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.open(Path(folder) / "records.sqlite") as database,
        KernelBench(machine) as bench,
    ):
        for name in SEEDED_CASES:
            search, subject = _search_of(name)
            cycles: dict[State, float] = {}

            def keep(
                c: Candidate,
                outcome: Outcome,
                default: Candidate,
                search: Search = search,
                subject: Subject = subject,
                cycles: dict[State, float] = cycles,
            ) -> None:
                if c is default:
                    cycles |= {state: t.cycles for state, t in outcome.times.items()}
                beside = None if c is default else cycles
                tried = Tried(subject, c, search.place(c), outcome, default, beside)
                database.add(rows_of(tried, origin))

            turns = Turns(search, bench, keep)
            while len(turns.best) < SEEDED_TRIALS:
                turns.time(search.propose(BATCH))
            print(f"recorded {name}: {turns.best[-1]:.3f}", file=sys.stderr, flush=True)
        return tuple(seeds_in(database, machine))


def measure_seeds(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case: the best by trials, with seeds of other cases and without."""
    known = _records()
    with KernelBench(native_target().machine) as bench:
        searches = {how: _search_of(name) for how in ("without", "with")}
        _, subject = searches["with"]
        others = [s for s in known if s.task != task_of(subject).key]
        found = {how: Turns(search, bench) for how, (search, _) in searches.items()}
        waiting: dict[str, list[Candidate]] = {
            "without": [],
            "with": first_proposals(searches["with"][0], others),
        }
        count = len(waiting["with"])
        # One trial each, in turns: what others do on the machine slows both.
        while min(len(t.best) for t in found.values()) < SEEDED_TRIALS:
            for how, turns in found.items():
                waiting[how] = waiting[how] or searches[how][0].propose(BATCH)
                turns.time(waiting[how][:1])
                waiting[how] = waiting[how][1:]
    curves = {how: [round(x, 4) for x in t.at(SEEDED_MARKS)] for how, t in found.items()}
    best = max(t.best[-1] for t in found.values())
    until = {how: _until(t.best, 0.95 * best) for how, t in found.items()}
    return {"seeded": curves, "seeds": count, "until": until, **asdict(provenance())}


def _until(best: Sequence[float], wanted: float) -> int | None:
    """After how many trials that is reached; None: it is not."""
    return next((n for n, x in enumerate(best, 1) if x >= wanted), None)


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


def _seeds_section(entries: Sequence[Entry]) -> list[str]:
    """The part of the page on seeds."""
    known = [e for e in entries if "seeded" in e]
    if not known:
        return []
    titles = " | ".join(map(str, SEEDED_MARKS))
    lines = [
        "",
        "## Seeds from records of other kernels",
        "",
        "Written by `python -m benchmarks.tuning --seeds`. Each of these kernels is searched twice",
        f"in turns, {SEEDED_TRIALS} trials each, as if nothing was known of it: with points of",
        "the records of the others first (`tuner/seeds.py`), and without. Geometric means of",
        f"{len(known)} kernels, by trials:",
        "",
        f"| first proposals | {titles} |",
        "|---|" + "---|" * len(SEEDED_MARKS),
    ]
    curves = {how: np.array([e["seeded"][how] for e in known]) for how in ("without", "with")}  # type: ignore[index]
    for how, rows in curves.items():
        means = " | ".join(f"{geometric_mean(rows[:, i]):.3f}" for i in range(len(SEEDED_MARKS)))
        lines.append(f"| {how} seeds | {means} |")
    until = {how: [e["until"][how] or inf for e in known] for how in curves}  # type: ignore[index]
    pairs = list(zip(until["with"], until["without"], strict=True))
    fewer, more = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    lines += [
        "",
        "Trials until 95 % of the best that either found, median: "
        f"{median(until['with']):g} with seeds, {median(until['without']):g} without; with seeds "
        f"they are fewer for {fewer} kernels and more for {more}.",
        "",
        "| kernel of | seeds | until, with | until, without | best with | best without |",
        "|---|---|---|---|---|---|",
    ]
    for e, (a, b) in zip(known, pairs, strict=True):
        last = " | ".join(f"{e['seeded'][how][-1]:.3f}" for how in ("with", "without"))  # type: ignore[index]
        reached = " | ".join(f"{n:g}" if n < inf else "not" for n in (a, b))
        lines.append(f"| {case_of(e)} | {e['seeds']} | {reached} | {last} |")
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
    searched, seeded, transferred = (store.load(p.results) for p in (PAGE, SEEDS, TRANSFER))
    lines = [page(searched).rstrip(), *_seeds_section(seeded), *transfer.section(transferred)]
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
SEEDS = Page(
    "tuning_seeds",
    __doc__,
    SEEDED_CASES,
    measure_seeds,
    case_of,
    _write,
    peers=(),
    prepare_s=60.0,
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
    pages = {"--seeds": SEEDS, "--transfer": TRANSFER}
    wanted = [page for option, page in pages.items() if option in sys.argv]
    sys.argv = [a for a in sys.argv if a not in pages]
    (wanted or [PAGE])[0].main()
