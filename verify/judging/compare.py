"""Compares outputs with their reference: what differs, by how much, and where.

NaN equals NaN and an infinity equals the same infinity; every other value is compared by the
tolerance of `rutc.verify.judging.tolerance`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rutc.base.record import record
from rutc.verify.judging.tolerance import EXACT, Level, Tolerance, is_float, tolerance

Array = npt.NDArray[np.generic]
Value = Array | Sequence["Value"] | None
"""What an ONNX output can be: a tensor, a sequence of values, or an empty optional."""


@record
class OutputComparison:
    """One output against its reference.

    `max_rel` and `max_ulp` count elements whose reference is large enough to have a meaningful
    relative error: at least `SIGNIFICANT` of the output's largest magnitude. `worst` is the index
    of the element that exceeds its allowed difference by most (or comes closest to it), with
    `ours` and `reference` its two values. `reason` says why an output that does not pass does not.
    An element of a sequence has the `output` of the model that it is in.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    passed: bool
    elements: int = 0
    mismatches: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    largest: float = 0.0
    worst: tuple[int, ...] = ()
    ours: str = ""
    reference: str = ""
    tolerance: Tolerance = EXACT
    reason: str = ""
    judged: str = "ONNX Runtime"
    error: float | None = None
    reference_error: float | None = None
    group: str = ""
    share: float = 0.0
    remark: str = ""
    case: str = ""
    contradicted: bool = False
    expected_error: float | None = None
    output: str = ""


BUDGET = "--tolerance"
"""What outputs are judged by that may be off by as much as was asked for (`budget`)."""
SIGNIFICANT = 1e-3
"""Share of an output's largest magnitude below which relative errors are not reported."""


def compare_outputs(
    ours: Mapping[str, Value], reference: Mapping[str, Value], level: Level
) -> tuple[OutputComparison, ...]:
    """Returns one comparison per tensor of `reference`, in its order; sequences count per element.

    An output of `reference` that `ours` lacks does not pass.
    """
    results: list[OutputComparison] = []
    for name, expected in reference.items():
        if name not in ours:
            results.append(_failure(name, expected, "this output is missing"))
        else:
            empty = (OutputComparison(name, "sequence", (), passed=True),)
            compared = compare_values(name, ours[name], expected, level) or empty
            results += [c if c.name == name else replace(c, output=name) for c in compared]
    return tuple(results)


def compare_values(
    name: str, ours: Value, reference: Value, level: Level
) -> tuple[OutputComparison, ...]:
    """Returns the comparisons of one output: one for a tensor, one per element of a sequence."""
    if reference is None or ours is None:
        if reference is None and ours is None:
            return (OutputComparison(name, "optional", (), passed=True),)
        which = "ours" if ours is None else "the reference"
        return (_failure(name, reference, f"{which} is an empty optional, the other is not"),)
    if isinstance(reference, np.ndarray) and isinstance(ours, np.ndarray):
        return (_compare_arrays(name, ours, reference, level),)
    if isinstance(reference, np.ndarray) or isinstance(ours, np.ndarray):
        return (_failure(name, reference, "one is a tensor, the other is a sequence"),)
    if len(reference) != len(ours):
        reason = f"a sequence of {len(ours)} values, the reference has {len(reference)}"
        return (_failure(name, reference, reason),)
    return tuple(
        comparison
        for index, (mine, theirs) in enumerate(zip(ours, reference, strict=True))
        for comparison in compare_values(f"{name}[{index}]", mine, theirs, level)
    )


def _failure(name: str, reference: Value, reason: str) -> OutputComparison:
    if isinstance(reference, np.ndarray):
        dtype, shape = str(reference.dtype), reference.shape
    else:
        dtype, shape = "optional" if reference is None else "sequence", ()
    return OutputComparison(name, dtype, shape, passed=False, reason=reason)


def _compare_arrays(name: str, ours: Array, reference: Array, level: Level) -> OutputComparison:
    if ours.shape != reference.shape:
        return _failure(name, reference, f"its shape is {ours.shape}, not {reference.shape}")
    textual = reference.dtype.kind in "OUST"
    if ours.dtype != reference.dtype and not (textual and ours.dtype.kind in "OUST"):
        return _failure(name, reference, f"its dtype is {ours.dtype}, not {reference.dtype}")
    if textual:
        return _compare_exactly(name, ours, reference)
    limit = tolerance(level, reference.dtype)
    if not is_float(reference.dtype) and reference.dtype.kind != "c" and limit == EXACT:
        return _compare_exactly(name, ours, reference)
    if reference.dtype.kind == "c":
        return _compare_numbers(name, real_parts(ours), real_parts(reference), limit)
    return _compare_numbers(name, ours, reference, limit)


