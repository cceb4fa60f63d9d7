"""Kernels before their schedules as JSON, so that what was measured once is counted ever after.

A kernel is made by the planning of its day: plans change, and then a model no longer has it. Its
text leaves extents out, so objects themselves are kept. All that a kernel has is a table, in which
later entries name earlier ones by their numbers, each in a list of its own:

    [["Var", "d0"], ["", [0]], .., ["Loop", {"var": "d0", "lo": [4], ..}]]

An entry is the name of a class and what makes the object, by field or, where it is a list, by
place; tuples have no name. Objects that were one are one again: what is counted depends on it.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, BitCast, Cast, IndexValue, Lit, Local, Read
from rutc.tensor_ir.indices.atoms import FloorDiv, Max, Min, Mod, Var
from rutc.tensor_ir.indices.polynomial import Index
from rutc.tensor_ir.indices.ranges import CommonRange
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Put,
    Small,
    Space,
    Update,
)
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.reducer import Reducer

INDICES = (Index, Var, FloorDiv, Mod, Min, Max, CommonRange)
EXPRESSIONS = (Apply, BitCast, Cast, IndexValue, Lit, Local, Read, Reducer, DType)
STATEMENTS = (Kernel, Loop, Branch, Assign, Put, Init, Update, Access)
BUFFERS = (Buffer, Layout, Axis, Small, Space, Kind)
CLASSES: Mapping[str, Any] = {
    cls.__name__: cls for cls in (*INDICES, *EXPRESSIONS, *STATEMENTS, *BUFFERS)
}
"""Those that kernels are made of before their schedules, by their names."""

Entry = list[Any]
Kept = tuple[list[Entry], list[str]]
"""The table of a kernel, which is its last entry, and the names of its constants."""


def encoded(whole: Kernel) -> list[Entry]:
    """Returns the table of a kernel."""
    table: list[Entry] = []
    known: dict[int, int] = {}
    held: list[object] = []

    def visit(x: object) -> Any:
        if x is None or type(x) in (bool, int, float, str):
            return x
        if id(x) not in known:
            made = _parts(x, visit)
            known[id(x)] = len(table)
            table.append(made)
            # Nothing that is made while it is asked for takes the identity of another.
            held.append(x)
        return [known[id(x)]]

    visit(whole)
    return table


def _parts(x: object, visit: Any) -> Entry:
    if type(x) is tuple:
        return ["", *map(visit, cast(tuple[object, ...], x))]
    if isinstance(x, Enum):
        return [type(x).__name__, x.name]
    if is_dataclass(x):
        return [type(x).__name__, {f.name: visit(getattr(x, f.name)) for f in fields(x)}]
    cls, args, *_ = cast(tuple[Any, ...], x.__reduce__())
    return [cls.__name__, *map(visit, args)]


def decoded(table: Iterable[Entry]) -> Kernel:
    """Returns the kernel of a table."""
    made: list[Any] = []

    def value(x: Any) -> Any:
        return made[x[0]] if isinstance(x, list) else x

    for name, *parts in table:
        if not name:
            made.append(tuple(map(value, parts)))
        elif issubclass(CLASSES[name], Enum):
            made.append(CLASSES[name][parts[0]])
        elif parts and isinstance(parts[0], dict):
            made.append(CLASSES[name](**{n: value(x) for n, x in parts[0].items()}))
        else:
            made.append(CLASSES[name](*map(value, parts)))
    return cast(Kernel, made[-1])


def read(place: Path) -> dict[str, Kept]:
    """Returns the kernels of a file by what tells them from others."""
    if not place.exists():
        return {}
    found = json.loads(gzip.decompress(place.read_bytes()))
    return {digest: (table, constants) for digest, (table, constants) in found.items()}


def write(place: Path, kept: Mapping[str, Kept]) -> None:
    """Writes the file of such kernels."""
    text = json.dumps(dict(sorted(kept.items())), separators=(",", ":"))
    place.write_bytes(gzip.compress(text.encode(), mtime=0))
