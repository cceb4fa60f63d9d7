"""Where bars, rectangles and points are drawn: memory and time of a run, and its kernels' rates."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from rutc.base.record import record
from rutc.report.page.labels import short

WIDTH = 1200
MEMORY_HEIGHT = 340
LINE_HEIGHT, LINE_STEP = 30, 46
"""Of a line of the timeline, and from one to the next."""
BARS_OF_LINE, MOST_LINES = 40, 16
ROOF_WIDTH, ROOF_HEIGHT = 560, 340
LARGEST_FONT, LEAST_FONT = 11.0, 0.8
LETTER = 0.56
"""The width of a letter beside its height, about."""
MOST_BRANCHES = 12
"""Parts of a part of the model that are told one by one."""
MOST_LEVELS = 4


@record
class Bar:
    """A rectangle of a chart; `number` is that of the value or step it is, `label` of a `font`."""

    number: int | None
    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    font: float


@record
class Mark:
    """A text at a place of a chart."""

    x: float
    y: float
    text: str


@record
class MemoryChart:
    """Values of the arena over time, and when the most of it is in use."""

    bars: tuple[Bar, ...]
    peak_x: float
    peak_bytes: int
    peak_time: int


@record
class Span:
    """What is done for a while: the number of its step if it is one, and its time."""

    number: int | None
    kind: str
    label: str
    time: float


@record
class Timeline:
    """What a run does one after the other, in lines from left to right, as a text has them."""

    height: int
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, float], ...]
    """Of each line, its upper side and the time at which it begins."""


@record
class Point:
    """A kernel: its place, and a radius by its share of the time."""

    number: int
    x: float
    y: float
    radius: float
    kind: str


@record
class Roof:
    """What limits kernels: a line, and what it is called."""

    label: str
    path: str
    at: tuple[float, float]


@record
class Roofline:
    """Kernels by operations for each byte, and operations in a cycle, with what limits these."""

    points: tuple[Point, ...]
    roofs: tuple[Roof, ...]
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]


@record
class Share:
    """A part of a whole, with parts of its own; `count` things are in it."""

    name: str
    path: str
    share: float
    count: int
    parts: tuple[Share, ...] = ()


@record
class Extent:
    """A value's place in the arena, in bytes, and in time."""

    number: int
    label: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int


def memory_chart(extents: Sequence[Extent], arena_bytes: int, end: int) -> MemoryChart:
    """Returns the arena, which begins at the lower side, from time 0 to the `end`."""
    across, up = WIDTH / max(end + 1, 1), MEMORY_HEIGHT / max(arena_bytes, 1)
    bars = []
    for e in extents:
        width, height = across * (e.last - e.first + 1), up * e.bytes
        x, y = across * e.first, MEMORY_HEIGHT - up * e.offset - height
        bars.append(_bar(e.number, (x, y, width, height), e.kind, e.label))
    time, most = _peak(extents)
    return MemoryChart(tuple(bars), across * (time + 0.5), most, time)


def _peak(extents: Sequence[Extent]) -> tuple[int, int]:
    """When the most bytes are in use for the first time, and how many; some lie in others."""
    begins: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for e in extents:
        begins.setdefault(e.first, []).append((e.offset, e.offset + e.bytes))
        ends.setdefault(e.last + 1, []).append((e.offset, e.offset + e.bytes))
    live: list[tuple[int, int]] = []
    found = 0, 0
    for time in sorted(begins.keys() | ends.keys()):
        for span in ends.get(time, ()):
            live.remove(span)
        for span in begins.get(time, ()):
            insort(live, span)
        covered = reached = 0
        for low, high in live:
            covered += max(high - max(low, reached), 0)
            reached = max(reached, high)
        if covered > found[1]:
            found = time, covered
    return found


def timeline(spans: Sequence[Span]) -> Timeline:
    """Returns the lines of what is done one after the other."""
    total = sum(s.time for s in spans)
    count = min(max(math.ceil(len(spans) / BARS_OF_LINE), 1), MOST_LINES)
    whole = total / count if total else 1.0
    bars: list[Bar] = []
    begin = 0.0
    for s in spans:
        left, end = begin, begin + s.time
        begin = end
        line = min(int(left / whole), count - 1)
        while line < count:
            right = end if line == count - 1 else min(end, whole * (line + 1))
            x, width = WIDTH * (left / whole - line), WIDTH * (right - left) / whole
            bars.append(_bar(s.number, (x, LINE_STEP * line, width, LINE_HEIGHT), s.kind, s.label))
            left, line = right, line + 1
            if left >= end:
                break
    marks = tuple((float(LINE_STEP * n), whole * n) for n in range(count))
    return Timeline(LINE_STEP * count, tuple(bars), marks)


def _bar(
    number: int | None, place: tuple[float, float, float, float], kind: str, label: str
) -> Bar:
    """A bar with as much of its label as there is room for, small where it must be."""
    x, y, width, height = (round(n, 2) for n in place)
    font = min(LARGEST_FONT, 0.7 * height)
    room = int(0.92 * width / (LETTER * font)) if font > 0 else 0
    if room < len(label):
        least = min(len(label), 8)
        font = min(font, 0.92 * width / (LETTER * max(room, least)))
        room = max(room, least)
    text = short(label, room) if font >= LEAST_FONT and label else ""
    return Bar(number, x, y, width, height, kind, text, round(font, 2))


