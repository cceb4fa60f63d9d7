"""Sums of products of 8-bit integers, for which processors have instructions of their own."""

from __future__ import annotations

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, Expr, Read
from rutc.tensor_ir.kernel import Update
from rutc.tensor_ir.reducer import Reducer


def narrow_factors(s: Update) -> tuple[Read, Read] | None:
    """The 8-bit reads whose products an update adds to an i32; None where it does not."""
    return factors_of(s.reducer, s.elements)


def factors_of(reducer: Reducer | None, elements: tuple[Expr, ...]) -> tuple[Read, Read] | None:
    """The 8-bit reads of which a reduction sums the products in i32; None for any other."""
    if reducer is None or reducer.name != "sum" or reducer.state != (DType.I32,):
        return None
    match elements[0]:
        case Apply(op="mul", args=(a, b)):
            p, q = _narrow(a), _narrow(b)
            return None if p is None or q is None else (p, q)
        case _:
            return None


def _narrow(e: Expr) -> Read | None:
    match e:
        case Cast(Read() as r, DType.I32) if r.dtype in (DType.I8, DType.U8):
            plain = all(isinstance(c, Index) for _, c in r.coords)
            return r if plain else None
        case _:
            return None
