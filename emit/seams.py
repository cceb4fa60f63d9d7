"""Vectors whose lanes are neighbours but for a seam, where a quotient of the place goes on."""

from __future__ import annotations

from functools import reduce

from rutc.emit import ir
from rutc.emit.index import IndexEmitter, Lane
from rutc.emit.ir_vectors import i64
from rutc.tensor_ir.affine import Index


def crosses(
    b: ir.IRBuilder, index: IndexEmitter, parts: list[tuple[Index, Index]], lane: Lane
) -> ir.Value:
    """Whether any of what lanes divide goes on between the first lane of a vector and the last.

    (v + 3) % n, v = base + lane  ->  (base + 3) % n + lanes - 1 >= n
    """

    def within(num: Index, den: Index) -> ir.Value:
        step = num.coefficient(lane.var)
        assert step is not None
        first = index.simplified(num.subs({lane.var: Index.of(lane.base)}) % den)
        last = index.emit(first + step * (lane.lanes - 1))
        if step < 0:
            return b.icmp_signed("<", last, i64(0))
        return b.icmp_signed(">=", last, index.emit(den))

    return reduce(b.or_, [within(num, den) for num, den in parts])
