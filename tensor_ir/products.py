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
"""The largest magnitude of factors any two of which are *small*."""
LARGEST_PAIR = 2 * SMALL
"""Two factors are *small* if those of a sign add up to no more: the sum of their products with
bytes, of 0 to 255, fits 16 bits."""


def small_from(array: np.ndarray, axis: int | None) -> int:
    """Of what places along the axis pairs of small factors begin: multiples of 1 or 2; 0 if none.

    1 if any two elements are small, whatever the axis; 2 if elements 2i and 2i + 1 are.
    """
    if array.size == 0 or (array.min() >= -SMALL and array.max() <= SMALL):
        return 1
    if axis is None:
        return 0
    low, high = (np.minimum(array, 0), np.maximum(array, 0))
    fits = (
        pair_sums(high, axis).max() <= LARGEST_PAIR and pair_sums(low, axis).min() >= -LARGEST_PAIR
    )
    return 2 if fits else 0


def pair_sums(array: np.ndarray, axis: int) -> np.ndarray:
    """The sums of elements 2i and 2i + 1 along an axis, which comes first; one may be left over."""
    moved = np.moveaxis(array, axis, 0)
    sums = moved[::2].astype(np.int16)
    sums[: len(moved) // 2] += moved[1::2]
    return sums


def axis_summed(bound: tuple[str, ...], r: Read, const: Const) -> int | None:
    """The axis of a constant that the only loop of a sum goes along; None where there are more."""
    along = [d for d, c in r.coords if isinstance(c, Index) and c.as_var in bound]
    return const.axes.index(along[0]) if len(bound) == 1 and len(along) == 1 else None


def small_factors(nests: Iterable[Nest], constants: Mapping[str, Const]) -> Mapping[str, int]:
    """Where pairs of small factors begin (`small_from`) in constants of i8 multiplied by u8."""
    found: dict[str, int] = {}
    for n in nests:
        pair = factors_of(n.reducer, n.body) or ()
        if {r.dtype for r in pair} != {DType.I8, DType.U8}:
            continue
        for r in pair:
            const = constants.get(r.value)
            if r.dtype is DType.I8 and const is not None:
                here = small_from(const.data.array, axis_summed(n.bound, r, const))
                found[r.value] = min(found.get(r.value, here), here)
    return {name: places for name, places in found.items() if places}


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
