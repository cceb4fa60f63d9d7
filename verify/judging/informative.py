"""Outputs that say nothing: a wrong model would give the same."""

from __future__ import annotations

import numpy as np

from rutc.verify.judging.compare import Value
from rutc.verify.judging.tolerance import SATURATED, is_float


def says_nothing(value: Value) -> str:
    """Returns why an output says nothing about the model that made it; "" if it says something.

    [0, 0, 0] -> "all zeros"    [0.5, 0.5] -> "constant 0.5"    [1, 1e-9, 0] -> "saturated"

    Zeros and ones alone are labels. Float64 tells these from probabilities that float32 rounds.
    """
    if not isinstance(value, np.ndarray):
        return "" if value else "empty"
    if not value.size:
        return "empty"
    if value.dtype.kind in "OUSc":
        return ""
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "all NaN" if np.isnan(numbers).all() else "all infinite or NaN"
    if value.size > 1 and (numbers == numbers.flat[0]).all():
        return "all zeros" if not numbers.flat[0] else f"constant {numbers.flat[0]:.6g}"
    if not is_float(value.dtype):
        return ""
    if not finite.any():
        return "all zeros"
    sizes = np.abs(finite)
    beside = np.minimum(sizes, np.abs(sizes - 1))
    if (beside <= SATURATED).all() and beside.any() and (sizes > 0.5).any():
        return "saturated at 0 and 1"
    return ""