def roofline(
    kernels: Sequence[tuple[int, str, float, float, float]],
    peak: float,
    levels: Mapping[str, float],
) -> Roofline | None:
    """Returns the kernels (number, kind, operations, bytes, cycles) under what limits them.

    That is a `peak` of operations in a cycle, and the bytes of each level of memory in one. None
    where nothing computes.
    """
    known = [k for k in kernels if min(k[2:]) > 0]
    if not known or peak <= 0:
        return None
    ridges = [peak / bytes_ for bytes_ in levels.values() if bytes_ > 0]
    xs = [flops / bytes_ for _, _, flops, bytes_, _ in known]
    ys = [flops / cycles for _, _, flops, _, cycles in known]
    low_x, high_x = _decades([*xs, *ridges])
    low_y, high_y = _decades([*ys, peak])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low_x) / (high_x - low_x)
        up = (math.log10(y) - low_y) / (high_y - low_y)
        return round(ROOF_WIDTH * across, 1), round(ROOF_HEIGHT * (1 - up), 1)

    total = sum(k[4] for k in known)
    points = (
        Point(k[0], *place(x, y), round(2.5 + 14 * math.sqrt(k[4] / total), 1), k[1])
        for k, x, y in zip(known, xs, ys, strict=True)
    )
    least = 10.0**low_x
    start = place(min(ridges, default=least), peak)
    roofs = [Roof("peak", f"M{_pair(start)}H{ROOF_WIDTH}", start)]
    for name, bytes_ in levels.items():
        if bytes_ <= 0:
            continue
        begin = max(least, 10.0**low_y / bytes_)
        start, end = place(begin, begin * bytes_), place(peak / bytes_, peak)
        roofs.append(Roof(name, f"M{_pair(start)}L{_pair(end)}", start))
    x_marks = (
        Mark(place(10.0**n, 1.0)[0], ROOF_HEIGHT, _number(10.0**n))
        for n in range(low_x, high_x + 1)
    )
    y_marks = (Mark(0, place(1.0, 10.0**n)[1], _number(10.0**n)) for n in range(low_y, high_y + 1))
    ordered = sorted(points, key=lambda p: (-p.radius, p.number))
    return Roofline(tuple(ordered), tuple(roofs), tuple(x_marks), tuple(y_marks))


def _decades(numbers: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around some numbers."""
    low, high = (math.log10(end) for end in (min(numbers), max(numbers)))
    least = math.floor(low)
    return least, max(math.ceil(high), least + 1)


def _pair(place: tuple[float, float]) -> str:
    return f"{place[0]} {place[1]}"


def _number(x: float) -> str:
    return f"{x:g}"


def shares(parts: Iterable[tuple[str, float]]) -> tuple[Share, ...]:
    """Returns parts of the same name together, the largest first."""
    sums: dict[str, tuple[float, int]] = {}
    for name, part in parts:
        before, count = sums.get(name, (0.0, 0))
        sums[name] = before + part, count + 1
    total = sum(part for part, _ in sums.values()) or 1.0
    found = (Share(name, name, part / total, count) for name, (part, count) in sums.items())
    return tuple(sorted(found, key=lambda s: (-s.share, -s.count, s.name)))


def model_parts(steps: Iterable[tuple[str, float]]) -> tuple[Share, ...]:
    """Returns the parts of a model by the names of its nodes, `/encoder/layer.0/query`, with times.

    What has one part alone stands for it.
    """
    steps = list(steps)
    total = sum(time for _, time in steps) or 1.0
    return _branches([(name.strip("/").split("/"), time) for name, time in steps], "", total, 0)


def _branches(
    steps: Sequence[tuple[Sequence[str], float]], path: str, total: float, level: int
) -> tuple[Share, ...]:
    inside: dict[str, list[tuple[Sequence[str], float]]] = {}
    for parts, time in steps:
        if parts:
            inside.setdefault(parts[0], []).append((parts[1:], time))
    found = []
    for name, own in inside.items():
        rest, joined = own, name
        while all(len(parts) > 1 and parts[0] == rest[0][0][0] for parts, _ in rest):
            joined += f"/{rest[0][0][0]}"
            rest = [(parts[1:], time) for parts, time in rest]
        whole = f"{path}/{joined}" if path else joined
        inner = _branches(rest, whole, total, level + 1) if level + 1 < MOST_LEVELS else ()
        time = sum(time for _, time in own)
        found.append(Share(joined, whole, time / total, len(own), inner if len(inner) > 1 else ()))
    found.sort(key=lambda s: (-s.share, -s.count, s.name))
    more = found[MOST_BRANCHES:]
    if len(more) > 1:
        others = sum(s.share for s in more), sum(s.count for s in more)
        found[MOST_BRANCHES:] = [Share(f"{len(more)} more", path, *others)]
    return tuple(found)
