"""Outputs of a model in 8 bits: as near to ONNX Runtime's of the model itself as is asked for.

What a quantised model computes is another function. How far it may be from the model's is a budget
that the user sets, `--tolerance`: for outputs of floats the norm of the difference over the norm
of what ONNX Runtime computes, for labels and other integers the share that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rutc.verify.judging.compare import BUDGET, Array, OutputComparison
from rutc.verify.judging.tolerance import is_float


def budget_of(manifest: Mapping[str, object]) -> float | None:
    """The budget of an artifact; None for one that computes what its model states."""
    found = manifest.get("tolerance")
    return float(found) if isinstance(found, int | float) else None


def within_budget(
    compared: OutputComparison, ours: Array, reference: Array, budget: float
) -> OutputComparison:
    """Returns the comparison of an output, passed if it is within a budget."""
    if ours.shape != reference.shape:
        reason = f"its shape is {ours.shape}, ONNX Runtime's {reference.shape}"
        return replace(compared, passed=False, reason=reason)
    error = relative_error(ours, reference)
    found = replace(
        compared,
        passed=error <= budget,
        reason="",
        mismatches=0,
        error=error,
        judged=f"{BUDGET} {budget:g}",
    )
    if found.passed:
        return found
    what = "relative error" if is_float(ours.dtype) else "share of other elements"
    reason = (
        f"its {what} is {error:.3g}, the tolerance {budget:g}: calibrate on typical inputs "
        "(--calibrate DIR), leave sums in float32 that need it (--precision auto), or allow for "
        "more (--tolerance)"
    )
    return replace(found, reason=reason)


def relative_error(ours: Array, reference: Array) -> float:
    """Returns the norm of a difference by that of the reference, or the share of other elements.

    It is infinite where only one of two elements is finite, or both are not and differ, and where
    shapes differ, which data may tell.
    """
    if ours.shape != reference.shape:
        return float("inf")
    if not is_float(ours.dtype):
        return float(np.mean(ours != reference)) if ours.size else 0.0
    x, r = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(r)
    if (
        not np.array_equal(x[~finite], r[~finite], equal_nan=True)
        or not np.isfinite(x[finite]).all()
    ):
        return float("inf")
    norm = float(np.linalg.norm(r[finite]))
    apart = float(np.linalg.norm(x[finite] - r[finite]))
    return apart / norm if norm else (0.0 if not apart else float("inf"))
