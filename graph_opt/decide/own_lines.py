"""Places in the arena at which threads mostly write to lines that they had before.

Threads share most kernels so that each writes a contiguous part of a value's memory: of two, one
has the first half, the other the second. A line is near a thread that writes to it if that was the
last one to have it, and that depends on what lay there before:

    at the lowest place          middle over middle
    a  0 0 0 0 0 0 1 1 1 1 1 1   a  0 0 0 0 0 0 1 1 1 1 1 1
    b  0 0 0 1 1 1               b        0 0 0 1 1 1

On the left thread 1 takes all lines of b that it writes to from thread 0, on the right none. Values
are placed so as long as the arena grows by nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice

ALIGNMENT = 64
AROUND = 32
"""Values before and after one whose memory it may have, of which so many are looked at."""
MOST_TOGETHER = 256
"""Of values that live with more others none is moved: each has as many places, most of them of no
use, and the time to look at them grows with the square."""
ROUNDS = 16
"""Orders that values are placed in, at most."""


class OwnLines:
    """Values in the arena: their bytes, when each lives, and which others live while it does."""

    def __init__(
        self,
        sizes: Sequence[int],
        lives: Sequence[tuple[int, int]],
        meetings: Sequence[Sequence[int]],
        threads: int,
    ) -> None:
        """Note for all values, of first and last times, those just before and after them."""
        self.sizes, self.meetings, self.threads = sizes, meetings, threads
        self._before, self._after = _neighbours(lives, meetings)

    def placed(self, offsets: Sequence[int], turns: Sequence[int], limit: int) -> list[int]:
        """The places of all values below a limit, at which threads take least from each other.

        Values are placed in `turns`. One that finds no place is the first next time; where none of
        some orders suits, values stay where they are.
        """
        order = list(turns)
        if not self.taken(offsets):
            return list(offsets)
        for _ in range(ROUNDS):
            found, missing = self._settled(order, limit)
            if missing is None:
                return min(list(offsets), found, key=self.taken)
            if missing == order[0]:
                break
            order.remove(missing)
            order.insert(0, missing)
        return list(offsets)

    def taken(self, offsets: Sequence[int]) -> int:
        """The bytes that threads write to in a run, of many, which others had last."""
        numbers = range(len(self.sizes))
        return sum(self._foreign(i, offsets[i], offsets, self._before[i]) for i in numbers)

    def _settled(self, turns: Sequence[int], limit: int) -> tuple[list[int], int | None]:
        """(the place of each value, a value for which no place was left)."""
        found = [-1] * len(self.sizes)
        for i in turns:
            places = self._places(i, found, limit)
            if not places:
                return found, i
            found[i] = min(places, key=lambda at: (self._around(i, at, found), at))
        return found, None

    def _places(self, number: int, offsets: Sequence[int], limit: int) -> set[int]:
        """Where a value may lie: at the ends of what is free, or its middle over another one's."""
        size = self.sizes[number]
        near = {*self._before[number], *self._after[number]}
        middles = [
            (offsets[j] + (self.sizes[j] - size) // 2) // ALIGNMENT * ALIGNMENT
            for j in near
            if offsets[j] >= 0
        ]
        found: set[int] = set()
        for low, high in self._free(number, offsets, limit):
            if high - low >= size:
                found |= {min(max(at, low), high - size) for at in (low, high, *middles)}
        return found

    def _free(self, number: int, offsets: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
        """What the values that a value meets leave below a limit, from and to."""
        low = 0
        for at, j in sorted((offsets[j], j) for j in self.meetings[number] if offsets[j] >= 0):
            yield low, at
            low = max(low, at + self.sizes[j])
        yield low, limit

    def _around(self, number: int, at: int, offsets: Sequence[int]) -> int:
        """The bytes that a thread takes from others for a value at a place, and others for it."""
        before, after = self._before[number], self._after[number]
        return self._foreign(number, at, offsets, before) + self._foreign(
            number, at, offsets, after
        )

    def _foreign(self, number: int, at: int, offsets: Sequence[int], others: Sequence[int]) -> int:
        """The bytes of a value at a place that another thread has of the nearest value there."""
        found, left = 0, [(at, at + self.sizes[number])]
        for j in others:
            begin, end = offsets[j], offsets[j] + self.sizes[j]
            if begin < 0:
                continue
            rest: list[tuple[int, int]] = []
            for low, high in left:
                a, b = max(low, begin), min(high, end)
                if a >= b:
                    rest.append((low, high))
                    continue
                found += b - a - self._common(number, at, j, begin, (a, b))
                rest += [x for x in ((low, a), (b, high)) if x[0] < x[1]]
            left = rest
            if not left:
                break
        return found

    def _common(self, i: int, at: int, j: int, there: int, within: tuple[int, int]) -> int:
        """The bytes that the same thread has of two values."""
        found, n = 0, self.threads
        for t in range(n):
            low = max(within[0], at + self.sizes[i] * t // n, there + self.sizes[j] * t // n)
            high = (at + self.sizes[i] * (t + 1) // n, there + self.sizes[j] * (t + 1) // n)
            found += max(0, min(within[1], *high) - low)
        return found


def _neighbours(
    lives: Sequence[tuple[int, int]], meetings: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each value those that live before it, the last ones first, and those after it.

    Before a run there is another one: what lives at its end comes before what begins this one.
    """
    numbers = range(len(lives))
    by_end = sorted(numbers, key=lambda i: (lives[i][1], i))
    by_begin = sorted(numbers, key=lambda i: (lives[i][0], i))
    ends, begins = [lives[i][1] for i in by_end], [lives[i][0] for i in by_begin]
    before: list[list[int]] = []
    after: list[list[int]] = []
    for i, (first, last) in enumerate(lives):
        others = {i, *meetings[i]}
        at = bisect_left(ends, first)
        earlier = chain(reversed(by_end[:at]), reversed(by_end[at:]))
        before.append(list(islice((j for j in earlier if j not in others), AROUND)))
        at = bisect_right(begins, last)
        later = chain(by_begin[at:], by_begin[:at])
        after.append(list(islice((j for j in later if j not in others), AROUND)))
    return before, after
