"""Where vectors are divided: at a seam, where a quotient goes on, or at the end of a loop."""

from __future__ import annotations

from functools import reduce

from rutc.emit.index import CHOSEN, IndexEmitter, Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import i64
from rutc.emit.loads.lane_masks import constant_lanes
from rutc.tensor_ir.indices.affine import Index


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


def may_end(lane: Lane) -> bool:
    """Whether only a run tells if the loop ends within the vector."""
    known = lane.mask is None or constant_lanes(lane.mask) is not None
    return not known and lane.end != CHOSEN


def ends(b: ir.IRBuilder, index: IndexEmitter, lane: Lane) -> ir.Value:
    """Whether the loop ends within the vector."""
    return b.icmp_signed("<", index.emit(lane.end), i64(lane.base + lane.lanes))
