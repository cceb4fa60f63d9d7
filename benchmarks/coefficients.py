"""`python -m benchmarks.coefficients`: what the numbers of decisions are worth, one by one.

Each number of `tensor_ir/coefficients.json` is halved and doubled. All kernels of single operators
and layers, and some of models, whose schedules read it get them anew, and networks whose plans read
it are planned anew. Some of those that get other code take turns with what they were, on one core,
by the time of the thread. The ratio is the time with the other number over that with the one in
use, its geometric mean over those that were measured: above 1 the number in use is better. Results
go to benchmarks/results/coefficients.json and docs/coefficients.md.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache, partial
from math import exp, inf, log, sqrt
from pathlib import Path
from random import Random
from statistics import mean, median, stdev
from time import thread_time_ns
from typing import Any, TypeVar

from benchmarks import layout
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.ratios import LONG, Sampled
from benchmarks.store import Entry, case_of
from benchmarks.timer import PreparedKernel
from benchmarks.varied import (
    NAMES,
    Network,
    Processor,
    Subject,
    networks,
    number_of,
    others_of,
    processors,
    subjects,
    varied,
)
from rutc.driver.timing.launch_times import Profiled, TimedLibrary, written
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.errors import RutcError
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner import Choice
from rutc.verify.feeding.session_values import session_values

MOST_KERNELS, MOST_NETWORKS = 10, 3
"""Of those that a number changes, so many are measured."""
FEWEST_NS = 2_000
"""Kernels that take less say little of schedules."""
AGAIN, APART = 3 * LONG, 0.04
"""Samples of a kernel whose ratio is that far from 1: the least of many is luck, too."""
NETWORK_NS, FEWEST_RUNS = 300_000_000, 7
"""So long, and so often at least, does either artifact of a network run."""
CLEAR = 0.02
"""Ratios that differ less from 1 say nothing,"""
SURE = 2.0
"""nor do those that differ by less than so many standard errors of their mean."""
PARTS = ("kernels", "networks")

S = TypeVar("S")
R = TypeVar("R")


# -- kernels ------------------------------------------------------------------------------------
@lru_cache(maxsize=48)
def _usual(s: Subject) -> tuple[Sampled, float]:
    """A kernel with its default schedule, and the nanoseconds that it takes."""
    own = Sampled(PreparedKernel(kernel_after(s.kernel, s.choice), s.machine, ("near",)))
    return own, min(own.sample() for _ in range(3))


RATIOS: dict[tuple[Subject, str], float | None] = {}
"""Of kernels with other schedules: several numbers change to the same."""


def _kernel_ratio(s: Subject, choice: Choice, machine: Machine) -> float | None:
    if choice == s.choice:
        # The schedule is the same, the machine decides the code.
        return _ratio(s, choice, machine)
    key = s, repr(choice)
    if key not in RATIOS:
        RATIOS[key] = _ratio(s, choice, s.machine)
    return RATIOS[key]


def _ratio(s: Subject, choice: Choice, machine: Machine) -> float | None:
    """The time with another schedule, or other code; None if it is too short."""
    usual, ns = _usual(s)
    if ns < FEWEST_NS:
        return None
    own = Sampled(PreparedKernel(kernel_after(s.kernel, choice), machine, ("near",)))

    def pairs(count: int) -> float:
        # Samples of a pair are next to each other in time: others slow both.
        return median(own.sample() / usual.sample() for _ in range(count))

    ratio = pairs(LONG)
    return ratio if abs(log(ratio)) < APART else pairs(AGAIN)


# -- networks -----------------------------------------------------------------------------------
class _Artifacts:
    """Libraries of plans, which are kept while this process lives."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._known: dict[Network, TimedLibrary] = {}
        self._ratios: dict[tuple[Network, str], float] = {}

    def ratio(self, network: Network, plan: Plan) -> float:
        """The time of a network with another plan."""
        key = network, str(plan)
        if key not in self._ratios:
            usual = self._known.get(network)
            if usual is None:
                usual = self._known[network] = self._written(network.plan, network.machine)
            other = self._written(plan, network.machine)
            self._ratios[key] = _network_ratio([usual.library, other.library], network)
            other.library.unlink()
        return self._ratios[key]

    def _written(self, plan: Plan, machine: Machine) -> TimedLibrary:
        path = Path(self._folder.name) / f"{len(self._known)}-{len(self._ratios)}.so"
        return written(plan, machine, path, keep_subnormals=True)


