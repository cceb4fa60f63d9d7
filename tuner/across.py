"""The schedules of copies that change which dim is contiguous: vectors sorted in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rutc.tensor_ir.affine import Index, Range, Size, typical
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, Overlap, Peel, Preload, Reorder, Schedule, Split, Step, Tile
from rutc.tuner.access import Touch, leaves_rest, never_longer
from rutc.tuner.collapse import fuse_innermost

SHORTEST = 4
"""Iterations of either loop below which a square would be mostly empty."""


def across(
    order: list[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    parallel: Callable[[list[str]], list[Step]],
) -> Schedule | None:
    """Steps for a kernel without reductions whose vector loop, the last one, crosses an operand.

    `parallel` gives the steps that share out the loops around the squares. None where no operand's
    memory runs along another loop, or where more than one operand's does; nor where that operand
    is read at another place, too.
    """
    *others, vector = order
    crossing = [
        t for t in touches if not t.is_store and not t.packed and t.strides.get(vector, 0) != 0
    ]
    crossing = [t for t in crossing if t.strides[vector] is not None and not t.unit(vector)]
    if len(crossing) != 1 or typical(sizes[vector], symbols) < SHORTEST or crossing[0].bytes > 4:
        return None
    operand = crossing[0]
    if sum(t.buffer == operand.buffer and not t.is_store for t in touches) > 1:
        return None
    along = next((v for v in others if operand.unit(v)), None)
    if along is None:
        return None
    others.remove(along)
    steps: list[Step] = [Reorder((along, *others, vector))]
    wide = fuse_innermost([*others, vector], sizes, touches)
    *others, vector = wide.loops
    steps += [*wide.steps, Reorder((vector, *others, along))]
    long = fuse_innermost([*others, along], sizes, wide.touches)
    *others, along = long.loops
    steps += long.steps
    lanes = machine.width
    if long.size in range(SHORTEST) or any(_short(x.size, lanes, symbols) for x in (wide, long)):
        return None
    blocks = {v: n for v, n in ((vector, wide.size), (along, long.size)) if not _fits(n, lanes)}
    # Squares follow one another along the stores: lines and pages that are far apart cost stores
    # more than loads.
    outside = [*others, *(f"{v}.o" for v in reversed(blocks))]
    inside = [f"{v}.i" if v in blocks else v for v in (along, vector)]
    steps += [Split(v, lanes) for v in blocks]
    steps.append(Reorder((*outside, *inside)))
    steps += parallel(outside)
    steps += _ends(blocks, lanes)
    if any(leaves_rest(n, lanes) and _may_be_short(n, lanes, symbols) for n in blocks.values()):
        steps.append(Mark(f"{inside[-1]}.few", Kind.VECTOR))
    steps.append(Tile(tuple(inside), (Kind.UNROLL, Kind.VECTOR)))
    steps.append(Preload(operand.buffer, tuple(inside)))
    return tuple(steps)


def interleaved(
    order: list[str],
    touches: tuple[Touch, ...],
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
    machine: Machine,
    parallel: Callable[[list[str]], list[Step]],
) -> Schedule | None:
    """Steps for a kernel whose store runs along a loop of few iterations, its loads along another.

    %y[p, c] = %x[c, p], c of 3  ->  a vector along p for each c, stored element by element in turn

    None where the loop beside the short one is not the one along which all operands' memory runs.
    """
    stores = [t for t in touches if t.is_store]
    few = range(2, SHORTEST)
    short = next((v for v in order if sizes[v] in few and stores[0].unit(v)), None)
    if len(stores) != 1 or short is None or stores[0].bytes > 4:
        return None
    others = [v for v in order if v != short]
    loads = [t for t in touches if not t.is_store]
    along = next((v for v in others if stores[0].strides.get(v) == sizes[short]), None)
    if along is None or not any(t.unit(along) for t in loads):
        return None
    if any(t.gathered or t.strides.get(along, 0) not in (0, 1) for t in loads):
        return None
    others.remove(along)
    steps: list[Step] = [Reorder((*others, along, short))]
    fused = fuse_innermost([*others, along], sizes, touches)
    steps += fused.steps
    *others, along = fused.loops
    if fused.size in range(machine.width) or _short(fused.size, machine.width, symbols):
        return None
    steps += [Split(along, machine.width), Reorder((*others, f"{along}.o", short, f"{along}.i"))]
    steps += parallel([*others, f"{along}.o"])
    steps += _ends({along: fused.size}, machine.width)
    steps.append(Tile((short, f"{along}.i"), (Kind.UNROLL, Kind.VECTOR)))
    return tuple(steps)


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
