"""Models of schedules that have not seen some families of kernels, for benchmarks of transfer.

Families are parted as `benchmarks.train` does to judge what is learned. A kernel is judged by what
was taught without its part, and without families that have the same kernel.
"""

import functools
from collections.abc import Iterable

import numpy as np

from benchmarks.fit import load
from benchmarks.kernel_times import digest_of
from benchmarks.train import FOLDS, Lessons, family, lessons, parts, taught
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner.search.ranker import Ranker


@functools.cache
def _lessons() -> tuple[Lessons, dict[str, frozenset[str]]]:
    """All that was measured, and the families in which each kernel is."""
    times = load(shared=True)
    found: dict[str, frozenset[str]] = {}
    for p in times.points:
        found[p.digest] = found.get(p.digest, frozenset()) | {family(p.source)}
    return lessons(times), found


def families_without(case: str, kernel: Kernel, constants: frozenset[str]) -> frozenset[str]:
    """Returns the families that a model of a case's kernel may not have seen."""
    data, known = _lessons()
    same = {family(case)} | known.get(digest_of(kernel, constants), frozenset())
    part = parts(data.families, FOLDS)
    held = set(part[np.isin(data.families, sorted(same))].tolist()) or {0}
    return frozenset(map(str, data.families[np.isin(part, sorted(held))])) | same


@functools.cache
def ranker_without(families: frozenset[str]) -> Ranker:
    """Returns what all other families teach."""
    data, _ = _lessons()
    return Ranker(taught(data, np.flatnonzero(~_is_of(data, families))), {})


def points_without(families: frozenset[str]) -> int:
    """Returns how many points others have."""
    return int((~_is_of(_lessons()[0], families)).sum())


def _is_of(data: Lessons, families: Iterable[str]) -> np.ndarray:
    return np.isin(data.families, sorted(families))
