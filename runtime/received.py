"""Outputs of computed shapes as arrays in memory that the session hands over."""

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from rutc.runtime.c_interface import DLTensor

Keep = Callable[[DLTensor], bool]
"""Makes the caller the owner of the memory that is described; returns whether it is now."""

LEAST_KEPT_BYTES: Final = 1 << 16
"""To copy less takes no longer than to make an owner."""

_free: Final = ctypes.CDLL(None).free
_free.argtypes = (ctypes.c_void_p,)
_free.restype = None


class Memory:
    """Memory that a session has handed over; it is released with the last array in it."""

    __slots__ = ("__array_interface__", "__weakref__", "_free")

    def __init__(self, address: int, count: int) -> None:
        """Owns so many bytes."""
        self.__array_interface__: Final[dict[str, Any]] = {
            "version": 3,
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
        }
        # Modules may have lost their names where the interpreter ends.
        self._free: Final = _free

    def __del__(self) -> None:
        """Releases it."""
        self._free(self.__array_interface__["data"][0])

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Lets nobody copy it, as each of two would release it."""
        raise TypeError("memory of a session can be neither copied nor pickled")


def received(
    tensor: DLTensor, shape: tuple[int, ...], dtype: np.dtype[np.generic], keep: Keep
) -> npt.NDArray[np.generic] | None:
    """Returns a described tensor in its own memory, or None where it is to be copied instead."""
    count = math.prod(shape) * dtype.itemsize
    if count < LEAST_KEPT_BYTES or not keep(tensor):
        return None
    return np.asarray(Memory(tensor.data, count)).view(dtype).reshape(shape)
