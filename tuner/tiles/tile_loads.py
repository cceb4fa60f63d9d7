"""What the loads of a register tile and the lines of its rows cost."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from math import gcd, prod

from rutc.tensor_ir.machine import NEAR_STRIDES, PAIR, Machine
from rutc.tuner.access import Reduction, Shape, Touch


def reuses(shape: Shape, var: str) -> bool:
    """Whether rows along `var` share an operand."""
    return any(not t.depends(var) for r in shape.reductions for t in r.reads)


def kept_places(r: Reduction, rows: tuple[tuple[str, int], ...], inner: str, extent: int) -> int:
    """The places that a window reads again in a later step of the loop `inner`, at most.

    What a row reads, the one `apart` rows before it reads `again` steps later: of windows that move
    by s places the next row s steps before, of dilated ones the next but one in the next step. A
    step of the loop goes over the rows along all other loops, too, each of which has such places.
    """
    kept = 0
    for v, f in rows:
        for t in r.reads:
            row, step = t.strides.get(v), t.strides.get(inner)
            if row and step and not t.packed:
                common = gcd(row, step)
                again, apart = abs(row) // common, abs(step) // common
                if again < extent and apart < f:
                    others = prod([g for u, g in rows if u != v and t.depends(u)])
                    kept = max(kept, ((f - apart) * others + 1) * again)
    return kept


def spread_bytes(t: Touch, r: Reduction, machine: Machine) -> int:
    """Bytes of the first cache that a step of the reduction takes, as its sets are not all used.

    Of a distance that only a run tells: as many as it may take.
    """
    longest = max(r.loops, key=lambda x: abs(t.strides.get(x.var) or 0), default=None)
    moves = longest is not None and not t.packed and t.strides.get(longest.var)
    if longest is not None and moves and not isinstance(t.exact.get(longest.var, 0), int):
        return machine.l1_way_bytes
    stride = 0 if longest is None or t.packed else t.strides.get(longest.var) or 0
    return gcd(stride * t.bytes, machine.l1_way_bytes) if stride else 1


def lines_loaded(
    t: Touch,
    r: Reduction,
    shape: Shape,
    rows: tuple[tuple[str, int], ...],
    order: list[str],
    passing: float,
    machine: Machine,
) -> float:
    """Lines that the rows take from the second cache, a step of the reduction.

    The bytes of so many products a step are `passing`.
    """
    lost = evicted_rows(t, rows, machine)
    if lost or t.packed or t.buffer_bytes <= machine.l1 // 2:
        return lost
    line = machine.line_bytes
    lines = 1.0
    for v, f in rows:
        step = abs(t.strides.get(v) or 0) * t.bytes
        lines *= f if step >= line else 1 + (f - 1) * step / line
    own = {x.var for x in r.loops}
    for v in reversed([v for v in order if v in own]):
        # A line serves all steps that stay in it.
        step, extent = abs(t.strides.get(v) or 0) * t.bytes, shape.extents[v]
        lines /= min(extent, max(1.0, line / step)) if step else extent
        if step * extent >= line:
            break
    return passing * lines * machine.coefficients.tiles.lines_anew


def evicted_rows(
    t: Touch, rows: tuple[tuple[str, int], ...], machine: Machine, others: int = 0
) -> int:
    """How many of the rows lie in sets of the first cache that cannot hold all of theirs.

    They hold `others` lines of something else, too.
    """
    if t.packed:
        return 0
    steps = ((f, (t.strides.get(v) or 0) * t.bytes) for v, f in rows)
    moving = tuple([(f, step) for f, step in steps if step])
    ways = machine.l1 // machine.l1_way_bytes
    if prod([f for f, _ in moving]) + others <= ways:
        return 0
    return _crammed(moving, machine.line_bytes, machine.l1_way_bytes, ways - others)


@functools.lru_cache(maxsize=4096)
def _crammed(steps: tuple[tuple[int, int], ...], line_bytes: int, way_bytes: int, room: int) -> int:
    """Lines at all multiples of the steps, fewer than each one's count, in sets that overflow.

    A set has `room` for so many.
    """
    places = {0}
    for f, step in steps:
        if step % line_bytes:
            places = {p + i * step for p in places for i in range(f)}
    # Most steps are whole lines, and few places begin within those that are passed.
    lines = {p // line_bytes for p in places}
    for f, step in steps:
        if step % line_bytes == 0:
            lines = {p + i * (step // line_bytes) for p in lines for i in range(f)}
    sets = Counter(line % (way_bytes // line_bytes) for line in lines)
    return sum(n for n in sets.values() if n > room)


def places_of_rows(
    t: Touch, rows: tuple[tuple[str, int], ...], unrolled: Mapping[str, int] | None = None
) -> float:
    """Places that rows read in a step of the reduction; of `unrolled` loops, windows' once."""
    count = 1.0
    for v, f in rows:
        if t.depends(v):
            count *= _window(t, v, f, unrolled) if unrolled else f
    return count


