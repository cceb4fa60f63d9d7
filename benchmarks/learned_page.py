"""What `benchmarks.train` says of what was learned: orders and choices, beside the estimate's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cost_page import APART

if TYPE_CHECKING:
    from benchmarks.train import Lessons, Said

INTRODUCTION = """\
Written by `python -m benchmarks.train`, of the kernels that `benchmarks.fit` has timed. The
analytic estimate ([cost.md](cost.md)) of a scheduled kernel is corrected by what was learned: sums
of trees (`tuner/search/ranker.py`) that predict the logarithm of measured by estimated cycles, of
features that describe the loop nest and the machine (`tuner/search/nest_features.py`), never the
parameters of a schedule. Good schedules count for more than bad ones.

There are several such sums, each taught without a part of the families of kernels. Their mean is
the prediction. How much they disagree about a schedule against the default one tells its *spread*,
how far off that comparison is likely to be. A *cautious* choice takes a schedule in place of the
default only if its predicted cycles, and some times the spread, are still fewer.

It is meant to tell a search what to measure next. All figures are of schedules that were drawn at
random, or found by a search that was told what they took (*searched*). Among hundreds, the best
prediction is often the one that is farthest off, so that a choice that is not measured can be worse
than these say: most of all for templates of which no schedules were compared.
"""
READING = """\
*Sources* are held out by families: all sizes of an operator, and models that are much alike. What
is told of processors learnt from the others, of the same kernels. Only kernels with several
measured schedules count: the default one and up to 8 others that were drawn at random, or up to 60
that were searched, most of them near the default one and hard to tell from it. *In order* is the
share of pairs of schedules of a kernel, more than 5 % apart, that are; *near*, of those of which
both are at most 50 % slower than the best measured one. *First* and *first 5* is the share of
kernels with a schedule among the first one or five that is at most 5 % slower than the best
measured one; most kernels have six. *Gain* is how much faster than the default schedule the choice
is, in geometric mean, and behind it the number of kernels for which it is more than 5 % faster, and
more than 5 % slower.
"""
REGRET = """\
## Regret

How much slower than the best measured schedule of a kernel that one is which is chosen without
measurements: in geometric mean, less 1; the 95th percentile; and the kernels that lose more than
5 %. Sources are held out. A compilation takes the default schedule.
"""
HALF = 0.5
"""How much slower than the best are schedules that are near."""
CAUTIONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""Those that are compared."""


@dataclass(frozen=True)
class Judged:
    """How good an order of schedules is. Gains and regrets are logarithms, by kernels."""

    order: float
    near: float
    """The order of those that are at most half slower than the best."""
    first: float
    first_five: float
    regrets: np.ndarray
    """How much slower the choice is than the best measured one."""
    gains: np.ndarray

    @property
    def regret(self) -> float:
        """The geometric mean of all, less 1."""
        return float(np.expm1(self.regrets.mean()))

    @property
    def gain(self) -> float:
        """The geometric mean of all."""
        return float(np.expm1(self.gains.mean())) if len(self.gains) else 0.0

    @property
    def better(self) -> int:
        """Kernels for which the choice is clearly faster than the default."""
        return int((self.gains > np.log1p(APART)).sum())

    @property
    def worse(self) -> int:
        """Kernels for which it is clearly slower."""
        return int((self.gains < -np.log1p(APART)).sum())


def judged(data: Lessons, said: Said, chosen: np.ndarray, caution: float = 0.0) -> Judged:
    """Returns how good predictions are at the chosen points."""
    near = np.log1p(APART)
    right, pairs = np.zeros(2), np.zeros(2)
    first, five, regrets, gains = list[bool](), list[bool](), list[float](), list[float]()
    for group in data.groups(chosen):
        if len(group) < 2:
            continue
        real, own = data.cycles[group], said.cycles[group]
        i, j = np.triu_indices(len(group), 1)
        apart = np.abs(real[i] - real[j]) > near
        i, j = i[apart], j[apart]
        ordered = (real[i] > real[j]) == (own[i] > own[j])
        good = np.maximum(real[i], real[j]) - real.min() < np.log1p(HALF)
        pairs += len(i), good.sum()
        right += ordered.sum(), (ordered & good).sum()
        off = real - real.min()
        choice = int(np.argmin(own + caution * said.spread[group]))
        first.append(bool(off[choice] < near))
        five.append(bool(off[np.argsort(own, kind="stable")[:5]].min() < near))
        regrets.append(float(off[choice]))
        gains += [float(real[i] - real[choice]) for i in np.flatnonzero(data.defaults[group])]
    order, half = right / np.maximum(pairs, 1)
    return Judged(
        float(order),
        float(half),
        float(np.mean(first)),
        float(np.mean(five)),
        np.array(regrets),
        np.array(gains),
    )


