"""Sequences of numbers as a trie in two arrays, which is walked by additions and look-ups.

A node is a place. The child of `s` by the number `c` is the place `base[s] + c`, if `check` names
`s` there [Aoe 1989]: children of different nodes lie among each other, so that there are hardly
more places than nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rutc.base.record import record

FEWEST = 64
"""Places that are tried at once for the children of a node, at first."""


@record
class Trie:
    """The arrays of a trie whose root is place 0, and a place `dead` that no sequence leads to.

    Sequences have numbers from 1 on; 0 leads from every place to `dead`, which has no children.
    `goal` is what the sequence that ends at a place stands for, or `none`.
    """

    base: np.ndarray
    check: np.ndarray
    goal: np.ndarray

    @property
    def dead(self) -> int:
        """The place where no sequence goes on."""
        return len(self.base) - 1

    @staticmethod
    def of(sequences: Mapping[tuple[int, ...], int], none: int) -> Trie:
        """The trie of sequences, each of which stands for a number."""
        children: dict[tuple[int, ...], list[int]] = {}
        for sequence in sequences:
            for k in range(len(sequence)):
                children.setdefault(sequence[:k], []).append(sequence[k])
        steps = {node: np.unique(numbers) for node, numbers in children.items()}
        bases = _bases({node: x for node, x in steps.items() if node})
        largest = max((int(x[-1]) for x in steps.values()), default=0)
        # The children of the root lie in front, where those of no other node do.
        bases = {(): 0} | {node: at + largest + 1 for node, at in bases.items()}
        size = max(bases.values()) + largest + 2
        found = Trie(
            np.zeros(size, np.int64), np.full(size, -1, np.int64), np.full(size, none, np.int64)
        )
        places: dict[tuple[int, ...], int] = {(): 0}
        for node in sorted(steps, key=len):
            at = places[node]
            found.base[at] = bases[node]
            for number in steps[node].tolist():
                child = places[*node, number] = bases[node] + number
                found.check[child] = at
        for sequence, goal in sequences.items():
            found.goal[places[sequence]] = goal
        return found


def _bases(steps: Mapping[tuple[int, ...], np.ndarray]) -> dict[tuple[int, ...], int]:
    """Where the children of each node lie, so that no two lie at one place: the first that fits.

    Nodes of many children are placed first, while there is room.
    """
    taken = np.zeros(0, bool)
    found: dict[tuple[int, ...], int] = {}
    first: dict[int, int] = {}
    for node in sorted(steps, key=lambda n: (-steps[n].size, n)):
        numbers = steps[node]
        # Nodes of as many children found no room before that.
        at = first.get(numbers.size, 0)
        count = FEWEST
        while True:
            room = at + count + int(numbers[-1]) + 1
            if room > taken.size:
                taken = np.concatenate((taken, np.zeros(room, bool)))
            tried = np.arange(at, at + count)
            fits = ~taken[tried[:, None] + numbers].any(axis=1)
            if fits.any():
                break
            at, count = at + count, 2 * count
        found[node] = at = int(tried[np.argmax(fits)])
        first[numbers.size] = at
        taken[at + numbers] = True
    return found
