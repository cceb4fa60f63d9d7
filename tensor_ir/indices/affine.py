"""Integer expressions over named variables: index maps, extents, loop bounds and addresses.

An `Index` is a polynomial with integer coefficients over *atoms*, kept in one canonical form, so
that structural equality is algebraic equality for everything affine:

    index := const + sum(coefficient * atom * atom ...)
    atom  := name | (index // index) | (index % index) | min(index, index) | max(index, index)

`//` rounds toward minus infinity and `%` takes the divisor's sign, as in Python. Variables are
dims, loop counters or a model's symbolic sizes; all range over integers. Nothing overflows: the
verifier bounds every buffer below 2**63 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rutc.tensor_ir.indices import division
from rutc.tensor_ir.indices.atoms import FloorDiv, Max, Min, Mod, Var
from rutc.tensor_ir.indices.division import floordiv, maximum, minimum, mod
from rutc.tensor_ir.indices.polynomial import (
    ONE,
    ZERO,
    Atom,
    Compound,
    Index,
    Monomial,
    collect,
)
from rutc.tensor_ir.indices.ranges import Range, common_sizes, few_sizes
from rutc.tensor_ir.textual.quoting import quoted

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "Compound",
    "FloorDiv",
    "Index",
    "Max",
    "Min",
    "Mod",
    "Monomial",
    "Range",
    "Size",
    "Var",
    "collect",
    "floordiv",
    "maximum",
    "minimum",
    "mod",
    "plain",
    "product",
    "quoted",
    "typical",
]

Index.rules = division

Size = int | Index
"""A number of elements, bytes or iterations: an int, or an expression of symbolic sizes."""


def plain(x: Size) -> Size:
    """`x`, an int if it is constant."""
    return x.const if isinstance(x, Index) and not x.terms else x


def product(xs: Iterable[Index | int]) -> Index:
    """The product of `xs`; 1 for none."""
    total = ONE
    for x in xs:
        total = total * x
    return total


def typical(x: Size, symbols: Mapping[str, Range]) -> int:
    """`x` where every symbol has a common value of its range, for weighing costs."""
    return x if isinstance(x, int) else int(x.evaluate(common_sizes(_of(x, symbols))))


def fewest(x: Size, symbols: Mapping[str, Range]) -> int:
    """`x` where every symbol is as small as it may well be."""
    return x if isinstance(x, int) else int(x.evaluate(few_sizes(_of(x, symbols))))


def _of(x: Index, symbols: Mapping[str, Range]) -> dict[str, Range]:
    """The symbols that occur in `x`: a model may have hundreds."""
    return {name: symbols[name] for name in x.names()}
