"""The bytes of one weight: an array or a buffer, or what makes them once they are written."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rutc.base.record import record

Buffer = bytes | bytearray | memoryview | npt.NDArray[np.generic]


@record
class Late:
    """`nbytes` bytes that `make` gives as often as they are asked for; they need no memory before.

    `forget` is called when they are written: what they were made of is not read soon again.
    """

    nbytes: int
    make: Callable[[], npt.NDArray[np.generic]]
    forget: Callable[[], None]


WeightData = Buffer | Late


def byte_count(data: WeightData) -> int:
    """How many bytes there are."""
    return data.nbytes if isinstance(data, np.ndarray | Late) else memoryview(data).nbytes


def byte_view(data: WeightData) -> memoryview:
    """The bytes, which are made now if they are late."""
    if isinstance(data, Late):
        data = data.make()
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")
