"""What is shown of the values and weights of a plan, and which steps go with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rutc.driver.parts.outline import PlanOutline, StepOutline, ValueOutline
from rutc.report.page import labels
from rutc.report.page.view import Cell, Row, Table, optional_cell
from rutc.report.printable import printable


def values_on_page(plan: PlanOutline) -> Table:
    """Returns a row for each value that is stored, but weights."""
    columns = ("#", "value", "type", "layout", "place", "bytes", "from", "to", "of")
    rows = (
        Row(
            n,
            (
                Cell(str(n), n),
                Cell(v.name),
                Cell(labels.shape(v.dtype, v.extents)),
                Cell(v.layout),
                Cell(_place(v)),
                Cell(labels.size(v.bytes), v.bytes),
                optional_cell(v.first, "{:.0f}"),
                optional_cell(v.last, "{:.0f}"),
                Cell(", ".join(v.origin)),
            ),
        )
        for n, v in enumerate(plan.values)
    )
    return Table("Values", "values", columns, tuple(rows))


def weights_on_page(plan: PlanOutline) -> Table:
    """Returns a row for each constant as a kernel wants it."""
    columns = ("#", "weight", "type", "layout", "offset", "bytes")
    rows = (
        Row(
            n,
            (
                Cell(str(n), n),
                Cell(w.name),
                Cell(labels.shape(w.dtype, w.extents)),
                Cell(w.layout),
                Cell(str(w.offset), w.offset),
                Cell(labels.size(w.bytes), w.bytes),
            ),
        )
        for n, w in enumerate(plan.weights)
    )
    return Table("Weights", "weights", columns, tuple(rows))


def details(plan: PlanOutline, schedules: Sequence[Sequence[str]]) -> dict[str, object]:
    """Returns what the panel shows: of each thing texts, and the numbers of what goes with it."""
    readers, writers, users = (
        _users(plan.steps, touched)
        for touched in (lambda s: s.reads, lambda s: s.writes, lambda s: s.weights)
    )
    steps = [
        detail(
            s.name,
            {"computes": s.origin, "schedule": schedule, "expressions": s.nests},
            {
                "reads": ("values", s.reads),
                "writes": ("values", s.writes),
                "weights": ("weights", s.weights),
            },
        )
        for s, schedule in zip(plan.steps, schedules, strict=True)
    ]
    values = [
        detail(
            v.name,
            {},
            {"written by": ("steps", writers.get(n, ())), "read by": ("steps", readers.get(n, ()))},
        )
        for n, v in enumerate(plan.values)
    ]
    weights = [
        detail(w.name, {}, {"read by": ("steps", users.get(n, ()))})
        for n, w in enumerate(plan.weights)
    ]
    return {"steps": steps, "values": values, "weights": weights}


def detail(
    name: str,
    texts: Mapping[str, Sequence[str]],
    links: Mapping[str, tuple[str, Sequence[int]]],
) -> dict[str, object]:
    """Returns what the panel shows of one thing: its name, texts, and links by kind and number."""
    shown = {title: [printable(line) for line in text] for title, text in texts.items()}
    return {"name": printable(name), "texts": shown, "links": dict(links)}


def _users(
    steps: Sequence[StepOutline], touched: Callable[[StepOutline], Sequence[int]]
) -> dict[int, list[int]]:
    """The steps that touch each thing."""
    users: dict[int, list[int]] = {}
    for n, s in enumerate(steps):
        for thing in touched(s):
            users.setdefault(thing, []).append(n)
    return users


def _place(v: ValueOutline) -> str:
    number = "" if v.space == "arena" else str(v.index)
    return f"{v.space}{number}+{v.offset}"
