"""A graph of the parts of a model, of what is too large to be seen box by box."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rutc.report.page import labels
from rutc.report.page.view import LETTERS, Graph, Node, drawn

FEWEST_BOXES = 40
"""Of a graph beside which there is one of its parts."""
FEWEST_PARTS, MOST_PARTS, MOST_LEVELS = 3, 64, 8


def parts_graph(
    nodes: Sequence[Node],
    paths: Sequence[str],
    times: Sequence[float],
    edges: Sequence[tuple[int, int]],
) -> Graph | None:
    """Returns a graph whose boxes are runs of nodes with one beginning of their paths.

    Paths are as `/encoder/layer.0/query`. As many of their parts count as make few enough boxes.
    None where there are few nodes, or their names put few of them together.
    """
    if len(nodes) < FEWEST_BOXES:
        return None
    split = [path.strip("/").split("/") for path in paths]
    levels = (_runs(split, level) for level in range(1, MOST_LEVELS))
    most_parts = min(MOST_PARTS, len(nodes) // 2)
    fitting = [runs for runs in levels if FEWEST_PARTS <= len(runs) <= most_parts]
    if not fitting:
        return None
    runs = fitting[-1]
    total = sum(times) or 1.0
    sums = [sum(times[n] for n in own) for _, own in runs]
    most = max(sums) or 1.0
    boxes = []
    for (path, own), time in zip(runs, sums, strict=True):
        many = "1 step" if len(own) == 1 else f"{len(own)} steps"
        about = f"{many}, {labels.share(time / total)}"
        tip = f"{path}\n{about}"
        title = labels.short(path, LETTERS)
        boxes.append(Node("parts", None, "", title, about, tip, time / most, find=path))
    home = {n: box for box, (_, own) in enumerate(runs) for n in own}
    between = dict.fromkeys((home[a], home[b]) for a, b in edges if home[a] != home[b])
    return drawn(boxes, list(between))


def _runs(paths: Sequence[Sequence[str]], level: int) -> list[tuple[str, list[int]]]:
    """Nodes one after the other that have so many parts of their paths in common."""
    numbered = groupby(range(len(paths)), lambda n: tuple(paths[n][:level]))
    return [("/".join(path), list(own)) for path, own in numbered]
