"""What a fit of constants makes small: errors of estimates, and what misjudged schedules cost.

All kernels count alike, however many points they have. Of a kernel, its default schedule counts
more than others. Errors are logarithms, and large ones grow as little as a Cauchy distribution
says, so that no fit bends to what estimates cannot know. What estimates are asked for, too, is an
order: for each kernel its best point is compared with every other one, and a wrong order counts by
the time that it would lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks.fit import Timed

SOFT = 0.2
"""Errors of logarithms from which on they count less than their squares."""
DEFAULTS = 8.0
"""So many times other points do default schedules count."""
ORDER = 0.1
"""How much time lost counts beside the squares of errors."""
NEAR = 0.1
"""Estimates whose logarithms differ by less say little of an order."""
MOST_LOST = 3.0
"""Times the best point's time: a schedule that loses more is as bad."""


class Misjudged:
    """The errors of some points, as what a fit of least squares takes."""

    def __init__(self, points: Sequence[Timed]) -> None:
        """Weigh the points of kernels that are not held out."""
        number: dict[tuple[str, str], int] = {}
        kernel = np.array([number.setdefault(p.kernel, len(number)) for p in points])
        held = np.array([p.held_out for p in points])
        self._cycles = np.log([p.cycles for p in points])
        order = np.lexsort((self._cycles, kernel))
        first = order[np.unique(kernel[order], return_index=True)[1]]
        self._best = first[kernel]
        slower = self._cycles - self._cycles[self._best]
        default = np.array([p.number == 0 for p in points])
        weight = np.where(default, DEFAULTS, 1.0)
        weight = np.where(held, 0.0, weight / np.bincount(kernel, weight)[kernel])
        lost = np.where(held, 0.0, np.minimum(np.expm1(slower), MOST_LOST))
        self._weight = np.sqrt(weight)
        self._lost = np.sqrt(2 * ORDER * lost / np.bincount(kernel)[kernel])

    def __call__(self, logarithms: np.ndarray) -> np.ndarray:
        """Returns what is to be small, of the logarithms of all points' estimated cycles."""
        off = logarithms - self._cycles
        errors = np.sign(off) * SOFT * np.sqrt(np.log1p((off / SOFT) ** 2))
        behind = np.logaddexp(0.0, (logarithms[self._best] - logarithms) / NEAR)
        return np.concatenate([errors * self._weight, np.sqrt(behind) * self._lost])
