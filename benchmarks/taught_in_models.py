"""`python -m benchmarks.taught_in_models`: judges what schedules that were timed in models teach.

The kernels of a model (and of all of its family) are held out: what the others of
`benchmarks.searched` and all of `benchmarks.fit` teach chooses among their schedules, without a
measurement. It is written to docs/taught_in_models.md, and ships nothing.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.fit import IN_MODELS, Times, load
from benchmarks.learned_page import judged
from benchmarks.machine import ROOT
from benchmarks.train import Lessons, Said, lessons, taught
from rutc.tuner.search.ranker import Ranker

PAGE = ROOT / "docs" / "taught_in_models.md"
CAUTIONS = (0.0, 0.5, 1.0, 2.0)
INTRODUCTION = """\
# What schedules that were timed in models teach

Written by `python -m benchmarks.taught_in_models`. Searches time schedules in runs of their model,
where weights come from memory and operands lie as the run leaves them. Each family of these models
is held out: *shipped* is what rutc comes with ([learned_cost.md](learned_cost.md)), which has seen
kernels of the same families by themselves, on other processors; *taught* knows the trials in models
of other families as well, and nothing of this family or of equal kernels. Both choose among the
schedules that a search has tried, with the default one among them. *Gain* is how much faster than
the default schedule the choice is, in geometric mean, and behind it are the kernels for which it is
more than 5 % faster, and more than 5 % slower. Schedules have to be better by so many times the
spread. The best that was measured is the best of many, some of it by chance.
"""


def held_out(times: Times, data: Lessons) -> tuple[np.ndarray, dict[str, Said]]:
    """Returns the points in models, and what is predicted of them, by who predicts it."""
    shipped = Ranker.load()
    digests = np.array([p.digest for p in times.points])
    own = np.char.endswith(data.targets.astype(str), IN_MODELS)
    count = len(data.cycles)
    said = {name: Said(np.zeros(count), np.zeros(count)) for name in ("shipped", "taught")}
    for name in sorted(set(data.families[own].tolist())):
        away = own & (data.families == name)
        same = (data.families == name) | np.isin(digests, digests[away])
        new = Ranker(taught(data, np.flatnonzero(~same)), {}, shipped.noise, shipped.scale)
        for who, ranker in (("shipped", shipped), ("taught", new)):
            for group in data.groups(np.flatnonzero(away)):
                group = group[np.argsort(~data.defaults[group], kind="stable")]
                found = ranker.scores(data.features[group])
                said[who].cycles[group], said[who].spread[group] = found
    return np.flatnonzero(own), said


def page(times: Times) -> str:
    """Returns the Markdown page."""
    data = lessons(times)
    own, said = held_out(times, data)
    nothing = np.zeros_like(data.cycles)
    columns = "times the spread | in order | near | first | first 5 | gain | worst |"
    line = "|---|---|---|---|---|---|---|---|"
    rows = [
        f"| choice by | {columns}",
        line,
        _row(data, "estimate", Said(data.estimates, nothing), own, 0.0),
        *(_row(data, who, each, own, c) for who, each in said.items() for c in CAUTIONS),
        _row(data, "best measured", Said(data.cycles, nothing), own, 0.0),
    ]
    rows += ["", f"| taught, held out | {columns}", line]
    for name in sorted(set(data.families[own].tolist())):
        chosen = own[data.families[own] == name]
        rows += [_row(data, name, said["taught"], chosen, c) for c in CAUTIONS]
    kernels = len(set(data.kernels[own].tolist()))
    machines = [p for p in times.provenance if p.get("operands") == IN_MODELS]
    about = ", ".join(f"{p['cpu']} ({p['processor']}), {p['date']}" for p in machines)
    return "\n".join(
        [INTRODUCTION, *rows, "", f"{kernels} kernels, {len(own)} points: {about}.", ""]
    )


def _row(data: Lessons, name: str, said: Said, chosen: np.ndarray, caution: float) -> str:
    found = judged(data, said, chosen, caution)
    shares: Sequence[float] = (found.order, found.near, found.first, found.first_five)
    return (
        f"| {name} | {caution:g} | "
        + " | ".join(f"{100 * x:.1f} %" for x in shares)
        + f" | {100 * found.gain:+.1f} % ({found.better}, {found.worse})"
        + f" | {100 * np.expm1(found.gains.min()):+.0f} % |"
    )


def main() -> None:
    """Judges, and writes the page."""
    PAGE.write_text(page(load(shared=True, in_models=True)), encoding="utf-8")


if __name__ == "__main__":
    main()
