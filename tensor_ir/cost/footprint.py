"""Which bytes loops touch, and which of them have to come from each level of memory.

What a loop touches again is still in a cache if all that an iteration touches fits there. So of
the loops around an access, the outermost one whose iterations fit brings every line once, each
time that it runs [Wolf & Lam 1991].

Lines that lie so far apart that few sets of the first cache have all of them wait for each other
there, where they are more than these sets hold: a set makes room for one line at a time.

    256 rows, 1024 bytes apart, a line of each     4 of 64 sets, which hold 48 lines of 12 ways
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod

from rutc.base.record import record
from rutc.tensor_ir.cost.addresses import Touch
from rutc.tensor_ir.cost.frames import Frames, Role
from rutc.tensor_ir.cost.strides import Step
from rutc.tensor_ir.machine import Machine

Place = tuple[int, int]
"""An access, and the place of a loop among those around it."""


@record
class Print:
    """What an access touches inside of some loops: bytes of lines, and in what share of all sets.

    It is made of pieces of `span` bytes without holes, `whole` ones in lines, which the loops of
    `steps` lay out, those `apart` with holes between.
    """

    lines: float
    sets: float
    span: float
    whole: float
    steps: tuple[Step, ...]
    apart: tuple[Step, ...]


@record
class Lost:
    """Bytes of lines that come again, and those that wait as if they were all of one set."""

    again: float
    waiting: float


@record
class Passing:
    """Bytes of an access that come from each level of memory, and go there; see `Lost`."""

    read: tuple[float, ...]
    written: tuple[float, ...]
    waiting: float


Arms = tuple[tuple[int, ...], tuple[int, ...]]
Groups = dict[object, list[tuple[int, Print]]]
"""Accesses that move alike, with the places where they begin."""
SHARES = (0.5, 1.0)
"""Multiples of a cache that loops are held against: caches lose and keep more than they have room
for, by chance."""


class Footprints:
    """The bytes that each loop of a kernel touches, and what passes between the levels."""

    def __init__(
        self, touches: Sequence[Touch], sizes: Mapping[str, float], machine: Machine
    ) -> None:
        """Find the footprints of all loops; `sizes` are the buffers' bytes."""
        self.machine = machine
        self.sizes = sizes
        self.touches = touches
        around = {id(t.frames): t.frames for t in touches}
        found = {number: levels(frames) for number, frames in around.items()}
        self.inner: list[list[tuple[tuple[int, ...], int]]] = [found[id(t.frames)] for t in touches]
        """Of each access, the loops around it: those that go on, and where they begin."""
        self.own: list[list[Print]] = []
        alike: dict[object, list[Print]] = {}
        for t, inner in zip(touches, self.inner, strict=True):
            same = id(t.frames), t.bytes, t.steps, t.chosen
            if same not in alike:
                alike[same] = [footprint(t, at, machine) for _, at in inner]
            self.own.append(alike[same])
        self._passing: dict[object, Passing] = {}
        self._arms: dict[tuple[int, int], Arms] = {}
        """See `arms_of`: those of the frames of many accesses, which are held so long."""
        self._parts: dict[tuple[int, ...], dict[str, Groups]] = {}
        """Loop and buffer -> what an iteration of the loop touches of it."""
        for n, t in enumerate(touches):
            for (key, at), own in zip(self.inner[n], self.own[n], strict=True):
                group = *self._arms_of(t.frames, at), t.steps[at:]
                buffers = self._parts.setdefault(key, {}).setdefault(t.buffer, {})
                buffers.setdefault(group, []).append((t.start, own))
        self._loops: dict[tuple[tuple[int, ...], str], dict[int, list[Place]]] = {}
        """Loop and buffer -> the loops in every iteration of it, with what is in their frames.

        The outer loop has another place there in arms for which others around it do not go on.
        """
        self._lines: dict[tuple[tuple[int, ...], str], dict[int, float]] = {}
        for n, t in enumerate(touches):
            for place, (key, at) in enumerate(self.inner[n]):
                if t.frames[at:] and t.frames[at].role is not Role.ARM:
                    loops = self._loops.setdefault((key, t.buffer), {})
                    loops.setdefault(t.frames[at].number, []).append((n, place))
        self.buffers = self._parts.get((), {})
        self.total = {key: self._total(buffers) for key, buffers in self._parts.items()}
        """What an iteration touches inside of these loops: see `footprint`."""

    def _arms_of(self, frames: Frames, at: int) -> Arms:
        same = id(frames), at
        if same not in self._arms:
            self._arms[same] = arms_of(frames, at)
        return self._arms[same]

    def bytes_of(self, buffer: str) -> float:
        """The bytes of a buffer that the kernel touches."""
        found = sum(map(_joined, self.buffers.get(buffer, {}).values()))
        return min(found, self.sizes[buffer])

    def _total(self, buffers: Mapping[str, Groups]) -> float:
        """What accesses touch together: of arms of which an iteration has one, the most."""
        lines = 0.0
        for name, groups in buffers.items():
            arms: dict[object, dict[object, Groups]] = {}
            for key, found in groups.items():
                assert isinstance(key, tuple)
                one, all_, _ = key
                arms.setdefault(one, {}).setdefault(all_, {})[key] = found
            each = (_together(list(x.values()), self.machine.line_bytes) for x in arms.values())
            lines += min(max(each), self.sizes[name])
        return lines

    def passing(self, number: int, caches: tuple[int, ...]) -> Passing:
        """What of an access passes between caches, the first one first, and waits for room there.

        It is that of accesses elsewhere in the same buffer that the same loops move alike.
        """
        t = self.touches[number]
        key = t.buffer, t.is_store, id(t.frames), t.steps, caches
        if key not in self._passing:
            self._passing[key] = self.found_passing(number, caches)
        return self._passing[key]

    def found_passing(self, number: int, caches: tuple[int, ...]) -> Passing:
        """See `passing`: what nothing is remembered of."""
        lost = self._lost(number)
        moved = [self.moved(number, cache) for cache in caches]
        # Lines that the first cache loses come again, from the next one.
        moved[0] = max(moved[0], lost.again)
        if not self.touches[number].is_store:
            return Passing(tuple(moved), (0.0,) * len(caches), lost.waiting)
        # What comes again is a line that was not full yet: it is read as well.
        once = self._again(number, 1)
        return Passing(tuple(max(x - once, 0.0) for x in moved), tuple(moved), lost.waiting)

    def moved(self, number: int, cache: int) -> float:
        """Bytes that an access brings into a cache, where the kernel ran just before."""
        inner, total = self.inner[number], self.total
        found = 0.0
        for share in SHARES:
            room = share * cache
            fits = next((k for k, (key, _) in enumerate(inner) if total[key] <= room), None)
            if not self._there_already(number, fits):
                found += self._again(number, fits)
        return found / len(SHARES)

    def _there_already(self, number: int, fits: int | None) -> bool:
        """Whether an iteration that fits has in it another loop before that reads the same bytes.

        It has as many bytes of the buffer as the one that is around the access. What is stored is
        counted as often as it is.
        """
        t = self.touches[number]
        if not fits or t.is_store:
            return False
        outer, at = self.inner[number][fits]
        loops = self._loops.get((outer, t.buffer), {})
        if len(loops) < 2 or not t.frames[at:] or t.frames[at].number not in loops:
            return False
        if (outer, t.buffer) not in self._lines:
            self._lines[outer, t.buffer] = {x: self._lines_of(own) for x, own in loops.items()}
        lines, own = self._lines[outer, t.buffer], t.frames[at].number
        return any(lines[x] >= lines[own] for x in loops if loops[x][0] < loops[own][0])

    def _lines_of(self, accesses: Sequence[Place]) -> float:
        """The bytes of lines of a buffer that accesses touch in all iterations of a loop."""
        groups: Groups = {}
        for n, place in accesses:
            t, k = self.touches[n], max(place - 1, 0)
            arms = tuple(f.number for f in t.frames if f.role is Role.ARM)
            group = groups.setdefault((arms, t.steps[self.inner[n][k][1] :]), [])
            group.append((t.start, self.own[n][k]))
        return sum(map(_joined, groups.values()))

    def _lost(self, number: int) -> Lost:
        """What an access loses in its own sets of the first cache, where these have no room for it.

        Where an iteration touches more lines than its sets hold, what comes finds them full of what
        came just before: all that is stored, and all that is loaded if it is half as much again.

        A set makes room for one line at a time: as many at a time have room as the iteration has
        sets, or iterations that are loaded ahead of one another. Stores are in order.
        """
        machine, line = self.machine, self.machine.line_bytes
        is_store, ahead = self.touches[number].is_store, machine.coefficients.counting.ahead
        again = waiting = 0.0
        for k in range(len(self.own[number])):
            lines, share = self._with_other_arms(number, k)
            beyond = lines / (share * machine.l1) - 1
            if share == 1 or beyond <= 0:
                continue
            lost = self._again(number, k + 1)
            own = lost * line / (share * machine.l1_way_bytes)
            if not is_store:
                part = min(2 * beyond, 1.0)
                lost, own = part * lost, part * own * min(lines / line / ahead, 1.0)
            again, waiting = max(again, lost), max(waiting, own)
        return Lost(again, waiting)

    def _with_other_arms(self, number: int, k: int) -> tuple[float, float]:
        """The bytes of lines that an access touches in a loop with those of the loop's other arms.

        And the share of all sets that they lie in. Arms of a loop that is split go on where another
        ends, in the same sets: of each other arm the access of most lines counts, but not where it
        begins at the same place, which the loop does not move.
        """
        t, own = self.touches[number], self.own[number][k]
        key, at = self.inner[number][k]
        one, all_ = self._arms_of(t.frames, at)
        groups = self._parts[key][t.buffer]
        first = groups[one, all_, t.steps[at:]][0][0]
        others: dict[object, Print] = {}
        for group, ((start, x), *_) in groups.items():
            assert isinstance(group, tuple)
            also, arms, _ = group
            if all_ and also == one and arms != all_ and start != first:
                others[arms] = max(others.get(arms, x), x, key=lambda p: p.lines)
        if not others:
            return own.lines, own.sets
        found, way = [own, *others.values()], self.machine.l1_way_bytes
        # A single piece lies in sets of its own: of all that go on from there, it is a part.
        single = (min(x.whole / way, 1.0) if x.lines == x.whole else x.sets for x in found)
        return sum(x.lines for x in found), max(single)

    def _again(self, number: int, fits: int | None) -> float:
        """Bytes that come where loops from this one on keep what an iteration touches."""
        if fits == 0:
            return 0.0
        t, inner = self.touches[number], self.inner[number]
        k = len(inner) - 1 if fits is None else fits - 1
        at = inner[k][1]
        again = prod(f.times if f.role is Role.ARM else f.trip for f in t.frames[:at])
        return min(self.own[number][k].lines, self.sizes[t.buffer]) * again * self._taken(t, at)

    def _taken(self, t: Touch, at: int) -> float:
        """How much of what an access touches in the frames from `at` on their arms let it touch.

        An arm is taken at some time where loops that move nothing come by it often enough.
        """
        taken = still = 1.0
        for f, steps in zip(t.frames[at:], t.steps[at:], strict=True):
            if f.role is Role.ARM:
                taken *= min(f.times * still, 1.0)
            elif f.role is Role.LOOP and steps == ():
                still *= f.trip
        return taken


