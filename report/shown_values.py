"""How outputs look: a summary of each as JSON, and a table of them for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rutc.report.display import Json
from rutc.report.listing import Table, numeral

if TYPE_CHECKING:
    from rutc.verify.judging.compare import Value

SHOWN = 6
"""Elements that are shown of an output, its first ones."""


def values_json(values: Mapping[str, Value]) -> list[Json]:
    """Returns a summary of each output as JSON."""
    return [{"name": name, **_summary(value)} for name, value in values.items()]


def values_table(values: Mapping[str, Value]) -> Table:
    """Returns one row per output: dtype, shape, range, the first elements."""
    table = Table(
        *("output", "dtype", "shape", "min", "mean", "max", "first elements"),
        names=("output", "dtype", "shape", "first elements"),
    )
    for name, value in values.items():
        summary = _summary(value)
        told = (summary[key] for key in ("min", "mean", "max"))
        numbers = (numeral(x) if isinstance(x, float) else str(x) for x in told)
        shape, first = str(summary["shape"]), str(summary["first"])
        table.add(name, str(summary["dtype"]), shape, *numbers, first)
    return table


def _summary(value: Value) -> Json:
    if not isinstance(value, np.ndarray):
        shape = [] if value is None else [len(value)]
        return {**_structure(value), "shape": shape, "min": "", "mean": "", "max": ""}
    dtype = "string" if value.dtype.kind in "OUS" else str(value.dtype)
    summary: Json = {"dtype": dtype, "shape": list(value.shape)}
    first = [_element(item) for item in value.reshape(-1)[:SHOWN]]
    numbers: Json = {"min": "", "mean": "", "max": ""}
    if value.size and value.dtype.kind in "biufV":
        wide = value.astype(np.float64)
        numbers = {
            "min": float(f"{wide.min():.6g}"),
            "mean": float(f"{wide.mean():.6g}"),
            "max": float(f"{wide.max():.6g}"),
        }
        if value.dtype.kind in "iu":
            numbers |= {"min": int(value.min()), "max": int(value.max())}
    return {**summary, **numbers, "first": " ".join(first)}


def _structure(value: object) -> Json:
    """What is no array: its kind, and the first of what it holds."""
    if value is None:
        return {"dtype": "optional", "first": ""}
    if isinstance(value, Mapping):
        first = [f"{key}: {_element(item)}" for key, item in list(value.items())[:SHOWN]]
        return {"dtype": "map", "first": ", ".join(first)}
    assert isinstance(value, list | tuple)
    return {"dtype": "sequence", "first": _element(value[0]) if len(value) else ""}


def _element(item: object) -> str:
    """An element, or an element of a sequence, in short."""
    if isinstance(item, np.ndarray) and item.ndim:
        return f"{item.dtype}{list(item.shape)}"
    if item is None or isinstance(item, Mapping | list | tuple):
        return str(_structure(item)["first"])
    return f"{item:.6g}" if isinstance(item, float | np.floating) else str(item)