ARTIFACTS = _Artifacts()


def _network_ratio(libraries: Sequence[Path], network: Network) -> float:
    with ExitStack() as stack:
        both = [stack.enter_context(Profiled(x)) for x in libraries]
        given: Mapping[str, Any] | None = network.inputs
        if given is None:
            given = session_values(both[0].session, (), dims=None)
        ratios: list[float] = []
        spent = 0
        for p in both:
            p.run(given)
        while spent < 2 * NETWORK_NS or len(ratios) < FEWEST_RUNS:
            times = []
            for p in both:
                start = thread_time_ns()
                p.run(given)
                times.append(thread_time_ns() - start)
            ratios.append(times[1] / times[0])
            spent += sum(times)
    return median(ratios)


# -- what is told of a number -------------------------------------------------------------------
def _told(
    changed: Iterable[tuple[S, R]], ratio: Callable[[S, R], float | None], most: int, seed: str
) -> Entry:
    """What changes, and the ratios of some of it."""
    differ = list(changed)
    Random(seed).shuffle(differ)
    found: dict[str, float] = {}
    for subject, instead in differ:
        if len(found) >= most:
            break
        try:
            own = ratio(subject, instead)
        except (RutcError, NotApplicable):
            continue
        if own is not None:
            found[subject.name] = round(own, 3)  # type: ignore[attr-defined]
    entry: Entry = {"changed": len(differ), "measured": found}
    if found:
        logs = [log(r) for r in found.values()]
        entry["ratio"] = round(exp(mean(logs)), 4)
        if len(logs) > 1:
            entry["error"] = round(stdev(logs) / sqrt(len(logs)), 4)
    return entry


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a number: what others in its place would change.

    Code for this processor comes first, that for others where no such code changes.
    """
    found: dict[str, Any] = {"reading": [0, 0], "code_for": "", "tried": []}
    for processor in processors():
        own = _measured(name, processor)
        if own["tried"] and not found["tried"]:
            found = own
        if any(t[part]["changed"] for t in own["tried"] for part in PARTS):
            found = own
            break
    return {"value": number_of(name), **found, **asdict(provenance())}


def _measured(name: str, processor: Processor) -> dict[str, Any]:
    machine = processor.machine
    reading = [s for s in subjects(machine) if name in s.reads | s.emitted]
    nets = [n for n in networks(machine) if name in n.reads]
    kernels, most = (MOST_KERNELS, MOST_NETWORKS) if processor.runs else (0, 0)
    tried: list[Entry] = []
    for value in others_of(name) if reading or nets else ():
        single, several = varied(machine.alone(), name, value), varied(machine, name, value)
        schedules = [(s, c) for s in reading if (c := s.chosen(name, single)) is not None]
        plans = [(n, p) for n in nets if (p := n.planned(name, several)) is not None]
        ratio = partial(_kernel_ratio, machine=single)
        tried.append(
            {
                "value": value,
                "kernels": _told(schedules, ratio, kernels, name),
                "networks": _told(plans, ARTIFACTS.ratio, most, name),
            }
        )
    of = [len(subjects(machine)), len(networks(machine))]
    return {
        "reading": [len(reading), len(nets)],
        "of": of,
        "code_for": processor.name,
        "tried": tried,
    }


def is_in_use(entry: Entry) -> bool:
    """Returns whether an entry is of the number that decisions have now."""
    return bool(entry["value"] == number_of(case_of(entry)))


def verdict_of(told: Mapping[str, Any]) -> str:
    """Returns what the ratios of one other value say: `better`, `worse`, `level`, `same code`."""
    if not told["changed"]:
        return "same code"
    if "ratio" not in told:
        return "not measured"
    off, error = log(told["ratio"]), told.get("error", inf)
    if abs(off) < CLEAR or abs(off) < SURE * error:
        return "level"
    return "better" if off < 0 else "worse"


def verdict(entry: Mapping[str, Any]) -> str:
    """Returns what is known of the number in use."""
    if not any(entry["reading"]):
        return "not read here"
    said = Counter(verdict_of(t[part]) for t in entry["tried"] for part in PARTS)
    if said["better"] and said["worse"]:
        return "some gain, some lose"
    if said["better"]:
        return "another is better"
    if said["worse"]:
        return "the best of these"
    return (
        "no difference shown" if said["level"] or said["not measured"] else "changes nothing here"
    )


# -- the page -----------------------------------------------------------------------------------
def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.coefficients`. Each number of decisions is halved and",
        "doubled. *Read by* are the kernels, and the networks (single operators, layers, models",
        "of the zoo), whose decisions read it, of all that were looked at; *changed* are those",
        f"that get other code; up to {MOST_KERNELS} kernels and {MOST_NETWORKS} networks of them",
        "are measured on one core, either code in turn, by the thread's time. The ratio is the",
        "time with the other number over that with the one in use, the geometric mean and its",
        "standard error: above 1 the number in use is better. A verdict needs a mean that is",
        f"{100 * CLEAR:.0f} % and {SURE:g} standard errors from 1. Where no code for the processor",
        "at hand changes, code for others is looked at, which the column names; what does not run",
        "here is not timed. *Not read here* is what other decisions read: how threads share work,",
        "what searches by estimates find, which weights are stored in fewer bits. What each number",
        "is stands in `tensor_ir/coefficients.py`.",
    )
    return layout.page("The numbers of decisions", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    known = [e for e in entries if "tried" in e and is_in_use(e)]
    verdicts = {case_of(e): verdict(e) for e in known}
    missing = [name for name in NAMES if name not in verdicts]
    counted = Counter(verdicts.values()).most_common()
    lines = [
        f"{len(known)} of {len(NAMES)} numbers: "
        + ", ".join(f"{said} {n}" for said, n in counted)
        + ".",
        "",
    ]
    if missing:
        lines += [f"Not measured yet: {', '.join(missing)}.", ""]
    lines += [
        "| number | in use | read by | tried | kernels changed | ratio | least, most | "
        "networks changed | ratio | least, most | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for e in known:
        many: Any = e["reading"]
        reading = f"{many[0]} kernels, {many[1]} networks"
        if e.get("code_for"):
            reading += f" ({e['code_for']})"
        first = (case_of(e), f"{e['value']:g}", reading)
        tried: Any = e["tried"]
        for number, t in enumerate(tried):
            start = ("", "", "") if number else first
            end = "" if number else verdicts[case_of(e)]
            cells = (*start, f"{t['value']:g}", *_cells(t["kernels"]), *_cells(t["networks"]), end)
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(told: Mapping[str, Any]) -> tuple[str, str, str]:
    if "ratio" not in told:
        return str(told["changed"] or ""), "", ""
    error = f" ± {told['error']:.3f}" if "error" in told else ""
    measured: Mapping[str, float] = told["measured"]
    ends = (min(measured, key=measured.__getitem__), max(measured, key=measured.__getitem__))
    shown = ", ".join(f"{measured[x]:.2f} {x}" for x in dict.fromkeys(ends))
    return str(told["changed"]), f"{told['ratio']:.3f}{error}", shown.replace("|", "\\|")


PAGE = Page(
    "coefficients",
    __doc__,
    NAMES,
    measure,
    case_of,
    lambda entries: write("coefficients", page(entries)),
    peers=(),
    prepare_s=20.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
