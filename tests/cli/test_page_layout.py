"""Where boxes, edges and bars of a page are: nothing lies on anything else, and all is there."""

import random
import re
from itertools import combinations, pairwise

import pytest

from rutc.report.page.charts import (
    LINE_STEP,
    MEMORY_HEIGHT,
    WIDTH,
    Extent,
    Span,
    memory_chart,
    model_parts,
    roofline,
    shares,
    timeline,
)
from rutc.report.page.graph_layout import BOX_HEIGHT, BOX_WIDTH, FAR, Placed, place
from rutc.report.page.grouping import parts_graph
from rutc.report.page.labels import short, title
from rutc.report.page.view import Graph, Node
from rutc.report.printable import printable


def _apart(placed: Placed) -> None:
    """No box lies on another, and all lie in the drawing."""
    for x, y in placed.boxes:
        assert 0 <= x <= placed.width - BOX_WIDTH
        assert 0 <= y <= placed.height - BOX_HEIGHT
    ordered = sorted(placed.boxes, key=lambda box: (box[1], box[0]))
    for (x, y), (other_x, other_y) in pairwise(ordered):
        assert other_y - y >= BOX_HEIGHT or (y == other_y and other_x - x >= BOX_WIDTH)


def _ends(placed: Placed) -> None:
    """Every edge begins below its first box, and ends at the upper side of its second."""
    for (a, b), path in placed.paths.items():
        x, y = placed.boxes[a]
        assert path.startswith(f"M{x + BOX_WIDTH // 2} {y + BOX_HEIGHT}")
        assert path.endswith(str(placed.boxes[b][1]))


