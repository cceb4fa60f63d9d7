"""Kernels that pass windows over their operands: which loops move together, where edges are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil, prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.facts.windows import MOST_TAPS, partners
from rutc.tensor_ir.indices.affine import ZERO, Index, Range
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import FEWEST_LANES, NEAR_STRIDES
from rutc.tensor_ir.steps import Schedule, apply_schedule
from rutc.tensor_ir.steps.inside import windows_of
from rutc.tuner.access import Reduction, Shape
from rutc.tuner.analysis import analyse
from rutc.tuner.collapse import collapse
from rutc.tuner.lengths import affordable

MOST_PARTS = 16
"""Copies of a tile's code, one for each part of its loops."""

MOST_TILES = 1 << 12
"""Tiles along a loop that are looked at one by one."""


@record
class Pass:
    """A kernel that passes windows over its operands: who moves along with which bound loop.

    Loops that no window tells apart are one, after the steps `fused`. Of windows that are too long
    to be written out, those over the window that are `kept` stay loops: what they go over lies in
    memory, so that none of it is at an edge.
    """

    kernel: Kernel
    shape: Shape
    reduction: Reduction
    reads: tuple[Read, ...]
    partners: Mapping[str, str]
    fused: Schedule = ()
    kept: tuple[str, ...] = ()

    @property
    def taps(self) -> int:
        """Elements of a window that are written out."""
        return prod(self.shape.extents[b] for b in self.partners if b not in self.kept)

    def written_out(self, v: str, rows: int) -> int:
        """Elements in the code of tiles of rows along v: the first, the last, and one between.

        Where loops stay, each code runs many times before the next one: one has to be near.
        """
        if self.kept:
            return rows * self.taps
        tiles = ceil(self.shape.extents[v] / rows)
        codes = 3 if v in self.shape.symbolic else min(tiles, 3)
        return rows * self.taps * codes

    def strided(self, vector: str) -> bool:
        """Whether neighbouring lanes read elements that are no neighbours."""
        touches = (t for t in self.reduction.reads if not t.packed)
        return any(t.strides.get(vector, 0) not in (0, 1) for t in touches)


def pass_of(kernel: Kernel, shape: Shape) -> Pass | None:
    """What passes windows in a kernel; None where nothing does."""
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    extents = shape.extents
    free = {x.var for x in shape.shared if extents[x.var] > 1}
    single = {x.var for x in shape.shared} - free
    bound = {x.var for x in r.loops if extents[x.var] > 1}
    packed = {b.name for b in kernel.locals} | shape.constants
    moved = tuple(x for e in r.update.elements for x in reads(e) if x.value not in packed)
    found = partners(moved, free, bound, single)
    if not found or bound & shape.symbolic:
        return None
    every = Pass(kernel, shape, r, moved, found)
    whole = every if every.taps <= MOST_TAPS else _with_loops(every)
    return whole if whole.taps <= MOST_TAPS else None


def _with_loops(found: Pass) -> Pass:
    """The same with loops over the window that stay loops, until the others may be written out.

    Of those that never lead beyond memory, the first are those along which memory runs: rows share
    what they read along the others.
    """
    moved = [t for t in found.reduction.reads if not t.packed]
    runs = {b for b in found.partners if all(t.strides.get(b) == 1 for t in moved)}
    for b in sorted(found.partners, key=lambda b: (b not in runs, -found.shape.extents[b], b)):
        if found.taps > MOST_TAPS and _reads_memory(found, found.partners[b]):
            found = replace(found, kept=(*found.kept, b))
    return found


def with_fused_loops(found: Pass) -> Pass | None:
    """The kernel after loops that no window tells apart have become one."""
    fused = collapse(found.shape, frozenset(found.partners.values()))
    if not fused:
        return found
    kernel = apply_schedule(found.kernel, fused)
    again = pass_of(kernel, analyse(kernel, found.shape.constants))
    return None if again is None else replace(again, fused=fused)


