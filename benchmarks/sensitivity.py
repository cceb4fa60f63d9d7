"""`python -m benchmarks.sensitivity`: what decisions change with each of their numbers.

Each number of `tensor_ir/coefficients.json` is halved and doubled. Plans of layers and models of
the zoo that read it are made anew, and default schedules of kernels; nothing is compiled or timed.
What changes is estimated, before and after: the estimate says how far a number goes, not whether
it is right, which `python -m benchmarks.coefficients` measures. Decisions are for named processors,
so that every machine finds the same. Results go to benchmarks/results/sensitivity.json and
docs/sensitivity.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from random import Random
from statistics import mean
from typing import Any, TypeVar

from benchmarks import coefficients
from benchmarks.machine import ROOT
from benchmarks.protocol import Page, write
from benchmarks.store import Entry, case_of, load
from benchmarks.varied import (
    AMX,
    NAMES,
    Network,
    Subject,
    networks,
    number_of,
    others_of,
    subjects,
    varied,
)
from rutc.driver.plans.estimates import estimate_plan
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import target_named
from rutc.errors import RutcError
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.machine import BF16_VECTORS, Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner import Choice

SHARE = 8
"""One in so many operators, layers and models of the zoo is looked at."""
MOST_KERNELS, MOST_NETWORKS = 40, 20
"""Of those that read a number, so many are made anew."""
MOST_ESTIMATED = 5
"""Plans of those that change are estimated."""

S = TypeVar("S")
R = TypeVar("R")


@cache
def targets() -> dict[str, Machine]:
    """Returns the processors that have names, and one with all instructions that decisions use."""
    wide, narrow = (target_named(n).machine for n in ("x86-64-v4", "x86-64-v3"))
    every = replace(wide, features=wide.features | AMX | {"avx512vnni", BF16_VECTORS})
    return {"AVX-512": wide, "AVX2": narrow, "AMX": every}


def _kernel_ratio(s: Subject, choice: Choice) -> float:
    own, other = (kernel_after(s.kernel, c) for c in (s.choice, choice))
    before, after = (estimate(summarise(k, s.machine), s.machine).cycles for k in (own, other))
    return after / before


def _plan_ratio(n: Network, plan: Plan) -> float:
    alone = n.machine.alone()
    before, after = (estimate_plan(p, alone).cycles for p in (n.plan, plan))
    return after / before


def _told(
    reading: Sequence[S],
    decide: Callable[[S], R | None],
    ratio: Callable[[S, R], float],
    most: int,
) -> Entry:
    """What of those that read a number changes, and the ratios of estimates of some of it."""
    changed = [(s, found) for s in reading if (found := decide(s)) is not None]
    ratios: dict[str, float] = {}
    for subject, instead in changed[:most]:
        try:
            ratios[subject.name] = round(ratio(subject, instead), 4)  # type: ignore[attr-defined]
        except (RutcError, NotApplicable):
            continue
    return {"changed": len(changed), "ratios": ratios}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a number: what other numbers in its place change."""
    found: Entry = {}
    for kind, machine in targets().items():
        kernels = _some([s for s in subjects(machine, SHARE) if name in s.reads], MOST_KERNELS)
        nets = _some([n for n in networks(machine, SHARE) if name in n.reads], MOST_NETWORKS)
        tried: list[Entry] = []
        for value in others_of(name) if kernels or nets else ():
            single, several = varied(machine.alone(), name, value), varied(machine, name, value)

            def chosen(s: Subject, machine: Machine = single) -> Choice | None:
                choice = s.chosen(name, machine)
                return None if choice == s.choice else choice

            def planned(n: Network, machine: Machine = several) -> Plan | None:
                return n.planned(name, machine)

            tried.append(
                {
                    "value": value,
                    "plans": _told(nets, planned, _plan_ratio, MOST_ESTIMATED),
                    "schedules": _told(kernels, chosen, _kernel_ratio, MOST_KERNELS),
                }
            )
        found[kind] = {"plans": len(nets), "schedules": len(kernels), "tried": tried}
    return {"value": number_of(name), "decisions": found}


