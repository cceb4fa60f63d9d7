"""Offsets of values in the arena: each at the lowest place that those before it leave.

Two ways that give the same offsets: `FewTogether` lists which others live while each value does,
`ManyTogether` asks a tree of spans of time what is taken, which takes about n log n time and memory
where each value meets all others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter


@dataclass
class Life:
    """The first and last time at which a value is needed."""

    first: int
    last: int


def met_by(lives: Sequence[Life]) -> list[int]:
    """For each life, how many others it meets."""
    firsts = sorted(x.first for x in lives)
    lasts = sorted(x.last for x in lives)
    return [bisect_right(firsts, x.last) - bisect_left(lasts, x.first) - 1 for x in lives]


def meetings_of(spans: Sequence[Life]) -> list[list[int]]:
    """For each life, the numbers of those that it meets."""
    meetings: list[list[int]] = [[] for _ in spans]
    living: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: spans[i].first):
        living = [j for j in living if spans[j].last >= spans[i].first]
        for j in living:
            meetings[i].append(j)
            meetings[j].append(i)
        living.append(i)
    return meetings


@dataclass
class FewTogether:
    """Values to be placed: the bytes of each, and which others live while it does."""

    bytes: Sequence[int]
    meetings: Sequence[Sequence[int]]

    def offsets(self, turns: Sequence[int]) -> tuple[list[int], int]:
        """(offsets, end) of the values, each at the lowest place that those before it leave."""
        found = [-1] * len(self.bytes)
        end = 0
        for i in turns:
            offset, size = 0, self.bytes[i]
            for before, j in sorted((found[j], j) for j in self.meetings[i] if found[j] >= 0):
                if offset + size <= before:
                    break
                offset = max(offset, before + self.bytes[j])
            found[i] = offset
            end = max(end, offset + size)
        return found, end


@dataclass
class ManyTogether:
    """Values to be placed, of which many live together: the bytes of each, and its life.

    For each span of time there is what is taken by values that live throughout (`whole`), and what
    is at any time (`some`). What is taken lies mostly side by side, so it is few runs of bytes.
    """

    bytes: Sequence[int]
    lives: Sequence[Life]

    def offsets(self, turns: Sequence[int]) -> tuple[list[int], int]:
        """(offsets, end) of the values, each at the lowest place that those before it leave."""
        times = Times(self.lives)
        whole, some = dict[int, _Runs](), dict[int, _Runs]()
        found = [-1] * len(self.bytes)
        end = 0
        for i in turns:
            size = self.bytes[i]
            spans, above = times.spans(self.lives[i])
            taken = [some[s] for s in spans if s in some]
            taken += [whole[s] for s in above if s in whole]
            offset = _lowest(taken, size)
            for s in spans:
                whole.setdefault(s, _Runs()).add(offset, offset + size)
            for s in (*spans, *above):
                some.setdefault(s, _Runs()).add(offset, offset + size)
            found[i] = offset
            end = max(end, offset + size)
        return found, end


class Slots:
    """Which numbered slots are taken at which times, by values of the `lives`."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self._times = Times(lives)
        self._whole: dict[int, int] = {}
        self._some: dict[int, int] = {}

    def taken(self, life: Life) -> int:
        """The slots that are taken at a time of one of the lives, as a sum of powers of two."""
        spans, above = self._times.spans(life)
        found = 0
        for s in spans:
            found |= self._some.get(s, 0)
        for s in above:
            found |= self._whole.get(s, 0)
        return found

    def take(self, slot: int, life: Life) -> None:
        """Take a slot throughout one of the lives."""
        spans, above = self._times.spans(life)
        for s in spans:
            self._whole[s] = self._whole.get(s, 0) | 1 << slot
        for s in (*spans, *above):
            self._some[s] = self._some.get(s, 0) | 1 << slot


class Times:
    """The times at which lives begin, as the leaves of a tree of spans of time.

    Two lives meet if they do at a time at which one of them begins.
    """

    def __init__(self, lives: Iterable[Life]) -> None:
        self._begins = sorted({x.first for x in lives})
        self._leaves = 1 << len(self._begins).bit_length()

    def spans(self, life: Life) -> tuple[list[int], list[int]]:
        """(the fewest spans that are a life's times, the spans that hold one of them)."""
        low = self._leaves + bisect_left(self._begins, life.first)
        high = self._leaves + bisect_right(self._begins, life.last)
        spans: list[int] = []
        above: dict[int, None] = {}
        while low < high:
            if low & 1:
                spans.append(low)
                low += 1
            if high & 1:
                high -= 1
                spans.append(high)
            low >>= 1
            high >>= 1
        for node in spans:
            while (node := node >> 1) and node not in above:
                above[node] = None
        return spans, list(above)


@dataclass
class _Runs:
    """Runs of bytes that are taken, in order; none begins where another ends."""

    runs: list[tuple[int, int]] = field(default_factory=list)

    def add(self, low: int, high: int) -> None:
        """Take these bytes as well, of which some may be taken."""
        runs = self.runs
        first = bisect_left(runs, low, key=itemgetter(1))
        last = bisect_right(runs, high, key=itemgetter(0))
        if first == last:
            runs.insert(first, (low, high))
        else:
            runs[first:last] = [(min(low, runs[first][0]), max(high, runs[last - 1][1]))]

    def past(self, low: int, size: int) -> int:
        """The lowest offset from `low` on at which so many bytes are free."""
        runs = self.runs
        for at in range(bisect_right(runs, low, key=itemgetter(1)), len(runs)):
            begin, end = runs[at]
            if low + size <= begin:
                break
            low = end
        return low


def _lowest(taken: Sequence[_Runs], size: int) -> int:
    """The lowest offset at which so many bytes are free of all that is taken."""
    offset, settled = 0, 0
    while settled < len(taken):
        for runs in taken:
            past = runs.past(offset, size)
            settled = settled + 1 if past == offset else 1
            offset = past
            if settled == len(taken):
                break
    return offset
