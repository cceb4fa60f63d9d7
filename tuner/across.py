"""The schedules of copies that change which dim is contiguous: vectors sorted in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size, typical
from rutc.tensor_ir.kernel import Assign, Kernel, Kind, Put
from rutc.tensor_ir.machine import FEWEST_LANES, NEAR_STRIDES, Machine
from rutc.tensor_ir.statements import walk_stmts
from rutc.tensor_ir.steps import (
    Mark,
    NotApplicable,
    Overlap,
    Part,
    Peel,
    Preload,
    Reorder,
    Split,
    Step,
    Tile,
)
from rutc.tuner.access import Shape, Touch
from rutc.tuner.choice import shared_out
from rutc.tuner.collapse import fuse_innermost
from rutc.tuner.lengths import leaves_rest, never_longer
from rutc.tuner.tiles.tile_loads import evicted_rows

NO_EDGES: Mapping[str, tuple[int, ...]] = {}
SHORT = range(2, FEWEST_LANES)
"""Iterations of a short loop."""
WORD = 4
"""Bytes of a lane of a register of `Machine.width`."""


def across(order: Sequence[str], touches: tuple[Touch, ...]) -> tuple[str, ...] | None:
    """The order in which a loop comes last but one along which operands of the last one lie.

    Those operands are crossed by the last loop; of several such loops it is that along which most
    of them lie. None where there is none.
    """
    *others, vector = order
    crossing = _crossing(vector, touches)
    along = max(others, key=lambda v: sum(t.unit(v) for t in crossing), default=None)
    if along is None or not any(t.unit(along) for t in crossing):
        return None
    return (*(v for v in others if v != along), along, vector)


def _crossing(vector: str, touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """The operands that do not lie along a loop, if all are read, or stored, at one place."""
    crossing = [t for t in touches if not t.packed and t.strides.get(vector, 0) != 0]
    crossing = [t for t in crossing if t.strides[vector] is not None and not t.unit(vector)]
    for operand in crossing:
        same = (t for t in touches if t.buffer == operand.buffer)
        if sum(operand.is_store or not t.is_store for t in same) > 1:
            return ()
    return tuple(crossing)


def of_words(order: Sequence[str], touches: tuple[Touch, ...]) -> bool:
    """Whether squares of the last two loops are of words or longer: estimates tell what they take.

    A square of narrower elements is a small part of each line, which they do not count.
    """
    return all(t.bytes >= WORD for t in _crossing(order[-1], touches))


def beside_gathers(order: Sequence[str], touches: tuple[Touch, ...]) -> tuple[str, ...] | None:
    """The order in which a loop comes last along which an operand lies that the last one gathers.

    %y[p, c] = %x[at[c], p]   ->   [c, p]: vectors along p, instead of elements from all over

    None where no operand, or more than one, is gathered, or none of its memory runs along a loop.
    """
    *others, vector = order
    found = [t for t in touches if not t.is_store and t.strides.get(vector, 0) is None]
    along = next((v for v in others if len(found) == 1 and found[0].unit(v)), None)
    return None if along is None else (*(v for v in others if v != along), vector, along)


def gathers_columns(order: Sequence[str], shape: Shape, lanes: int, machine: Machine) -> bool:
    """Whether elements are gathered along the last loop at places that no other loop tells.

    Not where they are picked from registers, nor where the second cache cannot keep the lines that
    so many lanes take of all rows: the next ones may take them again.
    """
    *others, vector = order
    found = [t for t in shape.touches if not t.is_store and t.strides.get(vector, 0) is None]
    for t in found:
        if not t.gathered or t.picks(vector, machine.width, machine):
            return False
        if any(t.strides.get(v, 0) is None for v in others):
            return False
        rows = prod(shape.extents[v] for v in others if t.depends(v))
        if min(rows * lanes * machine.line_bytes, t.buffer_bytes) > machine.l2:
            return False
    return bool(found)


def along_reads(
    order: Sequence[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    fused: int,
) -> tuple[str, ...] | None:
    """The order in which squares follow one another as they are read, where they better do.

    Each then fills parts of lines that are far apart. The other parts of those lines follow with
    the next vectors that are read: where the first cache has the lines until then, that takes less
    time than to wait for loads from afar. So it does where less is stored than is read. None
    elsewhere, where vectors that are read would not be full, and where narrow elements are read, of
    which a square is a small part of each line.
    """
    crossing = _crossing(order[-1], touches)
    if len(crossing) != 1 or crossing[0].is_store or crossing[0].bytes < WORD:
        return None
    *others, along, vector = order
    (operand,) = crossing
    size = typical(fuse_innermost([*others, along], sizes, touches, fused).size, symbols)
    if size < machine.width:
        return None
    near = size * machine.line_bytes <= machine.l1 // 2
    less = all(t.bytes < operand.bytes for t in touches if t.is_store)
    return (*others, vector, along) if near or less else None


def side(turned: Sequence[Touch], machine: Machine) -> int:
    """The iterations along a side of a square of operands: one of the longest elements is full."""
    return machine.width * WORD // max(WORD, *(t.bytes for t in turned))


def crowded(t: Touch, v: str, rows: int, machine: Machine) -> bool:
    """Whether so many rows take more than half of the lines of the sets that they lie in."""
    ways = machine.l1 // machine.l1_way_bytes
    return evicted_rows(t, ((v, rows),), machine, ways // 2) > 0


def along_far_rows(
    order: Sequence[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    machine: Machine,
    fused: int,
) -> tuple[str, ...] | None:
    """The order in which squares follow one another along rows that lie farther apart.

    Of two operands, one is read in rows and the other is stored in rows, of which a square has a
    part each. A processor foresees the next lines of few rows. So squares follow one another along
    those which are farther from each other, and next to each other in the others.

    None where rows lie equally far apart, or a part of one is no whole line: it would wait for the
    others. Nor where stored rows that lie near are so far apart that few sets of the first cache
    have all of their lines, which wait there.
    """
    *others, along, vector = order
    wide = fuse_innermost([*others, vector], sizes, touches, fused)
    long = fuse_innermost([*wide.loops[:-1], along], sizes, wide.touches, fused)
    around = [*long.loops, wide.loops[-1]]
    crossing = _crossing(vector, long.touches)
    straight = [t for t in long.touches if t not in crossing and t.unit(vector)]
    if len(crossing) != 1 or len(straight) != 1 or not crossing[0].unit(along):
        return None
    (crossed,), (other,) = crossing, straight
    for t in (crossed, other):
        whole = side(crossing, machine) * t.bytes
        steps = [t.strides.get(v, 0) for v in around]
        if whole % machine.line_bytes or None in steps:
            return None
        if any(n * t.bytes % machine.line_bytes for n in steps if n not in (None, 1)):
            return None

    far, near = (
        abs(t.strides.get(v) or 0) * t.bytes for t, v in ((crossed, vector), (other, along))
    )
    if far == near:
        return None
    if far < near:
        return tuple(order)
    crowd = crowded(other, along, 2 * side(crossing, machine), machine)
    return (*others, vector, along) if crossed.is_store or not crowd else None


def squares(
    order: Sequence[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    fused: int,
    parallel: int | None,
    edges: Mapping[str, tuple[int, ...]] = NO_EDGES,
) -> list[Step]:
    """Steps for a kernel without reductions whose last loop crosses operands.

    Some of these lie along the loop before it. Both have up to `fused` loops become one with them.
    Threads share the first `parallel` loops around the squares, or all of them. Squares between
    `edges` of a loop have code of their own.

    Raises:
        NotApplicable: no operand that lies across the last loop runs along the one before, or one
            that lies across is read at another place, too; or a loop is short, or an edge lies
            within a square.
    """
    turned = [t for t in _crossing(order[-1], touches) if len(order) > 1 and t.unit(order[-2])]
    if not turned:
        raise NotApplicable(f"no operand lies across {order[-1]} and along the loop before")
    *others, along, vector = order
    lanes, shortest = side(turned, machine), FEWEST_LANES
    if lanes < shortest:
        raise NotApplicable(f"a register holds {lanes} elements")
    if typical(sizes[vector], symbols) < shortest:
        raise NotApplicable(f"{vector} is short")
    steps: list[Step] = [Reorder((along, *others, vector))]
    wide = fuse_innermost([*others, vector], sizes, touches, fused)
    *others, vector = wide.loops
    steps += [*wide.steps, Reorder((vector, *others, along))]
    long = fuse_innermost([*others, along], sizes, wide.touches, fused)
    *others, along = long.loops
    steps += long.steps
    if long.size in range(shortest) or any(_short(x.size, lanes, symbols) for x in (wide, long)):
        raise NotApplicable(f"{along} or {vector} is short")
    blocks = {v: n for v, n in ((vector, wide.size), (along, long.size)) if not _fits(n, lanes)}
    # Squares follow one another along the vectors.
    outside = [*others, *(f"{v}.o" for v in reversed(blocks))]
    inside = [f"{v}.i" if v in blocks else v for v in (along, vector)]
    steps += [Split(v, lanes) for v in blocks]
    steps.append(Reorder((*outside, *inside)))
    steps += shared_out(outside, parallel)
    for v, points in edges.items():
        if v not in blocks or any(p % lanes for p in points):
            raise NotApplicable(f"an edge of {v} lies within a square")
        steps.append(Part(f"{v}.o", tuple(p // lanes for p in points)))
    steps += _ends(blocks, lanes)
    if any(leaves_rest(n, lanes) and _may_be_short(n, lanes, symbols) for n in blocks.values()):
        steps.append(Mark(f"{inside[-1]}.few", Kind.VECTOR))
    steps.append(Tile(tuple(inside), (Kind.UNROLL, Kind.VECTOR)))
    steps += [Preload(t.buffer, tuple(inside)) for t in turned if not t.is_store]
    return steps


def short_and_long(
    loops: list[str], touches: tuple[Touch, ...], sizes: Mapping[str, Size]
) -> tuple[str, ...] | None:
    """The order for a kernel of which one operand's memory runs along a short loop.

    That is its store while its loads run along the loop beside, or a load while the store does: all
    of a line is used before the next. These two loops come last. None of other kernels, nor where
    what is loaded may be transposed.
    """
    stores = [t for t in touches if t.is_store]
    loads = [t for t in touches if not t.is_store]
    if len(stores) != 1 or any(t.gathered for t in loads):
        return None
    (store,) = stores
    found = _crossed(loops, [v for v in loops if sizes[v] in NEAR_STRIDES], [store], loads, sizes)
    if found is None:
        few = [v for v in loops if sizes[v] in SHORT]
        narrow = [t for t in loads if any(map(t.unit, few))]
        wide = [store, *(t for t in loads if t not in narrow)]
        found = _crossed(loops, few, narrow, wide, sizes)
    if found is None:
        return None
    short, along = found
    return (*(v for v in loops if v not in found), short, along)


def blocks_of_stores(kernel: Kernel, shape: Shape) -> dict[str, int]:
    """The loops along which a store's memory has short blocks, innermost: their iterations."""
    found: dict[str, int] = {}
    for s in walk_stmts(kernel.body):
        if not isinstance(s, Assign | Put) or kernel.buffer(s.target.buffer).layout.plain:
            continue
        last = kernel.buffer(s.target.buffer).layout.axes[-1]
        size = last.extent
        if last.whole or not isinstance(size, int) or size not in SHORT:
            continue
        for d, c in s.target.coords:
            if d != last.dim or not isinstance(c, Index):
                continue
            own = [x.var for x in shape.shared if c.coefficient(x.var) == 1]
            found |= {v: size for v in own if (c - Index.of(v)) % size == ZERO}
    return found


