"""The ranges that a graph's values have on a model's inputs, by running it.

A library is made whose outputs are the values, and run on every case. Where results in other
precisions are to be compared, it gives the graph's own outputs as well. The range that a value is
taken to have, when it is stored in 8 bits, is

| by | |
|---|---|
| `minmax` | that of all its elements in all cases |
| `percentile` | the one outside of which lies one element in 10,000, half of them at either end |
| `mse` | the one with the least mean square error: of steps inside it, and of what lies outside |
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.driver.options import FP32, METHODS, Calibration
from rutc.driver.plans.planning import planned
from rutc.driver.timing.launch_times import written
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.quantise import MOST, Span
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import Output
from rutc.verify.feeding.dataset import read_sample, sample_paths
from rutc.verify.feeding.session_values import session_values
from rutc.verify.judging.compare import Value

BINS = 2048
"""Of the histogram of a value."""
OUTSIDE = 1e-4
"""The share of elements outside a range by `percentile`."""
SHRUNK = np.linspace(0.2, 1.0, 81)
"""Ranges that `mse` tries, by that of all elements."""
GENERATED = 16
"""Cases that are drawn at random where none are given."""
Case = Mapping[str, Value]
"""The inputs of a run."""


def spans(
    graph: Graph,
    values: Iterable[str],
    how: Calibration,
    on_progress: Progress = nobody,
    on_value: Callable[[str, np.ndarray], None] | None = None,
    on_outputs: Callable[[Case, list[Value]], None] | None = None,
    leeway: Leeway = USUAL_LEEWAY,
) -> tuple[dict[str, Span], str]:
    """Returns the ranges of some values of a graph, and on what they were found.

    Values that are ever infinite or NaN have none. `on_value` is given what they are in the first
    case, axes in the order of their dims, `on_outputs` each case with the graph's outputs.

    Raises:
        UserError: a case does not fit the model, or the model does not run on it.
    """
    names = tuple(dict.fromkeys(values))
    if not names and on_outputs is None:
        return {}, "nothing"
    own = () if on_outputs is None else graph.outputs
    with RunningLibrary(_showing(graph, names, own), how, leeway) as running:
        rounds = 1 if how.method == METHODS[0] else 2
        observed = [_Observed() for _ in names]
        for number in range(rounds):
            for done, case in enumerate(running.cases()):
                on_progress("calibrate", number * running.count + done, rounds * running.count)
                given = running.run(case)
                outputs, shown = given[: len(own)], given[len(own) :]
                if on_outputs is not None and number == 0:
                    on_outputs(case, outputs)
                for name, o, array in zip(names, observed, shown, strict=True):
                    o.see(np.asarray(array), whole=number == 0)
                    if on_value is not None and number == 0 and done == 0:
                        on_value(name, np.asarray(array))
    found = {name: o.span(how.method) for name, o in zip(names, observed, strict=True)}
    said = f"{running.count} {'generated' if how.data is None else 'given'} cases by {how.method}"
    return {name: span for name, span in found.items() if span is not None}, said


def first_case(
    graph: Graph, values: Iterable[str], how: Calibration
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what some values of a graph are in the first case, axes in the order of their dims.

    Raises:
        UserError: the case does not fit the model, or the model does not run on it.
    """
    names = tuple(dict.fromkeys(values))
    # Other algorithms take longer to compile than one run of them saves.
    with RunningLibrary(_showing(graph, names), how, Leeway(exact=True)) as running:
        arrays = running.run(next(running.cases()))
    yield from zip(names, map(np.asarray, arrays), strict=True)


def _showing(graph: Graph, names: tuple[str, ...], first: tuple[Output, ...] = ()) -> Graph:
    """A graph whose outputs are some of its own, the `first` ones, and these values."""
    kinds = graph.values
    own = (replace(o, name=f"output{i}") for i, o in enumerate(first))
    seen = (Output(f"value{i}", name, kinds[name].dims) for i, name in enumerate(names))
    return replace(graph, outputs=(*own, *seen))


