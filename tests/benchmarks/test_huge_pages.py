"""Memory in huge pages: begins at one, and is all the caller's."""

import numpy as np
import pytest

from benchmarks.in_process import in_huge_pages
from rutc.emit.linking.elf import HUGE_PAGE_BYTES


@pytest.mark.parametrize("size", [0, 1, 4097, HUGE_PAGE_BYTES - 1, 3 * HUGE_PAGE_BYTES + 5])
def test_memory_begins_at_a_huge_page_and_is_zero(size: int) -> None:
    found = in_huge_pages(size)
    assert found.size == size
    assert size == 0 or found.ctypes.data % HUGE_PAGE_BYTES == 0
    assert not found.any()
    found[:] = 7
    other = in_huge_pages(size)
    assert (found == 7).all()
    assert not other.any()
    assert not np.shares_memory(found, other)
