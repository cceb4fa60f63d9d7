"""What a page shows, ready to be written: texts, numbers, and where things are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.base.record import record
from rutc.report.page.charts import MemoryChart, Roofline, Share, Timeline
from rutc.report.page.graph_layout import BOX_WIDTH, place

LETTERS = BOX_WIDTH // 7
"""Of the titles of boxes."""
LEVELS = 10
"""Of the colours that tell a share."""


@record
class Fact:
    """A line of the overview."""

    label: str
    text: str


@record
class Cell:
    """A cell of a table: its text, and the number by which it is sorted if it is one."""

    text: str
    number: float | None = None


@record
class Row:
    """A row, of the thing of that number if it is one of those that can be selected."""

    number: int | None
    cells: tuple[Cell, ...]


@record
class Table:
    """A table with titles of columns, and what its rows are: steps, values, weights or nothing."""

    name: str
    of: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@record
class Node:
    """What a box of a graph is: of a step, a value, or nothing that can be selected.

    `heat` and `peak` are shares of the longest time, and of what the machine can do.
    """

    of: str
    number: int | None
    kind: str
    title: str
    subtitle: str
    tip: str
    heat: float | None = None
    peak: float | None = None
    find: str = ""
    """What a click searches for."""


@record
class Box:
    """A node where it is drawn, with levels of its shares, and boxes that far edges go to."""

    x: int
    y: int
    node: Node
    heat: str
    peak: str
    far: tuple[str, ...]


@record
class Line:
    """An edge between boxes by number."""

    begin: int
    end: int
    path: str


@record
class Graph:
    """A drawing of a graph."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


@record
class Sheet:
    """All that is shown of one plan of an artifact, or of the nodes of a model.

    `details` has, for each step, value and weight, what the panel shows of it.
    """

    title: str
    colours: Mapping[str, int]
    """The number of the colour of a kind; others have the last one."""
    graph: Graph
    coloured: tuple[str, ...]
    """By what boxes may be coloured: time, peak, kind."""
    kinds: tuple[Share, ...]
    parts: tuple[Share, ...]
    tables: tuple[Table, ...]
    details: Mapping[str, object]
    shares_of: str
    """What shares are of."""
    groups: Graph | None = None
    """The graph of the parts of a model."""
    memory: MemoryChart | None = None
    arena_bytes: int = 0
    timeline: Timeline | None = None
    timeline_of: str = ""
    time_marks: tuple[str, ...] = ()
    roofline: Roofline | None = None
    roofline_of: str = ""


@record
class View:
    """A page."""

    title: str
    subtitle: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    ports: Table
    sheets: tuple[Sheet, ...]


def drawn(nodes: Sequence[Node], edges: Sequence[tuple[int, int]]) -> Graph:
    """Returns the drawing of a graph of nodes by number."""
    placed = place(len(nodes), edges)
    far: dict[int, list[str]] = {}
    for a, b in placed.far:
        far.setdefault(b, []).append(nodes[a].title)
    boxes = tuple(
        Box(x, y, node, _level(node.heat), _level(node.peak), tuple(far.get(n, ())))
        for n, ((x, y), node) in enumerate(zip(placed.boxes, nodes, strict=True))
    )
    lines = tuple(Line(a, b, path) for (a, b), path in placed.paths.items())
    return Graph(placed.width, placed.height, boxes, lines)


def _level(share: float | None) -> str:
    return "none" if share is None else str(min(max(int(LEVELS * share), 0), LEVELS - 1))


def number_cell(number: float | None, text: str) -> Cell:
    """Returns the cell of a number; an empty one if there is none."""
    return Cell("") if number is None else Cell(text, number)


def optional_cell(number: float | None, form: str) -> Cell:
    """Returns the cell of a number in a form; an empty one if there is none."""
    return number_cell(number, "" if number is None else form.format(number))
