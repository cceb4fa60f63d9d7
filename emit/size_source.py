"""Sizes in the generated C: constants as they are, expressions as places in the table of sizes.

The table begins with the program's symbols and the counters of its loops; then come the values of
all expressions that the tables use. Where a table holds a size, a number below 0 stands for a place
in it: -1 for place 0, -2 for place 1, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from rutc.tensor_ir.affine import Atom, FloorDiv, Index, Max, Min, Mod, Size, Var

LARGEST_BYTES = 1 << 62
"""No memory of a run may reach so many bytes."""


class SizeTable:
    """The table of sizes of one program, while it is being collected."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self.places: dict[str, int] = {name: place for place, name in enumerate(symbols)}
        self.computed: dict[Index, int] = {}
        self.reserved: dict[Index, None] = {}

    def __len__(self) -> int:
        return len(self.places) + len(self.computed)

    def code(self, size: Size) -> int:
        """Returns the number that stands for a size in the tables."""
        if isinstance(size, int):
            return size
        if size.is_const:
            return size.const
        return -1 - self.place(size)

    def place(self, size: Index) -> int:
        """Returns the place of an expression in the table."""
        name = size.as_var
        if name is not None:
            return self.places[name]
        return self.computed.setdefault(size, len(self))

    def source(self, memory: tuple[Size, ...]) -> Iterator[str]:
        """Yields the functions that fill in the table, and that say how much memory it asks for.

        `memory` are the sizes in bytes of what a run allocates or is handed.
        """
        yield "static void compute_sizes(int64_t *v) {"
        yield "  (void)v;"
        for size, place in self.computed.items():
            yield f"  v[{place}] = {expression(size, self.places, 'rutc')};"
        yield "}"
        yield ""
        yield "/* The bytes of a block by their place, in floating point. */"
        yield "static double block_bytes(const int64_t *v, int64_t place) {"
        yield "  (void)v;"
        yield "  switch (place) {"
        for size in self.reserved:
            bytes_ = expression(size, self.places, "rutc_real")
            yield f"    case {self.place(size)}: return {bytes_};"
        yield "    default: return 0;"
        yield "  }"
        yield "}"
        yield ""
        yield "/* In floating point, which does not overflow. */"
        yield "static double largest_bytes(const int64_t *v) {"
        yield "  double most = 0;"
        yield "  (void)v;"
        for size in dict.fromkeys(m for m in memory if isinstance(m, Index)):
            yield f"  most = rutc_real_max(most, {expression(size, self.places, 'rutc_real')});"
        yield "  return most;"
        yield "}"


def expression(size: Index, places: Mapping[str, int], kind: str) -> str:
    """Returns a C expression; `kind` begins the names of its functions and tells its type.

    `3*batch*(seq // 2) + 1` -> `3*v[0]*rutc_floordiv(v[1], 2) + 1`
    """
    one = "1.0" if kind == "rutc_real" else "INT64_C(1)"

    def atom(a: Atom) -> str:
        match a:
            case Var(name):
                return f"v[{places[name]}]"
            case FloorDiv(x, y):
                return call("floordiv", x, y)
            case Mod(x, y):
                return call("mod", x, y)
            case Min(x, y):
                return call("min", x, y)
            case Max(x, y):
                return call("max", x, y)
            case _:
                assert_never(a)

    def call(function: str, x: Index, y: Index) -> str:
        return f"{kind}_{function}({expression(x, places, kind)}, {expression(y, places, kind)})"

    terms = [" * ".join([one, str(c), *map(atom, mono)]) for mono, c in size.terms]
    terms += [str(size.const)] if size.const or not terms else []
    return " + ".join(terms)