def compared(data: Lessons) -> dict[str, int]:
    """Returns how many kernels with several schedules there are, by template of the default."""
    found = dict.fromkeys(sorted(set(data.templates.tolist())), 0)
    for group in data.groups(np.arange(len(data.cycles))):
        found[str(data.templates[group[0]])] += len(group) > 1
    return found


def figures(found: Judged) -> dict[str, float]:
    """Returns the main ones."""
    return {
        "order": round(found.order, 3),
        "near": round(found.near, 3),
        "first": round(found.first, 3),
        "regret": round(found.regret, 4),
        "gain": round(found.gain, 4),
    }


def page(data: Lessons, said: Mapping[str, Said], whence: Sequence[Mapping[str, Any]]) -> str:
    """Returns the Markdown page."""
    measured = [
        f"{p['cpu']} ({p['processor']}, commit {p['commit']}, {p['date']}"
        f"{', with ' + p['shared'] if 'shared' in p else ''}"
        f"{', ' + p['schedules'] if 'schedules' in p else ''})"
        for p in whence
    ]
    lines = [
        "# What measurements teach",
        "",
        INTRODUCTION,
        "## How good it is",
        "",
        f"Measured on {', '.join(measured)}, one thread:",
        f"{len(set(data.kernels.tolist()))} kernels, {len(data.cycles)} points. All predictions "
        "are of kernels that were held out.",
        "",
        f"Kernels of which several schedules were measured, by template: {_counts(data)}.",
        "",
        READING,
        *_table(data, said),
        "",
        *_honest(data, said),
        "",
        REGRET,
        *_regrets(data, said["sources"]),
        "",
        "## Caution",
        "",
        "Gains by how many times the spread a schedule has to be better by than the default.",
        f"{said['sources'].caution:g} is what `Ranker.choice` takes; it was chosen by this table.",
        "",
        *_cautions(data, said),
        "",
        "## Cycles",
        "",
        "Errors are |log(predicted / measured)|, of sources held out.",
        "",
        *_errors(data, said["sources"]),
    ]
    return "\n".join(lines) + "\n"


def _rows(data: Lessons, said: Mapping[str, Said]) -> Iterator[tuple[str, Said, np.ndarray]]:
    """Yields the names of rows, predictions, and their points."""
    everything = np.arange(len(data.cycles))
    yield "sources", said["sources"], everything
    yield "sources, and from the estimate", said["sources"], np.flatnonzero(data.unfitted)
    for kind, names in (("templates", data.templates), ("targets", data.targets)):
        for name in sorted(set(names.tolist())):
            chosen = np.flatnonzero(names == name)
            if any(len(group) > 1 for group in data.groups(chosen)):
                known = "sources, code for" if kind == "targets" else "sources, template"
                yield f"{known} {name}", said["sources"], chosen
    for name in sorted(set(data.processors.tolist())):
        yield f"all of {name}", said["processors"], np.flatnonzero(data.processors == name)


