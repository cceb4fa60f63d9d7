"""What a case may give in a precision of fewer bits: two graphs run by the interpreter, with noise.

| graph | noise | further off is |
|---|---|---|
| the plan's, with all types that are stored or multiplied | its own types' roundings | a kernel |
| the importer's, in which nothing is rounded | those of the precision, too | what is rounded |

Noise moves each input, constant and computed value, at random: by some roundings of its type
(`rutc.verify.judging.tolerance`), and in the importer's graph by what the artifact's manifest says
that is rounded. Subnormal numbers become zeros in every other run, as they may in the artifact.
In two of four runs of the importer's graph, sums that the artifact filters are NaN where a NaN, an
infinity or a number that overflows there may spoil them, as docs/filtering.md has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rutc.errors import InternalError, UserError
from rutc.tensor_ir import Const, DType, Graph, Input, Nest, Node
from rutc.tensor_ir.expr import coord_names, reads
from rutc.tensor_ir.graph import Call, outs, walk_nodes
from rutc.tensor_ir.interpreter.interpret import Run
from rutc.tensor_ir.interpreter.routines import ROUTINES
from rutc.verify.judging.tolerance import STORED, is_float, roundings, unit_roundoff
from rutc.verify.truth.weight_noise import moved_weights, stored_type, with_made_weights
from tests.fuzz.data import finfo

NOISY = 16
"""Runs with noise. A value next to the middle between two roundings goes either way in some."""
NUMBERS = 255
"""The steps of a range in 8 bits."""

SUBNORMAL = float(np.finfo(np.float32).smallest_normal)
"""Below it, numbers may count as zeros: of f32, bf16 and f64, not of what is computed in f32."""

Bounds = Mapping[str, tuple[np.ndarray, ...]]
"""Of each output what it is, and the least and the most that noise makes of it."""


@dataclass(frozen=True)
class Rounding:
    """What an artifact rounds: values to a float type, weights to an integer one, and to steps.

    A step is a part of the range that a value has on all data.
    """

    values: DType | None = None
    weights: DType | None = None
    steps: bool = False

    def __bool__(self) -> bool:
        return self != Rounding()


@dataclass(frozen=True)
class Filter:
    """A filter of the sums of some ONNX nodes, that make so many outputs of a tile at once.

    Inputs up to `largest` do not overflow; others spoil all outputs of their tiles.
    """

    origin: frozenset[str]
    outputs: int
    largest: float


def filters_of(manifest: Mapping[str, Any]) -> tuple[Filter, ...]:
    """What the manifest of an artifact says that it filters."""
    return tuple(
        Filter(frozenset(a["origin"]), max(a["outputs"]), a["largest"])
        for a in manifest.get("algorithms", ())
        if a["outputs"]
    )


def rounding_of(manifest: Mapping[str, Any]) -> Rounding:
    """What the manifest of an artifact says that it rounds."""
    stored = stored_type(manifest)
    steps = bool(manifest.get("eight_bits", {}).get("sums"))
    values = stored if stored is not None and stored.is_float else None
    weights = stored if values is None else None
    # Where sums are of bytes, factors of others may be of bf16.
    if steps:
        values, weights = DType.BF16, weights or DType.I8
    return Rounding(values, weights, steps)


def bounds(
    graph: Graph,
    sets: Sequence[Mapping[str, np.ndarray]],
    rounding: Rounding = Rounding(),
    filters: Sequence[Filter] = (),
) -> list[Bounds] | None:
    """What the outputs of a graph may be on each of some data; None if noise leaves its domain."""
    plain = [_Noisy(graph, feeds) for feeds in sets]
    ranges: dict[str, tuple[float, float]] = {}
    made: list[list[dict[str, np.ndarray]]] = []
    try:
        for run in plain:
            made.append([run.results()])
            if rounding.steps:
                _widen(ranges, run.values)
        folded = graph if rounding.weights is None else with_made_weights(graph)
        for seed in range(NOISY):
            moved = folded
            if rounding.weights is not None:
                moved = moved_weights(folded, rounding.weights, seed)
            for feeds, found in zip(sets, made, strict=True):
                found.append(_Noisy(moved, feeds, seed, rounding, ranges, filters).results())
    except (UserError, InternalError, IndexError):
        return None
    return [{name: _ends([r[name] for r in found]) for name in found[0]} for found in made]


def interpretable(graph: Graph) -> bool:
    """Whether the interpreter has all that a plan's graph calls: no tables of strings or boxes."""
    calls = (n.routine for n in walk_nodes(graph.nodes) if isinstance(n, Call))
    return all(routine in ROUTINES for routine in calls)


