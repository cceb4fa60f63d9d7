"""What `benchmarks.fit` says of its fit: errors, ranks, and the kernels it knows least about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.store import load
from rutc.tensor_ir.cost import Costs
from rutc.tensor_ir.cost.fitted import FREE

if TYPE_CHECKING:
    from benchmarks.fit import Timed

INTRODUCTION = """\
Written by `python -m benchmarks.fit`. A scheduled kernel has a *summary* (`summarise`), and a
summary has an *estimate* in cycles on a machine (`estimate`), both in `tensor_ir/cost/`.

## What the summary counts

Straight-line code, a *region*, is what an iteration of a loop does outside of the loops in it, or
an arm of a branch. Of each region the summary has

- how often it is done, and how often its loop is entered;
- its instructions by kind (`KINDS` in `work.py`), those on vectors in registers: an operation of a
  register that is not full counts as the part of one that the machine has to move. Equal loads are
  one; what does not depend on a loop is counted before it; reads and stores across memory are
  blocks that are transposed where an unrolled loop goes along memory, loads that are shuffled where
  lanes are known to lie near each other (stores with masks, where there are registers for these),
  and single lanes elsewhere;
- what is stored of sums that are written out, as far as it is more than the machine hides at once:
  in a region of its own, as where the sums are a loop;
- elementary functions by name;
- the registers that its sums and operands take, and what is spilled of them;
- the cycles of operations that wait for those of the iteration before, and those in which lanes of
  a row are put together, where a loop behind waits for that: else the next row is begun meanwhile;
- the bytes that come from each level of memory, and go there: the outermost loop whose iterations
  fit a cache brings every line once, each time that it runs. Half of a cache and all of it are
  looked at, and the mean is taken. Lines for which the first cache has room, but not their own sets
  of it, come again; what is stored is read as well, then;
- how many of these lines wait for each other, as if all were of one set: by the sets that have
  them, loads and stores apart.

Sizes that only the run knows are what they commonly are. A summary takes 1 to
3 ms, up to 30 ms for the largest kernels.

## The formula

    products  = (multiply-adds + dots * sums of products + functions * those they take) / rate
                + divisions * cycles
    vectors   = vectors * (all of these + arithmetic + shuffles * ... + conversions * ...) / rate
    loads     = (loads + crossing * ... + spills * ...) / rate + broadcasts / rate
                + gathered * lanes + guarded * ... + prefetches * ...
    stores    = (stores * ... + masked * ...) / rate of loads + scattered * lanes
    core      = | products, vectors, loads, stores, instructions / issue, latency |_ports
    region    = | core, second cache, last cache, memory, waiting * lines |_levels
                + loop * times + entry * entries + tested * reads + evicted * lines
                + matrices * products of blocks
    cycles    = call + sum of all regions

`| |_p` is the p-norm: a little more than the longest of times that hide each other. Rates are those
of `Machine`. With several threads, tasks are shared evenly and a launch is added. A plan's estimate
(`driver/plans/estimates.py`) adds up its launches, whose operands come from the cache that holds
all that was touched since they last were.
"""
REASONS = """\
Why: rows of 14 bytes are stored one after the other, where a store of a part of a register, or a
load across two such, waits; AVX2 code of filters' transforms has more values than registers, and
how many of them are loaded again is a guess; memory that is a little larger than the last cache is
counted as if all of it came from memory; and what data choose is anywhere for the estimate, but was
near in the measurement. Among schedules that are not the default, those are farthest off whose
vectors lie across memory in steps of 4096 bytes.
"""
APART = 0.05
"""Points whose cycles differ by less are in no order."""
MODELS = ROOT / "benchmarks" / "results" / "estimates.json"
CHOICES = ROOT / "benchmarks" / "results" / "choices.json"
WHOLE_MODELS = "## Whole models"
WORST = 20
"""Kernels that are listed."""


def errors(points: Sequence[Timed], estimates: np.ndarray) -> dict[str, Any]:
    """Returns how many kernels there are, and the errors at those that are held out."""
    held = [i for i, p in enumerate(points) if p.held_out]
    off = _off(points, estimates, held)
    return {
        "kernels": len({p.kernel for p in points}),
        "points": len(points),
        "held_out_kernels": len({points[i].kernel for i in held}),
        "median_error": round(float(np.median(off)), 3),
        "error_95": round(float(np.quantile(off, 0.95)), 3),
        "order": round(_ranks(points, estimates, held)[0], 3),
    }


def _off(points: Sequence[Timed], estimates: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Returns |log(estimate / cycles)| of the chosen points."""
    return np.abs(np.log([estimates[i] / points[i].cycles for i in chosen]))


