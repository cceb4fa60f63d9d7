"""The tile of a sum over windows: its rows and vectors, and the order in which tiles follow.

Rows share what they read: those of a window overlap. What they share lies in registers, what tiles
share in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps.tile import MOST_EXACT
from rutc.tuner.access import Touch, memory_order
from rutc.tuner.passes import Pass, places_read, read_again
from rutc.tuner.tiles.tile_registers import state_registers

MOST_WRITTEN_OUT = 480
"""Elements of windows that are written out: their code has to stay small."""
MOST_APART = 80
"""Elements of windows in a row of code where neighbouring lanes are apart."""
MOST_ROWS = 14
"""Rows of a tile."""
LOADED, SORTED = 4, 8
"""Registers for what is just being loaded; where it is sorted, too, and for where its elements go.
"""


def weights_of(found: Pass, vector: str) -> list[Touch]:
    """The operands that are the same in all windows, or lie as the schedule says."""
    return [t for t in found.reduction.reads if t.packed or vector not in t.strides]


def tile_rows(found: Pass, vector: str, machine: Machine) -> tuple[str, int] | None:
    """(loop, rows): the rows of a tile; None where nothing is shared between rows."""
    best: tuple[float, bool, str, int] | None = None
    w, shape, taps = machine.coefficients.tiles, found.shape, found.taps
    extents = shape.extents
    weights, strided = weights_of(found, vector), found.strided(vector)
    at_once = machine.fma_latency * machine.fma_per_cycle
    for bound, v in sorted(found.partners.items()):
        if v == vector or bound in found.kept or not may_be_rows(found, v):
            continue
        beside = taps // extents[bound]
        each = state_registers(found.reduction)
        vectors = vectors_of_row(found, vector, machine)
        # Rows that lie apart by what the run tells have places of their own, which are loaded.
        apart = [t for t in shape.touches if not isinstance(t.exact.get(v, 0), int)]
        most = min(MOST_ROWS, MOST_EXACT) if v in shape.symbolic else MOST_ROWS
        some = range(2, min(extents[v], most) + 1)
        for rows in (n for n in some if found.written_out(v, n) <= MOST_WRITTEN_OUT):
            if strided:
                crowded = rows * vectors * taps > MOST_APART
            else:
                crowded = _fitting(found, vector, bound, rows, machine) < 1
            if crowded:
                break
            read = places_read(found.reads, v, bound, rows, extents[bound])
            loads = read * beside + sum(read if t in found.reduction.reads else rows for t in apart)
            waits = max(1.0, at_once / (rows * each * vectors))
            cost = (loads + rows * taps * waits + (taps if weights else 0) + w.around) / rows
            cost *= ceil(extents[v] / rows) * rows / extents[v]
            lost = bool(_across(found, vector, v)) and _in_same_sets(found, bound, rows, machine)
            if best is None or (cost, lost) < best[:2]:
                best = cost, lost, v, rows
    return None if best is None else best[2:]


def _in_same_sets(found: Pass, bound: str, rows: int, machine: Machine) -> bool:
    """Whether rows of a tile lie in the same sets of the first cache, with more lines than it has.

    What windows across the tile have in common is lost then until they are computed.
    """
    v, taps, lines = found.partners[bound], found.shape.extents[bound], 0
    for t in found.shape.touches:
        step = (t.strides.get(v) or 0) * t.bytes
        if step and step % machine.l1_way_bytes == 0:
            passed = tuple(r for r in found.reads if r.value == t.buffer)
            lines += places_read(passed, v, bound, rows, taps) if passed else rows
    return lines * machine.l1_way_bytes > machine.l1


def _fitting(found: Pass, vector: str, bound: str, rows: int, machine: Machine) -> int:
    """The vectors of each of so many rows that fit registers.

    The weights of the rows at hand stay in registers. Of a window that stays a loop in part, each
    weight passes by all rows at once instead, from memory, and what these read stays.
    """
    each = state_registers(found.reduction)
    if found.kept:
        return machine.registers // (rows * (each + 1))
    held = found.shape.extents[bound] if weights_of(found, vector) else 0
    return (machine.registers - LOADED - held) // (rows * each)


def pairs_of_rows(found: Pass, vector: str) -> Iterator[str]:
    """Loops along which two rows share what lanes that are apart read, though their code is long.

    Estimates tell whether that pays.
    """
    for bound, v in sorted(found.partners.items()):
        if v == vector or not found.strided(vector) or not may_be_rows(found, v):
            continue
        if read_again(found, bound, v) and found.written_out(v, 2) <= MOST_WRITTEN_OUT:
            yield v


def may_be_rows(found: Pass, v: str) -> bool:
    """Whether a tile may have several rows along a loop: not where the run tells the edges."""
    tested = (c for r in found.reads if r.fill is not None for _, c in r.coords)
    moved = any(isinstance(c, Index) and v in c.names() for c in tested)
    return v not in found.shape.symbolic or not moved


def vectors_of_row(found: Pass, vector: str, machine: Machine) -> int:
    """Vectors of a row: where neighbouring lanes are apart, as many as find all in registers.

    They take elements from each other, and memory is read in its order.
    """
    if not found.strided(vector):
        return 1
    most = ceil(found.shape.extents[vector] / machine.width)
    along = prod(found.shape.extents[b] for b, v in found.partners.items() if v == vector)
    weights = found.taps if weights_of(found, vector) else 0
    left = machine.registers - SORTED - weights
    fit = max(1, left // (along + state_registers(found.reduction)))
    return ceil(most / ceil(most / fit))


def vectors_beside(found: Pass, vector: str, rows: tuple[str, int], machine: Machine) -> int:
    """Vectors of each of a tile's rows: where neighbouring lanes are neighbours, mostly one.

    Several where rows are so few that each product waits for the one before it to be added to the
    same sum, as of long windows, of which a tile takes in few rows. Not where each has weights of
    its own: they take registers, and nothing is shared.
    """
    shape, r = found.shape, found.reduction
    weights = weights_of(found, vector)
    shared = weights and not any(t.depends(vector) for t in weights)
    known = vector not in shape.symbolic and not r.adds_apart(machine)
    if not (shared and known) or found.strided(vector):
        return vectors_of_row(found, vector, machine)
    bounds = [b for b, v in found.partners.items() if v == rows[0] and b not in found.kept]
    fit = min(_fitting(found, vector, b, rows[1], machine) for b in bounds)
    states = rows[1] * state_registers(r)
    most = ceil(shape.extents[vector] / machine.width)
    fit = min(fit, most, machine.vectors_at_once)
    at_once = machine.fma_latency * machine.fma_per_cycle

    def cycles(n: int) -> float:
        return ceil(most / n) * n * max(1.0, at_once / (states * n))

    return min(range(1, max(fit, 1) + 1), key=cycles)


def order_around(found: Pass, vector: str, rows: tuple[str, int] | None) -> list[str]:
    """The loops around but that of vectors: as they lie in memory, those of a tile's rows before.

    So tiles of an image's rows follow one another along its columns. Rows along these go on from
    row to row of the image, which read again what windows have in common as long as it is near: of
    whole rows of the image much else is read between.
    """
    own = [x.var for x in found.shape.shared if x.var != vector]
    order = memory_order(own, found.shape)
    across = _across(found, vector, *(rows[:1] if rows is not None else ()))
    first = min(map(order.index, across), default=len(order))
    if rows is not None and first < order.index(rows[0]):
        order.remove(rows[0])
        order.insert(first, rows[0])
    return order


def _across(found: Pass, *tiled: str) -> set[str]:
    """The loops other than those of a tile along which windows overlap."""
    return {v for b, v in found.partners.items() if v not in tiled and read_again(found, b, v)}


def place_of_vectors(
    found: Pass,
    order: Sequence[str],
    tile: tuple[str, int],
    rows: tuple[str, int] | None,
    machine: Machine,
) -> int:
    """How many of the loops around are outside of that of vectors: all, mostly.

    Not those from the first on along which windows overlap, across a tile's rows, where all vectors
    at one index of it read and store more than the first cache keeps until the windows at the next
    one read some of it again. Lines that two vectors share would be lost between these instead,
    and where tiles one after the other lie so far apart that the hardware does not know the next
    one, each line of a vector would be waited for: whole pixels come ahead of their use.
    """
    shape, extents = found.shape, found.shape.extents
    vector, width = tile
    many = dict((rows,) if rows is not None else ())
    across = _across(found, vector, *many)
    if not across:
        return len(order)
    steps = {**many, **{x.var: extents[x.var] for x in found.reduction.loops}}
    inner = order[-1]
    total, shared, far = 0, False, False
    for t in {t.buffer: t for t in shape.touches}.values():
        passed = [r for r in found.reads if r.value == t.buffer]
        count = prod(n for v, n in steps.items() if t.depends(v))
        if passed:
            pairs = [(v, b, many.get(v, 1), extents[b]) for b, v in found.partners.items()]
            count = sum(prod(max(places_read((r,), *pair), 1) for pair in pairs) for r in passed)
            apart = (width, *(n for v, n in t.strides.items() if n and v != vector))
            shared |= any(n * t.bytes % machine.line_bytes for n in apart)
            step = (t.strides.get(inner) or 0) * many.get(inner, 1) * t.bytes
            far |= abs(step) >= machine.far_bytes
        total += count * t.bytes * (extents[vector] if t.depends(vector) else 1)
    lost = total > machine.l1 and not shared and not far
    return min(map(order.index, across)) if lost else len(order)