def arms_of(frames: Frames, at: int) -> Arms:
    """The arms around an access of which the frames from `at` on take one, and those they all take.

    A loop among these frames that is split takes all of its arms, one after the other.
    """
    loops = {f.number for f in frames[at:] if f.role is not Role.ARM}
    arms = [f for f in frames if f.role is Role.ARM]
    one = tuple(f.number for f in arms if f.split not in loops)
    return one, tuple(f.number for f in arms if f.split in loops)


def levels(frames: Frames) -> list[tuple[tuple[int, ...], int]]:
    """The loops of the frames from the outermost, none of them first: what tells each, its place.

    The last one is the innermost loop's iteration.
    """
    found: list[tuple[tuple[int, ...], int]] = [((), 0)]
    for at, f in enumerate(frames):
        if f.role is Role.LOOP and f.trip > 1:
            found.append((tuple(x.number for x in frames[: at + 1] if x.role is Role.LOOP), at + 1))
    return found


def footprint(t: Touch, at: int, machine: Machine) -> Print:
    """What an access touches in the frames from `at` on."""
    line = machine.line_bytes
    moving = list(zip(t.frames[at:], t.steps[at:], strict=True))
    anywhere = prod(f.trip for f, own in moving if own is None)
    found = [(abs(s), n) for _, own in moving for s, n in own or () if s and n > 1]
    merged = _merged(found)
    span, apart = _pieces(t.bytes, merged, line)
    whole = max(-(-span // line), 1.0) * line
    lines = anywhere * prod(n for _, n in apart) * whole
    if anywhere > 1 and t.chosen is not None:
        # Data may choose a place again, but none outside of the dims along which they choose.
        reach, places = _pieces(t.bytes, _merged([*found, *t.chosen]), line)
        lines = min(lines, prod(n for _, n in places) * max(-(-reach // line), 1.0) * line)
    way = machine.l1_way_bytes
    sets = 1.0 if anywhere > 1 else _share_of_sets(whole, tuple(apart), way, line)
    return Print(lines, sets, span, whole, tuple(merged), tuple(apart))


def _merged(steps: Iterable[Step]) -> list[Step]:
    """The loops of so many steps, from the shortest: one for those whose places lie between."""
    merged: list[Step] = []
    for step, n in sorted(steps):
        for i, (own, count) in enumerate(merged):
            ratio = step / own
            if ratio == int(ratio) and ratio <= count:
                # Windows: places of one loop lie between those of the other.
                merged[i] = own, count + ratio * (n - 1)
                break
        else:
            merged.append((step, n))
    return merged


def _pieces(size: float, merged: Sequence[Step], unit: int) -> tuple[float, list[Step]]:
    """The bytes of a piece without holes of whole units, and the loops that lay pieces out."""
    span, apart = size, list[Step]()
    for step, n in merged:
        if not apart and step <= max(span, unit):
            span += step * (n - 1)
        else:
            apart.append((step, n))
    return span, apart


@lru_cache
def _share_of_sets(whole: float, apart: tuple[Step, ...], way: int, line: int) -> float:
    """The share of the first cache's sets in which pieces of so many bytes have lines."""
    sets, each = way // line, min(int(whole), way) // line
    places, taken = {0}, set(range(each))
    for step, n in ((int(step), int(n)) for step, n in apart):
        period = way // gcd(step, way)
        places = {(p + k * step) % way for p in places for k in range(min(n, period))}
        taken = {(p // line + k) % sets for p in places for k in range(each)}
        if len(taken) == sets:
            break
    return len(taken) / sets if apart else 1.0


def _together(arms: Sequence[Groups], line: int) -> float:
    """The bytes of lines that arms touch together, of which one takes what the other leaves over.

    Their pieces are those of one another's loops: they lie between each other, or go on from there.
    """
    apart = sum(_joined(found) for groups in arms for found in groups.values())
    if len(arms) == 1:
        return apart
    pieces: dict[tuple[Step, ...], list[tuple[float, float, float]]] = {}
    for start, own in (x for groups in arms for found in groups.values() for x in found):
        pieces.setdefault(own.apart, []).append((start, start + own.span, own.lines / own.whole))
    united = 0.0
    for each in pieces.values():
        begin, end, times = min(each)
        for first, last, _ in sorted(each):
            if first > end:
                united += -(-(end - begin) // line) * line * times
                begin = first
            end = max(end, last)
        united += -(-(end - begin) // line) * line * times
    return min(apart, united)


def _joined(found: Sequence[tuple[int, Print]]) -> float:
    """The bytes of lines that equal accesses touch together, beginning at different places."""
    _, own = found[0]
    places = sorted({start for start, _ in found})
    return own.lines * (1 + sum(_apart(b - a, own) for a, b in pairwise(places)))


def _apart(gap: int, own: Print) -> float:
    """The share of an access's bytes that one so many bytes on does not touch."""
    if gap < own.whole:
        return gap / own.whole
    for step, n in own.steps:
        if gap % step == 0 and gap / step < n:
            return gap / step / n
    return 1.0
