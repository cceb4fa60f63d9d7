"""Numbers in f32 as sums of numbers in bf16: each part is what the ones before leave, rounded."""

from __future__ import annotations

import ml_dtypes
import numpy as np

LARGEST = 3.3e38
"""Numbers that are not larger have parts that are finite."""
BLOCK = 1 << 14
"""Elements that are taken apart at a time."""


def parts_of(array: np.ndarray, parts: int) -> tuple[np.ndarray, ...]:
    """The first parts, in bf16, of numbers in f32 that are not larger than `LARGEST`.

    Blocks stay in a cache: to make arrays in between takes ten times as long.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    found = [np.empty(flat.shape, np.uint16) for _ in range(parts)]
    for start in range(0, flat.size, BLOCK):
        rest = flat[start : start + BLOCK]
        for part in found:
            bits = rest.view(np.uint32)
            # To the nearest, ties to even.
            rounded = ((bits >> 16) & 1) + bits + 0x7FFF & 0xFFFF0000
            part[start : start + BLOCK] = rounded >> 16
            rest = rest - rounded.view(np.float32)
    return tuple(part.view(ml_dtypes.bfloat16).reshape(array.shape) for part in found)


def are_finite(array: np.ndarray) -> bool:
    """Whether all parts are."""
    return array.size == 0 or bool(array.max() <= LARGEST and array.min() >= -LARGEST)
