"""Slices of an output along each of its axes: what has a scale of its own is judged on its own.

    {1, 84, 8400}: 84 slices along axis 1 (boxes up to 640, scores up to 1), 525 along axis 2

Every index along an axis is a slice. Along a long axis whose indices hold few elements each, as
in {1, 1000}, neighbours are taken together: a few roundings tell little of how far others may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from rutc.base.record import record

Numbers = npt.NDArray[np.float64]

FEW_SLICES = 32
"""Up to so many indices of an axis are slices of their own, however few elements they hold."""

FEW_ELEMENTS = 16
"""What a slice along a longer axis holds at least."""


@record
class Slice:
    """The indices `start` up to `stop` along an axis; without an axis, the whole."""

    axis: int | None = None
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        if self.axis is None:
            return "the whole"
        if self.stop == self.start + 1:
            return f"index {self.start} of axis {self.axis}"
        return f"indices {self.start} to {self.stop - 1} of axis {self.axis}"


@record
class Slices:
    """The slices along one axis, each from one start to the next; without an axis, the whole."""

    axis: int | None
    starts: tuple[int, ...]
    extent: int

    def largest(self, x: Numbers) -> Numbers:
        """The largest element of each slice."""
        if self.axis is None:
            return np.asarray(x.max(initial=0.0)).reshape(1)
        others = tuple(axis for axis in range(x.ndim) if axis != self.axis)
        along = x.max(axis=others, initial=0.0)
        return np.asarray(np.maximum.reduceat(along, self.starts))

    def __getitem__(self, number: int) -> Slice:
        if self.axis is None:
            return Slice()
        stop = [*self.starts[1:], self.extent][number]
        return Slice(self.axis, self.starts[number], stop)


def slices(shape: Sequence[int]) -> Iterator[Slices]:
    """Yields the whole, then the slices along each axis of more than one index."""
    yield Slices(None, (0,), 1)
    size = prod(shape)
    for axis, extent in enumerate(shape):
        if extent < 2 or not size:
            continue
        elements = size // extent
        together = 1 if extent <= FEW_SLICES else -(-FEW_ELEMENTS // elements)
        yield Slices(axis, tuple(range(0, extent, together)), extent)
