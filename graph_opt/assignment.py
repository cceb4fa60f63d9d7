"""An assignment: everything that is chosen about a graph, as printable data.

    assignment  := "assignment" "name" line*
    line        := sum %y by "algorithm"               another one than the nest's own
                 | recompute %v, ...                    by every nest that reads it
                 | store %v as dtype (by {dim, ...})?   in fewer bits than it is computed in
                 | %v arrangement
                 | copy %c of %v for %y number          what the nest of %y reads there, from a copy
                 | pack %c of %v for %y number          the same, of what it reads alone
                 | group {dim, ...}: %y, ...            nests that share a kernel's loops over dims
                 | join %y of %part, ...                parts of %y lie in it: it is no work
                 | slices {dim, ...} by number (within bytes)?: %y, ...
                                                        kernels that run over slices, one by one
                 | turns {dim, ...}: %y, ...            kernels that take turns, each over its dim
    arrangement := [axis, ...] (fill literal)?          outermost first
    axis        := dim(+before+after)? | dim/block | dim % block

Nests are named by their first results, kernels by their first nests, reads by their places among
the different reads of the nest. A nest that no group has is a kernel by itself. An arrangement
there is of every value whose memory is the plan's own, whether a kernel stores it or keeps it.

Algorithms are those of `alternatives`; what else is assigned is about the graph that they give.
`decide.realise` makes its plan, or says why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit
from rutc.tensor_ir.indices.affine import quoted
from rutc.tensor_ir.textual.lexer import Kind, tokenize
from rutc.tensor_ir.textual.syntax import Cursor
from rutc.tensor_ir.textual.text import print_literal, value_name

T = TypeVar("T")


@record
class Arrangement:
    """How a value lies in memory: its dims outermost first, and elements of a fill around it.

    Of a dim in `blocks` there are blocks of so many indices, whose indices are innermost.
    """

    order: tuple[str, ...]
    halo: tuple[tuple[str, int, int], ...] = ()
    """(dim, elements before index 0, after the last one), by name."""
    fill: Lit | None = None
    blocks: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        around = {d: f"(+{lo}+{hi})" for d, lo, hi in self.halo}
        blocks = dict(self.blocks)
        axes = [
            quoted(d) + (f"/{blocks[d]}" if d in blocks else "") + around.get(d, "")
            for d in self.order
        ]
        axes += [f"{quoted(d)} % {n}" for d, n in self.blocks]
        fill = "" if self.fill is None else f" fill {print_literal(self.fill, None)}"
        return f"[{', '.join(axes)}]{fill}"


@record
class Stored:
    """The type of fewer bits that a value is stored in.

    Integers count steps, of a size for each index of the dims `by`.
    """

    value: str
    dtype: DType
    by: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f" by {_set(self.by)}" if self.dtype.is_int else ""
        return f"store {value_name(self.value)} as {self.dtype}{by}"


@record
class Copy:
    """A copy of a value, from which the nest `reader` takes its read of that number.

    It is of the whole value; if it is `packed`, of what is read alone, with the nest's loops as
    its dims.
    """

    name: str
    value: str
    reader: str
    number: int
    packed: bool = False

    def __str__(self) -> str:
        kind = "pack" if self.packed else "copy"
        names = (value_name(v) for v in (self.name, self.value, self.reader))
        return "{} {} of {} for {} {}".format(kind, *names, self.number)


@record
class Grouping:
    """Nests that share a kernel: all in one iteration of loops over the `shared` dims."""

    shared: tuple[str, ...]
    nests: tuple[str, ...]

    def __str__(self) -> str:
        return f"group {_set(self.shared)}: {_values(self.nests)}"


@record
class Join:
    """A concatenation that is no work, and the values that lie in its memory, which it joins."""

    value: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"join {value_name(self.value)} of {_values(self.parts)}"


@record
class Slicing:
    """Kernels of which each does a slice of `size` indices of the first one's last dim in turn.

    They do so for each index of the first one's other dims. Slices of symbolic dims are shorter
    where what passes between the kernels is not `within` so many bytes.
    """

    kernels: tuple[str, ...]
    dims: tuple[str, ...]
    size: int
    within: int | None = None

    def __str__(self) -> str:
        within = "" if self.within is None else f" within {self.within}"
        return f"slices {_set(self.dims)} by {self.size}{within}: {_values(self.kernels)}"


@record
class Turning:
    """Kernels that take turns over the indices of a dim, which is another one's for each.

    Those of a loop's body do so over blocks of `size` indices, each with all trips.
    """

    kernels: tuple[str, ...]
    dims: tuple[str, ...]
    size: int = 1

    def __str__(self) -> str:
        by = f" by {self.size}" if self.size != 1 else ""
        return f"turns {_set(self.dims)}{by}: {_values(self.kernels)}"


@record
class Assignment:
    """What is chosen about a graph."""

    name: str
    arrangements: Mapping[str, Arrangement]
    copies: tuple[Copy, ...] = ()
    groups: tuple[Grouping, ...] = ()
    slices: tuple[Slicing, ...] = ()
    turns: tuple[Turning, ...] = ()
    algorithms: tuple[tuple[str, str], ...] = ()
    """(value, algorithm) of sums that are computed otherwise than they stand."""
    recomputed: tuple[str, ...] = ()
    """Values that every nest computes anew that reads them."""
    types: tuple[Stored, ...] = ()
    """The types of values that are stored in fewer bits than they are computed in."""
    joins: tuple[Join, ...] = ()
    """Concatenations whose parts lie where they do; what is part of another one comes first."""

    def __str__(self) -> str:
        lines = [f"assignment {json.dumps(self.name)}"]
        lines += [f"sum {value_name(v)} by {json.dumps(a)}" for v, a in self.algorithms]
        lines += [f"recompute {_values(self.recomputed)}"] if self.recomputed else []
        lines += map(str, self.types)
        lines += [f"{value_name(v)} {a}" for v, a in self.arrangements.items()]
        lines += map(str, (*self.copies, *self.joins, *self.groups, *self.slices, *self.turns))
        return "\n".join(lines) + "\n"


def parse_assignment(text: str) -> Assignment:
    """The assignment of a text: `parse_assignment(str(a)) == a`.

    Raises:
        ParseError: The text is none; the message shows the place.
    """
    return _Parser(Cursor(text, tokenize(text))).assignment()


def _set(dims: tuple[str, ...]) -> str:
    return f"{{{', '.join(map(quoted, dims))}}}"


def _values(names: tuple[str, ...]) -> str:
    return ", ".join(map(value_name, names))


class _Parser:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    def assignment(self) -> Assignment:
        c = self.cursor
        c.expect("assignment")
        name = c.of(Kind.STRING).text
        arrangements: dict[str, Arrangement] = {}
        copies: list[Copy] = []
        groups: list[Grouping] = []
        slices: list[Slicing] = []
        turns: list[Turning] = []
        algorithms: list[tuple[str, str]] = []
        recomputed: list[str] = []
        types: list[Stored] = []
        joins: list[Join] = []
        while c.of(Kind.NEWLINE, Kind.END).kind is Kind.NEWLINE:
            if c.ended:
                continue
            if c.token.kind is Kind.VALUE:
                value = self.value()
                arrangements[value] = self.arrangement()
            elif c.at("copy") or c.at("pack"):
                copies.append(self.copy(packed=c.take().text == "pack"))
            elif c.accept("sum"):
                value = self.value()
                c.expect("by")
                algorithms.append((value, c.of(Kind.STRING).text))
            elif c.accept("recompute"):
                recomputed += self.values()
            elif c.accept("store"):
                value = self.value()
                c.expect("as")
                dtype = c.dtype()
                types.append(Stored(value, dtype, self.dims() if c.accept("by") else ()))
            elif c.accept("join"):
                value = self.value()
                c.expect("of")
                joins.append(Join(value, self.values()))
            elif c.accept("group"):
                groups.append(Grouping(self.dims(), self.members()))
            elif c.accept("slices"):
                dims = self.dims()
                c.expect("by")
                size = self.number()
                within = self.number() if c.accept("within") else None
                slices.append(Slicing(self.members(), dims, size, within))
            elif c.accept("turns"):
                dims = self.dims()
                size = self.number() if c.accept("by") else 1
                turns.append(Turning(self.members(), dims, size))
            else:
                raise c.fail(f"expected a line of an assignment but found {c.token}")
        return Assignment(
            name,
            arrangements,
            tuple(copies),
            tuple(groups),
            tuple(slices),
            tuple(turns),
            tuple(algorithms),
            tuple(recomputed),
            tuple(types),
            tuple(joins),
        )

    def copy(self, *, packed: bool) -> Copy:
        name = self.value()
        self.cursor.expect("of")
        value = self.value()
        self.cursor.expect("for")
        return Copy(name, value, self.value(), self.number(), packed)

    def arrangement(self) -> Arrangement:
        c = self.cursor
        order: list[str] = []
        halo: list[tuple[str, int, int]] = []
        factors: dict[str, int] = {}
        blocks: list[tuple[str, int]] = []

        def axis() -> None:
            d = c.name()
            if c.accept("%"):
                n = self.number()
                if factors.get(d) != n:
                    raise c.fail(f"{d} has no blocks of {n}")
                blocks.append((d, n))
                return
            order.append(d)
            if c.accept("/"):
                factors[d] = self.number()
            if c.accept("("):
                c.expect("+")
                before = self.number()
                c.expect("+")
                halo.append((d, before, self.number()))
                c.expect(")")

        c.expect("[")
        self.several(axis, "]")
        if len(blocks) != len(factors):
            raise c.fail("blocks of a dim have no axis within them")
        fill = c.literal() if c.accept("fill") else None
        return Arrangement(tuple(order), tuple(sorted(halo)), fill, tuple(blocks))

    def dims(self) -> tuple[str, ...]:
        self.cursor.expect("{")
        return self.several(self.cursor.name, "}")

    def members(self) -> tuple[str, ...]:
        self.cursor.expect(":")
        return self.values()

    def values(self) -> tuple[str, ...]:
        found = [self.value()]
        while self.cursor.accept(","):
            found.append(self.value())
        return tuple(found)

    def several(self, item: Callable[[], T], end: str) -> tuple[T, ...]:
        found: list[T] = []
        while not self.cursor.accept(end):
            if found:
                self.cursor.expect(",")
            found.append(item())
        return tuple(found)

    def value(self) -> str:
        return self.cursor.of(Kind.VALUE).text

    def number(self) -> int:
        at = self.cursor.of(Kind.NUMBER)
        if not at.text.isdigit():
            raise self.cursor.fail("expected a whole number", at)
        return int(at.text)
