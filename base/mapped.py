"""Arrays whose elements are bytes of a file, and the memory that these take once they were read."""

from __future__ import annotations

from mmap import MADV_DONTNEED, PAGESIZE, mmap

import numpy as np


def is_mapped(array: np.ndarray) -> bool:
    """Whether the elements are bytes of a file, which the system reads as they are asked for."""
    return _mapping(array) is not None


def drop_pages(array: np.ndarray) -> None:
    """Lets go of the pages of a mapped array, which are read again if somebody asks for elements.

    Nothing happens to an array in memory, or where elements can be written.
    """
    mapping = _mapping(array)
    if mapping is None or array.size == 0:
        return
    first = _address(np.frombuffer(mapping, np.uint8))
    low, high = (end - first for end in np.lib.array_utils.byte_bounds(array))
    low += -low % PAGESIZE
    if low < high:
        mapping.madvise(MADV_DONTNEED, low, high - low)


def _mapping(array: np.ndarray) -> mmap | None:
    """The read-only mapping that an array is part of."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap) and memoryview(owner).readonly else None


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
