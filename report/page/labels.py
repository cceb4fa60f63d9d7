"""Texts that fit where they are shown, and show all that is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.report.display import quantity
from rutc.report.printable import printable

ELLIPSIS = "…"


def short(name: str, most: int) -> str:
    """Returns the end of a name, of so many characters: as many of its parts as fit.

    `short("/encoder/layer.0/query/MatMul", 16)` -> `"query/MatMul"`
    """
    name = printable(name)
    if len(name) <= most:
        return name
    end = name[-most:]
    for mark in "/.":
        before, found, rest = end.partition(mark)
        if found and len(before) < most // 2:
            return rest
    return f"{ELLIPSIS}{end[1:]}"


def title(origin: Sequence[str], name: str, most: int) -> str:
    """Returns what a step is called: the last of the ONNX nodes it computes, and how many more."""
    if not origin:
        return short(name, most)
    more = f" +{len(origin) - 1}" if len(origin) > 1 else ""
    return short(origin[-1], most - len(more)) + more


def shape(dtype: str, extents: Mapping[str, int | str]) -> str:
    """Returns a type with extents: `float32 {n=1, c=64}`."""
    return f"{dtype} {{{', '.join(f'{d}={e}' for d, e in extents.items())}}}"


def size(count: float) -> str:
    """Returns a number of bytes."""
    return quantity(count, "B", 1024.0)


def cycles(count: float) -> str:
    """Returns a number of cycles."""
    return quantity(count, "cycles")


def us(time: float) -> str:
    """Returns a time given in microseconds."""
    return f"{time / 1000:.3g} ms" if time >= 1000 else f"{time:.3g} µs"


def share(part: float) -> str:
    """Returns a share of 1 in percent."""
    return f"{100 * part:.1f} %"
