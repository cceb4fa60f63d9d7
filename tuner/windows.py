"""The schedule of sums over windows: depthwise convolutions, pooling.

A vector along memory, and rows of the output one above the other that share what they read: rows of
a window overlap. A window is written out, but for loops across the tile where a long function
follows: they go over what lies inside. What else lies outside of the input is told by masks, so
every part of the loops that touches an edge has code of its own, and the inside has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from math import ceil, prod

from rutc.base.record import record
from rutc.tensor_ir.affine import Index, Range
from rutc.tensor_ir.expr import ELEMENTARY, Apply, Read, walk
from rutc.tensor_ir.kernel import Assign, Kernel, Kind, exprs, walk_stmts
from rutc.tensor_ir.machine import NARROWEST_MASKED, NEAR_STRIDES, Machine
from rutc.tensor_ir.steps import (
    Inside,
    Mark,
    Overlap,
    Part,
    PrefetchBlock,
    Reorder,
    Split,
    Step,
    Tile,
    apply_schedule,
)
from rutc.tensor_ir.steps.inside import windows_of
from rutc.tensor_ir.windows import MOST_TAPS, partners
from rutc.tuner.access import Reduction, Shape, analyse, memory_order
from rutc.tuner.choice import Choice, shared_out
from rutc.tuner.collapse import collapse
from rutc.tuner.dot import products_together
from rutc.tuner.packing import packing
from rutc.tuner.register_tile import RegisterTile
from rutc.tuner.tile_cost import state_registers

MOST_WRITTEN_OUT = 160
"""Elements of windows that a tile takes in: their code, once for each edge, has to stay small."""
MOST_ROWS = 14
MOST_VECTORS = 4
"""Vectors of a tile without rows."""
SHORTEST = 4
"""The shortest loop that becomes the vector."""
LOADED = 4
"""Registers for what is just being loaded."""
HELD = 8
"""Registers for what is being loaded and sorted, and for where its elements go."""
MOST_APART = 80
"""Elements of windows in a row of code where neighbouring lanes are apart."""
TILE_CYCLES = 6.0
"""What a tile costs besides its loads and its arithmetic."""
AHEAD_BYTES = 4 << 10
"""How far ahead memory is asked for."""
MOST_PARTS = 16
"""Copies of a tile's code, one for each part of its loops."""

MOST_TILES = 1 << 12
"""Tiles along a loop that are looked at one by one."""


@record
class Pass:
    """A kernel that passes windows over its operands: who moves along with which bound loop."""

    shape: Shape
    reduction: Reduction
    reads: tuple[Read, ...]
    partners: Mapping[str, str]
    vector: str

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(self.shape.extents[b] for b in self.partners)

    @property
    def strided(self) -> bool:
        """Whether neighbouring lanes read elements that are no neighbours."""
        touches = (t for t in self.reduction.reads if not t.packed)
        return any(t.strides.get(self.vector, 0) not in (0, 1) for t in touches)


def windows(
    kernel: Kernel, shape: Shape, machine: Machine, constants: frozenset[str]
) -> Choice | None:
    """Rows and a vector of windows, all written out; None for kernels that pass no windows."""
    found = _pass(kernel, shape, machine, constants)
    if found is None:
        return None
    moved = frozenset(found.partners.values())
    fused = collapse(shape, moved)
    if fused:
        kernel = apply_schedule(kernel, fused)
        shape = analyse(kernel, constants)
        again = _pass(kernel, shape, machine, constants)
        found = again if again is not None else found
        if again is None:
            return None
    schedule, packs = _schedule(kernel, found, machine)
    return Choice((*fused, *schedule), packs)


