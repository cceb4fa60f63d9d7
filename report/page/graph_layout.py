"""Where the boxes of a graph are drawn: in layers, each below what it reads, folded into columns.

    layers      every box is one below the lowest that it reads from; a source is right above its
                first reader
    lanes       an edge that passes layers has a place in each, which its readers share
    order       of a layer: by the middle of the neighbours, layer by layer, down and up
    places      as near to the middle of the neighbours as the order lets them be
    columns     layers go on at the top of the next column, as text does, where few edges cross

[Sugiyama, Tagawa & Toda 1981], but for the columns: models are hundreds of layers deep and few
boxes wide, and a screen is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from rutc.base.record import record

BOX_WIDTH, BOX_HEIGHT = 172, 34
LANE_WIDTH = 10
SIDE, BELOW = 14, 20
"""What is left free beside boxes, and between layers."""
GUTTER = 28
"""Between columns, beside what passes there."""
CROSSING = 5
"""What an edge takes that goes on in the next column."""
FAR = 48
"""Layers between boxes whose edge is not drawn: both say so."""
SWEEPS = 4
SHAPE = 2.0
"""How many times as wide as high a drawing should be."""
LEAST_ROWS = 6
"""Layers of a column, where there are several."""
STRAIGHT = 100.0
"""How much a box's place counts beside that of a lane or a leaf: these go around it."""

Edge = tuple[int, int]


@record
class Placed:
    """A drawing of boxes by number: upper left corners, and the paths of edges as SVG has them.

    Those of `far` are not drawn.
    """

    width: int
    height: int
    boxes: tuple[tuple[int, int], ...]
    paths: Mapping[Edge, str]
    far: tuple[Edge, ...]


def place(count: int, edges: Sequence[Edge]) -> Placed:
    """Returns where so many boxes go, with edges from lower numbers to higher ones."""
    edges = tuple(dict.fromkeys(e for e in edges if e[0] < e[1]))
    layers = _layers(count, edges)
    lanes = _Lanes(layers, edges)
    rows = _ordered(lanes)
    xs = _spread(lanes, rows)
    return _folded(lanes, rows, xs)


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """The layer of each box."""
    before, after = _neighbours(edges)
    layers = [0] * count
    for b in range(count):
        layers[b] = max((layers[a] + 1 for a in before[b]), default=0)
    for a in reversed(range(count)):
        if not before[a] and after[a]:
            layers[a] = max(min(layers[b] for b in after[a]) - 1, 0)
    used = {layer: n for n, layer in enumerate(sorted(set(layers)))}
    return [used[layer] for layer in layers]


def _neighbours(edges: Sequence[Edge]) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    before: defaultdict[int, list[int]] = defaultdict(list)
    after: defaultdict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    return before, after


class _Lanes:
    """Boxes, and behind them the places where edges pass a layer: all are points with a layer."""

    def __init__(self, layers: Sequence[int], edges: Sequence[Edge]) -> None:
        self.boxes = len(layers)
        self.layers = list(layers)
        self.chains: dict[Edge, list[int]] = {}
        """The points of an edge, its ends included."""
        self.far: list[Edge] = []
        own: dict[tuple[int, int], int] = {}
        links: dict[Edge, None] = {}
        for a, b in edges:
            top, bottom = layers[a], layers[b]
            if bottom - top > FAR:
                self.far.append((a, b))
                continue
            chain = [a]
            for layer in range(top + 1, bottom):
                if (a, layer) not in own:
                    own[a, layer] = len(self.layers)
                    self.layers.append(layer)
                chain.append(own[a, layer])
            chain.append(b)
            self.chains[a, b] = chain
            links.update(dict.fromkeys(pairwise(chain)))
        self.links = tuple(links)
        self.before, self.after = _neighbours(self.links)

    def is_inner(self, point: int) -> bool:
        """Whether a point is a box that reads others, and is read."""
        return point < self.boxes and bool(self.before.get(point) and self.after.get(point))

    def width(self, point: int) -> int:
        """What a point takes of its layer."""
        return BOX_WIDTH if point < self.boxes else LANE_WIDTH


def _ordered(lanes: _Lanes) -> list[list[int]]:
    """The points of each layer from left to right."""
    rows: list[list[int]] = [[] for _ in range(max(lanes.layers, default=-1) + 1)]
    for point, layer in enumerate(lanes.layers):
        rows[layer].append(point)
    at = {p: float(n) for row in rows for n, p in enumerate(row)}
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        near = lanes.before if down else lanes.after
        for row in rows if down else reversed(rows):
            row.sort(key=_middle(near, at))
            at.update((p, float(n)) for n, p in enumerate(row))
    return rows


def _middle(
    near: Mapping[int, list[int]], at: Mapping[int, float]
) -> Callable[[int], tuple[float, int]]:
    """Returns what points are ordered by: the middle of their neighbours, or where they are."""

    def middle(point: int) -> tuple[float, int]:
        others = near.get(point)
        return sum(at[o] for o in others) / len(others) if others else at[point], point

    return middle


def _spread(lanes: _Lanes, rows: Sequence[Sequence[int]]) -> dict[int, float]:
    """The middle of each point from left to right."""
    xs: dict[int, float] = {}
    for row in rows:
        xs.update(_apart(lanes, row, dict.fromkeys(row, 0.0)))
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        near = lanes.before if down else lanes.after
        for row in rows if down else reversed(rows):
            wanted = {}
            for p in row:
                # A box is below a box where there is one, and not below a leaf: what comes and
                # goes beside a chain would move it sidewards again and again.
                others = near.get(p, ())
                alike = [o for o in others if (o < lanes.boxes) == (p < lanes.boxes)] or others
                inner = [o for o in alike if near.get(o)] or alike
                wanted[p] = sum(xs[o] for o in inner) / len(inner) if inner else xs[p]
            xs.update(_apart(lanes, row, wanted))
    return xs


