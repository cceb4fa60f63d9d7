"""Long sums are made of partial sums: errors grow with what is added one after another."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isqrt

from rutc.tensor_ir.indices.affine import FloorDiv, Index, Range
from rutc.tensor_ir.kernel import Init, Kernel, Kind, Loop, Space, Update
from rutc.tensor_ir.statements import walk_within
from rutc.tensor_ir.steps import NotApplicable, PartialSums, Schedule, Step
from rutc.tensor_ir.steps.step import moves, outer_ranges

SUMMANDS = 256
"""A partial sum has so many summands at least, about; it costs as much as one more of them."""
PAIRED = 4096
"""The same of pairs of products, whose factors are rounded to far fewer bits than their sums."""
SUMS = frozenset(("sum", "moments"))
"""Reducers whose long reductions are made of partial ones.

Of `logsumexp`, which keeps all registers busy, each element would take a twentieth longer.
"""


def partial_sums(kernel: Kernel) -> tuple[Schedule, Kernel]:
    """Steps that make the long sums of a scheduled kernel of partial ones, and the kernel after.

    A sum of n numbers is made of about sqrt(n) sums, if they are many, and their number is known.
    """
    ranges = outer_ranges(kernel)
    starts: dict[str, frozenset[str]] = {}
    chosen: dict[str, int] = {}
    for s, around in walk_within(kernel.body):
        if isinstance(s, Init):
            starts |= {a.buffer: frozenset(x.var for x in around) for a in s.states}
        if isinstance(s, Update) and s.reducer.name in SUMS and s.reducer.state[0].is_float:
            if any(kernel.buffer(a.buffer).space is not Space.REGISTER for a in s.states):
                continue
            if any(x.kind is Kind.MATRIX for x in around):
                # Matrix registers add to what they have.
                continue
            state = s.states[0]
            known = starts.get(state.buffer, frozenset())
            over = [x for x in around if x.var not in known and not moves(state, x.var)]
            paired = any(x.kind is Kind.DOT for x in around)
            part = _part(over, ranges, PAIRED if paired else SUMMANDS)
            if part is not None:
                chosen.setdefault(*part)
    steps: list[Step] = []
    for step in (PartialSums(var, factor) for var, factor in chosen.items()):
        try:
            kernel = step.apply(kernel)
        except NotApplicable:
            # Sums stay in order where their loop does more, or its ends are another one's to tell.
            continue
        steps.append(step)
    return tuple(steps), kernel


def _part(loops: list[Loop], ranges: Mapping[str, Range], summands: int) -> tuple[str, int] | None:
    """The loop of which so many iterations are a partial sum; None for a short sum.

    One has so many summands at least, about.
    """
    extents = [_extent(x, ranges) for x in loops]
    total = 1.0
    for e in extents:
        total *= e
    if total < 2 * summands:
        return None
    fixed = all((x.hi - x.lo).is_const for x in loops)
    length = max(summands, isqrt(int(total))) if fixed else summands
    inside = 1.0
    for x, extent in zip(reversed(loops), reversed(extents), strict=True):
        if inside * extent > length and x.kind is Kind.SERIAL:
            most = max(1, int(length // inside))
            return x.var, _factor(int(extent), most) if (x.hi - x.lo).is_const else most
        inside *= extent
    return None


def _factor(extent: int, most: int) -> int:
    """The largest number up to `most` that divides an extent, if it is half of that or more."""
    return next((f for f in range(most, (most - 1) // 2, -1) if extent % f == 0), most)


def _extent(loop: Loop, ranges: Mapping[str, Range]) -> float:
    """The most iterations of a loop."""
    size = loop.hi - loop.lo
    bounds = size.bounds(ranges)
    most = inf if bounds is None else max(bounds[1], 0)
    return min(most, _most_between(size))


def _most_between(size: Index) -> float:
    """The largest value of `x//d - y//d + c` where y is x but for a constant; inf of others.

    What whole blocks of symbolic extent leave over is `(n+63)//64 - n//64`.
    """
    match size.terms:
        case (((FloorDiv(x, d),), 1), ((FloorDiv(y, e),), -1)) | (
            ((FloorDiv(y, e),), -1),
            ((FloorDiv(x, d),), 1),
        ) if d == e and d.is_const and (x - y).is_const:
            return max(size.const - (y - x).const // d.const, 0)
        case _:
            return inf