def _pass(kernel: Kernel, shape: Shape, machine: Machine, constants: frozenset[str]) -> Pass | None:
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    extents = shape.extents
    free = {x.var for x in shape.shared if extents[x.var] > 1}
    bound = {x.var for x in r.loops if extents[x.var] > 1}
    packed = {b.name for b in kernel.locals} | constants
    reads = tuple(
        x
        for e in r.update.elements
        for x in walk(e)
        if isinstance(x, Read) and x.value not in packed
    )
    found = partners(reads, free, bound)
    if not found or bound & shape.symbolic:
        return None
    if prod(extents[b] for b in bound) > MOST_TAPS:
        return None
    vector = _vector(shape, machine)
    if vector is None:
        return None
    passing = Pass(shape, r, reads, found, vector)
    # Elsewhere pairs of products take what LLVM multiplies one by one, of neighbouring lanes.
    if products_together(shape, machine) > 1 and (machine.adds_products or passing.strided):
        return None
    if shape.symbolic.isdisjoint(found.values()) or _rows(passing, machine) is not None:
        return passing
    return None


def _vector(shape: Shape, machine: Machine) -> str | None:
    """The loop along which all memory lies, or nearly; the one of which most lanes are used."""

    def along(v: str) -> bool:
        stores = [t for t in shape.touches if t.is_store]
        loads = [t for t in shape.touches if not t.is_store and not t.packed]
        near = (0, 1, *NEAR_STRIDES)
        return all(t.unit(v) for t in stores) and all(t.strides.get(v, 0) in near for t in loads)

    def idle(v: str) -> float:
        extent = shape.extents[v]
        lanes = machine.lanes(extent)
        return ceil(extent / lanes) * lanes / extent

    candidates = [
        x.var
        for x in shape.shared
        if shape.extents[x.var] >= SHORTEST and x.var not in shape.symbolic and along(x.var)
    ]
    return min(candidates, key=idle, default=None)


def _rows(found: Pass, machine: Machine) -> tuple[str, int] | None:
    """(loop, rows): the rows of a tile; None where nothing is shared between rows."""
    best: tuple[float, str, int] | None = None
    extents, taps = found.shape.extents, found.taps
    weights = [t for t in found.reduction.reads if t.packed or found.vector not in t.strides]
    for bound, v in sorted(found.partners.items()):
        if v == found.vector or v in found.shape.symbolic:
            continue
        beside = taps // extents[bound]
        # The weights of the rows at hand stay in registers.
        held = extents[bound] if weights else 0
        each = state_registers(found.reduction)
        vectors = _vectors(found, machine)
        for rows in range(2, min(extents[v], MOST_ROWS) + 1):
            if found.strided:
                crowded = rows * vectors * taps > MOST_APART
            else:
                crowded = rows * each + held + LOADED > machine.registers
            if crowded or rows * taps > MOST_WRITTEN_OUT:
                break
            loads = _places(found.reads, v, bound, rows, extents[bound]) * beside
            cost = (loads + rows * taps + (taps if weights else 0) + TILE_CYCLES) / rows
            cost *= ceil(extents[v] / rows) * rows / extents[v]
            if best is None or cost < best[0]:
                best = cost, v, rows
    return None if best is None else best[1:]


