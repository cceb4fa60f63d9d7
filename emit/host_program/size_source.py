"""Sizes in the generated C: constants as they are, expressions as places in the table of sizes.

The table begins with the program's symbols and the counters of its loops; then come the values of
all expressions that the tables use. Where a table holds a size, a number below 0 stands for a place
in it: -1 for place 0, -2 for place 1, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from rutc.tensor_ir.indices.affine import Atom, FloorDiv, Index, Max, Min, Mod, Size, Var

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
        shared = Shared(self.places, "rutc")
        for size, place in self.computed.items():
            yield from shared.assigned(f"v[{place}] = {{}}", size)
        yield "}"
        yield ""
        yield "/* The bytes of a block by their place, in floating point. */"
        yield "static double block_bytes(const int64_t *v, int64_t place) {"
        yield "  (void)v;"
        yield "  switch (place) {"
        for size in self.reserved:
            yield f"    case {self.place(size)}: {{"
            yield from Shared(self.places, "rutc_real").assigned("return {}", size)
            yield "    }"
        yield "    default: return 0;"
        yield "  }"
        yield "}"
        yield ""
        yield "/* In floating point, which does not overflow. */"
        yield "static double largest_bytes(const int64_t *v) {"
        yield "  double most = 0;"
        yield "  (void)v;"
        shared = Shared(self.places, "rutc_real")
        for size in dict.fromkeys(m for m in memory if isinstance(m, Index)):
            yield from shared.assigned("most = rutc_real_max(most, {})", size)
        yield "  return most;"
        yield "}"


class Shared:
    """C expressions of sizes in one function, in which what several have is computed once."""

    def __init__(self, places: Mapping[str, int], kind: str) -> None:
        """Sizes are of the table's `places`; `kind` begins functions' names and tells the type."""
        self._places = places
        self._kind = kind
        self._names: dict[Atom, str] = {}

    def assigned(self, statement: str, size: Index) -> Iterator[str]:
        """Yields the lines of a statement about a size, after those of what it is made of."""
        for mono, _ in size.terms:
            for a in mono:
                yield from self._named(a)
        yield f"  {statement.format(self._sum(size))};"

    def _named(self, a: Atom) -> Iterator[str]:
        """Yields the lines that give an atom a name, and those in it, where they have none yet.

        `3*batch*(seq // 2) + 1` -> `const int64_t t0 = rutc_floordiv(v[1], 2);` 3*v[0]*t0 + 1
        """
        match a:
            case Var(name):
                self._names[a] = f"v[{self._places[name]}]"
                return
            case FloorDiv():
                function = "floordiv"
            case Mod():
                function = "mod"
            case Min():
                function = "min"
            case Max():
                function = "max"
            case _:
                assert_never(a)
        if a in self._names:
            return
        for x in a.operands:
            for mono, _ in x.terms:
                for inner in mono:
                    yield from self._named(inner)
        name = f"t{len(self._names)}"
        type_ = "double" if self._kind == "rutc_real" else "int64_t"
        operands = ", ".join(map(self._sum, a.operands))
        yield f"  const {type_} {name} = {self._kind}_{function}({operands});"
        self._names[a] = name

    def _sum(self, size: Index) -> str:
        """The expression of a size whose atoms have names."""
        one = "1.0" if self._kind == "rutc_real" else "INT64_C(1)"
        terms = [
            " * ".join([one, str(c), *(self._names[a] for a in mono)]) for mono, c in size.terms
        ]
        terms += [str(size.const)] if size.const or not terms else []
        return " + ".join(terms)