def _some(reading: Sequence[S], most: int) -> list[S]:
    """As many as are looked at, the same ones every time."""
    return Random(0).sample(reading, min(most, len(reading)))


# -- the page -----------------------------------------------------------------------------------
def source_of(name: str, timed: Mapping[str, Entry]) -> str:
    """Returns what times of code with other numbers said, and where; nothing if there are none."""
    entry = timed.get(name)
    if entry is None or not coefficients.is_in_use({"case": name, **entry}):
        return ""
    where = f"{entry['processor']}, {entry['commit']}, {entry['date']}"
    return f"{coefficients.verdict(entry)} ({where})"


def page(entries: Sequence[Entry], timed: Mapping[str, Entry]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# What decisions change with their numbers",
        "",
        "Written by `python -m benchmarks.sensitivity`; nothing is timed. Each number of",
        "`tensor_ir/coefficients.json`, whose meaning stands in `tensor_ir/coefficients.py`, is",
        f"halved and doubled. Of one in {SHARE} operators, layers and models, plans and default",
        f"schedules that read it are made anew, up to {MOST_NETWORKS} and {MOST_KERNELS}: for",
        "`x86-64-v4` (AVX-512), for `x86-64-v3` (AVX2), and for the former with AVX512-VNNI, BF16",
        "and AMX (AMX).",
        "*2 of 20: 0.98* says that 2 of 20 change, and that these then take 0.98 of the cycles by",
        "the estimate, in geometric mean. *Timed* is what",
        "[coefficients.md](coefficients.md) says of the number in use, and the processor, commit",
        "and day of that; where it is empty, no times with other numbers are on record. What code",
        "generation and searches read is not looked at.",
        "",
        "| number | in use | tried | plans | schedules | timed |",
        "|---|---|---|---|---|---|",
    ]
    known = [e for e in entries if coefficients.is_in_use(e)]
    for e in known:
        lines += _rows(e, source_of(case_of(e), timed))
    said = [case_of(e) for e in known if _is_read(e) and not _changes(e)]
    unread = [case_of(e) for e in known if not _is_read(e)]
    lines += ["", f"Nothing that was looked at changes with: {', '.join(said) or 'none'}."]
    if unread:
        lines += ["", f"Nothing that was looked at reads: {', '.join(unread)}."]
    missing = [name for name in NAMES if name not in map(case_of, known)]
    if missing:
        lines += ["", f"Not looked at yet: {', '.join(missing)}."]
    return "\n".join(lines).rstrip() + "\n"


def _rows(entry: Entry, source: str) -> list[str]:
    name, rows = case_of(entry), []
    for number, value in enumerate(others_of(name)):
        cells = [_cell(entry, number, part) for part in ("plans", "schedules")]
        first = (name, f"{entry['value']:g}") if not number else ("", "")
        cells = [*first, f"{value:g}", *cells, "" if number else source]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _cell(entry: Entry, number: int, part: str) -> str:
    said: list[str] = []
    decisions: Any = entry["decisions"]
    for kind, own in decisions.items():
        if not own[part] or not own["tried"]:
            continue
        told = own["tried"][number][part]
        text = f"{kind} {told['changed']} of {own[part]}"
        if told["ratios"]:
            text += f": {exp(mean(log(r) for r in told['ratios'].values())):.3f}"
        said.append(text)
    return "; ".join(said)


def _is_read(entry: Entry) -> bool:
    decisions: Any = entry["decisions"]
    return any(own["plans"] or own["schedules"] for own in decisions.values())


def _changes(entry: Entry) -> bool:
    decisions: Any = entry["decisions"]
    return any(
        t[part]["changed"]
        for own in decisions.values()
        for t in own["tried"]
        for part in ("plans", "schedules")
    )


def _write(entries: Sequence[Entry]) -> None:
    timed = {case_of(e): e for e in load(ROOT / "benchmarks/results/coefficients.json")}
    write("sensitivity", page(entries, timed))


PAGE = Page(
    "sensitivity",
    __doc__,
    NAMES,
    measure,
    case_of,
    _write,
    peers=(),
    prepare_s=20.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