def _vectors(found: Pass, machine: Machine) -> int:
    """Vectors of a row: where neighbouring lanes are apart, as many as find all in registers.

    They take elements from each other, and memory is read in its order.
    """
    if not found.strided:
        return 1
    most = ceil(found.shape.extents[found.vector] / machine.width)
    along = prod(found.shape.extents[b] for b, v in found.partners.items() if v == found.vector)
    weighted = any(t.packed or found.vector not in t.strides for t in found.reduction.reads)
    left = machine.registers - HELD - (found.taps if weighted else 0)
    fit = max(1, left // (along + state_registers(found.reduction)))
    return ceil(most / ceil(most / fit))


def _places(reads: tuple[Read, ...], v: str, bound: str, rows: int, taps: int) -> int:
    """Places along a dim that so many rows of windows read."""
    total = 0
    for r in reads:
        for _, c in r.coords:
            if isinstance(c, Index) and v in c.names() and bound in c.names():
                step, apart = c.coefficient(v) or 0, c.coefficient(bound) or 0
                total += len({step * i + apart * j for i in range(rows) for j in range(taps)})
    return total


def _schedule(
    kernel: Kernel, found: Pass, machine: Machine
) -> tuple[list[Step], dict[str, tuple[tuple[str, ...], Mapping[str, int]]]]:
    shape, vector = found.shape, found.vector
    extents = shape.extents
    rows = _rows(found, machine)
    vectors = min(MOST_VECTORS, ceil(extents[vector] / machine.width))
    if rows is not None:
        vectors = _vectors(found, machine)
    width = vectors * machine.width
    steps: list[Step] = []
    around: list[str] = []
    inside: list[str] = []
    factors: dict[str, int] = {}
    for v, f in ((rows,) if rows is not None else ()) + ((vector, width),):
        if f >= extents[v]:
            inside.append(v)
            continue
        steps.append(Split(v, f))
        around.append(f"{v}.o")
        inside.append(f"{v}.i")
        factors[v] = f
    tiled = {vector, *(rows[:1] if rows is not None else ())}
    others = memory_order([x.var for x in shape.shared if x.var not in tiled], shape)
    outer = (*others, *around)
    steps.append(Reorder((*outer, *inside)))
    # Where rows lie is found once for all vectors of them, if that takes the run's sizes.
    steps += shared_out(outer[:-1] if shape.symbolic and len(outer) > 1 else outer, shape, machine)
    if vector in factors and extents[vector] % width and _lanes_apart(shape, machine):
        steps.append(Overlap((f"{vector}.o",)))
    looped = _looped(kernel, found, tiled) if rows is not None else ()
    steps += _parts(kernel, found, others, factors, looped)
    if found.strided and rows is not None:
        # One row after the other, each stored at once.
        steps += [Tile((inside[1],), (Kind.VECTOR,)), Mark(inside[0], Kind.UNROLL)]
    else:
        kinds = (*(Kind.UNROLL for _ in inside[1:]), Kind.VECTOR)
        steps.append(Tile(tuple(inside), kinds))
    bound = _bound_order(found, rows)
    own = [x.var for x in found.reduction.loops]
    if rows is not None and not found.strided:
        bound = [*(v for v in own if v not in bound), *bound]
        steps.append(Reorder((*bound[:-1], inside[0], bound[-1], inside[-1])))
    elif bound != own:
        steps.append(Reorder((*(v for v in own if v not in bound), *bound)))
    steps += [Mark(v, Kind.UNROLL) for v in own if extents[v] > 1 and v not in looped]
    if looped:
        steps.append(Inside(looped))
    steps += _ahead(kernel, found, others, machine.line_bytes)
    tile = RegisterTile(vector, vectors, (), 0.0)
    packs = {
        t.buffer: packing(kernel, t, bound, tile, width, extents, None, {})
        for t in found.reduction.reads
        if t.packed
    }
    return steps, packs


def _lanes_apart(shape: Shape, machine: Machine) -> bool:
    """Whether a vector with idle lanes is loaded or stored lane by lane, or in small pieces."""
    narrow = any(t.bytes < NARROWEST_MASKED for t in shape.touches if not t.packed)
    return narrow and not machine.has_masks


def _ahead(kernel: Kernel, found: Pass, others: list[str], line: int) -> Iterator[Step]:
    """Steps that ask for the next images' or channels' rows while those at hand are computed.

    The tiles of one plane read, and store, here and there in it, which no hardware foresees.
    """
    moved = set(found.partners.values())
    stores = (t for t in found.shape.touches if t.is_store)
    for t in (*found.reduction.reads, *stores):
        planes = [v for v in others if v not in moved and (t.strides.get(v) or 0) > 0]
        layout = kernel.buffer(t.buffer).layout
        apart = all(isinstance(n, int) for _, n in layout.extents) and all(
            axis.whole and axis.div == 1 for axis in layout.axes
        )
        if t.packed or t.gathered or not planes or not apart or t.buffer_bytes < AHEAD_BYTES:
            continue
        yield PrefetchBlock(t.buffer, planes[-1], AHEAD_BYTES // t.bytes, line // t.bytes, 1)


def _bound_order(found: Pass, rows: tuple[str, int] | None) -> list[str]:
    """The loops over a window: that along the rows innermost, so that rows meet what they share.

    Where neighbouring lanes are apart, the loop along the vector comes last: its places lie in the
    same loads.
    """

    def rank(b: str) -> tuple[int, str]:
        v = found.partners[b]
        if v == found.vector and found.strided:
            return 2, b
        return int(rows is not None and v == rows[0]), b

    return sorted(found.partners, key=rank)


def _looped(kernel: Kernel, found: Pass, tiled: AbstractSet[str]) -> tuple[str, ...]:
    """Loops over a window that stay loops, over what lies inside: those across a tile's rows.

    A tile needs no code of its own where it touches an edge that lies across its rows. Only where
    what lies outside adds nothing, and where long functions follow the sum: their code is repeated
    for no edge then, and the loop's own time is lost beside theirs.
    """
    after = (e for s in walk_stmts(kernel.body) if isinstance(s, Assign) for e in exprs(s))
    if not any(isinstance(x, Apply) and x.op in ELEMENTARY for e in after for x in walk(e)):
        return ()
    update = found.reduction.update
    across = (b for b, v in sorted(found.partners.items()) if v not in tiled)
    return tuple(b for b in across if any(windows_of(kernel, update, b)))


def _parts(
    kernel: Kernel,
    found: Pass,
    others: list[str],
    factors: Mapping[str, int],
    looped: Collection[str],
) -> Iterator[Step]:
    """Steps that give the edges of the loops around a tile code of their own."""
    extents = found.shape.extents
    moved = {v for b, v in found.partners.items() if b not in looped}
    ranges: dict[str, Range] = {
        **dict(kernel.symbols),
        **{v: (0, n - 1) for v, n in extents.items()},
    }
    copies = 1
    names = [*factors, *(v for v in reversed(others) if v in moved)]
    for v in names:
        f = factors.get(v, 1)
        points = _edges(kernel, found, v, f, ranges)
        if points and copies * (len(points) + 1) <= MOST_PARTS:
            copies *= len(points) + 1
            yield Part(f"{v}.o" if v in factors else v, points)


def _edges(
    kernel: Kernel, found: Pass, v: str, factor: int, ranges: Mapping[str, Range]
) -> tuple[int, ...]:
    """The tiles along a loop at which others begin: of those at an edge each one stands alone.

    None are known of a loop of symbolic size.
    """
    if v in found.shape.symbolic:
        return ()
    extent = found.shape.extents[v]
    tiles = ceil(extent / factor)
    alone = {tiles - 1} if extent % factor else set()
    for r in found.reads:
        layout = kernel.buffer(r.value).layout
        sizes = dict(layout.extents)
        for d, c in r.coords:
            size = sizes.get(d)
            if r.fill is None or not isinstance(c, Index) or not isinstance(size, int):
                continue
            if v not in c.names():
                continue
            before, after = layout.room(d, r.fill)
            low, high = -before, size - 1 + after

            def leaves(tile: int, c: Index = c, low: int = low, high: int = high) -> bool:
                first, last = tile * factor, min((tile + 1) * factor, extent) - 1
                bounds = c.bounds({**ranges, v: (first, last)})
                return bounds is None or bounds[0] < low or bounds[1] > high

            # Along a straight line only the first and the last tiles leave the value.
            straight = c.coefficient(v) is not None
            if not straight and tiles > MOST_TILES:
                return ()
            for way in (range(tiles), reversed(range(tiles)))[: 2 if straight else 1]:
                for tile in way:
                    if leaves(tile):
                        alone.add(tile)
                    elif straight:
                        break
                    if len(alone) > MOST_PARTS:
                        return ()
    points = {p for tile in alone for p in (tile, tile + 1)}
    return tuple(sorted(p for p in points if 0 < p < tiles))