def _crossed(
    loops: list[str],
    few: list[str],
    narrow: Sequence[Touch],
    wide: Sequence[Touch],
    sizes: Mapping[str, Size],
) -> tuple[str, str] | None:
    """(short, along): `narrow` lie along a loop of `few`, the one beside is that of `wide`."""
    if not narrow:
        return None
    first = narrow[0]
    short = next(filter(first.unit, few), None)
    size = sizes.get(short or "")
    if short is None or not isinstance(size, int):
        return None
    # Memory may be padded beside what is stored.
    strides = range(size, NEAR_STRIDES.stop if first.is_store else size + 1)
    along = next((v for v in loops if first.strides.get(v) in strides), None)
    if along is None or not any(t.unit(along) for t in wide):
        return None
    if any(not t.unit(short) or t.strides.get(along) != first.strides[along] for t in narrow):
        return None
    if any(t.strides.get(along, 0) not in (0, 1) for t in wide):
        return None
    return short, along


def turns_of_short(
    order: Sequence[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    vectors: int,
    fused: int,
    parallel: int | None,
) -> list[Step]:
    """Steps for a kernel whose last loop becomes vectors, for each iteration of the one before.

    %y[p, c] = %x[c, p], c of 3  ->  a vector along p for each c, stored element by element in turn

    Raises:
        NotApplicable: the loop before the last one is not short, or the last one is.
    """
    width = vectors * machine.width
    if len(order) < 2 or not width:
        raise NotApplicable("there are no two loops, or no vectors")
    *others, short, along = order
    if sizes[short] not in NEAR_STRIDES:
        raise NotApplicable(f"{short} is not short")
    steps: list[Step] = [Reorder((*others, along, short))]
    long = fuse_innermost([*others, along], sizes, touches, fused)
    steps += long.steps
    *others, along = long.loops
    if long.size in range(width) or _short(long.size, width, symbols):
        raise NotApplicable(f"{along} is short")
    steps += [Split(along, width), Reorder((*others, f"{along}.o", short, f"{along}.i"))]
    steps += shared_out([*others, f"{along}.o"], parallel)
    steps += _ends({along: long.size}, width)
    steps.append(Tile((short, f"{along}.i"), (Kind.UNROLL, Kind.VECTOR)))
    return steps


def outer_vectors(
    order: Sequence[str],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    vectors: int,
    parallel: int | None,
) -> list[Step]:
    """Steps for vectors of the last loop outside of all others, which share what it alone tells.

    %y[p, c] = %x[p, at[c]]   ->   a vector along c, of all p after its places are known

    Raises:
        NotApplicable: there are no loops around the last one, or it is no longer than a vector.
    """
    *others, v = order
    width, size = vectors * machine.width, sizes[v]
    if not others or not width or never_longer(size, width, symbols):
        raise NotApplicable(f"{v} has no vectors outside of other loops")
    around = (f"{v}.o", *others)
    steps: list[Step] = [Split(v, width), Reorder((*around, f"{v}.i"))]
    steps += [Mark(f"{v}.i", Kind.VECTOR), *shared_out(around, parallel)]
    return [*steps, Peel(f"{v}.o")] if leaves_rest(size, width) else steps


def loops_of_one_place(order: Sequence[str], touches: tuple[Touch, ...]) -> list[str]:
    """The loops that move all operands which the last one gathers, whose places they do not tell.

    %y[c, p] = %x[c, at[p]]   ->   c
    """
    *others, vector = order
    found = [t for t in touches if not t.is_store and t.strides.get(vector, 0) is None]
    return [v for v in others if found and all(t.strides.get(v) for t in found)]


def elements_in_turn(
    order: Sequence[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    turns: int,
    fused: int,
    parallel: int | None,
) -> list[Step]:
    """Steps for single elements of the last loop, each for so many iterations of the first in turn.

    %y[c, p] = %x[c, at[p]]   ->   for p: %x[c, at[p]], %x[c + 1, at[p]], .. at a place found once

    Raises:
        NotApplicable: there are no two loops, or turns; or the first loop is of symbolic size.
    """
    first, *others = order
    size = sizes[first]
    if not others or turns < SHORT.start or not isinstance(size, int):
        raise NotApplicable(f"{first} has no turns of the last loop")
    steps: list[Step] = [] if size <= turns else [Split(first, turns)]
    blocks, inside = ([f"{first}.o"], f"{first}.i") if steps else ([], first)
    steps.append(Reorder((*blocks, *others, inside)))
    long = fuse_innermost(others, sizes, touches, fused)
    around = [*blocks, *long.loops]
    steps += [*long.steps, *shared_out(around[:-1], parallel)]
    if blocks and leaves_rest(size, turns):
        steps.append(Peel(blocks[0]))
    return [*steps, Mark(inside, Kind.UNROLL)]


def _short(size: Size, lanes: int, symbols: Mapping[str, Range]) -> bool:
    """Whether a loop of symbolic size is never longer than a block."""
    return not isinstance(size, int) and never_longer(size, lanes, symbols)


def _may_be_short(size: Size, lanes: int, symbols: Mapping[str, Range]) -> bool:
    """Whether a loop of symbolic size may be shorter than a block."""
    bounds = Index.of(size).bounds(symbols)
    return not isinstance(size, int) and (bounds is None or bounds[0] < lanes)


def _fits(size: Size, lanes: int) -> bool:
    """Whether a loop of that size needs no blocks."""
    return isinstance(size, int) and size <= lanes


def _ends(blocks: Mapping[str, Size], lanes: int) -> list[Step]:
    """Steps for what blocks of `lanes` iterations leave over, the loops from the outermost on.

    Squares have constant sides: those at the end of a symbolic loop lie over the ones before.
    """
    uneven = [v for v, n in blocks.items() if leaves_rest(n, lanes)]
    symbolic = [v for v in uneven if not isinstance(blocks[v], int)]
    steps: list[Step] = [Overlap(tuple(f"{v}.o" for v in symbolic))] if symbolic else []
    return [*steps, *(Peel(f"{v}.o") for v in reversed(uneven) if v not in symbolic)]
