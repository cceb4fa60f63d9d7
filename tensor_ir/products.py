"""Sums of products of narrow numbers, for which processors have instructions of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, Expr, Read, terms
from rutc.tensor_ir.graph import Const, Nest
from rutc.tensor_ir.kernel import Update
from rutc.tensor_ir.reducer import Reducer

SUMMED = {
    DType.I8: DType.I32,
    DType.U8: DType.I32,
    DType.I16: DType.I32,
    DType.BF16: DType.F32,
}
"""The types of factors, and those in which their products are summed."""

SMALL = 64
"""The largest magnitude of a *small* factor: the sum of two products with bytes fits 16 bits."""


def is_small(array: np.ndarray) -> bool:
    """Whether all elements are small: -64 to 64."""
    return array.size == 0 or bool(array.min() >= -SMALL and array.max() <= SMALL)


def small_factors(nests: Iterable[Nest], constants: Mapping[str, Const]) -> frozenset[str]:
    """The constants of i8 that are multiplied by u8 in sums, and hold small factors only."""
    found: set[str] = set()
    for n in nests:
        pair = factors_of(n.reducer, n.body) or ()
        if {r.dtype for r in pair} == {DType.I8, DType.U8}:
            found |= {r.value for r in pair if r.dtype is DType.I8 and r.value in constants}
    return frozenset(name for name in found if is_small(constants[name].data.array))


def narrow_factors(s: Update) -> tuple[Read, Read] | None:
    """The integer reads whose products an update adds to an i32; None where it does not."""
    return factors_of(s.reducer, s.elements)


def factors_of(reducer: Reducer | None, elements: tuple[Expr, ...]) -> tuple[Read, Read] | None:
    """The integer reads of which a reduction sums the products in i32; None for any other."""
    found = terms_of(reducer, elements)
    if found is None or len(found) != 1 or found[0][0].dtype is DType.BF16:
        return None
    return found[0]


def terms_of(
    reducer: Reducer | None, elements: tuple[Expr, ...]
) -> tuple[tuple[Read, Read], ...] | None:
    """The narrow reads whose products a reduction sums, in one wide type; None for any other.

    An element is a product, or a sum of several.
    """
    if reducer is None or reducer.name != "sum":
        return None
    found = [_product(t) for t in terms(elements[0])]
    known = tuple(pair for pair in found if pair is not None)
    kinds = {(SUMMED[r.dtype],) for pair in known for r in pair}
    return known if len(known) == len(found) and kinds == {reducer.state} else None


def _product(e: Expr) -> tuple[Read, Read] | None:
    match e:
        case Apply(op="mul", args=(a, b)):
            p, q = _narrow(a), _narrow(b)
            return None if p is None or q is None else (p, q)
        case _:
            return None


def _narrow(e: Expr) -> Read | None:
    match e:
        case Cast(Read() as r, to) if SUMMED.get(r.dtype) is to:
            plain = all(isinstance(c, Index) for _, c in r.coords)
            return r if plain else None
        case _:
            return None
