"""Tables that terminals of any width show whole: names are folded, numbers neither cut nor broken.

Names come from models. In a table they are text as they are: `[batch, 3]` asks for no style.
"""

import sys
from collections.abc import Callable, Collection

from rich import box, table
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.text import Text

from rutc.report.printable import printable

MOST_COLUMNS = 10_000
"""More than any table is measured to need."""
SHORT_NAME = 10
"""Columns that each line of a folded name has at least."""


class Table(table.Table):
    """Rows of texts below titles. Columns of `names` are folded where there is little room."""

    def __init__(self, *titles: str, names: Collection[str] = ()) -> None:
        """Begins a table without rows."""
        super().__init__()
        for title in titles:
            self.add_column(title, overflow="fold", no_wrap=title not in names)

    def add(self, *cells: str) -> None:
        """Adds a row of a text for each column."""
        self.add_row(*(Text(printable(cell)) for cell in cells))


class _Console(Console):
    """One that leaves it to the command what happens where nobody reads what is written."""

    def on_broken_pipe(self) -> None:
        """Lets the error through, which it is called for."""
        error = sys.exception()
        if error is not None:
            raise error


def numeral(x: float) -> str:
    """Returns a number of at least four digits, without an exponent where it is large."""
    return f"{x:.0f}" if 1000 <= abs(x) < float("inf") else f"{x:.4g}"


def draw(item: RenderableType, width: int | None) -> None:
    """Writes what is shown to stdout, `width` columns wide; None: as wide as the terminal is.

    Columns in which nothing stands are left out. A table that is too wide goes without the lines
    between columns, which take a third of 80, and titles have a line for each word. Its lines are
    longer than the terminal's where those have no room for its numbers and a few letters of names.
    """
    console = _Console(highlight=False, soft_wrap=True, markup=False, emoji=False, width=width)
    if isinstance(item, Table):
        if item.row_count:
            item.columns = [c for c in item.columns if any(str(cell) for cell in c.cells)]
        _keep_numbers(item)
        if _least(item, console) > console.width:
            item.box = box.SIMPLE_HEAD
            item.show_edge = item.pad_edge = False
            item.padding = 0
            for column in item.columns:
                column.header = str(column.header).replace(" ", "\n")
            _keep_numbers(item)
        _fold(item, console)
    console.print(item)


def _fold(item: Table, console: Console) -> None:
    """Gives columns of names the room that numbers leave, first what their words need.

    Where that is too much, words are folded, and lines are longer where a few letters are.
    """
    names = [column for column in item.columns if not column.no_wrap]
    words = [_longest(column, str.split) for column in names]
    whole = [_longest(column, str.splitlines) for column in names]
    least = _least(item, console)
    widths = words if least <= console.width else [min(word, SHORT_NAME) for word in words]
    room = console.width - (least - sum(words)) - sum(widths)
    console.width -= min(room, 0)
    for _ in range(room):
        cut = [n for n, width in enumerate(widths) if width < whole[n]]
        if not cut:
            break
        widths[min(cut, key=widths.__getitem__)] += 1
    for column, width in zip(names, widths, strict=True):
        column.width = width


def _keep_numbers(item: Table) -> None:
    """Lets the other columns be measured as wide as what stands in them, not as its words."""
    for column in item.columns:
        if column.no_wrap:
            column.min_width = _longest(column, str.splitlines)


def _longest(column: table.Column, parts: Callable[[str], list[str]]) -> int:
    """How wide the widest of the parts of a column's texts is."""
    texts = map(str, (column.header, *column.cells))
    return max((cell_len(part) for text in texts for part in parts(text)), default=0)


def _least(item: Table, console: Console) -> int:
    """The columns of a terminal that a table needs, if names are folded between words alone."""
    return Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), item).minimum
