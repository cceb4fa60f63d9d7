"""`python -m benchmarks.regret`: how much slower default schedules are than the best of others.

Each kernel of single operators and layers is timed with its default schedule and with others of
its spaces, whatever their templates: neighbours of the best so far, and random ones, of register
tiles those that the model of the machine likes. The best of them and the default then take turns
once more, on one core with everything in its caches.
The regret of a kernel is the default's time over the least, less 1: a lower bound, as no search is
complete. Results go to benchmarks/results/regret.json and docs/regret.md.
"""

import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from random import Random
from statistics import median, quantiles
from time import monotonic
from typing import Any

from benchmarks import layout
from benchmarks.kernel_source import BUILDERS, PRODUCTS_IN_BF16, kernels
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.ratios import LONG, Ratios
from benchmarks.store import Entry, case_of
from benchmarks.timer import Timer
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.errors import RutcError
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces, usual
from rutc.tuner.space import Space
from rutc.tuner.templates.tiled import Tiling

TRIALS = 60
"""Schedules that are tried of a kernel."""
SECONDS = 4.0
"""After so long there are no more of a kernel."""
RANDOM_EVERY = 4
"""One in so many is drawn at random, the others are neighbours of the best before."""
LIKED = 6
"""A random tiling is that of so many whose tile the model of the machine likes most."""
AGAIN = 2 * LONG
"""Samples of the best of the others at last: the least of many times is luck, too."""
FEWEST_NS = 2_000
"""Kernels that take less say little of schedules."""


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule that was found, the space that it is of, and its time by the default one's."""

    space: Space[Any]
    point: Any
    kernel: Kernel
    ratio: float

    def __str__(self) -> str:
        """The template and the point."""
        return f"{self.space.template.name}: {self.point}"


def default(own: Sequence[Space[Any]]) -> tuple[Space[Any], Any]:
    """Returns the point that is taken without a search, and the space that it is of."""
    found = usual(own)
    assert found is not None
    return found


def measured(kernel: Kernel, constants: frozenset[str], machine: Machine, rng: Random) -> Entry:
    """Returns the default's time, and the least of those of other schedules."""
    own = spaces(kernel, machine, constants)
    space, point = default(own)
    usual = kernel_after(kernel, space.choice(point))
    took = Timer(machine).timed(usual, None, ("near",)).near
    assert took is not None
    if took.ns < FEWEST_NS:
        return {}
    best = first = Found(space, point, usual, 1.0)
    tried = 1
    with Ratios(usual, machine) as bench:
        end = monotonic() + SECONDS
        for number in range(TRIALS):
            if monotonic() > end:
                break
            found = _next(own, best, number, rng)
            if found is None:
                continue
            space, point, choice = found
            with suppress(NotApplicable):
                made = kernel_after(kernel, choice)
                tried += 1
                ratio = bench.of(made, best.ratio).ratio
                if ratio is not None and ratio < best.ratio:
                    best = Found(space, point, made, ratio)
        again = bench.of(best.kernel, inf, AGAIN).ratio if best is not first else 1.0
    assert again is not None
    return {
        "template": first.space.template.name,
        "default_us": round(took.ns / 1e3, 2),
        "best_us": round(took.ns / 1e3 * again, 2),
        "regret": round(max(1 / again - 1, 0.0), 3),
        "tried": tried,
        "best": str(best),
    }


def _next(
    own: Sequence[Space[Any]], best: Found, number: int, rng: Random
) -> tuple[Space[Any], Any, Choice] | None:
    """Returns what is tried next: a neighbour of the best, now and then one of any space."""
    if number % RANDOM_EVERY == 0:
        space = own[number // RANDOM_EVERY % len(own)]
        found = _at_random(space, rng)
    else:
        space = best.space
        found = space.near(best.point, rng)
    return None if found is None else (space, *found)


def _at_random(space: Space[Any], rng: Random) -> tuple[Any, Choice] | None:
    """Returns a random point, of tilings one that the model of the machine likes."""
    found = space.draw(rng)
    if found is None or not isinstance(found[0], Tiling):
        return found
    drawn = [found, *(x for x in (space.draw(rng) for _ in range(LIKED - 1)) if x is not None)]
    return min(drawn, key=lambda x: x[0].tile.cost)


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case: its kernels' times."""
    machine = native_target().machine
    alone = machine.alone()
    rng = Random(zlib.crc32(name.encode()))
    found: dict[str, Entry] = {}
    for own, kernel, constants in kernels(name, machine):
        if kernel.symbols or not spaces(kernel, machine, constants):
            continue
        try:
            entry = measured(kernel, constants, alone, rng)
        except RutcError as error:
            entry = {"error": str(error).splitlines()[0]}
        if entry:
            found[own] = entry
    return {"kernels": found, **asdict(provenance())}


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.regret`. Default schedules against others of their",
        f"spaces, {TRIALS} of each kernel or as many as {SECONDS:g} seconds allow, most of them",
        "neighbours of the best before. On one core, with all operands near; the default and the",
        "best of the others in turns. The regret is the default's time over the least, less 1. The",
        "search is short: others may be better still.",
    )
    return layout.page("Regret of default schedules", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    rows: list[tuple[float, str, Entry]] = []
    for entry in entries:
        known = entry.get("kernels")
        assert isinstance(known, dict)
        rows += [
            (k["regret"], f"{case_of(entry)}: {n}", k) for n, k in known.items() if "regret" in k
        ]
    if len(rows) < 2:
        return []
    rows.sort(key=lambda row: -row[0])
    by_template: dict[str, list[float]] = {}
    for regret, _, k in rows:
        by_template.setdefault(str(k.get("template", "tiled")), []).append(regret)
    lines = [
        f"{_summary([regret for regret, _, _ in rows])}",
        "",
        "| template of the default | regret |",
        "|---|---|",
        *(f"| {name} | {_summary(own)} |" for name, own in sorted(by_template.items())),
        "",
        "| kernel | default us | best us | regret | default | best known |",
        "|---|---|---|---|---|---|",
    ]
    for regret, name, k in rows:
        if regret >= 0.02:
            lines.append(
                f"| {name} | {k['default_us']} | {k['best_us']} | {100 * regret:.0f} % | "
                f"{k.get('template', 'tiled')} | `{k['best']}` |"
            )
    return lines


def _summary(regrets: Sequence[float]) -> str:
    high = quantiles(regrets, n=20)[-1] if len(regrets) > 1 else regrets[0]
    return (
        f"{len(regrets)} kernels: median {100 * median(regrets):.1f} %, 95th percentile "
        f"{100 * high:.0f} %; {sum(r > 0.05 for r in regrets)} above 5 %"
    )


PAGE = Page(
    "regret",
    __doc__,
    [*BUILDERS, *PRODUCTS_IN_BF16],
    measure,
    case_of,
    lambda entries: write("regret", page(entries)),
    peers=(),
    prepare_s=12.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