@pytest.mark.parametrize("seed", range(8))
def test_boxes_lie_apart_and_edges_join_them(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.choice([1, 2, 13, 97, 401])
    edges = [
        (max(n - draw.choice([1, 1, 1, 2, 3, 7]), 0), n)
        for n in range(1, count)
        for _ in range(draw.choice([0, 1, 1, 2]))
    ]
    placed = place(count, edges)
    assert len(placed.boxes) == count
    assert placed.paths.keys() | set(placed.far) == {e for e in edges if e[0] < e[1]}
    _apart(placed)
    _ends(placed)


def test_no_box_at_all() -> None:
    assert place(0, ()).boxes == ()


def test_a_box_lies_below_what_it_reads() -> None:
    placed = place(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    (_, first), (left, second), (right, third), (_, last) = placed.boxes
    assert first < second == third < last
    assert abs(left - right) >= BOX_WIDTH


def test_a_chain_is_straight_whatever_passes_it() -> None:
    edges = [(n, n + 1) for n in range(10)] + [(n, n + 3) for n in range(0, 8, 2)]
    placed = place(11, edges)
    xs = [x for x, _ in placed.boxes]
    assert max(xs) - min(xs) < BOX_WIDTH / 4


def test_a_source_is_right_above_its_first_reader() -> None:
    placed = place(7, [(0, 2), (2, 3), (3, 4), (4, 5), (1, 5), (5, 6)])
    assert placed.boxes[1][1] == placed.boxes[4][1]


def test_a_long_chain_goes_on_in_columns() -> None:
    placed = place(300, [(n, n + 1) for n in range(299)])
    lefts = sorted({x for x, _ in placed.boxes})
    assert len(lefts) > 3
    assert placed.width > placed.height
    _apart(placed)
    _ends(placed)


def test_edges_of_far_boxes_are_told_and_not_drawn() -> None:
    count = FAR + 3
    placed = place(count, [(n, n + 1) for n in range(count - 1)] + [(0, count - 1), (0, FAR)])
    assert placed.far == ((0, count - 1),)
    assert (0, FAR) in placed.paths


def test_edges_from_later_boxes_are_none() -> None:
    assert place(3, [(2, 1), (1, 1)]).paths == {}


def test_the_peak_of_memory_counts_shared_bytes_once() -> None:
    extents = [
        Extent(0, "a", "copy", 0, 100, 0, 2),
        Extent(1, "whole", "copy", 100, 60, 1, 3),
        Extent(2, "part", "copy", 100, 30, 1, 1),
        Extent(3, "late", "copy", 0, 40, 3, 4),
    ]
    chart = memory_chart(extents, 200, 5)
    assert (chart.peak_time, chart.peak_bytes) == (1, 160)
    assert [bar.number for bar in chart.bars] == [0, 1, 2, 3]
    for bar, e in zip(chart.bars, extents, strict=True):
        assert bar.height == pytest.approx(MEMORY_HEIGHT * e.bytes / 200)
        assert bar.y + bar.height == pytest.approx(MEMORY_HEIGHT * (1 - e.offset / 200))
        assert bar.x == pytest.approx(WIDTH * e.first / 6)
        assert bar.width == pytest.approx(WIDTH * (e.last - e.first + 1) / 6)


def test_memory_of_no_bytes() -> None:
    chart = memory_chart([Extent(0, "empty", "copy", 0, 0, 0, 0)], 0, 0)
    assert chart.peak_bytes == 0
    assert chart.bars[0].height == 0


@pytest.mark.parametrize("count", [0, 1, 7, 399, 3001])
def test_lines_of_time_are_full_and_hold_all(count: int) -> None:
    spans = [Span(n, "copy", f"step {n}", float(n % 13)) for n in range(count)]
    chart = timeline(spans)
    assert {bar.number for bar in chart.bars} == set(range(count))
    total = sum(s.time for s in spans)
    lines = len(chart.marks)
    for s in spans:
        own = sum(bar.width for bar in chart.bars if bar.number == s.number)
        if total:
            assert own == pytest.approx(WIDTH * lines * s.time / total, abs=0.1)
    for bar in chart.bars:
        assert bar.x >= 0
        assert bar.x + bar.width <= WIDTH + 0.1
        assert bar.y in {LINE_STEP * n for n in range(lines)}
    by_line: dict[float, list[tuple[float, float]]] = {}
    for bar in chart.bars:
        by_line.setdefault(bar.y, []).append((bar.x, bar.x + bar.width))
    for line in by_line.values():
        for (_, end), (begin, _) in pairwise(line):
            assert begin >= end - 0.1


def test_steps_that_take_nothing_are_in_the_timeline() -> None:
    chart = timeline([Span(0, "copy", "a", 0.0), Span(1, "copy", "b", 0.0)])
    assert [bar.number for bar in chart.bars] == [0, 1]


def test_kernels_lie_under_what_limits_them() -> None:
    levels = {"memory": 8.0, "last cache": 24.0}
    kernels = [(n, "copy", 10.0**n, 100.0, 10.0**n / 20) for n in range(6)]
    found = roofline(kernels, 64.0, levels)
    assert found is not None
    assert {p.number for p in found.points} == set(range(6))
    assert [r.label for r in found.roofs] == ["peak", "memory", "last cache"]
    heights = {p.y for p in found.points}
    assert len(heights) == 1
    (peak, *_) = (float(re.findall(r"[\d.]+", r.path)[1]) for r in found.roofs)
    assert peak < heights.pop()


def test_there_is_no_roof_over_nothing() -> None:
    assert roofline([], 64.0, {"memory": 8.0}) is None
    assert roofline([(0, "copy", 0.0, 8.0, 1.0)], 64.0, {"memory": 8.0}) is None
    assert roofline([(0, "copy", 1.0, 8.0, 1.0)], 0.0, {}) is None


def test_shares_are_those_of_the_whole() -> None:
    found = shares([("a", 1.0), ("b", 6.0), ("a", 1.0)])
    assert [(s.name, s.share, s.count) for s in found] == [("b", 0.75, 1), ("a", 0.25, 2)]
    assert [s.share for s in shares([("a", 0.0)])] == [0.0]


def test_parts_of_a_model_by_the_names_of_its_nodes() -> None:
    steps = [("/net/a/x", 1.0), ("/net/a/y", 2.0), ("/net/b/c/z", 5.0), ("/net/b/c/z", 2.0)]
    (net,) = model_parts(steps)
    assert (net.name, net.share, net.count) == ("net", 1.0, 4)
    assert [(s.name, s.path, s.share) for s in net.parts] == [
        ("b/c", "net/b/c", 0.7),
        ("a", "net/a", 0.3),
    ]
    assert [s.name for s in net.parts[1].parts] == ["y", "x"]


def test_of_many_parts_the_smallest_are_told_together() -> None:
    found = model_parts([(f"/part{n}", float(n)) for n in range(40)])
    assert found[-1].name == "28 more"
    assert sum(s.share for s in found) == pytest.approx(1.0)
    assert sum(s.count for s in found) == 40


@pytest.mark.parametrize(
    ("name", "most", "found"),
    [
        ("/encoder/layer.0/query/MatMul", 16, "query/MatMul"),
        ("short", 16, "short"),
        ("averylongnamewithoutparts", 10, "…houtparts"),
        ("", 5, ""),
    ],
)
def test_short_names(name: str, most: int, found: str) -> None:
    assert short(name, most) == found
    assert len(found) <= most


def test_titles_say_how_many_nodes_there_are() -> None:
    assert title(("/a/Conv", "/a/Relu", "/b/Add"), "k", 16) == "/b/Add +2"
    assert title((), "kernel", 16) == "kernel"


def test_every_character_shows() -> None:
    assert printable("a\x00b\x1b\u202e\x7f") == "a␀b␛\\u{202e}\\u{7f}"
    assert printable("Größe 层 🙂\n") == "Größe 层 🙂\n"
    assert all(a != b for a, b in combinations(map(printable, "\x00\x01\u200b\u200c"), 2))


def _parts(names: list[str]) -> Graph | None:
    nodes = [Node("steps", n, "copy", name, "", "") for n, name in enumerate(names)]
    edges = [(n, n + 1) for n in range(len(names) - 1)]
    return parts_graph(nodes, names, [1.0] * len(names), edges)


def test_parts_of_a_large_graph_are_a_graph() -> None:
    """As many levels of names as make few enough boxes, which stand for steps in a row."""
    found = _parts([f"/net/layer.{n // 10}/{'qkv'[n % 3]}/op{n}" for n in range(300)])
    assert found is not None
    assert [box.node.find for box in found.boxes] == [f"net/layer.{n}" for n in range(30)]
    assert {box.node.subtitle for box in found.boxes} == {"10 steps, 3.3 %"}
    assert [(line.begin, line.end) for line in found.lines] == [(n, n + 1) for n in range(29)]


@pytest.mark.parametrize(
    "names",
    [
        [],
        [f"/a/{n // 10}" for n in range(30)],
        [f"/node{n}" for n in range(300)],
        [f"/node{n}" for n in range(60)],
        ["/one/part"] * 300,
    ],
    ids=["none", "few", "no parts", "as many parts", "one"],
)
def test_other_graphs_have_no_parts(names: list[str]) -> None:
    assert _parts(names) is None