def _apart(
    lanes: _Lanes, row: Sequence[int], wanted: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Yields places in this order that are nearest to those wanted, in the sum of squares.

    Without the room between neighbours these places never fall from left to right, so points that
    want to pass each other move together, to the mean of what they want.
    """
    offset, blocks = 0.0, list[list[float]]()
    offsets = []
    for n, p in enumerate(row):
        if n:
            offset += (lanes.width(row[n - 1]) + lanes.width(p)) / 2 + SIDE
        offsets.append(offset)
        weight = STRAIGHT if lanes.is_inner(p) else 1.0
        blocks.append([wanted[p] - offset, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, weight, count = blocks.pop()
            other = blocks[-1]
            total = other[1] + weight
            blocks[-1] = [(other[0] * other[1] + mean * weight) / total, total, other[2] + count]
    means = (mean for mean, _, count in blocks for _ in range(int(count)))
    yield from zip(row, map(sum, zip(means, offsets, strict=True)), strict=True)


@record
class _Column:
    """The layers from `first` to before `end`; what passes to the next one is below its last."""

    first: int
    end: int
    left: float
    right: float

    @property
    def width(self) -> float:
        return self.right - self.left


def _columns(
    lanes: _Lanes, rows: Sequence[Sequence[int]], xs: Mapping[int, float], count: int
) -> list[_Column]:
    """The layers in so many columns, about: each ends where few edges cross near its end."""
    crossing = [0] * (len(rows) + 1)
    for a, _ in lanes.links:
        crossing[lanes.layers[a] + 1] += 1
    height = -(-len(rows) // count)
    found: list[_Column] = []
    first = 0
    while first < len(rows):
        end = min(first + height, len(rows))
        if end < len(rows):
            ends = range(first + max(3 * height // 4, 1), end + 1)
            end = min(ends, key=lambda n: (crossing[n], -n))
        points = [p for row in rows[first:end] for p in row]
        left = min(xs[p] - lanes.width(p) / 2 for p in points)
        right = max(xs[p] + lanes.width(p) / 2 for p in points)
        found.append(_Column(first, end, left, right))
        first = end
    return found


def _folded(lanes: _Lanes, rows: Sequence[Sequence[int]], xs: Mapping[int, float]) -> Placed:
    """The drawing, in as many columns as make it about as wide as a screen."""
    step = BOX_HEIGHT + BELOW
    columns: list[_Column] = []
    for count in range(1, max(len(rows) // LEAST_ROWS, 1) + 1):
        columns = _columns(lanes, rows, xs, count)
        width = sum(c.width + GUTTER for c in columns)
        if width >= SHAPE * step * max((c.end - c.first for c in columns), default=0):
            break
    home = {layer: n for n, c in enumerate(columns) for layer in range(c.first, c.end)}
    passing = [0] * len(columns)
    for a, b in lanes.links:
        if home[lanes.layers[a]] != home[lanes.layers[b]]:
            passing[home[lanes.layers[a]]] += 1
    margin = CROSSING * (max(passing, default=0) + 1)
    lefts, x = [], float(SIDE)
    for c, count in zip(columns, passing, strict=True):
        lefts.append(x - c.left)
        x += c.width + GUTTER + CROSSING * count
    places: dict[int, tuple[int, int]] = {}
    for layer, row in enumerate(rows):
        column = home[layer]
        y = margin + step * (layer - columns[column].first)
        places.update((p, (round(xs[p] + lefts[column]), y)) for p in row)
    bottoms = [margin + step * (c.end - c.first) for c in columns]
    height = round(max(bottoms, default=0) + margin)
    taken = [0] * len(columns)
    bends: dict[Edge, str] = {}
    for a, b in lanes.links:
        column = home[lanes.layers[a]]
        if column != home[lanes.layers[b]]:
            own = CROSSING * taken[column]
            taken[column] += 1
            side = round(lefts[column] + columns[column].right + GUTTER / 2) + own
            low, high = bottoms[column] - BELOW + 4 + own, margin - 4 - own
            bends[a, b] = f"V{low}H{side}V{high}H{places[b][0]}V{places[b][1]}"
    boxes = tuple((places[p][0] - BOX_WIDTH // 2, places[p][1]) for p in range(lanes.boxes))
    paths = {e: _path(lanes, chain, places, bends) for e, chain in lanes.chains.items()}
    return Placed(round(x), height, boxes, paths, tuple(lanes.far))


def _path(
    lanes: _Lanes,
    chain: Sequence[int],
    places: Mapping[int, tuple[int, int]],
    bends: Mapping[Edge, str],
) -> str:
    """An edge as SVG has it: from the lower side of a box, through its lanes, to the next box."""
    x, y = places[chain[0]]
    parts = [f"M{x} {y + BOX_HEIGHT}"]
    for a, b in pairwise(chain):
        (x, y), (to_x, to_y) = places[a], places[b]
        if (a, b) in bends:
            parts.append(bends[a, b])
        elif x == to_x:
            parts.append(f"V{to_y}")
        else:
            middle = (y + BOX_HEIGHT + to_y) // 2
            parts.append(f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        if b >= lanes.boxes:
            parts.append(f"V{to_y + BOX_HEIGHT}")
    return "".join(parts)