class _Noisy(Run):
    """A run that moves every value by roundings at random, or none without a seed."""

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, np.ndarray],
        seed: int | None = None,
        rounding: Rounding = Rounding(),
        ranges: Mapping[str, tuple[float, float]] | None = None,
        filters: Sequence[Filter] = (),
    ) -> None:
        super().__init__(graph, feeds, {})
        self.random = None if seed is None else np.random.default_rng(seed)
        self.flushes = seed is not None and seed % 2 == 1
        self.filters = filters if seed is not None and seed % 4 >= 2 else ()
        self.rounding = rounding
        self.ranges = ranges or {}

    def results(self) -> dict[str, np.ndarray]:
        """The outputs, axes in each output's order."""
        self.nodes(self.graph.nodes)
        found = {}
        for o in self.graph.outputs:
            dims = self.graph.values[o.value].dims
            found[o.name] = self.values[o.value].transpose([dims.index(d) for d in o.axes])
        return found

    def node(self, n: Node) -> Sequence[np.ndarray]:
        results = super().node(n)
        if isinstance(n, Nest) and n.is_sum and n.origin:
            for each in self.filters:
                if each.origin.issuperset(n.origin):
                    results = [self.spoilt(n, each, results[0])]
        if self.random is None or not isinstance(n, Input | Const | Nest):
            return results
        if isinstance(n, Nest) and n.is_view:
            return results
        products = 1
        if isinstance(n, Nest) and n.reducer is not None:
            products = prod(self.shape(n.bound))
        pairs = zip(outs(n), results, strict=True)
        return [self.moved(v.name, v.dtype, x, products) for v, x in pairs]

    def spoilt(self, n: Nest, by: Filter, made: np.ndarray) -> np.ndarray:
        """A sum over windows, NaN where a tile that an output may be in has an unsafe input."""
        read = [r for e in n.body for r in reads(e)]
        bound = set(n.bound)
        indices = [coord_names(c) for r in read for _, c in r.coords]
        windowed = {d for names in indices if names & bound for d in names - bound}
        own = self.values
        try:
            self.values = own | {r.value: _unsafe(own[r.value], by.largest) for r in read}
            (marked,) = super().node(n)
        finally:
            self.values = own
        spoils = np.isnan(marked)
        for d in sorted(windowed & set(n.out.dims)):
            spoils = _spread(spoils, n.out.dims.index(d), by.outputs - 1)
        return np.where(spoils, np.nan, made).astype(made.dtype)

    def moved(self, name: str, dtype: DType, x: np.ndarray, products: int) -> np.ndarray:
        """A value some roundings away."""
        if not is_float(x.dtype) or not x.size:
            return x
        assert self.random is not None
        with np.errstate(all="ignore"):
            real = x.astype(np.float64)
            u = unit_roundoff(x.dtype)
            narrow = x.dtype.itemsize < np.dtype(np.float32).itemsize
            times = STORED if narrow else roundings(products)
            # Sums of whole numbers are exact, as far as the type holds all of these.
            exact = (np.rint(real) == real) & (np.abs(real) * u <= 1 / 2)
            off = self.off(np.where(exact, 0.0, real * times * u))
            if dtype is DType.F32 and self.rounding.values is not None:
                kind = self.rounding.values.numpy
                exact = x.astype(kind).astype(np.float64) == real
                off = off + self.off(np.where(exact, 0.0, real * STORED * unit_roundoff(kind)))
            if dtype is DType.F32 and self.rounding.steps:
                low, high = self.ranges.get(name, (0.0, 0.0))
                half = np.full(x.shape, (high - low) / NUMBERS / 2)
                off = off + self.off(STORED * half)
            made = np.where(np.isfinite(real), real + off, real)
            least = float(finfo(x.dtype).smallest_normal)
            if self.flushes and least <= SUBNORMAL:
                made = np.where(np.abs(made) < least, 0.0, made)
            return made.astype(x.dtype)

    def off(self, most: np.ndarray) -> np.ndarray:
        """By how much to move numbers: a random share of the most, either way."""
        assert self.random is not None
        return most * (2 * self.random.random(most.shape) - 1)


def _unsafe(x: np.ndarray, largest: float) -> np.ndarray:
    """NaN where a number overflows in a filter, or is none; others as they are."""
    if not is_float(x.dtype):
        return x
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x.astype(np.float64)) <= largest, x, np.nan).astype(x.dtype)


def _spread(marks: np.ndarray, axis: int, reach: int) -> np.ndarray:
    """What is marked, and its neighbours along an axis up to a distance."""
    along = np.moveaxis(marks, axis, -1)
    made = along.copy()
    for k in range(1, min(reach, along.shape[-1] - 1) + 1):
        made[..., k:] |= along[..., :-k]
        made[..., :-k] |= along[..., k:]
    return np.moveaxis(made, -1, axis)


def _widen(ranges: dict[str, tuple[float, float]], values: Mapping[str, np.ndarray]) -> None:
    """Takes in the ranges of values, and 0; of those with infinities or NaN there is none."""
    for name, x in values.items():
        if x.dtype != np.float32 or not x.size or not np.isfinite(x).all():
            continue
        low, high = ranges.get(name, (0.0, 0.0))
        ranges[name] = min(low, float(x.min())), max(high, float(x.max()))


def _ends(runs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """A result, and the least and the most of it in all runs.

    Where it is NaN in some, finite or infinite in others, the least is none of what it is. All runs
    where these have other shapes, or are of text.
    """
    first = runs[0]
    if len({r.shape for r in runs}) > 1 or first.dtype.kind in "OUS":
        return tuple(runs)
    if not is_float(first.dtype):
        wide = [r.astype(np.int64) if first.dtype.itemsize < 8 else r for r in runs]
        low, high = np.minimum.reduce(wide), np.maximum.reduce(wide)
        return first, low.astype(first.dtype), high.astype(first.dtype)
    with np.errstate(all="ignore"):
        real = [r.astype(np.float64) for r in runs]
        low, high = np.minimum.reduce(real), np.maximum.reduce(real)
        kinds = [np.isnan(r) * 2.0 + np.where(np.isinf(r), np.sign(r) * 3, 0) for r in real]
        open_ones = np.any([k != kinds[0] for k in kinds], axis=0)
        low = np.where(open_ones, np.where(np.isnan(real[0]), 0.5, np.nan), low)
        high = np.where(open_ones, real[0], high)
        return first, low.astype(first.dtype), high.astype(first.dtype)
