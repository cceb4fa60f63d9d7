"""Arrays of elements at which implementations differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rutc.verify.judging.tolerance import is_float

FLAVORS = ("small", "normal", "special")
"""Small whole numbers, whose sums are exact; normal ones; those with NaN, infinities and limits."""

NARROW = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}
"""Names of ml_dtypes by those in schemas, where they differ."""

LARGEST = 4
SPECIAL_SHARE = 0.15


def dtype_named(name: str) -> np.dtype:
    """The numpy dtype of a type as schemas spell it: `float`, `bfloat16`, `int4`."""
    known = {"float": "float32", "double": "float64", "string": "object"}
    if name in known or hasattr(np, name):
        return np.dtype(known.get(name, name))
    kind: np.dtype = np.dtype(getattr(ml_dtypes, NARROW.get(name, name)))
    return kind


def iinfo(dtype: np.dtype) -> Any:
    """The limits of an integer type, packed ones included."""
    return ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]


def finfo(dtype: np.dtype) -> Any:
    """The limits of a floating-point type, narrow ones included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def is_integer(dtype: np.dtype) -> bool:
    """Whether the elements are whole numbers, packed ones included."""
    return dtype.kind in "iu" or dtype.name in {"int4", "uint4", "int2", "uint2"}


def array_of(
    random: np.random.Generator,
    dtype: np.dtype,
    shape: Sequence[int],
    flavor: str,
    low: float | None = None,
    high: float | None = None,
) -> np.ndarray:
    """An array of a flavour, or of numbers in `low..high` where these are given."""
    shape = tuple(shape)
    if dtype.kind == "O":
        words = np.array(["", "a", "b", "ab", "Zoë", "0", "-1.5", "a b"], object)
        return random.choice(words, shape).astype(object).reshape(shape)
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    if low is not None or high is not None:
        least = -LARGEST if low is None else low
        most = least + 2 * LARGEST if high is None else high
        if is_float(dtype):
            return random.uniform(least, most, shape).astype(dtype)
        return random.integers(int(least), int(most), shape, endpoint=True).astype(dtype)
    if is_integer(dtype):
        return _whole(random, dtype, shape, flavor)
    if flavor == "small":
        return random.integers(-LARGEST, LARGEST, shape, endpoint=True).astype(dtype)
    found = random.standard_normal(shape) * random.choice([1.0, 1.0, 0.1, 10.0])
    made: np.ndarray = found.astype(dtype)
    if flavor == "special":
        specials = _specials(dtype)
        chosen = specials[random.integers(0, len(specials), shape)]
        made = np.where(random.random(shape) < SPECIAL_SHARE, chosen, made).astype(dtype)
    return made


def _whole(
    random: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], flavor: str
) -> np.ndarray:
    info = iinfo(dtype)
    low, high = max(-LARGEST, int(info.min)), min(LARGEST, int(info.max))
    made = random.integers(low, high, shape, endpoint=True).astype(dtype)
    if flavor == "small":
        return made
    limits = np.array([info.min, info.max, int(info.min) // 2, int(info.max) // 3], object)
    chosen = random.choice(limits, shape).astype(dtype)
    return np.asarray(np.where(random.random(shape) < SPECIAL_SHARE, chosen, made), dtype)


def _specials(dtype: np.dtype) -> np.ndarray:
    """Elements of a floating-point type; large ones leave room to be summed in any order."""
    info = finfo(dtype)
    large = float(info.max) ** 0.8
    numbers = [
        0.0,
        -0.0,
        float(info.smallest_normal),
        float(info.smallest_subnormal),
        -float(info.smallest_subnormal) * 3,
        large,
        -large,
        0.5,
        2.5,
    ]
    if dtype.name.startswith(("float16", "bfloat16", "float32", "float64")):
        numbers += [np.nan, np.inf, -np.inf]
    return np.array(numbers, np.float64).astype(dtype)
