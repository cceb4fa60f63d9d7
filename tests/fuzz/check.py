"""Whether what an artifact gave is what the oracles say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rutc.driver.options import FP32
from rutc.verify.judging.budget import relative_error
from rutc.verify.judging.tolerance import Level, is_float, tolerance
from tests.fuzz.cases import Case
from tests.fuzz.child import INTERPRETED, Answer
from tests.fuzz.oracles import open_elements, reduction_of
from tests.fuzz.rounded import SUBNORMAL
from tests.fuzz.rules import Array

SPREAD = 4.0
"""How far a result may be away, in units of how far the oracles' runs are apart."""


@dataclass(frozen=True)
class Verdict:
    """What came of a case: "pass", "refused", "wrong", "error", "crash" or "hang", and why."""

    kind: str
    reason: str = ""

    @property
    def fine(self) -> bool:
        """Whether the case is no finding."""
        return self.kind in ("pass", "refused")


def judge(case: Case, answer: Answer) -> Verdict:
    """The verdict on an answer."""
    if answer.kind != "ran":
        return Verdict(answer.kind, f"[{answer.stage}] {answer.reason}")
    nodes = len(case.proto().graph.node)
    bounds = answer.bounds or [{} for _ in case.sets]
    for number, (data, results) in enumerate(zip(case.sets, answer.results, strict=True)):
        for way, outputs in results.items():
            for name, runs in data.expected.items():
                if name not in outputs:
                    if way == "guarded":
                        continue
                    return Verdict("wrong", f"[{way}, data {number}] {name} is missing")
                beside = bounds[number] if way != INTERPRETED else {}
                rounded = case.precision != FP32 and way != INTERPRETED
                summands = nodes * _longest(case, number)
                reason = differs(outputs[name], runs, None if rounded or beside else summands)
                for what, told in beside.items():
                    apart = differs(outputs[name], within(told[name], runs), summands)
                    reason = reason or (apart and f"beside the {what}'s graph {apart}")
                    if what == "model" and not reason and _sure(runs):
                        reason = beyond(answer.budget, outputs[name], told[name])
                if reason:
                    return Verdict("wrong", f"[{way}, data {number}] {name}: {reason}")
    return Verdict("pass")


def beyond(budget: float | None, got: np.ndarray, told: Sequence[np.ndarray]) -> str:
    """Why a result is not as near to what it was in float32 as was asked for; "" if it is.

    Subnormal numbers may be zeros, so nothing is asked for where these make it NaN or infinite, or
    of another shape, as data may tell that.
    """
    wanted = told[0]
    if budget is None or wanted.dtype.kind in "OUS":
        return ""
    if any(np.shape(x) != np.shape(wanted) for x in told[1:]):
        return ""
    got = np.asarray(got)
    if is_float(wanted.dtype):
        kinds = [np.isnan(x) * 2 + np.isinf(x) for x in (x.astype(np.float64) for x in told)]
        if any((k != kinds[0]).any() for k in kinds[1:]):
            return ""
        got, wanted = _without_subnormals(got), _without_subnormals(wanted)
    error = relative_error(got, wanted)
    return f"its relative error is {error:.3g}, more than {budget:g}" if error > budget else ""


def _without_subnormals(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x.astype(np.float64)) < SUBNORMAL, 0.0, x.astype(np.float64))


def _sure(runs: Sequence[Array]) -> bool:
    """Whether the oracles agree on which elements are finite, and on all of those of integers."""
    return all(np.shape(r) == np.shape(runs[0]) for r in runs) and not open_elements(runs).any()


def within(bounds: Sequence[np.ndarray], runs: Sequence[Array]) -> Sequence[Array]:
    """What an output may be: by a graph with noise, and by what the oracles' runs differ in."""
    first, value = runs[0], bounds[0]
    if any(r.shape != value.shape for r in runs) or value.dtype.kind in "OUS":
        return bounds if len({r.shape for r in runs}) == 1 else runs
    return (*bounds, *(_as_far(value, first, other) for other in runs[1:]))


def _as_far(value: np.ndarray, first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A value moved by as much as another run is off the first; none of it where that is open."""
    if not is_float(value.dtype):
        changed = np.asarray(other != first)
        unlike = np.where(other == value, first, other)
        return np.asarray(np.where(changed, unlike, value), value.dtype)
    v, a, b = (x.astype(np.float64) for x in (value, first, other))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, b - a)
        none = np.where(np.isnan(v), 0.5, np.nan)
        return np.where(np.isfinite(apart), v + apart, none).astype(value.dtype)


def _longest(case: Case, number: int) -> int:
    arrays = [a for a in case.sets[number].feeds.values() if isinstance(a, np.ndarray)]
    return max((reduction_of([a], np.zeros(1)) for a in arrays), default=1)


def differs(got: Any, runs: Sequence[Array], reduction: int | None) -> str:
    """Why a value is none that the oracles allow; "" if it is.

    Where `reduction` is None, of elements only the type counts, and how many there are.
    """
    want = runs[0]
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{got!r} is not a sequence of {len(want)}"
        if any(len(r) != len(want) for r in runs):
            return ""
        for k, element in enumerate(got):
            reason = differs(element, [r[k] for r in runs], reduction)
            if reason:
                return f"[{k}] {reason}"
        return ""
    got = np.asarray(got)
    if len({r.shape for r in runs}) > 1:
        return ""
    if got.shape != want.shape:
        return f"its shape is {got.shape}, not {want.shape}"
    if got.dtype != want.dtype and not {got.dtype.kind, want.dtype.kind} <= set("OUST"):
        return f"its type is {got.dtype}, not {want.dtype}"
    wrong = np.zeros(1, bool) if reduction is None else _wrong(got, runs, reduction)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    values = ", ".join(str(r[at]) for r in runs)
    return f"{np.count_nonzero(wrong)} of {got.size} differ; at {list(at)} {got[at]}, not {values}"


def _wrong(got: np.ndarray, runs: Sequence[np.ndarray], reduction: int) -> np.ndarray:
    """Where elements are none of those allowed."""
    want = runs[0]
    if not is_float(want.dtype) and want.dtype.kind != "c":
        unsure = np.zeros(want.shape, bool)
        near = np.zeros(want.shape, bool)
        for other in runs[1:]:
            step = want.dtype.itemsize == 1 and want.dtype.kind in "iu"
            next_ = np.abs(other.astype(int) - want.astype(int)) <= 1 if step else other == want
            near |= np.asarray(other != want) & next_
            unsure |= ~np.asarray(next_)
        if near.any():
            unsure |= near & (np.abs(got.astype(int) - want.astype(int)) <= 1)
        return np.asarray(got != want) & ~unsure
    x = got.astype(np.float64)
    all_runs = [r.astype(np.float64) for r in runs]
    r = all_runs[0]
    finite = np.isfinite(r)
    limit = tolerance(Level.KERNEL, want.dtype, reduction).allowed(np.where(finite, r, 0.0))
    right = (x == r) | (np.isnan(x) & np.isnan(r))
    with np.errstate(invalid="ignore", over="ignore"):
        for other in all_runs[1:]:
            apart = np.where(np.isfinite(other) & finite, np.abs(other - r), np.inf)
            apart = np.where((other == r) | (np.isnan(other) & np.isnan(r)), 0.0, apart)
            limit = limit + SPREAD * apart
        near = np.isfinite(x) & finite & (np.abs(x - r) <= limit)
    return np.asarray(~(right | near | np.isinf(limit)))
