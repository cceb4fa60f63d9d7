"""Numpy's library of linear algebra: how many threads a product of matrices may take."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from numpy.linalg import _umath_linalg

SPELLINGS = (
    "scipy_openblas_{}_num_threads64_",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
"""The functions of OpenBLAS, which numpy's wheels and most systems' packages have."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Lets numpy multiply matrices on the thread that asks for it, here and in forked processes.

    OpenBLAS otherwise wakes a thread for each CPU from matrices of about 100 x 100 on, and all of
    them wait in loops: where several processes do that at once, or one that may run on a single
    CPU, a product takes thousands of times as long, and whatever is timed beside them is disturbed.
    Other libraries are left as they are.
    """
    library = ctypes.CDLL(_umath_linalg.__file__)
    for spelling in SPELLINGS:
        try:
            threads = getattr(library, spelling.format("get"))
            set_threads = getattr(library, spelling.format("set"))
        except AttributeError:
            continue
        usual = threads()
        set_threads(1)
        try:
            yield
        finally:
            set_threads(usual)
        return
    yield
