"""Long sums are made of partial sums: errors grow with what is added one after another."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isqrt

from rutc.tensor_ir.kernel import Init, Kernel, Kind, Loop, Space, Stmt, Update, blocks
from rutc.tensor_ir.steps import NotApplicable, PartialSums, Schedule, Step
from rutc.tensor_ir.steps.base import moves, outer_ranges

SUMMANDS = 256
"""A partial sum has so many summands at least, about; it costs as much as one more of them."""

Around = tuple[Loop, ...]


def partial_sums(kernel: Kernel) -> tuple[Schedule, Kernel]:
    """Steps that make the long sums of a scheduled kernel of partial ones, and the kernel after.

    A sum of n numbers is made of about sqrt(n) sums, if they are many, and their number is known.
    """
    ranges = outer_ranges(kernel)
    starts: dict[str, frozenset[str]] = {}
    chosen: dict[str, int] = {}
    for s, around in _walk(kernel.body, ()):
        if isinstance(s, Init):
            starts |= {a.buffer: frozenset(x.var for x in around) for a in s.states}
        if isinstance(s, Update) and s.reducer.name == "sum" and s.reducer.state[0].is_float:
            (state,) = s.states
            if kernel.buffer(state.buffer).space is not Space.REGISTER:
                continue
            if any(x.kind in (Kind.DOT, Kind.MATRIX) for x in around):
                # Their instructions add to what they have.
                continue
            known = starts.get(state.buffer, frozenset())
            over = [x for x in around if x.var not in known and not moves(state, x.var)]
            part = _part(over, ranges)
            if part is not None:
                chosen.setdefault(*part)
    steps: list[Step] = []
    for step in (PartialSums(var, factor) for var, factor in chosen.items()):
        try:
            kernel = step.apply(kernel)
        except NotApplicable:
            # A loop that does something else besides: its sums stay in order.
            continue
        steps.append(step)
    return tuple(steps), kernel


def _part(loops: list[Loop], ranges: dict[str, tuple[int, int]]) -> tuple[str, int] | None:
    """The loop of which so many iterations are a partial sum; None for a short sum."""
    extents = [_extent(x, ranges) for x in loops]
    total = 1.0
    for e in extents:
        total *= e
    if total < 2 * SUMMANDS:
        return None
    fixed = all((x.hi - x.lo).is_const for x in loops)
    length = max(SUMMANDS, isqrt(int(total))) if fixed else SUMMANDS
    inside = 1.0
    for x, extent in zip(reversed(loops), reversed(extents), strict=True):
        if inside * extent > length and x.kind is Kind.SERIAL:
            return x.var, _factor(extent, max(1, int(length // inside)))
        inside *= extent
    return None


def _factor(extent: float, most: int) -> int:
    """The largest number up to `most` that divides an extent, if it is not far below."""
    if extent == inf:
        return most
    return next((f for f in range(most, most // 2, -1) if extent % f == 0), most)


def _extent(loop: Loop, ranges: dict[str, tuple[int, int]]) -> float:
    """The most iterations of a loop."""
    bounds = (loop.hi - loop.lo).bounds(ranges)
    return inf if bounds is None else max(bounds[1], 0)


def _walk(body: tuple[Stmt, ...], around: Around) -> Iterator[tuple[Stmt, Around]]:
    """All statements, each with the loops around it."""
    for s in body:
        yield s, around
        inside = (*around, s) if isinstance(s, Loop) else around
        for inner in blocks(s):
            yield from _walk(inner, inside)