class RunningLibrary:
    """A graph as a library of this machine, run on the cases of a calibration."""

    def __init__(
        self,
        graph: Graph,
        how: Calibration,
        leeway: Leeway = USUAL_LEEWAY,
        precision: str = FP32,
    ) -> None:
        """Compile it, its algorithms within the leeway, its values in types of a precision.

        A `with` runs it.

        Raises:
            UserError: there are no cases.
        """
        machine = native_target().machine
        found = versions(graph, machine, leeway)
        plan, earlier = planned(found, machine, precision)
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / "values.so"
        written(plan, machine, library, earlier=earlier)
        self._session = InferenceSession(library)
        self._paths = () if how.data is None else sample_paths(how.data)
        self.count = len(self._paths) or GENERATED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()
        self._folder.cleanup()

    def run(self, case: Case) -> list[Value]:
        """The outputs of a case.

        Raises:
            UserError: it does not fit the model, or the model does not run on it.
        """
        try:
            return list(self._session.run(None, case))
        except ModelError as error:
            raise UserError(
                f"the model does not run on the inputs of its calibration: {error}; fix the "
                "model's sizes, or narrow their ranges, with --dim, or give --calibrate FOLDER"
            ) from error

    def cases(self) -> Iterator[Case]:
        """Yields the inputs of each case.

        Raises:
            UserError: a case does not fit the model.
        """
        if not self._paths:
            yield from (session_values(self._session, (), seed) for seed in range(GENERATED))
        for path in self._paths:
            yield read_sample(path, self._session).inputs


class _Observed:
    """What is known of a value: its range, and how often it is in each bin of that."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._finite = True
        self._counts = np.zeros(BINS)
        self._energy, self._size, self._zeros = 0.0, 0, 0

    def see(self, array: np.ndarray, *, whole: bool) -> None:
        """Take a case into account: first all of them for the range, then all for the bins."""
        if not array.size or not self._finite:
            return
        if whole:
            self._finite = bool(np.isfinite(array).all())
            self._low = min(self._low, float(array.min()))
            self._high = max(self._high, float(array.max()))
            self._energy += float(np.square(array, dtype=np.float64).sum())
            self._size += array.size
            self._zeros += array.size - int(np.count_nonzero(array))
        elif self._high > self._low:
            edges = (self._low, self._high)
            self._counts += np.histogram(array.astype(np.float64), BINS, edges)[0]

    def span(self, method: str) -> Span | None:
        """The range; None if there is none."""
        if not self._finite or self._high < self._low:
            return None
        return self._with_lost(self._range(method))

    def _with_lost(self, span: Span) -> Span:
        """The range, with what elements lose by its steps: zeros lose nothing."""
        lost = self._size * self._inside(span)
        if self._counts.any():
            lost = self._error(span, self._middles)
        lost = max(lost - self._zeros * self._inside(span), 0.0)
        return replace(span, lost=lost / self._energy if self._energy else 0.0)

    @property
    def _middles(self) -> np.ndarray:
        """The middles of the bins."""
        width = (self._high - self._low) / BINS
        return self._low + width * (np.arange(BINS) + 0.5)

    def _range(self, method: str) -> Span:
        """The range without what is lost."""
        whole = Span(self._low, self._high)
        if method == "minmax" or not self._counts.any():
            return whole
        width = (self._high - self._low) / BINS
        middles = self._middles
        if method == "percentile":
            share = np.cumsum(self._counts) / self._counts.sum()
            first = int(np.searchsorted(share, OUTSIDE / 2, side="right"))
            last = int(np.searchsorted(share, 1 - OUTSIDE / 2))
            return Span(self._low + width * first, self._low + width * min(last + 1, BINS))
        tried = [Span(whole.low * r, whole.high * r) for r in SHRUNK]
        return min(tried, key=lambda s: self._error(s, middles))

    @staticmethod
    def _inside(span: Span) -> float:
        """The square error of an element inside of a range, whatever it is."""
        return span.step**2 / 12

    def _error(self, span: Span, middles: np.ndarray) -> float:
        """The square error of all elements in steps of a range."""
        low, high = -span.zero * span.step, (MOST - span.zero) * span.step
        outside = middles - np.clip(middles, low, high)
        inside = np.where(outside == 0, self._inside(span), 0.0)
        return float(self._counts @ (outside**2 + inside))
