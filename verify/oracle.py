"""The truth of a model for given inputs, as far as it is worth its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from math import inf
from pathlib import Path

import numpy as np

from rutc.importer import import_model
from rutc.record import record
from rutc.runtime import InferenceSession
from rutc.tensor_ir import Graph
from rutc.verify.compare import Array, Value
from rutc.verify.judge import FEW_RUNS
from rutc.verify.reference import comparable
from rutc.verify.traits import Traits, output_traits
from rutc.verify.truth import TooMuchWork, Truth


@record
class Effort:
    """The work that the truth may be, in seconds of a common machine (see `truth`).

    `most_s` is that of all inputs, `extra_s` what inputs of other magnitudes may bring it to.
    """

    most_s: float
    extra_s: float


BRIEF = Effort(2.5, 0.5)
"""In a compilation, of which it shall be a small part."""

THOROUGH = Effort(120.0, 20.0)
"""Where verification is what was asked for."""

RUNS = 8
"""Runs with noise, the most that are made."""

NOISE_EFFORT = 4.0
"""How many times as much work as the truth the runs with noise may be, beyond the first few."""


class Oracle:
    """What float64 gives for a compiled model's inputs.

    Args:
        model: The ONNX file.
        session: What was compiled from it: how its inputs and outputs are made of tensors.
        graph: The model's import, if there is one; else it is imported, once for each shape.
        effort: The work of all runs without noise.

    `refused` says why there was no truth the last time.
    """

    def __init__(
        self,
        model: Path,
        session: InferenceSession,
        graph: Graph | None = None,
        effort: Effort = THOROUGH,
    ) -> None:
        self._model = model
        self._session = session
        self._effort = effort
        self._spent_s = 0.0
        self._last_s = inf
        self.refused = ""
        self._given = None if graph is None else Truth(graph)
        self._imported: dict[tuple[tuple[str, tuple[int, ...]], ...], Truth] = {}
        self.traits: Mapping[str, Traits] = {} if graph is None else output_traits(graph)

    def traits_of(self, name: str) -> Traits:
        """What an output is made of, or an element of a sequence."""
        while name not in self.traits and name.endswith("]"):
            name = name.rpartition("[")[0]
        return self.traits.get(name, Traits(varies=True))

    @property
    def affords_more(self) -> bool:
        """Whether inputs of one more magnitude are within the effort."""
        return self._spent_s + self._last_s <= self._effort.extra_s

    def at(self, inputs: Mapping[str, Value], *, doubted: bool = False) -> Answer | None:
        """Returns the truth for inputs; None if it would be too much work.

        Args:
            inputs: By the names of the model's inputs.
            doubted: Whether a result is refused if nothing speaks for it: that is worth more work.

        Raises:
            UserError: the model cannot be evaluated on them.
        """
        feed = {n: v for n, v in self._session.spread(inputs).items() if isinstance(v, np.ndarray)}
        truth = self._truth(feed)
        most_s = max(self._effort.most_s, THOROUGH.most_s if doubted else 0.0)
        left_s = most_s - self._spent_s
        try:
            outputs = self._run(truth, feed, None, left_s)
        except TooMuchWork as error:
            self.refused = (
                f"not computed, about {error.args[0]:.2g} s of work; of the {most_s:g} s granted "
                f"{left_s:.2g} s are left"
            )
            if most_s < THOROUGH.most_s:
                self.refused += "; `rutc verify` grants more"
            return None
        self._last_s = truth.work_s
        self._spent_s += truth.work_s
        runs = int(NOISE_EFFORT * most_s / max(truth.work_s, 1e-9))
        seeds = range(min(max(runs, FEW_RUNS), RUNS))
        return Answer(outputs, (self._run(truth, feed, seed, inf) for seed in seeds))

    def _run(
        self, truth: Truth, feed: Mapping[str, Array], seed: int | None, most_s: float
    ) -> dict[str, Array]:
        ports = truth.run(feed, seed, most_s)
        whole = self._session.bundled_outputs(ports)
        return dict(leaves({n: comparable(v) for n, v in whole.items()}))

    def _truth(self, feed: Mapping[str, Array]) -> Truth:
        if self._given is not None:
            return self._given
        key = tuple((n, v.shape) for n, v in feed.items())
        if key not in self._imported:
            held = {p.name: p.value for p in self._session.get_ports() if p.value is not None}
            graph = import_model(self._model, shapes=dict(key), values=held)
            self.traits = output_traits(graph)
            self._imported[key] = Truth(graph)
        return self._imported[key]


class Answer:
    """The truth for some inputs by output (or element of a sequence), and if asked with noise."""

    def __init__(self, outputs: Mapping[str, Array], noisy: Iterator[Mapping[str, Value]]) -> None:
        self.outputs = outputs
        self._coming = noisy
        self._made: list[Mapping[str, Value]] = []

    def noise(self, name: str) -> Iterator[Array]:
        """Yields what runs with noise give for an output; each is made when first asked for."""
        for number in count():
            if number == len(self._made):
                run = next(self._coming, None)
                if run is None:
                    return
                self._made.append(run)
            found = self._made[number].get(name)
            if isinstance(found, np.ndarray):
                yield found


def leaves(values: Mapping[str, Value]) -> dict[str, Array]:
    """Returns all tensors by name, those of sequences as `name[0]`, as comparisons name them."""
    found: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            found[name] = value
        elif value is not None:
            found |= leaves({f"{name}[{k}]": item for k, item in enumerate(value)})
    return found
