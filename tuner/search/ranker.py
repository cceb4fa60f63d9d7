"""The learned order of schedules: what measurements of other kernels add to the analytic estimate.

Sums of trees predict the logarithm of measured cycles by estimated ones, of `nest_features`. There
are several, the *members*, each taught without some of the kernels: where they disagree, little
like it was measured. They are taught by `python -m benchmarks.train`, with CatBoost [Prokhorenkova
et al. 2018]; what they say is computed here, without it.

    ranker = Ranker.load()
    found = [features(summarise(k, machine).regions, machine) for k in kernels]
    best = ranker.choice(np.array(found))       # kernels[0] has the default schedule
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rutc.base.record import record
from rutc.errors import InternalError
from rutc.tuner.search.nest_features import NAMES

LEARNED = Path(__file__).with_name("learned.npz")


@record(eq=False)
class Trees:
    """A sum of oblivious trees: all nodes at one depth of a tree ask the same question.

    Question d of tree t is whether feature `places[t, d]` is above `borders[t, d]`; its answer is
    bit d of the place among `leaves[t]`.
    """

    places: np.ndarray
    borders: np.ndarray
    leaves: np.ndarray
    bias: float

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """The sums for rows of features."""
        trees, depth = self.places.shape
        answers = features.astype(np.float32)[:, self.places] > self.borders
        leaf = answers @ (1 << np.arange(depth))
        found: np.ndarray = self.leaves[np.arange(trees), leaf].sum(1, dtype=np.float64)
        return found + self.bias


@record(eq=False)
class Ranker:
    """The members, and what they were taught."""

    members: tuple[Trees, ...]
    provenance: Mapping[str, Any]
    noise: float = 0.0
    """The spread where members agree."""
    scale: float = 1.0
    """How far off predictions are, by how much members disagree."""

    @staticmethod
    @functools.cache
    def load(path: Path = LEARNED) -> Ranker:
        """The one that rutc comes with, or of another file.

        Raises:
            InternalError: it was taught other features.
        """
        with np.load(path) as found:
            provenance = json.loads(found["provenance"].tobytes())
            noise, scale = found["spread"]
            arrays = (found[n] for n in ("places", "borders", "leaves", "bias"))
            members = tuple(Trees(p, b, x, float(c)) for p, b, x, c in zip(*arrays, strict=True))
        if provenance["features"] != list(NAMES):
            raise InternalError(f"{path} knows other features: run `python -m benchmarks.train`")
        return Ranker(members, provenance, float(noise), float(scale))

    def save(self, path: Path) -> None:
        """Writes a file, the same bytes each time."""
        text = json.dumps(self.provenance, separators=(",", ":"), sort_keys=True)
        places, borders, leaves = (
            np.stack([getattr(m, name) for m in self.members])
            for name in ("places", "borders", "leaves")
        )
        np.savez_compressed(
            path,
            provenance=np.frombuffer(text.encode(), np.uint8),
            places=places,
            borders=borders,
            leaves=leaves,
            bias=np.array([m.bias for m in self.members]),
            spread=np.array([self.noise, self.scale]),
        )

    def scores(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithms of the cycles of schedules of one kernel, and their spread.

        `features` are {schedules, features}, the default one first. The spread is about how far off
        the prediction is of how a schedule compares to that one. It is told by what members say of
        that: what they have in common makes no schedule better than another.
        """
        said = np.stack([m(features) for m in self.members])
        estimates = features[:, 0] * np.log(2)
        apart = (said - said[:, :1]).std(0)
        spread = np.hypot(self.noise, self.scale * apart)
        spread[0] = 0.0
        return estimates + said.mean(0), spread

    def choice(self, features: np.ndarray, caution: float | None = None) -> int:
        """The number of the best schedule: the first one, the default, unless others are better.

        They are better if their cycles and `caution` times their spread are fewer; as many times
        as the provenance says if it is not given.
        """
        cycles, spread = self.scores(features)
        times = float(self.provenance["caution"]) if caution is None else caution
        return int(np.argmin(cycles + times * spread))