def _table(data: Lessons, said: Mapping[str, Said]) -> list[str]:
    """Returns the estimate's and the learned order, and what they choose."""
    rows = [
        "| held out | kernels | in order: estimate, learned | near | first | first 5 | "
        "gain: estimate | learned | cautious | best measured |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found, chosen in _rows(data, said):
        usual, own, cautious, best = _compared(data, found, chosen)
        rows.append(
            f"| {name} | {len(own.gains)} | {_percent(usual.order)}, {_percent(own.order)} | "
            f"{_percent(usual.near)}, {_percent(own.near)} | "
            f"{_percent(usual.first)}, {_percent(own.first)} | "
            f"{_percent(usual.first_five)}, {_percent(own.first_five)} | "
            f"{_gain(usual)} | {_gain(own)} | {_gain(cautious)} | {100 * best.gain:+.1f} % |"
        )
    return rows


def _compared(data: Lessons, found: Said, chosen: np.ndarray) -> tuple[Judged, ...]:
    """Returns the estimate, what was learned, the cautious choice, and the best there is."""
    nothing = np.zeros_like(data.cycles)
    return (
        judged(data, replace(found, cycles=data.estimates, spread=nothing), chosen),
        judged(data, found, chosen),
        judged(data, found, chosen, found.caution),
        judged(data, replace(found, cycles=data.cycles, spread=nothing), chosen),
    )


def _regrets(data: Lessons, said: Said) -> list[str]:
    """Returns what each way to choose loses, all templates together and one by one."""
    ways = ("default schedule", "estimate", "learned", "cautious")
    rows = [
        f"| template | kernels | {' | '.join(ways)} |",
        "|---|---|" + "---|" * len(ways),
    ]
    first = replace(said, cycles=-data.defaults.astype(float), spread=np.zeros_like(said.cycles))
    for name in ("all", *sorted(set(data.templates.tolist()))):
        wanted = (data.templates == name) | (name == "all")
        known = np.isin(data.kernels, data.kernels[data.defaults])
        chosen = np.flatnonzero(wanted & known)
        if not any(len(group) > 1 for group in data.groups(chosen)):
            continue
        each = (judged(data, first, chosen), *_compared(data, said, chosen)[:3])
        rows.append(f"| {name} | {len(each[0].regrets)} | {' | '.join(map(_regret, each))} |")
    return rows


def _regret(found: Judged) -> str:
    high = np.expm1(np.quantile(found.regrets, 0.95))
    worse = int((found.regrets > np.log1p(APART)).sum())
    return f"{100 * found.regret:.1f} %; {100 * high:.0f} %; {worse}"


def _honest(data: Lessons, said: Mapping[str, Said]) -> list[str]:
    """Returns where what was learned is no better than the estimate."""
    order, choices, losses = list[str](), list[str](), list[str]()
    for name, found, chosen in _rows(data, said):
        usual, own, cautious, _ = _compared(data, found, chosen)
        if own.order <= usual.order:
            order.append(name)
        if cautious.gain <= usual.gain:
            choices.append(name)
        if cautious.gain < 0:
            losses.append(name)
    known = ", ".join(sorted(set(data.processors[~data.unfitted].tolist()))) or "none"
    return [
        f"Its order is no better than the estimate's of: {'; '.join(order) or 'none'}.",
        "The cautious choice is on average no faster than the estimate's of: "
        f"{'; '.join(choices) or 'none'};",
        f"and slower than the default schedule of: {'; '.join(losses) or 'none'}.",
        f"The constants of the estimate were fitted to two thirds of the kernels of {known}:",
        "but for the second row it does a little too well here.",
    ]


def _cautions(data: Lessons, said: Mapping[str, Said]) -> list[str]:
    names = [f"{name} held out" for name in said]
    rows = [f"| times | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    everything = np.arange(len(data.cycles))
    for times in CAUTIONS:
        gains = [_gain(judged(data, found, everything, times)) for found in said.values()]
        rows.append(f"| {times:g} | {' | '.join(gains)} |")
    return rows


def _errors(data: Lessons, said: Said) -> list[str]:
    rows = [
        "| points | median: estimate, learned | 95th percentile: estimate, learned |",
        "|---|---|---|",
    ]
    everything = np.arange(len(data.cycles))
    for name, chosen in (
        ("all", everything),
        ("default schedules", np.flatnonzero(data.defaults)),
    ):
        off = [np.abs(x - data.cycles)[chosen] for x in (data.estimates, said.cycles)]
        middle, most = (
            ", ".join(f"{np.quantile(x, share):.3f}" for x in off) for share in (0.5, 0.95)
        )
        rows.append(f"| {name} | {middle} | {most} |")
    return rows


def _counts(data: Lessons) -> str:
    return ", ".join(f"{name} {count}" for name, count in compared(data).items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _gain(found: Judged) -> str:
    return f"{100 * found.gain:+.1f} % ({found.better}, {found.worse})"
