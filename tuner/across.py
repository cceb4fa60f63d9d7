"""The schedules of copies that change which dim is contiguous: vectors sorted in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Peel, Preload, Reorder, Schedule, Split, Step, Tile
from rutc.tuner.access import Touch
from rutc.tuner.collapse import fuse_innermost

SHORTEST = 4
"""Iterations of either loop below which a square would be mostly empty."""


def across(
    order: list[str],
    touches: tuple[Touch, ...],
    extents: Mapping[str, int],
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
    if len(crossing) != 1 or extents[vector] < SHORTEST or crossing[0].bytes > 4:
        return None
    operand = crossing[0]
    if sum(t.buffer == operand.buffer and not t.is_store for t in touches) > 1:
        return None
    along = next((v for v in others if operand.unit(v)), None)
    if along is None:
        return None
    others.remove(along)
    steps: list[Step] = [Reorder((*others, along, vector))]
    fused = fuse_innermost([*others, along], extents, touches)
    steps += fused.steps
    *outside, along = fused.loops
    extent = fused.size
    if not isinstance(extent, int) or extent < SHORTEST:
        return None
    lanes = machine.width
    inside: list[str] = []
    for v, n in ((vector, extents[vector]), (along, extent)):
        if n <= lanes:
            inside.insert(0, v)
            continue
        steps.append(Split(v, lanes))
        outside.append(f"{v}.o")
        inside.insert(0, f"{v}.i")
    steps.append(Reorder((*outside, *inside)))
    steps += parallel(outside)
    steps += [
        Peel(f"{v}.o")
        for v, n in ((along, extent), (vector, extents[vector]))
        if n > lanes and n % lanes
    ]
    steps.append(Tile(tuple(inside), (Kind.UNROLL, Kind.VECTOR)))
    steps.append(Preload(operand.buffer, tuple(inside)))
    return tuple(steps)


def interleaved(
    order: list[str],
    touches: tuple[Touch, ...],
    extents: Mapping[str, int],
    machine: Machine,
    parallel: Callable[[list[str]], list[Step]],
) -> Schedule | None:
    """Steps for a kernel whose store runs along a loop of few iterations, its loads along another.

    %y[p, c] = %x[c, p], c of 3  ->  a vector along p for each c, stored element by element in turn

    None where the loop beside the short one is not the one along which all operands' memory runs.
    """
    stores = [t for t in touches if t.is_store]
    short = next((v for v in order if 1 < extents[v] < SHORTEST and stores[0].unit(v)), None)
    if len(stores) != 1 or short is None or stores[0].bytes > 4:
        return None
    others = [v for v in order if v != short]
    loads = [t for t in touches if not t.is_store]
    along = next((v for v in others if stores[0].strides.get(v) == extents[short]), None)
    if along is None or not any(t.unit(along) for t in loads):
        return None
    if any(t.gathered or t.strides.get(along, 0) not in (0, 1) for t in loads):
        return None
    others.remove(along)
    steps: list[Step] = [Reorder((*others, along, short))]
    fused = fuse_innermost([*others, along], extents, touches)
    steps += fused.steps
    *others, along = fused.loops
    extent = fused.size
    if not isinstance(extent, int) or extent < machine.width:
        return None
    steps += [Split(along, machine.width), Reorder((*others, f"{along}.o", short, f"{along}.i"))]
    steps += parallel([*others, f"{along}.o"])
    if extent % machine.width:
        steps.append(Peel(f"{along}.o"))
    steps.append(Tile((short, f"{along}.i"), (Kind.UNROLL, Kind.VECTOR)))
    return tuple(steps)
