"""Loads of neighbours that are shuffled into one vector, where lanes lie near each other."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.tensor_ir.machine import NEAR_STRIDES

MOST_LOADS = NEAR_STRIDES.stop - 1
"""Loads that are shuffled into one vector at most: beyond, an instruction gathers elements."""


def runs(offsets: Sequence[int], lanes: int) -> list[range]:
    """Runs of at most so many neighbours that hold all elements, as few as there are."""
    found: list[range] = []
    for offset in sorted(set(offsets)):
        if found and offset < found[-1].start + lanes:
            found[-1] = range(found[-1].start, offset + 1)
        else:
            found.append(range(offset, offset + 1))
    return found


def are_few(found: Sequence[range], offsets: Sequence[int]) -> bool:
    """Whether loads of runs take less than those of all elements by themselves."""
    return len(found) <= min(MOST_LOADS, max(1, len(set(offsets)) - 1))


def shuffled_runs(offsets: Sequence[int], lanes: int) -> list[range]:
    """The runs that are loaded for lanes at such distances; none where each is loaded by itself."""
    found = runs(offsets, lanes)
    return found if are_few(found, offsets) else []
