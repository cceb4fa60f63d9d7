"""The text form of schedules, that of a call: the step's name, then its fields in order.

schedule := step (";" step)*
step     := name "(" field, ... ")"       split(x, 12)   reorder([y, x])   mark(x, vector)
field    := loop or buffer | integer | kind | "[" field, ... "]"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import get_args, get_origin, get_type_hints

from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.steps.ends import Balance, Even, Overlap, Peel
from rutc.tensor_ir.steps.inside import Inside
from rutc.tensor_ir.steps.loops import Cut, Fuse, Mark, Part, Reorder, Split
from rutc.tensor_ir.steps.matrix import MatrixTile
from rutc.tensor_ir.steps.pack import Pack
from rutc.tensor_ir.steps.partial import Apart, FactorOut, PartialSums
from rutc.tensor_ir.steps.prefetch import PrefetchBlock, PrefetchLater, PrefetchResult
from rutc.tensor_ir.steps.prefetch_reads import PrefetchReads
from rutc.tensor_ir.steps.preload import Preload
from rutc.tensor_ir.steps.prepare import Prepare
from rutc.tensor_ir.steps.reduction import BlockReduction, Lanes
from rutc.tensor_ir.steps.running import Running
from rutc.tensor_ir.steps.singly import Singly
from rutc.tensor_ir.steps.step import Field, Schedule, Step, field_text, step_name
from rutc.tensor_ir.steps.tile import Tile

STEPS: Mapping[str, type[Step]] = {
    step_name(kind): kind
    for kind in (
        Pack,
        Split,
        Fuse,
        Reorder,
        Peel,
        Even,
        Overlap,
        Balance,
        Cut,
        Part,
        Mark,
        Inside,
        Lanes,
        BlockReduction,
        PartialSums,
        Apart,
        Running,
        FactorOut,
        Tile,
        MatrixTile,
        PrefetchBlock,
        PrefetchLater,
        PrefetchReads,
        PrefetchResult,
        Preload,
        Prepare,
        Singly,
    )
}
"""Every step by its name in the text form."""

_TOKEN = re.compile(r"\s*(?:(-?\d+)|([A-Za-z_][A-Za-z0-9_.]*)|'((?:[^'\\]|\\.)*)'|([\[\](),;]))")


def print_schedule(schedule: Schedule) -> str:
    """The schedule as text: steps separated by semicolons."""
    return "; ".join(map(str, schedule))


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text: `parse_schedule(print_schedule(s)) == s`.

    Raises:
        ValueError: The text is no schedule; the message says where.
    """
    tokens = list(_tokens(text))
    if not tokens:
        return ()
    steps: list[Step] = []
    position = 0
    while True:
        step, position = _step(tokens, position)
        steps.append(step)
        if position == len(tokens):
            return tuple(steps)
        position = _expect(tokens, position, ";")


# -- parsing ------------------------------------------------------------------------------------
Token = tuple[str, str | int]
"""(number, name or mark; its value)."""


def _tokens(text: str) -> Iterator[Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"no token of a schedule: {text[position : position + 20]!r}")
        number, word, quote, mark = found.groups()
        if number is not None:
            yield "number", int(number)
        elif mark is not None:
            yield "mark", mark
        elif quote is not None:
            yield "name", re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], quote)
        else:
            yield "name", word
        position = found.end()


def _step(tokens: list[Token], position: int) -> tuple[Step, int]:
    kind, name = tokens[position] if position < len(tokens) else ("end", "")
    if kind != "name" or name not in STEPS:
        raise ValueError(f"{name!r} is no step; steps are {', '.join(STEPS)}")
    step = STEPS[str(name)]
    position = _expect(tokens, position + 1, "(")
    given: list[Field] = []
    position = _fields(tokens, position, ")", given)
    hints = get_type_hints(step)
    wanted = [(f.name, hints[f.name]) for f in fields(step)]  # type: ignore[arg-type]
    # Records that are older than a field lack it: it has a default.
    asked = sum(f.default is MISSING for f in fields(step))  # type: ignore[arg-type]
    if not asked <= len(given) <= len(wanted):
        raise ValueError(f"{name} takes {', '.join(n for n, _ in wanted)}: got {len(given)} fields")
    values = [_typed(f"{name}'s {n}", t, x) for (n, t), x in zip(wanted, given, strict=False)]
    return step(*values), position


def _fields(tokens: list[Token], position: int, end: str, into: list[Field]) -> int:
    if tokens[position : position + 1] == [("mark", end)]:
        return position + 1
    while True:
        if position == len(tokens):
            raise ValueError(f"the schedule ends where {end!r} is missing")
        kind, value = tokens[position]
        if (kind, value) == ("mark", "["):
            inner: list[Field] = []
            position = _fields(tokens, position + 1, "]", inner)
            into.append(tuple(inner))
        elif kind == "mark":
            raise ValueError(f"{value!r} stands where a field is missing")
        else:
            into.append(value)
            position += 1
        if tokens[position : position + 1] == [("mark", end)]:
            return position + 1
        position = _expect(tokens, position, ",")


def _expect(tokens: list[Token], position: int, mark: str) -> int:
    found = tokens[position][1] if position < len(tokens) else "the end"
    if found != mark or tokens[position][0] != "mark":
        raise ValueError(f"{found!r} stands where {mark!r} is missing")
    return position + 1


def _typed(what: str, wanted: object, x: Field) -> Field:
    """The field as its type: `str`, `int`, `Kind`, or a tuple of these."""
    if wanted is Kind and isinstance(x, str) and x in {k.value for k in Kind}:
        return Kind(x)
    if wanted in (str, int) and isinstance(x, wanted):
        return x
    if get_origin(wanted) is tuple and isinstance(x, tuple):
        first, *others = get_args(wanted)
        types = [first] * len(x) if others == [...] else [first, *others]
        if len(types) == len(x):
            return tuple(_typed(what, t, y) for t, y in zip(types, x, strict=True))
    raise ValueError(f"{what} cannot be {field_text(x)}")
