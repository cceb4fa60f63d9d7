"""Memory in huge pages, where the system has them: as sessions of compiled models keep theirs."""

from __future__ import annotations

import mmap

import numpy as np

HUGE_PAGE_BYTES = 2 << 20
"""What one entry of the second-level page table maps."""


def in_huge_pages(size: int) -> np.ndarray:
    """Returns so many bytes, all 0, of which the first one begins a huge page."""
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE_BYTES)
    # Advice only: without huge pages the memory works the same.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, np.uint8)
    begin = -found.ctypes.data % HUGE_PAGE_BYTES
    return found[begin : begin + size]
