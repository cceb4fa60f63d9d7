"""The truth of a model for given inputs, as far as it is worth its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import count
from math import inf
from pathlib import Path

import numpy as np

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.quantised import rounds_each_row
from rutc.runtime import InferenceSession
from rutc.runtime.bundles import Bundle, bundles
from rutc.tensor_ir import DType, Graph
from rutc.verify.feeding.ports import graph_inputs, graph_outputs, ports_of
from rutc.verify.judging.compare import Array, Value
from rutc.verify.judging.judge import FEW_RUNS
from rutc.verify.judging.traits import Traits, output_traits
from rutc.verify.reference import comparable
from rutc.verify.truth.truth import TooMuchWork, Truth
from rutc.verify.truth.weight_noise import moved_weights, stored_type, with_made_weights


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

NOISE_TIMES, NOISE_LEAST_S = 3.0, 0.2
"""A run with noise may be so many times as much work as the truth, or so many seconds of it: noise
keeps a loop going for ever that ends where nothing changes any more."""

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shape of each input."""


class Oracle:
    """What float64 gives for a compiled model's inputs.

    Args:
        model: The ONNX file.
        session: What was compiled from it: how its inputs and outputs are made of tensors.
        graph: The model's import, if there is one; else it is imported, again where shapes change.
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
        self.stored = stored_type(session.manifest)
        self._given = None if graph is None else self._whole(graph)
        self._imported: tuple[Shapes, _WholeTruth] | None = None
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
        truth = self._truth(inputs)
        most_s = max(self._effort.most_s, THOROUGH.most_s if doubted else 0.0)
        left_s = max(0.0, most_s - self._spent_s)
        try:
            outputs = truth.outputs(inputs, None, left_s)
        except TooMuchWork as error:
            self.refused = (
                f"not computed, at least {error.args[0]:.2g} s of work; of {most_s:g} s granted "
                f"{left_s:.2g} s are left"
            )
            if most_s < THOROUGH.most_s:
                self.refused += "; `rutc verify` grants more"
            return None
        finally:
            work_s = truth.work_s
            self._spent_s += work_s
        self._last_s = work_s
        runs = int(NOISE_EFFORT * most_s / max(work_s, 1e-9))
        seeds = range(min(max(runs, FEW_RUNS), RUNS))
        limit_s = max(NOISE_TIMES * work_s, NOISE_LEAST_S)
        noisy = _noisy(truth, inputs, seeds, limit_s)
        return Answer(outputs, noisy, partial(self._flushed, truth, inputs, limit_s))

    def _flushed(
        self, truth: _WholeTruth, inputs: Mapping[str, Value], most_s: float
    ) -> Mapping[str, Array]:
        """What is true if subnormal numbers are zeros; nothing where the artifact keeps them."""
        if self._session.manifest.get("keep_subnormals"):
            return {}
        try:
            return truth.outputs(inputs, None, most_s, flushing=True)
        except (TooMuchWork, UserError):
            return {}

    def _truth(self, inputs: Mapping[str, Value]) -> _WholeTruth:
        """That of the import that was given, or of one for the shapes of these inputs."""
        if self._given is not None:
            return self._given
        # Lists stand for what the run tells the structure of.
        tensors = self._session.spread(inputs).items()
        shapes = {n: np.asarray(v).shape for n, v in tensors if not isinstance(v, list)}
        key = tuple(shapes.items())
        if self._imported is None or self._imported[0] != key:
            # One graph with its constants is enough to hold.
            self._imported = None
            held = {p.name: p.value for p in self._session.get_ports() if p.value is not None}
            sizes: dict[str, int] = {}
            for bundle in bundles(self._session.manifest, "inputs") or ():
                sizes.update(_numbers(bundle, shapes))
            graph = import_model(self._model, shapes=shapes, dims=sizes, values=held)
            self.traits = output_traits(graph)
            self._imported = key, self._whole(graph)
        return self._imported[1]

    def _whole(self, graph: Graph) -> _WholeTruth:
        return _WholeTruth(graph, rounds_each_row(self._model), self.stored)


def _noisy(
    truth: _WholeTruth, inputs: Mapping[str, Value], seeds: range, most_s: float
) -> Iterator[Mapping[str, Array]]:
    """Yields what runs with noise give; one that is more work than it may be is the last."""
    for seed in seeds:
        try:
            run = truth.outputs(inputs, seed, most_s)
        except TooMuchWork:
            return
        except UserError:
            # Noise can move a position or a size out of its range.
            continue
        yield run


class _WholeTruth(Truth):
    """The truth of whole inputs and outputs.

    Which tensors make up a sequence may differ from import to import, and from the artifact. Where
    that has values `stored` in a type of fewer bits, noise moves weights by roundings to it.
    """

    def __init__(self, graph: Graph, finer: frozenset[str], stored: DType | None) -> None:
        super().__init__(graph, finer)
        self._ports = ports_of(graph)
        self._stored = stored
        self._of = graph, finer

    @cached_property
    def _with_weights(self) -> Truth:
        """The truth of the graph whose weights noise moves."""
        graph, finer = self._of
        return Truth(with_made_weights(graph), finer)

    def outputs(
        self,
        inputs: Mapping[str, Value],
        seed: int | None,
        most_s: float,
        *,
        flushing: bool = False,
    ) -> dict[str, Array]:
        """Returns the outputs, or elements of sequences, by name; see `run`."""
        run: Truth = self
        if seed is not None and self._stored is not None:
            run = copy(self._with_weights)
            run.graph = moved_weights(run.graph, self._stored, seed)
        given = graph_inputs(self._ports, inputs)
        tensors = run.run(given, seed, most_s, flushing=flushing)
        whole = graph_outputs(self._ports, tensors)
        return dict(leaves({n: comparable(v) for n, v in whole.items()}))


def _numbers(bundle: Bundle, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """How many elements an input has, by the names of sizes, where its artifact fixes that."""
    match bundle.kind:
        case "sequence":
            return {bundle.name: len(bundle.parts)}
        case "optional":
            found = {f"{bundle.name}?": len(bundle.parts)}
            for part in bundle.parts:
                found.update(_numbers(part, shapes))
            return found
        case "map" if bundle.keys is None:
            return {bundle.name: shapes[bundle.ports[0]][0]}
        case _:
            return {}


class Answer:
    """The truth for some inputs by output (or element of a sequence), and if asked with noise."""

    def __init__(
        self,
        outputs: Mapping[str, Array],
        noisy: Iterator[Mapping[str, Value]],
        flush: Callable[[], Mapping[str, Array]] = dict,
    ) -> None:
        self.outputs = outputs
        self._coming = noisy
        self._made: list[Mapping[str, Value]] = []
        self._flush = flush
        self._flushed: Mapping[str, Array] | None = None

    def flushed(self, name: str) -> Array | None:
        """What an output would be if subnormal numbers were zeros; None where nobody knows."""
        if self._flushed is None:
            self._flushed = self._flush()
        return self._flushed.get(name)

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