def _ranks(
    points: Sequence[Timed], estimates: np.ndarray, chosen: Sequence[int]
) -> tuple[float, list[float], list[float]]:
    """Returns the share of pairs in order, and the regrets of the estimate's and default choices.

    The regret of a choice is how much slower it is than the best measured one of its kernel.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i in chosen:
        groups[points[i].kernel].append(i)
    right = pairs = 0
    own: list[float] = []
    usual: list[float] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        for i, j in combinations(group, 2):
            ratio = points[i].cycles / points[j].cycles
            if max(ratio, 1 / ratio) > 1 + APART:
                pairs += 1
                right += (ratio > 1) == (estimates[i] > estimates[j])
        best = min(points[i].cycles for i in group)
        liked = min(group, key=lambda i: estimates[i])
        own.append(points[liked].cycles / best - 1)
        usual += [points[i].cycles / best - 1 for i in group if points[i].number == 0]
    return right / max(pairs, 1), own, usual


def page(
    points: Sequence[Timed],
    estimates: np.ndarray,
    costs: Costs,
    whence: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the Markdown page about the cost."""
    tables = [*_errors_table(points, estimates), "", *_regret_table(points, estimates)]
    lines = [
        "# The cost of kernels",
        "",
        INTRODUCTION,
        "## Errors",
        "",
        f"Measured on {', '.join(map(_measured, whence))}, one thread, by `python -m "
        "benchmarks.fit --measure`; fitted by `python -m benchmarks.fit`. The x86-64-v3 rows are "
        "AVX2 code on that processor. An error is |log(estimate / cycles)|: 0.1 is 10 %. *Held "
        "out* are the kernels, a third of all, that took no part in the fit, on any processor; "
        "like layers, and the same one for another target, may be on either side. What the fit "
        "makes small says `benchmarks/misjudged.py`: errors, of default schedules more than of "
        "others, and the time that wrong orders lose.",
        "",
        *tables,
        "",
        *_choices(),
        *_models_table(),
        "## Constants",
        "",
        "What `Machine` does not say, in the order of `tensor_ir/cost/fitted.py`, which tells "
        "what each is.",
        "",
        "| constant | value |",
        "|---|---|",
        *(f"| {n} | {v:g}{'' if n in FREE else ' (not fitted)'} |" for n, v in _values(costs)),
        "",
        "## The kernels it knows least about",
        "",
        REASONS,
        *_worst(points, estimates),
    ]
    return "\n".join(lines) + "\n"


def _measured(whence: Mapping[str, Any]) -> str:
    made = f"commit {whence['commit']}, {whence['date']}"
    return f"{whence['cpu']} ({whence['processor']}, {made})"


def _values(costs: Costs) -> list[tuple[str, float]]:
    return list(asdict(costs).items())


def _errors_table(points: Sequence[Timed], estimates: np.ndarray) -> list[str]:
    rows = [
        "| points | kernels | points | median error | 95th percentile |",
        "|---|---|---|---|---|",
    ]
    held = [i for i, p in enumerate(points) if p.held_out]
    groups: dict[str, list[int]] = {
        "fitted": [i for i, p in enumerate(points) if not p.held_out],
        "held out": held,
        "held out, default schedules": [i for i in held if points[i].number == 0],
    }
    for target in sorted({p.target for p in points}):
        groups[f"held out, {target}"] = [i for i in held if points[i].target == target]
    for template in sorted({p.template for p in points}):
        name = f"held out, default schedules, {template}"
        groups[name] = [i for i in held if points[i].template == template and points[i].number == 0]
    for name, chosen in groups.items():
        if not chosen:
            continue
        off = _off(points, estimates, chosen)
        kernels = len({points[i].kernel for i in chosen})
        rows.append(
            f"| {name} | {kernels} | {len(chosen)} | {np.median(off):.3f} | "
            f"{np.quantile(off, 0.95):.3f} |"
        )
    return rows


