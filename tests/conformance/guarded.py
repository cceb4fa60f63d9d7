"""Arrays between inaccessible pages: a kernel that reads or writes past their end crashes."""

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
PAGE = mmap.PAGESIZE
NO_ACCESS = 0


def guarded(shape: Sequence[int], dtype: np.dtype[np.generic]) -> np.ndarray:
    """An array of unspecified elements whose last byte is the last one that may be accessed.

    A page before its first page may not be accessed either.

    Raises:
        OSError: The pages cannot be protected.
    """
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if _libc.mprotect(start + page * PAGE, PAGE, NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    whole = np.frombuffer(memory, np.uint8)
    end = (pages + 1) * PAGE
    return whole[end - size : end].view(dtype).reshape(shape)


def guarded_copy(array: np.ndarray) -> np.ndarray:
    """A guarded array of the same elements; one of Python objects is returned as it is."""
    if array.dtype.hasobject:
        return array
    copy = guarded(array.shape, array.dtype)
    copy[...] = array
    return copy