def real_parts(array: Array) -> Array:
    """Returns complex {...} as real {..., 2}."""
    part = np.float32 if array.dtype.itemsize == 8 else np.float64
    return np.ascontiguousarray(array).view(part).reshape((*array.shape, 2))


def _compare_exactly(name: str, ours: Array, reference: Array) -> OutputComparison:
    different = np.asarray(ours != reference)
    count = int(np.count_nonzero(different))
    worst = _first(different) if count else ()
    farthest, largest = 0.0, 0.0
    if reference.dtype.kind in "biu":
        wide = np.abs(ours[different].astype(object) - reference[different].astype(object))
        farthest = float(max(wide, default=0))
        largest = float(np.abs(reference.astype(np.float64)).max(initial=0.0))
    return OutputComparison(
        name,
        str(reference.dtype),
        reference.shape,
        passed=count == 0,
        elements=reference.size,
        mismatches=count,
        max_abs=farthest,
        largest=largest,
        worst=worst,
        ours=str(ours[worst]) if count else "",
        reference=str(reference[worst]) if count else "",
        reason=f"{count} of {reference.size} elements differ, none may" if count else "",
    )


def _first(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _compare_numbers(
    name: str, ours: Array, reference: Array, limit: Tolerance
) -> OutputComparison:
    x = ours.astype(np.float64)
    r = reference.astype(np.float64)
    known = np.isfinite(r)
    magnitude = np.abs(np.where(known, r, 0.0))
    difference = distance(x, r)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = difference - limit.allowed(magnitude)
    failing = excess > 0
    count = int(np.count_nonzero(failing))
    largest = float(magnitude.max(initial=0.0))
    significant = (magnitude >= SIGNIFICANT * largest) & (magnitude > 0) & np.isfinite(x)
    relative = difference[significant] / magnitude[significant]
    worst = _first(excess == excess.max()) if excess.size else ()
    return OutputComparison(
        name,
        str(reference.dtype),
        reference.shape,
        passed=count == 0,
        elements=r.size,
        mismatches=count,
        max_abs=float(difference.max()) if r.size else 0.0,
        max_rel=float(relative.max()) if relative.size else 0.0,
        max_ulp=_max_ulp(ours[significant], reference[significant]),
        largest=largest,
        worst=worst,
        ours=str(ours[worst]) if r.size else "",
        reference=str(reference[worst]) if r.size else "",
        tolerance=limit,
        reason=_reason(x, r, failing, worst, difference, limit) if count else "",
    )


def distance(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns |a - b|; 0 of two NaN or equal infinities, infinite where one is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.asarray(np.abs(a - b))  # an array of one number is one, too
    unknown = ~np.isfinite(apart)
    if unknown.any():
        x, y = a[unknown], b[unknown]
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        apart[unknown] = np.where(same, 0.0, np.inf)
    return apart


def _reason(
    x: npt.NDArray[np.float64],
    r: npt.NDArray[np.float64],
    failing: npt.NDArray[np.bool_],
    worst: tuple[int, ...],
    difference: npt.NDArray[np.float64],
    limit: Tolerance,
) -> str:
    count = int(np.count_nonzero(failing))
    lost = int(np.count_nonzero(failing & ~np.isfinite(x) & np.isfinite(r)))
    allowed = limit.allowed(np.where(np.isfinite(r), r, 0.0))
    text = (
        f"{count} of {r.size} elements differ by more than allowed; at {list(worst)} "
        f"|difference| {difference[worst]:.3g} > {allowed[worst]:.3g}"
    )
    return f"{text}; {lost} are not finite" if lost else text


def _max_ulp(ours: Array, reference: Array) -> int:
    """Returns the largest distance in units of the last place of the dtype; 0 for integers."""
    if not is_float(ours.dtype) or not ours.size:
        return 0
    a, b = _ordered(ours), _ordered(reference)
    return int((np.maximum(a, b) - np.minimum(a, b)).max())


def _ordered(array: Array) -> npt.NDArray[np.uint64]:
    """Returns integers in the order of the floats: neighbouring floats differ by one."""
    width = array.dtype.itemsize
    unsigned = np.dtype(f"u{width}").type
    bits = np.ascontiguousarray(array).view(unsigned)
    sign = unsigned(1 << (8 * width - 1))
    ordered = np.where(bits & sign, ~bits + unsigned(1), bits | sign)
    return np.asarray(ordered, np.uint64)
