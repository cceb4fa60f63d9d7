"""Division of vectors of f32 by one number, by products that give the nearest quotient."""

from __future__ import annotations

import numpy as np

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import is_vector
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.emit.rounded_quotient import DIVISORS
from rutc.tensor_ir.machine import Machine

PRECISE = 2.0**-25
"""A reciprocal off by less: products with it are off by less than a unit in the last place."""


def divided_by_one(
    memory: MemoryEmitter, x: ir.Value, divisor: ir.Value, literal: float | None, machine: Machine
) -> ir.Value | None:
    """A vector divided by a scalar by products; None where that may differ or is slower.

    With the nearest reciprocal, a quotient off by at most one unit in the last place whose residue
    is added times that reciprocal is the nearest one [Markstein 1990]. The product with the
    reciprocal is such a quotient if that is precise by chance, as that of a `literal` divisor may
    be; otherwise the first residue makes it one. A residue that is not finite makes NaN, and the
    product is the quotient already. A divisor that only the run knows is brought near 1 by a power
    of two: a small one with the dividends before, as these may be subnormal numbers, a large one
    with the quotients after. Residues of dividends below 2**-100 may underflow, and their quotients
    be off by one.

    The dividends take the divisor's sign, and residues count down: a residue of 0, which is +0,
    then leaves a quotient of -0 as it is.
    """
    if not is_vector(x) or is_vector(divisor):
        return None
    b, lanes, residues, products = memory.builder, x.lanes, 2, 6
    after = None
    if literal is not None:
        if not DIVISORS[0] < abs(literal) < DIVISORS[1]:
            return None
        nearest = float(np.float32(1.0) / np.float32(literal))
        residues, products = 1 if abs(nearest * literal - 1.0) < PRECISE else 2, 4
    if (2 * residues + products) / machine.fma_per_cycle > machine.divide_cycles:
        return None
    one_over: ir.Value
    if literal is not None:
        x = x if literal > 0 else b.fneg(x)
        divisor, one_over = (ir.Constant(divisor.type, abs(v)) for v in (literal, nearest))
    else:
        divisor, before, after = _near_one(memory, divisor)
        x = b.fmul(x, memory.widen(before, lanes))
        one_over = b.fdiv(ir.Constant(divisor.type, 1.0), divisor)
    reciprocal, divisor = memory.widen(one_over, lanes), memory.widen(divisor, lanes)
    first = quotient = b.fmul(x, reciprocal)
    minus = b.fneg(x)
    for _ in range(residues):
        residue = b.intrinsic("fma", quotient, divisor, minus)
        quotient = b.intrinsic("fma", b.fneg(residue), reciprocal, quotient)
    found = b.select(b.fcmp_ordered("ord", quotient, quotient), quotient, first)
    return found if after is None else b.fmul(found, memory.widen(after, lanes))


def _near_one(memory: MemoryEmitter, divisor: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(the divisor's size times two powers of two, which has a normal reciprocal; those powers).

    Dividends take the first, which is at least 1 and has the divisor's sign, quotients the second,
    which is at most 1.
    """
    b, size = memory.builder, _magnitude(memory, divisor)
    low, high, one = (ir.Constant(divisor.type, v) for v in (*DIVISORS, 1.0))
    before = b.select(b.fcmp_ordered("<", size, low), high, one)
    after = b.select(b.fcmp_ordered(">", size, high), low, one)
    near = b.fmul(b.fmul(size, before), after)
    return near, b.intrinsic("copysign", before, divisor), after


def _magnitude(memory: MemoryEmitter, x: ir.Value) -> ir.Value:
    return memory.builder.intrinsic("fabs", x)