def _regret_table(points: Sequence[Timed], estimates: np.ndarray) -> list[str]:
    rows = [
        "Of kernels with several measured schedules, the share of pairs more than 5 % apart that",
        "the estimates put in order, and how much slower than the best measured one is the",
        "schedule of the least estimate, and the default one, on average and at the 95th",
        "percentile. Few others were measured: 5 or 8 that were drawn at random.",
        "",
        "| points | pairs in order | least estimate | default |",
        "|---|---|---|---|",
    ]
    for target in (*sorted({p.target for p in points}), ""):
        for held in (False, True):
            chosen = [
                i for i, p in enumerate(points) if p.held_out is held and target in ("", p.target)
            ]
            order, own, usual = _ranks(points, estimates, chosen)
            said = [
                f"{100 * np.mean(x):.1f} %, {100 * np.quantile(x, 0.95):.0f} %"
                for x in (own, usual)
            ]
            name = f"{'held out' if held else 'fitted'}{', ' if target else ''}{target}"
            rows.append(f"| {name} | {100 * order:.1f} % | {said[0]} | {said[1]} |")
    return rows


def _choices() -> list[str]:
    """Returns what became of schedules that estimates chose, where that was measured."""
    entries = load(CHOICES)
    if not entries:
        return []
    pairs = [(float(str(e["gain"])), float(str(e["estimated_gain"]))) for e in entries]
    clear = [gain for gain, expected in pairs if expected > APART]
    mean, clear_mean = (
        float(np.exp(np.mean(np.log1p(x)))) - 1 for x in ([gain for gain, _ in pairs], clear or [0])
    )
    worse = sum(gain < -APART for gain, _ in pairs)
    better = sum(gain > APART for gain, _ in pairs)
    return [
        "## Estimates as the only judge",
        "",
        f"Of {len(pairs)} kernels that were held out, the schedule of the least estimate among "
        f"about a hundred of the space was timed beside the default one ({entries[0]['cpu']}, "
        f"{entries[0]['processor']}, commit {entries[0]['commit']}, `python -m "
        f"benchmarks.choices`): its gain is {100 * mean:.1f} % on average; {better} are more than "
        f"5 % faster and {worse} more than 5 % slower. Of those {len(clear)} of which estimates "
        f"promise more than 5 %, it is {100 * clear_mean:.1f} %. So estimates rank schedules that "
        "differ much, but do not choose better than the default where many are alike.",
        "",
    ]


def with_models(page: str) -> str:
    """Returns the page with the table of whole models that results give now."""
    before, start, rest = page.partition(f"{WHOLE_MODELS}\n")
    assert start, "docs/cost.md has the heading of its table of models"
    return before + "\n".join([*_models_table(), rest[rest.index("## ") :]])


def _models_table() -> list[str]:
    """Returns the estimates of whole models beside their times, those that were measured."""
    entries = load(MODELS)
    if not entries:
        return []
    rows = [
        WHOLE_MODELS,
        "",
        "Estimated from the plan, default schedules, and measured by `python -m "
        f"benchmarks.estimates` on {entries[0]['cpu']} ({entries[0]['processor']}), one thread, "
        f"commit {entries[0]['commit']}, {entries[0]['date']}: the least thread time of runs one "
        "after the other.",
        "",
        "| model | launches | estimated cycles | measured cycles | estimate / measured |",
        "|---|---|---|---|---|",
    ]
    for e in entries:
        mine, real = float(str(e["estimated_cycles"])), float(str(e["cycles"]))
        rows.append(
            f"| {e['model']} | {e['launches']} | {mine:.3g} | {real:.3g} | {mine / real:.2f} |"
        )
    return [*rows, ""]


def _worst(points: Sequence[Timed], estimates: np.ndarray) -> list[str]:
    rows = [
        "Default schedules, the worst first.",
        "",
        "| kernel | target | template | cycles | estimate / cycles |",
        "|---|---|---|---|---|",
    ]
    ratios = [(estimates[i] / p.cycles, p) for i, p in enumerate(points) if p.number == 0]
    ratios.sort(key=lambda x: -abs(float(np.log(x[0]))))
    rows += [
        f"| {p.source}: {p.name} | {p.target} | {p.template} | {p.cycles:.0f} | {ratio:.2f} |"
        for ratio, p in ratios[:WORST]
    ]
    return rows
