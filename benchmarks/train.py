"""`python -m benchmarks.train`: teaches the order of schedules, and judges what was learned.

Of all kernels that `benchmarks.fit` has timed, CatBoost learns the logarithm of measured cycles by
estimated ones. What it is taught goes to tuner/search/learned.npz, and how good it is on kernels
that it has not seen to docs/learned_cost.md. With `--losses` it says how other losses do.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks import learned_page
from benchmarks.fit import Timed, Times, fitted_to, load, rounded
from benchmarks.kernel_source import in_parts
from benchmarks.machine import ROOT
from rutc.tensor_ir.cost.estimate import fitted
from rutc.tuner.search.nest_features import NAMES, features
from rutc.tuner.search.ranker import LEARNED, Ranker, Trees

PARAMETERS: Mapping[str, Any] = {
    "loss_function": "RMSE",
    "iterations": 200,
    "learning_rate": 0.08,
    "depth": 6,
    "rsm": 0.4,
    "border_count": 64,
    "random_seed": 0,
}
"""Of CatBoost."""
MEMBERS = 5
"""Sums of trees, each of which is taught without the families of one part in so many."""
SHARE = 0.5
"""How much counts that all schedules of a kernel are off by: 0 teaches their order alone."""
NEAR = 0.3
"""Schedules that are slower than the best by this logarithm count for half of it."""
CAUTION = 0.5
"""How many times their spread schedules must be better by than the default, to be chosen."""
NOISES, SCALES = np.geomspace(0.01, 0.3, 40), np.geomspace(0.5, 20, 40)
"""What may make a spread of how much members disagree."""
MOST_OFF = 1.0
"""An error of logarithms, beyond which it tells no more of the spread."""
FOLDS = 5
RANKING = ("QueryRMSE", "PairLogit", "YetiRank")
"""Losses of the order alone, for `--losses`."""
SHARPNESS = 8.0
"""Logarithms of cycles are multiplied by so much for losses that are not of their scale."""


@dataclass(frozen=True)
class Lessons:
    """Timed points as arrays, one element for each."""

    features: np.ndarray
    cycles: np.ndarray
    """Logarithms of those measured."""
    kernels: np.ndarray
    """Numbers of kernels: the same one for two targets is two."""
    defaults: np.ndarray
    """Whether a schedule is the default one."""
    families: np.ndarray
    targets: np.ndarray
    processors: np.ndarray
    templates: np.ndarray
    """Of the default schedule."""
    unfitted: np.ndarray
    """Whether the constants of the estimate were fitted without a point's kernel or processor."""

    @property
    def estimates(self) -> np.ndarray:
        """Logarithms of the cycles that are estimated."""
        return cast(np.ndarray, self.features[:, 0] * np.log(2))

    @property
    def weights(self) -> np.ndarray:
        """How much points count: it matters most which of the good schedules is better."""
        found = np.zeros(len(self.cycles))
        for group in self.groups(np.arange(len(found))):
            slower = self.cycles[group] - self.cycles[group].min()
            found[group] = 1 / (1 + slower / NEAR)
        return found

    def groups(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the points of each kernel among the chosen ones."""
        order = chosen[np.argsort(self.kernels[chosen], kind="stable")]
        ends = np.flatnonzero(np.diff(self.kernels[order])) + 1
        yield from np.split(order, ends)


def family(source: str) -> str:
    """Returns what tells models and layers from those that are much alike.

    `light_resnet50` and `resnet50` are one in all precisions, and so are all sizes of an operator.
    """
    name, _ = in_parts(source)
    found = re.match(r"(?:light_)?([A-Za-z ]+)", name)
    return found[1].strip() if found else name


def lessons(times: Times) -> Lessons:
    """Returns what there is to learn."""
    points = once(times.points)
    numbers: dict[tuple[str, str], int] = {}
    own: dict[tuple[str, str], str] = {}
    fitted_on = {each["processor"] for each in times.provenance if fitted_to(each)}
    for p in points:
        numbers.setdefault(p.kernel, len(numbers))
        own.setdefault(p.kernel, p.template)
    return Lessons(
        np.array([features(p.regions, times.machines[p.target]) for p in points]),
        np.log([p.cycles for p in points]),
        np.array([numbers[p.kernel] for p in points]),
        np.array([p.number == 0 for p in points]),
        np.array([family(p.source) for p in points]),
        np.array([p.target for p in points]),
        np.array([p.target.partition(" ")[0] for p in points]),
        np.array([own[p.kernel] for p in points]),
        np.array([p.held_out or p.target.partition(" ")[0] not in fitted_on for p in points]),
    )


def once(points: Iterable[Timed]) -> list[Timed]:
    """Returns a point for each schedule of a kernel: the first one, of the median of cycles."""
    found: defaultdict[tuple[str, str, str], list[Timed]] = defaultdict(list)
    for p in points:
        found[p.target, p.digest, p.schedule].append(p)
    each = found.values()
    return [replace(same[0], cycles=float(np.median([p.cycles for p in same]))) for same in each]


# -- learning -----------------------------------------------------------------------------------
def taught(data: Lessons, chosen: np.ndarray) -> tuple[Trees, ...]:
    """Returns the members that learn from the chosen points."""
    goal, weights = data.cycles - data.estimates, data.weights
    for group in data.groups(chosen):
        goal[group] -= (1 - SHARE) * np.average(goal[group], weights=weights[group])
    part = parts(data.families[chosen], MEMBERS)
    found = []
    for number in range(MEMBERS):
        known = chosen[part != number]
        found.append(trees(model_of(data.features[known], goal[known], weights[known])))
    return tuple(found)


def model_of(features: np.ndarray, goal: np.ndarray, weights: np.ndarray, **parameters: Any) -> Any:
    """Returns CatBoost's model of a goal."""
    from catboost import CatBoost, Pool

    more = {"thread_count": 2, "verbose": 0, "allow_writing_files": False}
    model = CatBoost({**PARAMETERS, **more, **parameters})
    return model.fit(Pool(features, goal, weight=weights))


def trees(model: Any) -> Trees:
    """Returns the trees of a model of CatBoost, all as deep as the deepest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        found = json.loads(path.read_text(encoding="utf-8"))
    scale, (bias,) = found["scale_and_bias"]
    each = found["oblivious_trees"]
    depth = max((len(t["splits"] or ()) for t in each), default=0)
    places = np.zeros((len(each), depth), np.uint8)
    borders = np.full((len(each), depth), np.inf, np.float32)
    leaves = np.zeros((len(each), 1 << depth), np.float32)
    for number, tree in enumerate(each):
        for level, split in enumerate(tree["splits"] or ()):
            places[number, level] = split["float_feature_index"]
            borders[number, level] = split["border"]
        leaves[number, : len(tree["leaf_values"])] = np.array(tree["leaf_values"]) * scale
    return Trees(places, borders, leaves, float(bias))


def parts(families: np.ndarray, count: int) -> np.ndarray:
    """Returns the part that each point is of: families are in one, and parts are alike in size."""
    sizes = [0] * count
    found: dict[str, int] = {}
    for name, size in sorted(Counter(map(str, families)).items(), key=lambda x: (-x[1], x[0])):
        found[name] = sizes.index(min(sizes))
        sizes[found[name]] += size
    return np.array([found[str(name)] for name in families])


# -- judging ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Said:
    """The logarithms of cycles that are predicted, and their spread against the default."""

    cycles: np.ndarray
    spread: np.ndarray
    caution: float = CAUTION


def held_out(data: Lessons, names: np.ndarray) -> Said:
    """Returns what is predicted of points by members that learnt from those of other names."""
    said = Said(np.zeros(len(names)), np.zeros(len(names)))
    for name in sorted(set(names.tolist())):
        away = np.flatnonzero(names == name)
        ranker = Ranker(taught(data, np.flatnonzero(names != name)), {})
        for group in data.groups(away):
            # The default comes first.
            group = group[np.argsort(~data.defaults[group], kind="stable")]
            said.cycles[group], said.spread[group] = ranker.scores(data.features[group])
    return said


def spread_of(data: Lessons, said: Said) -> tuple[float, float]:
    """Returns the noise and the scale that tell best how far off held-out predictions are.

    Errors of comparisons with the default have about a normal distribution of that spread.
    """
    off, apart, weights = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    every = data.weights
    for group in data.groups(np.arange(len(data.cycles))):
        for first in group[data.defaults[group]]:
            others = group[group != first]
            errors = (said.cycles - data.cycles)[others] - (said.cycles - data.cycles)[first]
            off.append(np.minimum(np.abs(errors), MOST_OFF))
            apart.append(said.spread[others])
            weights.append(every[others])
    squares, known, weight = (
        np.concatenate(off) ** 2,
        np.concatenate(apart),
        np.concatenate(weights),
    )

    def unlikely(noise: float, scale: float) -> float:
        variance = noise**2 + (scale * known) ** 2
        return float(weight @ (squares / variance + np.log(variance)))

    pairs = [(float(n), float(s)) for n in NOISES for s in SCALES]
    noise, scale = min(pairs, key=lambda pair: unlikely(*pair))
    return rounded(noise), rounded(scale)


def with_spread(data: Lessons, said: Said, noise: float, scale: float) -> Said:
    """Returns predictions with the spread that the disagreement of members stands for."""
    spread = np.where(data.defaults, 0.0, np.hypot(noise, scale * said.spread))
    return replace(said, spread=spread)


def loss_orders(data: Lessons) -> Iterator[tuple[str, float]]:
    """Yields the share of pairs in order, of families held out, for single sums by other losses."""
    from catboost import CatBoost, Pool

    names = parts(data.families, FOLDS)
    for loss in ("RMSE", *RANKING):
        scale = SHARPNESS if loss == "PairLogit" else 1.0
        cycles = np.zeros(len(names))
        for fold in range(FOLDS):
            groups = [g for g in data.groups(np.flatnonzero(names != fold)) if len(g) > 1]
            known, away = np.concatenate(groups), np.flatnonzero(names == fold)
            pool = Pool(
                data.features[known],
                -data.cycles[known] * scale,
                group_id=None if loss == "RMSE" else data.kernels[known],
                baseline=-data.estimates[known] * scale,
            )
            more = {"thread_count": 2, "verbose": 0, "allow_writing_files": False}
            model = CatBoost({**PARAMETERS, **more, "loss_function": loss}).fit(pool)
            cycles[away] = data.estimates[away] - model.predict(data.features[away]) / scale
        judged = learned_page.judged(
            data, Said(cycles, np.zeros(len(names))), np.arange(len(names))
        )
        yield loss, judged.order


def ranker_of(
    data: Lessons,
    whence: Sequence[Mapping[str, Any]],
    figures: object,
    noise: float = 0.0,
    scale: float = 1.0,
) -> Ranker:
    """Returns what all points teach, with where it comes from."""
    kept = ("cpu", "processor", "date", "commit")
    provenance = {
        "features": list(NAMES),
        "costs": asdict(fitted().costs),
        "caution": CAUTION,
        "machines": [{n: p[n] for n in kept} for p in whence],
        "kernels": len(set(data.kernels.tolist())),
        "compared": learned_page.compared(data),
        "points": len(data.cycles),
        "held_out": figures,
        "parameters": {**PARAMETERS, "members": MEMBERS, "share": SHARE, "near": NEAR},
    }
    return Ranker(taught(data, np.arange(len(data.cycles))), provenance, noise, scale)


def main() -> None:
    """Learns, judges, and writes both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--losses", action="store_true", help="judge other losses alone")
    options = parser.parse_args()
    times = load(shared=True)
    data = lessons(times)
    if options.losses:
        for loss, order in loss_orders(data):
            print(f"{loss}: {100 * order:.1f} % of pairs in order", flush=True)
        return
    splits = {"sources": parts(data.families, FOLDS), "processors": data.processors}
    said = {name: held_out(data, names) for name, names in splits.items()}
    noise, scale = spread_of(data, said["sources"])
    said = {name: with_spread(data, found, noise, scale) for name, found in said.items()}
    everything = np.arange(len(data.cycles))
    figures = {
        name: learned_page.figures(learned_page.judged(data, found, everything))
        for name, found in said.items()
    }
    ranker_of(data, times.provenance, figures, noise, scale).save(LEARNED)
    page = learned_page.page(data, said, times.provenance)
    (ROOT / "docs" / "learned_cost.md").write_text(page, encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