def fused_pass_of(kernel: Kernel, shape: Shape) -> Pass | None:
    """What passes windows in a kernel, after loops that no window tells apart have become one."""
    found = pass_of(kernel, shape)
    return None if found is None else with_fused_loops(found)


def vectors_along(found: Pass) -> list[str]:
    """The loops along which all memory lies, or nearly.

    Of those of symbolic size such as find all that they read in memory: a run tells where they end.
    """
    shape = found.shape

    def along(v: str) -> bool:
        symbolic = v in shape.symbolic
        near = (0, 1) if symbolic else (0, 1, *NEAR_STRIDES)
        if symbolic and not _reads_memory(found, v):
            return False
        stores = [t for t in shape.touches if t.is_store]
        loads = [t for t in shape.touches if not t.is_store and not t.packed]
        return all(t.unit(v) for t in stores) and all(t.strides.get(v, 0) in near for t in loads)

    long = [x.var for x in shape.shared if shape.extents[x.var] >= FEWEST_LANES]
    return [v for v in long if along(v)]


def _reads_memory(found: Pass, v: str) -> bool:
    """Whether a loop never leads beyond what memory has of a dim, its halo among it."""
    shape = found.shape
    known = {b: n for b, n in shape.extents.items() if b not in shape.symbolic}
    ranges: dict[str, Range] = {b: (0, n - 1) for b, n in (known | dict(shape.longest)).items()}
    ranges |= dict(found.kernel.symbols)
    end = Index.of(found.shape.sizes[v]) - 1
    for r in found.reads:
        layout = found.kernel.buffer(r.value).layout
        for d, c in r.coords:
            if r.fill is None or not isinstance(c, Index) or v not in c.names():
                continue
            first, last = c.subs({v: ZERO}), c.subs({v: end})
            if (c.coefficient(v) or 0) < 0 or not layout.holds(d, r.fill, first, last, ranges):
                return False
    return True


def may_be_looped(found: Pass, bound: str) -> bool:
    """Whether what lies outside along a loop over the window adds nothing."""
    return any(windows_of(found.kernel, found.reduction.update, bound))


def places_read(reads: tuple[Read, ...], v: str, bound: str, rows: int, taps: int) -> int:
    """Places along a dim that so many rows of windows read."""
    total = 0
    for r in reads:
        for _, c in r.coords:
            if isinstance(c, Index) and v in c.names() and bound in c.names():
                step, apart = c.coefficient(v) or 0, c.coefficient(bound) or 0
                total += len({step * i + apart * j for i in range(rows) for j in range(taps)})
    return total


def read_again(found: Pass, bound: str, v: str) -> bool:
    """Whether windows along a loop have places in common, neighbours or others."""
    taps, windows = found.shape.extents[bound], found.shape.extents[v]
    one = places_read(found.reads, v, bound, 1, taps)
    return places_read(found.reads, v, bound, windows, taps) < windows * one


def edge_parts(
    found: Pass, loops: Iterable[str], factors: Mapping[str, int], looped: Collection[str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(loop, where parts begin): the edges of loops around a tile that have code of their own."""
    extents = found.shape.extents
    moved = {v for b, v in found.partners.items() if b not in looped}
    ranges: dict[str, Range] = {
        **dict(found.kernel.symbols),
        **{v: (0, n - 1) for v, n in extents.items()},
    }
    edges = (
        (v, _edges(found, v, factors.get(v, 1), ranges))
        for v in loops
        if v in factors or v in moved
    )
    return affordable(edges, MOST_PARTS)


def _edges(found: Pass, v: str, factor: int, ranges: Mapping[str, Range]) -> tuple[int, ...]:
    """The tiles along a loop at which others begin: of those at an edge each one stands alone.

    None are known of a loop of symbolic size.
    """
    if v in found.shape.symbolic:
        return ()
    extent = found.shape.extents[v]
    tiles = ceil(extent / factor)
    alone = {tiles - 1} if extent % factor else set()
    for r in found.reads:
        layout = found.kernel.buffer(r.value).layout
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
