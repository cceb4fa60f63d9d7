"""Floats that become integers within literal bounds, for which there is shorter code."""

from __future__ import annotations

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, Expr, Lit


@record
class Clamped:
    """A float that is kept within bounds while it becomes an integer.

    Of bytes it may be one of 32 bits first (`by_i32`): u8(i32(min(max(%x, 0.0), 255.0)))
    """

    number: Expr
    low: float
    high: float
    by_i32: bool


def clamped(e: Cast) -> Clamped | None:
    """What a conversion to integers keeps within literal bounds; None of any other conversion."""
    match e:
        case Cast(Cast(arg, DType.I32), DType.U8 | DType.I8):
            by_i32 = True
        case _:
            arg, by_i32 = e.arg, False
    match arg:
        case Apply("min", (Apply("max", (x, Lit(float() as low))), Lit(float() as high))):
            floats = e.dtype.is_int and x.dtype in (DType.F32, DType.F64)
            return Clamped(x, low, high, by_i32) if floats else None
        case _:
            return None


def rounded(e: Expr) -> tuple[Expr, float] | None:
    """An f32 that is rounded, and the literal that is added to that; None where none is."""
    match e:
        case Apply("add", (Apply("round", (x,)), Lit(float() as shift))) if x.dtype is DType.F32:
            return x, shift
        case Apply("round", (x,)) if x.dtype is DType.F32:
            return x, 0.0
        case _:
            return None