def loads_of_step(
    t: Touch,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    width: int,
) -> float:
    """Loads of a step of the reduction."""
    count = places_of_rows(t, rows)
    stride = t.strides.get(vector, 0)
    if stride == 0:
        return count
    if t.near(vector):
        return count * vectors
    return count * vectors * far_load(stride, width)


def in_squares(t: Touch, r: Reduction, shape: Shape, vector: str, machine: Machine) -> str | None:
    """The loop of a reduction that goes along memory in whole squares of vectors across it.

    None without one, and where the first cache cannot hold the lines of a square.
    """
    fixed = (x.var for x in r.loops if x.var not in shape.symbolic)
    along = (v for v in fixed if t.across(vector, v) and shape.extents[v] % machine.width == 0)
    found = next(along, None)
    lost = found is not None and evicted_rows(t, ((vector, machine.width),), machine)
    return None if lost else found


def held_operand(
    r: Reduction, vector: str, vectors: int, rows: tuple[tuple[str, int], ...], width: int
) -> Touch | None:
    """The operand whose part of a step is held in registers, the smallest; None without operands.

    The parts of others pass by one at a time, if the loops along which it changes are inside of
    those along which it stays.
    """
    return min(r.reads, key=lambda t: loads_of_step(t, vector, vectors, rows, width), default=None)


def is_sorted(t: Touch, vector: str) -> bool:
    """Whether its vectors are loaded with what lies between their elements."""
    return not t.packed and t.strides.get(vector) in NEAR_STRIDES


def widened(r: Reduction, vector: str, machine: Machine) -> tuple[Touch, ...]:
    """The vectors of bytes of which numbers of 16 bits are made for a sum of pairs."""
    if r.together(machine) != PAIR:
        return ()
    return tuple(t for t in r.reads if t.bytes == 1 and t.depends(vector))


def _window(t: Touch, row: str, rows: int, unrolled: Mapping[str, int]) -> float:
    """Places along a row loop per step of the reduction, those of neighbours' windows once."""
    stride = t.strides.get(row)
    for v, turns in unrolled.items():
        step = t.strides.get(v)
        if (
            stride
            and step
            and not t.packed
            and stride % step == 0
            and stride // step in range(turns)
        ):
            return ((rows - 1) * (stride // step) + turns) / turns
    return rows


def vector_load(t: Touch, loop: str, machine: Machine) -> float:
    """Loads that take as long as that of a vector along a loop: one, where that is near.

    Where data choose among a short row, registers hold it, from which lanes are picked.
    """
    if t.near(loop):
        return 1.0
    picks = t.picks(loop, machine.width, machine)
    return float(picks) if picks else far_load(t.strides.get(loop), machine.width)


def far_load(stride: int | None, width: int) -> float:
    """Loads that take as long as one of elements that are no neighbours."""
    near = stride is not None and stride in NEAR_STRIDES
    return 1.5 * stride if near and stride is not None else 1.5 * width
